"""The table of calls and the routing of displays, fed with frames by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from pydantic_core import to_json

from aisotools.core.exceptions import ChannelError, WorkerDied
from aisotools.core.protocols import OutputCaps, ToolPayload
from aisotools.core.sandboxes import SandboxCall
from aisotools.core.types import ToolCall
from aisotools.sandbox.frames import Frame
from aisotools.sandbox.host import calls
from aisotools.sandbox.host.calls import CallTable, send_call
from aisotools.sandbox.host.displays import DisplayMessage, DisplayRouter
from aisotools.sandbox.worker.output import ExecuteOptions
from tests.sandbox.rig import ReportLog

INTERACTIVE = ExecuteOptions(stdin=True)


@dataclass
class Sink:
    """A `DisplaySink` that records everything; a question waits for `answer`."""

    messages: list[tuple[str, DisplayMessage]] = field(default_factory=list)
    drops: list[str] = field(default_factory=list)
    questions: list[tuple[str, str, bool]] = field(default_factory=list)
    answer: asyncio.Future[str | None] | None = None

    def show(self, call_id: str, message: DisplayMessage, /) -> None:
        self.messages.append((call_id, message))

    def dropped(self, call_id: str, /) -> None:
        self.drops.append(call_id)

    async def ask(self, call_id: str, prompt: str, /, *, password: bool) -> str | None:
        self.questions.append((call_id, prompt, password))
        assert self.answer is not None
        return await self.answer


class Host:
    """A table with everything around it recorded."""

    def __init__(self) -> None:
        self.reported = ReportLog()
        self.displays = DisplayRouter()
        self.drained: list[tuple[str, int]] = []
        self.replies: list[tuple[str, Mapping[str, Any]]] = []
        self.table = CallTable(
            self.reported,
            displays=self.displays,
            drain_raw=lambda stream, count: self.drained.append((stream, count)),
            reply=lambda op, header: self.replies.append((op, header)),
        )

    def start(self, call_id: str = "c", *, holds: bool = True, stream_bytes: int = 100) -> calls.PendingCall:
        return self.table.start(call_id, stream_bytes=stream_bytes, holds_main_thread=holds)

    def handle(self, op: str, header: dict[str, Any], parts: tuple[bytes, ...] = ()) -> None:
        self.table.handle(Frame(op=op, header=header, parts=parts))
        self.table.flush_output()

    def out(self, call_id: str, text: str, stream: str = "stdout", **header: Any) -> None:
        self.handle("out", {"id": call_id, "stream": stream, "text": text, **header})


@pytest.fixture
async def host() -> Host:
    return Host()


# ---- calls


async def test_numbers_are_never_reused(host: Host) -> None:
    first = host.start("a")
    host.table.finish(first)
    second = host.start("b")
    assert (first.number, second.number) == (1, 2)
    assert [call.call_id for call in host.table] == ["b"]
    assert len(host.table) == 1


async def test_a_result_reaches_its_call_after_all_raw_output(host: Host) -> None:
    call = host.start()
    host.handle("done", {"id": call.number}, (b"pieces",))
    assert call.future.result() == (b"pieces",)
    assert [stream for stream, _ in host.drained] == ["stdout", "stderr"]


async def test_failing_spares_what_has_ended(host: Host) -> None:
    ended, running = host.start("a"), host.start("b")
    host.handle("done", {"id": ended.number}, (b"x",))
    host.table.fail(WorkerDied("gone"))
    assert ended.future.result() == (b"x",)
    with pytest.raises(WorkerDied, match="gone"):
        running.future.result()


@pytest.mark.parametrize("number", [7, "1", True, None, [1], 1.0])
async def test_results_of_no_call_are_dropped(host: Host, number: object) -> None:
    call = host.start()
    host.handle("done", {"id": number}, (b"x",))
    assert not call.future.done()


@pytest.mark.parametrize("op", ["emit", "out", "ask", "program", "stop_program", "ready", "zzz"])
async def test_frames_that_have_no_parts_are_refused_when_some_are_announced(host: Host, op: str) -> None:
    call = host.start()
    with pytest.raises(ChannelError, match="67108864 bytes of parts, and may have none"):
        host.table.keep_parts(op, {"id": call.number}, [64 << 20])


async def test_pieces_of_a_result_are_kept_for_a_call_that_waits_and_up_to_its_caps(host: Host) -> None:
    call, other = host.start("a"), host.start("b")
    call.piece_limits = (10, 20, 30, 40)
    keep = host.table.keep_parts
    assert keep("done", {"id": call.number}, [10, 20, 30, 40]) == [True] * 4
    assert keep("done", {"id": call.number}, [11, 20, 31, 0]) == [False, True, False, True]
    assert keep("done", {"id": call.number}, [1] * 6) == [True] * 4 + [False] * 2
    assert keep("done", {"id": other.number}, [64 << 20]) == [True]
    for number in (7, "1", True, None, [1], 1.0):
        assert keep("done", {"id": number}, [1, 1]) == [False, False]
    host.handle("done", {"id": call.number}, (b"x",))
    assert keep("done", {"id": call.number}, [1]) == [False]
    host.table.finish(other)
    assert keep("done", {"id": other.number}, [1]) == [False]


async def test_a_piece_that_was_not_kept_is_noted_with_its_size(host: Host) -> None:
    call = host.start()
    head = to_json({"content": "c"})
    host.table.handle(Frame(op="done", header={"id": 1}, parts=(head, b"", b"", b""), dropped={1: 1 << 30}))
    result = await call.result(OutputCaps())
    assert result.value is None
    assert "The value has 1073741824 bytes as JSON; 16777216 are passed on" in result.content


async def test_a_result_whose_pieces_came_before_the_call_is_none(host: Host) -> None:
    """They were announced when nobody waited, and so not kept; they may not be taken for empty ones."""
    call = host.start()
    dropped = {0: 20, 1: 20}
    host.table.handle(Frame(op="done", header={"id": 1}, parts=(b"",) * 4, dropped=dropped))
    with pytest.raises(ChannelError, match="the head of a result was refused"):
        await call.result(OutputCaps())


async def test_large_parts_that_nobody_waits_for_are_a_flood_sooner(host: Host) -> None:
    frame = Frame(op="done", header={"id": 9}, parts=(b"",), dropped={0: 64 << 20})
    for _ in range(48):
        host.table.handle(frame)
    with pytest.raises(ChannelError, match="floods the channel"):
        host.table.handle(frame)


async def test_displays_are_kept_for_a_call_that_is_watched_and_up_to_what_is_shown(host: Host) -> None:
    sink = Sink()
    host.displays.watch("watched", sink, INTERACTIVE)
    watched, other = host.start("watched"), host.start("other")
    keep = host.table.keep_parts
    assert keep("show", {"id": watched.number}, [20 << 20, 30 << 20]) == [True, True]
    assert keep("show", {"id": watched.number}, [(20 << 20) + 1, 1]) == [False, False]
    assert keep("show", {"id": watched.number}, [1, 64 << 20]) == [False, False]
    assert keep("show", {"id": other.number}, [1]) == [False]
    assert keep("show", {"id": 9}, [1]) == [False]
    host.table.finish(watched)
    assert keep("show", {"id": watched.number}, [1]) == [True], "what it left running may still display"
    header = {"id": watched.number, "what": "display"}
    host.table.handle(Frame(op="show", header=header, parts=(b"",), dropped={0: 30 << 20}))
    assert (sink.messages, sink.drops) == ([], ["watched"])


async def test_text_of_a_finished_call_is_still_its_own_within_the_rest_of_its_cap(host: Host) -> None:
    call = host.start("a", stream_bytes=8)
    host.out("1", "12345")
    host.table.finish(call)
    host.out("1", "67890")
    assert host.reported.text("a") == "12345678"


async def test_only_so_many_finished_calls_are_remembered(host: Host) -> None:
    for number in range(300):
        host.table.finish(host.start(f"c{number}"))
    host.out("300", "known")
    host.out("1", "forgotten")
    assert host.reported.outputs == [("c299", "stdout", "known"), ("", "stdout", "forgotten")]


async def test_raw_output_belongs_to_the_call_on_the_main_thread_or_to_the_only_one(host: Host) -> None:
    host.table.handle_raw("stdout", b"0")
    beside = host.start("beside", holds=False)
    host.table.handle_raw("stdout", b"1")
    main = host.start("main")
    host.table.handle_raw("stdout", b"2")
    host.table.finish(main)
    host.start("other", holds=False)
    host.table.handle_raw("stdout", b"3")
    owners = [call_id for call_id, _, _ in host.reported.outputs]
    assert owners == ["", "beside", "main", ""]
    assert beside.output.has_raw


async def test_raw_bytes_that_came_before_a_text_are_delivered_before_it(host: Host) -> None:
    host.start()
    host.table.handle(Frame(op="out", header={"id": "1", "stream": "stdout", "text": "first"}))
    header = {"id": "1", "stream": "stdout", "text": "second", "after": 3}
    host.table.handle(Frame(op="out", header=header))
    assert host.drained == [("stdout", 3)]
    assert host.reported.text("c") == "first", "delivered before the raw bytes are read"


async def test_progress_is_delivered_and_limited(host: Host) -> None:
    host.start()
    header = {"id": 1, "name": "n" * 300, "payload": {"a": 1}}
    host.handle("emit", header)
    assert host.reported.emits == [("c", "n" * 200, {"a": 1})]
    host.handle("emit", header | {"payload": {"a": "x" * (1 << 17)}})
    assert len(host.reported.emits) == 1
    for _ in range(2500):
        host.handle("emit", header)
    # A burst of 2,000, of which the large one took its share; more only as time goes by.
    assert 1999 <= len(host.reported.emits) < 2500


@pytest.mark.parametrize(
    ("op", "header"),
    [
        ("out", {"id": 1, "stream": "stdout", "text": "x"}),
        ("out", {"id": "1", "stream": "log", "text": "x"}),
        ("out", {"id": "1", "stream": "stdout", "text": b"x"}),
        ("out", {"id": "1", "stream": "stdout", "text": "x", "after": 0}),
        ("out", {"id": "1", "stream": "stdout", "text": "x", "after": True}),
        ("emit", {"id": 1, "name": 1, "payload": {}}),
        ("emit", {"id": 1, "name": "n", "payload": [1]}),
        ("format", {}),
    ],
)
async def test_malformed_frames_are_errors(host: Host, op: str, header: dict[str, Any]) -> None:
    host.start()
    with pytest.raises(ChannelError):
        host.handle(op, header)


async def test_messages_without_effect_are_a_flood_in_the_end(host: Host) -> None:
    for _ in range(50_000):
        host.handle("done", {"id": 99})

    def flood() -> None:
        for _ in range(10_000):
            host.handle("done", {"id": 99})

    with pytest.raises(ChannelError, match="floods the channel"):
        flood()
    assert not host.reported.outputs


# ---- displays


def display(
    host: Host, number: int = 1, *, kind: str = "display", body: bytes = b"{}", **details: Any
) -> None:
    host.handle("show", {"id": 1, "what": kind, **details}, (body,))


async def test_the_header_of_a_watched_call_says_how_it_runs(host: Host) -> None:
    host.displays.watch("c", Sink(), INTERACTIVE)
    assert host.start("c").header["watch"]["stdin"] is True
    assert host.start("other").header == {}


async def test_a_display_reaches_the_sink_of_its_call_also_after_its_end(host: Host) -> None:
    sink = Sink()
    host.displays.watch("c", sink, INTERACTIVE)
    call = host.start("c")
    display(host, body=to_json({"text/plain": "1"}), display_id="d", after={"stdout": 4})
    host.table.finish(call)
    display(host, body=b"")
    details = {"id": 1, "display_id": "d", "after": {"stdout": 4}}
    assert sink.messages == [
        ("c", DisplayMessage(kind="display", bundle={"text/plain": "1"}, details=details)),
        ("c", DisplayMessage(kind="display", details={"id": 1})),
    ]
    assert ("stdout", 4) in host.drained


async def test_a_display_of_a_call_that_nobody_watches_is_junk(host: Host) -> None:
    host.start("c")
    display(host)
    assert not host.reported.outputs


@pytest.mark.parametrize(
    ("kind", "body"),
    [("virus", b"{}"), (3, b"{}"), ("display", b"[]"), ("display", b"{"), ("error", b"NaN")],
)
async def test_malformed_displays_are_errors_of_the_channel(host: Host, kind: Any, body: bytes) -> None:
    host.displays.watch("c", Sink(), INTERACTIVE)
    host.start("c")
    with pytest.raises(ChannelError, match="a display is"):
        display(host, kind=kind, body=body)


async def test_a_display_without_a_body_is_malformed(host: Host) -> None:
    host.displays.watch("c", Sink(), INTERACTIVE)
    host.start("c")
    with pytest.raises(ChannelError, match="unknown kind"):
        host.handle("show", {"id": 1, "what": "display"})


@pytest.mark.parametrize(
    ("opening", "piece", "count", "closing"),
    [
        (b'{"x": "', b"x", 20 << 20, b'"}'),
        (b'{"x": [', b"[],", 1 << 20, b"0]}"),
    ],
    ids=["too large", "too many containers"],
)
async def test_a_display_that_would_fill_the_memory_is_dropped_unparsed(
    host: Host, opening: bytes, piece: bytes, count: int, closing: bytes
) -> None:
    body = opening + piece * count + closing
    sink = Sink()
    host.displays.watch("c", sink, INTERACTIVE)
    host.start("c")
    work = host.table.handle(Frame(op="show", header={"id": 1, "what": "display"}, parts=(body,)))
    if work is not None:
        await work
    assert (sink.messages, sink.drops) == ([], ["c"])


async def test_too_many_displays_are_dropped_and_counted(host: Host) -> None:
    sink = Sink()
    host.displays.watch("c", sink, INTERACTIVE)
    host.start("c")
    for _ in range(6000):
        display(host)
    assert 5000 <= len(sink.messages) < 6000
    assert len(sink.messages) + len(sink.drops) == 6000


async def test_only_so_many_watched_calls_are_remembered(host: Host) -> None:
    sink = Sink()
    for number in range(257):
        host.displays.watch(f"c{number}", sink, INTERACTIVE)
    assert not host.displays.is_watched("c0")
    assert host.displays.is_watched("c1")


# ---- questions


def ask(host: Host, seq: Any = 1, prompt: Any = "name? ") -> None:
    host.handle("ask", {"id": 1, "seq": seq, "prompt": prompt, "password": True})


@pytest.fixture
async def sink(host: Host) -> Sink:
    sink = Sink(answer=asyncio.get_running_loop().create_future())
    host.displays.watch("c", sink, INTERACTIVE)
    host.start("c")
    return sink


async def replies(host: Host, count: int = 1) -> list[tuple[str, Mapping[str, Any]]]:
    while len(host.replies) < count:  # noqa: ASYNC110 - the tasks are on this loop
        await asyncio.sleep(0)
    return host.replies


async def test_an_answer_is_sent_back(host: Host, sink: Sink) -> None:
    ask(host, seq=5)
    assert sink.answer is not None
    sink.answer.set_result("Ada")
    assert await replies(host) == [("reply", {"seq": 5, "value": "Ada"})]
    assert sink.questions == [("c", "name? ", True)]


@pytest.mark.parametrize("rounds", [0, 2], ids=["before it was put", "after it was put"])
async def test_a_question_that_is_withdrawn_gets_a_reply(host: Host, sink: Sink, rounds: int) -> None:
    ask(host)
    for _ in range(rounds):
        await asyncio.sleep(0)
    host.displays.withdraw_questions("c")
    assert await replies(host) == [("reply", {"seq": 1, "value": None})]


@pytest.mark.parametrize(("seq", "prompt"), [("1", "x"), (True, "x"), (1, 3), (1, "x" * 20_001)])
async def test_malformed_questions(host: Host, sink: Sink, seq: Any, prompt: Any) -> None:
    with pytest.raises(ChannelError, match="unknown form"):
        ask(host, seq, prompt)


async def test_questions_where_none_may_be_asked(host: Host) -> None:
    host.displays.watch("c", Sink(), ExecuteOptions(stdin=False))
    host.start("c")
    with pytest.raises(ChannelError, match="where none may be asked"):
        ask(host)


async def test_too_many_questions_at_once(host: Host, sink: Sink) -> None:
    for seq in range(16):
        ask(host, seq)
    with pytest.raises(ChannelError, match="where none may be asked"):
        ask(host, 16)
    host.displays.withdraw_questions("c")
    assert len(await replies(host, 16)) == 16


async def test_reports_are_limited_by_their_size_in_memory_and_in_total(host: Host) -> None:
    call = host.start()
    host.handle("emit", {"id": 1, "name": "n", "payload": {"a": [[] for _ in range(3_000)]}})
    assert host.reported.emits == [], "small as JSON, large in memory"
    assert call.dropped_emits == 1
    for _ in range(100):
        host.handle("emit", {"id": 1, "name": "n", "payload": {"a": "x" * 100_000}})
    assert 40 <= len(host.reported.emits) <= 45, "4 MiB at once"
    assert call.dropped_emits == 101 - len(host.reported.emits)


async def test_displays_of_a_call_are_limited_in_total_until_the_page_is_cleared(
    host: Host, sink: Sink
) -> None:
    host.displays.watch("c", sink, INTERACTIVE)
    host.displays.watched["c"].bytes_left = 1000
    host.start()
    body = to_json({"text/plain": "x" * 400})

    def show(kind: str) -> int:
        host.handle("show", {"id": 1, "what": kind}, (body if kind != "clear" else b"",))
        return len(sink.messages)

    assert [show("display") for _ in range(4)] == [1, 2, 2, 2]
    assert len(sink.drops) == 2
    assert show("clear") == 3
    assert [show("update") for _ in range(5)] == [4, 5, 6, 7, 8], "it takes the place of another"
    assert show("display") == 9


# ---- sending


class Target:
    """Notes what it is sent."""

    def __init__(self) -> None:
        self.known_tools: set[str] = set()
        self.sent: list[tuple[dict[str, Any], list[bytes]]] = []
        self.is_full = False

    def start_call(
        self, call_id: str, header: Mapping[str, Any], parts: list[bytes], **options: Any
    ) -> calls.PendingCall:
        if self.is_full:
            raise ChannelError("too large")
        self.sent.append(({**header, **options, "call_id": call_id}, parts))
        return Host().start(call_id)


async def test_a_tool_is_sent_once_to_each_process_and_never_if_it_is_imported() -> None:
    target = Target()
    packed = ToolPayload(key="k", payload=b"code", concurrency="overlap")
    ours = ToolPayload(key="o", import_path="a:b", concurrency="main")
    for payload in (packed, packed, ours):
        send_call(target, SandboxCall(call=ToolCall("c", "t", {"x": 1}), shipment=payload, timeout_s=1))
    assert [parts for _, parts in target.sent] == [[b'{"x":1}', b"code"], [b'{"x":1}'], [b'{"x":1}']]
    assert [header["holds_main_thread"] for header, _ in target.sent] == [False, False, True]
    assert target.sent[2][0]["import_path"] == "a:b"


async def test_a_tool_that_could_not_be_sent_is_sent_again() -> None:
    target, payload = Target(), ToolPayload(key="k", payload=b"code", concurrency="main")
    request = SandboxCall(call=ToolCall("c", "t", {}), shipment=payload, timeout_s=1)
    target.is_full = True
    with pytest.raises(ChannelError):
        send_call(target, request)
    target.is_full = False
    send_call(target, request)
    assert target.sent[0][1] == [b"{}", b"code"]


# ---- raw output
