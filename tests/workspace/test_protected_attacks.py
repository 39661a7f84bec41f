"""Attacks on a person's own programs through files in the workspace: git, pytest, make, pdb and others.

Each attack writes files as code in a sandbox could, and names what a person then does in that folder. The
control runs the person's programs on the attacked folder and shows that the attack works. The test proper
runs them again after the protected files were restored: then nothing of the attack may run.
"""

from __future__ import annotations

import contextlib
import importlib.util
import marshal
import os
import pty
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from aisotools.workspace.protected import ProtectedFiles

git_needed = pytest.mark.skipif(shutil.which("git") is None, reason="there is no git")
HEAD = "ref: refs/heads/main\n"
COMMAND_S = 30


@dataclass
class Place:
    """A workspace, and a program of the attacker whose run leaves a mark."""

    ws: Path
    mark: Path
    home: Path

    def __post_init__(self) -> None:
        for folder in (self.ws, self.home):
            folder.mkdir(parents=True)
        self.evil = self.ws / "evil.sh"
        self.evil.write_text(f"#!/bin/sh\ntouch {self.mark}\n")
        self.evil.chmod(0o755)

    def run(self, *command: str, cwd: Path | None = None, text: str = "") -> None:
        """Run a program of the person, with a terminal for its output."""
        ours, theirs = pty.openpty()
        reader = threading.Thread(target=_drain, args=(ours,))
        reader.start()
        environ = {
            "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self.home),
            "TERM": "xterm",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": str(self.home / ".gitconfig"),
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_EDITOR": "true",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": ".",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        }
        try:
            subprocess.run(
                command,
                cwd=cwd or self.ws,
                env=environ,
                input=text.encode(),
                stdout=theirs,
                stderr=theirs,
                timeout=COMMAND_S,
                check=False,
            )
        finally:
            os.close(theirs)
            reader.join()
            os.close(ours)

    def git(self, *arguments: str, cwd: Path | None = None, text: str = "") -> None:
        self.run("git", *arguments, cwd=cwd, text=text)

    def repository(self) -> Path:
        """A repository of the person, with one commit."""
        (self.home / ".gitconfig").write_text("[user]\n\tname = me\n\temail = me@example.org\n")
        self.git("init", "-q", "-b", "main", ".")
        (self.ws / "data.txt").write_text("one\n")
        self.git("add", "data.txt")
        self.git("commit", "-q", "-m", "one")
        return self.ws / ".git"

    def fake_repository(self, name: str, config: str) -> Path:
        """Files that git takes for a repository."""
        folder = self.ws / name
        for part in ("objects", "refs/heads"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        (folder / "HEAD").write_text(HEAD)
        (folder / "config").write_text(config)
        return folder

    @property
    def watcher(self) -> str:
        """Settings with which `git status` runs the attacker's program."""
        return f"[core]\n\trepositoryformatversion = 0\n\tbare = false\n\tfsmonitor = {self.evil}\n"


def _drain(terminal: int) -> None:
    with contextlib.suppress(OSError):  # EIO: the last writer has gone
        while os.read(terminal, 65536):
            pass


@dataclass(frozen=True, kw_only=True)
class Attack:
    """Attributes:
    plant: What code in the sandbox writes.
    use: What a person does afterwards.
    before: What is there when the session opens.
    """

    plant: Callable[[Place], object]
    use: Callable[[Place], object]
    before: Callable[[Place], object] = field(default=lambda place: place.repository())


def status(place: Place) -> None:
    place.git("status")


def nothing(place: Place) -> None:
    pass


def edit(place: Place) -> None:
    (place.ws / "data.txt").write_text("two\n")


def config(text: str) -> Callable[[Place], object]:
    """Add text to the repository's settings; `{evil}` stands for the attacker's program."""

    def plant(place: Place) -> None:
        edit(place)
        with (place.ws / ".git/config").open("a") as file:
            file.write(text.replace("{evil}", str(place.evil)))

    return plant


def each(*plants: Callable[[Place], object]) -> Callable[[Place], object]:
    def plant(place: Place) -> None:
        for one in plants:
            one(place)

    return plant


def copied(name: str) -> Callable[[Place], object]:
    """The attacker's program under another name."""

    def plant(place: Place) -> None:
        (place.ws / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(place.evil, place.ws / name)

    return plant


def written(name: str, text: str, *, executable: bool = False) -> Callable[[Place], object]:
    def plant(place: Place) -> None:
        path = place.ws / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("{evil}", str(place.evil)))
        if executable:
            path.chmod(0o755)

    return plant


def using(*command: str, cwd: str = ".", text: str = "") -> Callable[[Place], object]:
    return lambda place: place.run(*command, cwd=place.ws / cwd, text=text)


def bom(place: Place) -> None:
    (place.ws / "more.cfg").write_text(place.watcher)
    config_file = place.ws / ".git/config"
    text = config_file.read_text()
    config_file.write_text(f"\ufeff[include]path=../more.cfg\n{text}")


def git_file(place: Place) -> None:
    place.fake_repository("other", place.watcher)
    shutil.rmtree(place.ws / ".git")
    (place.ws / ".git").write_text("gitdir: other\n")


def git_file_below(place: Place) -> None:
    place.fake_repository("other", place.watcher)
    (place.ws / "sub").mkdir()
    (place.ws / "sub/.git").write_text("gitdir: ../other\n")


def git_link(place: Place) -> None:
    place.fake_repository("other", place.watcher)
    (place.ws / ".git").symlink_to("other")


def commondir(place: Place) -> None:
    place.fake_repository("other", place.watcher)
    (place.ws / ".git/commondir").write_text("../other\n")


def commondir_alone(place: Place) -> None:
    """A repository without objects and refs of its own."""
    other = place.fake_repository("other", f"[alias]\n\tst = !{place.evil}\n")
    (place.ws / "sub").mkdir()
    (place.ws / "sub/HEAD").write_text(HEAD)
    (place.ws / "sub/commondir").write_text(f"{other}\n")
    (place.ws / "other/HEAD").unlink()  # by itself it is not a repository: its settings look harmless


def bare_below(place: Place) -> None:
    place.fake_repository("sub", f"{place.watcher}\tworktree = {place.ws}/sub\n")


def bare_workspace(place: Place) -> None:
    place.fake_repository(".", f"{place.watcher}\tworktree = {place.ws}\n")


def bare_later(place: Place) -> None:
    """What makes it a repository comes last."""
    place.fake_repository("sub", f"{place.watcher}\tworktree = {place.ws}/sub\n")
    (place.ws / "sub/refs").rename(place.ws / "sub/refs-not-yet")
    (place.ws / "sub/refs-not-yet").rename(place.ws / "sub/refs")


def bare_hooks(place: Place) -> None:
    folder = place.fake_repository(
        "sub", f"[core]\n\trepositoryformatversion = 0\n\tbare = false\n\tworktree = {place.ws}/sub\n"
    )
    (folder / "hooks").mkdir()
    shutil.copy(place.evil, folder / "hooks/pre-commit")


def linked_hooks(place: Place) -> None:
    shutil.rmtree(place.ws / ".git/hooks")
    (place.ws / "tools").mkdir()
    shutil.copy(place.evil, place.ws / "tools/pre-commit")
    (place.ws / ".git/hooks").symlink_to("../tools")


def linked_config(place: Place) -> None:
    (place.ws / "other.cfg").write_text(place.watcher)
    (place.ws / ".git/config").unlink()
    (place.ws / ".git/config").symlink_to("../other.cfg")


def worktree_config(place: Place) -> None:
    with (place.ws / ".git/config").open("a") as file:
        file.write("[extensions]\n\tworktreeConfig = true\n")
    (place.ws / ".git/config.worktree").write_text(place.watcher)


def large_config(place: Place) -> None:
    config_file = place.ws / ".git/config"
    config_file.write_text(config_file.read_text() + "#" * (70 << 10) + "\n" + place.watcher)


def rebase(place: Place) -> None:
    """A rebase that waits, with one more line in its list of things to do."""
    environment = "GIT_SEQUENCE_EDITOR=echo break >"
    place.run("env", environment, "git", "rebase", "-i", "--root")
    with (place.ws / ".git/rebase-merge/git-rebase-todo").open("a") as file:
        file.write(f"x {place.evil}\n")


def upper_case_git(place: Place) -> None:
    """As `.GIT` on a file system that ignores case; here the name as it is."""
    place.fake_repository("SUB", f"{place.watcher}\tworktree = {place.ws}/SUB\n")


GIT = {
    "a program as pager of one command": Attack(
        plant=config("[pager]\n\tlog = {evil}\n"), use=using("git", "log")
    ),
    "a program for differences": Attack(
        plant=config("[diff]\n\texternal = {evil}\n"), use=using("git", "diff")
    ),
    "a setting in the line of its section": Attack(plant=config("[core]fsmonitor={evil}\n"), use=status),
    "an alias in the line of its section": Attack(
        plant=config("[alias]st=!{evil}\n"), use=using("git", "st")
    ),
    "a filter in the line of its section": Attack(
        plant=each(config('[filter "x"]clean={evil}\n'), written(".gitattributes", "* filter=x\n")),
        use=using("git", "add", "data.txt"),
    ),
    "a byte order mark before an include": Attack(plant=bom, use=status),
    "a filter of interactive differences": Attack(
        plant=config("[interactive]\n\tdiffFilter = {evil}; cat\n"), use=using("git", "add", "-p", text="q\n")
    ),
    "a remote that is a program": Attack(
        plant=config('[protocol "ext"]\n\tallow = always\n[remote "o"]\n\turl = ext::{evil}\n'),
        use=using("git", "fetch", "o"),
    ),
    "a branch whose remote is a program": Attack(
        plant=config(
            '[protocol "ext"]\n\tallow = always\n[branch "main"]\n\tremote = ext::{evil}\n\tmerge = x\n'
        ),
        use=using("git", "fetch"),
    ),
    "an address rewritten to a program": Attack(
        plant=config(
            '[protocol "ext"]\n\tallow = always\n[url "ext::{evil} "]\n\tinsteadOf = https:\n'
            '[remote "o"]\n\turl = https://example.org/x\n'
        ),
        use=using("git", "fetch", "o"),
    ),
    "a program for commits to be signed": Attack(
        plant=config("[commit]gpgsign=true\n[gpg]program={evil}\n"),
        use=using("git", "commit", "-q", "-a", "-m", "two"),
    ),
    "hooks in another folder": Attack(
        plant=each(config("[core]hooksPath=tools\n"), copied("tools/pre-commit")),
        use=using("git", "commit", "-q", "-a", "-m", "two"),
    ),
    "a file in place of the repository": Attack(plant=git_file, use=status),
    "a file that makes a folder a repository": Attack(
        plant=git_file_below, use=using("git", "status", cwd="sub"), before=nothing
    ),
    "a link in place of the repository": Attack(plant=git_link, use=status, before=nothing),
    "settings by a common folder": Attack(plant=commondir, use=status),
    "a repository with a common folder alone": Attack(
        plant=commondir_alone, use=using("git", "st", cwd="sub"), before=nothing
    ),
    "a bare repository below": Attack(
        plant=bare_below, use=using("git", "status", cwd="sub"), before=nothing
    ),
    "the workspace as a bare repository": Attack(plant=bare_workspace, use=status, before=nothing),
    "a bare repository, finished last": Attack(
        plant=bare_later, use=using("git", "status", cwd="sub"), before=nothing
    ),
    "hooks of a bare repository": Attack(
        plant=bare_hooks,
        use=using(
            "git",
            "-c",
            "user.name=x",
            "-c",
            "user.email=x",
            "commit",
            "-q",
            "--allow-empty",
            "-m",
            "x",
            cwd="sub",
        ),
        before=nothing,
    ),
    "a link in place of the hooks": Attack(
        plant=each(edit, linked_hooks),
        use=using("git", "commit", "-q", "-a", "-m", "two"),
    ),
    "a link in place of the settings": Attack(plant=linked_config, use=status),
    "settings of the worktree": Attack(plant=worktree_config, use=status),
    "settings behind 70 KiB of comment": Attack(plant=large_config, use=status),
    "a rebase that runs a program when it goes on": Attack(
        plant=rebase, use=using("git", "rebase", "--continue")
    ),
    "a bare repository in capital letters": Attack(
        plant=upper_case_git, use=using("git", "status", cwd="SUB"), before=nothing
    ),
}

EVIL_STRATEGY = "git-merge-x/evil"  # git looks for it in the current folder, as its name has a slash
WAITING = {
    ".git/rebase-merge/strategy": ("rebase main", "x/evil\n"),
    ".git/sequencer/opts": ("cherry-pick main..topic", "[options]\n\tstrategy = x/evil\n"),
}


def wait_at_conflict(place: Place, command: str) -> None:
    """An operation of the person stops at the first of two commits."""
    place.repository()
    place.git("checkout", "-q", "-b", "topic")
    (place.ws / "data.txt").write_text("of the topic\n")
    place.git("commit", "-q", "-a", "-m", "conflict")
    (place.ws / "other.txt").write_text("other\n")
    place.git("add", "other.txt")
    place.git("commit", "-q", "-m", "other")
    place.git("checkout", "-q", "main")
    (place.ws / "data.txt").write_text("of main\n")
    place.git("commit", "-q", "-a", "-m", "two")
    if command.startswith("rebase"):
        place.git("checkout", "-q", "topic")
    place.git(*command.split())


EVIL_PY = "import subprocess\nsubprocess.run(['{evil}'])\n"
PYTEST = ("python", "-m", "pytest", "-q", "-p", "no:cacheprovider")

TOOLS = {
    "pytest.ini": Attack(
        plant=each(written("pytest.ini", "[pytest]\naddopts = -p plug\n"), written("plug.py", EVIL_PY)),
        use=using(*PYTEST),
        before=nothing,
    ),
    ".pytest.ini": Attack(
        plant=each(written(".pytest.ini", "[pytest]\naddopts = -p plug\n"), written("plug.py", EVIL_PY)),
        use=using(*PYTEST),
        before=nothing,
    ),
    "tox.ini": Attack(
        plant=each(written("tox.ini", "[pytest]\naddopts = -p plug\n"), written("plug.py", EVIL_PY)),
        use=using(*PYTEST),
        before=nothing,
    ),
    "setup.cfg": Attack(
        plant=each(written("setup.cfg", "[tool:pytest]\naddopts = -p plug\n"), written("plug.py", EVIL_PY)),
        use=using(*PYTEST),
        before=nothing,
    ),
    "pyproject.toml": Attack(
        plant=each(
            written("pyproject.toml", '[tool.pytest.ini_options]\naddopts = "-p plug"\n'),
            written("plug.py", EVIL_PY),
        ),
        use=using(*PYTEST),
        before=nothing,
    ),
    "conftest.py far below": Attack(
        plant=written("/".join("d" * 230) + "/conftest.py", EVIL_PY), use=using(*PYTEST), before=nothing
    ),
    "sitecustomize.py": Attack(
        plant=written("sitecustomize.py", EVIL_PY), use=using("python", "-c", "1"), before=nothing
    ),
    "usercustomize.py": Attack(
        plant=written("usercustomize.py", EVIL_PY), use=using("/usr/bin/python3", "-c", "1"), before=nothing
    ),
    ".pdbrc": Attack(
        plant=written(".pdbrc", "!import os; os.system('{evil}')\nq\n"),
        use=using("python", "-m", "pdb", "-c", "q", "-m", "this", text="q\n"),
        before=nothing,
    ),
    "mypy.ini": Attack(
        plant=each(
            written("mypy.ini", "[mypy]\nplugins = ./plug.py\n"),
            written("plug.py", EVIL_PY + "def plugin(version):\n    raise SystemExit\n"),
        ),
        use=using("python", "-m", "mypy", "-c", "1"),
        before=nothing,
    ),
    "Makefile": Attack(plant=written("Makefile", "all:\n\t{evil}\n"), use=using("make"), before=nothing),
    "makefile, in small letters": Attack(
        plant=written("makefile", "all:\n\t{evil}\n"), use=using("make"), before=nothing
    ),
    "GNUmakefile": Attack(
        plant=written("GNUmakefile", "all:\n\t{evil}\n"), use=using("make"), before=nothing
    ),
    "CMakeLists.txt": Attack(
        plant=written("CMakeLists.txt", "project(x NONE)\nexecute_process(COMMAND {evil})\n"),
        use=using("cmake", "-S", ".", "-B", "out"),
        before=nothing,
    ),
    "CTestTestfile.cmake": Attack(
        plant=written("CTestTestfile.cmake", "add_test(x {evil})\n"), use=using("ctest"), before=nothing
    ),
    ".perldb": Attack(
        plant=written(".perldb", "system('{evil}');\n"),
        use=using("perl", "-d", "-e", "1", text="q\n"),
        before=nothing,
    ),
    "setup.py": Attack(
        plant=written("setup.py", EVIL_PY), use=using("python", "setup.py", "--name"), before=nothing
    ),
}
NEEDS = {
    "make": {"Makefile", "makefile, in small letters", "GNUmakefile"},
    "cmake": {"CMakeLists.txt"},
    "ctest": {"CTestTestfile.cmake"},
    "perl": {".perldb"},
}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "ws", tmp_path / "mark", tmp_path / "home")


def restored_then_used(place: Place, attack: Attack, quarantine: Path) -> bool:
    """Return whether the attack ran, once without and once with protection."""
    attack.before(place)
    files = ProtectedFiles(place.ws, quarantine)
    attack.plant(place)
    place.mark.unlink(missing_ok=True)
    attack.use(place)
    assert place.mark.exists(), "the control: without protection this attack runs"
    place.mark.unlink()
    files.restore()
    attack.use(place)
    return place.mark.exists()


@pytest.mark.sample(12)
@git_needed
@pytest.mark.parametrize("attack", GIT.values(), ids=GIT)
def test_git_runs_nothing_of_a_worker(place: Place, attack: Attack, tmp_path: Path) -> None:
    assert not restored_then_used(place, attack, tmp_path / "quarantine")


@git_needed
@pytest.mark.parametrize("protected", [False, True])
@pytest.mark.parametrize("path", WAITING)
def test_an_operation_that_goes_on_runs_no_strategy_of_a_worker(
    place: Place, path: str, protected: bool, tmp_path: Path
) -> None:
    command, text = WAITING[path]
    wait_at_conflict(place, command)
    files = ProtectedFiles(place.ws, tmp_path / "quarantine")
    copied(EVIL_STRATEGY)(place)
    (place.ws / path).write_text(text)
    (place.ws / "data.txt").write_text("resolved\n")
    if protected:
        assert [change.path for change in files.restore()] == [path]
    place.git("add", "data.txt")
    place.git(command.split(maxsplit=1)[0], "--continue")
    assert place.mark.exists() is not protected


def forge_bytecode(place: Place) -> None:
    """Write bytecode of `conftest.py` that Python loads without a look at the source."""
    code = compile(EVIL_PY.replace("{evil}", str(place.evil)), "conftest.py", "exec")
    source_hash = importlib.util.source_hash((place.ws / "conftest.py").read_bytes())
    data = importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little") + source_hash + marshal.dumps(code)
    folder = place.ws / "__pycache__"
    folder.mkdir(exist_ok=True)
    (folder / f"conftest.{sys.implementation.cache_tag}.pyc").write_bytes(data)


def test_forged_bytecode_of_a_protected_module_is_removed(place: Place, tmp_path: Path) -> None:
    """Also where a person's own bytecode was, and though the call that wrote it does not fail for it."""

    def use(place: Place) -> None:
        place.run("python", "-c", "import conftest")

    def person(place: Place) -> None:
        (place.ws / "conftest.py").write_text("import json\n")

    attack = Attack(plant=forge_bytecode, use=use, before=person)
    assert not restored_then_used(place, attack, tmp_path / "quarantine")


def test_bytecode_is_restored_without_a_word(place: Place, tmp_path: Path) -> None:
    (place.ws / "conftest.py").write_text("import json\n")
    (place.ws / "__pycache__").mkdir()
    own = place.ws / "__pycache__/conftest.cpython-399.pyc"
    own.write_bytes(b"own")
    files = ProtectedFiles(place.ws, tmp_path / "quarantine")
    ordinary = place.ws / "__pycache__/plain.cpython-399.pyc"
    ordinary.write_bytes(b"ordinary")
    own.write_bytes(b"other")
    forge_bytecode(place)
    assert files.differs()
    assert files.restore() == ()
    assert own.read_bytes() == b"own"
    assert sorted(path.name for path in own.parent.iterdir()) == [own.name, ordinary.name]
    (place.ws / "conftest.abi3.so").write_bytes(b"x")
    assert [change.path for change in files.restore()] == ["conftest.abi3.so"]


def test_a_link_in_place_of_a_folder_of_bytecode_is_removed(place: Place, tmp_path: Path) -> None:
    files = ProtectedFiles(place.ws, tmp_path / "quarantine")
    (place.ws / "elsewhere").mkdir()
    (place.ws / "__pycache__").symlink_to("elsewhere")
    assert [change.path for change in files.restore()] == ["__pycache__"]


@pytest.mark.sample(4)
@pytest.mark.parametrize(("name", "attack"), TOOLS.items(), ids=TOOLS)
def test_other_programs_run_nothing_of_a_worker(
    place: Place, name: str, attack: Attack, tmp_path: Path
) -> None:
    for program, names in NEEDS.items():
        if name in names and shutil.which(program) is None:
            pytest.skip(f"there is no {program}")
    assert not restored_then_used(place, attack, tmp_path / "quarantine")


ORDINARY = (
    "init -q -b main .",
    "add data.txt",
    "commit -q -m one",
    "checkout -q -b config",
    "commit -q --allow-empty -m two",
    "checkout -q main",
    "merge -q --no-ff -m merged config",
    "tag -a -m first v1",
    "remote add origin https://example.org/thing.git",
    "remote add other git@example.org:thing.git",
    "config branch.main.remote origin",
    "config branch.main.merge refs/heads/main",
    "config user.name Agent",
    "config pull.rebase true",
    "rebase -q HEAD~1",
    "stash",
    "clone -q . copy",
    "clone -q --bare . bare.git",
    "init -q --bare empty.git",
    "gc -q",
    "sparse-checkout set --cone .",
    "branch -D config",
)


@git_needed
def test_ordinary_use_of_git_by_a_worker_changes_nothing_protected(place: Place, tmp_path: Path) -> None:
    (place.home / ".gitconfig").write_text("[user]\n\tname = me\n\temail = me@example.org\n")
    (place.ws / "data.txt").write_text("one\n")
    files = ProtectedFiles(place.ws, tmp_path / "quarantine")
    for command in ORDINARY:
        place.git(*command.split())
        assert files.restore() == (), command
    assert (place.ws / "copy/.git/config").exists()
    assert (place.ws / "bare.git/config").exists()


@git_needed
def test_ordinary_use_of_a_repository_with_a_persons_own_programs(place: Place, tmp_path: Path) -> None:
    """A person's alias and filter stay, and do not keep an agent from its work."""
    place.repository()
    place.git("config", "alias.st", "!mine")
    place.git("config", "filter.lfs.clean", "cat")
    files = ProtectedFiles(place.ws, tmp_path / "quarantine")
    for command in ("checkout -q -b topic", "config branch.topic.remote origin", "remote add o ../other"):
        place.git(*command.split())
        assert files.restore() == (), command
    place.git("config", "alias.st", "!evil")
    assert [change.path for change in files.restore()] == [".git/config"]
    assert "!mine" in (place.ws / ".git/config").read_text()
