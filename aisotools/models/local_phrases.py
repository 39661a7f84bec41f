"""Free text in a request: what is to be written, looked for or run, by the words around it. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from aisotools.models.local_intents import Intent, Slot
from aisotools.models.local_spans import Span, names_in
from aisotools.models.local_words import STOP_WORDS, stem, words

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
_SAID = {
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


def code_in(request: str, left: Sequence[Span], *, shell: bool) -> str | None:
    """What is to be run: quoted, behind the word that says so, or an expression to work out."""
    quoted = [span for span in left if span.kind == "quoted"]
    ticked = [span for span in quoted if request[span.start] == "`"]
    whole = [
        span for span in quoted if not request[span.end :].strip(" .!?") or _introduced(request[: span.start])
    ]
    if ticked or (quoted and whole):
        found = (ticked or whole)[0]
        before = request[: found.start]
        if ticked or (before.endswith((" ", ": ")) and "(" not in before):
            return found.text
    for pattern in (_COLON, _RUN):
        match = pattern.search(request.strip().rstrip("."))
        if match:
            return _unquoted(match["code"].strip())
    return None if shell else _expression(request, left)


def _introduced(before: str) -> bool:
    return bool(
        re.search(
            r"\b(?:run|execute|evaluate|command|code|snippet|do|compute|calculate)\s*:?\s*$",
            before,
            re.IGNORECASE,
        )
    )


def _expression(request: str, left: Sequence[Span]) -> str | None:
    """An expression in figures, or in words between figures."""
    for span in left:
        if span.kind == "expression":
            return span.text.replace("^", "**")
    said = request
    for phrase, sign in _SAID.items():
        said = re.sub(rf"(?<=\d)\s+{phrase}\s+(?=[\d(])", f" {sign} ", said, flags=re.IGNORECASE)
    said = re.sub(r"(?<=\d)\s+squared\b", " ** 2", said)
    match = re.search(r"-?\d[\d.]*(?:\s*(?:\*\*|[-+*/])\s*-?\d[\d.]*)+", said)
    if match and said != request:
        return match[0].rstrip(".")
    call = re.search(r"(?<![\w.])[A-Za-z_][\w.]*\([^()]*(?:\([^()]*\)[^()]*)*\)", request)
    return call[0] if call else None


def content_in(request: str, left: Sequence[Span], files: Sequence[str]) -> str | None:
    """What is to be written: quoted, or between the verb and the file."""
    quoted = [span for span in left if span.kind == "quoted" and span.text not in files]
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
            return _unquoted(text)
    return None


def pattern_in(request: str, left: Sequence[Span], files: Sequence[str]) -> str | None:
    """What is looked for: quoted, or behind the words that say so."""
    quoted = [span for span in left if span.kind == "quoted" and span.text not in files]
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
            return _unquoted(text)
    return None


def glob_in(request: str) -> str | None:
    """Files of a kind, such as `CSV files`, as a pattern for names."""
    for match in re.finditer(r"\.?(\w+)\s+(?:files|notebooks|scripts)\b", request):
        word = match[1].lower()
        extension = _KINDS_OF_FILES.get(word, word if word in _EXTENSIONS else "")
        if extension:
            return f"*.{extension}"
    if re.search(r"\bnotebooks\b", request, re.IGNORECASE):
        return "*.ipynb"
    ending = re.search(r"\b(?:ending|end)\s+(?:in|with)\s+\.?(\w+)", request, re.IGNORECASE)
    return f"*.{ending[1]}" if ending else None


def lines_in(request: str) -> tuple[int | None, int | None] | None:
    """The first and the last line that are meant; None where the file's own is."""
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
    """A small number that is spelled out."""
    return next((_NUMBER_WORDS[word] for word in words(request) if word in _NUMBER_WORDS), None)


def phrases_for(slot: Slot, intent: Intent, request: str) -> list[str]:
    """Names and words that the argument could be, the best first: quoted, with a capital, or left over."""
    quoted = re.findall(r"[`'\"“]([^`'\"”]+)[`'\"”]", request)
    if quoted:
        return list(dict.fromkeys(quoted))
    names = names_in(request)
    if names:
        return list(dict.fromkeys(names))
    frame = _frame(intent, slot)
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
    # What follows a preposition is more likely a name than what precedes it.
    after = re.findall(r"\b(?:of|for|about|called|named|in|from)\s+(?:the\s+|a\s+|an\s+)?([\w'-]+)", request)
    return sorted(dict.fromkeys(found), key=lambda one: one.split()[0] not in after)


def _frame(intent: Intent, slot: Slot) -> set[str]:
    """Words that belong to the question, not to what is asked about."""
    told = [intent.tool.name, intent.tool.description.partition("\n")[0], " ".join(slot.about)]
    for given, said in intent.examples:
        text = said
        for value in given.values():
            text = re.sub(re.escape(str(value)), " ", text, flags=re.IGNORECASE)
        told.append(text)
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
    return {stem(word) for text in told for word in words(text)} | {stem(word) for word in common}


def _unquoted(text: str) -> str:
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"`":
        return text[1:-1]
    return text
