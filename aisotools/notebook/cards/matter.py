"""What a question is about, one call or several: all that differs between the two for whoever asks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aisotools.events import Approval, ApprovalRequest
from aisotools.notebook.cards.batch import batch_question, batch_record, batch_view, read_batch
from aisotools.notebook.cards.view import card_view, question_bundle, read_decision, record_bundle


@dataclass(frozen=True, slots=True)
class Matter:
    """The calls that one question is about.

    Attributes:
        requests: At least one; their ids differ.
    """

    requests: Sequence[ApprovalRequest]

    @property
    def id(self) -> str:
        """What an answer must name."""
        return " ".join(request.id for request in self.requests)

    @property
    def words(self) -> str:
        """The tools, in a line."""
        return ", ".join(request.call.name for request in self.requests)

    @property
    def timeout_s(self) -> float | None:
        """How long the question stands, in seconds."""
        return min((r.timeout_s for r in self.requests if r.timeout_s is not None), default=None)

    def view(self) -> dict[str, Any]:
        """Everything the card shows."""
        return batch_view(self.requests) if len(self.requests) > 1 else card_view(self.requests[0])

    def read(self, message: Mapping[str, Any]) -> list[Approval]:
        """What the card's message means for each call.

        Raises:
            ArgumentError: If it means nothing; told to the person.
        """
        if len(self.requests) > 1:
            return read_batch(self.requests, message)
        return [read_decision(self.requests[0], message)]

    def question(self) -> dict[str, Any]:
        """The question without a card."""
        return batch_question(self.requests) if len(self.requests) > 1 else question_bundle(self.requests[0])

    def record(self, approvals: Sequence[Approval]) -> dict[str, Any]:
        """What stays in the notebook after the answers."""
        if len(self.requests) > 1:
            return batch_record(self.requests, approvals)
        return record_bundle(self.requests[0], approvals[0])
