"""A request of several steps, taken clause by clause; what was found so far, and the answer from it. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from aisotools.messages import AssistantMessage, CallPart, Message, ToolMessage, UserMessage
from aisotools.models.local_spans import spans_of
from aisotools.models.local_words import terms

MOST_QUOTED_CHARS = 2_000
"""More of a result is not repeated in an answer."""

_VERBS = (
    "read|open|show|list|search|find|write|save|store|create|make|append|add|delete|remove|move|rename|copy|run|"
    "execute|compute|calculate|convert|look|roll|load|print|display|tell|say|answer|count|put|check|get|what|how|who"
)
_BREAK = re.compile(
    rf"[.!?;]\s+(?:(?:and\s+)?(?:then|after that|finally|next),?\s+)?(?=[A-Z])"
    rf"|[,;]?\s+(?:and\s+)?(?:then|after that|finally)\s+"
    rf"|,?\s+and\s+(?=(?:{_VERBS})\b)|,\s+(?=(?:{_VERBS})\b)|\s*\n+\s*(?:\d+[.)]|[-*])?\s*",
    re.IGNORECASE,
)
_ANSWERS = re.compile(
    r"^(?:please\s+)?(?:tell|say|answer|explain|summari[sz]e|report|let me know|give me|"
    r"what|which|who|when|where|how)\b",
    re.IGNORECASE,
)
_MANNERS = re.compile(r"^(?:\d+[.)]\s*|[-*]\s+|first,?\s+|next,?\s+|finally,?\s+|please\s+)+", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Where a request stands.

    Attributes:
        steps: Its clauses that want something done.
        question: The clause to answer at the end; empty if there is none.
        done: How many steps have been called for.
        last: The result of the last one.
        files: Files that results named, the latest first.
    """

    steps: tuple[str, ...]
    question: str = ""
    done: int = 0
    last: ToolMessage | None = None
    files: tuple[str, ...] = ()

    @property
    def step(self) -> str | None:
        """What is to be done next; None if all is."""
        return self.steps[self.done] if self.done < len(self.steps) else None


def plan_of(messages: Sequence[Message]) -> Plan:
    """The plan of the last request in a conversation."""
    place = max((n for n, one in enumerate(messages) if isinstance(one, UserMessage)), default=None)
    if place is None:
        return Plan(steps=())
    request = messages[place]
    assert isinstance(request, UserMessage)
    since = messages[place + 1 :]
    steps, question = _sorted(clauses_of(request.text))
    results = [one for one in since if isinstance(one, ToolMessage)]
    return Plan(
        steps=steps,
        question=question,
        done=sum(1 for one in since if isinstance(one, AssistantMessage) and one.calls),
        last=results[-1] if results else None,
        files=files_seen(messages),
    )


def clauses_of(request: str) -> list[str]:
    """The request in parts that each want one thing; what is quoted is never taken apart."""
    request = re.sub(r"(?m)^\s*\d{1,2}[.)]\s+", "", request.strip())
    quoted = [span for span in spans_of(request) if span.kind == "quoted"]
    parts, start = [], 0
    for match in _BREAK.finditer(request):
        inside = any(span.start < match.end() and match.start() < span.end for span in quoted)
        if inside or match.start() < start:
            continue
        # Code that follows a colon is one thing, however many lines it has.
        if re.search(
            r"\b(?:code|python|bash|shell|command|script|snippet)\s*:",
            request[: match.start()],
            re.IGNORECASE,
        ):
            break
        parts.append(request[start : match.start() + (match[0][:1] in "!?")])
        start = match.end()
    parts.append(request[start:])
    return [clean for part in parts if (clean := _MANNERS.sub("", part.strip(" ,;")))]


def _sorted(clauses: Sequence[str]) -> tuple[tuple[str, ...], str]:
    """The clauses to carry out, and the one that only asks about what they gave."""
    steps = list(clauses[:1])
    question = ""
    for clause in clauses[1:]:
        if _ANSWERS.match(clause) and not [s for s in spans_of(clause) if s.kind != "number"]:
            question = clause
        else:
            steps.append(clause)
    return tuple(steps), question


def files_seen(messages: Sequence[Message]) -> tuple[str, ...]:
    """Files that results of calls named, the latest first, as paths from the workspace."""
    calls: dict[str, CallPart] = {}
    found: list[str] = []
    for message in messages:
        if isinstance(message, AssistantMessage):
            calls.update((call.id, call) for call in message.calls)
        elif isinstance(message, ToolMessage) and not message.is_error:
            call = calls.get(message.call_id)
            if call is None or call.arguments.get("operation") == "read":
                continue
            folder = str(call.arguments.get("path", ".")).rstrip("/")
            names = [span.text for span in spans_of(message.content) if span.kind == "file"]
            under = [
                name if folder in {"", "."} or name.startswith(f"{folder}/") else f"{folder}/{name}"
                for name in names
                if not name.endswith("/")
            ]
            found = under + found
    return tuple(dict.fromkeys(found))


def answer_from(plan: Plan) -> str:
    """What the last result says: the lines that match the question, or all of it. Quoted, never made up."""
    if plan.last is None:
        return "There is nothing to answer from: no tool was called."
    content = plan.last.content.strip()
    asked = set(terms(plan.question))
    if asked and "\n" in content:
        lines = [line for line in content.split("\n") if asked & set(terms(line))]
        if lines and len(lines) < 4:
            content = "\n".join(lines)
    if len(content) > MOST_QUOTED_CHARS:
        content = content[:MOST_QUOTED_CHARS] + "\n[... the result goes on ...]"
    return content or f"{plan.last.name} gave an empty result."
