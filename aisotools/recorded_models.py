"""Those who stand in for models and people when a recorded session is replayed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence

from aisotools.events import ToolDefinition
from aisotools.messages import AssistantMessage, CallPart, Message, ModelEvent, UserMessage
from aisotools.models.replay import ReplayModel
from aisotools.stepping import BeforeCall, BeforeRequest, StepChoice
from aisotools.transcript_record import RecordedCall, RecordedRun


class ChildModel:
    """Answers for all delegated agents of a record: each conversation as the run with the same prompt.

    Attributes:
        name: How it is called in records.
    """

    def __init__(self, runs: Iterable[RecordedRun]) -> None:
        """Answer as `runs` did."""
        self.name = "replay"
        self._waiting = list(runs)
        self._known: list[tuple[Message, ReplayModel]] = []

    def request(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], *, instructions: str = ""
    ) -> AsyncIterator[ModelEvent]:
        """Give the next recorded answer of this conversation."""
        first = messages[0]
        model = next((model for known, model in self._known if known is first), None)
        if model is None:
            model = ReplayModel(self._answers(first), strict=False)
            self._known.append((first, model))
        return model.request(messages, tools, instructions=instructions)

    def _answers(self, first: Message) -> Sequence[AssistantMessage]:
        if not self._waiting:
            return ()
        asked = first.text if isinstance(first, UserMessage) else ""
        alike = (run for run in self._waiting if run.prompt is not None and run.prompt.text == asked)
        run = next(alike, self._waiting[0])
        self._waiting.remove(run)
        return run.answers


class RecordedStepper:
    """Does what whoever stepped through a recorded run did."""

    def __init__(self, run: RecordedRun, calls: Iterable[RecordedCall]) -> None:
        """Step as in `run`; `calls` are those that were made."""
        self._run = run
        self._made = {call.call_id: call for call in calls}
        self._wanted = [call for answer in run.answers for call in answer.calls]
        self._requests = 0

    async def pause(self, moment: BeforeRequest | BeforeCall) -> StepChoice:
        """Say what is to happen: what happened."""
        if isinstance(moment, BeforeRequest):
            self._requests += 1
            return StepChoice("continue" if self._requests <= len(self._run.answers) else "stop")
        recorded = self._recorded(moment.call)
        if recorded is None:
            return StepChoice()
        action, text = self._run.stepped.get(recorded.id, ("continue", ""))
        made = self._made.get(recorded.id)
        if action == "edit" and made is not None:
            return StepChoice("edit", arguments=made.asked)
        match action:
            case "answer" | "skip" | "stop":
                return StepChoice(action, text=text)
        return StepChoice()

    def _recorded(self, call: CallPart) -> CallPart | None:
        """The recorded call that this one is; calls that never came so far are passed over."""
        for number, wanted in enumerate(self._wanted):
            if (wanted.name, wanted.arguments) == (call.name, call.arguments):
                del self._wanted[: number + 1]
                return wanted
        return None
