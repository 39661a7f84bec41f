"""Keep the host from importing what a sandbox has written.

Threat: code in the sandbox writes `numpy.py`, `jsonschema.py` or `__init__.py` where this process, or the
next `python` that a person starts, looks for modules. The next import runs it outside the sandbox.

Mechanism: a workspace is refused if it is or contains a folder that modules are imported from, if it belongs
to a package, if the finder of an editable install maps a name to it, if a link in such a folder makes it part
of a module, if a loaded package looks for its modules there (`__path__`), or if it lies below such a folder
under a name that could be imported. So is one that a mount shows at such a place, whole or in part, or in
which such a folder is mounted. The folder of a person's own packages and those that files `.pth` name
count before they exist, as Python uses them as soon as they do. `refuse_import_root` looks when a session
opens, before a new worker gets its first call, and before each call that may change something if `sys.path`,
the finders, the current folder, the places of loaded packages, the files or the mounts have changed. It calls
`refuse_host_files` as well. Besides, `block_imports` keeps this process from importing modules out of an open
workspace: a hook of `sys.path_hooks` passes over the entries of `sys.path` that lie there, so that the same
name is found elsewhere, and a finder, first on `sys.meta_path`, refuses what any other finder locates there.
Both ask `aisotools.workspace.open_places` at each import where it is: by its device and inode, whatever name
a person has given it or a folder above it meanwhile, and wherever mounts show it or a part of it now.

Race window: a file that is written after one look and imported before the next is stopped only by the block,
and by none if a mount comes between the block and reading, or if an overlay has layers without a path here.
The block does not see what a finder locates that other code has put before it, until the next call or the
next session puts it first again; what a finder without `find_spec` locates; nor a module whose spec names no
file. A module that becomes a package after it was loaded (`__path__`) is seen by the next look for another
reason. If a finder finds nothing when `importlib.util.find_spec` asks, Python asks it once more, past the
block, and may be given a spec; the import of that name is blocked all the same. Code that loads a file by its
path asks no finder, and a hard link lies where it was put. Other processes see no block at all. The hook and
the finder stay after the last session, when they find nothing: taking them out could make an import in
another thread pass over the finder behind.

When a look fails, the call or the worker that needed it does not start. Files that are there stay. A blocked
import raises ModuleNotFoundError, and a warning names it once. An exception of another finder goes through.
"""

from __future__ import annotations

import functools
import importlib.machinery
import logging
import operator
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, NamedTuple

from aisotools.core.exceptions import WorkspaceRefused
from aisotools.workspace.host_files import refuse_host_files
from aisotools.workspace.open_places import OpenPlaces
from aisotools.workspace.paths import OpenedFolder
from aisotools.workspace.real_paths import (
    RealPaths,
    find_other_places,
    leads_into,
    lies_to,
    list_links,
    parents,
    resolve_links,
)
from aisotools.workspace.search_path import find_odd_entry, list_import_roots

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
        "jupyter_client",
        "jupyter_core",
        "langchain_core",
        "langgraph",
        "markdown_it",
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
        "smolagents",
        "tornado",
        "traitlets",
        "tree_sitter",
        "tree_sitter_bash",
        "typing_extensions",
        "uvicorn",
        "zmq",
    }
)
"""Names that this package imports, some of them late and only if they are installed."""

_MAPPINGS = ("MAPPING", "NAMESPACES", "_redirections", "known_source_files")
"""Attributes of such finders: of setuptools, of editables (hatchling, PDM), and of scikit-build-core."""

_MAX_PARTS = 100  # of a namespace that are searched for modules
_SUFFIXES = tuple(importlib.machinery.all_suffixes())
_DISTRIBUTIONS = (".dist-info", ".egg-info", ".egg")
_INITS = tuple("__init__" + suffix for suffix in _SUFFIXES)
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
    environ = dict(os.environ if environ is None else environ)  # hundreds of names are looked up
    _refuse_place(real, f"{str(workspace)!r} cannot be the workspace: ", environ)
    for place in find_other_places(real):
        subject = f"{str(workspace)!r} cannot be the workspace: what is in it is at {place!r} as well, and "
        _refuse_place(place, subject, environ)


def _refuse_place(real: str, refusal: str, environ: Mapping[str, str]) -> None:
    """Raise if something that is written into a folder could be imported outside the sandbox.

    Args:
        real: Its path, without links.
        refusal: How the message begins.
        environ: Where `PYTHONPATH` is looked up.

    Raises:
        WorkspaceRefused: Saying why, and what would do.
    """
    if odd := find_odd_entry():
        raise WorkspaceRefused(refusal + odd)
    loaded = _list_loaded()
    for package, file in loaded.homes:
        home = _real_folder(file)
        relation = lies_to(real, home)
        if relation:
            raise WorkspaceRefused(
                f"{refusal}it {relation} the package {package} ({home}), which this process imports. "
                "Use a folder made for this, such as ./workspace/mine."
            )
    for name, home in _mapped_names(loaded.editable_finders):
        relation = lies_to(real, home)
        if relation:
            raise WorkspaceRefused(
                f"{refusal}it {relation} the editable install of {name} ({home}), which this process can "
                "import. Use a folder made for this, such as ./workspace/mine."
            )
    roots = list(list_import_roots(environ))
    for root, description in roots:
        relation = lies_to(real, root)
        if relation not in {"is", "contains"}:
            _refuse_linked(real, root, f"{refusal}{description} ({root})")
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
    around = [root for root, _ in roots if lies_to(real, root)]
    paths = RealPaths()
    _refuse_search_folders(real, loaded.packages, around, refusal, paths)
    refuse_host_files(Path(real), environ, loaded=loaded.files, roots=around, paths=paths, refusal=refusal)


def package_marks(workspace: Path, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of files that would make the workspace a package which programs of yours can import.

    None unless it lies directly in a folder that modules are imported from. Such a file would end all work
    there, so a session puts it back like the other files that programs outside run.
    """
    parent = os.path.dirname(os.path.realpath(workspace))  # noqa: PTH120 - as text, like the roots
    return _INITS if any(root == parent for root, _ in list_import_roots(environ)) else ()


def is_package_mark(path: str) -> bool:
    """Return whether a path in a workspace is one of `package_marks`."""
    return path in _INITS


def _refuse_search_folders(
    workspace: str,
    packages: Sequence[Mapping[str, Any]],
    roots: Sequence[str],
    refusal: str,
    paths: RealPaths,
) -> None:
    """Raise if a loaded package looks for its modules in the workspace, by its `__path__`.

    Args:
        workspace: Its real path.
        packages: The globals of all packages.
        roots: Real paths of the import roots that the workspace lies in. A part of a namespace there is a
            plain folder, which may have folders for other things.
        refusal: How the message begins.
        paths: Finds real paths.

    Raises:
        WorkspaceRefused: Saying which one.
    """
    above, inside = {workspace, "/", *parents(workspace)}, f"{workspace.rstrip('/')}/"
    for package in packages:
        for entry in _list_entries(package):
            folder = paths.resolve(entry)
            bytecode = paths.resolve(f"{folder}/__pycache__")
            # There are thousands of folders, and hardly any is one of these.
            if not ({folder, bytecode} & above or folder.startswith(inside) or bytecode.startswith(inside)):
                continue
            relation = lies_to(workspace, folder)
            if relation == "lies in" and not package.get("__file__"):
                relation = "" if any(lies_to(folder, root) == "lies in" for root in roots) else relation
            if not relation:
                folder = bytecode
                relation = lies_to(workspace, folder)
            if relation:
                raise WorkspaceRefused(
                    f"{refusal}it {relation} {folder!r}, where this process looks for modules of the package "
                    f"{package.get('__name__')}. Use a folder made for this, such as ./workspace/mine."
                )


def _list_entries(package: Mapping[str, Any]) -> list[str]:
    """Return the absolute paths where the package with these globals looks for its modules."""
    try:
        entries = [entry for entry in package["__path__"] if isinstance(entry, str)]  # Python skips others
        return [os.path.normpath(one) if one[:1] == "/" else os.path.abspath(one) for one in entries]  # noqa: PTH100 - many
    except Exception:  # written by strangers, and a namespace asks the finders
        _log.debug("%r has no readable __path__", package.get("__name__"), exc_info=True)
        return []


def _refuse_linked(workspace: str, root: str, refusal: str) -> None:
    """Raise if a link in an import root makes the workspace, or something in it, part of a module.

    Raises:
        WorkspaceRefused: Saying which one.
    """
    for link, target in _links_in(root):
        relation = lies_to(workspace, target)
        name = _first_below(root, link).partition(".")[0]
        is_file = link.endswith((*_SUFFIXES, ".pth"))
        if is_file or link.endswith("/__pycache__"):
            reason = f"Python runs what {link} has"
        else:
            reason = _why_importable(name, root)
        if relation and reason and (relation == "contains" or not is_file):
            raise WorkspaceRefused(
                f"{refusal} has a link {link!r} to {target!r}, which it {relation}, and {reason}. "
                "Use a folder made for this, such as ./workspace/mine."
            )


def _links_in(root: str) -> Iterator[tuple[str, str]]:
    """Yield the links to folders and modules in an import root, each with the real path that it leads to.

    The strict form of setuptools' editable installs has a folder of its own, with links at any depth.
    """
    strict = root.rpartition("/")[2].startswith("__editable__.")
    folders = [root]
    while folders:
        folder = folders.pop()
        try:
            for name in list_links(folder):
                path = f"{folder.rstrip('/')}/{name}"
                if name.endswith((*_SUFFIXES, ".pth")) or Path(path).is_dir():
                    yield path, resolve_links(path)
            if strict:
                with os.scandir(folder) as entries:
                    folders += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError:  # no folder, or a link in a circle
            continue


def _first_below(folder: str, path: str) -> str:
    """Return the first component of `path` below `folder`, in which it lies."""
    return path[len(folder.rstrip("/")) + 1 :].partition("/")[0]


def _mapped_names(editable_finders: Sequence[object]) -> Iterator[tuple[str, str]]:
    """Yield the names that finders of editable installs map to paths, each with one real path.

    Of setuptools, `MAPPING` has one path for each name, `NAMESPACES` has several. Others have the `__init__`
    file of a package, which stands for its folder.
    """
    for holder in (*list_finders(), *editable_finders):
        for attribute in _MAPPINGS:
            try:
                mapping = getattr(holder, attribute, None)
            except Exception:  # finders are written by strangers
                _log.debug("%r has no readable %s", holder, attribute, exc_info=True)
                continue
            for name, value in tuple(mapping.items()) if isinstance(mapping, Mapping) else ():
                for path in value if isinstance(value, list | tuple) else (value,):
                    if isinstance(path, str | os.PathLike):
                        folder, _, last = os.fsdecode(path).rpartition("/")
                        yield str(name), os.path.realpath(folder if last in _INITS else path)


def list_packages() -> tuple[tuple[object, ...], tuple[dict[str, Any], ...]]:
    """Return the modules of this process in the order of `sys.modules`, and the globals of its packages."""
    loaded = _list_loaded()
    return loaded.modules, loaded.packages


class _Loaded(NamedTuple):
    """What there is to know of the modules of this process.

    Attributes:
        names: Of all modules, in the order in which they were loaded.
        modules: The modules themselves, in the same order.
        homes: Name and `__init__` file of each package that is not a part of another one with such a file.
        packages: The globals of each package, namespaces among them.
        files: The names of the modules that have a file, by the absolute path of its folder and its name.
        editable_finders: Modules with the finders of editable installs.
    """

    names: tuple[str, ...]
    modules: tuple[object, ...]
    homes: tuple[tuple[str, str], ...]
    packages: tuple[dict[str, Any], ...]
    files: Mapping[str, Mapping[str, Sequence[str]]]
    editable_finders: tuple[object, ...]


_last_loaded = _Loaded((), (), (), (), {}, ())


def _list_loaded() -> _Loaded:
    # There may be thousands of modules, and they rarely change between two looks.
    global _last_loaded  # noqa: PLW0603 - one value for this process, replaced as a whole
    last = _last_loaded
    loaded: dict[Any, object] = {**sys.modules}  # another thread may be importing
    names, modules = tuple(loaded), tuple(loaded.values())
    if names == last.names and all(map(operator.is_, modules, last.modules)):
        return last
    homes: list[tuple[str, str]] = []
    packages: list[dict[str, Any]] = []
    files: dict[str, dict[str, list[str]]] = {}
    editable_finders: list[object] = []
    for name, module in loaded.items():
        if not isinstance(name, str):
            continue  # no import finds it
        if name.startswith("__editable___") and name.endswith("_finder"):
            editable_finders.append(module)
        if not issubclass(type(module), ModuleType):  # objects of cffi say that they are modules
            continue
        names_of_module: dict[str, Any] = object.__getattribute__(module, "__dict__")  # loads no lazy module
        if "__path__" in names_of_module:
            packages.append(names_of_module)
        file = names_of_module.get("__file__")
        if not isinstance(file, str):
            continue
        if file.startswith("/"):
            folder, _, last_part = file.rpartition("/")
            files.setdefault(folder, {}).setdefault(last_part, []).append(name)
        # A namespace package has no file: it is a plain folder, which may hold anything. Its packages count.
        outer = loaded.get(name.rpartition(".")[0])
        inner = isinstance(outer, ModuleType) and isinstance(vars(outer).get("__file__"), str)
        if not inner and file.endswith(_INITS):
            homes.append((name, file))
    _last_loaded = _Loaded(names, modules, tuple(homes), tuple(packages), files, tuple(editable_finders))
    return _last_loaded


@functools.lru_cache(maxsize=4096)
def _real_folder(file: str) -> str:
    return os.path.realpath(file).rpartition("/")[0]


def _why_importable(name: str, root: str) -> str:
    """Return why a module of this name could be imported from `root` or elsewhere; empty if it could not."""
    for init in _INITS:
        if os.path.lexists(f"{root}/{name}/{init}"):
            return f"{name}/{init} makes a package of it (undo its call, or remove that file)"
    for suffix in _SUFFIXES:
        if os.path.lexists(f"{root}/{name}{suffix}"):
            return f"{name}{suffix} beside it is a module of that name"
    if name.lower().endswith(_DISTRIBUTIONS) or (
        name.lower() == "egg-info" and root.lower().endswith(".egg")
    ):
        return "Python takes it for an installed distribution, whose entry points programs load"
    if name in sys.stdlib_module_names:
        return "the standard library has a module of that name"
    if name in {"sitecustomize", "usercustomize"}:
        return "Python imports a module of that name whenever it starts"
    if name in OWN_IMPORTS:
        return "aisotools imports a module of that name"
    if name.isidentifier() and _is_installed(name, root):
        return "a module of that name is installed"
    return ""


def _is_installed(name: str, root: str) -> bool:
    """Return whether a finder knows more of this name than a plain folder in `root`. Nothing is imported."""
    for finder in list_finders():
        try:
            spec = finder.find_spec(name, None)
            if spec is None:
                continue
            if spec.origin is not None:
                return True
            folders = [os.path.realpath(place) for place in spec.submodule_search_locations or ()]
        except Exception:  # finders are written by strangers, too
            _log.debug("The finder %r failed for %r", finder, name, exc_info=True)
            continue
        here = os.path.realpath(f"{root}/{name}")
        if any(_has_modules(folder) for folder in folders if folder != here):
            return True
    return False


def _has_modules(folder: str, depth: int = 3) -> bool:
    """Return whether a part of a namespace has modules, so that it is not a plain folder of the same name."""
    inner: list[str] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.endswith(_SUFFIXES):
                    return True
                if depth and entry.is_dir():
                    inner.append(entry.path)
    except OSError:
        return False
    return any(_has_modules(path, depth - 1) for path in inner[:_MAX_PARTS])


def list_package_files(workspace: Path, environ: Mapping[str, str]) -> list[str]:
    """Return the `__init__` files that would make `workspace` part of a package below an import root.

    They need not exist.
    """
    real = os.path.realpath(workspace)
    files: list[str] = []
    for root, _ in list_import_roots(environ):
        if lies_to(real, root) == "lies in":
            files += [f"{root}/{_first_below(root, real)}/{init}" for init in _INITS]
        for link, target in _links_in(root):
            if lies_to(real, target) in {"is", "lies in"}:
                files += [f"{link}/{init}" for init in _INITS]
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
    return path.is_dir() or any(os.path.lexists(path.with_name(path.name + suffix)) for suffix in _SUFFIXES)


class _WorkspaceGuard:
    """Asks the finders behind it and refuses what they locate in an open workspace; for `sys.meta_path`."""

    def __init__(self) -> None:
        self._reported: set[str] = set()
        self._lookups = threading.local()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the first spec that another finder has for `name`; None if there is none.

        If it is the import system that asks for an import, a missing module is reported at once: None would
        let it ask the same finders again, and one of them could find what has been written since.

        Raises:
            ModuleNotFoundError: If the module lies in an open workspace, or nothing was found by an import.
        """
        if not _blocked:
            return None
        is_final = True
        for finder in _list_behind(self):
            find_spec = getattr(finder, "find_spec", None)
            if find_spec is None:  # Python 3.11 asks such a finder in another way
                is_final = False
                continue
            spec = self._ask(finder, find_spec, name, path, target)
            if spec is not None:
                self._refuse(name, spec)
                return spec
        if is_final and _is_import(sys._getframe(1)):  # noqa: SLF001 - nothing else tells who asks
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None

    def _ask(
        self,
        finder: object,
        find_spec: Callable[..., importlib.machinery.ModuleSpec | None],
        name: str,
        path: Sequence[str] | None,
        target: ModuleType | None,
    ) -> importlib.machinery.ModuleSpec | None:
        """Ask one finder, but not while this thread already asks it for that name: finders ask each other."""
        lookups: set[tuple[str, int]] = self._lookups.__dict__.setdefault("now", set())
        key = (name, id(finder))
        if key in lookups:
            return None
        lookups.add(key)
        try:
            return find_spec(name, path, target)
        finally:
            lookups.discard(key)

    def _refuse(self, name: str, spec: importlib.machinery.ModuleSpec) -> None:
        """Raise ModuleNotFoundError if anything that the spec names is in an open workspace."""
        places, identities = _blocked.find()  # after it was found: what was mounted before that counts
        for location in _list_locations(spec):
            if not leads_into(location, places, identities):
                continue
            if name not in self._reported:
                self._reported.add(name)
                _log.warning(
                    "%r was not imported from %r: sandboxed code may write there while its session is open. "
                    "Copy the file elsewhere after reading it.",
                    name,
                    location,
                )
            raise ModuleNotFoundError(
                f"The module {name!r} is not imported from {location!r}: sandboxed code may write there "
                "while its session is open. Close the session, or copy the file elsewhere after reading it.",
                name=name,
            )

    def forget(self) -> None:
        """Report each name again."""
        self._reported.clear()


def _is_import(caller: FrameType) -> bool:
    """Return whether this frame looks for a module that is imported if it is found."""
    importer = caller.f_back
    return (
        importer is not None
        and importer.f_code.co_name == "_find_and_load_unlocked"
        and importer.f_globals.get("__name__") == "importlib._bootstrap"
        and caller.f_globals is importer.f_globals
    )


def _list_locations(spec: importlib.machinery.ModuleSpec) -> list[str]:
    """Return the files and folders that a spec names, each once."""
    found = [getattr(spec, "cached", None)]
    origin = getattr(spec, "origin", None)
    # The origin may be a word such as "built-in".
    if getattr(spec, "has_location", False) or (isinstance(origin, str) and os.sep in origin):
        found.append(origin)
    loader = getattr(spec, "loader", None)
    found += [getattr(loader, "path", None), getattr(loader, "archive", None)]
    found += getattr(spec, "submodule_search_locations", None) or ()
    texts = [os.fsdecode(place) for place in found if isinstance(place, str | bytes | os.PathLike)]
    return list(dict.fromkeys(texts))


_guard = _WorkspaceGuard()


def list_finders() -> list[Any]:
    """Return the finders of this process, without the one that blocks imports."""
    finders = list(sys.meta_path)
    # By identity: a finder of a stranger may say that it equals ours, and must stay.
    for place in reversed(range(len(finders))):
        if finders[place] is _guard:
            del finders[place]
    return finders


def _list_behind(guard: _WorkspaceGuard) -> list[object]:
    """Return the finders that stand behind this one; all of them if other code has taken it out."""
    finders: list[object] = list(sys.meta_path)
    for place, finder in enumerate(finders):
        if finder is guard:
            return finders[place + 1 :]
    return finders


def keep_block_first() -> None:
    """Put the finder that blocks imports before those that other code has inserted since."""
    if not _blocked or (sys.meta_path and sys.meta_path[0] is _guard):
        return
    with _lock:
        if _blocked:
            _put_first()


def _put_first() -> None:
    # Race: an import in another thread may be iterating over this list, by position. A finder that moves back
    # is asked twice by it, which does no harm; after a removal it would pass over one, and miss a module that
    # is there. So nothing is ever removed: without an open workspace our finder and our hook find nothing.
    sys.meta_path[:] = [_guard, *list_finders()]


def _forget_finders(folder: str) -> None:
    """Drop the finders that are cached for this folder and those below."""
    paths, inside = RealPaths(), f"{folder.rstrip('/')}/"
    entries: tuple[Any, ...] = tuple(sys.path_importer_cache)
    for entry in entries:
        if isinstance(entry, str) and f"{paths.resolve(entry).rstrip('/')}/".startswith(inside):
            sys.path_importer_cache.pop(entry, None)


_blocked = OpenPlaces(_forget_finders)
_lock = threading.Lock()


def _find_nothing_in_workspaces(entry: str) -> _EmptyFinder:
    """Take the entries in an open workspace; a hook of `sys.path_hooks`.

    Raises:
        ImportError: For every other entry, which the next hook takes.
    """
    if _blocked and leads_into(entry, *_blocked.find()):
        return _EmptyFinder(Path(entry).resolve())
    raise ImportError(f"{entry!r} is in no open workspace")


def block_imports(workspace: Path) -> Callable[[], None]:
    """Let this process import nothing from `workspace` until the returned function is called."""
    with _lock:
        if _find_nothing_in_workspaces not in sys.path_hooks:
            sys.path_hooks.insert(0, _find_nothing_in_workspaces)
        folder = _blocked.add(workspace)
        _put_first()
    return functools.partial(_unblock, [folder])


def park_block(workspace: Path) -> None:
    """Keep no descriptor of `workspace` until `wake_block`: no call runs there meanwhile."""
    _blocked.park(workspace)


def wake_block(workspace: Path) -> None:
    """Hold `workspace` by a descriptor again, before a call runs there."""
    _blocked.wake(workspace)


def _unblock(blocks: list[OpenedFolder]) -> None:
    with _lock:
        while blocks:  # empty at the second call
            _blocked.remove(blocks.pop())
        if not _blocked:
            _guard.forget()
