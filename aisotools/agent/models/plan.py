"""The plan of a request: its clauses, the progress in a conversation, and the final answer. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from aisotools.agent.models.ranking import terms
from aisotools.agent.models.spans import spans_of
from aisotools.core.messages import AssistantMessage, CallPart, Message, ToolMessage, UserMessage

MAX_QUOTED_CHARS = 2_000
"""An answer quotes at most this much of a result."""

_VERBS = (
    "read|open|show|list|search|find|write|save|store|create|make|append|add|delete|remove|move|rename|copy|run|"
    "execute|compute|calculate|convert|look|roll|load|print|display|tell|say|answer|count|put|check|get|what|how|who"
)
_CLAUSE_BREAK = re.compile(
    rf"[.!?;]\s+(?:(?:and\s+)?(?:then|after that|finally|next),?\s+)?(?=[A-Z])"
    rf"|[,;]?\s+(?:and\s+)?(?:then|after that|finally)\s+"
    rf"|,?\s+and\s+(?=(?:{_VERBS})\b)|,\s+(?=(?:{_VERBS})\b)|\s*\n+\s*(?:\d+[.)]|[-*])?\s*",
    re.IGNORECASE,
)
_QUESTION_START = re.compile(
    r"^(?:please\s+)?(?:tell|say|answer|explain|summari[sz]e|report|let me know|give me|"
    r"what|which|who|when|where|how)\b",
    re.IGNORECASE,
)
_LEADING_PHRASES = re.compile(
    r"^(?:\d+[.)]\s*|[-*]\s+|first,?\s+|next,?\s+|finally,?\s+|please\s+)+", re.IGNORECASE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The steps of a request, and how many of them are done.

    Attributes:
        steps: The clauses that need a call.
        question: The clause to answer at the end; empty if there is none.
        done: Number of steps for which calls were made.
        last: The result of the last call.
        files: Files that results named, the latest first.
    """

    steps: tuple[str, ...]
    question: str = ""
    done: int = 0
    last: ToolMessage | None = None
    files: tuple[str, ...] = ()

    @property
    def step(self) -> str | None:
        """The next clause; None if all are done."""
        return self.steps[self.done] if self.done < len(self.steps) else None


def plan_of(messages: Sequence[Message]) -> Plan:
    """Return the plan of the last request in a conversation."""
    index = max((n for n, one in enumerate(messages) if isinstance(one, UserMessage)), default=None)
    if index is None:
        return Plan(steps=())
    request = messages[index]
    assert isinstance(request, UserMessage)
    since = messages[index + 1 :]
    steps, question = _split_question(clauses_of(request.text))
    results = [one for one in since if isinstance(one, ToolMessage)]
    return Plan(
        steps=steps,
        question=question,
        done=sum(1 for one in since if isinstance(one, AssistantMessage) and one.calls),
        last=results[-1] if results else None,
        files=files_seen(messages),
    )


def clauses_of(request: str) -> list[str]:
    """Split a request into clauses that each ask for one thing. Quoted text is never split."""
    request = re.sub(r"(?m)^\s*\d{1,2}[.)]\s+", "", request.strip())
    quoted = [span for span in spans_of(request) if span.kind == "quoted"]
    parts, start = [], 0
    for match in _CLAUSE_BREAK.finditer(request):
        inside = any(span.start < match.end() and match.start() < span.end for span in quoted)
        if inside or match.start() < start:
            continue
        # Code after a colon is one clause, however many lines it has.
        if re.search(
            r"\b(?:code|python|bash|shell|command|script|snippet)\s*:",
            request[: match.start()],
            re.IGNORECASE,
        ):
            break
        parts.append(request[start : match.start() + (match[0][:1] in "!?")])
        start = match.end()
    parts.append(request[start:])
    return [clean for part in parts if (clean := _LEADING_PHRASES.sub("", part.strip(" ,;")))]


def _split_question(clauses: Sequence[str]) -> tuple[tuple[str, ...], str]:
    """Split a request into clauses to carry out and a last one that only asks about their results."""
    steps = list(clauses[:1])
    question = ""
    for clause in clauses[1:]:
        if _QUESTION_START.match(clause) and not [s for s in spans_of(clause) if s.kind != "number"]:
            question = clause
        else:
            steps.append(clause)
    return tuple(steps), question


def files_seen(messages: Sequence[Message]) -> tuple[str, ...]:
    """Return files that results of calls named, the latest first, as paths from the workspace."""
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


def quote_last_result(plan: Plan) -> str:
    """Quote the lines of the last result that match the question, or all of it."""
    if plan.last is None:
        return "There is nothing to answer from: no tool was called."
    content = plan.last.content.strip()
    asked = set(terms(plan.question))
    if asked and "\n" in content:
        lines = [line for line in content.split("\n") if asked & set(terms(line))]
        if lines and len(lines) < 4:
            content = "\n".join(lines)
    if len(content) > MAX_QUOTED_CHARS:
        content = content[:MAX_QUOTED_CHARS] + "\n[... the result goes on ...]"
    return content or f"{plan.last.name} returned an empty result."
