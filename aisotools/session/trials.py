"""Run a command that nobody knows without any right to change something, and judge what came of it.

Threat
    A program of which nobody here knows what it does, with arguments that a model chose, runs and nobody was
    asked. It writes, sends what it reads to somebody, ends other programs, leaves some of its own behind, or
    prints without end; or it says that all went well though nothing was done.
Mechanism
    It runs in a reader of its own (`sandbox.worker.reader`): a process that has given up, for good, all
    rights to change files but in a scratch folder that is removed, to make sockets, and to signal or inspect
    what it has not started; with no descriptors but its output, which is bounded, and for five seconds at
    most. What it leaves behind is ended. Where a sandbox has no readers (below level `confined`, an old
    kernel, another machine), nothing is tried. That a call is tried is recorded before.
What is promised
    Nothing was changed, and nothing left the sandbox but the result. Not promised is that the program did
    what it was started for: one that is refused a write may ignore that and exit with 0. So exit code 0
    counts only if nothing that was printed speaks of a refusal, and the result says in any case that nothing
    could be changed. A model that makes the very same call again at once needs more: a person is asked.
Race window
    None for the command: it is started when the rights are gone. Reading has effects of its own, as it always
    has: it takes time and locks, and what a named pipe holds; and what an earlier call was allowed to leave
    in the worker has its own rights. Where a rule may forbid what is read, nothing is tried unless the
    sandbox hides it.
When it fails
    Whatever is not a success becomes the usual question, with what was printed. If no such process can be
    made, the question is asked as if there were no trials.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from aisotools.core.events import CallDecided, CallStarted, CallTried
from aisotools.core.exceptions import SandboxError
from aisotools.core.path_texts import is_within
from aisotools.core.protocols import OutputCaps
from aisotools.core.redaction import redact_text
from aisotools.core.sandboxes import CallDispatch, Sandbox, SandboxCall
from aisotools.core.types import Decision, Effect, Json, ToolCall, ToolResult
from aisotools.policy.prepared import CallDecision, PreparedCall
from aisotools.policy.trials import TrialLookups
from aisotools.sandbox.host.trials import SCRATCH_NAME
from aisotools.sandbox.results import RAN_READ_ONLY
from aisotools.session.event_log import EventLog
from aisotools.session.guards import CallEnvironment
from aisotools.session.losses import UnseenLosses
from aisotools.workspace.scripts import find_program, is_code

TRIAL_S = 5.0
"""How long a trial may take, in seconds."""

MAX_SHOWN_CHARS = 2_000
"""Of what a trial has printed, on a card."""

_MARGIN_S = 2.0  # for the tool to stop the command by itself
_PRINTED_BYTES = 1 << 16
_NOTE = (
    "[ran read-only: what {programs} does is not known, so this ran without the right to change files, "
    "without network and without reach of other processes. Nothing was changed, and what it put into $TMPDIR "
    "is gone. If it was meant to change something, make the same call again: then a person is asked.]"
)
_REFUSALS = re.compile(
    r"permission denied|read-only file ?system|operation not permitted|not permitted|access (?:is )?denied"
    r"|\b(?:EACCES|EPERM|EROFS|EAFNOSUPPORT)\b|errno (?:1|13|30|97)\b|address family not supported"
    r"|name resolution|could not resolve|unknown host|network is unreachable|not writable|unwritable"
    r"|(?:cannot|can't|could not|couldn't|unable to|failed to) (?:be )?"
    r"(?:write|written|writ|create|open|save|mkdir|make|remove|delete|rename|lock|connect)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialOutcome:
    """What came of a trial.

    Attributes:
        result: The call's result if the trial counts, or if it was stopped by a person; else None.
        reason: Why it does not count, as a clause about the command; empty if it does.
        output: What it printed, for a card: bounded, and without secrets.
    """

    result: ToolResult | None = None
    reason: str = ""
    output: str = ""

    @property
    def preview(self) -> dict[str, Json]:
        """The part of it that a card shows."""
        return {"reason": self.reason, "output": self.output}


async def run_trial(
    prepared: PreparedCall,
    sandbox: Sandbox,
    dispatch: CallDispatch,
    *,
    output_caps: OutputCaps,
    session_key: str,
    within_s: float = TRIAL_S,
) -> TrialOutcome | None:
    """Try a call. Return None if the sandbox could not even begin.

    Args:
        prepared: The call, for which `policy.trials.why_not_tried` has no reason.
        sandbox: A sandbox that has readers.
        dispatch: Is told what the result says of lost variables.
        output_caps: How much of what it prints is kept.
        session_key: The conversation.
        within_s: How long it may take.
    """
    assert prepared.payload is not None
    arguments = prepared.arguments
    limit_ms = max(1, round(within_s * 1000))
    arguments["timeout"] = min(arguments.get("timeout", limit_ms), limit_ms)
    request = SandboxCall(
        call=dataclasses.replace(prepared.original, arguments=arguments),
        shipment=prepared.payload,
        timeout_s=within_s + _MARGIN_S,
        output_caps=dataclasses.replace(
            output_caps, stream_bytes=min(output_caps.stream_bytes, _PRINTED_BYTES)
        ),
        session_key=session_key,
        read_only=True,
        in_reader=True,
        is_trial=True,
        changes_variables=False,
        dispatch=dispatch,
    )
    try:
        result = await sandbox.call(request)
    except SandboxError:
        return None  # the call itself will say so, if it is approved
    return judge(result, _programs(prepared))


def judge(result: ToolResult, programs: tuple[str, ...]) -> TrialOutcome | None:
    """Return what a trial's result amounts to; None if the command was never started.

    Args:
        result: Of the tool, from the sandbox: untrusted.
        programs: The unknown programs of the command.
    """
    value = result.value if isinstance(result.value, Mapping) else {}
    stdout, stderr = value.get("stdout"), value.get("stderr")
    metadata = {key: result.metadata.get(key) for key in ("stopped", "timed_out", "reader_died")}
    if metadata["stopped"] is True:
        return TrialOutcome(result=result)
    has_printed = isinstance(stdout, str) and isinstance(stderr, str)
    printed = f"{stdout}{stderr}" if has_printed else result.content
    output = redact_text(printed[: 4 * MAX_SHOWN_CHARS])
    if len(output) > MAX_SHOWN_CHARS:
        output = f"{output[:MAX_SHOWN_CHARS]}…"
    code = value.get("exitCode")
    if metadata["timed_out"] is True:
        return TrialOutcome(reason="it did not end in time", output=output)
    if metadata["reader_died"] is True or not (has_printed and type(code) is int):
        # Without an exit code nothing says that it was started. What ended its process may have been itself.
        return TrialOutcome(reason="its process ended", output=output) if metadata["reader_died"] else None
    if code or result.is_error:
        return TrialOutcome(reason=f"it exited with code {code}", output=output)
    if refusal := _REFUSALS.search(printed):
        return TrialOutcome(reason=f"it was refused something ({refusal[0].lower()!r})", output=output)
    if SCRATCH_NAME.search(printed):
        return TrialOutcome(reason="it names files that it made in $TMPDIR, which are gone", output=output)
    note = _NOTE.format(programs=", ".join(programs))
    content = f"{result.content}\n{note}" if result.content else note
    return TrialOutcome(
        result=dataclasses.replace(result, content=content).with_metadata(**{RAN_READ_ONLY: True})
    )


class Trials:
    """The trials of one session.

    Attributes:
        last_counted: By agent, the digest of its last call if that was a trial that counts.
    """

    def __init__(
        self,
        event_log: EventLog,
        output_caps: OutputCaps,
        session_key: str,
        refuse: Callable[[ToolCall], ToolResult | None],
        losses: UnseenLosses,
    ) -> None:
        """Use these.

        Args:
            event_log: Records what is tried, and what came of it.
            output_caps: How much of what a command prints is kept.
            session_key: The conversation.
            refuse: Returns the result of a call that must not run any more.
            losses: Keeps what the results say that nobody sees.
        """
        self._event_log = event_log
        self._output_caps = output_caps
        self._session_key = session_key
        self._refuse = refuse
        self._losses = losses
        self.last_counted: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"<Trials: {len(self.last_counted)} agents have just seen one count>"

    def on_decided(self, prepared: PreparedCall) -> None:
        """Note that an agent makes a call, which may be another than its last one."""
        if self.last_counted.get(prepared.original.agent_id) != prepared.digest:
            self.last_counted.pop(prepared.original.agent_id, None)

    async def run(
        self, decision: CallDecision, env: CallEnvironment, timeout_s: float | None = None
    ) -> CallDecision | ToolResult:
        """Try a call that is to be asked about, and record that.

        Args:
            decision: To ask about a call whose `is_tried` holds. Any other is returned as it is.
            env: Where it runs.
            timeout_s: The deadline that its caller has set, in seconds.

        Returns:
            The result if the trial counts, or the call must not go on; else the decision, and why it failed.
        """
        prepared = decision.prepared
        if decision.decision is not Decision.ASK or not prepared.is_tried:
            return decision
        call = prepared.original
        if self.last_counted.pop(call.agent_id, None) == prepared.digest and call.origin == "model":
            return _ask_because(decision, "it ran without the right to change anything, and is called again")
        programs = _programs(prepared)
        self._event_log.add(CallTried, call.id, programs=programs, digest=prepared.digest, level=env.level)
        # The record of the trial may have failed: what is not in the ledger must not happen.
        if refused := self._refuse(call):
            return refused
        try:
            if env.path_rules is not None and env.path_rules.has_any:
                await env.path_rules.enforce(call.name, is_trial=True)
        except SandboxError:
            return decision  # the call itself will say so, if it is approved
        within_s = TRIAL_S if timeout_s is None else min(timeout_s, TRIAL_S)
        dispatch = CallDispatch()
        outcome = await run_trial(
            prepared,
            env.sandbox,
            dispatch,
            output_caps=self._output_caps,
            session_key=self._session_key,
            within_s=within_s,
        )
        if outcome is None or outcome.result is None:
            self._losses.note(dispatch)
        if outcome is None:
            return decision
        if outcome.result is None:
            shown = dataclasses.replace(prepared, trial=outcome.preview)
            reason = f"it was tried without the right to change anything, and {outcome.reason}"
            return _ask_because(dataclasses.replace(decision, prepared=shown), reason)
        if outcome.result.is_error:
            return outcome.result  # somebody has stopped it, and is not asked about it any more
        self._event_log.add(
            CallDecided,
            call.id,
            decision=Decision.ALLOW,
            decided_by="trial",
            effect=Effect.READ_ONLY,
            reasons=("it ran without the right to change anything, and succeeded",),
            arguments=prepared.arguments,
            digest=prepared.digest,
        )
        self._event_log.add(CallStarted, call.id, runs_in=prepared.facts.runs_in, level=env.level)
        self.last_counted[call.agent_id] = prepared.digest
        return outcome.result


def _programs(prepared: PreparedCall) -> tuple[str, ...]:
    return tuple(dict.fromkeys(command[0] for command in prepared.facts.unknown))


def _ask_because(decision: CallDecision, reason: str) -> CallDecision:
    """Return a decision to ask with one more reason."""
    reasons = (*decision.reasons, reason)
    evaluation = dataclasses.replace(decision.prepared.evaluation, reasons=reasons)
    prepared = dataclasses.replace(decision.prepared, evaluation=evaluation)
    return dataclasses.replace(decision, prepared=prepared, reasons=reasons)


def trial_lookups(workspace: Path, search_path: str) -> TrialLookups:
    """Return what decides about trials in a workspace.

    Args:
        workspace: The folder.
        search_path: Where programs of the sandbox are found.
    """
    real = os.path.realpath(workspace)

    def find(program: str) -> str:
        found = find_program(program, search_path)
        # Beside it, the sandbox writes in its scratch folder alone, which is on no search path.
        return "" if is_within(found, real) else found

    roots = tuple(dict.fromkeys((str(workspace.absolute()), real, "/workspace")))
    return TrialLookups(find_program=find, is_code=partial(is_code, workspace), workspace=roots)
