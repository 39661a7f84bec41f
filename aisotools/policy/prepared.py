"""The decisions of the gate, pure: what a call is allowed to become before anything runs.

A `PreparedCall` binds a decision to exactly what was decided: the tool's version, the arguments to the
letter, and the sandbox's level. The gate re-checks it at dispatch, and runs the tool and the arguments of the
prepared call, so that what was shown is what runs.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from pydantic_core import from_json

from aisotools.core.protocols import Tool, ToolPayload
from aisotools.core.types import Decision, Effect, Facts, Json, RunsIn, ToolCall, ToolResult
from aisotools.policy.rules import Evaluation, Policy, severity
from aisotools.tools.adapter import (
    deadline_of,
    gather_facts,
    payload_of,
    validate_arguments,
    version_of,
)
from aisotools.tools.validation import encode_arguments


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedCall:
    """A call that was classified, and what the policy says about it.

    Attributes:
        tool: What runs on the host, if it does.
        shipment: What runs in the sandbox, packed when it was decided; None for a tool of the host.
        made: The call as it was made.
        frozen: Its arguments, validated, as JSON: what is shown, and what is dispatched.
        deadline_s: Seconds it may take by the tool's own word, or None.
        facts: What is known about it.
        effect: The severity that the policy went by.
        evaluation: What the policy says.
        digest: Of tool version, arguments and level.
    """

    tool: Tool
    shipment: ToolPayload | None
    made: ToolCall
    frozen: bytes
    deadline_s: float | None
    facts: Facts
    effect: Effect
    evaluation: Evaluation
    digest: str

    @property
    def arguments(self) -> dict[str, Json]:
        """The arguments that may run; a fresh copy, so nobody can change what somebody else gets."""
        arguments: dict[str, Json] = from_json(self.frozen)
        return arguments

    @property
    def call(self) -> ToolCall:
        """The call with the arguments that may run, likewise fresh."""
        return dataclasses.replace(self.made, arguments=self.arguments)


@dataclass(frozen=True, slots=True)
class CallDecision:
    """What the gate says about a call.

    Attributes:
        ticket: What may run.
        decision: Whether it may.
        decided_by: By whose word: `policy`, `typed`, `grant` or `approver`.
        reasons: Why.
    """

    ticket: PreparedCall
    decision: Decision
    decided_by: str
    reasons: tuple[str, ...]


def ticket_for(
    tool: Tool,
    call: ToolCall,
    policy: Policy,
    level: str,
    undoable: Callable[[Facts], bool] | None = None,
) -> PreparedCall:
    """Validate and classify a call, and ask the policy.

    An error in the tool's own classification, or in a rule, denies and names it.

    Raises:
        ArgumentError: If the arguments do not fit.
        SignatureError: If the tool cannot be sent to the sandbox.
        Exception: Whatever else the tool's own members raise.
    """
    frozen = encode_arguments(tool.name, validate_arguments(tool, call.arguments))
    shown = dataclasses.replace(call, arguments=from_json(frozen))
    shipment = payload_of(tool)
    runs_in: RunsIn = "host" if shipment is None else "sandbox"
    try:
        facts = dataclasses.replace(gather_facts(tool, from_json(frozen)), runs_in=runs_in, level=level)
        effect = severity(facts)
        if undoable is not None and effect is not Effect.READ_ONLY:  # what only reads leaves nothing to undo
            facts = dataclasses.replace(facts, undoable=undoable(facts))
    except Exception as error:
        facts = Facts(effect=Effect.DESTRUCTIVE, certain=False, runs_in=runs_in, level=level)
        effect = severity(facts)
        told = f"what it may do could not be told ({type(error).__name__}: {error}); mend its classify"
        evaluation = Evaluation(Decision.DENY, reasons=(told,))
    else:
        evaluation = policy.check(shown, facts)
    return PreparedCall(
        tool=tool,
        shipment=shipment,
        made=call,
        frozen=frozen,
        deadline_s=deadline_of(tool, from_json(frozen)),
        facts=facts,
        effect=effect,
        evaluation=evaluation,
        digest=digest_of(tool, frozen, level),
    )


def digest_of(tool: Tool, frozen: bytes, level: str) -> str:
    """What a decision is bound to."""
    digest = hashlib.sha256()
    for part in (tool.name.encode(), version_of(tool).encode(), level.encode(), frozen):
        # Each part with its length, so that no two calls give the same bytes.
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()


def denial(name: str, reasons: tuple[str, ...]) -> ToolResult:
    """A denial as the model reads it."""
    told = "; ".join(r.rstrip(".") for r in reasons if r) or "no reason was given"
    return ToolResult.error(f"{name} was not run: {told}.", recoverable=False, error_kind="denied")
