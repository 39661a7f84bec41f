"""Prompts: what a person is shown, and what a typed line means. Pure.

A prompt is an approval request, about calls, or a user question, put by a model. Its text is chosen by
whoever wants the answer, so all of it passes through `visible`, which leaves no character that could hide or
reorder what is shown.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from aisotools.core.protocols import UserQuestion
from aisotools.core.redaction import secret_parameters
from aisotools.core.types import Approval, ApprovalRequest, Effect, Facts, Json, Remember

FieldKind = Literal["shell", "python", "text", "json", "secret"]
"""How the text of a field is to be read: raw text of one of three kinds, JSON, or a mask for a secret."""

EFFECT_LABELS: Mapping[Effect, str] = {
    Effect.READ_ONLY: "read only",
    Effect.REMOTE_ACTION: "remote action",
    Effect.LOCAL_MUTATION: "local change",
    Effect.DESTRUCTIVE: "destructive",
}
"""What a person reads for each effect."""

UNKNOWN_LABEL = "effect unknown"
"""What a person reads in place of an effect where nothing is known of what a call does."""

UNDECLARED_WORDS = (
    "This tool runs on the host, outside the sandbox, and can do all that you can. "
    "Nothing is known of what it does."
)
"""What a person reads about a tool on the host that declares nothing that could be used."""

DECLARED_WORDS = (
    "This tool runs on the host, outside the sandbox. What it does is what its author declares; "
    "nothing enforces it."
)
"""What a person reads about a tool on the host that declares what it does."""

READER_WORDS = "without write rights, what it changes of the variables does not reach the worker"
"""What a person reads about a call in the sandbox that is held to reading."""

MAX_SHOWN_CHARS = 50_000
"""A longer field is shown in part and cannot be edited."""

MAX_HINT_CHARS = 200
"""Longest hint of a tool's origin that is shown; the rest is cut off."""

LINKS_LABEL = "links"
"""Precedes the paths that lead elsewhere."""

HOOKS_LABEL = "git hooks"
SETTINGS_LABEL = "git programs"
"""Precedes the programs that a person has put into a repository, and that git runs."""

MAX_LINKS = 8
"""Links, and hooks, that are listed; the others are counted."""

MAX_PATH_CHARS = 160
"""Of a longer path both ends are shown."""

MASK = "\N{BULLET}" * 8 + " (secret, not shown)"
"""Shown in place of an argument that the tool's schema declares secret."""

ALLOW_HINT = "Approval alone is not enough: to allow it,"
"""Precedes the choice without which a call may not write protected files."""

REMEMBER_HINT = "To approve and not be asked again in this session,"
"""Precedes the scopes for which an approval can be remembered."""

ANSWER_HINT = "answer: "
"""Precedes the answer to a user question where it is typed."""

_NEW_LINE = "\N{DOWNWARDS ARROW WITH CORNER LEFTWARDS}"
_LEADS_TO = "\N{RIGHTWARDS ARROW}"
_PLAIN_PATH = re.compile(r"[^\s,'\"\u2192]+")
_ESCAPED = re.compile(r"(?<!\\)(?:\\\\)*\\[bfru]")
_RAW_KINDS: tuple[FieldKind, ...] = ("shell", "python", "text")
_CODE_ARGUMENTS: Mapping[str, FieldKind] = {"command": "shell", "code": "python"}
# Printable by category, yet nothing is seen: fillers, joiners, variation selectors, the blank Braille cell.
_INVISIBLE = frozenset(
    map(
        chr,
        (
            *(0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0, 0x1D159),
            *range(0x180B, 0x1810),
            *range(0xFE00, 0xFE10),
            *range(0xE0100, 0xE01F0),
        ),
    )
)


# ---- text that hides nothing


def visible(text: str, keep: str = "\n\t") -> str:
    r"""Return `text` with every control, invisible and direction-changing character escaped as `\uXXXX`.

    Args:
        text: Any text.
        keep: Such characters to leave as they are.
    """
    plain = text.translate(dict.fromkeys(map(ord, keep)))
    if plain.isprintable() and _INVISIBLE.isdisjoint(plain):  # nearly always, and far faster than the loop
        return text
    hidden = (char for char in set(text) if char not in keep and not _is_visible(char))
    return text.translate({ord(char): _escape(char) for char in hidden})


def visible_json(value: Json) -> str:
    """Return `value` as indented JSON in which every character is visible; it parses to the same value."""
    return visible(json.dumps(value, ensure_ascii=False, indent=2), keep="\n")


def truncate_middle(text: str) -> str:
    """Return `text`, or both ends of a very long one with the number of characters left out."""
    hidden = len(text) - MAX_SHOWN_CHARS
    if hidden <= 0:
        return text
    half = MAX_SHOWN_CHARS // 2
    return f"{text[:half]}\n[... {hidden:,} characters are not shown here ...]\n{text[-half:]}"


def _is_visible(char: str) -> bool:
    return char.isprintable() and char not in _INVISIBLE


def _escape(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i] << 8 | units[i + 1]:04x}" for i in range(0, len(units), 2))


# ---- approval requests


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentField:
    """A part of a call's arguments, as a person reads and edits it.

    Attributes:
        name: The argument; empty for the arguments without a field of their own, as one JSON object.
        kind: How to read `text`.
        text: Exactly the argument, or for `json` what parses to exactly it; for `secret` a mask.
    """

    name: str
    kind: FieldKind
    text: str

    @property
    def display_text(self) -> str:
        """`text`, or both ends of a very long one with the number of characters left out."""
        return truncate_middle(self.text)

    @property
    def has_escapes(self) -> bool:
        """True if the argument has invisible characters, which `text` shows escaped."""
        return self.kind == "json" and _ESCAPED.search(self.text) is not None

    @property
    def editable(self) -> bool:
        """True if a person sees all that they would change."""
        return self.kind != "secret" and len(self.text) <= MAX_SHOWN_CHARS


def argument_fields(request: ApprovalRequest) -> tuple[ArgumentField, ...]:
    """Return the arguments as fields: code raw, then the rest as one JSON object, longer texts, and secrets.

    `request.preview` may name arguments by kind, as in `{"shell": "command"}`. Raw text with an invisible
    character becomes part of the JSON object, which can escape it.
    """
    kinds: dict[str, FieldKind] = dict(_CODE_ARGUMENTS)
    for kind in _RAW_KINDS:
        names = request.preview.get(kind, ())
        kinds.update(dict.fromkeys((names,) if isinstance(names, str) else names, kind))
    secret = secret_parameters(request.definition.parameters)
    code: list[ArgumentField] = []
    texts: list[ArgumentField] = []
    secrets: list[ArgumentField] = []
    rest: dict[str, Json] = {}
    for name, value in request.call.arguments.items():
        if name in secret:
            secrets.append(ArgumentField(name=name, kind="secret", text=MASK))
        elif not isinstance(value, str) or not name or visible(value) != value:
            rest[name] = value
        elif (kind := kinds.get(name, "text")) != "text":
            code.append(ArgumentField(name=name, kind=kind, text=value))
        elif name in kinds or "\n" in value:
            texts.append(ArgumentField(name=name, kind="text", text=value))
        else:
            rest[name] = value
    if rest or not (code or texts or secrets):
        code.append(ArgumentField(name="", kind="json", text=visible_json(rest)))
    return (*code, *texts, *secrets)


def summarize_request(request: ApprovalRequest, max_chars: int = 120) -> str:
    """Return the arguments in one line, cut at `max_chars`: the code, or `name=value` for each argument."""
    parts = [field.text for field in argument_fields(request) if field.kind in {"shell", "python"}]
    if not parts:
        secret = secret_parameters(request.definition.parameters)
        parts = [
            f"{name}={MASK if name in secret else _plain(value)}"
            for name, value in request.call.arguments.items()
        ]
    line = " ".join(parts).strip().replace("\n", f" {_NEW_LINE} ")
    # Fold blanks, so that they cannot push the rest out of the line.
    line = re.sub(r"[ \t]+", " ", line)
    line = visible(line[: max_chars + 1], "")
    return line if len(line) <= max_chars else line[: max_chars - 1] + "\N{HORIZONTAL ELLIPSIS}"


def _plain(value: Json) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def is_risky(request: ApprovalRequest) -> bool:
    """Return whether a call must be looked at on its own, even among others that are approved together."""
    facts = request.facts
    severe = request.effect in {Effect.DESTRUCTIVE, Effect.REMOTE_ACTION}
    return severe or not facts.certain or facts.outside or "host" in {request.level, facts.runs_in}


def remember_choices(request: ApprovalRequest) -> dict[Remember, str]:
    """Return the scopes that are offered, the narrowest first, each with exactly what it would allow."""
    offered = request.preview.get("remember", {})
    if not isinstance(offered, Mapping):
        return {}
    return {
        scope: visible(offered[scope], "")
        for scope in get_args(Remember)
        if isinstance(offered.get(scope), str)
    }


def describe_requester(request: ApprovalRequest) -> str:
    """Return who wants the call, in a few words."""
    agent = f", agent {visible(request.call.agent_id, '')}" if request.call.agent_id else ""
    step = f", step {visible(request.call.turn_id, '')[:40]}" if request.call.turn_id else ""
    return f"asked by a {visible(request.call.origin, '')}{agent}{step}"


def describe_location(request: ApprovalRequest) -> str:
    """Return where the call would run, in a few words that promise no sandbox where there is none."""
    if request.level == "host":
        return "on the host, outside the sandbox"
    if request.level == "limited":
        return "level limited: not a sandbox"
    place = f"sandbox level {visible(request.level, '')}"
    return f"{place}, {READER_WORDS}" if request.in_reader else place


def describe_effect(request: ApprovalRequest) -> str:
    """Return the effect of the call, in two words."""
    return UNKNOWN_LABEL if request.facts.basis == "nothing" else EFFECT_LABELS[request.effect]


def describe_trust(request: ApprovalRequest) -> tuple[str, ...]:
    """Return what a person has to believe of a tool on the host, in sentences; none for any other tool."""
    if request.level != "host" or request.facts.basis == "analysis":
        return ()
    sentences = [UNDECLARED_WORDS if request.facts.basis == "nothing" else DECLARED_WORDS]
    offered = request.preview.get("hints", ())
    hints = [visible(hint, "")[:MAX_HINT_CHARS] for hint in offered if isinstance(hint, str)]
    if hints:
        sentences.append(f"Its origin says, and nobody has checked: {', '.join(hints)}.")
    return tuple(sentences)


def shown_path(path: str) -> str:
    """Return a path as a label in which every character is visible, in quotes where its end is not clear.

    Of a very long one both ends are shown: what it begins with and the file it names.
    """
    text = visible(path, "")
    if len(text) > MAX_PATH_CHARS:
        hidden = len(text) - MAX_PATH_CHARS
        half = MAX_PATH_CHARS // 2
        text = f"{text[:half]}[... {hidden:,} characters ...]{text[-half:]}"
    is_plain = text and _PLAIN_PATH.fullmatch(text)
    return text if is_plain else json.dumps(text, ensure_ascii=False).replace("\\\\", "\\")


def describe_links(facts: Facts) -> str:
    """Return the paths of a call that lead elsewhere, each as written with where it leads; empty for none."""
    links = [
        f"{shown_path(name)} {_LEADS_TO} {shown_path(target)}"
        for name, target in facts.links
        # An absolute spelling of a path in the workspace is not a link.
        if not (name.startswith("/") and name.endswith(f"/{target}"))
    ]
    more = [f"and {len(links) - MAX_LINKS:,} more"] if len(links) > MAX_LINKS else []
    return ", ".join([*links[:MAX_LINKS], *more])


def describe_git_programs(facts: Facts) -> list[tuple[str, str]]:
    """Return what git may start in a call, as pairs of a label and names: hooks, and settings."""
    hooks = [f"{programs.folder}/{name}" for programs in facts.git_programs for name in programs.hooks]
    settings = [setting for programs in facts.git_programs for setting in programs.settings]
    described = []
    for label, names in ((HOOKS_LABEL, hooks), (SETTINGS_LABEL, settings)):
        more = [f"and {len(names) - MAX_LINKS:,} more"] if len(names) > MAX_LINKS else []
        shown = map(shown_path if label == HOOKS_LABEL else _shown_setting, names[:MAX_LINKS])
        if names:
            described.append((label, ", ".join([*shown, *more])))
    return described


def _shown_setting(setting: str) -> str:
    return visible(setting[:MAX_PATH_CHARS], "")


def describe_request(request: ApprovalRequest, *, typed: bool = True) -> str:
    """Return an approval request as plain text: tool, effect, requester, reasons and the exact arguments.

    Args:
        request: The request.
        typed: Whether its answer is typed; then the scopes to remember it for are listed with their letters.
    """
    lines = [
        f"May this run?  {visible(request.call.name, '')}",
        f"  {describe_effect(request)}, {describe_location(request)}, {describe_requester(request)}",
        *(f"  {sentence}" for sentence in describe_trust(request)),
        *(f"  because {visible(reason, '')}" for reason in request.reasons),
    ]
    if links := describe_links(request.facts):
        lines.append(f"  {LINKS_LABEL}: {links}")
    lines += [f"  {label}: {names}" for label, names in describe_git_programs(request.facts)]
    for field in argument_fields(request):
        lines.append(f"  {visible(field.name, '') or 'arguments'}:")
        lines += [f"    {line}" for line in field.display_text.split("\n")]
    if typed and (choices := remember_choices(request)):
        lines.append(f"  {ALLOW_HINT if 'protected' in choices else REMEMBER_HINT} type")
        lines += [f"    {scope[0]}  for {words}" for scope, words in choices.items()]
    return "\n".join(lines)


def parse_approval(text: str, choices: Collection[Remember] = ()) -> Approval:
    """Return the answer that a typed line gives to an approval request.

    `y` approves; `n` or nothing denies, with what follows as the reason; any other text denies and is the
    reason.

    Args:
        text: The line.
        choices: Scopes that were offered; the first letter of one approves and remembers.
    """
    word, _, rest = text.strip().partition(" ")
    for scope in choices:
        if word.lower() == scope[0] and not rest:
            return Approval("approve", remember=scope)
    if word.lower() in {"y", "yes"} and not rest:
        return Approval("approve")
    if word.lower().rstrip(",:;.") in {"", "n", "no"}:
        return Approval("deny", reason=rest.strip())
    return Approval("deny", reason=text.strip())


# ---- user questions


def describe_question(question: UserQuestion) -> str:
    """Return a model's question as plain text, with its choices numbered."""
    sender = f"agent {visible(question.agent_id, '')}" if question.agent_id else "the model"
    lines = [f"A question from {sender}:", *(f"  {line}" for line in visible(question.text).split("\n"))]
    lines += [f"  {number}. {visible(choice, '')}" for number, choice in enumerate(question.choices, 1)]
    lines.append("  Type a number." if question.choices else "  Type an answer; nothing means no answer.")
    return "\n".join(lines)


def parse_question_answer(line: str, question: UserQuestion) -> str | None:
    """Return the answer that a typed line gives: "" for no answer, None if it is none of the choices."""
    line = line.strip()
    if not line or not question.choices or line in question.choices:
        return line
    number = int(line) if line.isascii() and line.isdecimal() and len(line) < 4 else 0
    return question.choices[number - 1] if 1 <= number <= len(question.choices) else None
