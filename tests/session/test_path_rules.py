"""Rules about paths against every spelling of them, in a real sandbox.

A generator makes calls that read, or change, what a rule denies: files under other names, by links, by
patterns, variables and other folders, and programs that open what they like. Where the level enforces the
rule, no call has the effect: at `isolated` none at all, at `confined` and `guarded` no command that only
reads, and what a call writes is put back and said. Elsewhere no call whose paths can be read has it without a
question.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import shutil
import subprocess
import uuid
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from aisotools.core.exceptions import SandboxError
from aisotools.core.protocols import Approver
from aisotools.core.types import Approval, ApprovalRequest, Decision, Effect, ToolCall, ToolResult
from aisotools.policy.approvers import AllowAll
from aisotools.policy.rules import Policy, Rule
from aisotools.policy.shell.classify import shell_facts
from aisotools.sandbox.limits import Limits
from aisotools.sandbox.process import spawn
from aisotools.session.event_log import EventLog
from aisotools.session.path_rules import PathRules
from aisotools.session.session import Session
from aisotools.testing.fakes import FakeSandbox
from aisotools.tools.function import tool
from aisotools.workspace.protected import ProtectedFiles
from tests.conftest import OpenSession
from tests.waiting import eventually

SECRET = "TOPSECRET-7f3a"
KEY = "secrets/key"

Call = tuple[str, dict[str, Any]]

DENYING = Policy(rules=[Rule(when={"reads": "secrets/*"}, decision=Decision.DENY)])


def spellings(path: str) -> list[str]:
    """Ways to name a path of the workspace in a shell."""
    folder, _, name = path.partition("/")
    prefixes = [
        "",
        "./",
        ".//",
        "/workspace/",
        "$PWD/",
        "${PWD}/",
        "$WORKSPACE/",
        "${WORKSPACE}/",
        "other/../",
        "~+/",
        "~+0/",
    ]
    prefixes += ["other/./../", "$PWD/other/../", "{ws}/", "{ws}/other/../"]
    folders = [folder, f"'{folder}'", f'"{folder}"', f"{folder[0]}*", f"[{folder[0]}]{folder[1:]}"]
    folders += [
        f"{folder[:-1]}?",
        f"{folder}/.",
        f"{folder}/../{folder}",
        f"{{{folder},none}}",
        f"\\{folder}",
    ]
    folders += ["link", "other/up"]
    names = [name, f"'{name}'", f"{name[0]}*", f"{name[:-1]}?", f"./{name}", f"[{name[0]}]{name[1:]}", "*"]
    made = [
        f"{prefix}{one}/{last}"
        for prefix, one, last in itertools.product(prefixes, folders, names)
        # bash expands nothing within quotes, and braces before anything else
    ]
    return [*dict.fromkeys(made), "file", "./file", "other/../file", "$PWD/file", "fil*"]


READERS = [
    "cat {path}",
    "cat < {path}",
    "head -n 1 {path}",
    "grep -h . {path}",
    "while read -r line; do echo $line; done < {path}",
    "f={path}; cat $f",
    "for f in {path}; do cat $f; done",
    "for f in {path}; do cat < $f; done",
    "cat $(echo {path})",
    "tail {path} | cat",
    "(cat {path})",
    "true && cat {path} || false",
    "bash -c 'cat {path}'",
    "sort {path}",
]
MOVERS = [
    "cd secrets && cat key",
    "cd secrets; cat key",
    "cd secrets || exit; cat ./key",
    "pushd secrets > /dev/null && cat key",
    "(cd secrets && cat key)",
    "cd other && cat ../secrets/key",
    "cd other && cat up/key",
    "cd link && cat key",
    "cd ./other/up && cat k*",
    "cd $PWD/secrets && cat key",
    "if true; then cd secrets; fi; cat key",
    "for d in secrets; do cd $d; cat key; done",
    "eval 'cd secrets'; cat key",
    "grep -rh . .",
    "grep -rh . secrets",
    "find . -name key -exec cat {} +",
    "find . -type f | xargs cat",
    "cat */key",
    "cat */*",
    "tar cf - . | tr -d '\\0'",
    "d=secrets; cat $d/key",
    "env -C secrets cat key",
]
PROGRAMS: list[Call] = [
    ("python", {"code": "print(open('secrets/key').read())"}),
    ("python", {"code": "import os; os.chdir('secrets'); print(open('key').read())"}),
    (
        "python",
        {"code": "import subprocess as s; print(s.run(['cat', 'secrets/key'], capture_output=True).stdout)"},
    ),
    ("python", {"code": "import os; os.rename('secrets', 'moved'); print(open('moved/key').read())"}),
    ("python", {"code": "import os; os.link('secrets/key', 'hard'); print(open('hard').read())"}),
    ("python", {"code": "import shutil; shutil.copytree('secrets', 'copy'); print(open('copy/key').read())"}),
    ("file", {"operation": "read", "path": "secrets/key"}),
    ("file", {"operation": "read", "path": "./other/../secrets/key"}),
    ("file", {"operation": "read", "path": "/workspace/secrets/key"}),
    ("file", {"operation": "read", "path": "{ws}/secrets/key"}),
    ("file", {"operation": "read", "path": "link/key"}),
    ("file", {"operation": "read", "path": "file"}),
    ("file", {"operation": "read", "path": "other/up/key"}),
    ("file", {"operation": "search", "path": ".", "pattern": "TOP"}),
    ("file", {"operation": "search", "path": "secrets", "pattern": "TOP"}),
    ("sandbox_read", {"path": "link/../secrets/key"}),
]


def reading_calls(ws: Path, count: int, seed: int) -> Iterator[Call]:
    chooser = random.Random(seed)
    commands = [*MOVERS]
    paths = spellings(KEY)
    chooser.shuffle(paths)
    commands += [
        chooser.choice(READERS).replace("{path}", path) for path in paths[: max(0, count - len(MOVERS))]
    ]
    for command in commands:
        yield "sandbox_bash", {"command": command.replace("{ws}", str(ws))}
    for name, arguments in PROGRAMS:
        yield name, {key: value.replace("{ws}", str(ws)) for key, value in arguments.items()}


WRITERS = [
    "echo changed > {path}",
    "echo changed >> {path}",
    "printf changed | tee {path}",
    "cp notes {path}",
    "mv notes {path}; cp {path} notes",
    "rm -f {path}",
    "truncate -s 0 {path}",
    "sed -i s/a/b/ {path}; echo changed > {path}",
    "dd if=notes of={path} status=none",
    "ln -sf notes {path}",
]
WRITING_PROGRAMS: list[Call] = [
    ("sandbox_bash", {"command": "cd secrets && echo changed > key"}),
    ("sandbox_bash", {"command": "cd secrets; rm key"}),
    ("sandbox_bash", {"command": "rm -rf secrets"}),
    ("sandbox_bash", {"command": "rm -rf ./*"}),
    ("sandbox_bash", {"command": "mv secrets gone"}),
    ("sandbox_bash", {"command": "find secrets -type f -delete"}),
    ("sandbox_bash", {"command": "find . -name key -exec rm {} +"}),
    ("sandbox_bash", {"command": "for f in secrets/*; do echo changed > $f; done"}),
    ("python", {"code": "open('secrets/key', 'w').write('changed')"}),
    ("python", {"code": "import shutil; shutil.rmtree('secrets')"}),
    ("python", {"code": "import os; os.rename('secrets', 'gone')"}),
    ("python", {"code": "import os; os.chmod('secrets', 0); os.replace('notes', 'secrets/key')"}),
    ("sandbox_write", {"path": "secrets/key", "content": "changed"}),
    ("sandbox_write", {"path": "link/key", "content": "changed"}),
    ("sandbox_write", {"path": "/workspace/secrets/key", "content": "changed"}),
    ("file", {"operation": "delete", "path": "other/up/key"}),
]


def writing_calls(ws: Path, count: int, seed: int) -> Iterator[Call]:
    chooser = random.Random(seed)
    paths = spellings(KEY)
    chooser.shuffle(paths)
    for path in paths[:count]:
        command = chooser.choice(WRITERS).replace("{path}", path).replace("{ws}", str(ws))
        yield "sandbox_bash", {"command": command}
    yield from WRITING_PROGRAMS


def lay_out(workspace: Path) -> None:
    (workspace / "secrets").mkdir(parents=True)
    (workspace / "other").mkdir()
    (workspace / KEY).write_text(f"{SECRET}\n")
    (workspace / "notes").write_text("notes\n")
    (workspace / "link").symlink_to("secrets")
    (workspace / "other" / "up").symlink_to("../secrets")
    (workspace / "file").symlink_to(KEY)


def has(workspace: Path, content: str) -> bool:
    """Return whether the secret has this content; while it is put back there may be none."""
    try:
        return (workspace / KEY).read_text() == content
    except FileNotFoundError:
        return False


def needs(level: str) -> None:
    if not any(probe.name == level and probe.ok for probe in spawn.detection().probes):
        pytest.skip(f"this machine cannot hold the level {level}")


class Questions:
    """Denies, and keeps what was asked."""

    def __init__(self) -> None:
        self.asked: list[ApprovalRequest] = []

    async def ask(self, request: ApprovalRequest) -> Approval:
        self.asked.append(request)
        return Approval("deny")


async def call(session: Session, name: str, arguments: dict[str, Any]) -> ToolResult:
    (result,) = await session.call_many([ToolCall(uuid.uuid4().hex, name, arguments, origin="model")])
    return result


COUNTS = [
    pytest.param(60, id="some"),
    pytest.param(300, id="many", marks=pytest.mark.slow),
]


def denying(
    open_session: OpenSession, folder: Path, key: str, level: str, approver: Approver
) -> tuple[Session, Path]:
    """A session at a level, with a rule that denies `secrets/*` for a key of facts; and its workspace."""
    needs(level)
    workspace = folder / "workspace"
    lay_out(workspace)
    rule = Rule(when={key: "secrets/*"}, decision=Decision.DENY)
    policy = Policy(mode="auto", rules=[rule])
    return open_session(policy=policy, level=level, approver=approver), workspace


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("key", ["paths", "reads"])
async def test_no_call_reads_what_a_rule_denies_where_that_is_enforced(
    real_session: OpenSession, tmp_path: Path, key: str, count: int
) -> None:
    session, workspace = denying(real_session, tmp_path, key, "isolated", AllowAll())
    for name, arguments in reading_calls(workspace, count, seed=11):
        result = await call(session, name, arguments)
        assert SECRET not in result.content, (name, arguments)
        assert "fault in aisotools" not in result.content, (name, arguments)
    assert session.not_enforced == ()


@pytest.mark.parametrize("count", COUNTS)
async def test_no_call_changes_what_a_rule_denies_where_that_is_enforced(
    real_session: OpenSession, tmp_path: Path, count: int
) -> None:
    session, workspace = denying(real_session, tmp_path, "writes", "isolated", AllowAll())
    for name, arguments in writing_calls(workspace, count, seed=12):
        result = await call(session, name, arguments)
        assert (workspace / KEY).read_text() == f"{SECRET}\n", (name, arguments, result.content)
    read = await call(session, "sandbox_bash", {"command": "cat secrets/key"})
    assert SECRET in read.content


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("level", ["confined", "guarded"])
async def test_a_call_whose_paths_can_be_read_does_not_pass_by_a_rule(
    real_session: OpenSession, tmp_path: Path, level: str, count: int
) -> None:
    """Without enforcement: denied, or asked about; only code in Python can open what it likes."""
    session, workspace = denying(real_session, tmp_path, "paths", level, Questions())
    for name, arguments in reading_calls(workspace, count, seed=13):
        if name == "python":
            continue
        result = await call(session, name, arguments)
        assert SECRET not in result.content, (name, arguments)
    (sentence,) = session.not_enforced
    assert f"level {level} cannot hide a path" in sentence


async def test_each_of_these_calls_reads_it_without_the_rule(
    real_session: OpenSession, tmp_path: Path
) -> None:
    """The control: the calls do what they are made for."""
    workspace = tmp_path / "workspace"
    lay_out(workspace)
    session = real_session(policy=Policy(mode="auto"), approver=AllowAll())
    read = made = 0
    for name, arguments in reading_calls(workspace, 80, seed=14):
        result = await call(session, name, arguments)
        read += SECRET in result.content
        made += 1
        if not (workspace / KEY).exists():
            await session.undo()
    assert read >= 0.85 * made


@pytest.mark.sample(2)
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("key", ["paths", "reads"])
@pytest.mark.parametrize("level", ["confined", "guarded"])
async def test_no_command_that_only_reads_gets_what_a_rule_denies(
    real_session: OpenSession, tmp_path: Path, level: str, key: str, count: int
) -> None:
    """Whoever is asked allows everything: what a command cannot read, the kernel refuses."""
    session, workspace = denying(real_session, tmp_path, key, level, AllowAll())
    held = 0
    for name, arguments in reading_calls(workspace, count, seed=15):
        if name != "sandbox_bash" or shell_facts(arguments["command"]).effect is not Effect.READ_ONLY:
            continue
        result = await call(session, name, arguments)
        assert SECRET not in result.content, (name, arguments)
        held += "Permission denied" in result.content
    assert held >= 10
    read = await call(session, "sandbox_bash", {"command": "cat notes"})
    assert "notes" in read.content


@pytest.mark.sample(2)
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("key", ["paths", "writes"])
@pytest.mark.parametrize("level", ["confined", "guarded"])
async def test_a_change_that_a_rule_denies_is_put_back_and_said(
    real_session: OpenSession, tmp_path: Path, level: str, key: str, count: int
) -> None:
    session, workspace = denying(real_session, tmp_path, key, level, AllowAll())
    put_back = 0
    for name, arguments in (*writing_calls(workspace, count, seed=16), *CODE_THAT_WRITES):
        before = (workspace / KEY).stat().st_ctime_ns
        result = await call(session, name, arguments)
        assert (workspace / KEY).read_text() == f"{SECRET}\n", (name, arguments, result.content)
        assert [one.name for one in (workspace / "secrets").iterdir()] == ["key"], (name, arguments)
        if (workspace / KEY).stat().st_ctime_ns != before:
            assert result.is_error, (name, arguments)
            assert "files that a rule of the policy denies to write: 'secrets" in result.content
            put_back += 1
    assert put_back >= len(CODE_THAT_WRITES)


CODE_THAT_WRITES: list[Call] = [
    ("python", {"code": "import os; os.chdir('secrets'); open('ke' + 'y', 'w').write('changed')"}),
    ("python", {"code": "open('secrets/new', 'w').write('new'); open('secrets/key', 'a').write('more')"}),
    ("python", {"code": "import os; os.rename('secrets', 'moved'); os.symlink('moved', 'secrets')"}),
    ("python", {"code": "import os; os.link('secrets/key', 'hard'); open('hard', 'w').write('changed')"}),
    ("sandbox_bash", {"command": "p=$(echo secrets/key); echo changed > $p"}),
    ("sandbox_bash", {"command": "python3 -c \"open('secrets/key', 'w').write('changed')\""}),
]


async def test_each_of_these_calls_changes_it_without_the_rule(
    real_session: OpenSession, tmp_path: Path
) -> None:
    """The control: the calls do what they are made for."""
    workspace = tmp_path / "workspace"
    lay_out(workspace)
    session = real_session(policy=Policy(mode="auto"), approver=AllowAll())
    changed = made = 0
    for name, arguments in (*writing_calls(workspace, 60, seed=17), *CODE_THAT_WRITES):
        await call(session, name, arguments)
        try:
            changed += (workspace / KEY).read_text() != f"{SECRET}\n"
        except (FileNotFoundError, PermissionError):  # removed, or without the right to read
            changed += 1
        made += 1
        subprocess.run(["chmod", "-R", "u+rwX", workspace], check=True)  # noqa: ASYNC221 - nothing else runs
        for left in ("secrets", "moved", "gone", "hard", "other", "link", "file"):
            place = workspace / left
            if place.is_dir() and not place.is_symlink():
                shutil.rmtree(place)
            else:
                place.unlink(missing_ok=True)
        lay_out(workspace)
    assert changed >= 0.75 * made


READ_BY_MADE_NAMES = [
    ["ln -s ../secrets/key other/y; cat other/y"],
    ["mkdir d; ln -s .. d/up2; cat d/up2/secrets/key"],
    ["mkdir w; ln -s ../secrets w/s; cd w/s; cat key"],
    ["cp -R other o2; cat o2/up/key"],
    ["mv other o3; cat o3/up/key; mv o3 other"],
    ["ln -s ../secrets other/z", "cat other/z/key"],
    ["cp -R other o4", "cat o4/up/key"],
]


@pytest.mark.parametrize("decision", [Decision.DENY, Decision.ASK])
@pytest.mark.parametrize("level", ["confined", "guarded"])
async def test_names_that_a_command_makes_do_not_pass_by_a_rule(
    real_session: OpenSession, tmp_path: Path, level: str, decision: Decision
) -> None:
    needs(level)
    workspace = tmp_path / "workspace"
    lay_out(workspace)
    policy = Policy(mode="auto", rules=[Rule(when={"paths": "secrets/*"}, decision=decision)])
    session = real_session(policy=policy, level=level, approver=Questions())
    for commands in READ_BY_MADE_NAMES:
        results = [await call(session, "sandbox_bash", {"command": command}) for command in commands]
        assert not [result for result in results if SECRET in result.content], commands
        assert "denied" in [result.error_kind for result in results], commands
    await session.close()
    trusting = real_session(policy=Policy(mode="auto"), level=level, approver=AllowAll())
    for commands in READ_BY_MADE_NAMES:
        for command in commands:
            result = await call(trusting, "sandbox_bash", {"command": command})
        assert SECRET in result.content, commands  # the control: it is read without the rule


async def test_files_below_a_rule_that_something_left_running_writes_are_put_back(
    real_session: OpenSession, tmp_path: Path
) -> None:
    session, workspace = denying(real_session, tmp_path, "writes", "confined", AllowAll())
    command = "p=$(echo secrets/key); while :; do echo changed > $p; sleep 0.05; done"
    await call(session, "sandbox_bash", {"command": command, "background": True})
    for _ in range(3):
        await eventually(lambda: has(workspace, "changed\n"))
        await eventually(lambda: has(workspace, f"{SECRET}\n"))
    await session.restart()
    await eventually(lambda: has(workspace, f"{SECRET}\n"))


async def test_a_tool_of_the_person_that_only_reads_cannot_read_it_either(
    real_session: OpenSession, tmp_path: Path
) -> None:
    """It names no path that a rule could be about, and runs in a reader."""
    needs("confined")
    lay_out(tmp_path / "workspace")
    results = []
    for rules in ([], [Rule(when={"reads": "secrets/*"}, decision=Decision.DENY)]):
        session = real_session(policy=Policy(mode="auto", rules=rules), level="confined", approver=AllowAll())
        session.registry.register(peek)
        results.append(await call(session, "peek", {}))
        await session.close()
    assert SECRET in results[0].content
    assert SECRET not in results[1].content
    assert "PermissionError" in results[1].content


@tool(effect=Effect.READ_ONLY)
def peek() -> str:
    """Return a secret."""
    return Path("secrets", "key").read_text()


@pytest.mark.parametrize("level", ["confined", "guarded"])
@pytest.mark.parametrize("move", ["mv secrets moved", "mv secrets/key moved", "ln secrets/key moved"])
async def test_a_file_that_must_not_be_read_is_not_moved_unasked(
    real_session: OpenSession, tmp_path: Path, level: str, move: str
) -> None:
    session, _ = denying(real_session, tmp_path, "reads", level, Questions())
    await call(session, "sandbox_bash", {"command": move})
    result = await call(session, "sandbox_bash", {"command": "cat moved moved/key"})
    assert SECRET not in result.content


GIT_READERS = {
    "git show HEAD:secrets/key": Decision.DENY,
    "git show HEAD:./secrets/key": Decision.DENY,
    "git cat-file -p HEAD:secrets/key": Decision.DENY,
    "git cat-file blob HEAD:secrets/key": Decision.DENY,
    "git show :secrets/key": Decision.DENY,
    "git blame secrets/key": Decision.DENY,
    "git log -p -- secrets/key": Decision.DENY,
    "git diff --no-index /dev/null secrets/key": Decision.DENY,
    "git grep TOP -- secrets/key": Decision.DENY,
    "cd other && git show HEAD:secrets/key": Decision.DENY,
    "git -C other show HEAD:secrets/key": Decision.DENY,
    "bash -c 'git show HEAD:secrets/key'": Decision.DENY,
    "git show HEAD": Decision.ASK,
    "git show $(git rev-parse HEAD:secrets/key)": Decision.ASK,
    "git log -p": Decision.ASK,
    "git log --patch": Decision.ASK,
    "git log -S TOPSECRET": Decision.ASK,
    "git grep TOP": Decision.ASK,
    "git grep TOP HEAD": Decision.ASK,
    "git diff HEAD~1": Decision.ASK,
    "git log -p -- secrets": Decision.ASK,
    "git log -p -- notes ':(glob)s*/key'": Decision.ASK,
    "git archive HEAD": Decision.ASK,
    "git cat-file --batch-all-objects --batch": Decision.ASK,
    "git stash show -p": Decision.ASK,
    "git mv secrets moved": Decision.ASK,
    "git worktree add elsewhere": Decision.ASK,
    "cp -r .git copy": Decision.ASK,
    "cat .git/objects/*/*": Decision.ASK,
}
GIT_ORDINARY = [
    "git log -3",
    "git log --oneline --stat",
    "git status -sb",
    "git show HEAD:notes",
    "git diff -- notes",
    "git log -p -- notes",
    "git branch",
    "git ls-files",
    "git commit -m x",
]


@pytest.mark.parametrize("level", ["isolated", "confined", "guarded"])
async def test_git_shows_nothing_of_what_a_rule_denies_unasked(
    real_session: OpenSession, tmp_path: Path, level: str
) -> None:
    """The objects of a repository hold copies, which no level hides."""
    session, workspace = denying(real_session, tmp_path, "reads", level, AllowAll())
    await call(session, "sandbox_bash", {"command": "git init -q ."})
    commit = ["git", "-c", "user.name=a", "-c", "user.email=a@b.example", "commit", "-qm", "x"]
    for step in (["git", "add", "."], commit, [*commit, "--allow-empty"]):
        await asyncio.to_thread(subprocess.run, step, cwd=workspace, check=True)
    assert any("what a repository of git has recorded of 'secrets/*'" in one for one in session.not_enforced)
    for command, decision in GIT_READERS.items():
        explained = session.explain(
            ToolCall("1", "sandbox_bash", {"command": command}, origin="model")
        ).evaluation
        assert explained.decision >= decision, (command, explained)
        if decision is Decision.DENY:
            assert SECRET not in (await call(session, "sandbox_bash", {"command": command})).content
    for command in GIT_ORDINARY:
        explained = session.explain(
            ToolCall("1", "sandbox_bash", {"command": command}, origin="model")
        ).evaluation
        assert explained.decision is Decision.ALLOW, (command, explained)
    shown = await call(session, "sandbox_bash", {"command": "git show HEAD~1"})
    assert SECRET in shown.content, "the control: once it is allowed, git shows it"


@pytest.mark.parametrize("glob", ["link/*", "file", "other/up/*", "link/key"])
async def test_a_rule_on_a_link_is_enforced_on_what_it_leads_to(
    real_session: OpenSession, tmp_path: Path, glob: str
) -> None:
    needs("isolated")
    workspace = tmp_path / "workspace"
    lay_out(workspace)
    rule = Rule(when={"reads": glob}, decision=Decision.DENY)
    session = real_session(policy=Policy(mode="auto", rules=[rule]), level="isolated", approver=AllowAll())
    result = await call(session, "python", {"code": "print(open('secr' + 'ets/key').read())"})
    assert "PermissionError" in result.content
    assert session.not_enforced == ()
    assert (await call(session, "sandbox_bash", {"command": "cat secrets/key"})).error_kind == "denied"


async def test_a_rule_on_a_link_that_leads_out_is_a_gap_and_the_session_starts(
    real_session: OpenSession, tmp_path: Path
) -> None:
    needs("isolated")
    lay_out(tmp_path / "workspace")
    (tmp_path / "workspace" / "out").symlink_to("/usr")
    rule = Rule(when={"reads": "out/*"}, decision=Decision.DENY)
    session = real_session(policy=Policy(mode="auto", rules=[rule]), level="isolated", approver=AllowAll())
    assert not (await call(session, "python", {"code": "1"})).is_error
    assert "that leads out of the workspace" in session.not_enforced[0]


@pytest.mark.parametrize("level", ["isolated", "confined"])
async def test_a_hard_link_is_denied_like_the_file(
    real_session: OpenSession, tmp_path: Path, level: str
) -> None:
    needs(level)
    workspace = tmp_path / "workspace"
    lay_out(workspace)
    (workspace / "pub").mkdir()
    (workspace / "pub" / "hard[1]").hardlink_to(workspace / KEY)
    session = real_session(policy=DENYING, level=level, approver=AllowAll())
    for command in ("cat pub/hard*", "ln pub/hard* x; cat x", "grep -r . pub", "grep -r . ."):
        assert SECRET not in (await call(session, "sandbox_bash", {"command": command})).content, command
    read = await call(session, "file", {"operation": "read", "path": "pub/hard[1]"})
    assert read.error_kind == "denied"
    assert all("hard links" not in one for one in session.not_enforced)


async def test_a_hard_link_that_is_not_found_is_a_gap(real_session: OpenSession, tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    lay_out(workspace)
    (tmp_path / "elsewhere").hardlink_to(workspace / KEY)
    session = real_session(policy=DENYING, approver=AllowAll())
    await call(session, "python", {"code": "1"})
    assert any("1 further names (hard links) that were not found" in one for one in session.not_enforced)


async def test_a_question_about_code_says_what_is_not_enforced(
    real_session: OpenSession, tmp_path: Path
) -> None:
    needs("confined")
    approver = Questions()
    lay_out(tmp_path / "workspace")
    rule = Rule(when={"reads": "secrets/*"}, decision=Decision.DENY)
    session = real_session(policy=Policy(rules=[rule]), level="confined", approver=approver)
    await call(session, "python", {"code": "1"})
    assert any(
        "the sandbox can reach 'secrets/*' all the same" in reason for reason in approver.asked[0].reasons
    )


# ---- commands that name what a rule denies, whatever they do with it

NAMING = [
    "frobnicate {path}",
    "frobnicate --input={path} -v",
    "frobnicate -i{path}",
    "frobnicate a b c {path}",
    "true && frobnicate {path} | cat",
    "env X=1 frobnicate {path}",
    "xargs frobnicate {path} < other/list",
    "timeout 5 frobnicate {path}",
    "for f in {path}; do frobnicate $f; done",
    "for f in {path}; do frobnicate < $f; done",
    "F={path}; frobnicate $F",
    "set -- {path}; frobnicate $1",
    "A={path} frobnicate",
    "export A={path}; frobnicate",
    "echo {path} | xargs frobnicate",
    "git add {path}",
    "patch -i {path}",
    "patch -d secrets -i key",
    "patch -dsecrets -p1 -ikey",
    "patch --directory=secrets --input=key",
    "cd other && patch -d .. -i secrets/key",
    "cd other && frobnicate ../secrets/key",
    "./frobnicate.py {path}",
    "tar cf x.tar {path}",
    "tar -cf x.tar -C secrets key",
    "tar --create --file=x.tar --directory=secrets key",
    "bsdtar cf - {path} | base64",
    "zip x.zip {path}",
    "jar cf x.jar {path}",
    "make -C secrets key",
    "python3 -c \"print(open('{path}').read())\"",
    "perl -e 'open F, \"{path}\"; print <F>'",
    "node -e 'console.log(fs.readFileSync(`{path}`))'",
    "ruby -e 'puts File.read(\"{path}\")'",
    "sqlite3 :memory: \".read '{path}'\"",
]
WAYS = ["secrets/key", "other/../secrets/key", "$PWD/secrets/key", "sec*/key", "link/key", "file"]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    workspace = tmp_path / "workspace"
    lay_out(workspace)
    return workspace


def decision_on(session: Session, command: str) -> Decision:
    made = ToolCall(id=uuid.uuid4().hex, name="sandbox_bash", arguments={"command": command})
    return session.explain(made).evaluation.decision


@pytest.mark.parametrize("key", ["paths", "reads"])
async def test_a_denied_path_is_denied_to_every_command_that_names_it(
    real_session: OpenSession, place: Path, key: str
) -> None:
    del place
    session = real_session(
        policy=Policy(mode="auto", rules=(Rule(when={key: "secrets/*"}, decision=Decision.DENY),))
    )
    await session.call("sandbox_bash", {"command": "true"})
    asked = []
    for command in NAMING:
        ways = WAYS if "{path}" in command and "{path}'" not in command else WAYS[:1]
        for way in ways:
            if ("-i{" in command or "'" in command or "--" in command) and ("*" in way or "$" in way):
                continue  # bash expands nothing there, or the program gets another text
            if decision_on(session, command.replace("{path}", way)) is not Decision.DENY:
                asked.append(command.replace("{path}", way))
    assert asked == []


async def test_no_rule_that_allows_a_program_lets_it_name_a_denied_path(
    real_session: OpenSession, place: Path
) -> None:
    del place
    deny = Rule(when={"paths": "secrets/*"}, decision=Decision.DENY)
    allow = Rule(when={"commands": "frobnicate*", "certain": False}, decision=Decision.ALLOW)
    session = real_session(policy=Policy(mode="auto", rules=(allow, deny)))
    await session.call("sandbox_bash", {"command": "true"})
    assert decision_on(session, "frobnicate notes") is Decision.ALLOW
    assert decision_on(session, "frobnicate secrets/key") is Decision.DENY


async def test_a_word_that_names_nothing_and_a_rule_about_writing_deny_no_command(
    real_session: OpenSession, place: Path
) -> None:
    (place / "data").mkdir()
    (place / "data" / "raw.csv").write_text("1")
    rules = (
        Rule(when={"writes": "data/*"}, decision=Decision.DENY),
        Rule(when={"paths": "vault/*"}, decision=Decision.DENY),
    )
    session = real_session(policy=Policy(mode="auto", rules=rules))
    await session.call("sandbox_bash", {"command": "true"})
    for command in ("frobnicate data/raw.csv", "python3 train.py data/raw.csv", "frobnicate vault/none"):
        assert decision_on(session, command) is Decision.ASK, command
    (place / "vault").mkdir()
    (place / "vault" / "none").write_text("1")
    assert decision_on(session, "frobnicate vault/none") is Decision.DENY


async def test_a_cell_that_has_a_denied_path_in_quotes_is_denied(
    real_session: OpenSession, place: Path
) -> None:
    del place
    session = real_session(
        policy=Policy(mode="auto", rules=(Rule(when={"reads": "secrets/*"}, decision=Decision.DENY),))
    )
    await session.call("sandbox_bash", {"command": "true"})
    for code in ("open('secrets/key')", 'x = 1\nPath("link/key")', "read(f'secrets/key')"):
        made = ToolCall(id=uuid.uuid4().hex, name="python", arguments={"code": code})
        assert session.explain(made).evaluation.decision is Decision.DENY, code


# ---- the rules of one session, without a sandbox


class Following(FakeSandbox):
    """Notes which paths it is to deny; fails while `problem` says why."""

    def __init__(self, workspace: Path) -> None:
        spec = spawn.WorkerSpec(level="isolated", workspace=str(workspace), limits=Limits())
        super().__init__(spec, EventLog())
        self.denied: list[tuple[tuple[str, ...], tuple[str, ...]]] = []
        self.problem = ""
        self.replaced_paths: Collection[str] = ()

    async def deny_paths(self, unreadable: Sequence[str], unwritable: Sequence[str]) -> Collection[str]:
        if self.problem:
            raise SandboxError(self.problem)
        self.denied.append((tuple(unreadable), tuple(unwritable)))
        replaced, self.replaced_paths = self.replaced_paths, ()
        return replaced


def connected(folder: Path, policy: Policy) -> tuple[PathRules, Following, Path]:
    workspace = folder / "workspace"
    lay_out(workspace)
    rules, sandbox = PathRules(workspace, "isolated"), Following(workspace)
    rules.follow(policy)
    rules.connect(sandbox, ProtectedFiles(workspace, folder / "quarantine"))
    return rules, sandbox, workspace


async def test_the_sandbox_has_to_follow_only_what_has_changed(tmp_path: Path) -> None:
    rules, sandbox, workspace = connected(tmp_path, DENYING)
    assert await rules.enforce("python") == ""
    (workspace / "notes").write_text("changed")
    assert await rules.enforce("python") == ""
    assert sandbox.denied == []
    (workspace / "secrets").rename(workspace / "moved")
    assert await rules.enforce("python") == ""
    (workspace / "secrets").mkdir()
    assert "'secrets', which a rule of the policy denies, had been replaced" in await rules.enforce("python")
    assert await rules.enforce("python") == ""
    assert sandbox.denied == [(("secrets",), ()), (("secrets",), ())]


async def test_a_call_does_not_run_where_the_sandbox_cannot_follow(tmp_path: Path) -> None:
    rules, sandbox, _ = connected(tmp_path, Policy())
    rules.follow(DENYING)
    sandbox.problem = "the kernel refused."
    for _ in range(2):
        with pytest.raises(SandboxError, match=r"python was not run: .* the kernel refused\. Restart"):
            await rules.enforce("python")
    sandbox.problem = ""
    await rules.enforce("python")
    assert sandbox.denied == [(("secrets",), ())]


async def test_another_policy_is_followed_and_each_gap_is_printed_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rules, sandbox, _ = connected(tmp_path, DENYING)
    rules.follow(Policy(rules=[Rule(when={"writes": "late/*"}, decision=Decision.DENY)]))
    rules.announce()
    rules.announce()
    assert caplog.text.count("the sandbox can reach 'late/*' all the same") == 1
    await rules.enforce("python")
    assert sandbox.denied == [((), ("late",))]


async def test_note_of_the_next_call_names_what_the_sandbox_reports_and_a_trial_does_not(
    tmp_path: Path,
) -> None:
    rules, sandbox, _ = connected(tmp_path, DENYING)
    sandbox.replaced_paths = {"secrets"}
    assert await rules.enforce("python", is_trial=True) == ""
    note = await rules.enforce("python")
    assert note.startswith(
        "[Before this call 'secrets', which a rule of the policy denies, had been replaced or touched."
    )
    assert await rules.enforce("python") == ""
    assert sandbox.denied == [(("secrets",), ())]
