"""Mask secrets, such as API keys, in everything that is written to disk, and in the trace.

Secrets are recognised by their shape, by the name in front of them, and by parameters that a tool's schema
declares secret. Each is replaced by a mark that says
what it was, such as `[redacted: password]`. This is a safety net: a secret of an unknown shape without a name
is not recognised. Masking again changes nothing.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import re
from bisect import bisect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from aisotools.core.secret_commands import COMMAND_SIGNS, find_in_commands, find_in_lists, find_in_words
from aisotools.core.secret_names import (
    DIGITS_SIGNS,
    FOREIGN_SIGNS,
    NAME_SIGNS,
    Strength,
    find_digits,
    find_foreign,
    find_named,
    is_secret_value,
    looks_mixed,
    purpose_of,
    strength_of,
)
from aisotools.core.secret_shapes import (
    MARK_BEGINNING,
    SHORT_CHARS,
    TOKEN_SIGNS,
    Secret,
    begins_private_key,
    ends_private_key,
    find_tokens,
    is_private_key_line,
    looks_random,
    mark,
)
from aisotools.core.secret_tables import SecretColumns, find_in_tables
from aisotools.core.types import Json

REDACTED = f"{MARK_BEGINNING}]"
"""Replacement for the value of a parameter that is declared secret."""

_MOST_ROUNDS = 4
_LEAST_CHARS = 4
_MARGIN_CHARS = 2_048
_MOST_CHARS = 200_000
_LEAST_LEFT_OUT = 64
_MOST_DEPTH = 200
_TOO_DEEP = "[nested too deeply to be looked at]"


# Without any of these a short ASCII text holds nothing that is found below, which is far more work. Looking
# for one word after the other takes a fifth of the time of one pattern of them all.
_SIGNS = tuple(dict.fromkeys(map(str.lower, (*NAME_SIGNS, *FOREIGN_SIGNS, *DIGITS_SIGNS, *COMMAND_SIGNS))))
_TOKEN_SIGNS = re.compile(TOKEN_SIGNS)

# A name with capitals or blanks is split into words, and a member `value` is named by the member `name`
# beside it: neither can be decided by this pattern.
_PLAIN_NAME = re.compile(r"(?!value$)[a-z_]{1,64}")
_MOST_PLAIN_BITS = 64

_known: ContextVar[dict[str, str] | None] = ContextVar("_known", default=None)


@contextmanager
def remembering(known: dict[str, str]) -> Iterator[None]:
    """Within this context, redact each text once. `known` holds what became of each, from before, too.

    Redacting megabytes may take seconds. Done in a thread first, with the same `known`, it takes no time on
    an event loop.
    """
    token = _known.set(known)
    try:
        yield
    finally:
        _known.reset(token)


def redact_text(text: str) -> str:
    """Return `text` with everything that looks like a secret replaced."""
    if len(text) < _LEAST_CHARS or (type(text) is str and text in _unchanged):
        return text
    if _has_no_sign(text):
        _note_unchanged(text)
        return text
    known = _known.get()
    if known is None:
        redacted = _redact(text)
        if redacted == text:
            _note_unchanged(text)
        return redacted
    if text not in known:
        known[text] = _redact(text)
    return known[text]


# Names of fields, tools and kinds come in nearly every record.
_unchanged: set[str] = set()
_MOST_UNCHANGED = 1_000
_MOST_UNCHANGED_CHARS = 64


def _note_unchanged(text: str) -> None:
    if len(text) <= _MOST_UNCHANGED_CHARS and type(text) is str:
        _remember(text, _unchanged)


def _remember(text: str, known: set[str]) -> None:
    # Race: another thread may empty it just now, and only loses what is found again.
    if len(known) >= _MOST_UNCHANGED:
        known.clear()
    known.add(text)


# Names and arguments are often those of the call before.
_signless: set[str] = set()


def _has_no_sign(text: str) -> bool:
    """Return whether a text is short and has no sign of a secret."""
    if type(text) is not str or len(text) > _MOST_UNCHANGED_CHARS:
        return _find_no_sign(text)
    if text in _signless:
        return True
    if not _find_no_sign(text):
        return False
    _remember(text, _signless)
    return True


def _find_no_sign(text: str) -> bool:
    if len(text) >= SHORT_CHARS or not text.isascii():
        return False
    lower = text.lower()
    if not text.isprintable() or _has_mark(text):
        lower += "\n" + _WRITTEN_BLANK.sub("", _seen(lower))  # `pass\u200bword` has no sign as it is
    for sign in _SIGNS:
        if sign in lower:
            return False
    return _TOKEN_SIGNS.search(text) is None and (
        not _has_mark(text) or _TOKEN_SIGNS.search(_WRITTEN_BLANK.sub("", _seen(text))) is None
    )


def are_plain(arguments: Mapping[Any, object]) -> bool:
    """Return whether all arguments are plain; see `is_plain`."""
    return all(map(is_plain, arguments, arguments.values()))


def is_plain(name: object, value: object) -> bool:
    """Return whether an argument is so simple that neither redaction nor JSON would change it.

    That is a short text, a truth value or a small integer, without any sign of a secret in it or its name.
    """
    if type(name) is not str or _PLAIN_NAME.fullmatch(name) is None or not _has_no_sign(name):
        return False
    if type(value) is str:
        return _has_no_sign(value)
    return (
        value is None
        or type(value) is bool
        or (type(value) is int and value.bit_length() <= _MOST_PLAIN_BITS)
    )


def _redact(text: str) -> str:
    # For printable text, which most is, looking first takes a tenth of the time of the search.
    may_hide = not (text.isascii() and text.translate(_LINE_CHARS).isprintable()) or _has_mark(text)
    forms = [form for form in _FORMS if form.hides.search(text)] if may_hide else []
    readings = [form.read(_narrow(text)) for form in forms]
    # A secret may show only when another one, between it and its name, is gone.
    for _ in range(_MOST_ROUNDS):
        redacted = text
        for find in _FINDERS:
            found = list(find(_narrow(redacted)))
            for reading in readings:  # beside the plain one: such a character may be part of a secret, too
                found += reading.find(find)
            if found:
                redacted = _without(redacted, found)
                readings = [form.read(_narrow(redacted)) for form in forms]
        if redacted == text:
            break
        text = redacted
    return text


# Wide forms of letters and signs, as East Asian texts have them, and signs that look like a colon.
_NARROW = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)} | dict.fromkeys(
    (0xFE55, 0xFE13, 0xA789, 0x2236), ord(":")
)
_NARROW |= dict.fromkeys((0xFE66,), ord("="))


def _narrow(text: str) -> str:
    """Return a text of the same length in which wide letters and signs are the usual ones."""
    return text if text.isascii() else text.translate(_NARROW)


def _has_mark(text: str) -> bool:
    """Return whether a text has a character with which escapes begin."""
    return "\\" in text or "&" in text or "%" in text


# ---- what stands in a secret, or before it, without being seen

_LINE_CHARS = {10: None, 9: None}
_ESCAPE = r"(?:\x1b|\\u001[bB]|\\x1[bB]|\\033|\\e)"
_COLOUR = rf"{_ESCAPE}\[[0-9;:]{{0,40}}[A-Za-z]"
_CONTROLS = r"\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f"
# Case: `--password` and its value with a NUL between them, as in /proc/self/cmdline, or a colour.
_SEPARATES = re.compile(
    rf"{_COLOUR}|[{_CONTROLS}\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]"
    r"|(?<=[=:])(?:\\[rtvf0]|\\x[0-9a-fA-F]{2})"
)
# The address of a link in a terminal, which is not shown.
_LINK = (
    rf"{_ESCAPE}\]8;[^;\x07\x1b\n]{{0,80}};[^\x07\x1b\n\\]{{0,500}}"
    rf"(?:\x07|\\u0007|\\x07|\\007|\\a|{_ESCAPE}(?:\\\\|\\))"
)


def _written_codes() -> str:
    """Return a pattern of characters that nobody sees, as Python, C, JavaScript, Rust and Perl write them."""
    points = (0xAD, 0x34F, 0x61C, 0x115F, 0x1160, 0x17B4, 0x17B5, *range(0x180B, 0x1810), 0x2800, 0x3164)
    points += (*range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x2060, 0x2070), *range(0xFE00, 0xFE10))
    points += (0xFEFF, 0xFFA0, *range(0xFFF9, 0xFFFC))
    numbers = "|".join(f"{point:x}" for point in points)
    by_beginning: dict[bytes, list[int]] = {}
    for point in points:
        encoded = chr(point).encode()
        by_beginning.setdefault(encoded[:-1], []).append(encoded[-1])
    forms = [rf"\\[ux]\{{0{{0,6}}(?:{numbers})\}}", rf"\\u(?:{numbers})", rf"\\u0000(?:{numbers})"]
    for written in (r"\\x{:02x}", r"\\{:o}"):
        for beginning, ends in by_beginning.items():
            last = "|".join(map(written.format, ends))
            forms.append("".join(map(written.format, beginning)) + f"(?:{last})")
    names = r"ZERO WIDTH [A-Z -]{{4,30}}|SOFT HYPHEN|WORD JOINER|COMBINING GRAPHEME JOINER|BYTE ORDER MARK"
    names += r"|INVISIBLE [A-Z]{{4,9}}|VARIATION SELECTOR-[0-9]{{1,3}}|(?:LEFT|RIGHT)-TO-[A-Z -]{{4,30}}"
    names += r"|(?:HANGUL|MONGOLIAN|ARABIC LETTER|POP|FIRST STRONG)[A-Z -]{{4,30}}"
    forms.append(r"\\N\{(?:" + names.replace("{{", "{").replace("}}", "}") + r")\}")
    return f"(?i:{'|'.join(forms)})"


_WRITTEN_CODES = _written_codes()
# Characters that nobody sees, also as JSON, Python and HTML write them, and a line that goes on in the next.
_INVISIBLE = re.compile(
    rf"{_LINK}|{_COLOUR}|{_WRITTEN_CODES}|[{_CONTROLS}\x1b\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f"
    r"\u202a-\u202e\u2060-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\U0001d173-\U0001d17a"
    r"\U000e0000-\U000e0fff]"
    r"|\\u(?:00[aA][dD]|034[fF]|061[cC]|180[eE]|20(?:0[b-fB-F]|2[a-eA-E]|6[0-9a-fA-F])"
    r"|[fF][eE](?:0[0-9a-fA-F]|[fF]{2}))|\\x[aA][dD]|\\U000[eE]0[0-9a-fA-F]{3}"
    r"|&(?:shy|zwn?j|ZeroWidthSpace|NoBreak|#0*(?:173|820[3-7]|8288|65279)|#[xX]0*(?:[aA][dD]|200[b-fB-F]|2060"
    r"|[fF][eE][fF]{2}));"
    r"|\\\r?\n"
)
# Blanks and controls as JSON, Python, shells and URLs write them: these may as well be text.
_WRITTEN_BLANK = re.compile(
    r"\\(?:[nrtvfb0]|[ux](?:00)?[01][0-9a-fA-F])|%(?:0[0-9a-fA-F]|[eE]2%80%8[b-fB-F]|[cC]2%[aA][dD])"
)


class _Form(NamedTuple):
    """A way to read a text in which something is hidden.

    Attributes:
        hides: Finds what is hidden.
        blank: What takes the place of each of its characters; empty if they are left out.
        is_strict: Whether only what looks random counts behind what is hidden: it may be text as well.
    """

    hides: re.Pattern[str]
    blank: str
    is_strict: bool = False

    def read(self, text: str) -> _Reading:
        """Return a text as it is read in this way."""
        parts: list[str] = []
        starts: list[int] = []
        places: list[int] = []
        chars = end = 0
        for hidden in self.hides.finditer(text):
            part = text[end : hidden.start()] + self.blank * len(hidden[0])
            if part:
                starts.append(chars)
                places.append(end)
                parts.append(part)
                chars += len(part)
            end = hidden.end()
        return _Reading(self, text, "".join((*parts, text[end:])), [*starts, chars], [*places, end])

    def goes_on(self, found: str) -> bool:
        """Return whether what is behind what was hidden in a secret, or all of it, looks random."""
        parts = self.hides.split(found)
        return (
            looks_random(parts[-1])
            if self.blank
            else len(parts) > 1 and all(map(_looks_torn, filter(None, parts[1:])))
        )


class _Reading(NamedTuple):
    """A text as it is read in a form.

    Attributes:
        form: The form.
        text: The text as it is.
        read: The text as it is read.
        starts: Where the parts of the text that are left begin, as it is read.
        places: Where they begin in the text as it is.
    """

    form: _Form
    text: str
    read: str
    starts: list[int]
    places: list[int]

    def find(self, finder: Callable[[str], Iterable[Secret]]) -> Iterator[Secret]:
        """Yield the secrets that are found as the text is read, at their places in the text as it is."""
        if self.form.is_strict and finder not in _STRICT_FINDERS:
            return
        for secret in finder(self.read):
            start, stop = self._place(secret.start), self._place(secret.end - 1) + 1
            if not self.form.is_strict or self.form.goes_on(self.text[start:stop]):
                yield Secret(start, stop, secret.kind)

    def _place(self, index: int) -> int:
        part = bisect(self.starts, index) - 1
        return self.places[part] + index - self.starts[part]


def _looks_torn(part: str) -> bool:
    """Return whether a part looks like the rest of a secret, and not like a word."""
    return looks_random(part) or (len(part) >= _LEAST_TORN_CHARS and looks_mixed(part))


_LEAST_TORN_CHARS = 6
_FORMS = (
    _Form(_SEPARATES, " "),
    _Form(_INVISIBLE, ""),
    _Form(_WRITTEN_BLANK, " ", is_strict=True),
    _Form(_WRITTEN_BLANK, "", is_strict=True),
)


def _seen(text: str) -> str:
    """Return a text without the characters in it that nobody sees."""
    return text if text.isascii() and text.isprintable() and not _has_mark(text) else _INVISIBLE.sub("", text)


_ENCODED = re.compile(r"(?<![\w+/=-])[A-Za-z0-9+/_-]{24,8192}+={0,2}+(?![\w+/=-])")


def _find_encoded(text: str) -> Iterator[Secret]:
    """Yield words in base64 that say a secret when they are decoded."""
    for match in _ENCODED.finditer(text):
        word = match[0].rstrip("=").translate(_URL_SAFE)
        try:
            decoded = base64.b64decode(word + "=" * (-len(word) % 4)).decode()
        except ValueError:  # no base64, or no text
            continue
        if decoded.isprintable() or not _CONTROL.search(decoded):
            is_secret = next(iter(find_tokens(decoded)), None) or next(find_named(decoded), None)
            if is_secret is not None:
                yield Secret(*match.span(), "encoded-secret")


_FINDERS: tuple[Callable[[str], Iterable[Secret]], ...] = (
    find_tokens,
    find_named,
    find_foreign,
    find_digits,
    find_in_commands,
    find_in_lists,
    find_in_tables,
    _find_encoded,
)

_STRICT_FINDERS = frozenset((find_tokens, find_named, find_in_commands))
_URL_SAFE = str.maketrans("-_", "+/")
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]")


class LineRedactor:
    """Redacts printed output line by line, as it comes: a line may have arrived in any number of pieces."""

    def __init__(self) -> None:
        """Start outside of a private key, the only secret of several lines, and of a table."""
        self._is_in_key = False
        self._columns = SecretColumns()

    def __repr__(self) -> str:
        return f"<LineRedactor {'in a private key' if self._is_in_key else 'between secrets'}>"

    def finish(self, line: str) -> str:
        """Return a finished line, redacted. Call it with every line, in order."""
        redacted = self.peek(line)
        self._columns.advance(line)
        if ends_private_key(line):
            self._is_in_key = False
        elif begins_private_key(line):
            self._is_in_key = True
        elif self._is_in_key:
            self._is_in_key = is_private_key_line(line)
        return redacted

    def peek(self, line: str) -> str:
        """Return a line that is not finished yet, redacted."""
        if self._is_in_key and is_private_key_line(line):
            return mark("private-key")
        return redact_text(_without(line, self._columns.find(line)))


def _without(text: str, secrets: Iterable[Secret]) -> str:
    """Return `text` with marks in place of secrets, which may overlap."""
    parts: list[str] = []
    seen = 0
    for secret in sorted(secrets, key=lambda secret: (secret.start, -secret.end)):
        if secret.start >= seen:
            parts += (text[seen : secret.start], mark(secret.kind))
        seen = max(seen, secret.end)
    if not parts:
        return text
    parts.append(text[seen:])
    return "".join(parts)


def has_marks(text: str) -> bool:
    """Return whether a text, or the `repr` of a value, has something in it that was redacted."""
    return REDACTED in text or f"{MARK_BEGINNING}: " in text


def shortened(value: Json, max_chars: int) -> Json:
    """Return JSON in which longer texts are replaced by their beginning, length and SHA-256."""
    if isinstance(value, str) and len(value) > max_chars:
        return _shortened_text(value, value[:max_chars])
    if isinstance(value, Mapping):
        return {key: shortened(item, max_chars) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [shortened(item, max_chars) for item in value]
    return value


def _shortened_text(text: str, beginning: str) -> dict[str, Json]:
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return {"beginning": beginning, "chars": len(text), "sha256": digest}


def redact(value: Json, max_chars: int | None = None) -> Json:
    """JSON with everything that looks like a secret replaced, in keys' values and in text.

    With `max_chars`, longer texts are replaced as by `shortened` as well.
    """
    return _Redaction(max_chars).redact(value, 0)


def _beginning(text: str, max_chars: int) -> str:
    """Return the beginning of a longer text, redacted; what is cut in two there counts as a whole."""
    redacted = redact_text(text[: max_chars + _MARGIN_CHARS])
    cut = redacted[:max_chars]
    begun = cut.rfind(MARK_BEGINNING)
    if begun >= 0 and "]" not in cut[begun:]:
        return redacted[: redacted.index("]", begun) + 1] if "]" in redacted[begun:] else cut[:begun]
    return cut


class _Redaction:
    """Redacts one value. With `max_chars` it looks at `_MOST_CHARS` in all, and leaves out further texts."""

    def __init__(self, max_chars: int | None) -> None:
        self._max_chars = max_chars
        self._chars_left = _MOST_CHARS

    def redact(self, value: Any, depth: int, name: str = "") -> Any:
        """Return a value, redacted; `name` is that of a secret that the value is, or has in it."""
        if isinstance(value, str):
            return self._redact_text(value)
        if not isinstance(value, Mapping | list | tuple):
            return value
        if depth >= _MOST_DEPTH:
            return _TOO_DEEP
        if isinstance(value, Mapping):
            return self._redact_mapping(value, depth + 1, name)
        return self._redact_list(value, depth + 1, name)

    def _redact_text(self, text: str) -> Any:
        if self._max_chars is None:
            return redact_text(text)
        self._chars_left -= min(len(text), self._max_chars)
        if self._chars_left < 0 and len(text) > _LEAST_LEFT_OUT:
            return _shortened_text(text, "")
        if len(text) > self._max_chars:
            return _shortened_text(text, _beginning(text, self._max_chars))
        return redact_text(text)

    def _redact_mapping(self, value: Mapping[Any, Any], depth: int, name: str) -> dict[Any, Any]:
        redacted: dict[Any, Any] = {}
        for plain_key, item in value.items():
            key = redact_text(plain_key) if isinstance(plain_key, str) else plain_key
            if key != plain_key:
                # Several secrets have the same mark, and each entry is kept.
                key = next(name for name in _numbered(key) if name not in redacted and name not in value)
            own = key if isinstance(key, str) else ""
            # {"password": {"value": ...}, "passwords": {"ann": ...}}
            is_carried = bool(name) and (own.lower() in _CARRIERS or (name.endswith("s") and _is_odd(item)))
            names = (own, name.removesuffix("s")) if is_carried else (own,)
            if kind := next(filter(None, (_kind_of_value(one, item) for one in names if one)), ""):
                redacted[key] = mark(kind)
            elif _is_login(own, item):
                redacted[key] = [self.redact(item[0], depth), mark("password")]
            else:
                # {"secrets": {"ann": {"mail": ...}}}
                is_group = name.endswith("s") and isinstance(item, Mapping)
                below = name if is_carried or is_group or isinstance(item, list) else ""
                redacted[key] = self.redact(item, depth, own if _names_secret(own) else below)
        # {"name": "DB_PASSWORD", "value": ...}, as in a pod's environment
        labels = [one for one in (*_NAMES, *_LABELS) if isinstance(value.get(one), str)]
        for place in _VALUES if labels else ():
            item = value.get(place)
            meant = [str(value[one]) for one in labels if one in _NAMES or _is_odd(item)]
            kinds = (_kind_of_value(label, item) for label in meant if label != item)
            if kind := next(filter(None, kinds), ""):
                redacted[place] = mark(kind)
        return redacted

    def _redact_list(self, value: list[Any] | tuple[Any, ...], depth: int, name: str) -> list[Any]:
        redacted = []
        flag = ""
        command = _redact_command(value)
        is_pair = len(value) == _PAIR and isinstance(value[0], str) and isinstance(value[1], str)
        one = name.removesuffix("s")
        for place, item in enumerate(value):
            if is_pair and place == 1:
                flag = flag or value[0]  # ["Authorization", "Bearer ..."], as headers come
            kind = _kind_of_value(flag, item) if flag else ""
            kind = kind or (_kind_of_value(one, item) if one else "")
            if kind:
                redacted.append(mark(kind))
            else:
                redacted.append(self.redact(command.get(place, item), depth, name))
            flag = item if isinstance(item, str) and item.startswith("-") and len(item) < 64 else ""
        return redacted


def _numbered(name: str) -> Iterator[str]:
    yield name
    yield from (f"{name} ({number})" for number in itertools.count(2))


_PAIR = 2
_MOST_WORDS = 64
_MOST_WORD_CHARS = 300
_NAMES = ("name", "key", "field", "variable")
_LABELS = ("type", "selector", "element", "label", "placeholder", "id")
"""Keys of which the value may say what is beside it: `{"selector": "#password", "text": ...}`."""
_VALUES = ("value", "val", "data", "content", "text")
_CARRIERS = frozenset(
    (
        *(
            *_VALUES,
            "text",
            "$",
            "#text",
            "_",
            "__text",
            "@value",
            "_value",
            "",
            "s",
            "v",
            "string",
            "current",
        ),
        *("raw", "plain", "plaintext", "secret", "default", "new", "old", "hash", "pem", "stringvalue"),
    )
)
"""Keys, below the name of a secret, of which the value is that."""
_LOGIN = re.compile(r"(?i)(?:http|proxy|basic)?[-_]?(?:auth|login|credentials?)")
_PIN = re.compile(r"(?i)(?:[a-z]{1,20}[-_])?pin(?:[-_]?code)?")
_DIGITS = re.compile(r"[0-9]{4,12}")


def _is_login(name: str, value: object) -> bool:
    """Return whether a value is a pair of a user and a password."""
    if type(value) is not list or len(value) != _PAIR or _LOGIN.fullmatch(name) is None:
        return False
    return all(isinstance(item, str) for item in value) and looks_mixed(value[1])


def _names_secret(name: str) -> bool:
    name = _seen(name)
    return strength_of(name) is not None or strength_of(name.removesuffix("s")) is not None


def _is_odd(value: object) -> bool:
    """Return whether a value is a text that is not a word, as names and types beside a secret are."""
    return isinstance(value, str) and (looks_mixed(value) or looks_random(value))


def _redact_command(words: Sequence[object]) -> dict[int, str]:
    """Return the words of a command line in a list in which there are passwords, redacted, by their place."""
    texts = [word for word in words if isinstance(word, str)]
    if not (1 < len(words) <= _MOST_WORDS and len(texts) == len(words)):
        return {}
    if sum(map(len, texts)) > _MARGIN_CHARS:
        texts = [text[:_MOST_WORD_CHARS] for text in texts]
    found: dict[int, list[Secret]] = {}
    for place, start, end in find_in_words(texts):
        found.setdefault(place, []).append(Secret(start, end, "password"))
    return {place: _without(texts[place], secrets) for place, secrets in found.items()}


def _kind_of_value(name: str, value: object) -> str:
    """Return what the value of a name is if it is a secret; else an empty text."""
    name = _seen(name)
    if _PIN.fullmatch(name) and _DIGITS.fullmatch(str(value)) is not None:
        return "pin"
    strength = strength_of(name)
    if strength is None and not name.lower().endswith("cookie"):
        return ""
    if isinstance(value, str):
        is_secret = is_secret_value(name, value)
    else:
        is_secret = isinstance(value, int) and strength is Strength.STRONG and abs(value) >= 1000
    return purpose_of(name) if is_secret else ""


def redact_arguments(
    arguments: Mapping[str, Json], secret: Iterable[str], max_chars: int | None = None
) -> dict[str, Json]:
    """Return arguments with those in `secret` replaced whole, and the others redacted as by `redact`.

    A name that looks like a secret is replaced, too. The order stays.
    """
    hidden = set(secret)
    redacted = redact({name: value for name, value in arguments.items() if name not in hidden}, max_chars)
    others = iter(redacted.items())
    return dict((name, REDACTED) if name in hidden else next(others) for name in arguments)


def secret_parameters(schema: Mapping[str, Any]) -> frozenset[str]:
    """Return the parameters that a schema declares secret. Pydantic's `SecretStr` declares `writeOnly`."""
    properties, shared = schema.get("properties", {}), schema.get("$defs", {})
    return frozenset(name for name, about in properties.items() if _holds_secret(about, shared))


def _holds_secret(about: Any, shared: Mapping[str, Any]) -> bool:
    """Return whether a schema, or anything that it refers to, declares a secret."""
    todo = [about]
    visited = set()  # types may contain themselves
    while todo:
        node = todo.pop()
        if isinstance(node, Mapping):
            if node.get("writeOnly") is True or node.get("format") == "password":
                return True
            name = str(node.get("$ref", "")).rpartition("/")[2]
            if name in shared and name not in visited:
                visited.add(name)
                todo.append(shared[name])
            todo.extend(node.values())
        elif isinstance(node, list):
            todo.extend(node)
    return False
