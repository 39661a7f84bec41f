"""A session's tools as an MCP server: the library's own client in memory, over stdio and over HTTP."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp")

import httpx2
from mcp import Client, StdioServerParameters, types
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from aisotools.core.exceptions import UsageError
from aisotools.core.protocols import ToolContext
from aisotools.core.types import Approval, Effect, ToolResult
from aisotools.integrations.mcp.api import serve_http
from aisotools.integrations.mcp.server import OpenQuestions, SessionServer, parse_answer, set_approval
from aisotools.integrations.mcp.transport import HttpServer
from aisotools.policy.approvers import AllowAll, DenyAll, ScriptedApprover
from aisotools.session.session import Session
from aisotools.testing.fakes import MockTool
from aisotools.tools.function import tool
from tests.conftest import OpenSession
from tests.integrations.tools import PNG, picture, shape_area
from tests.waiting import HANG_S

MODES = ("auto", "legacy")
each_era = pytest.mark.parametrize("mode", MODES)


class Person:
    """Answers the questions that reach a client."""

    def __init__(self, *answers: types.ElicitResult) -> None:
        self.asked: list[str] = []
        self._answers = list(answers)

    async def __call__(self, context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        self.asked.append(params.message)
        return self._answers.pop(0)


def yes(**more: Any) -> types.ElicitResult:
    return types.ElicitResult(action="accept", content={"approve": True, **more})


def client(session: Session, mode: str = "auto", person: Any = None, **options: Any) -> Client:
    return Client(
        SessionServer(session, unattended=True, **options).server, mode=mode, elicitation_callback=person
    )


def text_of(result: types.CallToolResult) -> str:
    (first, *_) = result.content
    assert isinstance(first, types.TextContent)
    return first.text


write = MockTool("write", effect=Effect.LOCAL_MUTATION)


# ---- tools and results


@each_era
async def test_tools_are_listed_with_their_schemas_and_hints(open_session: OpenSession, mode: str) -> None:
    async with client(open_session(shape_area, destroy, MockTool("unsaid")), mode) as one:
        listed = {found.name: found for found in (await one.list_tools()).tools}
    assert listed["shape_area"].input_schema["required"] == ["shape"]
    assert listed["shape_area"].annotations is not None
    assert listed["shape_area"].annotations.read_only_hint is True
    assert listed["destroy"].annotations is not None
    assert listed["destroy"].annotations.destructive_hint is True
    assert listed["unsaid"].annotations is None or not listed["unsaid"].annotations.read_only_hint


@each_era
async def test_results_are_structured_and_errors_keep_their_kind(
    open_session: OpenSession, mode: str
) -> None:
    failed = ToolResult(content="exit 2", is_error=True, error_kind="failed", value={"exitCode": 2})
    tools = (shape_area, MockTool("fail", effect=Effect.READ_ONLY, result=failed), write)
    async with client(open_session(*tools, approver=DenyAll("not today")), mode) as one:
        area = await one.call_tool("shape_area", {"shape": {"width": "2", "height": 3}})
        assert (area.is_error, text_of(area), area.structured_content) == (False, "6.0", {"result": 6.0})
        wrong = await one.call_tool("shape_area", {"shape": {"width": "x"}})
        assert wrong.is_error
        assert "width" in text_of(wrong)
        assert wrong.meta is not None
        assert wrong.meta["aisotools/errorKind"] == "invalid"
        failing = await one.call_tool("fail", {})
        assert failing.is_error
        assert failing.structured_content == {"exitCode": 2}
        denied = await one.call_tool("write", {})
        assert denied.is_error
        assert "not today" in text_of(denied)
        assert denied.meta is not None
        assert denied.meta["aisotools/errorKind"] == "denied"
        unknown = await one.call_tool("shape_aera", {})
        assert unknown.is_error
        assert "shape_area" in text_of(unknown)


@each_era
async def test_pictures_and_other_bytes(open_session: OpenSession, mode: str) -> None:
    blob = MockTool("blob", effect=Effect.READ_ONLY, result=ToolResult.binary(b"\0\1", "application/x"))
    async with client(open_session(picture, blob), mode) as one:
        shown = (await one.call_tool("picture", {})).content[1]
        assert isinstance(shown, types.ImageContent)
        assert (shown.mime_type, len(shown.data)) == ("image/png", (len(PNG) + 2) // 3 * 4)
        held = (await one.call_tool("blob", {})).content[1]
        assert isinstance(held, types.EmbeddedResource)
        assert isinstance(held.resource, types.BlobResourceContents)
        assert held.resource.blob == "AAE="


@tool(effect=Effect.DESTRUCTIVE)
def destroy() -> None:
    """Destroy."""


@tool(effect=Effect.READ_ONLY, runs_in="host")
async def counting(context: ToolContext) -> str:
    """Count."""
    for number in range(1, 4):
        context.emit("step", progress=number, total=3, message=f"step {number}")
    context.emit("step", progress=float("nan"))
    context.emit("step", progress=1)
    return "done"


@each_era
async def test_progress_goes_forward_whatever_a_tool_reports(open_session: OpenSession, mode: str) -> None:
    reports: list[tuple[float, float | None, str | None]] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        reports.append((progress, total, message))

    async with client(open_session(counting), mode) as one:
        assert text_of(await one.call_tool("counting", {}, progress_callback=on_progress)) == "done"
    assert reports[:3] == [(1, 3, "step 1"), (2, 3, "step 2"), (3, 3, "step 3")]
    assert [done for done, *_ in reports] == [1, 2, 3, 4, 5]


@each_era
async def test_cancelling_reaches_the_worker(real_session: OpenSession, mode: str) -> None:
    session, printed = real_session(approver=AllowAll()), asyncio.Event()
    session.subscribe(lambda event: printed.set() if event.kind == "call_output" else None)
    async with client(session, mode) as one:
        await one.call_tool("python", {"code": "kept = 7"})
        running = asyncio.ensure_future(
            one.call_tool("python", {"code": "import time; print('in', flush=True); time.sleep(1000)"})
        )
        await asyncio.wait_for(printed.wait(), HANG_S)
        running.cancel()
        again = await one.call_tool("python", {"code": "kept"})
        assert text_of(again) == "7"
    ended = [event for event in session.events if event.kind == "call_finished"]
    assert len(ended) == 3


async def test_only_the_offered_tools_can_be_called(open_session: OpenSession) -> None:
    session = open_session(shape_area, picture, approver=AllowAll())
    async with client(session, registry=session.registry.filtered(["picture"])) as one:
        assert [found.name for found in (await one.list_tools()).tools] == ["picture"]
        hidden = await one.call_tool("shape_area", {"shape": {"width": 1}})
        assert hidden.is_error
        assert "no tool named" in text_of(hidden)
    assert not session.events


# ---- approvals


@each_era
async def test_the_clients_person_is_asked_and_sees_exactly_what_runs(
    open_session: OpenSession, mode: str
) -> None:
    person = Person(yes())
    session = open_session(write)
    async with client(session, mode, person) as one:
        assert not (await one.call_tool("write", {"path": "a\u202eb"})).is_error
    (question,) = person.asked
    assert "write" in question
    assert "a\\u202eb" in question
    assert "remember" not in question
    kinds = [event.kind for event in session.events if event.kind.startswith("approval")]
    assert kinds == ["approval_asked", "approval_answered"]


@pytest.mark.sample(6)
@each_era
@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (types.ElicitResult(action="decline"), "it was denied"),
        (types.ElicitResult(action="cancel"), "dismissed"),
        (types.ElicitResult(action="accept"), "it was denied"),
        (types.ElicitResult(action="accept", content={"approve": False, "reason": "no"}), "(no)"),
        (types.ElicitResult(action="accept", content={"approve": "true"}), "it was denied"),
        (types.ElicitResult(action="accept", content={"approve": 1}), "it was denied"),
    ],
)
async def test_nothing_but_a_ticked_box_approves(
    open_session: OpenSession, mode: str, answer: types.ElicitResult, message: str
) -> None:
    session = open_session(write)
    async with client(session, mode, Person(answer)) as one:
        result = await one.call_tool("write", {})
    assert result.is_error
    assert message in text_of(result)
    assert not any(event.kind == "call_started" for event in session.events)


@each_era
async def test_without_a_way_to_ask_the_policy_decides_and_says_why(
    open_session: OpenSession, mode: str
) -> None:
    async with client(open_session(write, shape_area), mode) as one:
        denied = await one.call_tool("write", {})
        assert denied.is_error
        assert "nobody can be asked" in text_of(denied)
        assert "local change" in text_of(denied)
        assert not (await one.call_tool("shape_area", {"shape": {"width": 1}})).is_error


@each_era
async def test_an_approver_of_the_operator_is_not_passed_over(open_session: OpenSession, mode: str) -> None:
    person, operator = Person(yes()), ScriptedApprover(["deny"])
    async with client(open_session(write, approver=operator), mode, person) as one:
        assert (await one.call_tool("write", {})).is_error
    assert len(operator.requests) == 1
    assert not person.asked


async def question(one: Client, arguments: Mapping[str, Any]) -> types.InputRequiredResult:
    asked = await one.session.call_tool("write", dict(arguments), allow_input_required=True)
    assert isinstance(asked, types.InputRequiredResult)
    return asked


async def test_an_answer_serves_one_call_once(open_session: OpenSession) -> None:
    session = open_session(write)
    async with client(session, person=Person()) as one:
        first, second = await question(one, {"n": 1}), await question(one, {"n": 2})
        answer: Any = {"approval": yes()}

        async def settle(arguments: dict[str, Any], state: str | None) -> types.CallToolResult:
            result = await one.session.call_tool(
                "write", arguments, input_responses=answer, request_state=state, allow_input_required=True
            )
            assert isinstance(result, types.CallToolResult)
            return result

        with pytest.raises(MCPError, match="other arguments"):  # answered for another call
            await settle({"n": 3}, first.request_state)
        with pytest.raises(MCPError, match="No question"):  # which spent it
            await settle({"n": 1}, first.request_state)
        with pytest.raises(MCPError, match="No question"):
            await settle({"n": 2}, "made up")
        assert not (await settle({"n": 2}, second.request_state)).is_error
        with pytest.raises(MCPError, match="No question"):
            await settle({"n": 2}, second.request_state)
    started = [event.call_id for event in session.events if event.kind == "call_started"]
    assert len(started) == 1


async def test_questions_that_nobody_answers_have_an_end(open_session: OpenSession) -> None:
    session = open_session(write)
    async with client(session, person=Person()) as one:
        for number in range(64):
            await question(one, {"n": number})
        full = await one.session.call_tool("write", {"n": 64}, allow_input_required=True)
        assert isinstance(full, types.CallToolResult)
        assert full.is_error
        assert "too many questions" in text_of(full)


# ---- over HTTP


@asynccontextmanager
async def over_http(server: HttpServer, mode: str = "auto", person: Any = None) -> AsyncIterator[Client]:
    headers = {"Authorization": f"Bearer {server.token}"}
    async with (
        httpx2.AsyncClient(headers=headers) as http,
        Client(
            streamable_http_client(server.url, http_client=http), mode=mode, elicitation_callback=person
        ) as one,
    ):
        yield one


@each_era
async def test_http_carries_all_of_it(open_session: OpenSession, mode: str) -> None:
    person = Person(yes())
    async with (
        serve_http(open_session(write, picture, counting)) as server,
        over_http(server, mode, person) as one,
    ):
        assert len((await one.list_tools()).tools) == 3
        assert not (await one.call_tool("write", {"x": 1})).is_error
        assert len((await one.call_tool("picture", {})).content) == 2
        assert person.asked


@pytest.mark.slow
@each_era
async def test_cancelling_reaches_the_worker_over_http(real_session: OpenSession, mode: str) -> None:
    session, printed = real_session(approver=AllowAll()), asyncio.Event()
    session.subscribe(lambda event: printed.set() if event.kind == "call_output" else None)
    async with serve_http(session) as server, over_http(server, mode) as one:
        await one.call_tool("python", {"code": "kept = 7"})
        code = "import time; print('in', flush=True); time.sleep(1000)"
        running = asyncio.ensure_future(one.call_tool("python", {"code": code}))
        await asyncio.wait_for(printed.wait(), HANG_S)
        running.cancel()
        assert text_of(await one.call_tool("python", {"code": "kept"})) == "7"


async def test_http_refuses_strangers(open_session: OpenSession) -> None:
    session = open_session(write, approver=AllowAll())
    async with serve_http(session) as server, httpx2.AsyncClient() as http:
        good = {"Authorization": f"Bearer {server.token}"}
        port = server.url.split(":")[2].split("/")[0]

        async def status(**headers: str) -> int:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            body = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
            accept = {"Accept": "application/json, text/event-stream"}
            return (await http.post(server.url, json=body, headers={**accept, **named})).status_code

        assert await status() == 401
        assert await status(Authorization="Bearer") == 401
        assert await status(Authorization=f"Bearer {server.token[:-1]}") == 401
        assert await status(Authorization=f"Basic {server.token}") == 401
        assert await status(**good, Host="evil.example") == 421
        assert await status(**good, Host=f"evil.example:{port}") == 421
        assert await status(**good, Host="127.0.0.1:1") == 421
        assert await status(**good, Origin="https://evil.example") == 403
        assert await status(**good, Origin="null") == 403
        assert await status(**good, Origin=f"http://127.0.0.1:{port}.evil.example") == 403
        assert await status(**good) not in {401, 403, 421}
        assert (await http.get(server.url)).status_code == 401
        assert (await http.delete(server.url)).status_code == 401
        assert server.token not in repr(server)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"host": "0.0.0.0"}, "other machines"),
        ({"host": "example.com"}, "give 127.0.0.1"),
        ({"port": 99_999}, "cannot be used"),
        ({"token": "short"}, "at least 32"),
        ({"token": "x" * 40 + "\r\n"}, "visible ASCII"),
    ],
)
async def test_http_is_for_this_machine_and_for_long_tokens(
    open_session: OpenSession, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        async with serve_http(open_session(write), **options):
            pytest.fail("it serves")


# ---- the command, over stdio

CODE = "import sys; from aisotools.cli.main import main; sys.exit(main())"


def command(tmp_path: Path, *more: str) -> tuple[list[str], dict[str, str]]:
    words = ["-c", CODE, "mcp", "serve", "--stdio", "--workspace", str(tmp_path / "work"), *more]
    return words, {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state")}


@pytest.mark.slow
async def test_the_command_serves_over_stdio(tmp_path: Path) -> None:
    words, env = command(tmp_path, "--tools", "python,file")
    person = Person(yes())
    server = StdioServerParameters(command=sys.executable, args=words, env=env)
    async with Client(server, elicitation_callback=person) as one:
        assert {found.name for found in (await one.list_tools()).tools} == {"python", "file"}
        code = "import os, sys; os.write(1, b'raw'); print('printed'); sys.__stdout__.write('x'); 1 + 1"
        result = await one.call_tool("python", {"code": code})
        assert not result.is_error
        assert "2" in text_of(result)
    assert "sandbox level" in person.asked[0]


async def test_standard_output_is_protocol_and_nothing_else(tmp_path: Path) -> None:
    words, env = command(tmp_path, "--mode", "auto")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *words,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=env,
    )
    assert process.stdin is not None
    assert process.stdout is not None

    async def send(method: str, params: Any, number: int | None = None) -> None:
        assert process.stdin is not None
        message = {"jsonrpc": "2.0", "method": method, "params": params}
        process.stdin.write(json.dumps(message | ({"id": number} if number else {})).encode() + b"\n")
        await process.stdin.drain()

    hello = {"protocolVersion": "2025-03-26", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    await send("initialize", hello, 1)
    process.stdin.write(b"this is not a message\n")
    await send("notifications/initialized", {})
    noisy = (
        "import os, sys; os.write(1, b'raw'); os.system('echo shell'); sys.__stdout__.write('x'); print(9)"
    )
    await send("tools/call", {"name": "python", "arguments": {"code": noisy}}, 2)
    answers: list[dict[str, Any]] = []
    while not any(answer.get("id") == 2 for answer in answers):
        answers.append(json.loads(await asyncio.wait_for(process.stdout.readline(), HANG_S)))
    process.stdin.close()
    assert await process.stdout.read() == b""
    assert await asyncio.wait_for(process.wait(), HANG_S) == 0
    assert all(answer["jsonrpc"] == "2.0" for answer in answers)
    assert answers[0]["result"]["protocolVersion"] == "2025-03-26"
    assert "9" in answers[-1]["result"]["content"][0]["text"]


# ---- answers


@pytest.mark.parametrize(
    ("action", "content", "kind", "reason"),
    [
        ("accept", {"approve": True, "reason": "fine"}, "approve", "fine"),
        ("accept", {"approve": "true"}, "deny", ""),
        ("accept", {"approve": 1}, "deny", ""),
        ("accept", None, "deny", ""),
        ("decline", {"approve": True}, "deny", ""),
        ("cancel", {"approve": True}, "cancel", "the question was dismissed"),
        ("accept", {"approve": True, "reason": "x" * 600}, "approve", "x" * 500),
    ],
)
def test_only_an_accepted_form_with_its_box_ticked_approves(
    action: Any, content: Any, kind: str, reason: str
) -> None:
    approval = parse_answer(types.ElicitResult.model_construct(action=action, content=content))
    assert (approval.outcome, approval.reason) == (kind, reason)


async def test_an_answer_counts_once() -> None:
    future: asyncio.Future[Approval] = asyncio.get_running_loop().create_future()
    set_approval(future, Approval("deny"))
    set_approval(future, Approval("approve"))
    assert future.result() == Approval("deny")


def test_a_secret_that_was_never_given_out_names_no_question() -> None:
    params = types.CallToolRequestParams(name="t", request_state="guessed")
    with pytest.raises(MCPError, match="No question is open"):
        OpenQuestions().answer(params)
