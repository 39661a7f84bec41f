"""Files that code loads by name: modules that it imports, scripts that it sources, programs that it reads.

Threat
    A person allows `python -m pkg`, a cell with `import mod`, or a script that sources another one, to be run
    again without a question. Then `pkg/__main__.py`, `mod.py` or the other script is changed, or a `json.py`
    is put where `import json` finds it first.
Mechanism
    `loaded_names` finds the statements that load by name in code of any language, by patterns: it may name a
    file too many, which costs a look. For a module it names every file that the import would run.
Race window
    None of its own. `workspace.scripts` compares the files, also those that are missing.
When it fails
    A name that code puts together is not seen, nor are files that a program finds by itself, such as the
    tests of a folder.
"""

from __future__ import annotations

import itertools
import posixpath
import re
from collections.abc import Iterator

MAX_NAMES = 400
"""Names that are yielded of one text."""

_MAX_CHARS = 1 << 18
_NAME = r"[A-Za-z_]\w*(?:\.\w+)*"
_find_imports = re.compile(
    rf"\bimport[ \t]+({_NAME}(?:[ \t]+as[ \t]+\w+)?(?:[ \t]*,[ \t]*{_NAME})*)"
).finditer
_find_from = re.compile(
    rf"\bfrom[ \t]+(\.*)({_NAME})?[ \t]+import[ \t]*\(?[ \t]*((?:\w+)(?:[ \t]*,[ \t]*\w+)*)"
).finditer
_find_modules = re.compile(
    rf"""(?:(?<!\S)-[A-Za-z]*m[ \t]*|\b(?:run_module|import_module|__import__)\([ \t]*['"])({_NAME})"""
).finditer
_find_files = re.compile(
    r"""(?:^|[;&|\n"'])[ \t]*(?:source|\.|%run(?:[ \t]+-\w+)*|\.read|\.import|include|-include)[ \t]+"""
    r"""([\w./+@~-]+)|\b(?:require|require_relative|import|load|do)[ \t(]+["']([\w./+@-]+)["']"""
    r"""|\bfrom[ \t]+["'](\.[\w./+@-]+)["']"""
).finditer
_find_perl = re.compile(r"(?:(?<!\S)-M|\buse[ \t]+)([A-Z]\w*(?:::\w+)*)").finditer
_runs_make = re.compile(r"(?:^|[;&|(\n])[ \t]*(?:\w+=[^\s;&|(]*[ \t]+)*g?make(?:[ \t;&|)\n]|$)").search
_MAKEFILES = ("GNUmakefile", "makefile", "Makefile")


def loaded_names(text: str) -> Iterator[str]:
    """Yield relative paths of files that code may load, as they are meant where it looks for them."""
    text = text[:_MAX_CHARS]
    yield from itertools.islice(dict.fromkeys(_names(text)), MAX_NAMES)


def _names(text: str) -> Iterator[str]:
    for found in _find_files(text):
        name = posixpath.normpath(found[1] or found[2] or found[3])
        yield name
        if found[1] is None and "." not in posixpath.basename(name):
            yield from (f"{name}{ending}" for ending in (".js", ".cjs", ".mjs", ".rb", ".lua", "/index.js"))
    if _runs_make(text):
        yield from _MAKEFILES
    for found in _find_modules(text):
        yield from _module_files(found[1])
        yield f"{found[1].replace('.', '/')}/__main__.py"
    for found in _find_imports(text):
        for module in found[1].split(","):
            yield from _module_files(module.split()[0])
    for found in _find_from(text):
        if found[2]:
            yield from _module_files(found[2])
        base = f"{found[2].replace('.', '/')}/" if found[2] else ""
        if found[1] or base:  # what is imported may be a module as well
            for name in re.findall(r"\w+", found[3]):
                yield f"{base}{name}.py"
    for found in _find_perl(text):
        yield f"{found[1].replace('::', '/')}.pm"


def _module_files(module: str) -> Iterator[str]:
    parts = module.split(".")
    for length in range(1, len(parts) + 1):
        path = "/".join(parts[:length])
        yield f"{path}.py"
        yield f"{path}/__init__.py"
