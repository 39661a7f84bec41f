"""Attacks through files that a program of a git setting loads by itself: modules, sourced scripts, lists.

A person has set a filter. Code in the sandbox writes a file that no setting names, and the person's next
`git status` runs it. The variants are generated, and each one is run with real git first, unprotected, as a
control.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from aisotools.workspace.command_loads import ANY, CODE, find_loads, languages_below, may_load
from aisotools.workspace.protected import ProtectedFiles
from tests.workspace.test_protected_attacks import EVIL_PY, Place, edit, git_needed, status

EVIL = {
    ".py": EVIL_PY,
    ".js": "require('child_process').execFileSync('{evil}')\n",
    ".pm": "system('{evil}');\n1;\n",
    ".pl": "system('{evil}');\n1;\n",
    ".awk": "BEGIN { system(\"'{evil}'\") }\n",
    "": "#!/bin/sh\n'{evil}'\ncat\n",
}
SHARED = ". ./tools/inner.sh\n"


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A filter, and a file that its program loads.

    Attributes:
        command: The filter.
        planted: The file that code in the sandbox writes.
        own: Files of the person, by path.
        link: Whether the planted file is reached by a link that is planted, too.
    """

    command: str
    planted: str
    own: Mapping[str, str] = field(default_factory=dict)
    link: bool = False


STARTS = {
    "plain": "python3 {}",
    "by its path": "/usr/bin/python3 {}",
    "by env": "env python3 {}",
    "with a variable": "X=1 python3 {}",
    "by env with a variable": "env X=1 Y=2 python3 {}",
    "with less priority": "nice -n 5 python3 {}",
    "after a command": "true && python3 {}",
    "after a folder is entered": "cd . && python3 {}",
    "in a subshell": "(python3 {})",
    "in a group": "{{ python3 {}; }}",
    "by exec": "exec python3 {}",
    "in a variable": "P=python3; $P {}",
    "in a variable with a default": '"${{P:-python3}}" {}',
    "in quotes": '"python3" {}',
    "in parts": "py'th'on3 {}",
    "behind a backslash": "\\python3 {}",
    "in a function": "f() {{ python3 {}; }}; f",
    "of which the path is printed": "$(command -v python3) {}",
    "in a condition": "if true; then python3 {}; fi",
    "after a pipe": "cat | python3 {}",
    "with its input copied": "tee /dev/null | python3 {}",
    "with an option of its own": "python3 -B {}",
    "with two options": "python3 -sE {}",
    "with a value": "python3 -W ignore -X utf8 {}",
    "with a limit of time": "timeout 20 python3 {}",
}
MODULES = {
    "a module that json.tool imports": ("-m json.tool", "argparse.py"),
    "the package of the module": ("-m json.tool", "json.py"),
    "a package in place of a module": ("-mjson.tool", "argparse/__init__.py"),
    "a module that code imports": ("-c 'import json'", "json.py"),
    "a module of nobody": ("-c 'import nbx'", "nbx.py"),
    "a package of nobody": ("-c 'import nbx.clean'", "nbx/clean.py"),
    "a name from a folder": ("-c 'from nby import clean'", "nby/clean.py"),
}
NOT_IN_QUOTES = frozenset(("-c 'import json'", "-c 'import nbx'"))


def python_variants() -> Iterator[tuple[str, Loaded]]:
    for start, form in STARTS.items():
        for number, (what, (arguments, planted)) in enumerate(MODULES.items()):
            if (number + len(start)) % 2 == 0:  # half of the pairs
                yield f"python {start}, {what}", Loaded(command=form.format(arguments), planted=planted)


SCRIPTS = {
    "a source": ". ./tools/inner.sh",
    "a source by bash": "source tools/inner.sh",
    "a script that is run": "sh tools/inner.sh",
    "a program that is run": "./tools/inner.sh",
    "a source beside it": '. "$(dirname "$0")/inner.sh"',
    "a program beside it": '"$(dirname "$0")"/inner.sh',
    "a source beside it, by a variable": 'D=$(dirname "$0"); . "$D/inner.sh"',
    "a source beside it, by its folder": 'D="$(cd "$(dirname "$0")" && pwd)"; . "$D"/inner.sh',
    "a folder that is entered": "cd tools && . ./inner.sh",
    "a name in a variable": "N=inner; . tools/$N.sh",
    "a name with a default": ". ${N:-tools/inner.sh}",
    "a name in a list": "for n in inner; do . tools/$n.sh; done",
    "a pattern": "for f in tools/*.sh; do case $f in *inner*) . $f;; esac; done",
    "an evaluation": 'eval "$(cat tools/inner.sh)"',
    "a pipe": "cat tools/inner.sh | sh",
    "an input": "sh <tools/inner.sh",
    "a module of Python": "python3 -m json.tool",
    "an import of Python": "python3 -c 'import nbz'",
    "words of another program": "echo tools/inner.sh | xargs sh",
    "a command that is found": "find tools -name 'inner*' -exec sh {} ';'",
    "a name that is computed": 'sh "tools/$(echo inner).sh"',
    "a search path": "PATH=tools:$PATH inner.sh",
    "a conditional source": "[ -f tools/inner.sh ] && . ./tools/inner.sh",
    "a script in a function": "go() { . ./tools/inner.sh; }; go",
    "a source after a comment": "# comments\n. ./tools/inner.sh",
    "a worktree that is asked for": '. "$(git rev-parse --show-toplevel)/tools/inner.sh"',
}
CALLS = {
    "by sh": "sh tools/conv.sh",
    "by its path": "tools/conv.sh",
    "by its whole path": "$PWD/tools/conv.sh",
    "by bash": "bash tools/conv.sh",
    "in a command": "sh -c 'sh tools/conv.sh'",
    "by another script": "sh other.sh",
}
PLANTED_BY_SCRIPT = {"a module of Python": "argparse.py", "an import of Python": "nbz.py"}


def script_variants() -> Iterator[tuple[str, Loaded]]:
    for place, (what, line) in enumerate(SCRIPTS.items()):
        for number, (how, command) in enumerate(CALLS.items()):
            if "source tools" in line and "bash" not in command:
                continue
            if (number + place) % 3:  # a third of the pairs
                continue
            planted = PLANTED_BY_SCRIPT.get(what, "tools/inner.sh")
            own = {"tools/conv.sh": f"#!/bin/sh\n{line}\n", "other.sh": "exec sh tools/conv.sh\n"}
            yield f"script {how}, {what}", Loaded(command=command, planted=planted, own=own)


OTHERS = {
    "perl with a folder": ("perl -I. -MFoo -pe 1", "Foo.pm", {}),
    "perl with a folder and a file": ("perl -I. -e 'require \"foo.pl\"'", "foo.pl", {}),
    "perl with a variable": ("PERL5LIB=. perl -MFoo -pe 1", "Foo.pm", {}),
    "perl with a folder in its code": ("perl -e 'use lib \".\"; require Foo'", "Foo.pm", {}),
    "perl with a package": ("perl -I. -MFoo::Bar -e 1", "Foo/Bar.pm", {}),
    "perl with a module that is there": ("perl -I. -MPOSIX -e 1", "POSIX.pm", {}),
    "perl by env": ("env perl -I . -MFoo -e 1", "Foo.pm", {}),
    "perl in a command": ("sh -c 'perl -I. -MFoo -e 1'", "Foo.pm", {}),
    "node with a module": ("node -e 'require(\"nodex\")'", "node_modules/nodex/index.js", {}),
    "node with a file": ("node -r ./hook -e 1", "hook.js", {}),
    "node with a script": ("node conv.js", "lib.js", {"conv.js": "require('./lib')\n"}),
    "node with a folder": ("node -e 'require(\"./lib\")'", "lib/index.js", {}),
    "xargs with a list": ("xargs -a tools/args sh", "tools/inner.sh", {"tools/args": "tools/inner.sh\n"}),
    "xargs with a list of names": ("cd tools; xargs -a args sh", "tools/inner", {"tools/args": "inner\n"}),
    "xargs with what is printed": ("echo plug/x | xargs sh", "plug/x", {}),
    "xargs with what is found": ("find . -name 'plug*' | xargs sh", "deep/plugin", {}),
    "a last file": ('sh "$(ls *.txt | tail -1)"', "newest.txt", {}),
    "a file that is found": ("find . -name 'x.hook' -exec sh {} ';'", "deep/x.hook", {}),
    "a file that runs itself": ("find . -name 'run.me' -exec {} ';'", "deep/run.me", {}),
    "all files of a folder": ("for f in *.inc; do . ./$f; done", "new.inc", {}),
    "an evaluation": ('eval "$(cat *.env)"', "x.env", {}),
    "an input by a pattern": ("cat *.part | sh", "a.part", {}),
    "make with a target": ("make -s conv", "inner.sh", {"Makefile": "conv:\n\t@sh ./inner.sh\n"}),
    "make with a pattern": (
        "make -s conv",
        "x.sub",
        {"Makefile": "conv:\n\t@for f in *.sub; do sh ./$$f; done\n"},
    ),
    "a script of Python": ("python3 conv.py", "helper.py", {"conv.py": "import helper\n"}),
    "a script of Python, and the library": ("python3 conv.py", "json.py", {"conv.py": "import json\n"}),
    "a script of Python that runs itself": (
        "./conv.py",
        "json.py",
        {"conv.py": "#!/usr/bin/env python3\nimport json\n"},
    ),
    "a script of Python that runs another": (
        "python3 tools/conv.py",
        "run.sh",
        {"tools/conv.py": "import subprocess\nsubprocess.run(['sh', 'run' + '.sh'])\n"},
    ),
    "Python with a search path": (
        "PYTHONPATH=. python3 tools/conv.py",
        "nbq.py",
        {"tools/conv.py": "import nbq\n"},
    ),
    "Python with an empty search path": (
        "PYTHONPATH=:/x python3 tools/conv.py",
        "nbq.py",
        {"tools/conv.py": "import nbq\n"},
    ),
    "Python with its program in a pipe": ("echo import json | python3 -", "json.py", {}),
    "Python with its program as input": ("python3 <tools/in", "json.py", {"tools/in": "import json\n"}),
    "Python that runs a folder": (
        "python3 tools",
        "argparse.py",
        {"tools/__main__.py": "import sys\nsys.path.insert(0, '.')\nimport argparse\n"},
    ),
    "a program of nobody with a file": (
        "sh ./own/run plug.conf",
        "plug.sh",
        {"own/run": '. "./$(cat "$1")"\n', "plug.conf": "plug.sh\n"},
    ),
    "awk with a file of a script": ("sh tools/c.sh", "tools/a.awk", {"tools/c.sh": "awk -f tools/a.awk\n"}),
    "a link in a script": ("sh tools/c.sh", "lib/x", {"tools/c.sh": ". lib/x\n"}),
    "a script that two others run": (
        "sh a.sh",
        "d.sh",
        {"a.sh": "sh ./b.sh\n", "b.sh": "exec sh ./c.sh\n", "c.sh": ". ./d.sh\n"},
    ),
    "bash with its settings": ("BASH_ENV=tools/env bash -c :", "tools/inner.sh", {"tools/env": SHARED}),
    "a source in a command": ("bash -c '. ./tools/inner.sh'", "tools/inner.sh", {"tools/inner.sh": "cat\n"}),
    "a name from the environment": ("sh -c '. \"./$0\"' plug.txt", "plug.txt", {}),
    "each word of a list": (
        "while read f; do sh $f; done <tools/list",
        "deep/x.txt",
        {"tools/list": "deep/x.txt\n"},
    ),
}


def variants() -> dict[str, Loaded]:
    others = ((name, Loaded(command=c, planted=p, own=own)) for name, (c, p, own) in OTHERS.items())
    return {**dict(python_variants()), **dict(script_variants()), **dict(others)}


VARIANTS = variants()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "ws", tmp_path / "mark", tmp_path / "home")


def write(place: Place, name: str, text: str) -> None:
    path = place.ws / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text.replace("{evil}", str(place.evil)))
    path.chmod(0o755)


def filtered(place: Place, command: str) -> None:
    """A repository of the person whose files are cleaned by `command`."""
    place.repository()
    place.git("config", "filter.t.clean", command)
    write(place, ".gitattributes", "data.txt filter=t\n")


def protect(place: Place, tmp_path: Path) -> ProtectedFiles:
    environ = {
        "HOME": str(place.home),
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": str(place.home / ".gitconfig"),
    }
    return ProtectedFiles(place.ws, tmp_path / "quarantine", environ=environ)


def is_run(place: Place) -> bool:
    place.mark.unlink(missing_ok=True)
    edit(place)
    status(place)
    return place.mark.exists()


@pytest.mark.sample(14)
@git_needed
@pytest.mark.parametrize("loaded", VARIANTS.values(), ids=VARIANTS)
def test_files_that_a_program_loads_are_put_back(place: Place, loaded: Loaded, tmp_path: Path) -> None:
    for program in ("node", "perl", "make", "bash"):
        if program in loaded.command and shutil.which(program) is None:
            pytest.skip(f"there is no {program}")
    place.evil.rename(place.home / "evil")
    place.evil = place.home / "evil"
    for name, text in loaded.own.items():
        write(place, name, text)
    filtered(place, loaded.command)
    files = protect(place, tmp_path)
    assert files.restore() == (), "nothing has changed yet"
    write(place, loaded.planted, EVIL.get(Path(loaded.planted).suffix, EVIL[""]))
    assert is_run(place), "the control: without protection this attack runs"
    assert loaded.planted in [change.path for change in files.restore()]
    assert not is_run(place)


QUIET = {
    "nbstripout": "nbstripout -t",
    "nbstripout, kept from the folder": "python3 -I -m nbstripout",
    "nbstripout, without the folder": "/opt/conda/bin/python3.12 -Pm nbstripout",
    "by a variable": "PYTHONSAFEPATH=1 python3 -m nbstripout",
    "a notebook without its results": "jupyter nbconvert --clear-output --to=notebook --stdin --stdout",
    "large files": "git-lfs clean -- %f",
    "a filter of jq": "jq --indent 1 'del(.cells[].outputs)'",
    "a filter of sed": "sed -e 's/[[:space:]]*$//'",
    "a formatter": "clang-format --style=file --assume-filename=%f",
    "a text of a page": "sh -c 'pdftotext -layout \"$0\" - 2>/dev/null'",
    "a table of a database": "sh -c 'sqlite3 \"$0\" .dump'",
    "a text of a document": "pandoc --to=markdown",
    "a secret": "gpg --no-tty --decrypt --quiet",
    "a date": "date > /dev/null; cat",
    "a pager": "diff-so-fancy | less --tabs=4 -RFX",
    "a syntax": "bat -l python --style=plain",
    "perl in one line": "perl -pe 's/\\s+$/\\n/'",
    "a helper of the shell": "!f() { echo username=x; echo password=$TOKEN; }; f",
    "a script elsewhere": "python3 /usr/share/tools/clean.py",
    "a search": "command -v python3 >/dev/null && nbstripout",
}
ORDINARY = (
    "main.py",
    "src/pkg/mod.py",
    "json.py",
    "lib/a.js",
    "Foo.pm",
    "notes.txt",
    "run.sh",
    "data/x",
    "x.rb",
)


@git_needed
@pytest.mark.parametrize("command", QUIET.values(), ids=QUIET)
def test_ordinary_programs_leave_the_files_of_a_project_alone(
    place: Place, command: str, tmp_path: Path
) -> None:
    filtered(place, command)
    files = protect(place, tmp_path)
    for name in ORDINARY:
        write(place, name, "ordinary")
    place.git("add", ".")
    assert files.restore() == ()


@git_needed
def test_a_setting_that_starts_python_says_so_and_leaves_other_files_alone(
    place: Place, tmp_path: Path
) -> None:
    filtered(place, "python3 -m json.tool")
    files = protect(place, tmp_path)
    for name in (".venv/lib/x.py", "notes.txt", "run.sh", "a-b/x.py", "lib/a.js"):
        write(place, name, "ordinary")
    assert files.restore() == ()
    write(place, "deep/er/mod.py", "x = 1\n")
    [change] = files.restore()
    assert change.path == "deep/er/mod.py"
    assert change.loader.startswith("filter.t.clean = 'python3 -m json.tool' starts Python")


@git_needed
def test_compiled_code_that_an_ordinary_run_leaves_fails_no_call(place: Place, tmp_path: Path) -> None:
    filtered(place, "python3 -m json.tool")
    write(place, "mod.py", "x = 1\n")
    files = protect(place, tmp_path)
    write(place, "__pycache__/mod.cpython-311.pyc", "compiled")
    assert files.restore() == ()
    assert not (place.ws / "__pycache__/mod.cpython-311.pyc").exists()


@git_needed
def test_a_link_to_a_folder_of_modules_is_taken_away(place: Place, tmp_path: Path) -> None:
    filtered(place, "python3 -m json.tool")
    write(place, ".cache/argparse/__init__.py", "x = 1\n")
    files = protect(place, tmp_path)
    (place.ws / "argparse").symlink_to(".cache/argparse")
    assert [change.path for change in files.restore()] == ["argparse"]


def test_names_that_languages_load() -> None:
    python, perl = frozenset(("python",)), frozenset(("perl",))
    assert may_load("x.py", python)
    assert may_load("x.cpython-311-x86_64-linux-gnu.so", python)
    assert not may_load("x.pm", python)
    assert may_load("x.pm", perl)
    assert may_load("x.txt", {ANY})
    assert (may_load("x", {CODE}), may_load("x.csv", {CODE})) == (True, False)
    assert (may_load("pkg", python, link=True), may_load("p-kg", python, link=True)) == (True, False)
    assert (languages_below(python, "pkg"), languages_below(python, ".venv")) == (python, frozenset())
    assert languages_below(frozenset((ANY,)), ".git") == frozenset()


@pytest.mark.parametrize(
    ("command", "languages"),
    [
        ("/opt/py/bin/python3.13t -m tool", {"python"}),
        ("Python3 -m tool", {"python"}),
        ("perl5.36-x86_64-linux-gnu -I. -e 1", {"perl"}),
        ("ruby3.1 -I. -e 1", {"ruby"}),
        ("lua5.4 -e x", {"lua"}),
        ("php -r 'require \"x\";'", {"php"}),
        ("jq -L . 'import \"m\" as m; .'", {CODE}),
        ("jq .", set()),
        ("npx tool", {CODE}),
        ("made-up --config conf/x", {CODE}),
        ("made-up --config /etc/x %f", set()),
        ("sh", {ANY}),
        ("python3", {ANY, "python"}),
        ('set -- python3 -m tool; "$@"', {ANY, "python"}),
        ("python3 -I -m tool", set()),
        ("python3 -Im tool", set()),
        ("python3 -E -s -P -c x", set()),
        ("python3 -m tool -I", {"python"}),
        ("python3 -W -I -m tool", {"python"}),
    ],
)
def test_languages_of_a_command(tmp_path: Path, command: str, languages: set[str]) -> None:
    loads = find_loads(command, str(tmp_path), root=str(tmp_path), environ={})
    assert loads.languages.get(str(tmp_path), set()) == languages


HOSTILE = {
    "substitutions": "$(" * 2000 + ")" * 2000,
    "backticks": "`" * 4000,
    "variables in each other": "a=$a$a; " * 500 + "$a",
    "pieces": ";|&" * 1500,
    "braces": "${" * 2000,
    "interpreters": "python3 -m x " * 400,
    "assignments": "a=" * 2000,
    "functions": "f() " * 1500,
    "null": "sh \0 x",
}


@pytest.mark.parametrize("command", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_command_is_read_within_bounds(tmp_path: Path, command: str) -> None:
    started_s = time.process_time()
    find_loads(command, str(tmp_path), root=str(tmp_path), environ={})
    assert time.process_time() - started_s < 5  # some milliseconds; a quadratic reading takes minutes


def test_scripts_that_name_each_other_are_read_within_bounds(tmp_path: Path) -> None:
    for number in range(200):
        (tmp_path / f"{number}.sh").write_text(f". ./{number + 1}.sh\n. ./{number}.sh\n")
    loads = find_loads(
        "sh 0.sh", str(tmp_path), root=str(tmp_path), environ={}, named=[str(tmp_path / "0.sh")]
    )
    assert CODE in loads.languages[str(tmp_path)]
