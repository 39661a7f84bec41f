"""The contracts between the parts, as Protocols of at most six methods, and the context they pass around.

Whoever brings a tool, an approver or a sandbox of their own implements one of these; nothing has to be
inherited. `aisotools.testing` has an in-memory fake of each, which passes the same contract suite as ours.

The Protocol of a history of variables: kept states of a sandbox's namespace, to go back to and to copy.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, Self, runtime_checkable

from aisotools.core.messages import Model
from aisotools.core.types import Approval, ApprovalRequest, Effect, Facts, Json, ToolCall, ToolResult

Emit = Callable[[str, Mapping[str, Json]], None]
"""Takes a progress report of a running tool: its name and a JSON payload."""

Concurrency = Literal["exclusive", "main", "overlap"]
"""How a tool shares the worker: alone, one at a time on its main thread, or beside others (async)."""


class Cancellation:
    """A flag that a running tool may look at, and that anybody may set once, from any thread."""

    def __init__(self) -> None:
        """Start not cancelled."""
        self._event = threading.Event()

    def __repr__(self) -> str:
        return f"<Cancellation {'cancelled' if self.cancelled else 'open'}>"

    @property
    def cancelled(self) -> bool:
        """Whether the call was cancelled."""
        return self._event.is_set()

    def cancel(self) -> None:
        """Cancel; doing it again changes nothing."""
        self._event.set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Block until cancelled or until `timeout_s` seconds passed; tell which."""
        return self._event.wait(timeout_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputCaps:
    """How much of a result goes where; the rest is cut and said.

    Attributes:
        content_chars: Characters that the model reads.
        kept_chars: Characters of the whole text that leave the sandbox, to be read back piece by piece.
        shell_lines: Lines of a shell command's output that the model reads.
        search_lines: Lines of a search that the model reads.
        list_lines: Lines of a listing that the model reads.
        web_chars: Characters of a web page that the model reads.
        stream_bytes: Bytes of printed output that leave the sandbox per call.
        value_bytes: Bytes of JSON that a result's `value` may have.
        data_bytes: Bytes of MIME data that a result may show.
    """

    content_chars: int = 10_000
    kept_chars: int = 4 << 20
    shell_lines: int = 256
    search_lines: int = 100
    list_lines: int = 200
    web_chars: int = 15_000
    stream_bytes: int = 1 << 20
    value_bytes: int = 16 << 20
    data_bytes: int = 16 << 20

    @classmethod
    def for_context(cls, context_tokens: int, *, stream_bytes: int = 1 << 20) -> Self:
        """Caps for a model that takes `context_tokens`: 1 to 4 times the usual ones, which suit 32,000."""
        scale = min(max(context_tokens / 32_000, 1.0), 4.0)
        return cls(
            content_chars=int(10_000 * scale),
            shell_lines=int(256 * scale),
            search_lines=int(100 * scale),
            list_lines=int(200 * scale),
            web_chars=int(15_000 * scale),
            stream_bytes=stream_bytes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredText:
    """The whole text of one result that was too long for a model.

    Attributes:
        ref: What it is read by.
        tool: The tool whose result it was.
        call_id: The call.
        text: All of it; as untrusted as the result was.
    """

    ref: str
    tool: str
    call_id: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UserQuestion:
    """A question that a model puts to a person.

    Attributes:
        id: Unique; answers to any other id are dropped.
        text: What is asked; chosen by a model, so untrusted.
        choices: The answers to choose from; any text without them.
        agent_id: The agent that asks; empty for a person or a program.
        timeout_s: After this nobody has answered; None waits for ever.
    """

    id: str
    text: str
    choices: tuple[str, ...] = ()
    agent_id: str = ""
    timeout_s: float | None = 300.0


class Services(Protocol):
    """What a tool on the host may ask of its session."""

    @property
    def memory(self) -> MutableMapping[str, Any]:
        """What tools of this session keep from call to call; gone with the session."""

    async def call(self, name: str, arguments: Mapping[str, Json]) -> ToolResult:
        """Make another call through the same gate, on behalf of the same caller."""

    def stored(self, ref: str) -> StoredText | None:
        """The whole text behind a reference in a `Truncation`, or None if there is none any more."""

    async def inquire(self, inquiry: UserQuestion) -> str | None:
        """Put a question to a person; None when nobody can be asked, or nobody answered."""


class Approver(Protocol):
    """Somebody who can be asked whether a call may run."""

    async def ask(self, request: ApprovalRequest) -> Approval:
        """Answer `request`.

        Cancelling the awaiting task withdraws the question. An exception counts as a denial.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """What a tool knows about the call it serves. Copy it with the `with_` methods.

    In the sandbox `approval_handler` and `services` are None: nothing in there may reach the host by itself.

    Attributes:
        agent_id: The calling agent; empty for a person or a program.
        session_key: The conversation.
        turn_id: The turn of the agent.
        call_id: The call.
        workspace_path: The only folder the tool may change.
        sandbox_config: How the sandbox is confined: its level and limits.
        approval_handler: Whom to ask for more.
        cancellation: Set when the call should stop.
        output_caps: How much of the result will be kept.
        services: What the session offers to tools on the host.
        emitter: Takes progress reports; use `emit`.
        metadata: Anything else.
    """

    agent_id: str = ""
    session_key: str = ""
    turn_id: str = ""
    call_id: str = ""
    workspace_path: Path = field(default_factory=Path)
    sandbox_config: Mapping[str, Json] = field(default_factory=dict)
    approval_handler: Approver | None = None
    cancellation: Cancellation = field(default_factory=Cancellation)
    output_caps: OutputCaps = field(default_factory=OutputCaps)
    services: Services | None = None
    emitter: Emit | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def emit(self, name: str, **payload: Json) -> None:
        """Report progress; without anybody listening it does nothing."""
        if self.emitter is not None:
            self.emitter(name, payload)

    def metadata_get(self, key: str, default: Any = None) -> Any:
        """The metadata under `key`, or `default`."""
        return self.metadata.get(key, default)

    def with_agent_id(self, agent_id: str) -> Self:
        """A copy for another agent."""
        return dataclasses.replace(self, agent_id=agent_id)

    def with_session_key(self, session_key: str) -> Self:
        """A copy for another conversation."""
        return dataclasses.replace(self, session_key=session_key)

    def with_turn_id(self, turn_id: str) -> Self:
        """A copy for another turn."""
        return dataclasses.replace(self, turn_id=turn_id)

    def with_workspace_path(self, workspace_path: Path) -> Self:
        """A copy with another workspace."""
        return dataclasses.replace(self, workspace_path=workspace_path)

    def with_sandbox_config(self, sandbox_config: Mapping[str, Json]) -> Self:
        """A copy with another description of the sandbox."""
        return dataclasses.replace(self, sandbox_config=sandbox_config)

    def with_approval_handler(self, approval_handler: Approver | None) -> Self:
        """A copy that asks somebody else."""
        return dataclasses.replace(self, approval_handler=approval_handler)

    def with_cancellation(self, cancellation: Cancellation) -> Self:
        """A copy that listens to another cancellation."""
        return dataclasses.replace(self, cancellation=cancellation)

    def with_output_caps(self, output_caps: OutputCaps) -> Self:
        """A copy with other caps."""
        return dataclasses.replace(self, output_caps=output_caps)

    def with_services(self, services: Services | None) -> Self:
        """A copy with other services."""
        return dataclasses.replace(self, services=services)

    def with_emitter(self, emitter: Emit | None) -> Self:
        """A copy that reports elsewhere."""
        return dataclasses.replace(self, emitter=emitter)

    def with_metadata(self, **more: Any) -> Self:
        """A copy with `more` added to the metadata."""
        return dataclasses.replace(self, metadata={**self.metadata, **more})


@runtime_checkable
class Tool(Protocol):
    """Something that can be called by name with JSON arguments.

    These four members are required. The following are optional and looked up by name; what a tool leaves out
    is filled in by `aisotools.tools.function`, always with the careful answer:

    - `classify(arguments) -> Effect`: what this call may do; `LOCAL_MUTATION` without it.
    - `extract_undo_path(arguments) -> Path | None`: the one path the call changes; None without it, and for
      wrong-typed arguments. Never raises.
    - `gather_facts(arguments) -> Facts`: more than one word for the policy; from `classify` without it.
    - `validate_arguments(arguments) -> dict`: checks and coerces; against the schema without it. Raises
      `ArgumentError`.
    - `validate_value(value) -> None`: checks what came back from a sandbox; anything goes without it. Raises
      `ToolError`.
    - `shipment() -> Shipment`: how to run it in a sandbox; on the host without it.
    - `examples`, `timeout_s`, `version`, `source`: for the definition, the deadline, the digest, the listing.
    """

    @property
    def name(self) -> str:
        """Unique in a registry: letters, digits, `_`, `-`, `.`, at most 64."""

    @property
    def description(self) -> str:
        """Written for a model to read."""

    def parameters_schema(self) -> Mapping[str, Json]:
        """JSON Schema of the arguments, of type `object`."""

    async def execute(self, arguments: Mapping[str, Json], context: ToolContext) -> ToolResult:
        """Do it. May raise `ToolError` for what the model should mend; anything else counts as a failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolPayload:
    """How a tool gets into a worker: by import path, or by value.

    Attributes:
        key: Names this version; a worker that has it is not sent it again.
        import_path: `module:attribute` of a `Tool` the worker can import; empty when sent by value.
        payload: The cloudpickle of a `Tool`; empty when imported. Goes from host to worker only.
        concurrency: How it shares the worker.
    """

    key: str
    import_path: str = ""
    payload: bytes = b""
    concurrency: Concurrency = "main"


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxCall:
    """One call for a sandbox to run.

    Attributes:
        call: The call, decided and validated.
        shipment: The tool.
        timeout_s: After this the call is stopped, whatever it does.
        output_caps: How much of its output may leave.
        session_key: The conversation.
        read_only: Whether it was classified read only. A tool that starts programs takes their right to
            change files from them then; it finds this in its context's metadata under the same name.
    """

    call: ToolCall
    shipment: ToolPayload
    timeout_s: float
    output_caps: OutputCaps = field(default_factory=OutputCaps)
    session_key: str = ""
    read_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxStatus:
    """The state of a sandbox at one moment.

    Attributes:
        level: What confines it.
        alive: Whether a worker is up.
        pid: The worker's process id, or 0.
        generation: How many workers there have been.
        memory_bytes: PSS of the worker's process tree, or 0 when it is not up.
        age_s: Seconds since the worker started.
    """

    level: str
    alive: bool
    pid: int = 0
    generation: int = 0
    memory_bytes: int = 0
    age_s: float = 0.0


class SandboxListener(Protocol):
    """Hears what happens in a sandbox. Everything it is told comes out of the sandbox: untrusted."""

    def output(self, call_id: str, stream: str, text: str) -> None:
        """A running call printed `text`."""

    def emitted(self, call_id: str, name: str, payload: Mapping[str, Json]) -> None:
        """A running tool reported progress."""

    def started(self, status: SandboxStatus, reason: str) -> None:
        """A worker is ready."""

    def lost(self, generation: int, reason: str) -> None:
        """A worker ended unasked, and its variables with it."""


class Sandbox(Protocol):
    """One worker at a time, disposable at any moment, that runs calls in confinement."""

    async def start(self) -> SandboxStatus:
        """Have a worker up; at once if there is one.

        Raises:
            LevelUnavailable: If this machine cannot hold the demanded level.
            SandboxError: If no worker comes up.
        """

    async def call(self, request: SandboxCall) -> ToolResult:
        """Run `request`; stop it at its deadline, and when the awaiting task is cancelled.

        A call that failed, was stopped, or took its worker down is a result that says so.
        """

    async def interrupt(self) -> None:
        """Stop whatever runs, keeping the worker if it lets itself be stopped."""

    async def restart(self) -> SandboxStatus:
        """End the worker and everything it started, and have a fresh one."""

    async def close(self) -> None:
        """End the worker and everything it started; afterwards nothing is left."""

    def status(self) -> SandboxStatus:
        """The state right now; never blocks for long."""


__all__ = [
    "Approver",
    "Cancellation",
    "Concurrency",
    "Effect",
    "Emit",
    "Facts",
    "Model",
    "OutputCaps",
    "Sandbox",
    "SandboxCall",
    "SandboxListener",
    "SandboxStatus",
    "Services",
    "StoredText",
    "Tool",
    "ToolContext",
    "ToolPayload",
    "UserQuestion",
]


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
