"""A model's question to a person as plain text, and what a typed line answers to it. Pure."""

from __future__ import annotations

from aisotools.contracts import Inquiry
from aisotools.question import visible

ANSWER_PROMPT = "answer: "
"""What stands before the answer where it is typed."""


def describe_inquiry(inquiry: Inquiry) -> str:
    """The question as plain text, with every character visible, and its choices numbered."""
    who = f"agent {visible(inquiry.agent_id, '')}" if inquiry.agent_id else "the model"
    lines = [f"A question from {who}:", *(f"  {line}" for line in visible(inquiry.text).split("\n"))]
    lines += [f"  {number}. {visible(choice, '')}" for number, choice in enumerate(inquiry.choices, 1)]
    lines.append("  Type a number." if inquiry.choices else "  Type an answer; nothing means no answer.")
    return "\n".join(lines)


def chosen(line: str, inquiry: Inquiry) -> str | None:
    """What a typed line answers; "" for no answer, None for what is not among the choices."""
    line = line.strip()
    if not line or not inquiry.choices:
        return line
    if line in inquiry.choices:
        return line
    number = int(line) if line.isascii() and line.isdecimal() and len(line) < 4 else 0
    return inquiry.choices[number - 1] if 1 <= number <= len(inquiry.choices) else None
