"""What a person is shown before answering whether a call may run, and what a typed answer means. Pure.

Text in a request is chosen by whoever wants the call to run. So everything passes through `visible`, which
leaves nothing that could hide or reorder what stands there.

A model's question to a person as plain text, and what a typed line answers to it. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from aisotools.core.protocols import UserQuestion
from aisotools.core.redaction import secret_parameters
from aisotools.core.types import Approval, ApprovalRequest, Effect, Json, Remember

FieldKind = Literal["shell", "python", "text", "json", "secret"]
"""How a field's text reads: raw text of one of three sorts, JSON, or a mask in place of a secret."""

EFFECT_WORDS: Mapping[Effect, str] = {
    Effect.READ_ONLY: "read only",
    Effect.REMOTE_ACTION: "remote action",
    Effect.LOCAL_MUTATION: "local change",
    Effect.DESTRUCTIVE: "destructive",
}
"""What a person reads for each effect."""

MAX_SHOWN_CHARS = 50_000
"""A field longer than this is not shown whole, and cannot be edited."""

MASK = "\N{BULLET}" * 8 + " (secret, not shown)"
"""What stands in place of an argument that the tool's schema declares secret."""

REMEMBER = "To approve and not be asked again in this session,"
"""What stands before the scopes that an approval can be remembered for."""

_NEW_LINE = "\N{DOWNWARDS ARROW WITH CORNER LEFTWARDS}"
_WRITTEN_DOWN = re.compile(r"(?<!\\)(?:\\\\)*\\[bfru]")
_RAW_KINDS: tuple[FieldKind, ...] = ("shell", "python", "text")
_CODE_ARGUMENTS: Mapping[str, FieldKind] = {"command": "shell", "code": "python"}
# Printable by category, yet nothing is seen: fillers, joiners, variation selectors, the blank Braille cell.
_BLANK = frozenset(
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


def visible(text: str, keep: str = "\n\t") -> str:
    r"""`text` with every control, invisible and direction-changing character written as `\uXXXX`.

    Args:
        text: Anything.
        keep: Such characters to leave alone.
    """
    plain = text.translate(dict.fromkeys(map(ord, keep)))
    if plain.isprintable() and _BLANK.isdisjoint(plain):  # nearly always, and far faster than looking at each
        return text
    return "".join(char if char in keep or _is_seen(char) else _escape(char) for char in text)


def _is_seen(char: str) -> bool:
    return char.isprintable() and char not in _BLANK


def visible_json(value: Json) -> str:
    """`value` as indented JSON in which every character can be seen; it parses to the same value."""
    return visible(json.dumps(value, ensure_ascii=False, indent=2), keep="\n")


def shown_ends(text: str) -> str:
    """`text`, or of a very long one both ends and how much is missing between them."""
    hidden = len(text) - MAX_SHOWN_CHARS
    if hidden <= 0:
        return text
    half = MAX_SHOWN_CHARS // 2
    return f"{text[:half]}\n[... {hidden:,} characters are not shown here ...]\n{text[-half:]}"


def _escape(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i] << 8 | units[i + 1]:04x}" for i in range(0, len(units), 2))


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A part of a call's arguments, as a person reads and edits it.

    Attributes:
        name: The argument; empty for all arguments that have no field of their own, as one JSON object.
        kind: How to read `text`.
        text: Exactly the argument, or for `json` what parses to exactly it; for `secret` a mask.
    """

    name: str
    kind: FieldKind
    text: str

    @property
    def shown(self) -> str:
        """`text`, or of a very long one both ends and how much is missing between them."""
        return shown_ends(self.text)

    @property
    def hides(self) -> bool:
        """Whether the argument holds characters that cannot be seen, and `text` shows them written down."""
        return self.kind == "json" and _WRITTEN_DOWN.search(self.text) is not None

    @property
    def editable(self) -> bool:
        """Whether a person sees all that they would change."""
        return self.kind != "secret" and len(self.text) <= MAX_SHOWN_CHARS


def argument_fields(request: ApprovalRequest) -> tuple[Field, ...]:
    """The arguments of `request`: code raw, the rest as one JSON object, longer text raw, secrets masked.

    `request.preview` may name arguments by kind, as in `{"shell": "command"}`. Raw text that holds a
    character one cannot see is left to JSON, which can write it down.
    """
    kinds: dict[str, FieldKind] = dict(_CODE_ARGUMENTS)
    for kind in _RAW_KINDS:
        names = request.preview.get(kind, ())
        kinds.update(dict.fromkeys((names,) if isinstance(names, str) else names, kind))
    secret = secret_parameters(request.definition.parameters)
    raw, masked = [], []
    rest = {}
    for name, value in request.call.arguments.items():
        if name in secret:
            masked.append(Field(name=name, kind="secret", text=MASK))
            continue
        readable = isinstance(value, str) and bool(name) and visible(value) == value
        if readable and (name in kinds or "\n" in value):
            raw.append(Field(name=name, kind=kinds.get(name, "text"), text=value))
        else:
            rest[name] = value
    code = [field for field in raw if field.kind != "text"]
    texts = [field for field in raw if field.kind == "text"]
    if rest or not (raw or masked):
        code.append(Field(name="", kind="json", text=visible_json(rest)))
    return (*code, *texts, *masked)


def summarize(request: ApprovalRequest, max_chars: int = 120) -> str:
    """The arguments in one line, as far as they fit: the code, or `name=value` by name."""
    code = [field.text for field in argument_fields(request) if field.kind in {"shell", "python"}]
    secret = secret_parameters(request.definition.parameters)
    told = code or [
        f"{name}={MASK if name in secret else _brief(value)}"
        for name, value in request.call.arguments.items()
    ]
    # Blanks are folded, so that they cannot push the rest out of the line.
    line = re.sub(r"[ \t]+", " ", " ".join(told).strip().replace("\n", f" {_NEW_LINE} "))
    line = visible(line[: max_chars + 1], "")
    return line if len(line) <= max_chars else line[: max_chars - 1] + "\N{HORIZONTAL ELLIPSIS}"


def _brief(value: Json) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def is_risky(request: ApprovalRequest) -> bool:
    """Whether a call deserves a look of its own, even among others that are approved together."""
    facts = request.facts
    severe = request.effect in {Effect.DESTRUCTIVE, Effect.REMOTE_ACTION}
    return severe or not facts.certain or facts.outside or "host" in {request.level, facts.runs_in}


def remember_choices(request: ApprovalRequest) -> dict[Remember, str]:
    """How far an approval can reach, the narrowest first, and what exactly it would allow then."""
    offered = request.preview.get("remember", {})
    if not isinstance(offered, Mapping):
        return {}
    return {
        scope: visible(offered[scope], "")
        for scope in get_args(Remember)
        if isinstance(offered.get(scope), str)
    }


def who_asks(request: ApprovalRequest) -> str:
    """Who wants the call, in a few words."""
    agent = f", agent {visible(request.call.agent_id, '')}" if request.call.agent_id else ""
    step = f", step {visible(request.call.turn_id, '')[:40]}" if request.call.turn_id else ""
    return f"asked by a {visible(request.call.origin, '')}{agent}{step}"


def where_it_runs(request: ApprovalRequest) -> str:
    """Where the call would run, in a few words that do not promise more than holds."""
    if request.level == "host":
        return "on the host, outside the sandbox"
    if request.level == "limited":
        return "level limited: not a sandbox"
    return f"sandbox level {visible(request.level, '')}"


def describe(request: ApprovalRequest) -> str:
    """The whole question as plain text: tool, effect, who asks, why, and exactly the arguments."""
    lines = [
        f"May this run?  {visible(request.call.name, '')}",
        f"  {EFFECT_WORDS[request.effect]}, {where_it_runs(request)}, {who_asks(request)}",
        *(f"  because {visible(reason, '')}" for reason in request.reasons),
    ]
    for field in argument_fields(request):
        lines.append(f"  {visible(field.name, '') or 'arguments'}:")
        lines += [f"    {line}" for line in field.shown.split("\n")]
    if choices := remember_choices(request):
        lines.append(f"  {REMEMBER} type")
        lines += [f"    {scope[0]}  for {words}" for scope, words in choices.items()]
    return "\n".join(lines)


def parse_answer(text: str, choices: Collection[Remember] = ()) -> Approval:
    """What somebody typed: `y` approves, `n` or nothing denies, anything else denies and is the reason.

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


ANSWER_PROMPT = "answer: "
"""What stands before the answer where it is typed."""


def describe_inquiry(inquiry: UserQuestion) -> str:
    """The question as plain text, with every character visible, and its choices numbered."""
    who = f"agent {visible(inquiry.agent_id, '')}" if inquiry.agent_id else "the model"
    lines = [f"A question from {who}:", *(f"  {line}" for line in visible(inquiry.text).split("\n"))]
    lines += [f"  {number}. {visible(choice, '')}" for number, choice in enumerate(inquiry.choices, 1)]
    lines.append("  Type a number." if inquiry.choices else "  Type an answer; nothing means no answer.")
    return "\n".join(lines)


def chosen(line: str, inquiry: UserQuestion) -> str | None:
    """What a typed line answers; "" for no answer, None for what is not among the choices."""
    line = line.strip()
    if not line or not inquiry.choices:
        return line
    if line in inquiry.choices:
        return line
    number = int(line) if line.isascii() and line.isdecimal() and len(line) < 4 else 0
    return inquiry.choices[number - 1] if 1 <= number <= len(inquiry.choices) else None
