"""Transfer of state: values into and out of a sandbox's Python, and a copy of a whole session for a branch.

`PutVariable` and `GetVariable` are tools that the session passes through its own gate. A value goes to the
worker packed inside the tool, and comes back as text that the host parses without trusting it; see
`aisotools.sandbox.data`.
"""

from __future__ import annotations

import base64
import io
import keyword
import os
import pickle
import shutil
import uuid
from collections.abc import Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from aisotools.core.concurrency import gc_paused, in_steps, run_to_completion
from aisotools.core.exceptions import ToolError, UsageError, WorkspaceError, explain_system_error
from aisotools.core.protocols import Declaration, OutputCaps, Tool, ToolContext, ToolPayload
from aisotools.core.sandboxes import Sandbox, SupportsSnapshots, VariableCopy
from aisotools.core.threads import in_thread
from aisotools.core.types import Effect, Json, ToolResult
from aisotools.sandbox.data import MAX_BYTES, PAYLOAD_KINDS, Payload, pack, unpack
from aisotools.session.undo_history import UndoHistory
from aisotools.session.undo_results import list_uncovered
from aisotools.tools.adapter import supports
from aisotools.workspace.checkouts import note_made
from aisotools.workspace.checkpoints.restore import restore
from aisotools.workspace.checkpoints.store import Store
from aisotools.workspace.checkpoints.tree import TreeReader, encode_folder
from aisotools.workspace.dirfd import extend_name
from aisotools.workspace.lock import checkpoint_folder
from aisotools.workspace.paths import printable

_MAX_BRANCHES = 999
"""Names that are tried for the folder of a new branch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateCopy:
    """A copy of a session's state, for a branch of it.

    Attributes:
        folder: The copy of its workspace.
        variables: The copy of its variables; None if its sandbox cannot copy variables.
        missing: Paths of the workspace that are not in the copy, each with the reason.
        is_new: Whether the folder was made for it.
    """

    folder: Path
    variables: VariableCopy | None
    missing: tuple[str, ...]
    is_new: bool = True

    async def load_variables(self, sandbox: object) -> tuple[str, ...]:
        """Give the variables to the sandbox of the branch. Return what was lost of them."""
        if self.variables is None or not supports(sandbox, SupportsSnapshots):
            return ("all variables, because this sandbox keeps none",)
        return (await sandbox.variables.load(self.variables)).lost

    def close(self) -> None:
        """Release the copy of the variables."""
        if self.variables is not None:
            self.variables.close()

    async def remove(self) -> None:
        """Remove the copy of the workspace, for which no branch was opened, even if this is cancelled."""
        await run_to_completion(in_thread(_remove_copy, self.folder, self.is_new))


async def branch_off(
    history: UndoHistory, sandbox: Sandbox, workspace: Path, folder: Path | None, state_folder: Path
) -> StateCopy:
    """Copy workspace and variables as they are now, while no call changes them.

    Checkouts and environments that sessions have made there count as made in the copy, which opens like it.

    Args:
        history: The history of the workspace.
        sandbox: The sandbox that has the variables.
        workspace: The folder to copy.
        folder: The target folder, empty or missing; None creates one beside the workspace.
        state_folder: Where aisotools keeps its state.

    Raises:
        UsageError: If `folder` holds anything.
        WorkspaceError: If the copy cannot be made.
        SandboxError: If the variables cannot be copied.
    """
    copy = None
    try:
        async with history.exclusive() as snapshot:
            if not snapshot.root:
                raise WorkspaceError(
                    f"The workspace cannot be copied: {'; '.join(list_uncovered(snapshot))}."
                )
            target, is_new = _make_folder(workspace, folder)
            copy = StateCopy(folder=target, variables=None, missing=(), is_new=is_new)
            if supports(sandbox, SupportsSnapshots):
                copy = replace(copy, variables=await sandbox.variables.branch())
            # Cancelled: a thread that goes on would write into what is removed below.
            missing = await run_to_completion(in_thread(extract_tree, history.store, snapshot.root, target))
            notes = checkpoint_folder(target, state_folder)
            notes.mkdir(mode=0o700, parents=True, exist_ok=True)
            # The session that is copied has opened on no others, or at a level at which they do not matter.
            await run_to_completion(in_thread(note_made, target, notes))
    except BaseException as error:
        if copy is not None:
            copy.close()
            await copy.remove()
        if isinstance(error, OSError):
            problem = f"The workspace cannot be copied: {explain_system_error(error)}"
            raise WorkspaceError(problem) from error
        raise
    return replace(copy, missing=missing)


def _remove_copy(folder: Path, is_new: bool) -> None:
    """Remove a copy, as far as that can be done: the caller has an error of its own to raise."""
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            # Race: a person may have changed it meanwhile. What cannot be removed stays.
            shutil.rmtree(entry, ignore_errors=True)
        else:
            with suppress(OSError):
                entry.unlink()
    if is_new:
        with suppress(OSError):
            folder.rmdir()


def extract_tree(store: Store, root: str, folder: Path) -> tuple[str, ...]:
    """Write the stored tree `root` to an empty folder. Return what could not be written, with the reasons.

    Raises:
        WorkspaceError: If the folder cannot be opened.
    """
    empty = store.put(encode_folder({}))
    entries = {path: after for path, (_, after) in TreeReader(store).differences(empty, root).items()}
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise WorkspaceError(f"{str(folder)!r} cannot hold the copy: {error.strerror}.") from None
    try:
        outcome = restore(store, descriptor, entries, uuid.uuid4().hex[:12])
    finally:
        os.close(descriptor)
    missing = [*outcome.failed, *outcome.left_out]
    return tuple(f"{printable('/'.join(path))} ({reason})" for path, reason in missing)


def _make_folder(workspace: Path, folder: Path | None) -> tuple[Path, bool]:
    """Return the folder for a copy, and whether it is a new one."""
    if folder is None:
        return _make_sibling(workspace), True
    try:
        is_new = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UsageError(f"workspace={str(folder)!r} is not empty. Give a new folder, or leave it out.")
    except OSError as error:
        raise WorkspaceError(f"{str(folder)!r} cannot hold the copy: {error.strerror}.") from None
    return folder, is_new


def _make_sibling(workspace: Path) -> Path:
    for number in range(1, _MAX_BRANCHES + 1):
        sibling = workspace.with_name(extend_name(workspace.name, f"-branch-{number}"))
        try:
            sibling.mkdir()
        except FileExistsError:
            continue
        except OSError as error:
            raise WorkspaceError(
                f"No folder could be made beside {str(workspace)!r} ({error.strerror}). "
                "Give one with branch(workspace=...)."
            ) from None
        return sibling
    raise WorkspaceError(f"{str(workspace)!r} has {_MAX_BRANCHES} branches. Remove some.")


_TRANSFER_CAPS = OutputCaps(value_bytes=62 << 20)
"""A value is transferred whole or not at all, so it may be larger than a result that a model reads."""

_MAX_HEAD_CHARS = 60
"""Of the line before a value, which names its format."""

_STEP_CHARS = 1 << 20
"""Characters of a value that are decoded at once, in 3 ms; a multiple of four."""


def check_variable(name: object) -> str:
    """Return `name` if a variable can have it.

    Raises:
        UsageError: If none can.
    """
    if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
        raise UsageError(f"{name!r} cannot be the name of a variable. Use letters, digits and _.")
    return name


class TransferTool(Tool, Protocol):
    """A tool that the session itself brings to one call, instead of one from the registry.

    Attributes:
        caps: How much of its result may leave the sandbox.
    """

    caps: OutputCaps

    async def receive(self, result: ToolResult) -> ToolResult:
        """Take the value out of `result`. Return the small result that is recorded."""


class _VariableTool:
    """The common part of `PutVariable` and `GetVariable`. No model is offered these tools."""

    name = ""
    description = ""
    declaration: Declaration = "constant"
    caps = _TRANSFER_CAPS

    def __init__(self, variable: str) -> None:
        self.variable = variable
        self.version = uuid.uuid4().hex

    def parameters_schema(self) -> Mapping[str, Json]:
        """Return a schema that accepts anything: the arguments are only for the record."""
        return {"type": "object"}

    def shipment(self) -> ToolPayload:
        """Send this tool by value, once."""
        return ToolPayload(key=self.version, payload=pickle.dumps(self))

    async def receive(self, result: ToolResult) -> ToolResult:
        """Return the result as it is."""
        return result


class PutVariable(_VariableTool):
    """Assigns a value to a variable."""

    name = "session.put"
    description = "Assign a value to a variable of the sandbox's Python."

    def __init__(self, variable: str, payload: Payload) -> None:
        """Assign the value of `payload`."""
        super().__init__(variable)
        self.payload = payload
        self._shipment: ToolPayload | None = None

    @classmethod
    async def packed(cls, variable: str, value: object) -> PutVariable:
        """Return a tool that assigns `value`. A large one takes long to pack, so this is done in a thread.

        Raises:
            ToolError: If the value cannot be packed.
        """

        def prepare() -> PutVariable:
            # Packing makes many objects, for which the collector of garbage would look through the whole
            # value, and hold up the event loop.
            with gc_paused():
                tool = cls(variable, pack(variable, value))
                tool._shipment = ToolPayload(key=tool.version, payload=pickle.dumps(tool))
                return tool

        return await in_thread(prepare)

    def shipment(self) -> ToolPayload:
        """Send this tool by value, once."""
        return self._shipment or super().shipment()

    @property
    def arguments(self) -> Mapping[str, Json]:
        """The arguments for the record; the value itself is not among them."""
        return {"name": self.variable, "kind": self.payload.kind, "bytes": len(self.payload.data)}

    def classify(self, arguments: Mapping[str, Json]) -> Effect:  # noqa: ARG002 - the same for all
        """Return `LOCAL_MUTATION`."""
        return Effect.LOCAL_MUTATION

    async def execute(self, arguments: Mapping[str, Json], context: ToolContext) -> ToolResult:  # noqa: ARG002 - a contract
        """Unpack and assign, in the worker."""
        namespace = _namespace(context)
        # The worker keeps this tool for the session. It must not keep a second copy of the value.
        payload, self.payload = self.payload, Payload(kind="bytes", data=b"")
        namespace[self.variable] = unpack(self.variable, payload)
        return ToolResult.text(f"{self.variable} was assigned.")


class GetVariable(_VariableTool):
    """Fetches the value of a variable.

    Attributes:
        payload: The packed value; None until `receive` has taken it out of a result.
    """

    name = "session.get"
    description = "Fetch the value of a variable of the sandbox's Python."

    def __init__(self, variable: str) -> None:
        """Fetch the variable of that name."""
        super().__init__(variable)
        self.payload: Payload | None = None

    @property
    def arguments(self) -> Mapping[str, Json]:
        """The arguments for the record."""
        return {"name": self.variable}

    def classify(self, arguments: Mapping[str, Json]) -> Effect:  # noqa: ARG002 - the same for all
        """Return `READ_ONLY`."""
        return Effect.READ_ONLY

    async def execute(self, arguments: Mapping[str, Json], context: ToolContext) -> ToolResult:  # noqa: ARG002 - a contract
        """Pack the value and return it as text, in the worker."""
        namespace = _namespace(context)
        if self.variable not in namespace:
            raise ToolError(f"There is no variable {self.variable!r} in the sandbox.")
        payload = pack(self.variable, namespace[self.variable])
        text = f"{payload.kind}/{payload.form}\n{base64.b64encode(payload.data).decode('ascii')}"
        return ToolResult(content="", value=text)

    async def receive(self, result: ToolResult) -> ToolResult:
        """Take the value out of `result`. Return its kind and size instead, since results are kept."""
        if result.is_error:
            return result
        try:
            self.payload = await in_steps(_payload_steps(self.variable, result.value))
        except ToolError as error:
            return ToolResult.error(str(error), recoverable=False)
        size = len(self.payload.data)
        return ToolResult.text(f"{self.variable}: {self.payload.kind}, {size:,} bytes.")


def _namespace(context: ToolContext) -> dict[str, Any]:
    shell = context.metadata_get("shell")
    if shell is None:
        raise ToolError(
            "Variables need a sandbox with a Python worker, and this sandbox has none.",
            recoverable=False,
        )
    namespace: dict[str, Any] = shell.user_ns
    return namespace


def _payload_steps(name: str, value: object) -> Generator[None, None, Payload]:
    # Hostile: a worker may send anything here.
    value = value if isinstance(value, str) else ""
    try:
        start = value.find("\n", 0, _MAX_HEAD_CHARS) + 1
        kind, _, form = value[: max(start - 1, 0)].partition("/")
        if not start or kind not in PAYLOAD_KINDS or len(value) - start > MAX_BYTES * 4 // 3 + 4:
            raise ValueError
        # All of it at once, which takes no memory yet; what grows is copied again and again.
        data = io.BytesIO(bytes(max(len(value) - start, 0) * 3 // 4))
        while start < len(value):
            piece = base64.b64decode(value[start : start + _STEP_CHARS], validate=True)
            start += _STEP_CHARS
            if start < len(value) and len(piece) != _STEP_CHARS // 4 * 3:
                raise ValueError  # padding in the middle
            data.write(piece)
            yield
    except ValueError:
        raise ToolError(
            f"{name!r} came out of the sandbox malformed. Restart the sandbox and try again.",
            recoverable=False,
        ) from None
    data.truncate()  # there was padding
    return Payload(kind=kind, data=data.getvalue(), form=form)
