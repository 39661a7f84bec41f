"""The Protocol of a history of variables: kept states of a sandbox's namespace, to go back to and to copy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

VariableLabel = Literal["exact", "partial", "data only"]
"""What comes back of a kept state: all of it, all but what is named, or the values that can be pickled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VariablePoint:
    """A kept state of a sandbox's variables: as they were before one call.

    Attributes:
        call_id: The call.
        label: How much of it would come back, or came back.
        lost: What would not come back, or did not, in words.
        memory_bytes: Memory that is kept for this state alone, or 0 where nobody has looked yet.
    """

    call_id: str
    label: VariableLabel = "exact"
    lost: tuple[str, ...] = ()
    memory_bytes: int = 0


class VariableCopy(Protocol):
    """The variables of a state, on their way into another sandbox. Nobody but a sandbox can read them."""

    @property
    def point(self) -> VariablePoint:
        """The state that was copied, and what could not be copied of it."""

    def close(self) -> None:
        """Let go of it."""


class VariableHistory(Protocol):
    """Kept states of a sandbox's variables. A sandbox that can have them has an attribute `variables`."""

    def points(self) -> Sequence[VariablePoint]:
        """The states that can be had back, the oldest first."""

    async def restore(self, call_id: str) -> VariablePoint:
        """Have the state from before this call, and forget the later points until `redo`.

        Returns:
            The state, with what was lost of it.

        Raises:
            SandboxError: If it cannot be had; the message says why. The variables are as they were then.
        """

    async def redo(self) -> VariablePoint | None:
        """Take the last `restore` back, if no call has changed the variables since; None if there is none."""

    async def branch(self, call_id: str | None = None) -> VariableCopy:
        """A copy of the state from before this call, or of the present one, for another sandbox.

        Raises:
            SandboxError: If it cannot be had; the message says why.
        """

    async def load(self, copy: VariableCopy) -> VariablePoint:
        """Add the variables of a copy to those of this sandbox.

        Raises:
            SandboxError: If nothing could be taken over.
        """

    async def forget(self) -> None:
        """Drop every kept state; what was in them, secrets included, is gone for good."""
