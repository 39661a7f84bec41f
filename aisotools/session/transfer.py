"""A second session from the state of a first: a copy of its workspace beside it, and of its variables.

Putting values into a sandbox's Python and getting them out: calls of the session itself, through its gate.

Host to worker the value travels packed, in the tool that carries it; worker to host as text that the host
unpacks and believes nothing of. See `aisotools.sandbox.data`.
"""

from __future__ import annotations

import asyncio
import base64
import keyword
import os
import pickle
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from aisotools.core.exceptions import ToolError, UsageError, WorkspaceError
from aisotools.core.protocols import (
    OutputCaps,
    Sandbox,
    Tool,
    ToolContext,
    ToolPayload,
    VariableCopy,
    VariableHistory,
)
from aisotools.core.types import Effect, Json, ToolResult
from aisotools.sandbox.data import KINDS, MAX_BYTES, Payload, pack, unpack
from aisotools.session.history import History, uncovered_words
from aisotools.workspace.checkpoints.restore import restore
from aisotools.workspace.checkpoints.store import Store, TreeReader, encode
from aisotools.workspace.paths import printable

_MOST_BRANCHES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """The state of a session, taken along.

    Attributes:
        folder: The copy of its workspace.
        variables: The copy of its variables; None where its sandbox keeps none.
        missing: What of the workspace is not in the copy, each with the reason.
    """

    folder: Path
    variables: VariableCopy | None
    missing: tuple[str, ...]


async def branch_off(history: History, sandbox: Sandbox, workspace: Path, folder: Path | None) -> Branch:
    """Copy workspace and variables as they are now, while no call changes them.

    Args:
        history: Keeps the workspace.
        sandbox: Has the variables.
        workspace: The folder to copy.
        folder: Where to; an empty or missing one. A new one beside the workspace without it.

    Raises:
        UsageError: If `folder` holds anything.
        WorkspaceError: If the copy cannot be made.
        SandboxError: If the variables cannot be copied.
    """
    async with history.alone() as snapshot:
        if not snapshot.root:
            raise WorkspaceError(f"The workspace cannot be copied: {'; '.join(uncovered_words(snapshot))}.")
        kept: VariableHistory | None = getattr(sandbox, "variables", None)
        target = _made(workspace, folder)
        variables = await kept.branch() if kept is not None else None
        try:
            failed = await asyncio.to_thread(fill, history.store, snapshot.root, target)
        except BaseException:
            if variables is not None:
                variables.close()
            raise
    return Branch(folder=target, variables=variables, missing=failed)


def fill(store: Store, root: str, folder: Path) -> tuple[str, ...]:
    """Make an empty folder hold what a kept tree holds; what could not be made, each with the reason.

    Raises:
        WorkspaceError: If the folder cannot be opened.
    """
    nothing = store.put(encode({}))
    wanted = {path: after for path, (_, after) in TreeReader(store).differences(nothing, root).items()}
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise WorkspaceError(f"{str(folder)!r} cannot hold the copy: {error.strerror}.") from None
    try:
        outcome = restore(store, descriptor, wanted, uuid.uuid4().hex[:12])
    finally:
        os.close(descriptor)
    return tuple(f"{printable('/'.join(path))} ({why})" for path, why in outcome.failed)


def _made(workspace: Path, folder: Path | None) -> Path:
    if folder is None:
        for number in range(1, _MOST_BRANCHES):
            beside = workspace.with_name(f"{workspace.name}-branch-{number}")
            try:
                beside.mkdir()
            except FileExistsError:
                continue
            except OSError as error:
                told = f"No folder could be made beside {str(workspace)!r} ({error.strerror})."
                raise WorkspaceError(f"{told} Give one with branch(workspace=...).") from None
            return beside
        raise WorkspaceError(f"{str(workspace)!r} has {_MOST_BRANCHES - 1} branches. Remove some.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UsageError(f"workspace={str(folder)!r} is not empty. Give a new folder, or leave it out.")
    except OSError as error:
        raise WorkspaceError(f"{str(folder)!r} cannot hold the copy: {error.strerror}.") from None
    return folder


_CAPS = OutputCaps(value_bytes=62 << 20)


def check_variable(name: object) -> str:
    """A name that a variable can have.

    Raises:
        UsageError: If it is none.
    """
    if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
        raise UsageError(f"{name!r} cannot be the name of a variable. Use letters, digits and _.")
    return name


class OwnTool(Tool, Protocol):
    """A tool that the session itself brings to one call.

    Attributes:
        caps: How much of its result may leave the sandbox.
    """

    caps: OutputCaps

    def received(self, result: ToolResult) -> ToolResult:
        """What is kept of its result, which may be large."""


class _Carrier:
    """What `PutVariable` and `GetVariable` share: tools of the session, which no model is told of."""

    name = ""
    description = ""
    caps = _CAPS

    def __init__(self, variable: str) -> None:
        self.variable = variable
        self.version = uuid.uuid4().hex

    def parameters_schema(self) -> Mapping[str, Json]:
        """JSON Schema of the arguments, which are only told for the record."""
        return {"type": "object"}

    def shipment(self) -> ToolPayload:
        """It travels by value, once."""
        return ToolPayload(key=self.version, payload=pickle.dumps(self))

    def received(self, result: ToolResult) -> ToolResult:
        """What the host keeps of the result."""
        return result


class PutVariable(_Carrier):
    """Assigns a value to a variable."""

    name = "session.put"
    description = "Assign a value to a variable of the sandbox's Python."

    def __init__(self, variable: str, value: object) -> None:
        """Pack `value`.

        Raises:
            ToolError: If it cannot travel.
        """
        super().__init__(variable)
        self.parcel = pack(variable, value)

    @property
    def told(self) -> Mapping[str, Json]:
        """The arguments as they are recorded."""
        return {"name": self.variable, "kind": self.parcel.kind, "bytes": len(self.parcel.data)}

    def classify(self, arguments: Mapping[str, Json]) -> Effect:  # noqa: ARG002 - the same for all
        """It changes a variable."""
        return Effect.LOCAL_MUTATION

    async def execute(self, arguments: Mapping[str, Json], context: ToolContext) -> ToolResult:  # noqa: ARG002 - a contract
        """In the worker: unpack and assign."""
        names = _namespace(context)
        parcel, self.parcel = self.parcel, Payload(kind="bytes", data=b"")  # the worker keeps this tool
        names[self.variable] = unpack(self.variable, parcel)
        return ToolResult.text(f"{self.variable} was assigned.")


class GetVariable(_Carrier):
    """Fetches the value of a variable.

    Attributes:
        parcel: What came.
    """

    name = "session.get"
    description = "Fetch the value of a variable of the sandbox's Python."

    def __init__(self, variable: str) -> None:
        """Fetch the variable of that name."""
        super().__init__(variable)
        self.parcel: Payload | None = None

    @property
    def told(self) -> Mapping[str, Json]:
        """The arguments as they are recorded."""
        return {"name": self.variable}

    def classify(self, arguments: Mapping[str, Json]) -> Effect:  # noqa: ARG002 - the same for all
        """It only reads."""
        return Effect.READ_ONLY

    async def execute(self, arguments: Mapping[str, Json], context: ToolContext) -> ToolResult:  # noqa: ARG002 - a contract
        """In the worker: pack and send."""
        names = _namespace(context)
        if self.variable not in names:
            raise ToolError(f"There is no variable {self.variable!r} in the sandbox.")
        parcel = pack(self.variable, names[self.variable])
        text = f"{parcel.kind}/{parcel.form}\n{base64.b64encode(parcel.data).decode('ascii')}"
        return ToolResult(content="", value=text)

    def received(self, result: ToolResult) -> ToolResult:
        """Take the value out of the result, which is kept for long."""
        if result.is_error:
            return result
        try:
            self.parcel = _read(self.variable, result.value)
        except ToolError as error:
            return ToolResult.error(str(error), recoverable=False)
        size = len(self.parcel.data)
        return ToolResult.text(f"{self.variable}: {self.parcel.kind}, {size:,} bytes.")


def _namespace(context: ToolContext) -> dict[str, Any]:
    shell = context.metadata_get("shell")
    if shell is None:
        raise ToolError(
            "Values are put and got in a real sandbox worker, and this is none.", recoverable=False
        )
    names: dict[str, Any] = shell.user_ns
    return names


def _read(name: str, value: object) -> Payload:
    """A parcel as a worker sent it."""
    head, separator, encoded = value.partition("\n") if isinstance(value, str) else ("", "", "")
    kind, _, form = head.partition("/")
    try:
        if not separator or kind not in KINDS or len(encoded) > MAX_BYTES * 4 // 3 + 4:
            raise ValueError
        return Payload(kind=kind, data=base64.b64decode(encoded, validate=True), form=form[:40])
    except ValueError:
        raise ToolError(f"{name!r} came out of the sandbox malformed.", recoverable=False) from None
