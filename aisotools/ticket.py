"""The decisions of the gate, pure: what a call is allowed to become before anything runs.

A `Ticket` binds a decision to exactly what was decided: the tool's version, the arguments to the letter, and
the sandbox's level. The session re-checks it at dispatch, so what was shown is what runs.
"""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass

from pydantic_core import from_json, to_json

from aisotools.contracts import OutputCaps, Tool
from aisotools.events import Decision, Effect, Facts, Json, ToolCall, ToolResult, Truncation
from aisotools.policy import Evaluation, Policy, severity
from aisotools.tool_members import gather_facts, shipment_of, version_of

ALLOWS = (
    "To allow it: give the session an approver, a policy rule that allows it, or mode 'auto' for what stays "
    "in the workspace."
)
"""What a denial says when there was nobody to ask."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """A call that was classified, and what the policy says about it.

    Attributes:
        call: The call, its arguments validated.
        frozen: The same arguments as canonical JSON: what is dispatched.
        facts: What is known about it.
        evaluation: What the policy says.
        digest: Of tool version, arguments and level.
    """

    call: ToolCall
    frozen: bytes
    facts: Facts
    evaluation: Evaluation
    digest: str

    @property
    def effect(self) -> Effect:
        """The severity the policy went by."""
        return severity(self.facts)

    @property
    def arguments(self) -> dict[str, Json]:
        """A fresh copy of the arguments that may run."""
        arguments: dict[str, Json] = from_json(self.frozen)
        return arguments


def ticket_for(tool: Tool, call: ToolCall, policy: Policy, level: str) -> Ticket:
    """Classify a call whose arguments are valid, and ask the policy.

    An error in the tool's own classification, or in a rule, denies and names it.
    """
    frozen = to_json(call.arguments)
    runs_in = "sandbox" if shipment_of(tool) is not None else "host"
    try:
        facts = dataclasses.replace(gather_facts(tool, call.arguments), runs_in=runs_in, level=level)
    except Exception as error:
        facts = Facts(effect=Effect.DESTRUCTIVE, certain=False, level=level)
        told = f"what it may do could not be told ({type(error).__name__}: {error}); mend its classify"
        evaluation = Evaluation(Decision.DENY, reasons=(told,))
    else:
        evaluation = policy.check(call, facts)
    return Ticket(
        call=call,
        frozen=frozen,
        facts=facts,
        evaluation=evaluation,
        digest=digest_of(tool, frozen, level),
    )


def digest_of(tool: Tool, frozen: bytes, level: str) -> str:
    """What a decision is bound to."""
    parts = (tool.name.encode(), version_of(tool).encode(), level.encode(), frozen)
    return hashlib.sha256(b"".join(len(p).to_bytes(8, "big") + p for p in parts)).hexdigest()


def denial(name: str, reasons: tuple[str, ...], *, hint: str = "") -> ToolResult:
    """A denial as the model reads it."""
    told = "; ".join(r.rstrip(".") for r in reasons if r) or "no reason was given"
    message = f"{name} was not run: {told}." + (f" {hint}" if hint else "")
    return ToolResult.error(message, recoverable=False, error_kind="denied")


def capped(result: ToolResult, caps: OutputCaps) -> ToolResult:
    """The result with its content cut to what a model may read: its head and its tail, and a note between."""
    content, allowed = result.content, caps.content_chars
    if len(content) <= allowed:
        return result
    head, tail = content[: allowed * 2 // 3], content[-(allowed // 3) :]
    left_out = len(content) - len(head) - len(tail)
    note = f"[{left_out} of {len(content)} characters left out here]"
    truncation = Truncation(total_chars=len(content), shown_chars=len(head) + len(tail), note=note)
    return dataclasses.replace(result, content=f"{head}\n{note}\n{tail}", truncation=truncation)
