"""Files of a workspace that a person's own settings of git name: hooks, further settings, programs.

Each attack writes such a file as code in a sandbox could. The control runs git on the attacked folder and
shows that the attack works without protection.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from aisotools.workspace.git_named_files import GitNamedFiles, follow_links
from aisotools.workspace.git_settings import stamp_of
from aisotools.workspace.protected import ProtectedFiles
from tests.workspace.test_protected_attacks import (
    Attack,
    Place,
    copied,
    each,
    edit,
    git_needed,
    status,
    using,
    written,
)

COMMIT = using("git", "commit", "-q", "-a", "-m", "two")
HARMLESS = "#!/bin/sh\nexit 0\n"
WATCHER = "[core]\n\tfsmonitor = {evil}\n"


def own(name: str, text: str = HARMLESS) -> Callable[[Place], object]:
    """A file of the person."""
    return written(name, text, executable=True)


def repository(*settings: str) -> Callable[[Place], object]:
    """A repository of the person with these settings, each as a key and a value."""

    def prepare(place: Place) -> None:
        place.repository()
        for setting in settings:
            key, _, value = setting.partition(" ")
            place.git("config", key, value)

    return prepare


def personal(*settings: str) -> Callable[[Place], object]:
    """The same, with settings of the person for all repositories; `{ws}` stands for the workspace."""

    def prepare(place: Place) -> None:
        place.repository()
        for setting in settings:
            key, _, value = setting.partition(" ")
            place.git("config", "--global", key, value.replace("{ws}", str(place.ws)))

    return prepare


def link(name: str, target: str) -> Callable[[Place], object]:
    def make(place: Place) -> None:
        path = place.ws / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)

    return make


def new_repository(place: Place) -> None:
    """Of the worker, and without settings."""
    place.git("init", "-q", "sub")
    (place.ws / "sub/.git/config").unlink()
    copied("sub/tools/pre-commit")(place)


def above(place: Place) -> None:
    """The workspace is a folder of a repository."""
    (place.home / ".gitconfig").write_text("[user]\n\tname = me\n\temail = me@example.org\n")
    place.git("init", "-q", str(place.ws.parent))
    place.git("config", "core.hooksPath", "ws/tools")


def worktree(place: Place) -> None:
    """The workspace is a worktree of a repository elsewhere."""
    main = place.home / "main"
    (place.home / ".gitconfig").write_text("[user]\n\tname = me\n\temail = me@example.org\n")
    place.git("init", "-q", "-b", "main", str(main))
    place.git("commit", "-q", "--allow-empty", "-m", "one", cwd=main)
    place.git("config", "core.hooksPath", "tools", cwd=main)
    place.git("worktree", "add", "-q", str(place.ws / "tree"), cwd=main)
    shutil.copytree(place.ws / "tree", place.ws, dirs_exist_ok=True)


def worktree_settings(place: Place) -> None:
    place.repository()
    place.git("config", "extensions.worktreeConfig", "true")
    place.git("config", "--worktree", "core.hooksPath", "tools")


EMPTY_COMMIT = ("git", "commit", "-q", "--allow-empty", "-m", "two")

ATTACKS = {
    "a new hook in the folder of hooks": Attack(
        before=repository("core.hooksPath tools/hooks"),
        plant=each(edit, copied("tools/hooks/pre-commit")),
        use=COMMIT,
    ),
    "a changed hook in the folder of hooks": Attack(
        before=each(repository("core.hooksPath tools"), own("tools/pre-commit")),
        plant=each(edit, copied("tools/pre-commit")),
        use=COMMIT,
    ),
    "a script beside the hook that it runs": Attack(
        before=each(
            repository("core.hooksPath tools"),
            own("tools/pre-commit", "#!/bin/sh\n. tools/lib/common\n"),
            own("tools/lib/common"),
        ),
        plant=each(edit, copied("tools/lib/common")),
        use=COMMIT,
    ),
    "the folder of hooks exchanged for a link": Attack(
        before=each(repository("core.hooksPath mine"), own("mine/pre-commit")),
        plant=each(edit, copied("other/pre-commit"), link("mine", "other")),
        use=COMMIT,
    ),
    "a folder of hooks that is a link": Attack(
        before=each(repository("core.hooksPath tools"), own("scripts/pre-commit"), link("tools", "scripts")),
        plant=each(edit, copied("scripts/pre-commit")),
        use=COMMIT,
    ),
    "a hook that is a link to a script": Attack(
        before=each(repository(), own("scripts/check"), link(".git/hooks/pre-commit", "../../scripts/check")),
        plant=each(edit, copied("scripts/check")),
        use=COMMIT,
    ),
    "a hook that is a link over a link": Attack(
        before=each(
            repository(),
            own("scripts/check"),
            link("s", "scripts"),
            link(".git/hooks/pre-commit", "../../s/check"),
        ),
        plant=each(edit, copied("other/check"), link("s", "other")),
        use=COMMIT,
    ),
    "hooks that are a link to a folder": Attack(
        before=each(repository(), own("scripts/post-commit"), link(".git/hooks", "../scripts")),
        plant=each(edit, copied("scripts/pre-commit")),
        use=COMMIT,
    ),
    "included settings": Attack(
        before=each(repository("include.path ../shared.cfg"), own("shared.cfg", "[user]\n\tname = x\n")),
        plant=written("shared.cfg", WATCHER),
        use=status,
    ),
    "included settings that were not there": Attack(
        before=repository("include.path ../config/git.cfg"),
        plant=written("config/git.cfg", WATCHER),
        use=status,
    ),
    "settings that included settings include": Attack(
        before=each(
            repository("include.path ../shared.cfg"),
            own("shared.cfg", "[include]\n\tpath = more.cfg\n"),
            own("more.cfg", ""),
        ),
        plant=written("more.cfg", WATCHER),
        use=status,
    ),
    "settings included on a condition": Attack(
        before=each(repository("includeIf.onbranch:main.path ../team.cfg"), own("team.cfg", "")),
        plant=written("team.cfg", WATCHER),
        use=status,
    ),
    "settings of the person that include a file": Attack(
        before=each(personal("include.path {ws}/team.cfg"), own("team.cfg", "")),
        plant=written("team.cfg", WATCHER),
        use=status,
    ),
    "hooks named for all repositories": Attack(
        before=personal("core.hooksPath tools"), plant=each(edit, copied("tools/pre-commit")), use=COMMIT
    ),
    "hooks named for all repositories, in one of the worker": Attack(
        before=personal("core.hooksPath tools"), plant=new_repository, use=using(*EMPTY_COMMIT, cwd="sub")
    ),
    "hooks of the worktree's settings": Attack(
        before=worktree_settings, plant=each(edit, copied("tools/pre-commit")), use=COMMIT
    ),
    "hooks of a repository above the workspace": Attack(
        before=above, plant=copied("tools/pre-commit"), use=using(*EMPTY_COMMIT)
    ),
    "hooks of a repository of which this is a worktree": Attack(
        before=worktree, plant=copied("tree/tools/pre-commit"), use=using(*EMPTY_COMMIT, cwd="tree")
    ),
    "a program that looks for changes": Attack(
        before=each(repository("core.fsmonitor tools/watch"), own("tools/watch")),
        plant=copied("tools/watch"),
        use=status,
    ),
    "a program for connections": Attack(
        before=each(repository("core.sshCommand ./connect", "remote.o.url me@localhost:x"), own("connect")),
        plant=copied("connect"),
        use=using("git", "fetch", "o"),
    ),
    "a program that filters": Attack(
        before=each(
            repository("filter.x.clean sh tools/clean %f"),
            own("tools/clean", "cat\n"),
            own(".gitattributes", "*.txt filter=x\n"),
        ),
        plant=each(edit, copied("tools/clean")),
        use=using("git", "add", "data.txt"),
    ),
    "a program that shows files as text": Attack(
        before=each(
            repository("diff.x.textconv ./astext"),
            own("astext", "#!/bin/sh\ncat $1\n"),
            own(".gitattributes", "*.txt diff=x\n"),
        ),
        plant=each(edit, copied("astext")),
        use=using("git", "diff"),
    ),
    "a template of repositories": Attack(
        before=each(personal("init.templateDir {ws}/template"), own("template/description", "x")),
        plant=each(copied("template/hooks/pre-commit")),
        use=each(using("git", "init", "-q", "fresh"), using(*EMPTY_COMMIT, cwd="fresh")),
    ),
}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "p/ws", tmp_path / "mark", tmp_path / "home")


def protected_files(place: Place, quarantine: Path) -> ProtectedFiles:
    environ = {
        "HOME": str(place.home),
        "GIT_CONFIG_GLOBAL": str(place.home / ".gitconfig"),
        "GIT_CONFIG_NOSYSTEM": "1",
    }
    return ProtectedFiles(place.ws, quarantine, environ=environ)


@pytest.mark.sample(10)
@git_needed
@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_files_that_settings_name_are_put_back(place: Place, attack: Attack, tmp_path: Path) -> None:
    attack.before(place)
    files = protected_files(place, tmp_path / "quarantine")
    assert files.restore() == (), "nothing has changed yet"
    attack.plant(place)
    place.mark.unlink(missing_ok=True)
    attack.use(place)
    assert place.mark.exists(), "the control: without protection this attack runs"
    place.mark.unlink()
    shutil.rmtree(place.ws / "fresh", ignore_errors=True)
    edit(place)
    with (place.ws / "data.txt").open("a") as file:
        file.write("three\n")
    assert files.restore()
    assert files.complete
    attack.use(place)
    assert not place.mark.exists()


@git_needed
def test_settings_that_change_during_the_session_are_followed(place: Place, tmp_path: Path) -> None:
    """What they name stays as it is at that moment; what changes later is put back."""
    place.repository()
    own("tools/pre-commit")(place)
    files = protected_files(place, tmp_path / "quarantine")
    own("tools/pre-push")(place)
    assert files.restore() == (), "nothing names it"
    place.git("config", "--global", "core.hooksPath", "tools")
    assert files.restore() == ()
    copied("tools/pre-push")(place)
    assert [change.path for change in files.restore()] == ["tools/pre-push"]
    assert (place.ws / "tools/pre-push").read_text() == HARMLESS


@git_needed
def test_ordinary_work_beside_settings_that_name_files(place: Place, tmp_path: Path) -> None:
    """Aliases are called by name; plain data, addresses and folders that a command enters stay writable."""
    place.repository()
    for folder in ("src/app", "tools"):
        (place.ws / folder).mkdir(parents=True)
    for name, value in {
        "alias.x": "!tools/run.sh",
        "commit.template": ".message",
        "core.excludesFile": "ignore.txt",
        "remote.o.url": "../other/repository",
        "filter.y.clean": "sh -c 'cd src/app && cat'",
        "branch.main.remote": "src/app",
    }.items():
        place.git("config", name, value)
    files = protected_files(place, tmp_path / "quarantine")
    for path in ("tools/run.sh", ".message", "ignore.txt", "src/app/x.py", "main.py", "tools/pre-commit"):
        (place.ws / path).write_text("ordinary")
    assert files.restore() == ()


@git_needed
def test_git_itself_refuses_commands_of_gitmodules(place: Place) -> None:
    """So `.gitmodules` is not a protected name; an address in it is one that git checks, too."""
    place.repository()
    text = '[submodule "x"]\n\tpath = x\n\turl = ./x\n\tupdate = !{evil}\n'
    written(".gitmodules", text)(place)
    for command in ("submodule init", "submodule update --init", "status", "pull --recurse-submodules"):
        place.git(*command.split())
    assert not place.mark.exists()


def test_links_are_followed_as_the_system_does(tmp_path: Path) -> None:
    root = tmp_path / "ws"
    (root / "real").mkdir(parents=True)
    (root / "a").symlink_to("b")
    (root / "b").symlink_to("real/../real")
    (root / "loop").symlink_to("loop")
    (root / "out").symlink_to(tmp_path)
    assert list(follow_links(str(root), f"{root}/a/file")) == ["a", "b", "real/file"]
    assert list(follow_links(str(root), f"{root}/out/x")) == ["out"]
    assert list(follow_links(str(root), f"{root}/../elsewhere")) == []
    assert set(follow_links(str(root), f"{root}/loop")) == {"loop"}


def test_hostile_settings_are_read_within_bounds(tmp_path: Path) -> None:
    """Files that include each other, that never end, or that are no files."""
    root = tmp_path / "ws"
    (root / ".git").mkdir(parents=True)
    (root / ".git/config").write_text("[include]\npath=config\npath=../a\npath=../fifo\npath=/dev/zero\n")
    (root / "a").write_text("[include]\npath=.git/config\npath=\x00\n[core]\nhooksPath=\x00\nworktree=a\n")
    os.mkfifo(root / "fifo")
    names = GitNamedFiles(str(root), {})
    named = names.read([".git/config"], [], [])
    assert {"a", "fifo"} <= named.files
    assert all(stamp_of(path) == stamp for path, stamp in names.stamps.items())
