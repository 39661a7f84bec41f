"""Readings of the texts in a call's arguments as paths, for tools that do not say which files they read.

Threat
    A tool on the host, of an MCP server or made of a function opens what its arguments name. A rule denies
    `secrets/*`, and the arguments say `file:///workspace/secrets/key`, `" secrets/key"`, `secrets%2Fkey`,
    `{"folder": "secrets", "name": "key"}`, or have the path as a key, in JSON, or in a command.
Mechanism
    `readings_of` yields every text at any depth, keys included, in the ways in which programs read paths. It
    looks at no file. Which readings name something is for `path_facts` to find out, which also joins folders
    and names of one call by `joined`.
Race window
    None of its own: texts do not change. Files do, which `path_facts` answers for.
When it fails
    Encodings that no everyday program undoes by itself (base64, a name built from parts of words) are not
    seen. More texts than are looked at are reported as `is_complete=False`, and rules about paths then ask.
"""

from __future__ import annotations

import itertools
import os
import re
import unicodedata
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote

from pydantic_core import from_json

from aisotools.core.types import Json

MAX_VALUES = 5_000
"""Values of the arguments that are looked at, keys of objects included."""

MAX_CHARS = 1 << 18
"""Characters of all texts together that are looked at."""

MAX_TEXTS = 500
"""Different texts that are looked at: each is split and looked for."""

MAX_PATH_CHARS = 4_096
"""Longer texts are no path as a whole; the words in them may be."""

_MAX_WORDS = 1_500
_MAX_JOINED = 5_000
_FEW_WORDS = 20  # a command, not prose: words without a slash or a dot count as names as well
_MAX_DECODED = 3
_BLANKS_AND_QUOTES = " \t\r\n\f\v\0'\"`<>()[]{},;"
_split_words = re.compile(r"""[\s,;=@?&|<>()\[\]{}"'`\0]+""").split
_split_parts = re.compile(r"[:#]").split
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:(?://[^/]*)?(?=/)")
_LOCAL_SCHEMES = ("file:", "vscode:", "vscode-insiders:", "cursor:", "idea:", "local:", "path:", "resource:")
_BRACES = re.compile(r"\{([^{}\n]*,[^{}\n]*)\}")
_MAX_ALTERNATIVES = 50
_DRIVE = re.compile(r"[A-Za-z]:[\\/]")


@dataclass(slots=True)
class Readings:
    """What the arguments of a call may name.

    Attributes:
        wholes: Readings of a whole text: a path, if there is one. Folders among them count as named.
        words: Words of commands and prose, and parts of texts.
        is_complete: False if there was more than is looked at.
    """

    wholes: dict[str, None] = field(default_factory=dict)
    words: dict[str, None] = field(default_factory=dict)
    is_complete: bool = True


def readings_of(arguments: Mapping[str, Json]) -> Readings:
    """Return the readings of all texts in the arguments, in the order in which they stand there."""
    found = Readings()
    chars_left = MAX_CHARS
    waiting: deque[Json] = deque(arguments.values())
    # The names of parameters are the tool's own words, unless they look like paths.
    keys = [key for key in arguments if _looks_like_path(key)]
    seen: set[str] = set()
    for looked_at in itertools.count():
        if not waiting and not keys:
            break
        is_key = not waiting
        value = keys.pop() if is_key else waiting.popleft()
        if looked_at >= MAX_VALUES:
            found.is_complete = False
            break
        if isinstance(value, Mapping):
            waiting += itertools.islice(value.values(), MAX_VALUES)
            keys += itertools.islice((key for key in value if key not in seen), MAX_VALUES)
        elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
            waiting += itertools.islice((inner for inner in value if not _is_number(inner)), MAX_VALUES)
        elif isinstance(value, str) and value not in seen:
            seen.add(value)
            chars_left -= len(value)
            if chars_left < 0 or len(seen) > MAX_TEXTS:
                found.is_complete = False
                break
            # A key such as `data` is a word of some format more often than a folder.
            waiting += _read_text(value, found, as_whole=not is_key or _looks_like_path(value))
    return found


def joined(folders: Iterable[str], names: Iterable[str]) -> tuple[list[str], bool]:
    """Return each folder followed by each name, and whether that was all of them."""
    names = [name.lstrip("/") for name in names]
    pairs: dict[str, None] = {}
    for folder in folders:
        for name in names:
            if name and name != ".":
                pairs[f"{folder.rstrip('/') if folder != '.' else '.'}/{name}"] = None
            if len(pairs) > _MAX_JOINED:
                return list(pairs), False
    return list(pairs), True


def _looks_like_path(key: str) -> bool:
    return not {"/", ".", "\\", "%"}.isdisjoint(key)


def _is_number(value: Json) -> bool:
    return value is None or isinstance(value, bool | int | float)


def _read_text(text: str, found: Readings, *, as_whole: bool) -> list[Json]:
    """Note the readings of one text. Return what it holds as JSON, to be read like the arguments."""
    if as_whole and len(text) <= MAX_PATH_CHARS:
        for form in _decoded(text):
            for alternative in _alternatives(form):
                found.wholes |= dict.fromkeys(_as_paths(alternative))
    for form in _decoded(text):
        words = [word for word in _split_words(form) if word]
        is_short = len(words) <= _FEW_WORDS
        for word in words:
            for part in {word: None, word.rstrip(".!"): None, **dict.fromkeys(_split_parts(word))}:
                # Prose has dots and slashes of its own; as a path of a command, a dot is the folder.
                is_name = bool(part.strip("/")) and bool(is_short or part.strip("./"))
                if not is_name or len(part) > MAX_PATH_CHARS or not (is_short or "/" in part or "." in part):
                    continue
                found.words |= dict.fromkeys(_as_paths(part))
        if len(found.words) > _MAX_WORDS:
            found.is_complete = False
            break
    return _inner_json(text)


def _decoded(text: str) -> Iterator[str]:
    """Yield a text, and what it is percent-decoded, as long as that makes a difference."""
    for _ in range(_MAX_DECODED):
        yield text
        if "%" not in text:
            return
        plain = unquote(text, errors="surrogateescape")
        if plain == text:
            return
        text = plain
    yield text


def _alternatives(text: str) -> list[str]:
    """Return a text, and each of the alternatives that the first braces in it stand for."""
    braces = _BRACES.search(text)
    if braces is None:
        return [text]
    inner = braces[1].split(",")[:_MAX_ALTERNATIVES]
    return [text, *(f"{text[: braces.start()]}{one}{text[braces.end() :]}" for one in inner)]


def _as_paths(text: str) -> Iterator[str]:
    """Yield a text as the paths that programs may take it for."""
    forms = {text: None, text.partition("\0")[0]: None, text.strip(_BLANKS_AND_QUOTES): None}
    if not text.isascii():
        forms |= {unicodedata.normalize("NFKC", form): None for form in tuple(forms)}
    for form in forms:
        if not form or "\0" in form:
            continue
        yield form
        if "\\" in form:
            slashes = _DRIVE.sub("/", form).replace("\\", "/")
            yield slashes
            yield slashes.lstrip("/")
        if scheme := _SCHEME.match(form):
            if form.lower().startswith(_LOCAL_SCHEMES):
                path = re.split("[?#]", form[scheme.end() :], maxsplit=1)[0]
                yield path
                yield path.lstrip("/")
            continue
        if form.lower().startswith("file:"):
            yield form[5:]
        if form.startswith("/") and not form.startswith("//"):
            yield form.lstrip("/")  # many servers take the workspace for the root of all paths
        if form.startswith("~"):
            yield os.path.expanduser(form)
        elif "$" in form:
            yield os.path.expandvars(form)


def _inner_json(text: str) -> list[Json]:
    """Return what a text holds as JSON, if that is an object or a list."""
    if text.lstrip()[:1] not in {"{", "["}:
        return []
    try:
        value = from_json(text)
    except (ValueError, RecursionError):
        return []
    return [value]
