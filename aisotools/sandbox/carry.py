"""Variables on their way from one worker to another: pickled in the one, unpickled in the other.

Both ends are confined; the host carries the bytes and never looks into them. What cannot be pickled is named.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any, BinaryIO

from aisotools.contracts import ToolContext
from aisotools.events import Json, ToolResult
from aisotools.shipping import NAMESPACE, pickle_namespace

_MOST_LOST = 50


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: BinaryIO, namespace: dict[str, Any]) -> None:
        super().__init__(file)
        self._namespace = namespace

    def persistent_load(self, pid: object) -> dict[str, Any]:
        if pid != NAMESPACE:
            raise pickle.UnpicklingError(f"unknown reference {pid!r:.50}")
        return self._namespace


def write(namespace: Mapping[str, Any], hidden: Mapping[str, Any], descriptor: int) -> list[str]:
    """Write the variables of `namespace` into a file, all together so that what is shared stays shared.

    Args:
        namespace: The variables.
        hidden: What a shell has put there by itself.
        descriptor: The file.

    Returns:
        What could not be written, each with the reason.
    """
    wanted = {
        name: value
        for name, value in namespace.items()
        if hidden.get(name, hidden) is not value and not (name.startswith("__") and name.endswith("__"))
    }
    lost: list[str] = []
    try:
        data = pickle_namespace(wanted, namespace)
    except BaseException:  # one of them cannot be: find out which
        for name in tuple(wanted):
            try:
                pickle_namespace({name: wanted[name]}, namespace)
            except BaseException as error:
                kind = type(wanted.pop(name)).__name__
                lost.append(f"{name} ({kind}: {str(error)[:100]})")
        data = pickle_namespace(wanted, namespace)
    with open(descriptor, "wb") as file:
        file.write(data)
    return lost[:_MOST_LOST]


def read(namespace: dict[str, Any], descriptor: int) -> list[str]:
    """Add what `write` has written to `namespace`; the names."""
    with open(descriptor, "rb") as file:
        file.seek(0)
        variables = _Unpickler(file, namespace).load()
    namespace.update(variables)
    return sorted(variables)


class Load:
    """A tool that only kernels call: takes over the variables in the file that comes with the call."""

    name = "load_variables"
    description = "Take over variables."

    def parameters_schema(self) -> Mapping[str, Json]:
        """It takes nothing but the file."""
        return {"type": "object", "properties": {}}

    async def execute(self, arguments: Mapping[str, Json], context: ToolContext) -> ToolResult:  # noqa: ARG002 - none
        """Read them; user code may run meanwhile, as in every unpickling."""
        descriptor: int = context.metadata["attached"]
        names = read(context.metadata["shell"].user_ns, descriptor)
        return ToolResult.json(names)


load = Load()
"""The one that kernels call."""
