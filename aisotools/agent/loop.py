"""The agent's loop without any I/O: a state and what happened go in, a new state and what to do come out.

    begin → Ask → answered → Make → called → Ask → ... → End

Every function returns a `Transition`: the new state, and the one action that its driver must carry out next
and report back by the function named beside it. Nothing here awaits, reads a clock, or keeps anything.

Two rules hold in every state: each call in the conversation is followed by exactly one `ToolMessage`, in the
order of the calls, before anybody speaks again; and a step's number is the number of requests up to it.

Keeping a conversation within what a model can read: old results of calls give way, and it is said.

Pure. Sizes are counted in characters, and turned into tokens by a ratio that the provider's counts correct.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pydantic_core import to_json

from aisotools.agent.budgets import Budgets
from aisotools.core.events import RunOutcome
from aisotools.core.messages import (
    AssistantMessage,
    CallPart,
    Message,
    ModelResponse,
    ToolMessage,
    Usage,
    UserMessage,
)

TOKENS_PER_CHAR = 1 / 3
"""What is assumed before a provider has counted; careful for English, about right for code."""

FULL, ROOMY = 0.85, 0.6
"""Trimming starts above the first share of the window and goes down to the second, so that it is rare."""

WORTH_TRIMMING = 400
"""Results of fewer characters stay."""

_IMAGE_CHARS = 4_500
_HEAD_CHARS = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimResult:
    """What trimming gave.

    Attributes:
        messages: The conversation as the model is shown it.
        call_ids: Whose results gave way.
        chars: How many characters went.
    """

    messages: tuple[Message, ...]
    call_ids: tuple[str, ...] = ()
    chars: int = 0


def size_of(message: Message) -> int:
    """About how many characters the model reads of a message."""
    if isinstance(message, AssistantMessage):
        return sum(
            len(part.name) + len(to_json(part.arguments, serialize_unknown=True))
            if isinstance(part, CallPart)
            else len(part.text)
            for part in message.parts
        )
    text = message.text if isinstance(message, UserMessage) else message.content
    return len(text) + _IMAGE_CHARS * len(message.images)


def trim(messages: Sequence[Message], to_chars: float) -> TrimResult:
    """Take results of calls out, the oldest first, until `to_chars` characters are left or nothing can go.

    What the model has not yet answered to stays, as does everything that people and the model said.
    """
    kept = list(messages)
    last_answer = max((n for n, m in enumerate(kept) if isinstance(m, AssistantMessage)), default=0)
    left = sum(map(size_of, kept))
    gone, call_ids = 0, []
    for number, message in enumerate(kept[:last_answer]):
        if left - gone <= to_chars:
            break
        if isinstance(message, ToolMessage) and size_of(message) >= WORTH_TRIMMING:
            kept[number] = shorter = _without_content(message)
            gone += size_of(message) - size_of(shorter)
            call_ids.append(message.call_id)
    return TrimResult(messages=tuple(kept), call_ids=tuple(call_ids), chars=gone)


def _without_content(message: ToolMessage) -> ToolMessage:
    gone = len(message.content)
    again = (
        f"read_result with ref={message.ref!r} gives it again"
        if message.ref
        else "make the call again if it is needed"
    )
    pictures = f" and {len(message.images)} pictures" if message.images else ""
    head = message.content[:_HEAD_CHARS]
    note = f"{head}\n[{gone} characters{pictures} in all; the rest was taken out to make room: {again}.]"
    return dataclasses.replace(
        message, content=note, images=(), trimmed_chars=message.trimmed_chars + gone - len(head)
    )


MOST_CALLS = 64
"""Calls of one answer that are looked at; no model needs more at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What does not change during a run.

    Attributes:
        agent_id: Whose calls these are; their ids begin with it.
        budgets: What may be used up.
        window_tokens: How much the model can read; None for any amount.
        overhead_chars: Characters of instructions and tools that go with every request.
        offered: Names of the tools that may be called; None for whatever the session has.
    """

    agent_id: str
    budgets: Budgets = field(default_factory=Budgets)
    window_tokens: int | None = None
    overhead_chars: int = 0
    offered: frozenset[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A conversation, and what the present run of it has used up.

    Attributes:
        messages: What was said.
        chars: Their size; see `context_window.size_of`.
        marks: How many messages there were before each request.
        numbered: How many calls were given an id, in the conversation's whole life.
        tokens_per_char: What the provider's counts say.
        steps: Requests of this run.
        calls: Calls of this run.
        usage: What this run's answers took.
        failures: How often each call failed since anything succeeded.
        waiting: Calls of the last answer that have no result yet.
        answers: Results of the last answer's other calls, by id.
    """

    messages: tuple[Message, ...] = ()
    chars: int = 0
    marks: tuple[int, ...] = ()
    numbered: int = 0
    tokens_per_char: float = TOKENS_PER_CHAR
    steps: int = 0
    calls: int = 0
    usage: Usage = field(default_factory=lambda: Usage(requests=0))
    failures: Mapping[str, int] = field(default_factory=dict)
    waiting: tuple[CallPart, ...] = ()
    answers: Mapping[str, ToolMessage] = field(default_factory=dict)

    @property
    def step(self) -> int:
        """The number of the last request."""
        return len(self.marks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Ask the model `messages`, then `answered` or `broken_off`.

    Attributes:
        messages: The whole conversation.
        trimmed: Whose results were taken out to make room.
        trimmed_chars: How many characters that were.
    """

    messages: tuple[Message, ...]
    trimmed: tuple[str, ...] = ()
    trimmed_chars: int = 0


@dataclass(frozen=True, slots=True)
class MakeCalls:
    """Make `calls`, in this order, then `called` or `broken_off`."""

    calls: tuple[CallPart, ...]


@dataclass(frozen=True, slots=True)
class Choose:
    """Have a person pick one of `options`, then `chosen` or `broken_off`."""

    options: tuple[CallPart, ...]
    question: str


@dataclass(frozen=True, slots=True)
class End:
    """The run is over."""

    outcome: RunOutcome
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Transition:
    """Where things stand, and what to do."""

    state: State
    action: Ask | MakeCalls | Choose | End


def begin(state: State, rules: Rules, prompt: UserMessage | None) -> Transition:
    """Start a run with what a person says, or go on from what was said before."""
    fresh = dataclasses.replace(
        state, steps=0, calls=0, usage=Usage(requests=0), failures={}, waiting=(), answers={}
    )
    if prompt is not None:
        fresh = _said(fresh, prompt)
    if not fresh.messages or isinstance(fresh.messages[-1], AssistantMessage):
        return Transition(fresh, End("failed", "there is nothing to answer; give a prompt"))
    return _ask(fresh, rules)


def answered(state: State, rules: Rules, answer: ModelResponse) -> Transition:
    """Go on after the model's answer."""
    message, numbered = _with_own_ids(answer.message, rules.agent_id, state.numbered)
    state = dataclasses.replace(
        _said(state, message),
        numbered=numbered,
        usage=state.usage + answer.usage,
        tokens_per_char=_ratio(state, rules, answer.usage),
    )
    why_not = {
        "unknown": f"the model ended its answer for an unknown reason ({answer.detail or 'none given'})",
        "filtered": f"the provider withheld the answer ({answer.detail or 'no reason given'})",
    }.get(message.reason, "")
    if why_not:
        outcome: RunOutcome = "filtered" if message.reason == "filtered" else "failed"
        return _end(state, message.calls, outcome, why_not)
    if answer.options and not message.calls:
        question = message.text or "Which of these calls is meant?"
        return Transition(state, Choose(answer.options, question))
    if not message.calls:
        return Transition(state, _last_words(message))
    return _sorted_out(state, rules, message.calls)


def chosen(state: State, rules: Rules, choice: CallPart | str | None) -> Transition:
    """Go on after a person picked a call, said something to the model instead, or did neither."""
    if choice is None:
        return Transition(state, End("undecided", "the model could not choose, and nobody chose for it"))
    if isinstance(choice, str):
        return _ask(_said(state, UserMessage(choice)), rules)
    # The pick belongs to the answer that proposed it, which is the last message.
    last = state.messages[-1]
    assert isinstance(last, AssistantMessage)
    part = dataclasses.replace(choice, id=f"{rules.agent_id}-{state.numbered + 1}")
    message = dataclasses.replace(last, parts=(*last.parts, part), reason="calls")
    state = dataclasses.replace(
        state,
        messages=(*state.messages[:-1], message),
        chars=state.chars + size_of(message) - size_of(last),
        numbered=state.numbered + 1,
    )
    return _sorted_out(state, rules, (part,))


def called(state: State, rules: Rules, results: Sequence[ToolMessage]) -> Transition:
    """Go on after the calls that `MakeCalls` named; `results` in any order, one for each."""
    state, looping = _resulted(state, rules, {result.call_id: result for result in results})
    return Transition(state, End("loop", looping)) if looping else _ask(state, rules)


def broken_off(
    state: State, outcome: RunOutcome, reason: str, results: Mapping[str, ToolMessage] | None = None
) -> Transition:
    """End the run wherever it stands; calls without a result in `results` are answered with the reason."""
    return _end(dataclasses.replace(state, answers={**state.answers, **(results or {})}), (), outcome, reason)


def edited(state: State, messages: Sequence[Message], *, asking: bool = False) -> State:
    """The conversation replaced by hand; with `asking` while the last request is about to be made."""
    messages = _complete(messages)
    marks = [min(mark, len(messages)) for mark in state.marks]
    if asking:
        marks[-1] = len(messages)
    return dataclasses.replace(
        state, messages=messages, chars=sum(map(size_of, messages)), marks=tuple(marks)
    )


def with_arguments(state: State, call_id: str, arguments: Mapping[str, object]) -> State:
    """A waiting call replaced by hand, also in the answer that wanted it."""

    def mended(call: CallPart) -> CallPart:
        return dataclasses.replace(call, arguments=arguments) if call.id == call_id else call

    place = max(n for n, m in enumerate(state.messages) if isinstance(m, AssistantMessage))
    last = state.messages[place]
    assert isinstance(last, AssistantMessage)
    parts = tuple(mended(part) if isinstance(part, CallPart) else part for part in last.parts)
    message = dataclasses.replace(last, parts=parts)
    return dataclasses.replace(
        state,
        messages=(*state.messages[:place], message, *state.messages[place + 1 :]),
        chars=state.chars + size_of(message) - size_of(last),
        waiting=tuple(map(mended, state.waiting)),
    )


def rewound(state: State, step: int) -> State:
    """The conversation as it was right before request `step`."""
    messages = state.messages[: state.marks[step - 1]]
    return dataclasses.replace(
        state,
        messages=messages,
        chars=sum(map(size_of, messages)),
        marks=state.marks[: step - 1],
        waiting=(),
        answers={},
    )


# ---- inside


def _said(state: State, message: Message) -> State:
    return dataclasses.replace(
        state, messages=(*state.messages, message), chars=state.chars + size_of(message)
    )


def _ask(state: State, rules: Rules) -> Transition:
    """The next request, if the budgets and the model's window allow one."""
    spent = rules.budgets.spent(steps=state.steps, usage=state.usage)
    if spent:
        return Transition(state, End("budget", spent))
    state, trimmed, chars = _fitted(state, rules)
    if rules.window_tokens is not None and _tokens(state, rules) > rules.window_tokens:
        told = (
            f"about {_tokens(state, rules)} tokens do not fit the {rules.window_tokens} that the model reads"
        )
        return Transition(state, End("context", told))
    state = dataclasses.replace(state, marks=(*state.marks, len(state.messages)), steps=state.steps + 1)
    return Transition(state, Ask(messages=state.messages, trimmed=trimmed, trimmed_chars=chars))


def _tokens(state: State, rules: Rules) -> int:
    return int((state.chars + rules.overhead_chars) * state.tokens_per_char)


def _fitted(state: State, rules: Rules) -> tuple[State, tuple[str, ...], int]:
    window = rules.window_tokens
    if window is None or _tokens(state, rules) <= window * FULL:
        return state, (), 0
    trimmed = trim(state.messages, window * ROOMY / state.tokens_per_char - rules.overhead_chars)
    state = dataclasses.replace(state, messages=trimmed.messages, chars=sum(map(size_of, trimmed.messages)))
    return state, trimmed.call_ids, trimmed.chars


def _ratio(state: State, rules: Rules, usage: Usage) -> float:
    """Tokens for a character: as the provider counted, within reason, or as before."""
    shown = state.chars + rules.overhead_chars
    if usage.input_tokens <= 0 or shown < 1_000:
        return state.tokens_per_char
    return min(max(usage.input_tokens / shown, 0.1), 1.0)


def _with_own_ids(message: AssistantMessage, prefix: str, numbered: int) -> tuple[AssistantMessage, int]:
    """The answer with ids that are unique in the session, whatever the model made of them."""
    if not message.calls:
        return message, numbered
    parts = []
    for part in message.parts:
        if isinstance(part, CallPart):
            numbered += 1
            part = dataclasses.replace(part, id=f"{prefix}-{numbered}")  # noqa: PLW2901 - the same part
        parts.append(part)
    return dataclasses.replace(message, parts=tuple(parts)), numbered


def _last_words(message: AssistantMessage) -> End:
    if message.reason == "length":
        return End("length", "the answer was cut at its greatest length")
    if message.reason == "undecided":
        return End("undecided", "the model could not choose, and proposed nothing")
    return End("answered")


def _sorted_out(state: State, rules: Rules, calls: Sequence[CallPart]) -> Transition:
    """Which of the calls are made; those that cannot be are answered at once."""
    left = None if rules.budgets.calls is None else rules.budgets.calls - state.calls
    answers: dict[str, ToolMessage] = {}
    made: list[CallPart] = []
    for number, call in enumerate(calls):
        why_not = _why_not(call, number, rules)
        if not why_not and left is not None and len(made) >= left:
            why_not = f"{call.name} was not run: the budget of {rules.budgets.calls} calls is used up."
        if why_not:
            answers[call.id] = ToolMessage(call.id, call.name, why_not, is_error=True)
        else:
            made.append(call)
    state = dataclasses.replace(state, waiting=tuple(calls), answers=answers, calls=state.calls + len(made))
    if made:
        return Transition(state, MakeCalls(tuple(made)))
    if left is not None and left <= 0:
        return _end(state, (), "budget", f"the budget of {rules.budgets.calls} calls is used up")
    return called(state, rules, ())


def _why_not(call: CallPart, number: int, rules: Rules) -> str:
    if call.flaw:
        return f"{call.name} was not run: {call.flaw} Send the call again with valid arguments."
    if number >= MOST_CALLS:
        return f"{call.name} was not run: at most {MOST_CALLS} calls at once. Send it again."
    if rules.offered is not None and call.name not in rules.offered:
        known = ", ".join(sorted(rules.offered)) or "none"
        return f"{call.name} was not run: it is not one of your tools. They are: {known}."
    return ""


def _resulted(state: State, rules: Rules, results: Mapping[str, ToolMessage]) -> tuple[State, str]:
    """The state with a message for each waiting call; and why this goes in circles, if it does."""
    told = {**state.answers, **results}
    failures = dict(state.failures)
    looping = ""
    for call in state.waiting:
        message = told[call.id]
        if not message.is_error:
            failures.clear()
        else:
            same = to_json([call.name, call.arguments, call.flaw], serialize_unknown=True).decode()
            failures[same] = times = failures.get(same, 0) + 1
            if times >= rules.budgets.same_failures:
                looping = f"the same call of {call.name} failed {times} times in a row"
            elif times > 1:
                note = f"[This very call has now failed {times} times. Do something else.]"
                message = dataclasses.replace(message, content=f"{message.content}\n{note}")
        state = _said(state, message)
    return dataclasses.replace(state, waiting=(), answers={}, failures=failures), looping


def _end(state: State, calls: Sequence[CallPart], outcome: RunOutcome, reason: str) -> Transition:
    """The end, with every call answered, so that the conversation can go on another time."""
    for call in state.waiting or calls:
        missing = ToolMessage(call.id, call.name, f"{call.name} gave no result: {reason}.", is_error=True)
        state = _said(state, state.answers.get(call.id, missing))
    return Transition(dataclasses.replace(state, waiting=(), answers={}), End(outcome, reason))


def _complete(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The messages, each call without a result answered, and results without a call left out."""
    complete: list[Message] = []
    expected: dict[str, str] = {}
    for message in (*messages, None):
        if isinstance(message, ToolMessage):
            if expected.pop(message.call_id, None) is not None:
                complete.append(message)
            continue
        complete += [
            ToolMessage(i, name, f"{name} gave no result.", is_error=True) for i, name in expected.items()
        ]
        expected = {call.id: call.name for call in getattr(message, "calls", ())}
        if message is not None:
            complete.append(message)
    return tuple(complete)
