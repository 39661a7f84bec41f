"""`Session.branch`: two sessions that begin with the same state and go their own ways."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from aisotools.builtin import builtin_tools
from aisotools.core.exceptions import UsageError, WorkspaceError, WorkspaceRefused
from aisotools.core.protocols import OutputCaps, ToolContext
from aisotools.core.sandboxes import SandboxListener
from aisotools.core.types import Decision, Json, ToolResult
from aisotools.policy.approvers import DenyAll
from aisotools.policy.rules import Policy, Rule
from aisotools.sandbox.host.sandbox import LocalSandbox
from aisotools.sandbox.limits import Limits
from aisotools.sandbox.process.spawn import WorkerSpec
from aisotools.session import transfer
from aisotools.session.session import Session
from aisotools.session.transfer import extract_tree
from aisotools.tools.registry import ToolRegistry
from aisotools.workspace.checkpoints.store import Store
from tests.conftest import OpenSession
from tests.waiting import HANG_S, eventually

ALLOW = Policy(rules=[Rule(decision=Decision.ALLOW, reason="the test allows everything")])


async def value(session: Session, code: str) -> str:
    result = await session.run_cell(code)
    assert not result.is_error, result.content
    return result.content


async def test_variables_and_files_go_their_own_ways(real_session: OpenSession) -> None:
    session = real_session(policy=ALLOW)
    await value(session, "shared = [1]; both = (shared, shared)\ndef double():\n    return 2 * shared[0]")
    await value(
        session, "open('a.txt', 'w').write('one'); import os; os.mkdir('sub'); os.symlink('a.txt', 'l')"
    )
    branch = await session.branch()
    try:
        assert branch.workspace is not None
        assert session.workspace is not None
        assert branch.workspace == session.workspace.with_name(f"{session.workspace.name}-branch-1")
        assert (branch.level, branch.policy) == (session.level, session.policy)
        assert await value(branch, "(shared, both[0] is both[1], double())") == "([1], True, 2)"
        assert await value(branch, "sorted(os.listdir())") == "['a.txt', 'l', 'sub']"
        await value(branch, "shared[0] = 5; open('l', 'a').write('two')")
        assert await value(branch, "double(), open('a.txt').read()") == "(10, 'onetwo')"
        assert await value(session, "double(), open('a.txt').read()") == "(2, 'one')"
        assert branch.events[-1].kind  # it has a record of its own
        assert branch.log_path != session.log_path
        await value(branch, "shared[0] = 6")
        undone = await branch.undo()
        assert undone.value["variables"].startswith("They are as before"), undone.content
        assert await value(branch, "shared") == "[5]"
    finally:
        await branch.close()
    assert await value(session, "double()") == "2"


async def test_variables_that_cannot_be_copied_are_reported(real_session: OpenSession) -> None:
    session = real_session(policy=ALLOW)
    await value(session, "kept = 1; generator = (n for n in range(3))")
    branch = await session.branch()
    try:
        (payload,) = [e.payload for e in branch.events if getattr(e, "name", "") == "branch"]  # type: ignore[attr-defined]  # found by its name
        assert payload["of"] == session.session_key
        assert [lost.partition(" ")[0] for lost in payload["lost"]] == ["generator"]
        assert await value(branch, "kept") == "1"
    finally:
        await branch.close()


OPENED = {
    "text": ("f = open('data'); head = f.read(10)", "head + f.read()"),
    "lines": ("f = open('data'); head = f.readline()", "head + f.read()"),
    "binary": ("f = open('data', 'rb'); head = f.read(10)", "(head + f.read()).decode()"),
    "unbuffered": ("f = open('data', 'rb', buffering=0); head = f.read(10)", "(head + f.read()).decode()"),
    "read and written": ("f = open('data', 'r+'); head = f.read(10)", "head + f.read()"),
    "in an object": ("f = [open('data')]; head = f[0].read(10)", "head + f[0].read()"),
    "in a closure": (
        "def f(f=open('data')): return f.read(10)\nhead = f()",
        "head + f.__defaults__[0].read()",
    ),
    "in a reader": (
        "import csv; opened = open('data'); f = csv.reader(opened); head = ','.join(next(f)) + chr(10)",
        "head + ''.join(','.join(row) + chr(10) for row in f)",
    ),
}


@pytest.mark.sample(4)
@pytest.mark.parametrize(("prepare", "rest"), OPENED.values(), ids=OPENED)
async def test_branch_does_not_move_the_place_in_an_open_file(
    real_session: OpenSession, prepare: str, rest: str
) -> None:
    text = "".join(f"line {number},{number % 7}\n" for number in range(5_000))
    session = real_session(policy=ALLOW)
    await session.start()
    assert session.workspace is not None
    (session.workspace / "data").write_text(text)
    await value(session, prepare)
    branch = await session.branch()
    await branch.close()
    assert (
        await value(session, f"text = {rest}; len(text), text == open('data').read()")
        == f"({len(text)}, True)"
    )


@pytest.mark.parametrize("mode", ["a", "a+", "r+", "w", "w+"])
async def test_branch_writes_nothing_of_the_buffer_of_an_open_file(
    real_session: OpenSession, mode: str
) -> None:
    session = real_session(policy=ALLOW)
    await session.start()
    assert session.workspace is not None
    path = session.workspace / "data"
    path.write_text("12")
    await value(session, f"f = open('data', '{mode}'); f.seek(0, 2); f.write('3')")
    before = path.read_bytes()
    branch = await session.branch()
    await branch.close()
    assert path.read_bytes() == before
    await value(session, "f.write('4'); f.close()")
    assert path.read_bytes() == before + b"34"


async def test_a_folder_of_ones_own_choice(real_session: OpenSession, tmp_path: Path) -> None:
    session = real_session(policy=ALLOW)
    await value(session, "open('a', 'w').write('x')")
    for _ in range(2):
        branch = await session.branch(workspace=tmp_path / "elsewhere")
        assert branch.workspace == tmp_path / "elsewhere"
        await branch.close()
        with pytest.raises(UsageError, match=r"elsewhere' is not empty. Give a new folder"):
            await session.branch(workspace=tmp_path / "elsewhere")
        (tmp_path / "elsewhere" / "a").unlink()


async def test_not_from_within_a_call(open_session: OpenSession) -> None:
    class Inner:
        name, description = "inner", "Branch the session that runs it."

        def parameters_schema(self) -> Mapping[str, Json]:
            return {"type": "object", "properties": {}}

        async def execute(self, arguments: Mapping[str, Json], context: ToolContext) -> ToolResult:
            await session.branch()
            return ToolResult.success("never")

    session = open_session(Inner(), policy=ALLOW)
    result = await session.call("inner", {})
    assert result.is_error
    assert "A call is running here" in result.content


async def test_a_folder_that_cannot_be(real_session: OpenSession, tmp_path: Path) -> None:
    session = real_session(policy=ALLOW)
    (tmp_path / "file").touch()
    with pytest.raises(WorkspaceError, match="cannot hold the copy"):
        await session.branch(workspace=tmp_path / "file" / "sub")
    assert await value(session, "1") == "1"


@pytest.mark.parametrize("command", ["git init -q .", "git init -q sub", "mkdir .git", "mkdir conda-meta"])
async def test_a_checkout_that_a_session_has_made_is_no_reason_to_refuse_a_branch(
    real_session: OpenSession, tmp_path: Path, command: str
) -> None:
    session = real_session(policy=ALLOW, level="confined")
    made = await session.call("sandbox_bash", {"command": command})
    assert not made.is_error, made.content
    for folder in (None, tmp_path / "elsewhere"):
        branch = await session.branch(workspace=folder)
        assert await value(branch, "1 + 1") == "2"
        inner = await branch.branch()
        await inner.close()
        await branch.close()


async def test_a_branch_that_cannot_be_opened_leaves_no_files(
    real_session: OpenSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = real_session(policy=ALLOW)
    await value(session, "import os; os.makedirs('d/e'); open('d/e/f', 'w').close(); os.symlink('d', 'l')")
    assert session.workspace is not None

    async def refuse(branch: Session) -> None:
        assert branch.workspace is not None
        assert (branch.workspace / "d" / "e" / "f").exists()
        raise WorkspaceRefused("not there")

    own = tmp_path / "own"
    own.mkdir()
    before = sorted(path.name for path in session.workspace.parent.iterdir())
    with monkeypatch.context() as patched:
        patched.setattr(Session, "start", refuse)
        for folder in (None, own, tmp_path / "new"):
            with pytest.raises(WorkspaceRefused, match="not there"):
                await session.branch(workspace=folder)
    assert sorted(path.name for path in session.workspace.parent.iterdir()) == before
    assert list(own.iterdir()) == []
    assert not (tmp_path / "new").exists()
    branch = await session.branch(workspace=own)
    await branch.close()


async def test_a_branch_that_is_cancelled_leaves_no_files(
    real_session: OpenSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    copying, go_on = threading.Event(), threading.Event()

    def copy_slowly(store: Store, root: str, folder: Path) -> tuple[str, ...]:
        copying.set()
        go_on.wait(HANG_S)
        return extract_tree(store, root, folder)

    session = real_session(policy=ALLOW)
    await value(session, "open('f', 'w').close()")
    assert session.workspace is not None
    before = sorted(path.name for path in session.workspace.parent.iterdir())
    monkeypatch.setattr(transfer, "extract_tree", copy_slowly)
    branching = asyncio.ensure_future(session.branch())
    await eventually(copying.is_set)
    for _ in range(3):
        branching.cancel()
        await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await branching
    assert sorted(path.name for path in session.workspace.parent.iterdir()) == before
    branch = await session.branch()
    await branch.close()


def options_of(session: Session) -> dict[str, object]:
    """What each option of the constructor came to."""
    factory = session._make_sandbox
    return {
        "registry": [tool.name for tool in session.registry],
        "policy": session.policy,
        "approver": session.approver,
        "limits": session.limits,
        "level": session.level,
        "read_only": session._read_only,
        # In a pool, each session has a factory of its own around that.
        "sandbox": getattr(factory, "_make_sandbox", factory),
        "output_caps": session._gate.caps,
        "environ": session._environ,
        "protect_notebooks": session._options["protect_notebooks"],
        "approval_timeout_s": session._gate._approvals._answer_timeout_s,
        "allow_protected": session.allowed_protected,
        "retained_bytes": session.retention.limit_bytes,
        "try_unknown_commands": session._options["try_unknown_commands"],
        "on_timeout": session._options["on_timeout"],
    }


async def test_a_branch_has_every_option_of_its_session(
    real_session: OpenSession, tmp_path: Path, environ: Mapping[str, str]
) -> None:
    def make_sandbox(spec: WorkerSpec, listener: SandboxListener) -> LocalSandbox:
        return LocalSandbox(spec, listener)

    (tmp_path / "read only").mkdir()
    chosen: dict[str, object] = {
        "registry": ToolRegistry(builtin_tools()[:3]),
        "policy": ALLOW,
        "approver": DenyAll(),
        "limits": Limits(call_timeout_s=77),
        "level": "limited",
        "read_only": [tmp_path / "read only"],
        "sandbox": make_sandbox,
        "output_caps": OutputCaps(content_chars=1234),
        "environ": {**environ, "SOME": "setting"},
        "protect_notebooks": False,
        "approval_timeout_s": 77.0,
        "allow_protected": ["conftest.py"],
        "retained_bytes": 100_000_000,
        "try_unknown_commands": False,
        "on_timeout": "undo",
    }
    # `level` settles what `min_level` left open; the others are the branch's own.
    others = {"self", "workspace", "min_level", "session_key"}
    assert {*chosen} | others == {*inspect.signature(Session.__init__).parameters}
    default, session = real_session(), real_session(workspace=tmp_path / "other", **chosen)
    await default.start()
    await session.start()
    usual, expected = options_of(default), options_of(session)
    assert [name for name in chosen if usual[name] == expected[name]] == []  # a control: none is the default
    branch = await session.branch()
    try:
        assert options_of(branch) == expected
    finally:
        await branch.close()
