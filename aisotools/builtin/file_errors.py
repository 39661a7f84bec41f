"""What goes wrong with files, told so that a model can mend it."""

from __future__ import annotations

import difflib
import itertools
import posixpath
from collections.abc import Iterator
from contextlib import contextmanager

from aisotools.exceptions import ToolError, WorkspaceError
from aisotools.folders import Entry
from aisotools.paths import printable, shown
from aisotools.workspace import Workspace

_MAX_NAMES = 2_000
"""How many names of a folder are compared with a missing one."""


@contextmanager
def for_the_model(workspace: Workspace, path: str) -> Iterator[None]:
    """Turn what fails in the `with` block into a `ToolError` about `path`.

    Raises:
        ToolError: Naming the path, what is wrong with it, and what to do.
    """
    told = repr(path)
    try:
        yield
    except WorkspaceError as error:
        raise ToolError(str(error)) from None
    except FileNotFoundError:
        raise ToolError(_missing(workspace, path)) from None
    except IsADirectoryError:
        raise ToolError(
            f"{told} is a folder, not a file. See what is in it with the tool file, operation 'list'.",
        ) from None
    except NotADirectoryError:
        raise ToolError(_not_a_folder(workspace, path)) from None
    except PermissionError:
        raise ToolError(
            f"{told} may not be used that way: permission denied. Its mode is told by the tool file, "
            "operation 'metadata'; it cannot be changed from here. Use another path.",
        ) from None
    except OSError as error:
        raise ToolError(f"{told}: {error.strerror or error}.") from None


def _missing(workspace: Workspace, path: str) -> str:
    above, name = _nearest(workspace, path)
    if above.kind != "directory":
        return _not_a_folder(workspace, path)
    where = "the workspace" if above.path == "." else f"the folder {shown(above.path)!r}"
    told = f"There is no {name!r} in {where}."
    try:
        with workspace.folder(above.path) as folder:
            names = [entry.name for entry in itertools.islice(folder.entries, _MAX_NAMES)]
    except OSError as error:
        return f"{told} What else is there cannot be told: {error.strerror}."
    if not names:
        return f"{told} It is empty."
    by_lower = {one.lower(): one for one in names}
    near = [by_lower[one] for one in difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=0.5)]
    listed = ", ".join(printable(one) for one in near or names[:5])
    more = f" and {len(names) - 5:,} more" if not near and len(names) > 5 else ""
    return f"{told} {'The nearest names there are' if near else 'It holds'}: {listed}{more}."


def _not_a_folder(workspace: Workspace, path: str) -> str:
    above, _ = _nearest(workspace, path.rstrip("/") + "/below")
    if above.kind == "directory":  # it became one in the meantime
        return f"{shown(path)!r} was no folder just now. Try again."
    return f"{shown(above.path)!r} is a {above.kind}, not a folder. Read a file with operation 'read'."


def _nearest(workspace: Workspace, path: str) -> tuple[Entry, str]:
    """What exists nearest above a path, and the name that is missing in it."""
    above, name = posixpath.split(path.rstrip("/"))
    while True:
        try:
            return workspace.stat(above or "."), name
        except OSError:
            if above in {"", "/"}:
                raise
            above, name = posixpath.split(above.rstrip("/"))
