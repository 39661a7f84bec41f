"""Keep the host from importing what a sandbox has written.

Threat: code in the sandbox writes `numpy.py`, `jsonschema.py` or `__init__.py` where this process, or the
next `python` that a person starts, looks for modules. The next import runs it outside the sandbox.

Mechanism: a workspace is refused if it is or contains a folder that modules are imported from, if it belongs
to a package, or if it lies below such a folder under a name that could be imported. `refuse_import_root`
looks when a session opens, before each worker starts and before each call that may change something, since
`sys.path`, the current folder and the files change. Besides, `block_imports` keeps this process from
importing modules out of an open workspace by any entry of `sys.path`.

Race window: a file that is written after one look and imported before the next is stopped only by the block.
The block does not see a package whose own folder is the workspace and whose `__init__.py` is imported by a
folder above it; that name is refused at the next look. Other processes see no block at all.

When a look fails, the call or the worker that needed it does not start. Files that are there stay.
"""

from __future__ import annotations

import functools
import importlib.machinery
import logging
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType

from aisotools.core.exceptions import WorkspaceRefused

OWN_IMPORTS = frozenset(
    {
        "agents",
        "aisotools",
        "anyio",
        "anywidget",
        "cloudpickle",
        "comm",
        "griffe",
        "html_to_markdown",
        "httpcore2",
        "httpx2",
        "ipykernel",
        "IPython",
        "jsonschema",
        "jupyter_client",
        "jupyter_core",
        "langchain_core",
        "langgraph",
        "mcp",
        "nbclient",
        "nbformat",
        "nh3",
        "numpy",
        "pathspec",
        "pyarrow",
        "pydantic",
        "pydantic_ai",
        "pydantic_core",
        "pygments",
        "pytest",
        "pytest_asyncio",
        "referencing",
        "smolagents",
        "tornado",
        "traitlets",
        "tree_sitter",
        "tree_sitter_bash",
        "uvicorn",
        "zmq",
    }
)
"""Names that this package imports, some of them late and only if they are installed."""

_INITS = tuple("__init__" + suffix for suffix in importlib.machinery.all_suffixes())
_log = logging.getLogger(__name__)


def refuse_import_root(workspace: Path, environ: Mapping[str, str] | None = None) -> None:
    """Raise if something that is written into `workspace` could be imported outside the sandbox.

    Args:
        workspace: An existing folder.
        environ: Where `PYTHONPATH` is looked up; the process's environment without it.

    Raises:
        WorkspaceRefused: Saying why, and what would do.
    """
    real = os.path.realpath(workspace)
    refusal = f"{str(workspace)!r} cannot be the workspace: "
    for package, home in _loaded_packages():
        relation = _relation(real, home)
        if relation:
            raise WorkspaceRefused(
                f"{refusal}it {relation} the package {package} ({home}), which this process imports. "
                "Use a folder made for this, such as ./workspace/mine."
            )
    for root, description in _import_roots(os.environ if environ is None else environ):
        relation = _relation(real, root)
        if not relation:
            continue
        folder = Path(root)
        would_do = (folder if folder.is_dir() else folder.parent) / "workspace" / "mine"
        if relation in {"is", "contains"}:
            raise WorkspaceRefused(
                f"{refusal}it {relation} {description} ({root}), so that a file written there could be "
                f"imported by programs outside the sandbox. A folder below will do: {str(would_do)!r}."
            )
        name = _first_below(root, real)
        reason = _why_importable(name, root)
        if reason:
            raise WorkspaceRefused(
                f"{refusal}it lies in the folder {name!r} of {description} ({root}), and {reason}. "
                f"Use a folder of another name, such as {str(would_do)!r}."
            )


def _relation(workspace: str, folder: str) -> str:
    """Return how one real path lies to another. Many are compared, so both are texts."""
    if workspace == folder:
        return "is"
    if folder.startswith(f"{workspace.rstrip('/')}/"):
        return "contains"
    return "lies in" if workspace.startswith(f"{folder.rstrip('/')}/") else ""


def _first_below(folder: str, path: str) -> str:
    """Return the first component of `path` below `folder`, in which it lies."""
    return path[len(folder.rstrip("/")) + 1 :].partition("/")[0]


def _import_roots(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the real paths that modules are imported from, each with what it is."""
    entries = filter(None, environ.get("PYTHONPATH", "").split(os.pathsep))
    candidates: list[tuple[str, str]] = [("", "the current folder")]
    candidates += [(entry, "an entry of PYTHONPATH") for entry in entries]
    candidates += [(str(entry), "an entry of sys.path") for entry in sys.path]
    seen = set()
    for entry, description in candidates:
        try:
            root = os.path.realpath(entry)
        except (OSError, ValueError):  # the current folder is gone, or the entry is no path
            continue
        if root not in seen:
            seen.add(root)
            yield root, description


def _loaded_packages() -> Iterator[tuple[str, str]]:
    """Yield the packages of this process that are no part of another one, each with its folder."""
    for name, module in tuple(sys.modules.items()):
        # A namespace package has no file: it is a plain folder, in which anything may lie.
        file = vars(module).get("__file__") if "." not in name and isinstance(module, ModuleType) else None
        if isinstance(file, str) and file.endswith(_INITS):
            yield name, _real_folder(file)


@functools.lru_cache(maxsize=4096)
def _real_folder(file: str) -> str:
    return os.path.realpath(file).rpartition("/")[0]


def _why_importable(name: str, root: str) -> str:
    """Return why a module of this name could be imported from `root` or elsewhere; empty if it could not."""
    for init in _INITS:
        if os.path.lexists(f"{root}/{name}/{init}"):
            return f"{name}/{init} makes a package of it (undo its call, or remove that file)"
    for suffix in importlib.machinery.all_suffixes():
        if os.path.lexists(f"{root}/{name}{suffix}"):
            return f"{name}{suffix} beside it is a module of that name"
    if name in sys.stdlib_module_names:
        return "the standard library has a module of that name"
    if name in OWN_IMPORTS:
        return "aisotools imports a module of that name"
    if name.isidentifier() and _is_installed(name):
        return "a module of that name is installed"
    return ""


def _is_installed(name: str) -> bool:
    """Return whether a finder of this process knows a module of this name. Nothing is imported."""
    for finder in tuple(sys.meta_path):
        try:
            spec = finder.find_spec(name, None)
        except Exception:  # finders are written by strangers, too
            _log.debug("The finder %r failed for %r", finder, name, exc_info=True)
            continue
        if spec is not None and spec.origin is not None:
            return True
    return False


def list_package_files(workspace: Path, environ: Mapping[str, str]) -> list[str]:
    """Return the `__init__` files that would make `workspace` part of a package below an import root.

    They need not exist.
    """
    real = os.path.realpath(workspace)
    files: list[str] = []
    for root, _ in _import_roots(environ):
        if _relation(real, root) == "lies in":
            files += [f"{root}/{_first_below(root, real)}/{init}" for init in _INITS]
    return files


# ---- no import out of an open workspace


class _EmptyFinder:
    """Finds nothing in a folder of an open workspace, and says so once for each name."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._reported: set[str] = set()

    def find_spec(self, name: str, target: object = None) -> None:
        """Return None: there is no module here."""
        del target
        last = name.rpartition(".")[2]
        if last not in self._reported and _is_module(self._folder / last):
            self._reported.add(last)
            _log.warning(
                "%r was not imported from %r: sandboxed code may write there while its session is open. "
                "Copy the file elsewhere after reading it.",
                name,
                str(self._folder),
            )

    def invalidate_caches(self) -> None:
        """Do nothing: nothing is cached."""


def _is_module(path: Path) -> bool:
    suffixes = importlib.machinery.all_suffixes()
    return path.is_dir() or any(os.path.lexists(path.with_name(path.name + suffix)) for suffix in suffixes)


_blocked: Counter[Path] = Counter()
_lock = threading.Lock()


def _find_nothing_in_workspaces(entry: str) -> _EmptyFinder:
    """Take the entries in an open workspace; a hook of `sys.path_hooks`.

    Raises:
        ImportError: For every other entry, which the next hook takes.
    """
    folder = Path(entry).resolve()
    for workspace in tuple(_blocked):
        if folder.is_relative_to(workspace):
            return _EmptyFinder(folder)
    raise ImportError(f"{entry!r} is in no open workspace")


def block_imports(workspace: Path) -> Callable[[], None]:
    """Let this process import nothing from `workspace` until the returned function is called.

    What is elsewhere under the same name is imported as before. Several blocks of one folder are counted.
    """
    real = workspace.resolve()
    with _lock:
        if _find_nothing_in_workspaces not in sys.path_hooks:
            sys.path_hooks.insert(0, _find_nothing_in_workspaces)
        _blocked[real] += 1
        _forget_finders(real)
    return functools.partial(_unblock, [real])


def _unblock(blocks: list[Path]) -> None:
    with _lock:
        while blocks:  # empty at the second call
            real = blocks.pop()
            _blocked[real] -= 1
            if not _blocked[real]:
                del _blocked[real]
                _forget_finders(real)
        if not _blocked and _find_nothing_in_workspaces in sys.path_hooks:
            sys.path_hooks.remove(_find_nothing_in_workspaces)


def _forget_finders(folder: Path) -> None:
    """Drop the finders that are cached for this folder and those below."""
    known: dict[str, str] = {}
    for entry in tuple(sys.path_importer_cache):
        if _relation(str(folder), _resolve(entry, known)) in {"is", "contains"}:
            sys.path_importer_cache.pop(entry, None)


def _resolve(path: str, known: dict[str, str]) -> str:
    """Return the real path; `known` has those that were found before, as most entries share their parents."""
    real = known.get(path)
    if real is None:
        parent, _, name = path.rpartition("/")
        if not parent or name in {"", ".", ".."} or os.path.islink(path):  # noqa: PTH114 - many entries
            real = os.path.realpath(path)
        else:
            real = f"{_resolve(parent, known).rstrip('/')}/{name}"
        known[path] = real
    return real
