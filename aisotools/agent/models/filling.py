"""Fills the arguments of an intent with parts of a request, by their kind and the words around them. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from aisotools.agent.models.spans import (
    STOP_WORDS,
    Intent,
    Slot,
    Span,
    folders_in,
    names_in,
    spans_of,
    stem,
    words,
)
from aisotools.core.types import Json

_KINDS_OF_FILES = {
    "python": "py",
    "markdown": "md",
    "text": "txt",
    "notebook": "ipynb",
    "javascript": "js",
    "shell": "sh",
    "excel": "xlsx",
}
_EXTENSIONS = {
    "csv",
    "json",
    "toml",
    "yaml",
    "yml",
    "txt",
    "md",
    "py",
    "ipynb",
    "html",
    "xml",
    "pdf",
    "png",
    "jpg",
    "svg",
    "log",
    "parquet",
    "sql",
    "sh",
    "js",
    "ts",
}
_RUN = re.compile(
    r"""^(?:please\s+)?(?:can\s+you\s+|could\s+you\s+)?
    (?:(?:in|with|using|use)\s+(?:the\s+)?(?:bash|shell|terminal|python)\s*(?:shell|terminal)?,?\s*(?:to\s+)?)?
    (?:run|execute|evaluate|launch)
    (?:\s+(?:this|the|following|a|some))*
    (?:\s+(?:bash|shell|terminal|python|code|command|snippet|script|line|expression|statement))*[:,]?\s+
    (?P<code>\S.*?)
    (?:\s+(?:in|with|using)\s+(?:the\s+)?(?:bash|shell|terminal|python|sandbox))?$""",
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)
_COLON = re.compile(
    r"\b(?:python|bash|shell|command|code|snippet|script|run|execute)\s*:\s+(?P<code>\S.*)$",
    re.IGNORECASE | re.DOTALL,
)
_CONTENT = (
    re.compile(
        r"\b(?:that\s+(?:says|contains|reads)|saying|containing|with\s+(?:the\s+)?(?:text|content|contents|words?|line))\s*:?\s+(?P<text>\S.*)$",
        re.IGNORECASE | re.DOTALL,
    ),
    re.compile(
        r"\b(?:write|save|store|put|append|add)\s+(?:the\s+)?(?:text\s+|line\s+|words?\s+|sentence\s+|note\s+|string\s+)?"
        r"(?P<text>\S.*?)\s+(?:to|into|in|as|at|onto|on)\s+(?:the\s+|a\s+|my\s+)?(?:end\s+of\s+)?(?:the\s+)?(?:new\s+)?(?:file\s+)?(?:called\s+)?(?P<place>\S+)",
        re.IGNORECASE | re.DOTALL,
    ),
    re.compile(r":\s+(?P<text>\S.*)$", re.DOTALL),
)
_PATTERN = (
    re.compile(
        r"\b(?:search|look|grep|hunt|scan)\b.*?\bfor\s+(?:the\s+)?(?:words?\s+|text\s+|string\s+|phrase\s+|pattern\s+|lines?\s+with\s+)?(?P<text>\S.*?)(?=\s+(?:in|under|within|inside|across)\s|[?.!]?$)",
        re.IGNORECASE,
    ),
    re.compile(
        r"\b(?:mentions?|mentioning|contains?|containing|using|uses?|imports?|calls?)\s+(?:the\s+)?(?:words?\s+|text\s+)?(?P<text>\S.*?)(?=\s+(?:in|under|within|inside)\s|[?.!]?$)",
        re.IGNORECASE,
    ),
    re.compile(
        r"\bwhere\s+(?:is|are|do|does|did)\s+(?:the\s+|we\s+|i\s+)?(?P<text>\S+?)(?:\s+(?:defined|used|mentioned|called|set|imported|occurs?|appears?))",
        re.IGNORECASE,
    ),
    re.compile(r"\bgrep\s+(?:for\s+)?(?P<text>\S+)", re.IGNORECASE),
    re.compile(
        r"\bfind\s+(?:the\s+)?(?:words?\s+|text\s+|string\s+|lines?\s+with\s+)(?P<text>\S.*?)(?=\s+(?:in|under|within|inside)\s|[?.!]?$)",
        re.IGNORECASE,
    ),
    re.compile(r"\bfind\s+(?P<text>[A-Z_]{3,})(?=\s+in\s|[?.!]?$)"),
)
_SPOKEN_OPERATORS = {
    "plus": "+",
    "minus": "-",
    "times": "*",
    "multiplied by": "*",
    "divided by": "/",
    "to the power of": "**",
}
_NUMBER_WORDS = dict(
    zip(
        ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"],
        range(1, 13),
        strict=True,
    )
)
_NUMBER_WORDS |= {"twenty": 20, "hundred": 100, "dozen": 12, "once": 1, "twice": 2}


def code_in(request: str, unused: Sequence[Span], *, shell: bool) -> str | None:
    """Return the code or command to run: quoted, after a word such as "run", or an expression."""
    quoted = [span for span in unused if span.kind == "quoted"]
    ticked = [span for span in quoted if request[span.start] == "`"]
    whole = [
        span
        for span in quoted
        if not request[span.end :].strip(" .!?") or _introduces_code(request[: span.start])
    ]
    if ticked or (quoted and whole):
        found = (ticked or whole)[0]
        before = request[: found.start]
        if ticked or (before.endswith((" ", ": ")) and "(" not in before):
            return found.text
    for pattern in (_COLON, _RUN):
        match = pattern.search(request.strip().rstrip("."))
        if match:
            return _strip_quotes(match["code"].strip())
    return None if shell else _expression(request, unused)


def _introduces_code(before: str) -> bool:
    return bool(
        re.search(
            r"\b(?:run|execute|evaluate|command|code|snippet|do|compute|calculate)\s*:?\s*$",
            before,
            re.IGNORECASE,
        )
    )


def _expression(request: str, unused: Sequence[Span]) -> str | None:
    """Return an expression in figures, or one with operators in words, or a call; else None."""
    for span in unused:
        if span.kind == "expression":
            return span.text.replace("^", "**")
    written = request
    for phrase, sign in _SPOKEN_OPERATORS.items():
        written = re.sub(rf"(?<=\d)\s+{phrase}\s+(?=[\d(])", f" {sign} ", written, flags=re.IGNORECASE)
    written = re.sub(r"(?<=\d)\s+squared\b", " ** 2", written)
    match = re.search(r"(?<![\d.])-?\d[\d.]*+(?:\s*(?:\*\*|[-+*/])\s*-?\d[\d.]*+)+", written)
    if match and written != request:
        return match[0].rstrip(".")
    call = re.search(r"(?<![\w.])[A-Za-z_][\w.]*\([^()]*(?:\([^()]*\)[^()]*)*\)", request)
    return call[0] if call else None


def content_in(request: str, unused: Sequence[Span], files: Sequence[str]) -> str | None:
    """Return the text to write: quoted, or between the verb and the file."""
    quoted = [span for span in unused if span.kind == "quoted" and span.text not in files]
    if quoted:
        return quoted[0].text
    for pattern in _CONTENT:
        match = pattern.search(request)
        if not match:
            continue
        text = match["text"].strip().rstrip(".")
        if "place" in match.groupdict() and not any(match["place"].rstrip(".,") in file for file in files):
            continue
        for file in files:
            text = re.sub(rf"\s+(?:to|into|in|as)\s+(?:the file\s+)?{re.escape(file)}$", "", text)
        bare = re.sub(
            r"^(?:the|a|an|new|empty|file|script|called|named)\b\s*", "", text, flags=re.IGNORECASE
        ).strip()
        if bare and text not in files and not any(text.startswith(f"file {file}") for file in files):
            return _strip_quotes(text)
    return None


def pattern_in(request: str, unused: Sequence[Span], files: Sequence[str]) -> str | None:
    """Return the text to search for: quoted, or after words such as "search for"."""
    quoted = [span for span in unused if span.kind == "quoted" and span.text not in files]
    if quoted:
        return quoted[0].text
    for pattern in _PATTERN:
        match = pattern.search(request)
        if match:
            text = match["text"].strip(" ,.?!")
            if text in files or re.fullmatch(
                r"(?:all|any|every|the)?\s*(?:\w+\s+)?files?", text, re.IGNORECASE
            ):
                continue
            return _strip_quotes(text)
    return None


def glob_in(request: str) -> str | None:
    """Return a pattern for the names of files of a kind, such as `CSV files`; None if none is named."""
    for match in re.finditer(r"\.?(?<!\w)(\w++)\s++(?:files|notebooks|scripts)\b", request):
        word = match[1].lower()
        extension = _KINDS_OF_FILES.get(word, word if word in _EXTENSIONS else "")
        if extension:
            return f"*.{extension}"
    if re.search(r"\bnotebooks\b", request, re.IGNORECASE):
        return "*.ipynb"
    ending = re.search(r"\b(?:ending|end)\s+(?:in|with)\s+\.?(\w+)", request, re.IGNORECASE)
    return f"*.{ending[1]}" if ending else None


def lines_in(request: str) -> tuple[int | None, int | None] | None:
    """Return the first and the last line that are named, None for that of the file; None without a range."""
    if match := re.search(
        r"\blines?\s+(\d+)\s*(?:to|-|\u2013|through|until|and)\s*(\d+)", request, re.IGNORECASE
    ):
        return int(match[1]), int(match[2])
    if match := re.search(r"\b(?:first|top)\s+(\w+)\s+lines?\b", request, re.IGNORECASE):
        count = _count(match[1])
        return (None, count) if count else None
    if re.search(r"\b(?:the\s+)?first\s+line\b", request, re.IGNORECASE):
        return None, 1
    if match := re.search(r"\b(?:from|after|starting\s+(?:at|from))\s+line\s+(\d+)", request, re.IGNORECASE):
        return int(match[1]), None
    if match := re.search(r"\b(?:up\s+to|until)\s+line\s+(\d+)", request, re.IGNORECASE):
        return None, int(match[1])
    if match := re.search(r"\bline\s+(\d+)\b", request, re.IGNORECASE):
        return int(match[1]), int(match[1])
    return None


def _count(word: str) -> int | None:
    return int(word) if word.isdigit() else _NUMBER_WORDS.get(word.lower())


def number_in_words(request: str) -> int | None:
    """Return a small number that is spelled out, or None."""
    return next((_NUMBER_WORDS[word] for word in words(request) if word in _NUMBER_WORDS), None)


def phrases_for(slot: Slot, intent: Intent, request: str) -> list[str]:
    """Return texts that the argument could be, the best first: quoted, capitalized, or the other words."""
    quoted = re.findall(r"[`'\"“]([^`'\"”]+)[`'\"”]", request)
    if quoted:
        return list(dict.fromkeys(quoted))
    names = names_in(request)
    if names:
        return list(dict.fromkeys(names))
    frame = _question_words(intent, slot)
    found: list[str] = []
    run: list[str] = []
    for word in re.findall(r"[\w'-]+|[^\w\s]", request):
        telling = word[0].isalnum() and word.lower() not in STOP_WORDS and stem(word.lower()) not in frame
        if telling and not (
            not run
            and not found
            and request.startswith(word)
            and word[0].isupper()
            and len(request.split()) > 3
        ):
            run.append(word)
        elif run:
            found.append(" ".join(run))
            run = []
    if run:
        found.append(" ".join(run))
    # Words after a preposition are more likely a name than those before it.
    after = re.findall(r"\b(?:of|for|about|called|named|in|from)\s+(?:the\s+|a\s+|an\s+)?([\w'-]+)", request)
    return sorted(dict.fromkeys(found), key=lambda one: one.split()[0] not in after)


def _question_words(intent: Intent, slot: Slot) -> set[str]:
    """Return the stems of words that belong to the question, not to its subject."""
    texts = [intent.tool.name, intent.tool.description.partition("\n")[0], " ".join(slot.words)]
    for arguments, phrase in intent.examples:
        text = phrase
        for value in arguments.values():
            text = re.sub(re.escape(str(value)), " ", text, flags=re.IGNORECASE)
        texts.append(text)
    common = [
        "tell",
        "show",
        "find",
        "get",
        "look",
        "up",
        "please",
        "give",
        "check",
        "know",
        "current",
        "costs",
        "cost",
        "does",
    ]
    return {stem(word) for text in texts for word in words(text)} | {stem(word) for word in common}


def _strip_quotes(text: str) -> str:
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"`":
        return text[1:-1]
    return text


_BEFORE_TARGET = (
    r"\b(?:to|into|in|as|onto|called|named)\s+(?:the\s+|my\s+)?(?:folder\s+|directory\s+|file\s+)?[`'\"]?"
)
_TARGET_NAMES = {"destination", "target", "dest", "to", "new", "new_path", "new_name", "output"}
_READING_VERBS = {"read", "show", "open", "list", "search", "find", "load"}
_FLAG_OFF = {"no", "not", "without", "never"}


@dataclass(slots=True, kw_only=True)
class Filled:
    """The arguments found in a request.

    Attributes:
        arguments: The values, by name.
        missing: Names of required arguments that were not found.
        undecided: By name, several possible values of an argument, of which the model picks one.
        unused: Spans of the request that no argument took.
    """

    arguments: dict[str, Json] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    undecided: dict[str, list[str]] = field(default_factory=dict)
    unused: tuple[Span, ...] = ()

    @property
    def complete(self) -> bool:
        """True if the call can be made once the model has picked."""
        return not self.missing


class Filler:
    """Fills the arguments of one intent from one request."""

    def __init__(self, intent: Intent, request: str, known_files: Sequence[str] = ()) -> None:
        """Prepare to fill the arguments.

        Args:
            intent: The intent that the request is assumed to have.
            request: One clause.
            known_files: Files that earlier results named, for requests such as "read the letter".
        """
        self._intent = intent
        self._request = request
        self._known_files = known_files
        self._unused = list(spans_of(request))
        self._filled = Filled()

    def fill(self) -> Filled:
        """Return the arguments. Call it once."""
        slots = self._intent.slots
        self._fill_lines(slots)
        # Kinds that cannot be mistaken come first; free text gets the rest.
        order = ("url", "date", "choice", "glob", "path", "code", "text", "number", "flag", "phrase", "json")
        for kind in order:
            for slot in sorted((s for s in slots if s.kind == kind), key=_fill_order):
                if slot.name not in self._filled.arguments:
                    self._fillers()[kind](slot)
        result = self._filled
        found = {**result.arguments, **result.undecided}
        result.missing = tuple(slot.name for slot in slots if slot.required and slot.name not in found)
        if self._intent.needs_any and not found:
            result.missing = tuple(slot.name for slot in slots[:1])
        result.arguments = {**self._intent.fixed, **result.arguments}
        result.unused = tuple(self._unused)
        return result

    def _fillers(self) -> Mapping[str, Callable[[Slot], None]]:
        return {
            "url": self._filler_of_kind("url"),
            "date": self._filler_of_kind("date"),
            "choice": self._choice,
            "glob": self._glob,
            "path": self._path,
            "code": self._code,
            "text": self._text,
            "number": self._number,
            "flag": self._flag,
            "phrase": self._phrase,
            "json": lambda _: None,  # cannot be filled from words
        }

    def _assign(self, slot: Slot, value: Json, span: Span | None = None) -> None:
        self._filled.arguments[slot.name] = value
        if span is not None and span in self._unused:
            self._unused.remove(span)

    def _consume(self, text: str) -> None:
        """Mark all spans within `text` as used, which an argument took as a whole."""
        self._unused = [span for span in self._unused if span.text not in text]

    def _filler_of_kind(self, kind: str) -> Callable[[Slot], None]:
        def fill(slot: Slot) -> None:
            for span in self._unused:
                if kind in {span.kind, span.within}:
                    self._assign(slot, span.text, span)
                    return

        return fill

    def _fill_lines(self, slots: Sequence[Slot]) -> None:
        """Fill a range of lines, where one argument is the first and one the last."""
        first = next((s for s in slots if re.fullmatch(r"(start|first|from)_line", s.name)), None)
        last = next((s for s in slots if re.fullmatch(r"(end|last|to)_line", s.name)), None)
        found = lines_in(self._request)
        if first is None or last is None or found is None:
            return
        for slot, value in zip((first, last), found, strict=True):
            if value is not None:
                self._assign(slot, value)
                self._consume_number(value)

    def _consume_number(self, value: int) -> None:
        for span in self._unused:
            if span.kind == "number" and span.text == str(value):
                self._unused.remove(span)
                return

    def _choice(self, slot: Slot) -> None:
        found = _named_choices(slot, self._request)
        if not found:
            return
        if len(found) > 1 and slot.name.split("_")[0] in {"to", "target", "into"}:
            named = [
                c
                for c in found
                if re.search(rf"\b(?:to|in|into|as)\s+{re.escape(c[0])}\b", self._request, re.IGNORECASE)
            ]
            found = named or found[-1:]
        used_values = [repr(value) for value in self._filled.arguments.values()]
        for _, value in found:
            if repr(value) not in used_values or len(found) == 1:
                self._assign(slot, value)
                return

    def _glob(self, slot: Slot) -> None:
        self._filler_of_kind("glob")(slot)
        if slot.name not in self._filled.arguments:
            glob = glob_in(self._request)
            if glob:
                self._assign(slot, glob)

    def _files(self) -> list[Span]:
        return [span for span in self._unused if "file" in {span.kind, span.within}]

    def _path(self, slot: Slot) -> None:
        spans = self._files()
        is_target = bool(set(slot.name.lower().split("_")) & _TARGET_NAMES)
        if is_target:
            for span in reversed(spans):
                if re.search(_BEFORE_TARGET + "$", self._request[: span.start], re.IGNORECASE):
                    self._assign(slot, span.text, span)
                    return
            match = re.search(_BEFORE_TARGET + r"([\w][\w./-]*)", self._request, re.IGNORECASE)
            used_values = self._filled.arguments.values()
            if match and match[1] not in used_values and match[1] not in {"the", "it", "my"}:
                self._assign(slot, match[1].rstrip(".,"))
            return
        # A target is left to the argument for it.
        if len(spans) > 1 and any(set(s.name.split("_")) & _TARGET_NAMES for s in self._intent.slots):
            sources = [
                s
                for s in spans
                if not re.search(_BEFORE_TARGET + "$", self._request[: s.start], re.IGNORECASE)
            ]
            spans = sources or spans
        for span in spans:
            if span.kind == "file" or not self._wants_text():
                self._assign(slot, span.text, span)
                return
        self._path_by_words(slot)

    def _wants_text(self) -> bool:
        return any(slot.kind in {"text", "code"} for slot in self._intent.slots)

    def _path_by_words(self, slot: Slot) -> None:
        if self._known_files and (slot.required or not folders_in(self._request)):
            meant = _find_meant_file(self._request, self._known_files)
            if meant:
                self._assign(slot, meant)
                return
        if _takes_folders(self._intent) or not slot.required:
            used_values = {str(value) for value in self._filled.arguments.values()}
            for name in folders_in(self._request):
                if name not in used_values and name.lower() not in _READING_VERBS:
                    self._assign(slot, name)
                    return

    def _code(self, slot: Slot) -> None:
        found = code_in(self._request, self._unused, shell="command" in slot.name or "shell" in slot.name)
        if found:
            self._assign(slot, found)
            self._consume(found)

    def _text(self, slot: Slot) -> None:
        reader = pattern_in if "pattern" in slot.name or "query" in slot.name else content_in
        files = tuple(str(v) for v in self._filled.arguments.values() if isinstance(v, str))
        found = reader(self._request, self._unused, files)
        if found:
            self._assign(slot, found)
            self._consume(found)

    def _number(self, slot: Slot) -> None:
        spans = [span for span in self._unused if span.kind in {"number", "expression"}]
        for span in spans:
            if _is_named_beside(slot, span, self._request):
                self._assign(slot, _as_number(span.text, slot), span)
                return
        others = [s for s in self._intent.slots if s.kind == "number" and s.name != slot.name]
        free = [s for s in spans if not any(_is_named_beside(other, s, self._request) for other in others)]
        if free and (slot.required or slot.in_examples):
            value = _as_number(free[0].text, slot)
            if value is not None:
                self._assign(slot, value, free[0])
                return
        if slot.required:
            number = number_in_words(self._request)
            if number is not None:
                self._assign(slot, number)

    def _flag(self, slot: Slot) -> None:
        stems = {stem(word) for word in words(self._request)}
        if stem(slot.name.split("_")[-1]) in stems and not slot.required:
            self._assign(slot, not (stems & _FLAG_OFF))
        elif slot.name == "recursive" and re.search(
            r"\b(?:with )?(?:everything|all)\b.* in it", self._request
        ):
            self._assign(slot, True)
        elif slot.required:
            self._assign(slot, not (stems & _FLAG_OFF))

    def _phrase(self, slot: Slot) -> None:
        used_values = {str(value).lower() for value in self._filled.arguments.values()}
        found = [
            one for one in phrases_for(slot, self._intent, self._request) if one.lower() not in used_values
        ]
        if not found or not (slot.required or (slot.in_examples and found)):
            return
        if len(found) == 1:
            self._assign(slot, found[0])
            self._consume(found[0])
        else:
            self._filled.undecided[slot.name] = found[:8]
            for one in found:
                self._consume(one)


def _fill_order(slot: Slot) -> tuple[bool, bool]:
    return (not slot.required, not slot.in_examples)


def _takes_folders(intent: Intent) -> bool:
    """Return whether its examples show that a path may be a bare name."""
    paths = {slot.name for slot in intent.slots if slot.kind == "path"}
    values = [str(v) for arguments, _ in intent.examples for name, v in arguments.items() if name in paths]
    return any("/" not in v and "." not in v for v in values)


def _named_choices(slot: Slot, request: str) -> list[tuple[str, Json]]:
    """Return the choices that the request names, each with the words that name it, in order."""
    found: list[tuple[int, str, Json]] = []
    for choice in slot.choices:
        if not isinstance(choice, str):
            continue
        forms = {choice, choice.replace("_", " ")}
        if len(choice) > 3:
            forms |= {choice + "s", choice.removesuffix("s")}
        for form in sorted(forms, key=len, reverse=True):
            match = re.search(rf"(?<!\w){re.escape(form)}(?!\w)", request, re.IGNORECASE)
            if match:
                found.append((match.start(), match[0], choice))
                break
        else:
            # A unit by its letter: 20 C.
            match = re.search(rf"(?<=\d)\s*°?\s?{re.escape(choice[:1].upper())}\b", request)
            match = match or re.search(rf"\b(?:in|to)\s+°?{re.escape(choice[:1].upper())}\b", request)
            if match:
                found.append((match.start(), match[0].strip(), choice))
    return [(form, choice) for _, form, choice in sorted(found, key=lambda one: one[0])]


def _is_named_beside(slot: Slot, span: Span, request: str) -> bool:
    """Return whether the words right before or after a number name the argument."""
    stems_of_slot = {stem(word) for word in (*words(slot.name), *slot.words)} | _adjectives(slot)
    stems_of_slot -= {
        stem(w) for w in ("how", "many", "the", "of", "a", "number", "to", "in", "value", "and")
    }
    before = words(request[: span.start])[-2:]
    after = words(request[span.end :])[:1]
    if before and before[-1] in {"of", "is"} and len(before) > 1:
        before = before[:1]
    near = {stem(word) for word in (*before[-1:], *after)}
    own = {stem(word) for word in words(slot.name)} | _adjectives(slot)
    return bool(near & own) or bool({stem(word) for word in after} & stems_of_slot)


def _adjectives(slot: Slot) -> set[str]:
    pairs = {
        "width": "wide",
        "height": "high",
        "length": "long",
        "depth": "deep",
        "age": "old",
        "breadth": "broad",
    }
    also = {"height": "tall"}
    return {d[part] for d in (pairs, also) for part in slot.name.lower().split("_") if part in d}


def _as_number(text: str, slot: Slot) -> Json:
    try:
        value = float(text.replace(" ", ""))
    except ValueError:
        return None
    return int(value) if value.is_integer() else None if slot.integer else value


def _find_meant_file(request: str, files: Sequence[str]) -> str | None:
    """Return the known file that a request means by name, by position or by a pronoun; else None."""
    stems = {stem(word) for word in words(request)}
    named = [file for file in files if stems & {stem(word) for word in words(file.rpartition("/")[2])}]
    if named:
        return max(named, key=lambda file: len(stems & {stem(word) for word in words(file)}))
    places = {"first": 0, "second": 1, "third": 2, "last": -1}
    for word, place in places.items():
        if stem(word) in stems and len(files) > max(place, 0):
            return files[place]
    if stems & {"it", "them", "that", "this", "one"}:
        return files[0]
    return None
