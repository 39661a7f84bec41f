from __future__ import annotations

import contextlib
import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from pydantic_core import to_json

from aisotools.core.concurrency import at_once
from aisotools.core.exceptions import ChannelError, WorkerDied
from aisotools.core.protocols import OutputCaps
from aisotools.core.types import ToolResult
from aisotools.sandbox.frames import LIMITS
from aisotools.sandbox.host.failures import worker_died_result
from aisotools.sandbox.results import (
    VALUE_DROPPED,
    PrintedOutput,
    cut,
    encode_result,
    piece_limits,
    result_from_worker,
    result_steps,
)

CAPS = OutputCaps()
SMALL = OutputCaps(content_chars=2000, stream_bytes=1000, value_bytes=1000, data_bytes=1000)


def printed(cap: int = 1 << 20) -> PrintedOutput:
    return PrintedOutput(cap)


def there(result: ToolResult, caps: OutputCaps = CAPS, output: PrintedOutput | None = None) -> ToolResult:
    """The result as it arrives."""
    return result_from_worker(encode_result(result, caps), caps, output or printed())


@pytest.mark.parametrize("count", [100, 101, 10_000])
def test_data_of_many_types_is_cut_in_the_worker_and_refused_by_the_host(count: int) -> None:
    """A worker of ours sends a hundred, and says how many more there were."""
    data = {f"text/x-{number}": "x" for number in range(count)}
    result = there(ToolResult(content="", data=data))
    assert len(result.data) == 100
    dropped = result.metadata.get("data_dropped", [])
    assert len(dropped) == (0 if count == 100 else min(count - 100, 21))
    if count == 10_000:
        assert dropped[-1] == "9,880 more"
    head = to_json({"content": "x"})
    forged = result_from_worker((head, b"", to_json(data), b""), CAPS, printed())
    if count > 100:
        assert forged.data == {}
        assert forged.metadata["data_dropped"].startswith(
            f"The data has {count:,} MIME types; 100 are passed on. Write"
        )


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(values, st.text(), st.booleans())
def test_results_arrive_as_they_left(value: Any, content: str, is_error: bool) -> None:
    result = ToolResult(
        content=content,
        is_error=is_error,
        recoverable=is_error,
        error_kind="invalid" if is_error else None,
        kind="json",
        value=value,
        data={"text/plain": content},
        metadata={"a": value},
    )
    assert there(result) == result


@pytest.mark.parametrize(
    "result",
    [
        ToolResult.success("ok"),
        ToolResult.json([1, {"a": None}]),
        ToolResult.binary(b"\x00\xff", "image/png"),
        ToolResult.error("no", recoverable=False, error_kind="denied"),
        ToolResult.error("no", error_kind="environment"),
    ],
)
def test_every_kind(result: ToolResult) -> None:
    assert there(result) == result


def test_value_over_its_cap_is_left_out_with_a_note() -> None:
    result = there(ToolResult.json(["x" * 100] * 20), SMALL)
    assert result.value is None
    assert not result.is_error
    assert result.content.startswith('["xxx')
    assert "The value has 2061 bytes as JSON; 1000 are passed on" in result.content
    assert "file in the workspace" in result.metadata[VALUE_DROPPED]


def test_the_host_does_not_trust_the_source_to_have_capped() -> None:
    big = ToolResult(
        content="c", value="v" * 5000, data={"text/plain": "d" * 5000}, metadata={"m": "m" * 5_000_000}
    )
    result = result_from_worker(encode_result(big, CAPS), SMALL, printed())
    assert result.value is None
    assert result.data == {}
    assert "m" not in result.metadata
    assert {VALUE_DROPPED, "data_dropped", "metadata_dropped"} <= set(result.metadata)


def test_pieces_that_were_not_kept_are_noted_with_their_sizes() -> None:
    """The channel drops what is larger than `piece_limits` while it comes."""
    limits = piece_limits(SMALL)
    dropped = {1: limits[1] + 1, 2: limits[2] + 1, 3: limits[3] + 1}
    steps = result_steps((to_json({"content": "c"}), b"", b"", b""), SMALL, printed(), dropped)
    result = at_once(steps)
    assert (result.value, result.data) == (None, {})
    for number, key in enumerate((VALUE_DROPPED, "data_dropped", "metadata_dropped"), start=1):
        assert f"has {dropped[number]} bytes as JSON; {limits[number]} are" in result.metadata[key]
    with pytest.raises(ChannelError, match="the head of a result was refused"):
        at_once(result_steps((b"", b"", b"", b""), SMALL, printed(), {0: 10}))


def test_pieces_of_exactly_their_limits_are_taken() -> None:
    values = [json.dumps("x" * (limit - 2)).encode() for limit in piece_limits(SMALL)[1:2]]
    result = result_from_worker((to_json({"content": "c"}), values[0], b"", b""), SMALL, printed())
    assert len(result.value) == SMALL.value_bytes - 2


def test_of_data_over_its_cap_the_small_types_stay() -> None:
    bundle = {"image/png": "x" * 5000, "text/plain": "a figure", "text/html": "y" * 900}
    result = there(ToolResult(content="", data=bundle), SMALL)
    assert result.data == {"text/plain": "a figure", "text/html": "y" * 900}
    assert result.metadata["data_dropped"] == ["image/png"]


@pytest.mark.parametrize("claim", [True, 1, "yes"])
def test_worker_cannot_say_that_a_call_ran_without_write_rights(claim: object) -> None:
    metadata = to_json({"in_reader": claim, "ran_read_only": claim, "other": 1})
    assert result_from_worker(pieces(metadata=metadata), CAPS, printed()).metadata == {"other": 1}


def test_metadata_over_its_cap_is_left_out() -> None:
    result = there(ToolResult(content="", metadata={"big": "x" * 3_000_000}), SMALL)
    assert result.metadata == {"metadata_dropped": 3_000_010}


def test_long_content_arrives_whole_and_travels_once() -> None:
    text = "".join(f"line {n}\n" for n in range(20_000))
    for result in (ToolResult.text(text), ToolResult.json({"a": 1, "content": text}, text)):
        pieces = encode_result(result, CAPS)
        assert sum(map(len, pieces)) < 1.2 * len(text)
        arrived = result_from_worker(pieces, CAPS, printed())
        assert (arrived.content, arrived.value, arrived.truncation) == (text, result.value, None)


def test_content_over_the_cap_of_what_is_kept_arrives_cut_with_its_length() -> None:
    text = "".join(f"line {n}\n" for n in range(20_000))
    caps = OutputCaps(kept_chars=10_000)
    result = there(ToolResult(content=text, value=1), caps)
    assert result.truncation is not None
    assert result.truncation.total_chars == len(text)
    assert len(result.content) <= 10_000
    assert result.content.startswith("line 0\n")
    assert result.content.endswith("line 19999\n")
    assert result.truncation.note in result.content


def test_a_worker_cannot_send_more_content_than_is_kept() -> None:
    with pytest.raises(ChannelError):
        result_from_worker(
            pieces({"content": "x" * 1_000_000}), OutputCaps(content_chars=1000, kept_chars=1000), printed()
        )
    frames = pieces(HEAD | {"content": "x" * 9_000_000})
    assert len(result_from_worker(frames, CAPS, printed()).content) <= CAPS.kept_chars
    for key in ("nosuch", "n", 3, None, ["a"]):
        frames = pieces(HEAD | {"content_key": key}, value=b'{"n": 1}')
        assert result_from_worker(frames, CAPS, printed()).content == HEAD["content"]


@given(st.text(max_size=300), st.integers(0, 200))
def test_cut(text: str, most: int) -> None:
    short, truncation = cut(text, most)
    if len(text) <= most:
        assert (short, truncation) == (text, None)
    else:
        assert truncation is not None
        assert truncation.shown_chars <= most
        assert truncation.total_chars == len(text)


@pytest.mark.parametrize("text", ["", "x" * 100_000, 'äöü\n\0"', "null", "[1]"])
def test_text_stays_text(text: str) -> None:
    result = ToolResult(content="c", value=text)
    assert there(result) == result


def test_forged_text_is_text() -> None:
    frames = pieces(HEAD | {"value_is_text": True}, value=b"\xff\xfe[")
    assert result_from_worker(frames, CAPS, printed()).value == "\ufffd\ufffd["
    frames = pieces(HEAD | {"value_is_text": 1}, value=b"[]")
    assert result_from_worker(frames, CAPS, printed()).value == []


class Odd:
    def __repr__(self) -> str:
        return "odd"


@pytest.mark.parametrize(
    ("value", "arrives"),
    [
        ({"name": "caf\udcc3"}, {"name": "caf\\udcc3"}),
        (["\ud800", b"\xff", {"\udfff": ("\ud800",)}], ["\\ud800", "\\xff", {"\\udfff": ["\\ud800"]}]),
        ({1: {2}}, {"1": [2]}),
        (Odd(), "odd"),
        (float("nan"), "NaN"),
        ([float("inf"), -float("inf")], ["Infinity", "-Infinity"]),
    ],
)
def test_values_outside_json_are_spelled_out(value: object, arrives: object) -> None:
    assert there(ToolResult(content="", value=value)).value == arrives


def test_a_value_nested_too_deep_is_left_out() -> None:
    value: list[Any] = []
    for _ in range(230):
        value = [value]
    result = there(ToolResult(content="deep", value=value))
    assert result.value is None
    assert "cannot be read" in result.metadata[VALUE_DROPPED]
    assert not result.is_error


def test_a_value_that_holds_itself() -> None:
    value: list[Any] = []
    value.append(value)
    assert there(ToolResult(content="", value=value)).value == ["..."]


def test_everything_at_its_cap_still_fits_one_frame() -> None:
    caps = OutputCaps(content_chars=10_000_000, stream_bytes=1 << 24, value_bytes=1 << 30, data_bytes=1 << 30)
    big = ToolResult(
        content="\0" * 2_000_000,
        value="v" * (30 << 20),
        data={"a/a": "d" * (30 << 20), "b/b": "d" * (20 << 20)},
        metadata={"m": "m" * (30 << 20)},
    )
    pieces = encode_result(big, caps)
    assert sum(map(len, pieces)) <= LIMITS.body_bytes
    result = result_from_worker(pieces, caps, printed())
    assert len(result.value) == 30 << 20
    assert list(result.data) == ["b/b"]
    assert "metadata_dropped" in result.metadata


# ---- hostile pieces


HEAD: dict[str, Any] = {"content": "c", "kind": "text"}


def pieces(head: Any = HEAD, value: bytes = b"", data: bytes = b"", metadata: bytes = b"") -> list[bytes]:
    return [head if isinstance(head, bytes) else json.dumps(head).encode(), value, data, metadata]


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        (b"[" * 400_000, "the head of a result was refused: The head has too many parts"),
        (b"{", "the head of a result was refused: The head cannot be read: EOF while parsing"),
    ],
)
def test_head_that_is_refused_is_named_in_one_clause(head: bytes, reason: str) -> None:
    """It becomes a part of a sentence that ends with a full stop, and that asks the worker for nothing."""
    with pytest.raises(ChannelError) as raised:
        result_from_worker(pieces(head), CAPS, printed())
    assert str(raised.value).startswith(reason)
    assert not str(raised.value).endswith(".")
    assert "instead" not in str(raised.value)
    content = worker_died_result(WorkerDied(f"it sent a malformed result: {raised.value}"), None).content
    assert ".." not in content


@pytest.mark.parametrize(
    "hostile",
    [
        [],
        [b"{}"],
        [b"", b"", b"", b"", b""],
        pieces(b""),
        pieces(b"[]"),
        pieces(b"\xff"),
        pieces(b"[" * 3000),
        pieces({}),
        pieces({"content": None}),
        pieces({"content": 3}),
        pieces({"content": "c", "kind": "html"}),
        pieces({"content": "c", "kind": ["text"]}),
    ],
    ids=lambda hostile: str(hostile)[:40],
)
def test_a_malformed_head_breaks_the_protocol(hostile: list[bytes]) -> None:
    with pytest.raises(ChannelError):
        result_from_worker(hostile, CAPS, printed())


@pytest.mark.parametrize(
    "data",
    [b"[", b"\xff", b"NaN", b"9" * 100_000, b"[" * 100_000, b'"\\ud800"', b"{" * 10],
    ids=lambda d: repr(d[:10]),
)
def test_a_piece_that_cannot_be_read_is_left_out(data: bytes) -> None:
    result = result_from_worker(pieces(value=data, data=data, metadata=data), CAPS, printed())
    assert result.value is None
    assert result.data == {}
    assert {VALUE_DROPPED, "data_dropped", "metadata_dropped"} <= set(result.metadata)


@pytest.mark.parametrize("text", ["[" * 900_000, "\x1b[0m" * 300_000, "{[,\t" * 300_000, '"[' * 300_000])
def test_brackets_in_printed_text_are_no_parts(text: str) -> None:
    caps = dataclasses.replace(CAPS, content_chars=2 << 20)
    result = ToolResult(content=text, value={"stdout": text}, metadata={"stdout": text})
    decoded = result_from_worker(encode_result(result, caps), caps, printed())
    assert decoded.content == text
    assert decoded.value == {"stdout": text}
    assert "metadata_dropped" not in decoded.metadata


@pytest.mark.parametrize("data", [b"[1]", b'"x"', b"3", b"true"])
def test_data_and_metadata_are_objects(data: bytes) -> None:
    result = result_from_worker(pieces(data=data, metadata=data), CAPS, printed())
    assert result.data == {}
    assert set(result.metadata) == {"data_dropped", "metadata_dropped"}


@pytest.mark.parametrize(
    "data",
    [
        b"[" + b"[]," * 5_000_000 + b"[]]",
        b"[" + b"{}," * 2_000_000 + b"{}]",
        b"[" + b"1," * 7_000_000 + b"1]",
    ],
)
def test_few_bytes_cannot_swell_the_host(data: bytes) -> None:
    assert len(data) <= CAPS.value_bytes
    result = result_from_worker(pieces(value=data), CAPS, printed())
    assert result.value is None
    assert "too many parts" in result.metadata[VALUE_DROPPED]


@pytest.mark.parametrize(
    "truncation",
    [
        3,
        {"total_chars": "9", "shown_chars": 1},
        {"total_chars": 1, "shown_chars": 9},
        {"total_chars": True, "shown_chars": False},
        {"total_chars": 10**30, "shown_chars": 1},
        {"total_chars": 5, "shown_chars": -1},
    ],
)
def test_a_forged_truncation_is_none(truncation: object) -> None:
    assert result_from_worker(pieces(HEAD | {"truncation": truncation}), CAPS, printed()).truncation is None


@pytest.mark.parametrize("kind", [None, 3, [], {}, "severe"])
def test_a_forged_error_is_a_plain_failure(kind: object) -> None:
    result = result_from_worker(pieces(HEAD | {"is_error": True, "error_kind": kind}), CAPS, printed())
    assert (result.is_error, result.recoverable, result.error_kind) == (True, False, "failed")
    assert result_from_worker(pieces(HEAD | {"is_error": 1}), CAPS, printed()).is_error is False


@settings(max_examples=3 * settings().max_examples)
@given(st.lists(st.binary(max_size=60), max_size=5), values)
def test_anything_else_is_a_result_or_a_channel_error(garbage: list[bytes], value: Any) -> None:
    for frames in (garbage, pieces(json.dumps(value).encode(), *garbage[:3])):
        with contextlib.suppress(ChannelError):
            result = result_from_worker(frames, CAPS, printed())
            assert isinstance(result.content, str)
            assert isinstance(result.metadata, dict)


# ---- what was printed


def test_printed_text_becomes_metadata() -> None:
    output = printed()
    output.add("stdout", "out")
    output.add("stderr", "err")
    result = there(ToolResult.text("r"), output=output)
    assert result.content == "r"
    assert result.metadata == {"stdout": "out", "stderr": "err"}


def test_result_with_the_output_already_in_it_is_unchanged() -> None:
    output = printed()
    output.add("stdout", "out\n")
    returned = ToolResult(content="out\n3", value={"stdout": "out\n"}, metadata={"streams_taken": True})
    assert there(returned, output=output) == ToolResult(content="out\n3", value={"stdout": "out\n"})


def test_unless_programs_wrote_past_it() -> None:
    output = printed()
    output.add("stdout", "one\n")
    output.add_raw("stdout", b"two\n")
    output.add("stdout", "three\n")
    output.add_raw("stderr", b"oh\n")
    returned = ToolResult(
        content="one\nthree\n42",
        value={"result": "42", "stdout": "one\nthree\n"},
        metadata={"streams_taken": True},
    )
    result = there(returned, output=output)
    assert result.content == "one\ntwo\nthree\noh\n42"
    assert result.value == {"result": "42", "stdout": "one\ntwo\nthree\n", "stderr": "oh\n"}


def test_dropped_output_is_noted() -> None:
    output = printed(5)
    output.add("stdout", "123")
    output.add_raw("stdout", b"abcd")
    output.add_raw("stdout", b"efgh")
    output.add("stderr", "4567")
    assert output.texts() == {"stdout": "123abcde", "stderr": "45"}
    assert output.dropped_bytes == 5
    taken = ToolResult(
        content="123", value={"stdout": "123"}, metadata={"streams_taken": True, "dropped_bytes": 10}
    )
    result = there(taken, output=output)
    assert result.metadata["dropped_bytes"] == 15
    assert "15 more bytes of printed output were dropped" in result.content


def test_output_after_the_end_gets_the_rest_of_the_cap() -> None:
    output = printed(5)
    output.add("stdout", "123")
    rest = output.remainder()
    assert rest.add("stdout", "4567") == "45"
    assert rest.add_raw("stdout", b"abcdef") == "abcde"
    assert output.texts() == {"stdout": "123"}


@given(st.text(alphabet=st.characters(codec="utf-8")), st.data())
def test_characters_survive_being_read_in_pieces(text: str, data: st.DataObject) -> None:
    raw, output = text.encode(), printed()
    place = data.draw(st.integers(0, len(raw)))
    for piece in (raw[:place], raw[place:]):
        output.add_raw("stdout", piece)
    assert output.texts().get("stdout", "") == text


@given(st.lists(st.tuples(st.booleans(), st.text(), st.binary()), max_size=20), st.integers(0, 100))
def test_the_cap_holds_whatever_comes(chunks: list[tuple[bool, str, bytes]], cap: int) -> None:
    output = printed(cap)
    for raw, text, data in chunks:
        if raw:
            output.add_raw("stderr", data)
        else:
            output.add("stdout", text)
    assert sum(len(text.encode()) for text in output.texts().values()) <= 2 * cap
