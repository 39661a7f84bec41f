"""Large JSON and text from a worker, read in steps, so that the event loop goes on in between.

Threat
    A worker chooses what it sends: megabytes of empty lists, of numbers or of escaped characters. The parser
    holds the interpreter's lock until it is done, so a thread would not keep the event loop free either.
    What was parsed costs time once more whenever the garbage collector looks at all of it.
Mechanism
    `parse_steps` cuts the text into parts of some kilobytes at commas, and parses each as a list or an object
    of its own. A part that was cut elsewhere than between two items is not JSON, since it ends within a text
    or lacks a bracket; so where to cut may be guessed, and a guess that fails is followed by a search that
    reads every text and bracket of the part. An item that is larger than a part is opened, and what it holds
    is cut in turn; a long text is parsed in pieces. `has_more_parts` counts first what the collector would
    have to look at. `decode_steps` appends one piece after the other to a text, which moves none of it.
Race window
    None: the text is complete, and nobody else has it.
When it fails
    It is malformed, or nested so deeply that finding where to cut would take more than a few looks at all of
    it, or there are more blanks behind a number than a part has, or an object has too many keys, or a text
    takes more memory than `MAX_TEXT_BYTES`: `ValueError`, as the parser itself raises.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Generator
from typing import Any, NamedTuple

from pydantic_core import from_json

STEP_BYTES = 1 << 16
"""How much is parsed at once: one to eight milliseconds, depending on what it is."""

# What is a little larger and has few items is parsed at once as well: that takes less than to look for places
# to cut. A text of that length takes a millisecond, and so many keys take five.
_PLAIN_BYTES = 1 << 18
_PLAIN_ITEMS = 4_000

# As deep as the parser itself goes.
_MAX_DEPTH = 200
MAX_KEYS = 250_000
"""How many keys one object may have. A dict grows all at once: with 700,000 keys, that takes 50 ms."""
MAX_NESTED = 1 << 15
"""How many lists and objects may hold others. The collector of garbage goes back and forth between them: so
many that are nested deeply take 15 ms, and four times as many 70 ms. As many rows of a table take 3 ms."""
MAX_TEXT_BYTES = 64 << 20
"""How much memory a text may take. A single wide character makes all the others four times as large, in one
go: to become so large takes 30 ms."""

_TEXT_STEP_BYTES = 1 << 20
_COUNT_STEP_BYTES = 1 << 20

# How many items are freed at once.
_RELEASED_ITEMS = 2_000
# How often each byte may be looked at in search of a place to cut.
_MAX_LOOKS = 16
# An escape in a text, or a pair of them that makes one character, has at most so many bytes.
_ESCAPE_BYTES = 12

# A text may be cut off by the end of the part.
_find_tokens = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?|[][{},]', re.DOTALL).finditer
_match_text = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL).match
_ESCAPE = re.compile(rb"\\.", re.DOTALL)
_match_space = re.compile(rb"[ \t\n\r]*").match
_OPENING = {b"[": b"]", b"{": b"}"}
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_is_wide = re.compile("[^\0-\xff]").search
_is_widest = re.compile("[\U00010000-\U0010ffff]").search
# What an item that begins with this ends with, when another one follows.
_ENDS = {b"{": b"},", b"[": b"],", b'"': b'",'}


def has_more_parts(
    data: bytes, containers: int, commas: int, nested: int | None = None
) -> Generator[None, None, bool]:
    """Return, in steps, whether there are more lists and objects, or commas between items, than that.

    An empty list takes 3 bytes in a text and 64 in memory.

    Args:
        data: The JSON.
        containers: How many lists and objects are too many, if there is one more.
        commas: The same for commas between items.
        nested: The same for lists and objects that hold others; any number without it.
    """
    counts = [0, 0, 0]
    for start in range(0, len(data), _COUNT_STEP_BYTES):
        for number, sign in enumerate((b"[", b"{", b",")):
            counts[number] += data.count(sign, start, start + _COUNT_STEP_BYTES)
        yield
    found = counts[0] + counts[1]
    if found <= containers and counts[2] <= commas and (nested is None or found <= nested):
        return False
    # Many of them may stand in texts, such as printed text with colours. To tell takes several times as long.
    exact = yield from _count_parts(data)
    return exact[0] > containers or exact[1] > commas or (nested is not None and exact[2] > nested)


def _count_parts(data: bytes) -> Generator[None, None, tuple[int, int, int]]:
    """Count containers, commas, and containers that hold others, outside of texts.

    Of what is not JSON, count those of some reading of it.
    """
    containers = commas = empty = at = 0
    is_text = False
    last = b""  # an opening bracket that nothing has followed yet
    while at < len(data):
        end = at + STEP_BYTES
        part = data[at:end]
        if (len(part) - len(part.rstrip(b"\\"))) % 2:
            # The part ends within an escape, to which the next byte belongs.
            end += 1
            part = data[at:end]
        at = end
        pieces = (_ESCAPE.sub(b"", part) if b"\\" in part else part).split(b'"')
        # Every other piece is a text; the first one is if the part before has ended within one.
        plain = b" ".join(pieces[int(is_text) :: 2])
        commas += plain.count(b",")
        is_text ^= len(pieces) % 2 == 0
        brackets = plain.translate(None, _NO_BRACKETS)
        containers += brackets.count(b"[") + brackets.count(b"{")
        brackets = last + brackets
        # What closes right after it has opened holds no other container.
        empty += brackets.count(b"[]") + brackets.count(b"{}")
        last = brackets[-1:] if brackets[-1:] in _OPENING else b""
        yield
    return containers, commas, containers - empty


class TooManyKeys(ValueError):
    """An object of a text has more than `MAX_KEYS` keys, or than its reader allows."""


def decode_steps(data: bytes, errors: str = "strict") -> Generator[None, None, str]:
    """Decode UTF-8 in steps. `errors` is as for `bytes.decode`.

    Raises:
        ValueError: If it cannot be decoded, or takes more than `MAX_TEXT_BYTES` as a text.
    """
    # Plain text is copied as it is. Of the largest that takes 30 ms, as long as to join pieces.
    if len(data) <= _TEXT_STEP_BYTES or data.isascii():
        return data.decode("utf-8", errors)
    decoder = codecs.getincrementaldecoder("utf-8")(errors)
    pieces, length, char_bytes = [], 0, 1
    for start in range(0, len(data), _TEXT_STEP_BYTES):
        end = start + _TEXT_STEP_BYTES
        piece = decoder.decode(data[start:end], final=end >= len(data))
        pieces.append(piece)
        length += len(piece)
        char_bytes = max(char_bytes, _char_bytes(piece))
        _check_text_size(length * char_bytes)
        yield
    # Copied once, which takes up to 30 ms. A text that is added to grows in place, or is copied each time:
    # the allocator chooses by what was freed before.
    return "".join(pieces)


def _char_bytes(text: str) -> int:
    """Return how many bytes each character of a text takes in memory."""
    if text.isascii():
        return 1
    return 4 if _is_widest(text) else 2 if _is_wide(text) else 1


def _check_text_size(size: int) -> None:
    if size > MAX_TEXT_BYTES:
        raise ValueError(
            f"a text takes more than {MAX_TEXT_BYTES:,} bytes of memory; write it to a file in the workspace "
            "instead"
        )


def parse_steps(
    data: bytes,
    built: list[Any] | None = None,
    *,
    allow_inf_nan: bool = False,
    max_keys: int = MAX_KEYS,
) -> Generator[None, None, Any]:
    """Parse JSON, one step between two `yield`. Return the value.

    Args:
        data: The JSON.
        built: Gets the value as soon as it is begun, for `release_steps`, however the parsing ends.
        allow_inf_nan: Take `NaN` and `Infinity` as numbers.
        max_keys: How many keys one object may have.

    Raises:
        TooManyKeys: If an object has more keys.
        ValueError: If it is not JSON, or nested too deeply.
    """
    built = [] if built is None else built
    if len(data) <= STEP_BYTES or _is_plain(data):
        value = _parse(data, allow_inf_nan)
        built.append(value)
        return value
    return (yield from _SteppedParser(data, allow_inf_nan, max_keys).steps(built))


def release_steps(values: list[Any]) -> Generator[None, None, None]:
    """Take JSON values apart in steps, and with them the list that they stand in.

    To free a million objects at once takes some 50 milliseconds, in which nothing else runs. The lists and
    objects themselves are emptied, so nobody else may need them.
    """
    while values:
        value = values[-1]
        if type(value) is list and value:
            part = value[-_RELEASED_ITEMS:]
            del value[-_RELEASED_ITEMS:]
        elif type(value) is dict and value:
            part = [value.popitem()[1] for _ in range(min(len(value), _RELEASED_ITEMS))]
        else:
            values.pop()
            continue
        values.extend([item for item in part if item and type(item) in {list, dict}])
        del part
        yield


def _is_plain(data: bytes) -> bool:
    return len(data) <= _PLAIN_BYTES and sum(map(data.count, (b",", b"[", b"{"))) <= _PLAIN_ITEMS


def _parse(data: bytes, allow_inf_nan: bool) -> Any:
    return from_json(data, allow_inf_nan=allow_inf_nan, cache_strings="keys")


class _Container(NamedTuple):
    """A list or an object of which some items have been parsed."""

    items: Any
    opening: bytes
    closing: bytes


class _SteppedParser:
    """What is known while a text is parsed: the containers that are open, and how far it is parsed."""

    def __init__(self, data: bytes, allow_inf_nan: bool, max_keys: int) -> None:
        self._data = data
        self._allow_inf_nan = allow_inf_nan
        self._max_keys = max_keys
        self._at = 0
        self._stack: list[_Container] = []
        self._needs_item = False  # after a comma
        self._looks_left = _MAX_LOOKS * len(data)

    def steps(self, built: list[Any]) -> Generator[None, None, Any]:
        yield from self._skip_space()
        value = yield from self._open_item(None)
        built.append(value)
        while self._stack:
            container = self._stack[-1]
            end = min(self._at + STEP_BYTES, len(self._data))
            if self._take_guessed(container, end) or (yield from self._take_exact(container, end)):
                yield
                continue
            # No item ends within the part: the first one is larger.
            began = self._at
            yield from self._skip_space()
            if self._at > began:
                continue
            key = None
            if container.opening == b"{":
                key = yield from self._text()
                yield from self._skip_space()
                if self._next() != b":":
                    raise ValueError("expected a colon")
                self._at += 1
                yield from self._skip_space()
            yield from self._open_item(key)
            yield
        yield from self._skip_space()
        if self._at < len(self._data):
            raise ValueError("trailing characters")
        return value

    def _next(self) -> bytes:
        return self._data[self._at : self._at + 1]

    def _skip_space(self) -> Generator[None, None, None]:
        """Go on to what follows a space of any length."""
        while True:
            end = self._at + STEP_BYTES
            found = _match_space(self._data, self._at, end)
            assert found is not None  # it may be empty
            self._at = found.end()
            if self._at < end:
                return
            yield

    # ---- small items, many at once

    def _take_guessed(self, container: _Container, end: int) -> bool:
        """Take the items up to the last comma that seems to stand between two of them."""
        sign = b',"' if container.opening == b"{" else _ENDS.get(self._next(), b",")
        found = self._data.rfind(sign, self._at, end)
        if found < 0:
            return False
        cut = found + sign.index(b",")
        try:
            self._add(container, cut)
        except ValueError:
            return False
        self._at, self._needs_item = cut + 1, True
        return True

    def _take_exact(self, container: _Container, end: int) -> Generator[None, None, bool]:
        """Take the items up to the last comma that stands between two, or up to the end of the container."""
        self._looks_left -= end - self._at
        if self._looks_left < 0:
            raise ValueError("too deeply nested")
        cut, depth = -1, 0
        for token in _find_tokens(self._data, self._at, end):
            sign = token[0]
            if sign == b",":
                if not depth:
                    cut = token.start()
            elif sign in {b"[", b"{"}:
                depth += 1
            elif sign in {b"]", b"}"}:
                depth -= 1
                if depth < 0:
                    if sign != container.closing:
                        raise ValueError("a bracket of another kind")
                    yield from self._close(container, token.start())
                    return True
        if cut < 0:
            return False
        self._add(container, cut)
        self._at, self._needs_item = cut + 1, True
        return True

    def _add(self, container: _Container, end: int) -> None:
        """Parse what stands before `end` as items of the container."""
        part = self._data[self._at : end]
        if not part.strip():
            raise ValueError("expected a value")
        items = _parse(container.opening + part + container.closing, self._allow_inf_nan)
        if container.opening == b"{":
            container.items.update(items)
            if len(container.items) > self._max_keys:
                raise TooManyKeys(
                    f"an object has more than {self._max_keys:,} keys; write it to a file in the workspace "
                    "instead"
                )
        else:
            container.items.extend(items)

    def _close(self, container: _Container, end: int) -> Generator[None, None, None]:
        if self._needs_item or self._data[self._at : end].strip():
            self._add(container, end)
        self._stack.pop()
        self._at = end + 1
        yield from self._end_item()

    def _end_item(self) -> Generator[None, None, None]:
        """Expect that another item follows the one that has just ended, or the end of the container."""
        yield from self._skip_space()
        self._needs_item = False
        if not self._stack:
            return
        if self._next() == b",":
            self._at += 1
            self._needs_item = True
        elif self._next() != self._stack[-1].closing:
            raise ValueError("expected a comma")

    # ---- an item that is larger than a step

    def _open_item(self, key: str | None) -> Generator[None, None, Any]:
        """Open a large list or object, or take a long text. Return it; the last container has it."""
        sign = self._next()
        closing = _OPENING.get(sign)
        value: Any
        if closing is not None:
            value = [] if sign == b"[" else {}
            self._at += 1
        elif sign == b'"':
            value = yield from self._text()
        else:
            raise ValueError("expected a value")
        if self._stack:
            parent = self._stack[-1].items
            if key is None:
                parent.append(value)
            else:
                parent[key] = value
        if closing is None:
            yield from self._end_item()
            return value
        if len(self._stack) >= _MAX_DEPTH:
            raise ValueError("too deeply nested")
        self._stack.append(_Container(value, sign, closing))
        self._needs_item = False
        return value

    def _text(self) -> Generator[None, None, str]:
        """Take a text of any length, in pieces."""
        if self._next() != b'"':
            raise ValueError("expected a text")
        self._at += 1
        pieces, length, char_bytes, is_done = [], 0, 1, False
        while not is_done:
            end = self._text_end(self._at + STEP_BYTES)
            if is_done := self._data[end : end + 1] == b'"':
                piece = _parse(b'"%s"' % self._data[self._at : end], False)
                self._at = end + 1
            else:
                piece = self._take_piece(end)
            pieces.append(piece)
            length += len(piece)
            char_bytes = max(char_bytes, _char_bytes(piece))
            _check_text_size(length * char_bytes)
            if not is_done:
                yield
        return "".join(pieces)

    def _text_end(self, limit: int) -> int:
        """Return where the text ends, or where to cut it, at most at `limit`."""
        if self._data.find(b"\\", self._at, limit) < 0:
            quote = self._data.find(b'"', self._at, limit)
            return quote if quote >= 0 else min(limit, len(self._data))
        found = _match_text(self._data, self._at, limit)
        assert found is not None  # it may be empty
        return found.end()

    def _take_piece(self, end: int) -> str:
        """Take a piece that ends at or shortly before `end`: not within an escape or a character."""
        for cut in range(end, max(end - _ESCAPE_BYTES, self._at), -1):
            try:
                piece: str = _parse(b'"%s"' % self._data[self._at : cut], False)
            except ValueError:
                continue
            self._at = cut
            return piece
        raise ValueError("a text without an end")
