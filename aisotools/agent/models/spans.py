"""What a request says and what tools can do, as the local model compares them. Pure.

- Spans are the parts of a request that can be arguments: quoted text, addresses, files, dates, numbers. Every
  argument is copied from the request, never invented.
- Words are compared by their stems and a few synonyms, and ranked with BM25.
- An intent is a tool, or one operation of a tool that has several: of a tool such as `file`, one argument
  selects the operation, and the others depend on it. Each operation is an intent with examples of its own.
"""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from aisotools.core.types import Json, ToolDefinition

# ---- words, and how well documents match them

STOP_WORDS = frozenset(
    [
        "a",
        "an",
        "the",
        "of",
        "to",
        "in",
        "into",
        "on",
        "at",
        "for",
        "from",
        "by",
        "with",
        "and",
        "or",
        "is",
        "are",
        "was",
        "were",
        "be",
        "been",
        "do",
        "does",
        "did",
        "has",
        "have",
        "had",
        "can",
        "could",
        "would",
        "will",
        "shall",
        "should",
        "may",
        "might",
        "i",
        "me",
        "my",
        "you",
        "your",
        "it",
        "its",
        "this",
        "that",
        "these",
        "those",
        "there",
        "here",
        "please",
        "just",
        "what",
        "which",
        "who",
        "how",
        "many",
        "much",
        "some",
        "any",
        "all",
        "each",
        "than",
        "then",
        "as",
        "if",
        "so",
        "not",
        "no",
        "want",
        "need",
        "like",
        "us",
        "we",
        "our",
        "let",
    ]
)
"""Words that say little about which tool is meant."""

_SYNONYMS = {
    "folder": "directory dir folders directories",
    "delete": "remove erase rid deleting removing",
    "move": "rename moving renaming relocate",
    "copy": "duplicate backup back copies copying",
    "write": "save store put create make creating writing",
    "append": "add adding appending",
    "run": "execute launch executing running",
    "search": "find locate grep where occur mention mentions contain contains look searching",
    "size": "big large bytes modified changed permissions last",
    "read": "show display print open view see cat contents say reads say says shows content",
    "calculate": "compute evaluate calculation much",
    "shell": "bash terminal",
    "listing": "list ls listed",
    "wide": "width",
    "high": "height tall",
    "long": "length",
    "price": "cost costs expensive",
    "average": "mean",
    "temperature": "warm hot cold degrees",
}
_SYNONYM_HEADS = {word: head for head, words in _SYNONYMS.items() for word in words.split()}
_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)?")
_ENDINGS = ("ies", "ing", "ed", "es", "s")
_BM25_K1 = 1.2
_BM25_B = 0.6


def words(text: str) -> list[str]:
    """Return the words of `text` in lower case; `snake_case` and `camelCase` are taken apart."""
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text.replace("_", " "))
    return [word.lower() for word in _WORD.findall(apart)]


def stem(word: str) -> str:
    """Return the word without a common ending. Crude, but the same for requests and examples."""
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word[: -len(ending)] + ("y" if ending == "ies" else "")
    return word


def terms(text: str) -> list[str]:
    """Return the terms that are compared: stems of significant words, with synonyms as one."""
    significant = [word for word in words(text) if word not in STOP_WORDS or word in _SYNONYM_HEADS]
    return [stem(_SYNONYM_HEADS.get(word, word)) for word in significant]


class Bm25:
    """Ranks documents, each a list of terms, by how well they match a request."""

    def __init__(self, documents: Sequence[Sequence[str]]) -> None:
        """Count the terms of the documents."""
        self._counts = [Counter(document) for document in documents]
        self._lengths = [len(document) for document in documents]
        self._mean = sum(self._lengths) / max(len(documents), 1) or 1.0
        holding = Counter(term for counts in self._counts for term in counts)
        total = len(documents)
        self._weights = {t: math.log(1 + (total - n + 0.5) / (n + 0.5)) for t, n in holding.items()}

    def scores(self, request: Sequence[str]) -> list[float]:
        """Return one score for each document, 0 where nothing matches."""
        return [
            self._score(counts, length, request)
            for counts, length in zip(self._counts, self._lengths, strict=True)
        ]

    def _score(self, counts: Counter[str], length: int, request: Sequence[str]) -> float:
        saturation = _BM25_K1 * (1 - _BM25_B + _BM25_B * length / self._mean)
        return sum(
            self._weights[term] * counts[term] * (_BM25_K1 + 1) / (counts[term] + saturation)
            for term in dict.fromkeys(request)
            if counts[term]
        )


# ---- spans

SpanKind = Literal["quoted", "url", "date", "glob", "file", "number", "expression"]
"""The kind of a span."""

MAX_REQUEST_CHARS = 4_000
"""The rest of a longer request is ignored."""

_QUOTED = re.compile(r"`([^`]+)`|\"([^\"]+)\"|“([^”]+)”|(?<![\w'])'((?:[^']|(?<=\w)'(?=\w))+)'(?!\w)")
_PATTERNS: tuple[tuple[SpanKind, re.Pattern[str]], ...] = (
    ("url", re.compile(r"https?://[^\s<>\"']+[^\s<>\"'.,;:!?)]")),
    ("date", re.compile(r"(?<![\w-])\d{4}-\d{2}-\d{2}(?![\w-])")),
    ("glob", re.compile(r"(?<!\S)[\w./-]*\*[\w./*{},-]*\w")),
    (
        "file",
        re.compile(
            r"(?<![\w/.-])(?:[\w.-]+/)+[\w-][\w.-]*\w|(?<![\w/.-])(?:[\w.-]+/)+"
            r"|(?<![\w/-])\.?[\w-]+(?:\.[A-Za-z_]\w{0,9})+(?![\w(])"
        ),
    ),
    ("number", re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?(?!\w|\.\d)")),
)
_EXPRESSION = re.compile(
    r"(?<![\w.])[-+(\s]{0,20}\d[\d\s.()]{0,40}(?:(?:\*\*|//|[-+*/%^])[\d\s.()+-]{1,40})+"
)
_NAME = re.compile(r"(?<![\w./-])[A-Z][\w-]*(?:\s+[A-Z][\w-]*)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A piece of a request.

    Attributes:
        kind: Its kind.
        text: The text for an argument, without quotes.
        start: Offset of its beginning in the request, quotes included.
        end: Offset of its end.
        within: The kind of quoted text by itself, such as a file's name.
    """

    kind: SpanKind
    text: str
    start: int
    end: int
    within: SpanKind | None = None


@functools.lru_cache(256)
def spans_of(request: str) -> tuple[Span, ...]:
    """Return the spans of a request in their order. None overlaps another."""
    request = request[:MAX_REQUEST_CHARS]
    found = list(_find_quoted(request))
    # Blanked, not removed: offsets stay the same, and no number is found inside a file's name.
    unmatched = _blank_out(request, found)
    for match in _EXPRESSION.finditer(unmatched):
        text = match[0].strip()
        if not re.fullmatch(r"\d{4}-\d{2}-\d{2}", text):
            start = match.start() + len(match[0]) - len(match[0].lstrip())
            found.append(Span(kind="expression", text=_balance(text), start=start, end=match.end()))
    unmatched = _blank_out(unmatched, found)
    for kind, pattern in _PATTERNS:
        new = [Span(kind=kind, text=m[0], start=m.start(), end=m.end()) for m in pattern.finditer(unmatched)]
        unmatched = _blank_out(unmatched, new)
        found += new
    return tuple(sorted(found, key=lambda span: span.start))


def _find_quoted(request: str) -> Iterator[Span]:
    for match in _QUOTED.finditer(request):
        text = next(group for group in match.groups() if group is not None)
        within: SpanKind | None = None
        for kind, pattern in _PATTERNS:
            if pattern.fullmatch(text):
                within = kind
                break
        yield Span(kind="quoted", text=text, start=match.start(), end=match.end(), within=within)


def _balance(text: str) -> str:
    """Return an expression without a bracket that has no counterpart in it."""
    while text.count("(") < text.count(")") and text.endswith(")"):
        text = text[:-1].rstrip()
    while text.count("(") > text.count(")") and text.startswith("("):
        text = text[1:].lstrip()
    return text.strip(" .")


def _blank_out(request: str, spans: Sequence[Span]) -> str:
    for span in spans:
        request = request[: span.start] + "\x00" * (span.end - span.start) + request[span.end :]
    return request


def names_in(request: str) -> list[str]:
    """Return capitalized words, except those that only begin a sentence."""
    found = []
    for match in _NAME.finditer(request):
        before = request[: match.start()].rstrip()
        parts = match[0].split()
        if not before or before[-1] in ".!?:":
            parts = parts[1:]
        while parts and parts[0].lower() in STOP_WORDS:
            parts = parts[1:]
        if parts and parts != ["I"]:
            found.append(" ".join(parts))
    return found


_FOLDER = (
    re.compile(r"\b(?:folder|directory|dir)\s+(?:called\s+|named\s+)?(?P<name>[\w][\w./-]*)", re.IGNORECASE),
    re.compile(r"(?<![\w./-])[./-]*+(?P<name>\w[\w./-]*+)\s++(?:folder|directory|dir)\b", re.IGNORECASE),
    re.compile(
        r"\b(?:in|inside|under|within|of|below|through)\s+(?:the\s+|my\s+)?(?P<name>[\w][\w./-]*)",
        re.IGNORECASE,
    ),
)
_NOT_FOLDERS = STOP_WORDS | {
    "workspace",
    "folder",
    "directory",
    "dir",
    "current",
    "files",
    "file",
    "contents",
    "everything",
    "sandbox",
    "bash",
    "shell",
    "python",
    "it",
    "them",
    "subfolder",
    "whole",
    "same",
    "list",
    "full",
}


def folders_in(request: str) -> list[str]:
    """Return words that name a folder by their position: `in data`, `the data folder`, `folder data`."""
    unquoted = _QUOTED.sub(lambda match: " " * len(match[0]), request)
    found = []
    for pattern in _FOLDER:
        for match in pattern.finditer(unquoted):
            name = match["name"].rstrip(".,;:!?")
            if name.lower() not in _NOT_FOLDERS and not name.replace(".", "").isdigit():
                found.append(name)
    return list(dict.fromkeys(found))


# ---- intents

SlotKind = Literal[
    "path", "url", "date", "glob", "code", "number", "flag", "choice", "text", "phrase", "json"
]
"""The kind of an argument: `text` is taken literally, a `phrase` is a name or a few words."""

_CODE_NAMES = {"command", "code", "script", "cmd", "source_code", "expression", "shell", "query_sql"}
_PATH_NAMES = {
    "path",
    "file",
    "filename",
    "file_name",
    "filepath",
    "source",
    "destination",
    "target",
    "folder",
    "directory",
}
_TEXT_NAMES = {"content", "text", "body", "message", "pattern", "note"}
_MIN_OPERATIONS = 3
_MAX_EXAMPLES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One argument to fill.

    Attributes:
        name: Its name.
        kind: The kind of value it takes.
        required: Whether the call needs it.
        choices: The values it may have, if they are listed.
        integer: Whether a number must be whole.
        words: The words of its name and description.
        in_examples: Whether an example has it.
    """

    name: str
    kind: SlotKind
    required: bool
    choices: tuple[Json, ...] = ()
    integer: bool = False
    words: tuple[str, ...] = ()
    in_examples: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """One thing that a request can ask for: a tool, or one operation of a tool.

    Attributes:
        tool: The tool.
        label: One word for it, which the model scores.
        fixed: Arguments that select the operation.
        slots: The arguments to fill.
        examples: Pairs of arguments and a request for them.
        needs_any: Whether at least one argument must be given.
    """

    tool: ToolDefinition
    label: str
    fixed: Mapping[str, Json] = field(default_factory=dict)
    slots: tuple[Slot, ...] = ()
    examples: tuple[tuple[Mapping[str, Json], str], ...] = ()
    needs_any: bool = False

    @property
    def phrases(self) -> list[str]:
        """Example requests; without any, the first sentence of the description."""
        return [request for _, request in self.examples] or [_first_sentence(self.tool.description)]

    @property
    def name(self) -> str:
        """The tool's name, and that of the operation."""
        return " ".join([self.tool.name, *map(str, self.fixed.values())])


def intents_of(tools: Iterable[ToolDefinition]) -> tuple[Intent, ...]:
    """Return the intents of `tools`, in order: one for each tool, or for each operation of a tool."""
    found: list[Intent] = []
    for tool in tools:
        selector = _find_selector(tool)
        if selector is None:
            found.append(_intent(tool, {}, tuple(tool.examples)))
            continue
        for value in dict.fromkeys(arguments[selector] for arguments, _ in tool.examples):
            matching = tuple(pair for pair in tool.examples if pair[0][selector] == value)
            found.append(_intent(tool, {selector: value}, matching))
    return tuple(found)


def _find_selector(tool: ToolDefinition) -> str | None:
    """Return the argument that selects an operation, judged by the examples; None if there is none."""
    properties = tool.parameters.get("properties", {})
    for name, schema in properties.items():
        values = _resolve(schema, tool.parameters).get("enum", ())
        named = [pair[0] for pair in tool.examples if isinstance(pair[0].get(name), str)]
        if len(values) < _MIN_OPERATIONS or len(named) != len(tool.examples):
            continue
        shapes = {(arguments[name], frozenset(arguments)) for arguments in named}
        if len({shape for _, shape in shapes}) > 1 and len({value for value, _ in shapes}) > 1:
            return str(name)
    return None


def _intent(
    tool: ToolDefinition, fixed: Mapping[str, Json], examples: tuple[tuple[Mapping[str, Json], str], ...]
) -> Intent:
    properties: Mapping[str, Any] = tool.parameters.get("properties", {})
    names_in_examples = [set(arguments) - set(fixed) for arguments, _ in examples]
    required = set(tool.parameters.get("required", ())) - set(fixed)
    names = [name for name in properties if name not in fixed]
    if fixed:
        required |= set.intersection(*names_in_examples) if names_in_examples else set()
        ever = set[str]().union(*names_in_examples)
        names = [name for name in names if name in ever or name in required]
    slots = tuple(_slot(name, tool, name in required, examples) for name in names)
    label = str(next(iter(fixed.values()))) if fixed else words(tool.name)[-1]
    return Intent(
        tool=tool,
        label=label,
        fixed=dict(fixed),
        slots=slots,
        examples=examples[:_MAX_EXAMPLES],
        needs_any=bool(fixed) and not required and all(names_in_examples) and bool(names_in_examples),
    )


def _slot(
    name: str, tool: ToolDefinition, required: bool, examples: Sequence[tuple[Mapping[str, Json], str]]
) -> Slot:
    schema = _resolve(tool.parameters.get("properties", {}).get(name, {}), tool.parameters)
    values = [arguments[name] for arguments, _ in examples if name in arguments]
    description = str(schema.get("description", ""))
    kind, choices = _kind(name, schema, values, description)
    return Slot(
        name=name,
        kind=kind,
        required=required,
        choices=choices,
        integer=schema.get("type") == "integer",
        words=tuple(words(f"{name} {description.partition('. ')[0]}")),
        in_examples=bool(values),
    )


def _kind(
    name: str, schema: Mapping[str, Any], values: list[Json], description: str
) -> tuple[SlotKind, tuple[Json, ...]]:
    choices = tuple(schema.get("enum", (schema["const"],) if "const" in schema else ()))
    if choices:
        return "choice", choices
    kinds = schema.get("type", "string")
    if kinds == "boolean":
        return "flag", ()
    if kinds in {"number", "integer"}:
        return "number", ()
    if kinds != "string":
        return "json", ()
    return _kind_of_text(name.lower(), values, schema, description), ()


def _kind_of_text(name: str, values: list[Json], schema: Mapping[str, Any], description: str) -> SlotKind:
    parts = set(name.split("_"))
    looks = {(spans_of(value) or (None,))[0] for value in values if isinstance(value, str)}
    kinds = {span.kind if span and span.text in values else None for span in looks}
    if parts & _CODE_NAMES:
        return "code"
    if "glob" in parts:
        return "glob"
    if schema.get("format") in {"uri", "url"} or parts & {"url", "uri", "link"} or kinds == {"url"}:
        return "url"
    if schema.get("format") == "date" or kinds == {"date"} or re.search(r"YYYY-MM-DD|\bISO\b", description):
        return "date"
    if parts & _PATH_NAMES or kinds == {"file"}:
        return "path"
    if parts & _TEXT_NAMES:
        return "text"
    return "phrase"


def _resolve(schema: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema without references to `root`, and without null among its alternatives."""
    if not isinstance(schema, Mapping):
        return {}
    reference = schema.get("$ref")
    if isinstance(reference, str):
        target = root.get("$defs", {}).get(reference.rpartition("/")[2], {})
        return {**(target if isinstance(target, Mapping) else {}), **schema}
    branches = [one for one in schema.get("anyOf", ()) if one != {"type": "null"}]
    if len(branches) == 1 and isinstance(branches[0], Mapping):
        return {**_resolve(branches[0], root), **{k: v for k, v in schema.items() if k != "anyOf"}}
    if branches:
        # Of several types, the simplest is filled.
        simple = [
            one for one in branches if isinstance(one, Mapping) and one.get("type") in {"string", "number"}
        ]
        return {
            **(simple[0] if simple else {"type": "object"}),
            **{k: v for k, v in schema.items() if k != "anyOf"},
        }
    kinds = schema.get("type")
    if isinstance(kinds, list):
        return {**schema, "type": next((kind for kind in kinds if kind != "null"), "string")}
    return schema


def _first_sentence(text: str) -> str:
    return text.strip().partition("\n")[0].partition(". ")[0].rstrip(".")
