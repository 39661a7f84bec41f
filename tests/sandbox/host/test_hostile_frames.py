"""Frames of every form on every socket that the host reads from a sandbox, by table and at random.

Each ends the worker, or is counted as of no use, and does nothing else: the event loop gets no exception, the
caller no traceback, the next worker is served.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st

from aisotools.core.exceptions import SandboxError, WorkerDied
from aisotools.sandbox.frames import FrameReader
from aisotools.sandbox.host import calls, displays
from aisotools.sandbox.host.displays import DisplayMessage, DisplayRouter
from aisotools.sandbox.host.fork_handle import ForkSnapshot, ForkSocket, _losses
from aisotools.sandbox.host.fork_observation import ProcessCounts
from aisotools.sandbox.worker.output import ExecuteOptions
from tests.sandbox.host.test_connection import Peer
from tests.sandbox.rig import rig
from tests.sandbox.test_hostile import FIND_CHANNEL

HUGE = "1" + "0" * 400
# Values as they stand in JSON, for any field.
ODD = {
    "1e999": "1e999",
    "-1e999": "-1e999",
    "not a number": "NaN",
    "infinity": "Infinity",
    "negative": "-3",
    "fraction": "1.5",
    "huge": HUGE,
    "5000 digits": "9" * 5_000,
    "above 64 bits": "18446744073709551616",
    "true": "true",
    "null": "null",
    "text": '"1"',
    "no text": '""',
    "lone surrogate": '"\\ud800"',
    "NUL": '"\\u0000"',
    "list": "[1]",
    "object": '{"stdout": 1}',
    "object of 1e999": '{"stdout": 1e999, "stderr": 1e999}',
    "object of a huge number": f'{{"stdout": {HUGE}}}',
    "object of text": '{"stdout": "x"}',
    "deep list": "[" * 5_000 + "]" * 5_000,
    "deep list within bounds": "[" * 150 + "]" * 150,
    "deep object": '{"a":' * 5_000 + "1" + "}" * 5_000,
}
# What a frame of each op has, as a worker would send it.
FRAMES: dict[str, dict[str, str]] = {
    "out": {"id": '"1"', "stream": '"stdout"', "text": '"x"', "after": "1"},
    "emit": {"id": "1", "name": '"n"', "payload": '{"n": 1}'},
    "done": {"id": "1"},
    "show": {"id": "1", "what": '"display"', "after": '{"stdout": 1}', "display_id": '"d"'},
    "ask": {"id": "1", "prompt": '"?"', "seq": "1", "password": "false", "after": '{"stderr": 1}'},
    "ready": {},
    "failed": {"error": '"x"'},
}
REPORTS: dict[str, dict[str, str]] = {
    "started": {"worker": "7", "supervisor": "8", "scratch": '"/x"'},
    "done": {"seq": "1"},
    "died": {"worker": "0", "exit": "1", "signal": "9"},
    "ended": {},
    "gone": {},
}
PARKED = {"last_fork_s": "0.1", "threads": '["t"]', "ours": "[3]"}


def header(op: str, fields: dict[str, str]) -> bytes:
    """The JSON of an object, whatever its fields are."""
    members = [f'"op": "{op}"'] if "op" not in fields else []
    members += [f'"{name}": {value}' for name, value in fields.items()]
    return ("{" + ", ".join(members) + "}").encode("utf-8", "surrogatepass")


def framed(data: bytes, body: bytes = b"") -> bytes:
    return struct.pack("!II", len(data), len(body)) + data + body


class Sink:
    """A `DisplaySink` that uses what it is given, as a page would."""

    def show(self, call_id: str, message: DisplayMessage, /) -> None:
        assert isinstance(call_id, str)
        json.dumps(dict(message.bundle))
        json.dumps(dict(message.details))

    def dropped(self, call_id: str, /) -> None:
        assert isinstance(call_id, str)

    async def ask(self, call_id: str, prompt: str, /, *, password: bool) -> str | None:
        assert isinstance(prompt, str)
        return f"{call_id} {password}"


@contextmanager
def loop_errors() -> Iterator[list[dict[str, Any]]]:
    """What reaches the event loop as an exception."""
    errors: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: errors.append(context))
    try:
        yield errors
    finally:
        loop.set_exception_handler(None)


@asynccontextmanager
async def watched_peer() -> AsyncIterator[Peer]:
    displays = DisplayRouter()
    displays.watch("c", Sink(), ExecuteOptions(stdin=True))
    peer = Peer(displays=displays)
    await peer.start()
    try:
        yield peer
    finally:
        peer.close()


async def feed(*frames: bytes) -> None:
    """Send frames during a call; assert that the worker ends, or that all goes on as it was."""
    with loop_errors() as errors:
        async with watched_peer() as peer:
            call = peer.call()
            os.write(peer.out, b"raw")
            for frame in frames:
                try:
                    peer.channel.send(frame)
                except (BrokenPipeError, ConnectionResetError, BlockingIOError):
                    break
            await peer.settle()
            if peer.lost:
                assert "could not be handled" not in peer.lost[0], "no check refused it"
                with pytest.raises(WorkerDied):
                    await call.future
            else:
                # The channel is still understood.
                if not call.future.done():
                    peer.say("done", {"id": call.number}, (b"fine",))
                    await peer.settle()
                assert call.future.done() or peer.connection.pid == 0
        await asyncio.sleep(0)
    assert errors == []


@pytest.mark.sample(4)
@pytest.mark.parametrize("op", FRAMES)
async def test_an_odd_field_of_a_frame(op: str) -> None:
    for field in (*FRAMES[op], "op", "parts"):
        for value in ODD.values():
            await feed(framed(header(op, {**FRAMES[op], field: value})))


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the checks of frames away: what stands in a header is used as it is, as honest frames would be."""

    def read_header(reader: Any, data: bytes, body: int) -> None:
        header = json.loads(data)
        sizes = header.pop("parts", [])
        reader._op, reader._header, reader._sizes = header.pop("op"), header, sizes
        reader._wanted = reader._keep(reader._op, header, sizes) if sizes else ()

    monkeypatch.setattr(FrameReader, "_read_header", read_header)
    for module in (calls, displays):
        for name in ("text_field", "count_field"):
            monkeypatch.setattr(module, name, lambda header, name: header.get(name))
    monkeypatch.setattr(calls, "_process_id", lambda header: header.get("pid"))


async def unforeseen(*frames: bytes) -> list[str]:
    """Send frames during a call. Return what they raised that no check has foreseen."""
    with loop_errors() as errors:
        async with watched_peer() as peer:
            peer.call()
            os.write(peer.out, b"raw")
            for frame in frames:
                peer.channel.send(frame)
            await peer.settle()
            lost = [reason for reason in peer.lost if "could not be handled" in reason]
        await asyncio.sleep(0)
    return lost + [str(context["message"]) for context in errors]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("op", FRAMES)
async def test_an_odd_field_does_harm_where_nothing_is_checked(
    op: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The control: the same frames raise what nobody has foreseen, in each kind of frame."""
    caplog.set_level("CRITICAL")
    harmful = {
        (field, name)
        for field in (*FRAMES[op], "op", "parts")
        for name, value in ODD.items()
        if await unforeseen(framed(header(op, {**FRAMES[op], field: value})))
    }
    print(f"\n{op}: {len(harmful)} of {len(ODD) * (2 + len(FRAMES[op]))} odd fields do harm")
    assert {"op", "parts"} <= {field for field, _ in harmful}
    own = {field for field, _ in harmful} & {*FRAMES[op]}
    assert own or op in {"done", "ready", "failed"}, "those have no field of their own but a number or a text"


@pytest.mark.parametrize(
    ("op", "field"), [(op, field) for op, fields in FRAMES.items() for field in fields], ids=str
)
async def test_a_missing_field_of_a_frame(op: str, field: str) -> None:
    await feed(framed(header(op, {name: value for name, value in FRAMES[op].items() if name != field})))


async def test_keys_that_occur_twice_and_what_is_no_object() -> None:
    await feed(framed(b'{"op": "emit", "op": "done", "id": 1, "id": [2], "payload": {}, "payload": 3}'))
    for data in (b"[]", b"1", b'"x"', b"null", b"", b"{", b'{"op": {}}', b"\xff\xfe", b"\xef\xbb\xbf{}"):
        await feed(framed(data))


BODIES = {
    "lone surrogate": b'{"a": "\\ud800"}',
    "1e999": b'{"a": 1e999}',
    "no object": b"[1]",
    "empty": b"",
    "deep": b"[" * 10_000,
    "invalid": b"\xff\xff",
    "huge": b'{"a": ' + HUGE.encode() + b"}",
}


@pytest.mark.parametrize("kind", ["display", "update", "result", "clear", "error", "page", "comm"])
async def test_an_odd_body_of_a_display(kind: str) -> None:
    for body in BODIES.values():
        fields = {**FRAMES["show"], "what": f'"{kind}"', "parts": f"[{len(body)}]"}
        await feed(framed(header("show", fields), body))


@pytest.mark.parametrize("op", REPORTS)
async def test_an_odd_report_on_the_control_socket(op: str) -> None:
    with loop_errors() as errors:
        for field in (*REPORTS[op], "op"):
            for value in ODD.values():
                async with watched_peer() as peer:
                    call = peer.call()
                    peer.control.send(header(op, {**REPORTS[op], field: value}))
                    await peer.settle()
                    if peer.lost:
                        with pytest.raises(WorkerDied):
                            await call.future
    assert errors == []


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 70), 1 << 70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
    | st.sampled_from(["stdout", "stderr", "display", "c", "1"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
NAMES = sorted({name for fields in FRAMES.values() for name in fields})


@settings(suppress_health_check=list(HealthCheck))
@given(
    frames=st.lists(
        st.tuples(
            st.sampled_from([*FRAMES, "park", ""]),
            st.dictionaries(st.sampled_from([*NAMES, "parts"]), JSON, max_size=5),
            st.binary(max_size=8),
        ),
        min_size=1,
        max_size=4,
    )
)
@example(frames=[("show", {"id": 1, "what": "display", "after": {"stdout": 10**30}}, b"")])
async def test_frames_at_random(frames: list[tuple[str, dict[str, Any], bytes]]) -> None:
    await feed(
        b"".join(
            framed(header(op, {name: json.dumps(value) for name, value in fields.items()}), body)
            for op, fields, body in frames
        )
    )


# ---- the sockets of forks


def _hold_nothing(sock: ForkSocket, pid: int) -> None:
    sock.pid, sock.pidfd = pid, os.open("/dev/null", os.O_RDONLY)


@pytest.mark.parametrize("field", [*PARKED, "op", "parts"])
async def test_an_odd_answer_of_a_fork_settles_its_snapshot(field: str) -> None:
    for value in ODD.values():
        sock = ForkSocket(os.getpid)
        sock.peer.sendall(framed(header("parked", {**PARKED, field: value})))
        counts = ProcessCounts(threads=2)
        # A snapshot that is dropped ends its process, and here that is this one.
        sock._identify = partial(_hold_nothing, sock)  # type: ignore[method-assign]  # holds no process
        taken = ForkSnapshot(1, "c", sock, counts=counts, known_tools=set(), unsettled=())
        await taken.settled  # never raises
        assert 0 <= taken.last_fork_s < 1e6
        assert all(isinstance(text, str) for text in taken.point.lost)
        sock.close(kill=False)


@pytest.mark.parametrize("op", ["woke", "copying", "copied"])
async def test_an_odd_answer_of_a_woken_fork(op: str) -> None:
    refused = 0
    for value in ODD.values():
        sock = ForkSocket(os.getpid)
        sock.peer.sendall(framed(header(op, {"lost": value})))
        try:
            found = await sock.receive(op, within_s=50)
        except SandboxError:
            refused += 1
        else:
            assert all(isinstance(text, str) for text in _losses(found.get("lost")))
        finally:
            sock.close(kill=False)
    assert 0 < refused < len(ODD)


# ---- a real worker


REAL = {
    "after 1e999": 'b\'{"op": "show", "id": 1, "what": "display", "after": {"stdout": 1e999}}\'',
    "missing keys": 'b\'{"op": "emit"}\'',
    "deep": "b'{\"op\": \"emit\", \"payload\": ' + b'[' * 9000 + b'}'",
}


@pytest.mark.parametrize("data", [*REAL.values(), 'b\'{"op": "done", "id": 10000}\''], ids=[*REAL, "control"])
async def test_a_worker_that_sends_them_is_replaced(tmp_path: Path, data: str) -> None:
    with loop_errors() as errors:
        async with rig(tmp_path, level="confined") as r:
            await r.python(FIND_CHANNEL + "\nkept = 41")
            is_control = "10000" in data
            # The host reads in order: what is sent in a call, before the end of the call.
            ending = "" if is_control else "\nimport time; time.sleep(1000)"
            code = f"data = {data}\nsend(struct.pack('!II', len(data), 0) + data){ending}"
            result = await r.python(code)
            assert result.is_error is not is_control, result.content
            if not is_control:
                assert "protocol" in result.content
            assert await r.value("kept + 1") == 42
    assert errors == []


async def test_undo_after_an_odd_answer_of_a_fork(tmp_path: Path) -> None:
    """The fork itself answers oddly: undo has another state, or says why not, and raises nothing else."""
    async with rig(tmp_path, level="confined") as r:
        await r.python("value = 1")
        code = """
from aisotools.sandbox import frames
encode = frames.encode
def odd(op, header=None, parts=()):
    if op == 'parked':
        header = {'last_fork_s': 10**400, 'threads': 5, 'ours': {'a': 1}}
    return encode(op, header, parts)
import aisotools.sandbox.worker.fork as fork
frames.encode = fork.encode = odd
"""
        await r.python(code)
        await r.python("value = 2", call_id="wanted")
        await r.python("value = 3")
        with contextlib.suppress(SandboxError):
            await r.kernel.variables.restore("wanted")
        assert await r.value("value") in {1, 3}
