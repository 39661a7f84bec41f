"""The agent's loop as a state machine without I/O: state and event in, new state and next action out.

    begin -> AskModel -> receive_answer -> MakeCalls -> receive_results -> AskModel -> ... -> End

Every function returns a `Transition`: the new state, and the one action that the driver (`agent.run`) carries
out next and reports back through the function named in the action's docstring. Nothing here awaits or reads a
clock.

Two invariants hold in every state. Each call in the conversation is followed by exactly one `ToolMessage`, in
the order of the calls, before anybody speaks again. The number of a step is the number of requests up to it.

`trim` keeps a conversation within the model's window: old results give way, and the model is told where they
were. Sizes are counted in characters; the ratio to tokens is corrected by what the provider counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pydantic_core import to_json

from aisotools.agent.budgets import Budgets
from aisotools.core.events import RunOutcome
from aisotools.core.messages import (
    AnswerPart,
    AssistantMessage,
    CallPart,
    Message,
    ModelResponse,
    ToolMessage,
    Usage,
    UserMessage,
)
from aisotools.core.types import with_changes

MAX_CALLS_PER_ANSWER = 64
"""The most calls of one answer that are considered; the model is asked to send the others again."""

DEFAULT_TOKENS_PER_CHAR = 1 / 3
"""Assumed until a provider has counted: careful for English, about right for code."""

TRIM_ABOVE = 0.85
"""Share of the window above which results are taken out."""

TRIM_TO = 0.6
"""Share of the window that is left after trimming; well below `TRIM_ABOVE`, so that trimming is rare."""

MIN_TRIMMED_CHARS = 400
"""Shorter results, in characters, are not trimmed: that would free little."""

_IMAGE_CHARS = 4_500  # what providers charge for a picture, in characters: about 1,500 tokens
_EXCERPT_CHARS = 120  # of a trimmed result, so that the model can tell what it was

# ---- state and actions


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """What does not change during a run.

    Attributes:
        agent_id: Whose calls these are; their ids begin with it.
        budgets: What may be used up.
        window_tokens: How much the model can read; None for any amount.
        overhead_chars: Characters of instructions and tools that go with every request.
        offered: Names of the tools that may be called; None for all tools of the session.
    """

    agent_id: str
    budgets: Budgets = field(default_factory=Budgets)
    window_tokens: int | None = None
    overhead_chars: int = 0
    offered: frozenset[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationState:
    """A conversation, and what the present run of it has used up.

    Attributes:
        messages: The conversation.
        chars: Its size, the sum of `message_chars`.
        marks: How many messages there were before each request.
        call_count: Calls that were given an id in the conversation's whole life.
        tokens_per_char: The ratio by the provider's counts.
        steps: Requests of this run.
        calls: Calls made in this run.
        usage: What this run's answers took.
        failures: How often each call failed since anything succeeded, by its name and arguments.
        pending: Calls of the last answer that have no result in the conversation yet.
        results: Results that are known already for some of `pending`, by id.
    """

    messages: tuple[Message, ...] = ()
    chars: int = 0
    marks: tuple[int, ...] = ()
    call_count: int = 0
    tokens_per_char: float = DEFAULT_TOKENS_PER_CHAR
    steps: int = 0
    calls: int = 0
    usage: Usage = field(default_factory=lambda: Usage(requests=0))
    failures: Mapping[str, int] = field(default_factory=dict)
    pending: tuple[CallPart, ...] = ()
    results: Mapping[str, ToolMessage] = field(default_factory=dict)

    @property
    def step(self) -> int:
        """The number of the last request."""
        return len(self.marks)


@dataclass(frozen=True, slots=True, kw_only=True)
class AskModel:
    """Send `messages` to the model, then `receive_answer` or `abort`.

    Attributes:
        messages: The whole conversation.
        trimmed: Ids of the calls whose results were taken out to make room.
        trimmed_chars: How many characters that freed.
    """

    messages: tuple[Message, ...]
    trimmed: tuple[str, ...] = ()
    trimmed_chars: int = 0


@dataclass(frozen=True, slots=True)
class MakeCalls:
    """Make `calls`, in this order, then `receive_results` or `abort`."""

    calls: tuple[CallPart, ...]


@dataclass(frozen=True, slots=True)
class Choose:
    """Let a person pick one of `options`, then `receive_choice` or `abort`."""

    options: tuple[CallPart, ...]
    question: str


@dataclass(frozen=True, slots=True)
class End:
    """The run is over."""

    outcome: RunOutcome
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Transition:
    """The state after an event, and the driver's next action."""

    state: ConversationState
    action: AskModel | MakeCalls | Choose | End


# ---- events


def begin(state: ConversationState, settings: RunSettings, prompt: UserMessage | None) -> Transition:
    """Start a run with `prompt`, or without one go on from the end of the conversation."""
    fresh = with_changes(
        state, steps=0, calls=0, usage=Usage(requests=0), failures={}, pending=(), results={}
    )
    if prompt is not None:
        fresh = _append(fresh, prompt)
    if not fresh.messages or isinstance(fresh.messages[-1], AssistantMessage):
        return Transition(fresh, End("failed", "there is nothing to answer; give a prompt"))
    return _ask(fresh, settings)


def receive_answer(state: ConversationState, settings: RunSettings, answer: ModelResponse) -> Transition:
    """Go on after the model's answer: make its calls, let a person choose, or end."""
    message, call_count = _assign_ids(answer.message, settings.agent_id, state.call_count)
    state = with_changes(
        _append(state, message),
        call_count=call_count,
        usage=state.usage + answer.usage,
        tokens_per_char=_corrected_ratio(state, settings, answer.usage),
    )
    if message.reason == "unknown":
        reason = f"the model ended its answer for an unknown reason ({answer.detail or 'none given'})"
        return _end(state, message.calls, "failed", reason)
    if message.reason == "filtered":
        reason = f"the provider withheld the answer ({answer.detail or 'no reason given'})"
        return _end(state, message.calls, "filtered", reason)
    if message.calls:
        return _admit_calls(state, settings, message.calls)
    if answer.options:
        return Transition(state, Choose(answer.options, message.text or "Which of these calls is meant?"))
    return Transition(state, _end_of_answer(message))


def receive_choice(
    state: ConversationState, settings: RunSettings, choice: CallPart | str | None
) -> Transition:
    """Go on after a person picked a call, wrote to the model instead (text), or did neither (None)."""
    if choice is None:
        return Transition(state, End("undecided", "the model could not choose, and nobody chose for it"))
    if isinstance(choice, str):
        return _ask(_append(state, UserMessage(choice)), settings)
    # The pick becomes part of the answer that proposed it, which is the last message.
    last = state.messages[-1]
    assert isinstance(last, AssistantMessage)
    call = with_changes(choice, id=f"{settings.agent_id}-{state.call_count + 1}")
    message = with_changes(last, parts=(*last.parts, call), reason="calls")
    state = with_changes(
        state,
        messages=(*state.messages[:-1], message),
        chars=state.chars + message_chars(message) - message_chars(last),
        call_count=state.call_count + 1,
    )
    return _admit_calls(state, settings, (call,))


def receive_results(
    state: ConversationState, settings: RunSettings, results: Sequence[ToolMessage]
) -> Transition:
    """Go on after the calls of `MakeCalls`; `results` holds one for each, in any order."""
    state, loop = _append_results(state, settings, {result.call_id: result for result in results})
    return Transition(state, End("loop", loop)) if loop else _ask(state, settings)


def abort(
    state: ConversationState,
    outcome: RunOutcome,
    reason: str,
    results: Mapping[str, ToolMessage] | None = None,
) -> Transition:
    """End the run wherever it stands; calls without a result in `results` are answered with the reason."""
    return _end(with_changes(state, results={**state.results, **(results or {})}), (), outcome, reason)


# ---- edits by a person


def replace_messages(
    state: ConversationState, messages: Sequence[Message], *, asking: bool = False
) -> ConversationState:
    """Return the state with another conversation; `asking` if its last request is about to be made."""
    messages = _with_every_call_answered(messages)
    marks = [min(mark, len(messages)) for mark in state.marks]
    if asking:
        marks[-1] = len(messages)
    return with_changes(state, messages=messages, chars=sum(map(message_chars, messages)), marks=tuple(marks))


def replace_arguments(
    state: ConversationState, call_id: str, arguments: Mapping[str, object]
) -> ConversationState:
    """Return the state with other arguments of a pending call, also in the answer that asked for it."""

    def edit(call: CallPart) -> CallPart:
        return with_changes(call, arguments=arguments) if call.id == call_id else call

    index = max(n for n, message in enumerate(state.messages) if isinstance(message, AssistantMessage))
    last = state.messages[index]
    assert isinstance(last, AssistantMessage)
    parts = tuple(edit(part) if isinstance(part, CallPart) else part for part in last.parts)
    message = with_changes(last, parts=parts)
    return with_changes(
        state,
        messages=(*state.messages[:index], message, *state.messages[index + 1 :]),
        chars=state.chars + message_chars(message) - message_chars(last),
        pending=tuple(map(edit, state.pending)),
    )


def rewind(state: ConversationState, step: int) -> ConversationState:
    """Return the state as it was right before request number `step`, from 1."""
    messages = state.messages[: state.marks[step - 1]]
    return with_changes(
        state,
        messages=messages,
        chars=sum(map(message_chars, messages)),
        marks=state.marks[: step - 1],
        pending=(),
        results={},
    )


# ---- the model's window


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimResult:
    """A conversation after trimming.

    Attributes:
        messages: The conversation as the model will read it.
        call_ids: Calls whose results were taken out, oldest first.
        chars: How many characters that freed.
    """

    messages: tuple[Message, ...]
    call_ids: tuple[str, ...] = ()
    chars: int = 0


def message_chars(message: Message) -> int:
    """Return about how many characters a model reads of a message."""
    if not isinstance(message, AssistantMessage):
        text = message.text if isinstance(message, UserMessage) else message.content
        return len(text) + _IMAGE_CHARS * len(message.images)
    total = 0
    for part in message.parts:
        if isinstance(part, CallPart):
            total += len(part.name) + len(to_json(part.arguments, serialize_unknown=True))
        else:
            total += len(part.text)
    return total


def trim(messages: Sequence[Message], max_chars: float) -> TrimResult:
    """Take results of calls out, the oldest first, until `max_chars` are left or nothing more can go.

    Results that the model has not answered yet stay, and so does all that people and the model said.
    """
    trimmed = list(messages)
    last_answer = max((n for n, m in enumerate(trimmed) if isinstance(m, AssistantMessage)), default=0)
    excess = sum(map(message_chars, trimmed)) - max_chars
    freed = 0
    call_ids = []
    for number, message in enumerate(trimmed[:last_answer]):
        if freed >= excess:
            break
        if isinstance(message, ToolMessage) and message_chars(message) >= MIN_TRIMMED_CHARS:
            excerpt = _excerpt(message)
            trimmed[number] = excerpt
            freed += message_chars(message) - message_chars(excerpt)
            call_ids.append(message.call_id)
    return TrimResult(messages=tuple(trimmed), call_ids=tuple(call_ids), chars=freed)


def _excerpt(message: ToolMessage) -> ToolMessage:
    """Return the beginning of a result, with a note on how to get the rest."""
    length = len(message.content)
    if message.ref:
        advice = f"read_result with ref={message.ref!r} gives it again"
    else:
        advice = "make the call again if it is needed"
    pictures = f" and {len(message.images)} pictures" if message.images else ""
    head = message.content[:_EXCERPT_CHARS]
    content = (
        f"{head}\n[{length} characters{pictures} in all; the rest was taken out to make room: {advice}.]"
    )
    trimmed_chars = message.trimmed_chars + length - len(head)
    return with_changes(message, content=content, images=(), trimmed_chars=trimmed_chars)


def _estimated_tokens(state: ConversationState, settings: RunSettings) -> int:
    return int((state.chars + settings.overhead_chars) * state.tokens_per_char)


def _fit_window(
    state: ConversationState, settings: RunSettings
) -> tuple[ConversationState, tuple[str, ...], int]:
    """Return the state trimmed to the window, the ids of trimmed results, and the freed characters."""
    window = settings.window_tokens
    if window is None or _estimated_tokens(state, settings) <= window * TRIM_ABOVE:
        return state, (), 0
    result = trim(state.messages, window * TRIM_TO / state.tokens_per_char - settings.overhead_chars)
    state = with_changes(state, messages=result.messages, chars=sum(map(message_chars, result.messages)))
    return state, result.call_ids, result.chars


def _corrected_ratio(state: ConversationState, settings: RunSettings, usage: Usage) -> float:
    """Return the tokens per character of the last request, by the provider's count; else the old value."""
    sent = state.chars + settings.overhead_chars
    if usage.input_tokens <= 0 or sent < 1_000:
        return state.tokens_per_char  # not counted, or so short that fixed overhead of the provider dominates
    # A provider that counts cached or hidden tokens can be far off; stay within what text can be.
    return min(max(usage.input_tokens / sent, 0.1), 1.0)


# ---- transitions


def _append(state: ConversationState, message: Message) -> ConversationState:
    return with_changes(
        state, messages=(*state.messages, message), chars=state.chars + message_chars(message)
    )


def _ask(state: ConversationState, settings: RunSettings) -> Transition:
    """Make the next request, if the budgets and the model's window allow one."""
    exhausted = settings.budgets.spent(steps=state.steps, usage=state.usage)
    if exhausted:
        return Transition(state, End("budget", exhausted))
    state, trimmed, chars = _fit_window(state, settings)
    tokens = _estimated_tokens(state, settings)
    if settings.window_tokens is not None and tokens > settings.window_tokens:
        reason = f"about {tokens} tokens do not fit the {settings.window_tokens} that the model reads"
        return Transition(state, End("context", reason))
    state = with_changes(state, marks=(*state.marks, len(state.messages)), steps=state.steps + 1)
    return Transition(state, AskModel(messages=state.messages, trimmed=trimmed, trimmed_chars=chars))


def _assign_ids(message: AssistantMessage, prefix: str, call_count: int) -> tuple[AssistantMessage, int]:
    """Return the answer with call ids that are unique in the session, and the new count.

    The ids that a model or provider sends are not used: they may repeat, be empty, or imitate others.
    """
    if not message.calls:
        return message, call_count
    parts: list[AnswerPart] = []
    for part in message.parts:
        if isinstance(part, CallPart):
            call_count += 1
            parts.append(with_changes(part, id=f"{prefix}-{call_count}"))
        else:
            parts.append(part)
    return with_changes(message, parts=tuple(parts)), call_count


def _end_of_answer(message: AssistantMessage) -> End:
    if message.reason == "length":
        return End("length", "the answer was cut at its greatest length")
    if message.reason == "undecided":
        return End("undecided", "the model could not choose, and proposed nothing")
    return End("answered")


def _admit_calls(state: ConversationState, settings: RunSettings, calls: Sequence[CallPart]) -> Transition:
    """Make the calls that may be made; refuse the others with a result that says why."""
    budget = settings.budgets.calls
    remaining = None if budget is None else budget - state.calls
    refused: dict[str, ToolMessage] = {}
    admitted: list[CallPart] = []
    for number, call in enumerate(calls):
        refusal = _refusal(call, number, settings)
        if not refusal and remaining is not None and len(admitted) >= remaining:
            refusal = f"{call.name} was not run: the budget of {budget} calls is used up."
        if refusal:
            refused[call.id] = ToolMessage(call.id, call.name, refusal, is_error=True)
        else:
            admitted.append(call)
    state = with_changes(state, pending=tuple(calls), results=refused, calls=state.calls + len(admitted))
    if admitted:
        return Transition(state, MakeCalls(tuple(admitted)))
    if remaining is not None and remaining <= 0:
        return _end(state, (), "budget", f"the budget of {budget} calls is used up")
    return receive_results(state, settings, ())


def _refusal(call: CallPart, number: int, settings: RunSettings) -> str:
    """Return why a call is not made; empty if it may be."""
    if call.flaw:
        return f"{call.name} was not run: {call.flaw} Send the call again with valid arguments."
    if number >= MAX_CALLS_PER_ANSWER:
        return f"{call.name} was not run: at most {MAX_CALLS_PER_ANSWER} calls at once. Send it again."
    if settings.offered is not None and call.name not in settings.offered:
        known = ", ".join(sorted(settings.offered)) or "none"
        return f"{call.name} was not run: it is not one of your tools. They are: {known}."
    return ""


def _append_results(
    state: ConversationState, settings: RunSettings, results: Mapping[str, ToolMessage]
) -> tuple[ConversationState, str]:
    """Return the state with a message for each pending call, and why the run goes in circles, if it does.

    A call that fails again with the same arguments is told so; any success forgets all failures.
    """
    by_id = {**state.results, **results}
    failures = dict(state.failures)
    loop = ""
    for call in state.pending:
        message = by_id[call.id]
        if not message.is_error:
            failures.clear()
        else:
            key = to_json([call.name, call.arguments, call.flaw], serialize_unknown=True).decode()
            times = failures.get(key, 0) + 1
            failures[key] = times
            if times >= settings.budgets.same_failures:
                loop = f"the same call of {call.name} failed {times} times in a row"
            elif times > 1:
                note = f"[This very call has now failed {times} times. Do something else.]"
                message = with_changes(message, content=f"{message.content}\n{note}")
        state = _append(state, message)
    return with_changes(state, pending=(), results={}, failures=failures), loop


def _end(state: ConversationState, calls: Sequence[CallPart], outcome: RunOutcome, reason: str) -> Transition:
    """End the run with every call answered, so that the conversation can go on another time."""
    for call in state.pending or calls:
        missing = ToolMessage(call.id, call.name, f"{call.name} gave no result: {reason}.", is_error=True)
        state = _append(state, state.results.get(call.id, missing))
    return Transition(with_changes(state, pending=(), results={}), End(outcome, reason))


def _with_every_call_answered(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return `messages` with calls and results paired: answer open calls, drop results of no call.

    A person may delete or insert messages anywhere; providers refuse a conversation that breaks the pairing.
    """
    complete: list[Message] = []
    unanswered: dict[str, str] = {}  # id and name of the last answer's calls that have no result yet

    def answer_the_rest() -> None:
        for call_id, name in unanswered.items():
            complete.append(ToolMessage(call_id, name, f"{name} gave no result.", is_error=True))
        unanswered.clear()

    for message in messages:
        if isinstance(message, ToolMessage):
            if unanswered.pop(message.call_id, None) is not None:
                complete.append(message)
            continue
        answer_the_rest()
        complete.append(message)
        if isinstance(message, AssistantMessage):
            unanswered.update((call.id, call.name) for call in message.calls)
    answer_the_rest()
    return tuple(complete)
