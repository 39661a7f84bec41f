"""What a session writes to its ledger, and what it never writes."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from aisotools.cli import log as cli_log
from aisotools.core.events import CallDecided, CallFinished, CallRequested, SessionEnded
from aisotools.core.exceptions import LedgerError
from aisotools.core.protocols import OutputCaps
from aisotools.core.redaction import REDACTED, redact_arguments
from aisotools.core.types import Approval, ApprovalRequest, Effect, ToolResult
from aisotools.policy.approvers import AllowAll, ScriptedApprover
from aisotools.session.ledger import open_ledger, read, verify
from aisotools.session.ledger_reader import events_of_records
from aisotools.session.recording import Recording
from aisotools.session.session import Session
from aisotools.testing.fakes import FakeSandbox, MockTool
from aisotools.tools.function import tool
from aisotools.tools.registry import ToolRegistry
from tests import stalls
from tests.conftest import OpenSession
from tests.waiting import HANG_S, eventually

KEY = "sk-proj-abcdefghijklmnopqrstuvwx"


def records(session: Session) -> list[dict[str, Any]]:
    assert session.log_path is not None
    return list(read(session.log_path))


async def test_a_call_is_presented_decided_executed_and_ended(open_session: OpenSession) -> None:
    approver = ScriptedApprover([Approval("approve", arguments={"n": 2}, reason="fine")])
    session = open_session(MockTool("write", result="written"), approver=approver)
    await session.call("write", {"n": 1}, origin="model")
    await session.close()
    recorded = [r for r in records(session) if r["kind"] not in {"sandbox_started", "session_ended"}]
    assert [r["kind"] for r in recorded] == [
        "call_requested",
        "approval_asked",
        "approval_answered",
        "call_decided",
        "call_started",
        "call_finished",
    ]
    requested, asked, answered, decided, _, finished = (r["body"] for r in recorded)
    assert (requested["origin"], requested["arguments"]) == ("model", {"n": 1})
    assert asked["reasons"] == [
        "it runs on the host, outside the sandbox, and nothing is known of what it does"
    ]
    assert (answered["outcome"], answered["reason"], answered["edited"]) == ("approve", "fine", {"n": 2})
    assert answered["waited_s"] >= 0
    assert (decided["decided_by"], decided["arguments"]) == ("approver", {"n": 2})
    assert finished["result"]["content"] == "written"
    assert len({r["body"]["call_id"] for r in recorded}) == 1
    assert session.log_path is not None
    assert verify(session.log_path).ok


async def test_secrets_are_left_out(open_session: OpenSession) -> None:
    @tool(runs_in="host")
    def login(user: str, pin: SecretStr) -> str:
        return f"{user} came in with {pin.get_secret_value()} and {KEY}"

    session = open_session(login, approver=AllowAll())
    result = await session.call("login", {"user": f"me:{KEY}", "pin": "tell nobody"})
    assert "tell nobody" in result.content
    await session.close()
    assert session.log_path is not None
    text = session.log_path.read_text()
    assert KEY not in text
    arguments = [r["body"]["arguments"] for r in records(session) if "arguments" in r["body"]]
    assert {a["pin"] for a in arguments} == {REDACTED}
    assert {a["user"] for a in arguments} == {"me:[redacted: api-key]"}


async def test_pictures_are_counted_and_not_kept(open_session: OpenSession) -> None:
    picture = ToolResult.binary(b"x" * 3000, "image/png")
    session = open_session(MockTool("draw", result=picture), approver=AllowAll())
    await session.call("draw")
    await session.close()
    (finished,) = [r["body"] for r in records(session) if r["kind"] == "call_finished"]
    assert finished["result"]["data_chars"] == {"image/png": 4000}
    assert session.log_path is not None
    assert session.log_path.stat().st_size < 4000


async def test_a_call_that_cannot_be_recorded_does_not_run(open_session: OpenSession, tmp_path: Path) -> None:
    mock = MockTool("write")
    session = open_session(mock, approver=AllowAll())
    await session.call("write")
    ledger = session._recording._ledger  # type: ignore[union-attr]  # open by now
    os.dup2(os.open("/dev/full", os.O_WRONLY), ledger._descriptor)
    await session.call("write")
    result = await session.call("write")
    assert (result.error_kind, result.recoverable) == ("environment", False)
    assert "could not be recorded" in result.content
    assert len(mock.calls) == 1


async def test_failure_to_record_is_reported_once(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path / "ledger", "mine")
    errors: list[LedgerError] = []
    recording = Recording(ledger, lambda _: frozenset(), errors.append)
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, ledger._descriptor)
    os.close(full)
    recording.on_event(SessionEnded(time_s=1))
    recording.on_event(SessionEnded(time_s=2))
    await recording.close()
    assert len(errors) == 1
    assert "cannot be written" in str(errors[0])


@pytest.mark.parametrize("noticed", ["when it is sealed", "when it is closed"])
async def test_ledger_that_goes_after_the_last_record_of_a_call_is_noticed(
    tmp_path: Path, noticed: str
) -> None:
    ledger = open_ledger(tmp_path / "ledger", "mine")
    errors: list[LedgerError] = []
    recording = Recording(ledger, lambda _: frozenset(), errors.append)
    result = ToolResult(content="done")
    recording.on_event(CallFinished(time_s=1, call_id="c", name="act", result=result, duration_s=0.1))
    ledger.path.unlink()
    if noticed == "when it is closed":
        await recording.close()
    else:
        await eventually(lambda: bool(errors))
        await recording.close()
    (error,) = errors
    assert "is gone: another program has changed it" in str(error)


@pytest.mark.parametrize("is_closed", [False, True], ids=["stopped", "closed"])
def test_closing_does_not_wait_for_a_seal_of_a_loop_that_has_ended(
    tmp_path: Path, *, is_closed: bool
) -> None:
    ledger = open_ledger(tmp_path / "ledger", "mine")
    recording = Recording(ledger, lambda _: frozenset(), lambda _: None)
    loop = asyncio.new_event_loop()

    async def begin() -> None:
        recording._seal()
        recording._is_unsealed = True  # as after one that the disk had no room for

    with ledger._sealing:  # a thread is at it when the loop ends
        loop.run_until_complete(begin())
        if is_closed:
            loop.close()
    asyncio.run(asyncio.wait_for(recording.close(), HANG_S))
    loop.close()
    assert verify(ledger.path).problems == ()


async def test_a_second_session_of_a_key_goes_on_in_the_same_ledger(open_session: OpenSession) -> None:
    for _ in range(2):
        session = open_session(MockTool("write"), approver=AllowAll(), session_key="mine")
        await session.call("write")
        await session.close()
    assert session.log_path is not None
    assert session.log_path.name == "mine.jsonl"
    assert sum(r["kind"] == "session_ended" for r in records(session)) == 2
    assert verify(session.log_path).ok


# ---- aisotools log


def log(*words: str, environ: Mapping[str, str]) -> tuple[int, list[str]]:
    import argparse

    parser = argparse.ArgumentParser()
    cli_log.add_parser(parser.add_subparsers())
    lines: list[str] = []
    options = parser.parse_args(["log", *words])
    return cli_log.run(options, lines.append, environ, warn=lines.append), lines


async def test_log_shows_verifies_and_exports(open_session: OpenSession, environ: Mapping[str, str]) -> None:
    assert log("show", environ=environ) == (2, ["There is no ledger yet."])
    session = open_session(
        MockTool("write", raises=ValueError("no luck")), approver=AllowAll(), session_key="mine"
    )
    await session.call("write", {"n": 1})
    await session.close()
    status, lines = log("show", environ=environ)
    assert status == 0
    assert "program calls write" in lines[0]
    assert any("failed error" in line and "no luck" in line for line in lines)
    status, lines = log("export", "mine", environ=environ)
    assert status == 0
    assert '"kind": "call_requested"' in lines[0]
    status, lines = log("verify", environ=environ)
    assert (status, len(lines)) == (0, 1)
    assert "records are sound" in lines[0]


async def test_log_verify_finds_damage(open_session: OpenSession, environ: Mapping[str, str]) -> None:
    session = open_session(MockTool("write"), approver=AllowAll())
    await session.call("write")
    await session.close()
    assert session.log_path is not None
    session.log_path.write_bytes(session.log_path.read_bytes().replace(b"write", b"erase"))
    status, lines = log("verify", str(session.log_path), environ=environ)
    assert status == 1
    assert lines[0].startswith("DAMAGED: line ")


@pytest.mark.parametrize("key", ["ann@example.com", "a b/c", "../x", "*", "ünï", "x.jsonl"])
async def test_log_finds_the_ledger_of_any_key(
    open_session: OpenSession, environ: Mapping[str, str], key: str
) -> None:
    session = open_session(MockTool("write"), approver=AllowAll(), session_key=key)
    await session.call("write")
    await session.close()
    assert session.log_path is not None
    for action in ("show", "verify", "export"):
        assert log(action, key, environ=environ)[0] == 0
        assert log(action, str(session.log_path), environ=environ)[0] == 0
    session.log_path.unlink()
    assert "is gone; it had" in log("verify", key, environ=environ)[1][0]
    assert log("forget", key, environ=environ)[0] == 0


@pytest.mark.parametrize("action", ["show", "export"])
@pytest.mark.parametrize("damage", ["cut", "garbage", "removed", "renamed"])
async def test_log_says_that_what_it_prints_is_damaged(
    open_session: OpenSession, environ: Mapping[str, str], action: str, damage: str
) -> None:
    session = open_session(MockTool("write"), approver=AllowAll())
    await session.call("write")
    await session.close()
    assert session.log_path is not None
    lines = session.log_path.read_bytes().splitlines(keepends=True)
    damaged = {
        "cut": lines[:2],
        "garbage": [b"\0\xff" * 100],
        "removed": lines[:1] + lines[2:],
        "renamed": [line.replace(b'"reasons"', b'"seasons"') for line in lines],
    }
    session.log_path.write_bytes(b"".join(damaged[damage]))
    status, printed = log(action, environ=environ)
    assert status == 1
    assert printed[-1].startswith("DAMAGED: ")


async def test_log_forgets_a_ledger_that_is_named_by_its_file(
    open_session: OpenSession, environ: Mapping[str, str]
) -> None:
    session = open_session(MockTool("write"), approver=AllowAll(), session_key="mine")
    await session.call("write")
    await session.close()
    assert session.log_path is not None
    session.log_path.rename(session.log_path.with_suffix(".away"))
    assert log("forget", str(session.log_path), environ=environ)[0] == 0


def test_log_of_a_pipe_or_a_copy_says_what_is_wrong(environ: Mapping[str, str], tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.jsonl"
    os.mkfifo(pipe)
    copy = tmp_path / "copy.jsonl"
    copy.write_text('{"n": 1}\n')
    for action in ("show", "verify", "export"):
        assert log(action, str(pipe), environ=environ) == (
            1,
            [f"The ledger {pipe} cannot be read: it is a FIFO."],
        )
    assert "there is no key beside it" in log("verify", str(copy), environ=environ)[1][0]
    status, lines = log("show", str(copy), environ=environ)
    assert (status, lines[-1]) == (0, f"{copy} was not checked: there is no key beside it.")


@pytest.mark.parametrize("action", ["show", "verify", "export", "forget"])
def test_log_makes_no_folder(environ: Mapping[str, str], action: str) -> None:
    assert log(action, "x", environ=environ)[0] == 2
    assert not Path(environ["XDG_STATE_HOME"]).exists()


@pytest.mark.parametrize("action", ["show", "verify", "export"])
def test_log_of_nothing_says_so(action: str, environ: Mapping[str, str], tmp_path: Path) -> None:
    assert log(action, "gone", environ=environ) == (2, ["There is no ledger of session 'gone'."])
    status, lines = log(action, str(tmp_path / "gone.jsonl"), environ=environ)
    assert status == 1
    assert "gone.jsonl" in lines[0]


async def test_a_second_call_of_an_id_that_is_under_way_uncovers_no_secret(open_session: OpenSession) -> None:
    @tool
    def login(password: SecretStr) -> str:
        return "in"

    asked = asyncio.Event()
    answer: asyncio.Future[Approval] = asyncio.get_running_loop().create_future()

    class Slow:
        async def ask(self, request: ApprovalRequest) -> Approval:
            asked.set()
            return await answer

    session = open_session(login, approver=Slow())
    first = asyncio.ensure_future(
        session.call("login", {"password": "hunter22"}, call_id="mine", origin="model")
    )
    await asked.wait()
    again = await session.call("login", {"password": "x"}, call_id="mine", origin="model")
    assert "used before" in again.content
    answer.set_result(Approval("approve"))
    await first
    assert session.log_path is not None
    await session.close()
    text = session.log_path.read_text("utf-8")
    assert "hunter22" not in text
    decided = [record for record in read(session.log_path) if record["kind"] == "call_decided"]
    assert [record["body"]["arguments"] for record in decided] == [{"password": REDACTED}]


async def test_links_are_recorded_with_where_they_lead(real_session: OpenSession, tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (workspace / "other").write_text("")
    (workspace / "a\u202eb").symlink_to("other")
    session = real_session(approver=AllowAll())
    await session.call("file", {"operation": "delete", "path": "a\u202eb"}, origin="model")
    await session.close()
    bodies = {record["kind"]: record["body"] for record in records(session)}
    assert bodies["approval_asked"]["links"] == bodies["call_decided"]["links"] == [["a\\u202eb", "other"]]
    (decided,) = [one for one in events_of_records(records(session)) if isinstance(one, CallDecided)]
    assert decided.links == (("a\\u202eb", "other"),)


# ---- records that cannot be made or written


class Failing:
    """A ledger's descriptor that takes a number of records, and then no more."""

    def __init__(self, session: Session, kind: str) -> None:
        ledger = session._recording._ledger  # type: ignore[union-attr]  # open by now
        self._append, self._kind = ledger.append, kind
        ledger.append = self.append  # type: ignore[method-assign]  # a disk that is full from then on

    def append(self, kind: str, *args: Any, **more: Any) -> None:
        if kind == self._kind:
            raise LedgerError("The ledger cannot be written: No space left on device.")
        self._append(kind, *args, **more)


@pytest.mark.parametrize(
    "kind", ["call_requested", "approval_asked", "approval_answered", "call_decided", "call_started"]
)
@pytest.mark.parametrize("effect", [Effect.READ_ONLY, Effect.LOCAL_MUTATION])
async def test_no_effect_comes_after_a_record_that_failed(
    open_session: OpenSession, kind: str, effect: Effect
) -> None:
    mock = MockTool("act", effect=effect)
    session = open_session(mock, approver=AllowAll())
    await session.start()
    Failing(session, kind)
    result = await session.call("act", origin="model", ask=True)
    assert not mock.calls
    assert result.content.startswith("act was not run: what happens could not be recorded (The ledger cannot")
    again = await session.call("act", origin="model")
    assert "could not be recorded" in again.content
    assert not mock.calls


async def test_a_record_that_fails_after_the_effect_stops_the_session(open_session: OpenSession) -> None:
    """The control: nothing is in the way of the first call."""
    mock = MockTool("act")
    session = open_session(mock, approver=AllowAll())
    await session.start()
    Failing(session, "call_finished")
    assert not (await session.call("act")).is_error
    assert (await session.call("act")).is_error
    assert len(mock.calls) == 1


@pytest.mark.parametrize("damage", ["removed", "cut", "moved"])
async def test_undo_that_cannot_be_recorded_changes_nothing(open_session: OpenSession, damage: str) -> None:
    session = open_session(approver=AllowAll())
    await session.call("sandbox_write", {"path": "a", "content": "1"})
    await session.call("sandbox_write", {"path": "a", "content": "2"})
    assert not (await session.undo()).is_error
    assert session.log_path is not None
    assert session.workspace is not None
    if damage == "removed":
        session.log_path.unlink()
    elif damage == "cut":
        os.truncate(session.log_path, 10)
    else:
        folder = session.log_path.parent
        folder.rename(folder.with_name("elsewhere"))
        folder.mkdir()
    for move in (session.undo, session.redo):
        refused = await move()
        assert refused.is_error
        assert refused.content.startswith(f"Nothing was changed: the {move.__name__} could not be recorded.")
        assert "Close this session" in refused.content
    assert (session.workspace / "a").read_text() == "1"
    assert "could not be recorded" in (await session.call("sandbox_read", {"path": "a"})).content


async def test_undo_whose_record_fails_says_so(open_session: OpenSession) -> None:
    session = open_session(approver=AllowAll())
    await session.call("sandbox_write", {"path": "a", "content": "1"})
    Failing(session, "undone")
    undone = await session.undo()
    assert not undone.is_error
    assert "[This undo is not in the ledger. The ledger cannot be written: No space" in undone.content
    assert undone.metadata["is_recorded"] is False


async def test_an_event_that_raises_while_its_record_is_made_stops_the_session(
    open_session: OpenSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    mock = MockTool("act")
    session = open_session(mock, approver=AllowAll())
    await session.start()

    def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("aisotools.session.recording._body", broken)
    result = await session.call("act")
    assert not mock.calls
    assert "could not be recorded" in result.content


async def test_a_full_disk_stops_the_call_before_its_effect(open_session: OpenSession) -> None:
    """With a real limit on the size of files, in a process of its own."""
    program = """
import asyncio, os, resource, sys, tempfile
from pathlib import Path
from aisotools.policy.approvers import AllowAll
from aisotools.session.session import Session
from aisotools.testing.fakes import FakeSandbox, MockTool
async def main(folder):
    mock = MockTool("act")
    environ = {"XDG_STATE_HOME": folder, "HOME": folder, "PATH": os.environ["PATH"]}
    session = Session(Path(folder) / "w", environ=environ, approver=AllowAll(), sandbox=FakeSandbox)
    (Path(folder) / "w").mkdir()
    session.registry.register(mock)
    await session.start()
    size = session.log_path.stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, size + 100))
    result = await session.call("act", {"text": "x" * 1000})
    print(len(mock.calls), result.content, flush=True)
    os._exit(0)
with tempfile.TemporaryDirectory() as folder:
    asyncio.run(main(folder))
"""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    printed, _ = await process.communicate()
    assert printed.decode().startswith("0 act was not run: what happens could not be recorded")


HOSTILE: dict[str, Any] = {
    "surrogate": "a\udc80",
    "nul": "a\0",
    "digits": 10**5_000,
    "nan": float("nan"),
    "bytes": b"\xff",
    "set": {1},
    "object": object(),
    "keys": {1: 1, "1": 2, b"\xff": 3, "\ud800": 4},
    "deep": [[[[[[[[[[1]]]]]]]]]] * 3,
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_call_with_any_values_is_recorded(open_session: OpenSession, name: str) -> None:
    value = HOSTILE[name]
    text = value if isinstance(value, str) else f"{type(value)}\udcff\0"
    answer = Approval("approve", reason=text)
    mock = MockTool("act", result=ToolResult(content=text, value={"v": text}, metadata={"m": text}))
    session = open_session(mock, approver=ScriptedApprover([answer, answer, answer]))
    await session.call("act", {"text": "x"}, origin="model")
    await session.call("act", {"value": value}, origin="model")
    await session.call(text, {}, origin="model")
    await session.close()
    assert session.log_path is not None
    assert verify(session.log_path).ok
    kinds = [record["kind"] for record in records(session)]
    assert kinds.count("call_requested") == kinds.count("call_finished") == 3
    assert len(events_of_records(records(session))) >= 8


async def test_arguments_come_back_equal(open_session: OpenSession) -> None:
    given = {"inf": float("inf"), "deep": nested_list(150), "list": [1, {"a": "é"}], "$escaped": "int"}
    session = open_session(MockTool("act"), approver=AllowAll())
    await session.call("act", given)
    await session.close()
    requested = [event for event in events_of_records(records(session)) if isinstance(event, CallRequested)]
    arguments = requested[0].call.arguments
    assert {name: arguments[name] for name in given if name != "deep"} == {
        name: value for name, value in given.items() if name != "deep"
    }
    assert session.log_path is not None
    assert verify(session.log_path).ok


def nested_list(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


async def test_the_digest_is_of_the_arguments_as_they_ran(open_session: OpenSession) -> None:
    digests = []
    for password in ("hunter2", "hunter3"):
        session = open_session(MockTool("act"), approver=AllowAll())
        await session.call("act", {"password": password})
        await session.close()
        (decided,) = [record["body"] for record in records(session) if record["kind"] == "call_decided"]
        assert decided["arguments"] == {"password": "[redacted: password]"}
        digests.append(decided["digest"])
    assert digests[0] != digests[1]


async def test_log_says_which_ledgers_are_gone_and_forgets_one_that_its_user_removed(
    open_session: OpenSession, environ: Mapping[str, str]
) -> None:
    session = open_session(MockTool("write"), approver=AllowAll(), session_key="mine")
    await session.call("write")
    await session.close()
    path = session.log_path
    assert path is not None
    assert log("forget", "mine", environ=environ)[0] == 1
    path.unlink()
    path.with_suffix(".head").unlink()
    for words in (["verify"], ["verify", "mine"]):
        status, lines = log(*words, environ=environ)
        assert status == 1
        assert lines[0].startswith("DAMAGED: the ledger mine is gone; it had ")
        assert "aisotools log forget mine" in lines[0]
    other = open_session(MockTool("write"), approver=AllowAll(), session_key="mine")
    with pytest.raises(LedgerError, match="aisotools log forget mine"):
        await other.call("write")
    assert log("forget", environ=environ)[0] == 2
    assert log("forget", "other", environ=environ)[0] == 2
    path.unlink()
    assert log("forget", "mine", environ=environ)[0] == 0
    assert log("verify", "mine", environ=environ) == (2, ["There is no ledger of session 'mine'."])
    again = open_session(MockTool("write"), approver=AllowAll(), session_key="mine")
    assert not (await again.call("write")).is_error


# ---- text that takes long to look at

SLOW_TEXT = "password=abc1d9x "
"""A secret that is found again and again: 1 ms for 1,000 characters, where most text takes a fiftieth."""

LONGEST_STALL_S = 0.05


def _call_that_takes_long(folder: Path, arguments: dict[str, Any], chars: int) -> tuple[float, str]:
    """Return for how long the loop stood still in a call with such arguments and so long a result.

    Returns:
        The seconds, and the text of the ledger.
    """

    @tool(runs_in="host")
    def answer(texts: list[str]) -> str:
        """Answer."""
        return SLOW_TEXT * (chars // len(SLOW_TEXT))

    async def main(stalled: stalls.Stalls) -> tuple[float, str]:
        async with Session(
            folder / "workspace",
            registry=ToolRegistry([answer]),
            approver=AllowAll(),
            environ={**os.environ, "XDG_STATE_HOME": str(folder / "state")},
            sandbox=FakeSandbox,
            output_caps=OutputCaps(content_chars=4 << 20),
        ) as session:
            await session.call("answer", {"texts": []}, origin="person")
            await asyncio.sleep(0)
            stalled.longest_s = 0.0
            result = await session.call("answer", arguments, origin="person")
            assert not result.is_error, result.content
            await asyncio.sleep(0)
            longest_s = stalled.longest_s
            path = session.log_path
        assert path is not None
        assert verify(path).ok
        return longest_s, path.read_text()

    return stalls.run(main)


def _check_stalls(tmp_path: Path, arguments: dict[str, Any], size: int) -> str:
    """Make the call, and return what is recorded; the best of five times, since a machine has other work."""
    for number in range(5):
        (tmp_path / str(number)).mkdir()
        longest_s, text = _call_that_takes_long(tmp_path / str(number), arguments, size)
        assert "abc1d9x" not in text
        if longest_s < LONGEST_STALL_S:
            return text
    pytest.fail(f"the loop stood still for {longest_s:.3f} s")


@pytest.mark.parametrize(
    "texts",
    [[SLOW_TEXT * 235 + str(n) for n in range(50)], [f"{n} {SLOW_TEXT * 3}" for n in range(6_000)]],
    ids=["long", "many"],
)
def test_looking_for_secrets_in_large_arguments_does_not_hold_up_the_loop(
    tmp_path: Path, texts: list[str]
) -> None:
    started_s = time.thread_time()
    redact_arguments({"texts": texts}, (), 4_000)
    alone_s = time.thread_time() - started_s
    assert alone_s > 2 * LONGEST_STALL_S, "it takes longer than the loop may stand still"
    _check_stalls(tmp_path, {"texts": texts}, 100)


def test_looking_for_secrets_in_a_long_result_does_not_hold_up_the_loop(tmp_path: Path) -> None:
    text = _check_stalls(tmp_path, {"texts": []}, 1 << 18)
    assert text.count("[redacted: password]") > 15_000


async def test_a_result_is_recorded_although_the_caller_is_cancelled_while_it_is_prepared(
    open_session: OpenSession,
) -> None:
    @tool(runs_in="host")
    def answer() -> str:
        return SLOW_TEXT * 2_000

    preparing = asyncio.Event()

    async def prepare(call_id: str, content: object) -> None:
        del call_id, content
        preparing.set()

    session = open_session(answer, approver=AllowAll(), output_caps=OutputCaps(content_chars=1 << 20))
    await session.start()
    session._event_log.add_preparation(prepare)
    calling = asyncio.ensure_future(session.call("answer", {}, origin="person"))
    await preparing.wait()
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    await session.close()
    finished = [r["body"] for r in records(session) if r["kind"] == "call_finished"]
    assert [body["result"]["content"].count("[redacted: password]") for body in finished] == [2_000]


@pytest.mark.parametrize("content_chars", [1_000, 1 << 20])
async def test_shown_part_of_a_long_result_is_prepared_only_if_it_is_long(
    open_session: OpenSession, content_chars: int
) -> None:
    prepared: list[object] = []

    async def prepare(call_id: str, content: object) -> None:
        del call_id
        prepared.append(content)

    caps = OutputCaps(content_chars=content_chars)
    session = open_session(
        MockTool("read", result="password=hunter2 " * 2_000), approver=AllowAll(), output_caps=caps
    )
    await session.start()
    session._event_log.add_preparation(prepare)
    result = await session.call("read", {"text": ""}, origin="person")
    assert prepared == ([] if content_chars == 1_000 else [result.content])


async def test_nothing_that_was_prepared_is_kept_after_its_call(open_session: OpenSession) -> None:
    session = open_session(MockTool("write", result=SLOW_TEXT), approver=AllowAll())
    await session.call("write", {"text": SLOW_TEXT * 2_000}, origin="person")
    recording = session._recording
    assert recording is not None
    assert not recording._redacted
    await recording.prepare("c1", SLOW_TEXT * 100)
    assert recording._redacted
    recording._fail(LedgerError("The disk is full."))
    assert not recording._redacted
    await recording.prepare("c2", SLOW_TEXT * 100)
    assert not recording._redacted, "there will be no event"


async def test_nothing_that_was_being_prepared_is_kept_of_a_call_that_is_never_made(
    open_session: OpenSession,
) -> None:
    session = open_session()
    await session.start()
    recording = session._recording
    assert recording is not None
    preparing = asyncio.ensure_future(recording.prepare("never made", SLOW_TEXT * 100))
    await asyncio.sleep(0)
    preparing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await preparing
    assert not recording._redacted
