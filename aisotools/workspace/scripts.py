"""What files of a workspace are that a command may run: digests of their content, and whether they are code.

Threat
    A person allows `bash run.sh`, or `./run.sh`, to be run again without a question, and the script is then
    another one. Or a command is tried because nobody knows its program, and the program is a script of the
    workspace, or runs one.
Mechanism
    `digests_of` compares by content; what is large, by a stamp that changes with every write (inode, size and
    time of the last change, which nobody can set). What is missing, or a folder, is noted as that. What code
    among them loads by name is followed (`workspace.loaded_names`), within bounds. `is_code` goes by what a
    file says of itself: its rights, its first two bytes, its name. Reading is bounded, follows no link out of
    the workspace, and opens regular files alone.
Race window
    A file may change after the look. For a call that is asked about, the gate looks once more before it runs.
    What a program finds by itself is not looked at: the files in a folder, modules that are installed.
When it fails
    What cannot be read, or lies where the sandbox may write beside the workspace, has no digest, and no
    grant is given for it.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import re
import shutil
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path

from aisotools.core.exceptions import WorkspaceError
from aisotools.workspace.loaded_names import loaded_names
from aisotools.workspace.workspace import Workspace

MAX_HASHED_BYTES = 1 << 20
"""Longer files are compared by their stamp, and so are further ones when four times as much was read."""

MISSING = "missing"
"""In place of the digest of what is not there."""

FOLDER = "folder"
"""In place of the digest of a folder."""

UNREADABLE = ""
"""In place of the digest of what cannot be compared."""

_MAX_FILES = 50
_MAX_LOADED = 3_000  # names, nearly all of which are missing in the workspace
_MAX_PLACES = 9
_PATTERN = re.compile(r"[*?\[]")
_SYSTEM_FOLDERS = ("/usr/", "/bin/", "/sbin/", "/lib", "/etc/", "/opt/", "/dev/", "/proc/", "/sys/")
_CODE_SUFFIXES = frozenset(
    (
        *(".sh", ".bash", ".zsh", ".ksh", ".fish", ".nu", ".ps1", ".bat", ".cmd", ".py", ".pyw", ".pyz"),
        *(".r", ".rmd", ".qmd", ".jl", ".pl", ".pm", ".rb", ".php", ".js", ".mjs", ".cjs", ".ts", ".lua"),
        *(".tcl", ".awk", ".sed", ".m", ".scm", ".rkt", ".lisp", ".ex", ".exs", ".erl", ".nim", ".groovy"),
        *(".gradle", ".mk", ".cmake", ".smk", ".nf", ".wdl", ".cwl", ".do", ".jar", ".vim", ".el", ".gp"),
    )
)
_CODE_NAMES = frozenset(
    (
        *("makefile", "gnumakefile", "snakefile", "rakefile", "gemfile", "justfile", "dockerfile"),
        *("vagrantfile", "jenkinsfile", "sconstruct", "wscript"),
    )
)


def digests_of(
    workspace: Path, paths: Iterable[str], loaded: Iterable[str] = (), folders: Iterable[str] = ()
) -> tuple[tuple[str, str], ...]:
    """Return paths, and what code among them loads by name, each with a digest of its content.

    Args:
        workspace: The folder.
        paths: Relative to it, or absolute. What belongs to the system is left out: no sandbox changes it.
        loaded: What the call itself loads by name, relative to the workspace.
        folders: Folders in which that, and what it loads in turn, may be found as well. Where there are
            too many of them the result is not complete, and says so.
    """
    wanted = [path for path in dict.fromkeys(paths) if not path.startswith(_SYSTEM_FOLDERS)]
    places = ["", *(folder for folder in dict.fromkeys(folders) if folder != ".")]
    is_complete = len(wanted) <= _MAX_FILES and len(places) <= _MAX_PLACES
    del places[_MAX_PLACES:]
    look = _DigestReader(Workspace(workspace), places)
    found = {path: look.digest(path) for path in wanted[:_MAX_FILES]}
    waiting = deque(posixpath.join(place, name) for name in loaded for place in places)
    files, names = 0, 0
    while waiting or look.loaded:
        waiting += look.loaded
        look.loaded.clear()
        path = posixpath.normpath(waiting.popleft()) if waiting else ""
        if not path or path in found or path.startswith(("/", "../")):
            continue
        digest = look.digest(path)
        files += digest != MISSING or not is_named_as_code(path)
        names += 1
        if files > _MAX_FILES or names > _MAX_LOADED:
            is_complete = False
            break
        found[path] = digest
    if not is_complete:
        found["..."] = UNREADABLE
    return tuple(sorted(found.items()))


class _DigestReader:
    """One look at files, which counts what it has read."""

    def __init__(self, workspace: Workspace, places: Sequence[str]) -> None:
        self._workspace = workspace
        self._places = places
        self._bytes_left = 4 * MAX_HASHED_BYTES
        self.loaded: list[str] = []  # what the code among them loads

    def digest(self, path: str) -> str:
        """Return a digest of the content of a file, or what takes its place."""
        if path.startswith(("~", "$", "/")) or path.partition("/")[0] == "..":
            return UNREADABLE
        if "\0" not in path and not os.path.lexists(f"{self._workspace.root}/{path}"):
            return MISSING  # most modules are none of the workspace's, and this is cheap
        try:
            with self._workspace.open(path) as file:
                status = os.fstat(file)
                if status.st_size > min(MAX_HASHED_BYTES, self._bytes_left):
                    return f"stamp {status.st_dev} {status.st_ino} {status.st_size} {status.st_ctime_ns}"
            data = self._workspace.read_bytes(path, max_bytes=MAX_HASHED_BYTES)
        except (FileNotFoundError, NotADirectoryError):
            return MISSING
        except IsADirectoryError:
            return FOLDER
        except (OSError, ValueError, WorkspaceError):
            return UNREADABLE
        self._bytes_left -= len(data)
        if is_named_as_code(path) or data.startswith(b"#!"):
            folder = posixpath.dirname(path)
            for name in loaded_names(data.decode("utf-8", "replace")):
                # Beside the file, and where the call starts, or the program in it.
                self.loaded += dict.fromkeys(posixpath.join(place, name) for place in (folder, *self._places))
        return hashlib.sha256(data).hexdigest()


def is_code(workspace: Path, path: str) -> bool:
    """Return whether there is a file in the workspace that is code for an interpreter, or may be.

    Args:
        workspace: The folder.
        path: Relative to it, or absolute. With a pattern in it, its spelling alone decides.
    """
    if _PATTERN.search(path):
        return is_named_as_code(path)
    try:
        with Workspace(workspace).open(path) as file:
            is_executable = bool(os.fstat(file).st_mode & 0o111)
            return is_executable or os.read(file, 2) == b"#!" or is_named_as_code(path)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return False
    except (OSError, ValueError, WorkspaceError):
        return True  # nobody can tell


def is_named_as_code(path: str) -> bool:
    """Return whether the name of a file is that of code for an interpreter."""
    name = posixpath.basename(path).lower()
    return name in _CODE_NAMES or posixpath.splitext(name)[1] in _CODE_SUFFIXES


def find_program(name: str, search_path: str) -> str:
    """Return the real path of a program on a search path; empty if it is not there."""
    found = shutil.which(name, path=search_path)
    return os.path.realpath(found) if found else ""
