"""Putting values into a sandbox's Python and getting them out: calls of the session itself, through its gate.

Host to worker the value travels packed, in the tool that carries it; worker to host as text that the host
unpacks and believes nothing of. See `aisotools.parcels`.
"""

from __future__ import annotations

import base64
import keyword
import pickle
import uuid
from collections.abc import Mapping
from typing import Any, Protocol

from aisotools.contracts import OutputCaps, Shipment, Tool, ToolContext
from aisotools.events import Effect, Json, ToolResult
from aisotools.exceptions import ToolError, UsageError
from aisotools.parcels import KINDS, MAX_BYTES, Parcel, pack, unpack

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
    """What `Put` and `Get` have in common: tools of the session, which no model is told of."""

    name = ""
    description = ""
    caps = _CAPS

    def __init__(self, variable: str) -> None:
        self.variable = variable
        self.version = uuid.uuid4().hex

    def parameters_schema(self) -> Mapping[str, Json]:
        """JSON Schema of the arguments, which are only told for the record."""
        return {"type": "object"}

    def shipment(self) -> Shipment:
        """It travels by value, once."""
        return Shipment(key=self.version, payload=pickle.dumps(self))

    def received(self, result: ToolResult) -> ToolResult:
        """What the host keeps of the result."""
        return result


class Put(_Carrier):
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
        parcel, self.parcel = self.parcel, Parcel(kind="bytes", data=b"")  # the worker keeps this tool
        names[self.variable] = unpack(self.variable, parcel)
        return ToolResult.text(f"{self.variable} was assigned.")


class Get(_Carrier):
    """Fetches the value of a variable.

    Attributes:
        parcel: What came.
    """

    name = "session.get"
    description = "Fetch the value of a variable of the sandbox's Python."

    def __init__(self, variable: str) -> None:
        """Fetch the variable of that name."""
        super().__init__(variable)
        self.parcel: Parcel | None = None

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


def _read(name: str, value: object) -> Parcel:
    """A parcel as a worker sent it."""
    head, separator, encoded = value.partition("\n") if isinstance(value, str) else ("", "", "")
    kind, _, form = head.partition("/")
    try:
        if not separator or kind not in KINDS or len(encoded) > MAX_BYTES * 4 // 3 + 4:
            raise ValueError
        return Parcel(kind=kind, data=base64.b64decode(encoded, validate=True), form=form[:40])
    except ValueError:
        raise ToolError(f"{name!r} came out of the sandbox malformed.", recoverable=False) from None
