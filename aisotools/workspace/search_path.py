"""What stands in `sys.path`, `sys.meta_path` and `sys.path_hooks`, of whatever type other code put there.

`list_import_roots` lists the folders that modules are imported from by that, now or in the next program.
Python passes over what it cannot use in `sys.path`, but `importlib.metadata` fails there, and with it
whatever looks for plugins, such as pydantic. So this is looked at before anything that needs it, and an entry
of another type is named; nobody can tell what would be imported from it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

_MAX_CHARS = 80


def find_odd_entry() -> str:
    """Return a sentence on the first entry that Python cannot use, with what to do; else an empty text."""
    hooks: tuple[tuple[str, object], ...] = (("meta_path", sys.meta_path), ("path_hooks", sys.path_hooks))
    for name, value in hooks:
        if not isinstance(value, list):
            kind = type(value).__name__
            return f"sys.{name} is a {kind}, and Python needs a list: sys.{name} = list(sys.{name})."
    for finder in tuple(sys.meta_path):
        if not _can_find(finder):
            return (
                f"sys.meta_path has the entry {_show(finder)}, which has no find_spec: imports fail at it. "
                "Take it out."
            )
    entries: tuple[object, ...] = tuple(sys.path)
    for entry in entries:
        if not isinstance(entry, (str, os.PathLike)):
            return (
                f"sys.path has the entry {_show(entry)}, which is not text. Python imports nothing from it, "
                "and importlib.metadata fails. Take it out, or decode it with os.fsdecode."
            )
        try:
            is_usable = "\0" not in os.fsencode(text_of_entry(entry)).decode("utf-8", "surrogateescape")
        except Exception:  # of a class of its own, which may do anything
            is_usable = False
        if not is_usable:
            return (
                f"sys.path has the entry {_show(entry)}, which can be no path. Python imports nothing from "
                "it, and importlib.metadata fails. Take it out."
            )
    return ""


def text_of_entry(entry: object) -> str:
    """Return an entry of `sys.path` as text.

    Raises:
        TypeError: If it is neither text nor a path that is text.
    """
    # A class of its own may say that it is another text; Python's own importer reads what it is.
    text = entry if isinstance(entry, str) else os.fspath(entry)  # type: ignore[call-overload]  # raises a TypeError then
    if not isinstance(text, str):
        raise TypeError(f"a path is {type(text).__name__}")
    return str.__str__(text)


def _can_find(finder: object) -> bool:
    try:
        # As each import does.
        return (
            getattr(finder, "find_spec", None) is not None or getattr(finder, "find_module", None) is not None
        )
    except Exception:  # of a class of its own
        return False


def _show(entry: object) -> str:
    try:
        text = repr(entry)
    except Exception:  # of a class of its own
        text = f"<{type(entry).__name__}>"
    return text if len(text) <= _MAX_CHARS else f"{text[:_MAX_CHARS]}..."


def list_import_roots(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the real paths that modules are imported from, each with what it is."""
    entries = filter(None, environ.get("PYTHONPATH", "").split(os.pathsep))
    candidates: list[tuple[str, str]] = [("", "the current folder")]
    candidates += [(entry, "an entry of PYTHONPATH") for entry in entries]
    candidates += [(text_of_entry(entry), "an entry of sys.path") for entry in sys.path]
    if base := environ.get("PYTHONUSERBASE") or (environ.get("HOME") and f"{environ['HOME']}/.local"):
        version = f"{sys.version_info[0]}.{sys.version_info[1]}"
        candidates.append((f"{base}/lib/python{version}/site-packages", "the folder of your own packages"))
    for home in filter(None, environ.get("PYTHONHOME", "").split(os.pathsep)):
        candidates += [(library, "the standard library of PYTHONHOME") for library in _list_libraries(home)]
    candidates += [
        (line, f"a line of {file}")
        for folder in dict.fromkeys(entry for entry, _ in candidates if entry.endswith("-packages"))
        for file, line in _list_path_lines(folder)
    ]
    seen = set()
    for entry, description in candidates:
        try:
            root = os.path.realpath(entry)
        except (OSError, ValueError):  # the current folder is gone, or the entry is not a path
            continue
        if root not in seen:
            seen.add(root)
            yield root, description


def _list_libraries(home: str) -> list[str]:
    """Return where the Python of this version would look for its standard library, given its home."""
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    return [f"{home}/{sys.platlibdir}/python{version}", f"{home}/lib/python{version.replace('.', '')}.zip"]


def _list_path_lines(folder: str) -> Iterator[tuple[str, str]]:
    """Yield the folders that files `.pth` in a folder of packages name, each after its file.

    Python adds them to `sys.path` when it starts, if they exist by then.
    """
    try:
        names = [name for name in os.listdir(folder) if name.endswith(".pth")]  # noqa: PTH208 - one for each look
    except OSError:
        return
    for name in names:
        file = Path(folder, name)
        try:
            lines = file.read_text("utf-8", "surrogateescape").splitlines()
        except OSError:
            continue
        for line in lines:
            if line.strip() and not line.startswith(("#", "import ", "import\t")):
                yield str(file), f"{folder}/{line.rstrip()}" if not line.startswith("/") else line.rstrip()
