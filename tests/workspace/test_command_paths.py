"""Attacks through the forms in which a setting of git may write the path of a file in the workspace.

The value of a setting is a command of a shell in most cases, so a path may be quoted, made from variables,
relative to a folder that the command enters, or found by a pattern. Real git runs each attack, first without
protection, as a control, and then after the protected files were restored.
"""

from __future__ import annotations

import os
import pwd
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from aisotools.workspace.command_paths import MAX_LOOKS, PathSearch
from aisotools.workspace.protected import ProtectedFiles
from tests.workspace.test_protected_attacks import EVIL_PY, Place, edit, git_needed, status, using, written

# A user from whose home `..` leads to the root of the file system.
TOP_USER = next(
    (
        user.pw_name
        for user in pwd.getpwall()
        if user.pw_dir.count("/") == 1
        and not Path(user.pw_dir).is_symlink()
        and os.access(user.pw_dir, os.X_OK)
    ),
    "root",
)
HARMLESS = {"": "#!/bin/sh\nexit 0\n", ".py": "import json\n", ".js": "1\n", ".pl": "1;\n", ".cfg": ""}
EVIL = {
    "": "#!/bin/sh\n'{evil}'\n",
    ".py": EVIL_PY,
    ".js": "require('child_process').execFileSync('{evil}')\n",
    ".pl": "system('{evil}');\n1;\n",
    ".awk": "BEGIN { system(\"'{evil}'\") }\n",
    ".cfg": "[core]\n\tfsmonitor = '{evil}'\n",
}


@dataclass(frozen=True, kw_only=True)
class Value:
    """A setting that leads to a file.

    Attributes:
        text: The settings of the repository, or only what `core.fsmonitor` says; `{ws}` is the workspace.
        planted: The file that a worker writes, in the workspace.
        own: A file of the person that is there before; the planted one without it. Empty for none.
        use: What the person does.
        raw: True if `text` is written as it is, as settings of the repository.
        personal: True if these are settings of the person.
        needs: A program that has to be there.
    """

    text: str
    planted: str = "tools/watch"
    own: str | None = None
    use: Callable[[Place], object] = status
    raw: bool = False
    personal: bool = False
    needs: str = "sh"


def commit(place: Place) -> None:
    edit(place)
    place.git("commit", "-q", "-a", "-m", "two")


def fetch(place: Place) -> None:
    place.git("fetch", "o")


EXT = '[protocol "ext"]\n\tallow = always\n'
SPACE = "my tools/watch"
VALUES = {
    "a variable": Value(text="$HOME/ws/tools/watch"),
    "a variable in braces": Value(text="${HOME}/ws/tools/watch"),
    "a quoted variable": Value(text='"$HOME"/ws/tools/watch'),
    "quotes with a variable": Value(text='"$HOME/ws/tools/watch"'),
    "quotes with a blank and a variable": Value(text='"${HOME}/ws/my tools/watch"', planted=SPACE),
    "a blank behind a backslash": Value(text="{ws}/my\\ tools/watch", planted=SPACE),
    "a blank in single quotes": Value(text="'{ws}/my tools/watch'", planted=SPACE),
    "a relative path with a blank": Value(text="./my\\ tools/watch", planted=SPACE),
    "a comma and an equals sign": Value(text="{ws}/a,b=c/watch", planted="a,b=c/watch"),
    "a relative path with an equals sign": Value(text="./a=b/watch", planted="a=b/watch"),
    "a relative path with a comma": Value(text="'a,b/watch'", planted="a,b/watch"),
    "a folder that is entered": Value(text="cd tools && ./watch"),
    "a folder entered by its path": Value(text="cd {ws}/tools && ./watch"),
    "an argument in an entered folder": Value(text="cd tools; sh watch"),
    "a source in a subshell": Value(text="(cd tools; . ./watch); :"),
    "the workspace entered": Value(text="cd $HOME/ws && ./tools/watch"),
    "a folder entered from the home": Value(text="cd ~/ws/tools && ./watch"),
    "the home by a tilde": Value(text="~/ws/tools/watch"),
    "the home of a user": Value(text=f"~{TOP_USER}/..{{ws}}/tools/watch"),
    "included by the home of a user": Value(
        text=f"[include]\n\tpath = ~{TOP_USER}/..{{ws}}/team.cfg\n", planted="team.cfg", raw=True
    ),
    "included by git's prefix": Value(
        text="[include]\n\tpath = %(prefix)/..{ws}/team.cfg\n", planted="team.cfg", raw=True
    ),
    "hooks by git's prefix": Value(
        text="[core]\n\thooksPath = %(prefix)/..{ws}/tools\n",
        planted="tools/pre-commit",
        use=commit,
        raw=True,
    ),
    "hooks by the home of a user": Value(
        text=f"[core]\n\thooksPath = ~{TOP_USER}/..{{ws}}/tools\n",
        planted="tools/pre-commit",
        use=commit,
        raw=True,
    ),
    "a program that runs another": Value(text="env X=1 tools/watch"),
    "a search path with the folder": Value(text="FOO=bar PATH=$PWD/tools:$PATH watch"),
    "a relative search path": Value(text="PATH=tools:$PATH watch"),
    "the worktree by git": Value(text='"$(git rev-parse --show-toplevel)/tools/watch"'),
    "the worktree by backticks": Value(text="`pwd`/tools/watch"),
    "the worktree by a command": Value(text="$(pwd)/tools/watch"),
    "a folder in a variable": Value(text="D=tools; $D/watch"),
    "a command in quotes": Value(text='sh -c "cd tools && exec ./watch"'),
    "quotes in a name": Value(text="to''ols/watch"),
    "a question mark": Value(text="tools/w?tch"),
    "all files of a folder": Value(text="./tools/*"),
    "a pattern for the folder": Value(text="to*/watch"),
    "a module of Python": Value(text="python3 -m watch", planted="watch.py", needs="python3"),
    "a search path of Python": Value(
        text="PYTHONPATH=tools python3 -m watch", planted="tools/watch.py", needs="python3"
    ),
    "a module beside a script of Python": Value(
        text="python3 tools/watch.py", planted="tools/json.py", own="tools/watch.py", needs="python3"
    ),
    "a search path of Perl": Value(
        text="perl -Itools -e 'require \"watch.pl\"'", planted="tools/watch.pl", needs="perl"
    ),
    "a folder as an argument": Value(text="sh -c '. \"$0\"/watch' tools"),
    "an input": Value(text="sh <tools/watch; :"),
    "a pipe": Value(text="cat tools/watch|sh; :"),
    "an evaluation": Value(text='eval "$(cat tools/watch)"'),
    "an option of Node": Value(
        text="node --require=./tools/watch.js -e 1", planted="tools/watch.js", needs="node"
    ),
    "a file of awk": Value(text="awk -ftools/watch.awk", planted="tools/watch.awk", own="", needs="awk"),
    "a link to the workspace": Value(text="$HOME/link/tools/watch"),
    "a path over the folder above": Value(text="../ws/tools/watch"),
    "a path over the repository": Value(text=".git/../tools/watch"),
    "a comment that ends in a backslash": Value(
        text="[core]\n# see \\\n\thooksPath = tools\n", planted="tools/pre-commit", use=commit, raw=True
    ),
    "a comment behind a value that ends in a backslash": Value(
        text="[core]\n\tbare = false ; x \\\n\thooksPath = tools\n",
        planted="tools/pre-commit",
        use=commit,
        raw=True,
    ),
    "a comment before a section": Value(
        text="; \\\n[include]\n\tpath = ../team.cfg\n", planted="team.cfg", raw=True
    ),
    "a comment of quotes": Value(text='[core] # "\\\nfsmonitor = tools/watch # "\n', raw=True),
    "a value over two lines": Value(text="[core]\n\tfsmonitor = tools/\\\nwatch\n", raw=True),
    "a tab in a value": Value(text='[core]\n\tfsmonitor = "sh\\ttools/watch"\n', raw=True),
    "a remote that is a command": Value(
        text=f'{EXT}[remote "o"]\n\turl = ext::sh tools/watch\n', use=fetch, raw=True
    ),
    "a branch whose remote is a command": Value(
        text=f'{EXT}[branch "main"]\n\tremote = "ext::sh tools/watch"\n\tmerge = x\n',
        use=using("git", "fetch"),
        raw=True,
    ),
    "an address that stands for a command": Value(
        text=f'{EXT}[url "ext::sh tools/watch "]\n\tinsteadOf = x:\n[remote "o"]\n\turl = x:y\n',
        use=fetch,
        raw=True,
    ),
    "a program of the person, in another repository": Value(
        text="[core]\n\tfsmonitor = tools/watch\n",
        planted="sub/tools/watch",
        use=using("git", "status", cwd="sub"),
        personal=True,
    ),
    "a program for signatures, with a blank": Value(
        text="[gpg]\n\tprogram = {ws}/my tools/watch\n[commit]\n\tgpgSign = true\n",
        planted=SPACE,
        use=commit,
        raw=True,
    ),
    "a function": Value(text="f() { tools/watch; }; f"),
    "a program for connections in a folder": Value(
        text='[core]\n\tsshCommand = "cd tools && ./watch"\n[remote "o"]\n\turl = me@localhost:x\n',
        use=fetch,
        raw=True,
    ),
    "a program that is not there yet": Value(
        text="test -x tools/new && ./tools/new", planted="tools/new", own=""
    ),
    "each file of a pattern": Value(
        text='for i in tools/*.sh; do sh "$i"; done; :', planted="tools/x.sh", own="tools/readme.txt"
    ),
    "each program of a folder": Value(
        text="run-parts tools; :", planted="tools/zz", own="tools/aa", needs="run-parts"
    ),
    "files that a command finds": Value(
        text="find tools -name '*.hook' -exec sh {} \\; ; :", planted="tools/sub/x.hook", own="tools/watch"
    ),
    "a list with a separator": Value(text='IFS=,; v=tools,watch; set -- $v; "$1/$2"'),
    "a module of Python in an entered folder": Value(
        text="cd tools && python3 -m watch", planted="tools/watch.py", needs="python3"
    ),
    "a folder that Python runs": Value(
        text="python3 tools", planted="tools/__main__.py", own="tools/watch.py", needs="python3"
    ),
    "a quoted command with a variable": Value(text="sh -c 'exec $HOME/ws/tools/watch'"),
    "quotes around a part": Value(text='"$HOME/"ws/tools/watch'),
    "a path with needless parts": Value(text="$HOME//ws/./tools/watch"),
    "a variable with a default": Value(text="${HOME:-/x}/ws/tools/watch"),
    "the home entered without its name": Value(text="cd && ./ws/tools/watch"),
    "the folder above entered": Value(text="cd .. && ws/tools/watch"),
    "the root entered": Value(text="cd / && .{ws}/tools/watch"),
    "a search path of folders to enter": Value(text="CDPATH=$HOME cd ws/tools && ./watch"),
    "a command that is read": Value(text="sh -c \"$(cat 'my tools'/watch)\"", planted=SPACE),
    "a source": Value(text=". tools/watch"),
    "an input that is a source": Value(text="exec <tools/watch; . /dev/stdin; :"),
    "folders entered one after another": Value(text='cd "$HOME" ; cd ws ; tools/watch'),
    "a folder entered with an option": Value(text="cd -P tools && ./watch"),
    "a folder that a command computes": Value(text='d=$(dirname tools/x); "$d"/watch'),
    "a folder entered by bash": Value(text="bash -c 'pushd tools && ./watch'", needs="bash"),
    "two slashes": Value(text="tools//watch"),
    "a path that goes back": Value(text="tools/../tools/watch"),
    "settings of bash": Value(text="BASH_ENV=tools/watch bash -c :", needs="bash"),
    "a folder of Perl apart from its option": Value(
        text="perl -I tools -e 'require \"watch.pl\"'", planted="tools/watch.pl", needs="perl"
    ),
    "a folder in the program of Perl": Value(
        text='perl -e \'use lib "tools"; require "watch.pl"\'', planted="tools/watch.pl", needs="perl"
    ),
    "a folder in a module of Perl": Value(
        text="perl -Mlib=tools -e 'require \"watch.pl\"'", planted="tools/watch.pl", needs="perl"
    ),
    "a module of Node without its ending": Value(
        text="node -e 'require(\"./tools/watch\")'", planted="tools/watch.js", needs="node"
    ),
    "a module of Node in the workspace": Value(
        text="node -e 'require(\"./watch\")'", planted="watch.js", needs="node"
    ),
    "an import of Python": Value(text="python3 -c 'import watch'", planted="watch.py", needs="python3"),
    "an import from a folder": Value(
        text="python3 -c 'from tools import watch'", planted="tools/watch.py", needs="python3"
    ),
    "a path of imports in a program": Value(
        text="python3 -c 'import sys; sys.path.insert(0, \"tools\"); import watch'",
        planted="tools/watch.py",
        needs="python3",
    ),
    "a pattern for the workspace": Value(text='"$HOME"/w*/tools/watch'),
    "a class of characters": Value(text="$HOME/[w]s/tools/watch"),
    "braces of bash": Value(text="bash -c 'tools/{watch,x}'", needs="bash"),
    "a variable in a name": Value(text="t=too; ${t}ls/watch"),
    "quotes in each part": Value(text='eval to"ols/wat"ch'),
    "a pattern of printf": Value(text="printf 'tools/%s' watch | xargs sh; :"),
    "an argument of a command": Value(text="sh -c 'cd \"$1\" && ./watch' x tools; :"),
    "a folder for another program": Value(text="env -C tools ./watch"),
    "a folder for another program, as a long option": Value(text="env --chdir=tools ./watch"),
    "a program with less priority": Value(text="nice -n 5 tools/watch"),
    "a slash behind a backslash": Value(text="tools\\/watch"),
    "the worktree by a tilde": Value(text="bash -c '~+/tools/watch'", needs="bash"),
    "a folder that a command prints": Value(text='"$(cd tools && pwd)"/watch'),
    "a default with the folder": Value(text="${X:-tools}/watch"),
    "a condition before the folder": Value(text="test -d tools && cd tools; ./watch"),
    "folders by a pattern": Value(text="sh -c 'for d in */; do sh $d/watch; done'"),
    "a package of Python": Value(text="python3 -m tools.watch", planted="tools/watch.py", needs="python3"),
    "a search path of Node": Value(
        text="NODE_PATH=tools node -e 'require(\"watch\")'", planted="tools/watch.js", needs="node"
    ),
    "letters that are not ASCII": Value(text="./w\u00e4rk/watch", planted="w\u00e4rk/watch"),
    "a quotation mark in a name": Value(text='"it\'s/watch"', planted="it's/watch"),
    "several blanks in a name": Value(text='"my   tools/watch"', planted="my   tools/watch"),
    "a percent sign in a name": Value(text="./%x/watch", planted="%x/watch"),
    "a command of a command": Value(text='sh -c "tools/watch"'),
    "hooks by a path that goes back": Value(
        text="[core]\n\thooksPath = ./x/../tools/\n",
        planted="tools/pre-commit",
        use=commit,
        raw=True,
        own="x/y",
    ),
    "hooks in a folder with a blank at the end": Value(
        text='[core]\n\thooksPath = "tools "\n', planted="tools /pre-commit", use=commit, raw=True
    ),
    "settings of the person in the home": Value(
        text='[includeIf "gitdir:~/ws/"]\n\tpath = ~/ws/team.cfg\n',
        planted="team.cfg",
        personal=True,
        own="sub/x",
    ),
}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """The workspace lies in the person's home, and the program of the attacker outside of it."""
    place = Place(tmp_path / "spare", tmp_path / "mark", tmp_path / "home")
    place.ws = place.home / "ws"
    place.ws.mkdir()
    (place.home / "link").symlink_to("ws")
    return place


def write(place: Place, name: str, kinds: dict[str, str]) -> None:
    suffix = Path(name).suffix
    written(name, kinds.get(suffix, kinds[""]), executable=True)(place)


def configure(place: Place, value: Value) -> None:
    place.repository()
    if value.personal:
        place.git("init", "-q", "sub")
    text = value.text.replace("{ws}", str(place.ws))
    if value.raw:
        with (place.ws / ".git/config").open("a") as file:
            file.write(text)
    elif value.personal:
        with (place.home / ".gitconfig").open("a") as file:
            file.write(text)
    else:
        place.git("config", "core.fsmonitor", text)


def is_run(place: Place, value: Value) -> bool:
    place.mark.unlink(missing_ok=True)
    value.use(place)
    return place.mark.exists()


@pytest.mark.sample(14)
@git_needed
@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_files_that_a_value_leads_to_are_put_back(place: Place, value: Value, tmp_path: Path) -> None:
    if shutil.which(value.needs) is None:
        pytest.skip(f"there is no {value.needs}")
    own = value.planted if value.own is None else value.own
    if own:
        write(place, own, HARMLESS)
    configure(place, value)
    environ = {"HOME": str(place.home), "GIT_CONFIG_NOSYSTEM": "1"}
    files = ProtectedFiles(place.ws, tmp_path / "quarantine", environ=environ)
    assert files.restore() == (), "nothing has changed yet"
    write(place, value.planted, EVIL)
    assert is_run(place, value), "the control: without protection this attack runs"
    assert [change.path for change in files.restore()] == [value.planted]
    assert not is_run(place, value)


COMMON = """
    [credential]
        helper = cache --timeout=300
        helper = !/usr/bin/gh auth git-credential
    [core]
        editor = code --wait
        pager = delta
        sshCommand = ssh -i ~/.ssh/id_ed25519 -F /dev/null
    [filter "lfs"]
        clean = git-lfs clean -- %f
        smudge = git-lfs smudge -- %f
        process = git-lfs filter-process
    [difftool "vscode"]
        cmd = code --wait --diff "$LOCAL" "$REMOTE"
    [mergetool "nvim"]
        cmd = nvim -d \"$LOCAL\" \"$REMOTE\" \"$MERGED\" -c 'wincmd w'
    [gpg]
        program = /usr/bin/gpg
    [gui]
        recentrepo = {ws}/src
    [maintenance]
        repo = {ws}
    [remote "o"]
        url = ../src/a b
    [branch "main"]
        remote = src
        vscode-merge-base = origin/main
    [merge "x"]
        driver = git merge-file %A %O %B
    [diff "db"]
        textconv = echo .dump | sqlite3
    [diff "x"]
        textconv = "cat $HOME/ws"
"""
FOLDERS = "auth clean code delta dump ed25519 filter gh git git-credential gpg main merge src usr/bin"


@git_needed
def test_common_settings_leave_the_files_of_a_project_alone(place: Place, tmp_path: Path) -> None:
    """Though folders and files have the names of programs and of their arguments."""
    value = Value(text=COMMON, personal=True)
    for folder in FOLDERS.split():
        (place.ws / folder).mkdir(parents=True)
    (place.ws / "smudge.py").write_text("ordinary")
    configure(place, value)
    environ = {"HOME": str(place.home), "GIT_CONFIG_NOSYSTEM": "1"}
    files = ProtectedFiles(place.ws, tmp_path / "quarantine", environ=environ)
    for folder in FOLDERS.split():
        (place.ws / folder / "x.py").write_text("ordinary")
    (place.ws / "smudge.py").write_text("changed")
    for command in ("add .", "commit -q -m two", "checkout -q -b topic", "gc -q"):
        place.git(*command.split())
    assert files.restore() == ()


HOSTILE = {
    "a deep path": "/".join(["."] * 4000),
    "a path that goes back": "a/../" * 800,
    "many words": " ".join("x" * 2000),
    "variables in each other": "${" * 2000,
    "patterns": "*/" * 2000,
    "quotes": "'" * 4000,
    "assignments": "a=$a " * 800,
    "null": "a/\0/b",
    "line ends": "a\nb/c",
}


@pytest.mark.parametrize("command", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_value_is_searched_within_bounds(tmp_path: Path, command: str) -> None:
    root = tmp_path / "ws"
    for name in range(20):
        (root / f"a/{name}").mkdir(parents=True)
    search = PathSearch(str(root), {"HOME": str(tmp_path)})
    search.allow(MAX_LOOKS)
    found = search.find(command, str(root))
    assert len(found.files) + len(found.folders) < 4 * MAX_LOOKS
    assert str(root) not in found.folders


def test_a_file_of_settings_leaves_looks_for_the_next_one(place: Place, tmp_path: Path) -> None:
    """Otherwise a repository with very many settings would hide those of the person."""
    place.repository()
    with (place.ws / ".git/config").open("a") as file:
        file.writelines(f"[x]\n\tk{number} = a/b c/d e/f\n" for number in range(20_000))
    with (place.home / ".gitconfig").open("a") as file:
        file.write("[core]\n\tfsmonitor = $HOME/ws/tools/watch\n")
    write(place, "tools/watch", HARMLESS)
    environ = {"HOME": str(place.home), "GIT_CONFIG_NOSYSTEM": "1"}
    files = ProtectedFiles(place.ws, tmp_path / "quarantine", environ=environ)
    write(place, "tools/watch", EVIL)
    assert [change.path for change in files.restore()] == ["tools/watch"]
