from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, strategies as st

from aisotools.sandbox.worker.output import (
    CallRecord,
    InputChannel,
    Recorder,
    Stream,
    TokenBucket,
    escape_surrogates,
    json_bundle,
)


class Sink:
    """Where text goes, as the channel would see it."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str, str]] = []
        self.recorder = Recorder(lambda call, stream, text: self.sent.append((call, stream, text)))
        self.out = Stream("stdout", 1, self.recorder)
        self.err = Stream("stderr", 2, self.recorder)

    def text(self, call: str, stream: str = "stdout") -> str:
        return "".join(text for c, s, text in self.sent if (c, s) == (call, stream))


@pytest.fixture
def sink() -> Sink:
    return Sink()


@given(st.lists(st.text(), max_size=20), st.integers(0, 200))
def test_a_record_keeps_what_the_cap_allows_and_counts_the_rest(texts: list[str], cap: int) -> None:
    record = CallRecord(call_id="c", stream_left=cap)
    for text in texts:
        record.take("stdout", text)
    printed = "".join(record.streams["stdout"]).encode()
    whole = "".join(map(escape_surrogates, texts)).encode()
    assert len(printed) <= cap
    end = record.tail.tail_text("stdout").encode()
    assert len(printed) + record.missing_bytes + len(end) == len(whole)
    assert whole.endswith(end)
    assert record.stream_left + record.dropped_bytes == max(cap - len(whole), 0) + max(len(whole) - cap, 0)
    if len(whole) <= cap:
        assert printed == whole == record.text("stdout").encode()


@given(st.text(alphabet=st.characters(codec=None)))
def test_any_text_can_be_sent(text: str) -> None:
    assert escape_surrogates(escape_surrogates(text)).encode("utf-8") == escape_surrogates(text).encode(
        "utf-8"
    )


def test_a_lone_surrogate_is_spelled_out(sink: Sink) -> None:
    sink.recorder.main = CallRecord(call_id="c")
    print("caf\udcc3\n", file=sink.out, end="")
    assert sink.text("c") == "caf\\udcc3\n"


def test_text_belongs_to_the_context_that_wrote_it(sink: Sink) -> None:
    async def call(name: str) -> None:
        sink.recorder.enter(CallRecord(call_id=name))
        for number in range(3):
            print(name, number, file=sink.out)
            await asyncio.sleep(0)

    async def both() -> None:
        await asyncio.gather(call("a"), call("b"))

    asyncio.run(both())
    sink.out.flush()
    assert sink.text("a") == "a 0\na 1\na 2\n"
    assert sink.text("b") == "b 0\nb 1\nb 2\n"


def test_a_thread_counts_to_the_call_that_holds_the_main_thread(sink: Sink) -> None:
    sink.recorder.main = CallRecord(call_id="main")

    def write() -> None:
        for _ in range(200):
            print("x" * 99, file=sink.out)

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sink.out.flush()
    assert sink.text("main").count("x") == 800 * 99
    assert sink.text("main").count("\n") == 800


def test_text_of_nobody_is_nobody_s(sink: Sink) -> None:
    print("late", file=sink.out)
    assert sink.text("") == "late\n"


def test_lines_go_at_once_and_floods_in_blocks(sink: Sink) -> None:
    sink.recorder.main = CallRecord(call_id="c")
    print("first", file=sink.out)
    assert sink.text("c") == "first\n"
    print("half a line", end="", file=sink.out)
    assert sink.text("c") == "first\n"
    sink.out.flush()
    assert sink.text("c") == "first\nhalf a line"
    for _ in range(20_000):
        print("flood", file=sink.out)
    assert len(sink.sent) < 6000
    sink.out.flush()
    assert sink.text("c").count("flood") == 20_000


def test_no_piece_is_larger_than_a_frame(sink: Sink) -> None:
    sink.recorder.main = CallRecord(call_id="c")
    print("\0" * 900_000, file=sink.out)
    assert max(len(text) for _, _, text in sink.sent) <= 1 << 16
    assert len(sink.text("c")) == 900_001


def test_a_writer_that_is_called_from_within_does_not_block(sink: Sink) -> None:
    """A finaliser, or a signal handler, that prints while text is being sent."""
    depth = 0

    def send(_call: str, _stream: str, text: str) -> None:
        nonlocal depth
        depth += 1
        if depth < 3:
            print("inner", file=sink.out)
            print("inner", file=sink.err)
        sink.sent.append((_call, _stream, text))

    sink.recorder.connect(send)
    sink.recorder.main = CallRecord(call_id="c")
    print("outer", file=sink.out)
    sink.out.flush()
    assert sink.text("c").count("inner") + sink.text("c", "stderr").count("inner") >= 2


def test_streams_behave_as_python_s_own(sink: Sink) -> None:
    assert (sink.out.name, sink.out.encoding, sink.out.fileno(), sink.out.isatty()) == (
        "<stdout>",
        "utf-8",
        1,
        False,
    )
    assert sink.out.writable()
    with pytest.raises(TypeError, match="must be str, not bytes"):
        sink.out.write(b"x")  # type: ignore[arg-type]  # the mistake under test
    sink.out.close()
    sink.out.write("still open")
    sink.out.writelines(["a", "b"])
    sink.recorder.replace_lock()
    sink.out.flush()
    assert sink.text("") == "still openab"


def test_displays_are_capped_one_by_one() -> None:
    record = CallRecord(call_id="c", data_left=1000)
    record.display({"text/plain": "small"})
    record.display({"image/png": "x" * 2000})
    record.display({"text/plain": "small too"})
    assert [bundle for _, bundle in record.displays] == [
        {"text/plain": "small"},
        {"text/plain": "[display of 2000 bytes left out: over the cap of this call]"},
        {"text/plain": "small too"},
    ]
    assert record.dropped_displays == 1


def test_replaced_and_cleared_output_makes_room() -> None:
    record = CallRecord(call_id="c", data_left=1000)
    for number in range(50):
        record.display({"image/png": str(number) * 400}, display_id="d", update=number > 0)
    assert record.displays == [("d", {"image/png": "49" * 400})]
    for number in range(50):
        record.clear()
        record.display({"image/png": f"{number:02}" * 400})
    assert record.displays == [("", {"image/png": "49" * 400})]
    for number in range(50):
        record.show_result({"text/plain": f"{number:02}" * 50})
    assert record.result == {"text/plain": "49" * 50}
    assert record.dropped_displays == 0


def test_clear_output_that_waits() -> None:
    record = CallRecord(call_id="c")
    record.take("stdout", "old")
    record.clear(wait=True)
    assert record.text("stdout") == "old"
    record.take("stdout", "new")
    assert record.text("stdout") == "new"
    record.clear(wait=True)
    record.display({"text/plain": "shown"})
    assert record.text("stdout") == ""


def test_an_update_of_an_unknown_display_shows_nothing() -> None:
    record = CallRecord(call_id="c")
    record.display({"text/plain": "x"}, display_id="unknown", update=True)
    assert record.displays == []


class Odd:
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (b"\x00\xff", "AP8="),
        ("caf\udcc3", "caf\\udcc3"),
        ({"a": [1, 2.5]}, {"a": [1, 2.5]}),
        ({"a": "\ud800"}, "[cannot be shown: "),
    ],
)
def test_bundles_hold_json(value: object, shown: object) -> None:
    found = json_bundle({"x/y": value})["x/y"]
    assert found == shown or str(found).startswith(str(shown))


def test_a_bundle_with_an_odd_object_can_be_sent() -> None:
    assert set(json_bundle({"x/y": Odd(), 3: "three"})) == {"x/y", "3"}  # type: ignore[dict-item]  # the oddity


def test_allowance_refills() -> None:
    now_s = 100.0
    allowance = TokenBucket(3, 10.0, clock=lambda: now_s)
    assert [allowance.take() for _ in range(4)] == [True, True, True, False]
    now_s += 0.25
    assert [allowance.take() for _ in range(3)] == [True, True, False]
    now_s += 1000
    assert [allowance.take(2), allowance.take(2)] == [True, False]


def test_prints_of_threads_and_calls_do_not_lose_text(sink: Sink) -> None:
    """Two records written to in turns, from two threads."""

    def write(name: str) -> None:
        sink.recorder.enter(CallRecord(call_id=name))
        for number in range(500):
            sink.out.write(f"{number}\n")

    threads = [threading.Thread(target=write, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sink.out.flush()
    for name in "ab":
        assert sink.text(name).split() == [str(n) for n in range(500)]


# ---- questions


class Questions:
    """An input channel; what the host sends while the main thread waits is set beforehand, in order."""

    def __init__(self, readable: int) -> None:
        self.asked: list[dict[str, Any]] = []
        self.replies: list[Callable[[], None]] = []
        self.channel = InputChannel(
            lambda _op, header, _parts: self.asked.append(dict(header)),
            readable,
            self.read,
        )

    def read(self) -> None:
        self.replies.pop(0)()

    def reply(self, value: str | None) -> Callable[[], None]:
        return lambda: self.channel.receive({"seq": self.asked[-1]["seq"], "value": value})


@pytest.fixture
def questions() -> Iterator[Questions]:
    reading, writing = os.pipe()
    os.write(writing, b"there is always something to read")
    yield Questions(reading)
    os.close(reading)
    os.close(writing)


def test_a_question_waits_for_its_own_answer(questions: Questions) -> None:
    questions.replies = [lambda: questions.channel.receive({"seq": 99, "value": "x"}), questions.reply("yes")]
    assert questions.channel.ask(1, "well?", password=False) == "yes"
    assert questions.asked == [{"id": 1, "seq": 1, "prompt": "well?", "password": False}]
    questions.replies = [questions.reply(None)]
    with pytest.raises(EOFError):
        questions.channel.ask(1, "well?", password=True)


def test_a_cancelled_call_does_not_wait_for_an_answer(questions: Questions) -> None:
    """The frame that cancels it is read while it waits; the signal behind it counts as its echo."""
    questions.replies = [lambda: questions.channel.cancel(2), lambda: questions.channel.cancel(1)]
    with pytest.raises(KeyboardInterrupt):
        questions.channel.ask(1, "well?", password=False)
    assert not questions.replies, "the first one was for another call"
    questions.replies = [questions.reply("yes")]
    assert questions.channel.ask(1, "and now?", password=False) == "yes"


def test_a_call_cancelled_while_it_asks_nothing_may_ask_later(questions: Questions) -> None:
    questions.channel.cancel(1)
    questions.replies = [questions.reply("yes")]
    assert questions.channel.ask(1, "well?", password=False) == "yes"
