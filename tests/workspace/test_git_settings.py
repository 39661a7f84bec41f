"""Settings of git: read as git reads them, and the programs that they name for commands which only read."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from aisotools.builtin.shell import GIT_ENVIRONMENT
from aisotools.core.types import Effect, Facts
from aisotools.policy.shell.classify import shell_facts
from aisotools.workspace.git_settings import (
    GitSetting,
    digest_of_program,
    find_programs,
    find_started,
    parse_settings,
)
from aisotools.workspace.path_facts import PathResolver
from tests.waiting import HANG_S
from tests.workspace.test_protected_attacks import git_needed

SETTINGS = [
    ("[core]\n\thooksPath = tools\n", [("core", "", "hookspath", "tools")]),
    ("[core] hooksPath=a b # comment\n", [("core", "", "hookspath", "a b")]),
    ('[includeIf "gitdir:~/x"]\npath="a;b"c  \n', [("includeif", "gitdir:~/x", "path", "a;bc")]),
    ('[a "b\\"c"]\n\tk = "x\\\\y\\n" \\\n z\n', [("a", 'b"c', "k", "x\\y\n  z")]),
    ("\ufeff[Core]\r\nBare\r\n", [("core", "", "bare", "")]),
    ("[a.B]\nk=1\nnonsense here\n[", [("a", "b", "k", "1")]),
    ("k = 1\n", []),
    ("[core]\n# x \\\nk = 1\n", [("core", "", "k", "1")]),
    ("[core]\nj = 2 ; x \\\nk = 1\n", [("core", "", "j", "2"), ("core", "", "k", "1")]),
    ('[core] # "\\\nk = 1 # "\n', [("core", "", "k", "1")]),
    ('[core]\nk = "a;\\\nb" \\\n c\n[d]l\n', [("core", "", "k", "a;b  c"), ("d", "", "l", "")]),
]


@pytest.mark.parametrize(("text", "expected"), SETTINGS)
def test_settings_are_read_as_git_reads_them(text: str, expected: list[tuple[str, ...]]) -> None:
    assert list(parse_settings(text.encode())) == [GitSetting(*one) for one in expected]


@git_needed
@pytest.mark.parametrize("text", [text for text, _ in SETTINGS if "nonsense" not in text and "[" in text])
def test_the_settings_are_those_that_git_lists(tmp_path: Path, text: str) -> None:
    file = tmp_path / "config"
    file.write_text(text)
    listed = subprocess.run(
        ["git", "config", "-f", str(file), "--list", "-z"], check=True, capture_output=True, text=True
    ).stdout
    ours = ""
    for one in parse_settings(text.encode()):
        names = filter(None, (one.section, one.name, one.key))
        ours += ".".join(names) + (f"\n{one.value}\0" if one.value else "\0")
    assert ours == listed


@git_needed
@pytest.mark.parametrize("value", ["tools", "a b", ' "a" ', "a;b", "a#b", "x\\y", "\ttab\t", "ä/b", 'a"b\\n'])
def test_values_that_git_writes_are_read_back(tmp_path: Path, value: str) -> None:
    file = tmp_path / "config"
    subprocess.run(["git", "config", "-f", str(file), "core.hooksPath", value], check=True)
    assert [setting.value for setting in parse_settings(file.read_bytes())] == [value]


# ---- programs for commands that only read

PROGRAM = "sh -c 'echo >>\"$MARK\"; exit 1' --"
SETTINGS_WITH_PROGRAMS = {
    "core.fsmonitor": {"core.fsmonitor": PROGRAM},
    "diff.external": {"diff.external": PROGRAM},
    "textconv": {"diff.t.textconv": PROGRAM},
    "textconv that is cached": {"diff.t.textconv": PROGRAM, "diff.t.cachetextconv": "true"},
    "a command for differences": {"diff.t.command": PROGRAM},
    "clean": {"filter.t.clean": PROGRAM},
    "process": {"filter.t.process": PROGRAM},
    "man": {"man.viewer": "x", "man.x.cmd": PROGRAM},
    "other references": {"core.alternateRefsCommand": PROGRAM},
    "missing objects": {
        "core.repositoryFormatVersion": "1",
        "extensions.partialClone": "o",
        "remote.o.promisor": "true",
        "remote.o.url": "{base}",
        "remote.o.uploadpack": PROGRAM,
    },
    "signatures": {"log.showSignature": "true", "gpg.program": "{program}"},
    "a format with signatures": {"format.pretty": "%G?", "gpg.program": "{program}"},
    "a named format": {"pretty.x": "%G?", "format.pretty": "x", "gpg.program": "{program}"},
    "a hook": {},
    "a hook of a submodule": {},
    "a folder of hooks": {"core.hooksPath": "tools/hooks"},
    "an absolute folder of hooks": {"core.hooksPath": "{base}/tools/hooks"},
    "a hook that is a link": {},
    "smudge": {"filter.t.smudge": PROGRAM},
    "a pager": {"core.pager": PROGRAM, "pager.log": PROGRAM, "pager.status": PROGRAM},
    "an editor": {"core.editor": PROGRAM, "sequence.editor": PROGRAM},
    "aliases": {"alias.status": f"!{PROGRAM}", "alias.lg": f"!{PROGRAM}"},
    "connections": {"core.sshCommand": PROGRAM, "credential.helper": f"!{PROGRAM}", "core.askPass": PROGRAM},
    "merges": {"merge.t.driver": PROGRAM, "difftool.x.cmd": PROGRAM, "diff.tool": "x"},
    "trailers": {"trailer.x.command": PROGRAM, "trailer.x.cmd": PROGRAM},
    "archives": {"tar.zz.command": PROGRAM, "interactive.diffFilter": PROGRAM},
}
HOOKS = {
    "a hook": (".git/hooks", False),
    "a hook of a submodule": (".git/modules/sub/hooks", False),
    "a folder of hooks": ("tools/hooks", False),
    "an absolute folder of hooks": ("tools/hooks", False),
    "a hook that is a link": (".git/hooks", True),
}
"""Where the hook lies that git runs when it writes the index, and whether it is a link."""
COMMANDS = """
    status|status -s|status -v|status -vv|status --ignored|status -uno|status --short --branch|diff
    diff --stat|diff --name-only|diff HEAD|diff HEAD~1 HEAD|diff HEAD~1 HEAD --stat|diff --cached
    diff --check|diff -w|diff --no-ext-diff --no-textconv|diff --no-ext-diff|diff --no-textconv
    diff --quiet|diff --raw|diff -U0|diff --no-index f g.bin|diff-files|diff-files -p|diff-index HEAD
    diff-index -p HEAD|diff --word-diff|diff-tree HEAD|diff-tree -p HEAD~1 HEAD|log|log --oneline -3
    log --stat|log -p|log -S y|log -G y|log -1 -p|log -L1,1:g.bin|log --follow g.bin|log --graph --all
    log --name-only|log --cc|log -c|log --check|log --raw|log --alternate-refs|log --format=%(trailers)
    log -1 -- g.bin|log --cherry-pick main...side|log --format=%s|show|show HEAD:g.bin|show --stat
    show --name-only|show -s|show v1|show --no-patch v1|show --stat -p|shortlog HEAD|shortlog -sn HEAD
    whatchanged|reflog|reflog -p|reflog show|reflog --stat|blame f|blame g.bin|annotate g.bin|grep q
    grep --cached y|grep y HEAD|ls-files|ls-files -m|ls-files -o|ls-files -s|ls-files --eol
    ls-tree -r HEAD|cat-file -p HEAD|cat-file -p HEAD:g.bin|cat-file -t HEAD|rev-parse HEAD
    rev-list HEAD|rev-list --objects HEAD|rev-list --alternate-refs|branch|branch -vv
    branch --contains HEAD|tag|tag -n|for-each-ref|show-ref|symbolic-ref HEAD|describe|describe --always
    describe --dirty|describe --broken|merge-base main side|name-rev HEAD|cherry side main
    range-diff HEAD~2..HEAD HEAD~1..HEAD|show-branch|worktree list|notes list|notes show|stash list
    stash list -p|stash show|stash show -p|config --list|remote -v|remote show -n o|var -l|version
    count-objects -v|fsck|check-ignore f|check-attr -a f|check-mailmap a|submodule status
    submodule summary|submodule|bundle verify ../b.bundle|sparse-checkout list|bisect log|add -n .
    clean -n|help log|log --help|help -a|help git|help foo|status -h|archive -l|stripspace|patch-id
    get-tar-commit-id|status --porcelain=v2|ls-files --recurse-submodules|diff --submodule=diff
    log -p --submodule=diff|show --submodule=diff|describe --dirty --always|diff --submodule=log HEAD
"""
FORMS = {
    "plain": "git {}",
    "with its folder": "git -C . {}",
    "without a pager": "git --no-pager {}",
    "in another folder": "cd sub/.. && git {}",
    "in a subshell": "(git {})",
    "in a command": "bash -c 'git {}'",
    "before a pipe": "git {} | head -3",
    "with its errors": "git {} 2>&1",
    "with a limit of time": "timeout 20 git {}",
    "by env": "env git {}",
    "without its environment": "env -i git {}",
    "by its path": "/usr/bin/git {}",
    "for what is found": "find . -maxdepth 0 -exec git {} ';'",
    "after another": "true; git {}",
}


def run(command: str, folder: Path, **environ: str) -> None:
    subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env={
            "PATH": os.environ["PATH"],
            "GIT_CONFIG_NOSYSTEM": "1",
            "HOME": str(folder.parent),
            **GIT_ENVIRONMENT,
            **environ,
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=HANG_S,
        check=False,
    )


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with files of two kinds, a branch, a tag, a note, a stash and a submodule."""
    folder = tmp_path_factory.mktemp("git") / "base"
    folder.mkdir()
    (folder.parent / ".gitconfig").write_text(
        "[user]\n\tname = a\n\temail = a@a\n[protocol]\n\tallow = always"
    )
    script = """
        git init -q -b main .; printf '*.bin diff=t filter=t merge=t\n' >.gitattributes
        echo a >f; echo x >g.bin; git add -A; git commit -qm one; git init -q -b main ../s
        echo s >../s/g.bin; cp .gitattributes ../s; git -C ../s add -A; git -C ../s commit -qm one
        git submodule -q add ../s sub; echo b >f; echo y >g.bin; git commit -qam two; git tag -a v1 -m v1
        git notes add -m n; git branch side HEAD~1; git bundle create -q ../b.bundle HEAD
        echo t >f; git stash -q
    """
    run(script, folder)
    assert (folder / "sub/g.bin").is_file()
    return folder


@pytest.fixture
def copy(base: Path, tmp_path: Path) -> Path:
    """A copy of it, in a folder of its own."""
    for name in ("b.bundle", ".gitconfig"):
        shutil.copy(base.parent / name, tmp_path)
    shutil.copytree(base, tmp_path / "ws", symlinks=True)
    program = tmp_path / "program"
    program.write_text('#!/bin/sh\necho >>"$MARK"\n')
    program.chmod(0o755)
    return tmp_path / "ws"


def configure(copy: Path, settings: dict[str, str], *, folder: str = "") -> None:
    for key, value in settings.items():
        text = value.replace("{program}", str(copy.parent / "program")).replace("{base}", str(copy))
        run(f'git config {key} "$VALUE"', copy / folder, VALUE=text)


def is_run(command: str, copy: Path) -> bool:
    mark = copy.parent / "mark"
    mark.unlink(missing_ok=True)
    for name in ("f", "g.bin", "sub/g.bin"):  # git looks only at files that differ, or may
        (copy / name).write_text(f"{time.time_ns()}\n")
    for name in (".gitattributes", "sub/.gitattributes"):  # and writes the index where they do not
        os.utime(copy / name, ns=(time.time_ns(), time.time_ns() - 10**10))
    run(command, copy, MARK=str(mark))
    return mark.exists()


def is_reading(command: str, copy: Path) -> bool:
    facts = PathResolver(copy).resolve(shell_facts(command))
    return facts.certain and facts.effect is Effect.READ_ONLY


def commands() -> list[str]:
    return [command.strip() for line in COMMANDS.strip().split("\n") for command in line.split("|")]


def prepare(name: str, copy: Path) -> None:
    if name == "other references":
        (copy / ".git/objects/info/alternates").write_text(f"{copy.parent}/other/objects\n")
        shutil.copytree(copy / ".git", copy.parent / "other")
    if name == "missing objects":
        for object_ in ("HEAD~1:f", "HEAD~1:g.bin"):
            found = subprocess.check_output(["git", "rev-parse", object_], cwd=copy, text=True).strip()
            (copy / f".git/objects/{found[:2]}/{found[2:]}").unlink()
    if name in HOOKS:
        folder, is_link = HOOKS[name]
        hook = copy / folder / "post-index-change"
        hook.parent.mkdir(parents=True, exist_ok=True)
        place = copy.parent / "linked" if is_link else hook
        place.write_text('#!/bin/sh\necho >>"$MARK"\n')
        place.chmod(0o755)
        if is_link:
            hook.symlink_to(place)
    configure(copy, SETTINGS_WITH_PROGRAMS[name])


@pytest.mark.sample(4)
@git_needed
@pytest.mark.parametrize("name", SETTINGS_WITH_PROGRAMS)
def test_no_command_that_runs_the_program_of_a_setting_counts_as_reading(copy: Path, name: str) -> None:
    """Every command is run, as a control, and those that run nothing stay reading, but for a few."""
    everything = commands()
    before = {command for command in everything if is_reading(f"git {command}", copy)}
    assert len(before) > 0.9 * len(everything), "without such a setting they read"
    prepare(name, copy)
    run_it = {command for command in everything if is_run(f"git {command}", copy)}
    wrong = [command for command in run_it if is_reading(f"git {command}", copy)]
    assert not wrong
    asked = [command for command in before - run_it if not is_reading(f"git {command}", copy)]
    print(f"{name}: {len(run_it)} run it, {len(asked)} of {len(before - run_it)} others are asked: {asked}")
    always_run = {"core.fsmonitor", "textconv", "clean", "missing objects", *HOOKS}
    assert run_it or name not in always_run, "the control"


@pytest.mark.sample(4)
@git_needed
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_no_form_of_a_command_hides_the_program(copy: Path, form: str) -> None:
    short = ("status", "diff", "log -p", "show", "blame g.bin", "ls-files -m", "help git")
    assert all(is_reading(form.format(command), copy) for command in short)
    for settings in ({"core.fsmonitor": PROGRAM}, {"diff.t.textconv": PROGRAM}, {"man.viewer": "x"}):
        configure(copy, settings)
    configure(copy, {"man.x.cmd": PROGRAM})
    configure(copy, {"core.fsmonitor": PROGRAM, "diff.t.textconv": PROGRAM}, folder="sub")
    for command in short:
        if is_run(form.format(command), copy):
            assert not is_reading(form.format(command), copy)
        assert is_reading(form.format("remote -v"), copy)


def _in_submodule(copy: Path) -> None:
    configure(copy, {"core.fsmonitor": PROGRAM}, folder="sub")


def _in_repository_within(copy: Path) -> None:
    """One whose settings lie in it, and that is not a submodule by `.gitmodules`."""
    run("git init -q -b main own; cd own; git commit -q --allow-empty -m one; cd ..; git add own", copy)
    configure(copy, {"core.fsmonitor": PROGRAM}, folder="own")


def _included(copy: Path) -> None:
    configure(copy, {"include.path": "../more.cfg"})
    run('git config -f more.cfg core.fsmonitor "$VALUE"', copy, VALUE=PROGRAM)


def _included_on_condition(copy: Path) -> None:
    configure(copy, {"includeIf.onbranch:main.path": "../more.cfg"})
    run('git config -f more.cfg core.fsmonitor "$VALUE"', copy, VALUE=PROGRAM)


def _in_worktree_settings(copy: Path) -> None:
    configure(copy, {"extensions.worktreeConfig": "true"})
    run('git config --worktree core.fsmonitor "$VALUE"', copy, VALUE=PROGRAM)


def _moved_away(copy: Path) -> None:
    configure(copy, {"core.fsmonitor": PROGRAM})
    (copy / ".git").rename(copy / "gitdir")
    (copy / ".git").write_text("gitdir: gitdir\n")


def _above(copy: Path) -> None:
    configure(copy, {"core.fsmonitor": PROGRAM})
    (copy / ".git").rename(copy.parent / ".git")


def _split_index(copy: Path) -> None:
    run("git update-index --split-index", copy)
    _in_submodule(copy)


def _compressed_index(copy: Path) -> None:
    run("git update-index --index-version 4", copy)
    _in_submodule(copy)


PLACES = (
    *(_in_submodule, _in_repository_within, _included, _included_on_condition, _in_worktree_settings),
    *(_moved_away, _above, _split_index, _compressed_index),
)


@git_needed
@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__.strip("_"))
def test_settings_are_found_wherever_git_finds_them(copy: Path, place: object) -> None:
    assert is_reading("git status", copy)
    assert callable(place)
    place(copy)
    assert is_run("git status", copy), "the control"
    assert not is_reading("git status", copy)
    assert is_reading("git remote -v", copy)


@git_needed
def test_the_reason_names_the_setting_and_the_program(copy: Path) -> None:
    configure(copy, {"filter.t.clean": "python3 -m json.tool"})
    facts = PathResolver(copy).resolve(shell_facts("git status"))
    assert facts.doubts[:1] == (
        "a setting of git may have it run a program: filter.t.clean = 'python3 -m json.tool'",
    )
    assert PathResolver(copy).resolve(shell_facts("git log --oneline")).certain


@pytest.mark.parametrize(
    ("command", "is_known"),
    [
        *(("git -C $TMPDIR/x status", False), ("git -C ~/x log -p", False), ("git -C /tmp/x status", False)),
        *(('cd "$x" && git status', False), ("git -C /usr/share status", True), ("git -C no status", True)),
    ],
)
def test_folders_of_the_sandbox_are_asked_about(tmp_path: Path, command: str, is_known: bool) -> None:
    assert is_reading(command, tmp_path) is is_known


def test_settings_that_cannot_be_read_count(tmp_path: Path) -> None:
    def found() -> list[str]:
        return find_programs(str(tmp_path), ("fsmonitor",), root=str(tmp_path))

    config = tmp_path / ".git/config"
    config.parent.mkdir()
    config.write_text("[core]\n\tfsmonitor = true\n\tbare = false\n")
    assert found() == []
    config.write_text("[include]\n\tpath = ~/x\n")
    assert "leads to where a sandbox may write" in found()[0]
    config.write_text("[include]\n\tpath = /nowhere/x\n")
    assert "not there to be read" in found()[0]
    config.write_text("".join(f"[include]\n\tpath = {number}\n" for number in range(200)))
    assert "files of settings" in found()[0]
    config.unlink()
    os.mkfifo(config)
    (tmp_path / ".git/index").mkdir()
    assert any("index cannot be read" in one for one in found())


def test_a_command_that_is_not_gits_looks_for_no_settings(tmp_path: Path) -> None:
    facts = shell_facts("ls -l; cat a | wc -l")
    assert facts.absent == ()
    assert isinstance(facts, Facts)


# ---- hooks


@git_needed
@pytest.mark.parametrize("name", HOOKS)
def test_no_hook_runs_for_git_status_but_without_the_environment(copy: Path, name: str) -> None:
    prepare(name, copy)
    for command in ("git status", "git status -s", "git -C . status -vv", "bash -c 'git status'"):
        assert not is_run(command, copy)
        assert is_reading(command, copy)
    for command in ("env -i git status", "env -u X git status", "env - git status", "(exec -c git status)"):
        assert not is_reading(f"MARK=1 {command}", copy)
        assert not is_reading(command, copy)
    assert is_run('env -i MARK="$MARK" HOME="$HOME" git status', copy), "the control"


def make_hook(path: Path, text: str = "exit 0") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def hooks_of(facts: Facts) -> set[str]:
    return {f"{hooks.folder}/{name}" for hooks in facts.git_programs for name in hooks.hooks}


@git_needed
@pytest.mark.parametrize("name", HOOKS)
def test_a_command_that_changes_something_names_its_hooks_and_stays_certain(copy: Path, name: str) -> None:
    prepare(name, copy)
    facts = PathResolver(copy).resolve(shell_facts("git commit -qam x"))
    hook = f"{HOOKS[name][0]}/post-index-change"
    if HOOKS[name][1]:  # to the temporary folder, where programs of a sandbox may write
        assert not facts.certain
        assert "where a sandbox may write" in facts.doubts[0]
        return
    assert facts.certain
    assert hooks_of(facts) == {hook}
    digests = dict(facts.scripts)
    assert digests[hook]
    (copy / hook).resolve().write_text("#!/bin/sh\nexit 1\n")
    changed = PathResolver(copy).resolve(shell_facts("git commit -qam x"))
    assert dict(changed.scripts)[hook] not in {"", digests[hook]}


def test_hooks_that_git_does_not_run_are_not_named(tmp_path: Path) -> None:
    root = tmp_path / "ws"
    for name in ("pre-push", "pre-receive", "commit-msg.sample"):
        make_hook(root / ".git/hooks" / name)
    make_hook(root / ".git/hooks/pre-commit").chmod(0o644)
    make_hook(root / ".git/hooks/commit-msg")
    (root / ".git/config").write_text("")
    resolve = PathResolver(root).resolve
    assert hooks_of(resolve(shell_facts("git commit -m x"))) == {".git/hooks/commit-msg"}
    assert hooks_of(resolve(shell_facts("git push o main"))) == {".git/hooks/pre-push"}
    assert hooks_of(resolve(shell_facts("git add f"))) == set()
    assert hooks_of(resolve(shell_facts("git log"))) == set()


def test_a_hook_outside_the_workspace_has_a_digest(tmp_path: Path) -> None:
    hook = make_hook(tmp_path / "own" / "pre-commit")
    assert digest_of_program(str(hook)) not in {
        "",
        digest_of_program(str(make_hook(tmp_path / "b", "exit 1"))),
    }
    assert digest_of_program(str(tmp_path / "none")) == ""


def test_hooks_that_a_call_can_choose_or_write_are_doubts(tmp_path: Path) -> None:
    root, home = tmp_path / "ws", tmp_path / "home"
    (root / ".git").mkdir(parents=True)
    home.mkdir()
    make_hook(root / "planted/pre-commit")

    def doubts() -> list[str]:
        found = find_started(str(root), ("pre-commit",), (), root=str(root), home=str(home))
        return [hook.doubt for hook in found]

    config = root / ".git/config"
    config.write_text("[core]\n\thooksPath = planted\n")
    assert doubts() == [""]  # the person's own setting, whose folder no call can write
    config.write_text("")
    assert doubts() == []
    (home / ".gitconfig").write_text("[core]\n\thooksPath = planted\n")
    assert doubts() == ["a call may have chosen the hook planted/pre-commit that git runs"]
    (home / ".gitconfig").write_text("[include]\n\tpath = ~/x\n")
    assert "leads to where a sandbox may write" in doubts()[0]
    (home / ".gitconfig").write_text("[core]\n\thooksPath = /tmp/own/hooks\n")
    assert doubts() == ["git may run hooks in /tmp/own/hooks, where a sandbox may write"]
    facts = PathResolver(root, home_of=lambda: str(home)).resolve(shell_facts("git commit -m x"))
    assert not facts.certain
    assert facts.doubts[0] == doubts()[0]


@pytest.mark.parametrize("command", ["git -C $TMPDIR/x commit -m x", 'cd "$x" && git commit -m x'])
def test_hooks_in_folders_that_nobody_knows_are_doubts(tmp_path: Path, command: str) -> None:
    facts = PathResolver(tmp_path).resolve(shell_facts(command))
    assert not facts.certain
    assert "hooks" in facts.doubts[0]
