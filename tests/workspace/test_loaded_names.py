"""Names of files that code loads."""

from __future__ import annotations

import pytest

from aisotools.workspace.loaded_names import MAX_NAMES, loaded_names


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("import mod", "mod.py"),
        ("import os, mod", "mod.py"),
        ("x = 1; import mod as m", "mod.py"),
        ("import pkg.sub", "pkg/__init__.py"),
        ("import pkg.sub", "pkg/sub.py"),
        ("from pkg import sub", "pkg/sub.py"),
        ("from pkg.sub import x, y", "pkg/sub/__init__.py"),
        ("from . import mod", "mod.py"),
        ("python3 -m pkg", "pkg/__main__.py"),
        ("python3 -Im pkg.sub", "pkg/sub.py"),
        ("runpy.run_module('pkg')", "pkg/__main__.py"),
        ("importlib.import_module('mod')", "mod.py"),
        ("%run s.py", "s.py"),
        ("%run -i s.py", "s.py"),
        ("x\nsource ./lib.sh", "lib.sh"),
        ("cd d; . lib.sh", "lib.sh"),
        ('sqlite3 x.db ".read q.sql"', "q.sql"),
        ("require('./m.js')", "m.js"),
        ("const m = require('./m')", "m.js"),
        ("import x from './m.js'", "m.js"),
        ("require_relative 'lib/a'", "lib/a.rb"),
        ("perl -Ilib -MFoo::Bar -e 1", "Foo/Bar.pm"),
        ("use Foo;", "Foo.pm"),
        ("make", "Makefile"),
        ("cd d && CC=gcc make -j 2 all", "GNUmakefile"),
        ("include rules.mk", "rules.mk"),
    ],
)
def test_names(text: str, name: str) -> None:
    assert name in list(loaded_names(text))


@pytest.mark.parametrize(
    "text", ["x = 1", "print('import')", "echo make up your mind", "ls -l", "important x", ""]
)
def test_other_texts_load_nothing(text: str) -> None:
    assert list(loaded_names(text)) == []


def test_names_are_bounded() -> None:
    assert len(list(loaded_names("".join(f"import m{number}\n" for number in range(1_000))))) == MAX_NAMES
