r"""The written form of what a record of the ledger holds.

What JSON has a form for stays as it is in a line, with characters that nobody sees as escapes such as
`\u202e`. Anything else is escaped: lone surrogates in text as `\udc80`, other values as an object with the
member `$escaped`, which says what it was. Floats and integers come back equal from `unescaped`; sets, bytes
and objects come back in their escaped form.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Set as AbstractSet
from typing import Any

from pydantic_core import from_json, to_json

from aisotools.core.types import Json

ESCAPED = "$escaped"
"""The member that an escaped value has; it says what the value was."""

_MOST_DEPTH = 100
_MOST_CHARS = 4_000
_MOST_VALUES = 100_000
_MOST_BITS = 4_096
"""Larger integers are written in hexadecimal: decimal digits take quadratic time, and are not read back."""
_MOST_REPR_CHARS = 500
_FAILURES = (ValueError, TypeError, RecursionError, OverflowError)


def encoded(record: Mapping[str, Any]) -> bytes:
    """Return a record as JSON that `pydantic_core.from_json` reads, escaped where it has to be."""
    try:
        text = to_json(record, inf_nan_mode="strings")
        # Numbers of thousands of digits and deep nesting can be written, and not be read. Short lines of few
        # lists and objects have neither.
        if len(text) > _MOST_CHARS or text.count(b"[") + text.count(b"{") > _MOST_DEPTH:
            from_json(text)
    except Exception:  # whatever a value's own members raise: all of it is looked at one by one
        text = to_json(escaped(record))
        from_json(text)
    if not text.isascii() or b"\x7f" in text:
        text = escape_unseen(text.decode()).encode()
    return text


def escape_unseen(text: str) -> str:
    """Return JSON text with escapes in place of characters that nobody sees, or that turn its order."""
    return _UNSEEN.sub(_escape_char, text)


# Control and format characters, separators of lines, and what is drawn as nothing, such as tags. They turn
# the order of what is read, or hide it. JSON has escaped those below a blank.
_UNSEEN = re.compile(
    r"[\x7f-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u17b4\u17b5"
    r"\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff0-\ufffb"
    r"\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    r"\U000e0000-\U000e0fff]"
)


def _escape_char(match: re.Match[str]) -> str:
    return json.dumps(match[0])[1:-1]


def escaped(value: object) -> Json:
    """Return a value as JSON, with an escaped form in place of whatever JSON cannot hold."""
    if type(value) is dict and all(map(_is_plain, value, value.values())):
        return value  # as nearly all arguments of calls
    return _Escaping().escape(value, 0)


def _is_plain(name: object, value: object) -> bool:
    if type(name) is not str or not name.isascii() or name == ESCAPED:
        return False
    if type(value) is str:
        return value.isascii()
    return value is None or type(value) is bool or (type(value) is int and value.bit_length() <= _MOST_BITS)


class _Escaping:
    """Escapes one value, which may contain itself."""

    def __init__(self) -> None:
        self._values = 0

    def escape(self, value: object, depth: int) -> Json:
        self._values += 1
        if isinstance(value, str):
            return _escape_text(value)
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int):
            return _escape_integer(int(value))
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else {ESCAPED: "float", "text": repr(float(value))}
        if isinstance(value, bytes | bytearray):
            return {ESCAPED: "bytes", "text": bytes(value).decode("utf-8", "backslashreplace")}
        for kind, escape in self._CONTAINERS:
            if isinstance(value, kind):
                if depth >= _MOST_DEPTH or self._values > _MOST_VALUES:
                    return _as_text(value)
                try:
                    return escape(self, value, depth + 1)
                except Exception:
                    return _as_text(value)  # its own members raise, or it changes meanwhile
        return self._escape_object(value, depth)

    def _escape_mapping(self, value: Mapping[Any, Any], depth: int) -> Json:
        items = [(key, self.escape(item, depth)) for key, item in value.items()]
        plain = {_escape_text(key): item for key, item in items if isinstance(key, str)}
        if len(plain) == len(items) and ESCAPED not in plain:
            return plain
        return {ESCAPED: "object", "items": [[self.escape(key, depth), item] for key, item in items]}

    def _escape_list(self, value: list[Any] | tuple[Any, ...], depth: int) -> Json:
        return [self.escape(item, depth) for item in value]

    def _escape_set(self, value: AbstractSet[Any], depth: int) -> Json:
        return {ESCAPED: "set", "items": [self.escape(item, depth) for item in value]}

    _CONTAINERS: tuple[tuple[type[Any], Callable[[_Escaping, Any, int], Json]], ...] = (
        (Mapping, _escape_mapping),
        (list, _escape_list),
        (tuple, _escape_list),
        (AbstractSet, _escape_set),
    )

    def _escape_object(self, value: object, depth: int) -> Json:
        """Return times, paths, models and the like in the form that they have in JSON."""
        try:
            return self.escape(from_json(to_json(value, inf_nan_mode="strings")), depth + 1)
        except Exception:
            return _as_text(value)  # it has none


def _escape_text(text: str) -> str:
    if text.isascii():
        return str(text)
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode()
    return str(text)  # the text itself: a copy of megabytes would be made for every event


def _escape_integer(value: int) -> Json:
    return value if value.bit_length() <= _MOST_BITS else {ESCAPED: "int", "text": hex(value)}


def _as_text(value: object) -> Json:
    """Return what a value looks like, in a bounded form."""
    try:
        text = (
            repr(value)
            if not isinstance(value, Mapping | list | tuple | AbstractSet)
            else to_json(value).decode()
        )
    except Exception:
        text = "it cannot be shown"
    return {ESCAPED: type(value).__name__, "text": _escape_text(text[:_MOST_REPR_CHARS])}


def unescaped(value: Any) -> Any:
    """Return JSON from a record with floats, integers and objects as they were before `escaped`."""
    if isinstance(value, list):
        return [unescaped(item) for item in value]
    if not isinstance(value, dict):
        return value
    kind, text, items = value.get(ESCAPED), value.get("text"), value.get("items")
    try:
        if kind == "float" and isinstance(text, str):
            return float(text)
        if kind == "int" and isinstance(text, str):
            return int(text, 16)
        if kind == "object" and isinstance(items, list):
            return {unescaped(key): unescaped(item) for key, item in items}
    except _FAILURES:
        return value  # not written by `escaped`
    return {key: unescaped(item) for key, item in value.items()}
