"""Messages of a server, read in steps and bounded before the protocol library sees them.

Threat
    A server chooses what it sends: a result of a hundred thousand parts, a list of icons, a notice with
    half a million empty lists. The library validates each message several times, at once, on the event loop,
    and an error of its validation names every part that is wrong.
Mechanism
    One rule for every message and both transports. The brackets and commas of a message are counted before
    anything parses it. What is short and has few is parsed at once. All else is parsed in steps
    (`aisotools.sandbox.parsing`), and what the library gets is a short message: a result is kept here, and
    the library's has a word in its place, for which `Inbox.take` gives it to whoever knows what it answers
    (`aisotools.integrations.mcp.screening`); of a notice only what is short is left.
Race window
    None: a message is complete, and nobody else has it.
When it fails
    A message with too many parts, or that is none, becomes an `UnreadableMessage` that says why.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import io
import re
import secrets
from collections.abc import Iterator, Mapping
from typing import Any

from mcp import types
from mcp.shared.message import SessionMessage
from pydantic_core import from_json, to_json

from aisotools.core.concurrency import gc_paused, in_steps
from aisotools.core.threads import in_thread
from aisotools.sandbox.parsing import (
    MAX_KEYS,
    MAX_NESTED,
    TooManyKeys,
    has_more_parts,
    parse_steps,
    release_steps,
)

MAX_MESSAGE_BYTES = 32 << 20
"""The longest message of a server."""

MAX_CONTAINERS = 1 << 17
"""How many lists and objects one message may have."""

MAX_COMMAS = 1 << 20
"""How many commas between items one message may have."""

MAX_SMALL_PARTS = 1_000
"""How many lists, objects and commas a message may have that the library validates. It takes a few
milliseconds for so many."""

MAX_SMALL_CHARS = 1 << 18
"""How many characters such a message may have when it is longer than what is parsed at once."""

MESSAGE_EVENTS = frozenset({b"event", b"event:", b"event: ", b"event:message", b"event: message"})
"""Lines of events over HTTP that name the kind of which messages are."""

Streams = tuple[Any, Any]
"""The memory streams that the library reads messages from and writes them to."""

_TOO_MANY = (
    f"it has more than {MAX_CONTAINERS:,} lists and objects, {MAX_NESTED:,} of them with others inside, or "
    f"{MAX_COMMAS:,} commas between items; ask for less at a time, or for a text"
)
_MAX_QUICK_BYTES = 1 << 16
_MAX_KEPT_BYTES = 2 * MAX_MESSAGE_BYTES
_MAX_MESSAGE_DEPTH = 120
_MAX_TOKENS = 1_000_000
# To look for the end of a text that long takes up to 30 ms, in which no other thread runs.
_MAX_SEARCHED_BYTES = 1 << 20
_DECODED_BYTES = 1 << 17
_MAX_METHOD_CHARS = 200
_MAX_ID_CHARS = 200
_MAX_PARAMS = 32
_MAX_PARAM_CHARS = 2_000
_END_CHARS = 300
_MAX_DIGITS = 15
_BITS_PER_DIGIT = 3
_MAX_NUMBER = 1e100

_MAX_FIELD_BYTES = 1_000
_RETRY_MS = (1_000, 60_000)
"""The shortest and the longest pause before a stream of events that ended is asked for again."""
_MAX_RETRY_DIGITS = 9

_find_outside = re.compile(rb'["\[\]{}]').search
_find_in_text = re.compile(rb'["\\]').search
_SEARCHED_AT_ONCE = 1 << 18
_match_escape = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
).match
_LONG_NUMBER = re.compile(
    # A text without an end goes up to the end of all: looking for one from each quotation mark would take
    # long. Possessive (`*+`): to be able to go back, the search would note each character, in 100 bytes.
    rb'"(?:[^"\\]++|\\.)*+"?|((?<![0-9.])[0-9]{4001,}+(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?)',
    re.DOTALL,
)
_ID = re.compile(r'"id"\s*:\s*(?:"(\d{1,15})"|(\d{1,15})\b)')
_ANSWER_WORDS = ('"result"', '"error"')


class UnreadableMessage(ValueError):
    """Passed on instead of a message that is none.

    Attributes:
        text: What came.
        reason: Why it is not read, as a clause; empty if it is not JSON, or no message.
    """

    def __init__(self, text: bytes, reason: str = "") -> None:
        super().__init__(reason or "this is not a message of MCP")
        self.text = text
        self.reason = reason


class Inbox:
    """Reads the messages of one connection, and keeps the large results among them until they are taken."""

    def __init__(self) -> None:
        """Keep nothing yet."""
        # Drawn for this connection: a server cannot name what it, or another one, has sent before.
        self._key = f"aisotools/kept-{secrets.token_hex(16)}"
        self._results: dict[int, tuple[dict[str, Any], int]] = {}
        self._count = 0

    async def read(self, text: bytes) -> SessionMessage | UnreadableMessage:
        """Return a message in a form that the library reads in a few milliseconds."""
        if is_quickly_read(text):
            return parse_message(text)
        await asyncio.sleep(0)  # to put it together from what has come took a while
        built: list[Any] = []
        try:
            if await in_steps(has_more_parts(text, MAX_CONTAINERS, MAX_COMMAS, MAX_NESTED)):
                return UnreadableMessage(text, _TOO_MANY)
            with gc_paused():
                value = await _parse(text, built)
            return self._shortened(value, len(text)) or UnreadableMessage(text)
        except TooManyKeys:
            return UnreadableMessage(text, f"an object in it has more than {MAX_KEYS:,} keys; ask for less")
        except ValueError:
            return UnreadableMessage(text)
        finally:
            await in_steps(release_steps(built))

    async def rewrite(self, text: bytes, *, skip: bool = False) -> bytes:
        """Return a message as `read` does, as text; what is none as it came, up to a few kilobytes.

        With `skip`, nothing is returned for what is none.
        """
        if is_quickly_read(text):
            with contextlib.suppress(ValueError):
                _parsed(text)
                return text
        message = await self.read(text)
        if not isinstance(message, UnreadableMessage):
            return message.message.model_dump_json(by_alias=True, exclude_unset=True).encode()
        number = -1 if is_quickly_read(text) else find_id(text)
        if number < 0:
            return b"" if skip else text[:_MAX_QUICK_BYTES]
        reason = f"the answer to it cannot be read{f': {message.reason}' if message.reason else ''}"
        error = {"code": types.PARSE_ERROR, "message": reason}
        return to_json({"jsonrpc": "2.0", "id": number, "error": error})

    def take(self, result: Mapping[str, Any]) -> dict[str, Any]:
        """Return the result that `result` stands for, which is kept no longer; else `result` itself."""
        number = result.get(self._key)
        entry = self._results.pop(number, None) if isinstance(number, int) else None
        return dict(result) if entry is None else entry[0]

    def _shortened(self, message: Any, size: int) -> SessionMessage | None:
        """Return a short message for a large one, whose result is taken out of it; None if it is none."""
        if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
            return None
        number, method = message.get("id"), message.get("method")
        short: dict[str, Any] = {"jsonrpc": "2.0"}
        if "id" in message:
            is_number = type(number) is int and abs(number) < _MAX_NUMBER
            if not is_number and not (isinstance(number, str) and len(number) <= _MAX_ID_CHARS):
                return None
            short["id"] = number
        if isinstance(method, str) and len(method) <= _MAX_METHOD_CHARS:
            short |= {"method": method, "params": _short_params(message.get("params"))}
        elif "id" in message and isinstance(message.get("result"), dict):
            short["result"] = {self._key: self._keep(message.pop("result"), size)}
        elif "id" in message and isinstance(message.get("error"), dict):
            short["error"] = _short_params(message["error"])
        else:
            return None
        return SessionMessage(types.jsonrpc_message_adapter.validate_python(short, by_name=False))

    def _keep(self, result: dict[str, Any], size: int) -> int:
        self._count += 1
        self._results[self._count] = result, size
        # An answer may get lost on its way to whoever takes its result: the request was cancelled.
        while sum(of_one for _, of_one in self._results.values()) > _MAX_KEPT_BYTES:
            self._results.pop(next(iter(self._results)))
        return self._count


async def _parse(text: bytes, built: list[Any]) -> Any:
    """Parse a message of any length. What the parser does not take is replaced, as by `parse_message`."""
    try:
        return await in_steps(parse_steps(text, built))
    except TooManyKeys:
        raise
    except ValueError:
        await in_steps(release_steps(built))
    mended = await in_thread(replace_unreadable, text)
    if mended != text:
        with contextlib.suppress(ValueError):
            return await in_steps(parse_steps(mended, built))
        await in_steps(release_steps(built))
    if not await in_thread(_may_be_deep, mended):
        raise ValueError("this is not JSON")
    return await in_steps(parse_steps(await in_thread(cut_depth, mended), built))


def is_quickly_read(text: bytes) -> bool:
    """Return whether the library may validate a message: it is short, and has few parts."""
    return len(text) <= _MAX_QUICK_BYTES and sum(map(text.count, (b",", b"[", b"{"))) <= MAX_SMALL_PARTS


def has_few_parts(value: Any) -> bool:
    """Return whether the library may validate a parsed value: it has at most `MAX_SMALL_PARTS` items."""
    pending, parts_left = [value], MAX_SMALL_PARTS
    while pending:
        item = pending.pop()
        if type(item) in {dict, list}:
            parts_left -= len(item)
            if parts_left < 0:
                return False
            pending += item.values() if type(item) is dict else item
    return True


def has_few_chars(value: Any) -> bool:
    """Return whether a value with few parts has at most `MAX_SMALL_CHARS` characters and digits."""
    pending, chars_left = [value], MAX_SMALL_CHARS
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            chars_left -= len(item)
        elif isinstance(item, int):
            chars_left -= item.bit_length() // _BITS_PER_DIGIT
        elif type(item) in {dict, list}:
            pending += [*item, *item.values()] if type(item) is dict else item
    return chars_left >= 0


def _short_params(params: Any) -> dict[str, Any]:
    """Return the first members of an object that are numbers, truth values, or texts, which are cut."""
    short: dict[str, Any] = {}
    for key, value in params.items() if isinstance(params, dict) else ():
        if len(short) >= _MAX_PARAMS:
            break
        if isinstance(value, str) and len(key) <= _MAX_ID_CHARS:
            short[key] = value[:_MAX_PARAM_CHARS]
        elif isinstance(value, int | float) and abs(value) < _MAX_NUMBER and len(key) <= _MAX_ID_CHARS:
            short[key] = value
    return short


def parse_message(line: bytes) -> SessionMessage | UnreadableMessage:
    """Parse one message at once.

    What the parser does not take, although it is JSON, is left out or replaced: the deepest parts of values,
    half characters, and numbers of thousands of digits. One tool or result with such a thing must not make
    the list of all tools unreadable.
    """
    with contextlib.suppress(ValueError):
        return _parsed(line)
    text = replace_unreadable(line)
    with contextlib.suppress(ValueError):
        return _parsed(text)
    if _may_be_deep(text):
        with contextlib.suppress(ValueError):
            return _parsed(cut_depth(text))
    return UnreadableMessage(line)


def _may_be_deep(text: bytes) -> bool:
    """Return whether `cut_depth` may help, within a second."""
    brackets = _count(text, b"{", b"[")
    return _MAX_MESSAGE_DEPTH < brackets < _MAX_TOKENS - _count(text, b'"', b"\\")


def _count(text: bytes, *signs: bytes) -> int:
    """Count signs, at least up to `_MAX_TOKENS`. Other threads run in between."""
    count = 0
    for at in range(0, len(text), _SEARCHED_AT_ONCE):
        for sign in signs:
            count += text.count(sign, at, at + _SEARCHED_AT_ONCE)
        if count > _MAX_TOKENS:
            break
    return count


def _parsed(text: bytes) -> SessionMessage:
    parsed: Any = types.jsonrpc_message_adapter.validate_json(text, by_name=False)
    return SessionMessage(parsed)


def replace_unreadable(text: bytes) -> bytes:
    """Return JSON with U+FFFD for each half of a character, and a remark instead of each very long number.

    In a long message numbers are left as they are.

    Raises:
        ValueError: If that makes it longer than a message may be.
    """
    if not text.isascii():
        text = _replace_bytes(text)
    if _count(text, b"\\") < _MAX_TOKENS:
        text = _replace_halves(text)
    if len(text) <= _MAX_SEARCHED_BYTES and _count(text, b'"') < _MAX_TOKENS:
        remark = b'"(a number of thousands of digits)"'
        text = _LONG_NUMBER.sub(lambda token: remark if token[1] else token[0], text)
    return text


def _replace_bytes(text: bytes) -> bytes:
    """Return UTF-8 with U+FFFD for what is none. Other threads run in between."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    replaced = io.BytesIO()  # its value is not a copy
    for at in range(0, len(text), _DECODED_BYTES):
        end = at + _DECODED_BYTES
        replaced.write(decoder.decode(text[at:end], final=end >= len(text)).encode())
        if replaced.tell() > MAX_MESSAGE_BYTES:
            raise ValueError("this is not UTF-8")
    return replaced.getvalue()


def _replace_halves(text: bytes) -> bytes:
    """Return JSON with U+FFFD for each escape of half a character. Other threads run in between."""
    replaced = io.BytesIO()
    start, at = 0, text.find(b"\\")
    while at >= 0:
        escape = _match_escape(text, at)
        end = escape.end() if escape else at + 1
        if escape and escape[1]:
            replaced.write(text[start:at])
            replaced.write(rb"\ufffd")
            start = end
        at = text.find(b"\\", end)
    if not start:
        return text
    replaced.write(text[start:])
    return replaced.getvalue()


def cut_depth(text: bytes) -> bytes:
    """Return JSON with a remark instead of each value that is nested more than `_MAX_MESSAGE_DEPTH` deep."""
    pieces: list[bytes] = []
    depth = start = 0
    for token in _brackets(text):
        if token[0] in {b"{", b"["}:
            depth += 1
            if depth == _MAX_MESSAGE_DEPTH + 1:
                pieces.append(text[start : token.start()])
        elif token[0] in {b"}", b"]"}:
            if depth == _MAX_MESSAGE_DEPTH + 1:
                pieces.append(b'"(nested too deep)"')
                start = token.end()
            depth -= 1
    return b"".join([*pieces, text[start:]])


def _brackets(text: bytes) -> Iterator[re.Match[bytes]]:
    """Yield the brackets outside of texts. Other threads run in between, also within a long text."""
    at, is_text = 0, False
    while at < len(text):
        end = at + _SEARCHED_AT_ONCE
        found = _find_in_text(text, at, end) if is_text else _find_outside(text, at, end)
        if found is None:
            at = end
            continue
        at = found.end()
        if found[0] == b'"':
            is_text = not is_text
        elif is_text:
            at += 1  # what is escaped
        else:
            yield found


def request_number(value: object) -> int:
    """Return the id of a request as a number; -1 for what is none of ours."""
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= _MAX_DIGITS:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else -1


def kept_field(line: bytes) -> bytes:
    """Return a line of an event that holds no data if it is one that the library needs, else nothing."""
    name, _, value = line.partition(b":")
    value = value.removeprefix(b" ")
    if name == b"retry" and value.isdigit():
        # Without a pause the library would connect over and over, each time within the time before.
        shortest, longest = _RETRY_MS
        return b"retry: %d" % min(max(int(value[:_MAX_RETRY_DIGITS]), shortest), longest)
    if name == b"event":
        return line[:_MAX_FIELD_BYTES]
    return line if name in {b"id", b""} and len(line) <= _MAX_FIELD_BYTES else b""


def find_id(text: bytes) -> int:
    """Return the id in a message that cannot be read; -1 if none can be made out."""
    if is_quickly_read(text):
        with contextlib.suppress(ValueError):
            parsed = from_json(text)
            for entry in parsed if isinstance(parsed, list) else [parsed]:
                # With nothing but a number it is an answer without the rest; with other members, a line of a
                # log.
                if isinstance(entry, Mapping) and (
                    entry.keys() & {"result", "error"} or entry.keys() <= {"jsonrpc", "id"}
                ):
                    return request_number(entry.get("id"))
            return -1
    # Broken JSON, or too large to be parsed. Near its ends only: further in, an "id" may be one of the data.
    ends = (text[:_END_CHARS] + b"\n" + text[max(_END_CHARS, len(text) - _END_CHARS) :]).decode(
        "utf-8", "replace"
    )
    found = _ID.search(ends) if looks_like_answer(text) else None
    return int(found[1] or found[2]) if found else -1


def looks_like_answer(text: bytes) -> bool:
    """Return whether a text that cannot be read was meant as an answer: by its words, or cut before them."""
    head = text[:_END_CHARS].decode("utf-8", "replace")
    return any(word in head for word in _ANSWER_WORDS) or ('"jsonrpc"' in head and '"method"' not in head)
