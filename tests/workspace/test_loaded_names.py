"""Names of files that code loads."""

from __future__ import annotations

import time

import pytest

from aisotools.workspace.loaded_names import (
    MAX_NAMES,
    MAX_SIGN_CHARS,
    loaded_names,
    may_run_any_file,
    may_run_elsewhere,
)


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


def test_work_on_hostile_text_is_bounded_for_names() -> None:
    """Of megabytes of code no more is read than takes the event loop some milliseconds."""
    before = "\n" * (1 << 13)
    assert "late.py" in list(loaded_names(f"{before}import late"))
    assert list(loaded_names(f"{before * 2}import late")) == []
    assert may_run_any_file("x" * (MAX_SIGN_CHARS + 1))


def test_names_are_bounded() -> None:
    assert len(list(loaded_names("".join(f"import m{number}\n" for number in range(1_000))))) == MAX_NAMES


@pytest.mark.parametrize(
    "text",
    [
        "bash $F",
        'sh -e "${F}"',
        "python3 -W ignore `cat list`",
        "node *.js",
        "$CMD a",
        "./*.sh",
        "ls | xargs sh",
        "cat a | sudo bash",
        "sh <(cat a)",
        "find . -exec sh {} ;",
        "eval x",
        "import subprocess",
        "__import__(name)",
        "exec(open(x).read())",
        "require('./' + name)",
        "source(paste0(a, '.R'))",
        "all:\n\tsh $(F)",
        "git -c alias.x='!sh $F' x",
        "awk -f $P",
        "ln -s a b",
        "x" * (MAX_SIGN_CHARS + 1),
    ],
)
def test_signs_that_any_file_may_run(text: str) -> None:
    assert may_run_any_file(text)


@pytest.mark.parametrize(
    "text",
    [
        "bash run.sh $A",
        "python3 train.py --seed $s",
        "import numpy as np\nx = np.zeros(3)\nmodel.eval()\n",
        "X=$(date); echo $X",
        "make -j4",
        "require('./m')",
        "for s in 1 2; do python3 t.py --seed $s; done",
        "",
    ],
)
def test_no_sign_that_any_file_may_run(text: str) -> None:
    assert not may_run_any_file(text)


@pytest.mark.parametrize("text", ["F=$TMPDIR/x", "bash ~/x", "cd $HOME", "/tmp/x", "tempfile.mkdtemp()"])
def test_folders_beside_the_workspace(text: str) -> None:
    assert may_run_elsewhere(text)
    assert not may_run_elsewhere("bash d/tmp/x.sh; cat /usr/share/x")


@pytest.mark.parametrize(
    "part", ["sh -a ", ";a=;a=", "a/", "./", "require ", "do do ", "|sh -a ", "\n", "`", "env -a 1 ", "fd "]
)
def test_work_on_hostile_text_is_bounded(part: str) -> None:
    """Repetitions of what patterns begin with cost no more than other text does, within an order."""
    text = (part * MAX_SIGN_CHARS)[:MAX_SIGN_CHARS]
    started_s = time.process_time()
    may_run_any_file(text)
    assert time.process_time() - started_s < 0.5
