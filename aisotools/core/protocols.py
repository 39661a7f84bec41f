"""Extension points as Protocols, and the values that pass through them.

Implement `Tool`, `Approver`, `Model` or `Sandbox` (see `aisotools.core.sandboxes`) to bring your own; nothing
has to be inherited. Optional capabilities are small Protocols of their own, named `Supports...`. An object
has one if it has the members, by their names. `aisotools.testing` has an in-memory fake and a contract suite
for each extension point.

Of tools and sandboxes this is asked with `aisotools.tools.adapter.supports`: a member that is None is
missing, and one that a wrapper forwards through `__getattr__` is there. Of approvers and models it is mostly
asked with `isinstance`, which does not see the latter from Python 3.12 on: a wrapper of these defines what it
forwards.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, Self, runtime_checkable

from aisotools.core.types import Approval, ApprovalRequest, Effect, Facts, Json, RunsIn, ToolResult

Emit = Callable[[str, Mapping[str, Json]], None]
"""Takes a progress report of a running tool: its name and a JSON payload."""

Concurrency = Literal["exclusive", "main", "overlap"]
"""How a tool shares the worker: alone, one at a time on its main thread, or beside others (async)."""

Programs = Literal["any", "named", "none"]
"""Which programs a tool starts in its worker: any; only such as it names to the host in the same step; none.

The host goes by it when another call is stopped. What a tool has started against it counts as nobody's.
"""

Declaration = Literal["none", "constant", "computed"]
"""How the effects of a tool's calls are declared: not at all, the same for each, or by its author's code."""

# ---- tools on either side of the sandbox


class Cancellation:
    """A thread-safe flag: set once by the caller, polled or awaited by the running tool."""

    _making = threading.Lock()

    def __init__(self) -> None:
        self._is_set = False
        # Each call has a flag, and hardly any waits for it, so what one waits with is made on demand.
        self._event: threading.Event | None = None

    def __repr__(self) -> str:
        return f"<Cancellation {'cancelled' if self.cancelled else 'open'}>"

    @property
    def cancelled(self) -> bool:
        """True once `cancel` was called."""
        return self._is_set

    def cancel(self) -> None:
        """Set the flag. Idempotent."""
        # Race: another thread begins to wait. It looks at the flag after it has made the event, and this
        # sets the flag before it looks for the event, so one of the two sees the other.
        self._is_set = True
        if self._event is not None:
            self._event.set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Block until cancelled, at most `timeout_s` seconds. Return whether it was cancelled."""
        with self._making:
            event = self._event = self._event or threading.Event()
        if self._is_set:
            event.set()
        return event.wait(timeout_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputCaps:
    """Size limits of a result. Whatever exceeds one is cut, and the result says so.

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
        """Return caps for a model that reads `context_tokens`.

        The defaults suit 32,000 tokens. Larger windows scale them linearly, up to four times.
        """
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
    """The whole text of a result that was too long for the model.

    Attributes:
        ref: Reference that reads it back, as in `Truncation.ref`.
        tool: Name of the tool that returned it.
        call_id: Id of the call.
        text: The whole text; as untrusted as the result.
    """

    ref: str
    tool: str
    call_id: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UserQuestion:
    """A question from a model to a person.

    Attributes:
        id: Unique; answers to any other id are dropped.
        text: The question; written by a model, so untrusted.
        choices: Permitted answers; any text is permitted when empty.
        agent_id: The asking agent; empty for a person or a program.
        timeout_s: Seconds after which the question counts as unanswered; None waits for ever.
    """

    id: str
    text: str
    choices: tuple[str, ...] = ()
    agent_id: str = ""
    timeout_s: float | None = 300.0


class Services(Protocol):
    """Services of the session for tools that run on the host."""

    @property
    def memory(self) -> MutableMapping[str, Any]:
        """State that tools share between the calls of this session; discarded with the session."""

    async def call(self, name: str, arguments: Mapping[str, Json]) -> ToolResult:
        """Call another tool through the same gate, on behalf of the same caller."""

    def stored(self, ref: str) -> StoredText | None:
        """Return the whole text behind a `Truncation.ref`, or None if it is no longer stored."""

    async def ask_user(self, question: UserQuestion) -> str | None:
        """Put a question to a person. Return None if nobody can be asked or nobody answered."""


# ---- approvers


@runtime_checkable
class Approver(Protocol):
    """Decides whether a call may run, usually by asking a person.

    Optional capabilities: `SupportsBatch`, `SupportsQuestions`.
    """

    async def ask(self, request: ApprovalRequest) -> Approval:
        """Answer `request`.

        Cancelling the awaiting task withdraws the question. An exception counts as a denial.
        """


@runtime_checkable
class SupportsBatch(Protocol):
    """An approver that decides on several calls at once. Others are asked one call after another."""

    async def ask_many(self, requests: Sequence[ApprovalRequest]) -> list[Approval]:
        """Return one answer per request, in the order of the requests."""


@runtime_checkable
class SupportsQuestions(Protocol):
    """An approver that can also put a model's question to a person."""

    async def ask_user(self, question: UserQuestion) -> str | None:
        """Return the answer, or None if nobody answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """Everything a running tool is given besides its arguments.

    In the sandbox `approval_handler` and `services` are None: code in there has no access to the host.

    The `with_` methods return a changed copy. They are for tools that call other tools themselves, and for
    tests of tools: a wrapper that gives the inner tool less room for its result, say, passes on
    `context.with_output_caps(OutputCaps(content_chars=500))`.

    Attributes:
        agent_id: The calling agent; empty for a person or a program.
        session_key: The conversation.
        turn_id: The turn of the agent.
        call_id: The call.
        workspace_path: The only folder the tool may change.
        sandbox_config: Level and limits of the sandbox.
        approval_handler: Asked for permissions beyond this call.
        cancellation: Set when the call should stop.
        output_caps: Size limits of the result.
        services: Services of the session, for tools on the host.
        emitter: Takes progress reports; use `emit`.
        metadata: Further values by name.
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
        """Report progress. Does nothing without an emitter."""
        if self.emitter is not None:
            self.emitter(name, payload)

    def metadata_get(self, key: str, default: Any = None) -> Any:
        """Return the metadata under `key`, or `default`."""
        return self.metadata.get(key, default)

    def with_agent_id(self, agent_id: str) -> Self:
        """Return a copy for another agent."""
        return dataclasses.replace(self, agent_id=agent_id)

    def with_session_key(self, session_key: str) -> Self:
        """Return a copy for another conversation."""
        return dataclasses.replace(self, session_key=session_key)

    def with_turn_id(self, turn_id: str) -> Self:
        """Return a copy for another turn."""
        return dataclasses.replace(self, turn_id=turn_id)

    def with_workspace_path(self, workspace_path: Path) -> Self:
        """Return a copy with another workspace."""
        return dataclasses.replace(self, workspace_path=workspace_path)

    def with_sandbox_config(self, sandbox_config: Mapping[str, Json]) -> Self:
        """Return a copy with another description of the sandbox."""
        return dataclasses.replace(self, sandbox_config=sandbox_config)

    def with_approval_handler(self, approval_handler: Approver | None) -> Self:
        """Return a copy with another approver."""
        return dataclasses.replace(self, approval_handler=approval_handler)

    def with_cancellation(self, cancellation: Cancellation) -> Self:
        """Return a copy with another cancellation flag."""
        return dataclasses.replace(self, cancellation=cancellation)

    def with_output_caps(self, output_caps: OutputCaps) -> Self:
        """Return a copy with other caps."""
        return dataclasses.replace(self, output_caps=output_caps)

    def with_services(self, services: Services | None) -> Self:
        """Return a copy with other services."""
        return dataclasses.replace(self, services=services)

    def with_emitter(self, emitter: Emit | None) -> Self:
        """Return a copy that reports progress to `emitter`."""
        return dataclasses.replace(self, emitter=emitter)

    def with_metadata(self, **more: Any) -> Self:
        """Return a copy with `more` added to the metadata."""
        return dataclasses.replace(self, metadata={**self.metadata, **more})


# ---- tools


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolPayload:
    """A tool on its way into a worker: by import path, or by value.

    Attributes:
        key: Identifies this version; a worker that has it is not sent it again.
        import_path: `module:attribute` of a `Tool` the worker can import; empty when sent by value.
        payload: The cloudpickle of a `Tool`; empty when imported. Goes from host to worker only.
        concurrency: How it shares the worker.
        programs: Which programs it starts.
    """

    key: str
    import_path: str = ""
    payload: bytes = b""
    concurrency: Concurrency = "main"
    programs: Programs = "any"


@runtime_checkable
class Tool(Protocol):
    """Something that can be called by name with JSON arguments.

    Everything else about a tool is optional, see the `Supports...` Protocols below. `aisotools.tools.adapter`
    supplies the careful default for what a tool leaves out.
    """

    @property
    def name(self) -> str:
        """Unique in a registry: letters, digits, `_`, `-`, `.`, at most 64."""

    @property
    def description(self) -> str:
        """Written for a model to read."""

    def parameters_schema(self) -> Mapping[str, Json]:
        """Return the JSON Schema of the arguments, of type `object`."""

    async def execute(self, arguments: Mapping[str, Json], context: ToolContext) -> ToolResult:
        """Run the tool.

        Raises:
            ToolError: For an error that the model can correct. Any other exception counts as a failure.
        """


@runtime_checkable
class SupportsClassification(Protocol):
    """A tool whose effect depends on its arguments. Without it a call counts as `LOCAL_MUTATION`."""

    def classify(self, arguments: Mapping[str, Json]) -> Effect:
        """Return the effect of a call with these arguments."""


@runtime_checkable
class SupportsEffect(Protocol):
    """A tool that declares one effect for all of its calls."""

    @property
    def effect(self) -> Effect | None:
        """Effect of every call, or None if it depends on the arguments."""


@runtime_checkable
class SupportsDeclaration(Protocol):
    """A tool that tells whether anything was declared about its calls.

    Without it every tool counts as declared that has one of `classify`, `effect` and `gather_facts`.
    """

    @property
    def declaration(self) -> Declaration:
        """`none`, `constant` or `computed`, see `Declaration`."""


@runtime_checkable
class SupportsHints(Protocol):
    """A tool that passes on what its origin says of it. People see that; nothing is decided by it."""

    @property
    def hints(self) -> Sequence[str]:
        """Unverified statements, each a few words."""


@runtime_checkable
class SupportsUndoPath(Protocol):
    """A tool whose calls change a single path."""

    def extract_undo_path(self, arguments: Mapping[str, Json]) -> Path | None:
        """Return the path, or None if there is none or the arguments are malformed. Never raises."""


@runtime_checkable
class SupportsFacts(Protocol):
    """A tool that tells the policy more about a call than its effect."""

    def gather_facts(self, arguments: Mapping[str, Json]) -> Facts:
        """Return the facts of a call with these arguments."""


@runtime_checkable
class SupportsArgumentValidation(Protocol):
    """A tool with a validator of its own. Others are validated against their schema."""

    def validate_arguments(self, arguments: Mapping[str, Any]) -> dict[str, Json]:
        """Return the arguments, checked and coerced.

        Raises:
            ArgumentError: Naming every argument that does not fit.
        """


@runtime_checkable
class SupportsValueValidation(Protocol):
    """A tool that checks the `value` of results that come out of a sandbox. Others accept any value."""

    def validate_value(self, value: Json) -> None:
        """Check `value`.

        Raises:
            ToolError: If it does not fit.
        """


@runtime_checkable
class SupportsShipment(Protocol):
    """A tool that can run in a sandbox. Others run on the host."""

    def shipment(self) -> ToolPayload | None:
        """Return how to send the tool to a worker, or None if it runs on the host."""


@runtime_checkable
class SupportsTimeout(Protocol):
    """A tool with a deadline of its own."""

    @property
    def timeout_s(self) -> float | Callable[[Mapping[str, Json]], float | None] | None:
        """Seconds that a call may take, or a function of the arguments that returns them."""


@runtime_checkable
class SupportsVersion(Protocol):
    """A tool that versions its behaviour. Others are versioned by name, description and schema."""

    @property
    def version(self) -> str:
        """Changes whenever the behaviour may; part of the digest that a person approves."""


@runtime_checkable
class SupportsExamples(Protocol):
    """A tool with example calls in its definition."""

    @property
    def examples(self) -> Sequence[tuple[Mapping[str, Json], str]]:
        """Pairs of arguments and the request that leads to them; see `ToolDefinition`."""


@runtime_checkable
class SupportsSource(Protocol):
    """A tool that names its origin in listings and error messages."""

    @property
    def source(self) -> str:
        """Origin, such as `built-in` or a file and line."""


@runtime_checkable
class SupportsCell(Protocol):
    """A tool that was defined in a notebook, and is replaced when its cell runs again."""

    @property
    def cell(self) -> str | None:
        """Id of the cell; empty if unknown, None for a tool that was not defined in a cell."""


@runtime_checkable
class SupportsFunction(Protocol):
    """A tool that was made of a function."""

    @property
    def function(self) -> Callable[..., Any]:
        """The function."""


@runtime_checkable
class SupportsRunsIn(Protocol):
    """A tool that declares where it runs."""

    @property
    def runs_in(self) -> RunsIn:
        """`sandbox` or `host`."""


# ---- models


@runtime_checkable
class SupportsContextWindow(Protocol):
    """A model that knows the size of its context window. Others count as unlimited."""

    @property
    def context_tokens(self) -> int | None:
        """Size of the window, or None if it is not known."""


@runtime_checkable
class SupportsPerson(Protocol):
    """A model whose answers may be typed by a person."""

    @property
    def is_person(self) -> bool:
        """True if time spent waiting for the model is not working time."""


@runtime_checkable
class SupportsAsyncClose(Protocol):
    """Something that is closed with `aclose`, such as an asynchronous generator."""

    async def aclose(self) -> None:
        """Close it and release its resources."""
