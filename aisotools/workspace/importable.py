"""Which entries of a folder Python may import when it is started there: `python -m json.tool` and the like.

Threat: `python -m NAME` looks for NAME, and for all that it imports, in the current folder first. A file
`calendar.py` there, or a package `json`, is run in place of the library's, by a command that is known to only
read.

Mechanism: an entry counts if its name is that of a module of the library, or may be, and if Python could load
it: source, compiled code, an extension, or a folder with one of these as its beginning. A folder without
that comes after the library, and cannot stand in for what is there.

Race window: an entry can be put there after the look. The gate looks once more at dispatch; a program that
runs at the same time is what the confinement holds.

When it fails: what cannot be looked at counts as a module, and the command is asked about.
"""

from __future__ import annotations

import fnmatch
import os
import sys
from typing import Literal

from aisotools.core.types import AbsentNames

_SUFFIXES = (".py", ".pyc", ".pyo", ".so", ".pyd", ".pth")
_BEGINNINGS = ("__init__", "__main__")
_STANDARD = sys.stdlib_module_names | {
    # of other versions of Python than the one that runs here
    *("annotationlib", "asynchat", "asyncore", "audioop", "binhex", "cgi", "cgitb", "chunk", "compression"),
    *("crypt", "distutils", "dummy_threading", "formatter", "imghdr", "imp", "lib2to3", "macpath", "mailcap"),
    *("msilib", "nis", "nntplib", "ossaudiodev", "parser", "pipes", "smtpd", "sndhdr", "spwd", "sunau"),
    *("symbol", "telnetlib", "uu", "xdrlib"),
    # what it imports at its start
    *("sitecustomize", "usercustomize"),
}
_MAYBE_MISSING = frozenset(("IPython", "build", "numpy", "pip", "pipx", "uv", "conda"))
"""Modules that are asked for and may not be installed: then a folder without a beginning is one as well."""
_NEVER_IMPORTED = frozenset(("app", "conftest", "main", "manage", "noxfile", "setup"))
"""Modules that are common in projects, and that nothing installed imports by these names."""


def is_among(entry: os.DirEntry[str], absent: AbsentNames) -> bool:
    """Return whether an entry of a folder is one of those that must not be there.

    Args:
        entry: What is in the folder.
        absent: What must not be; its folder is not looked at.
    """
    # The names are compared as the programs do it that open the files: byte by byte.
    is_named = any(fnmatch.fnmatchcase(entry.name, glob) for glob in absent.names)
    return is_named or may_be_imported(entry, absent.modules)


def may_be_imported(entry: os.DirEntry[str], modules: Literal["", "standard", "any"]) -> bool:
    """Return whether Python, started in the folder of an entry, may import it.

    Args:
        entry: What is in the folder.
        modules: Which modules count: those that may stand in for one of the library, or any.
    """
    if not modules:
        return False
    name = entry.name.partition(".")[0]
    if modules == "standard":
        # Names that begin so are the library's own, and differ from version to version.
        is_meant = name in _STANDARD or (name.startswith("_") and name != "__pycache__")
    else:
        is_meant = name not in _NEVER_IMPORTED and name != "__pycache__"
    if not is_meant:
        return False
    if entry.name.endswith(_SUFFIXES):
        return True
    if name != entry.name or not name.isidentifier():
        return False
    try:
        if not entry.is_dir():
            return False
        if modules == "any" and name in _MAYBE_MISSING:
            return True
        with os.scandir(entry.path) as inner:
            return any(one.name.partition(".")[0] in _BEGINNINGS for one in inner)
    except OSError:  # nobody can tell what is in it
        return True
