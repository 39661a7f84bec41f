"""The tools of a session for smolagents.

    agent = ToolCallingAgent(tools=session_tools(session), model=model)

smolagents calls tools from its own thread and blocks. In a notebook, run the agent beside the loop:
`await asyncio.to_thread(agent.run, "task")`, with the session open.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from smolagents import Tool

from aisotools.core.untrusted import UNTRUSTED
from aisotools.integrations.calls import call_blocking, images
from aisotools.session.session import Session
from aisotools.tools.export import Export, exported_name
from aisotools.tools.registry import ToolRegistry

_TYPES = {"string", "boolean", "integer", "number", "array", "object", "null"}


class SmolagentsSessionTool(Tool):  # type: ignore[misc]  # smolagents is untyped
    """A session's tool for smolagents. Every call passes the session's gate."""

    skip_forward_signature_validation = True
    name = "session_tool"
    description = "A tool of a session."
    inputs: dict[str, dict[str, Any]] = {}  # noqa: RUF012 - smolagents wants a class attribute
    output_type = "any"

    def __init__(self, session: Session, export: Export) -> None:
        """Offer the tool that `export` describes."""
        function = export["function"]
        self.name = _identifier(exported_name(export))
        self.description = function["description"] or self.name
        parameters = function["parameters"]
        required = set(parameters.get("required", ()))
        self.inputs = {
            name: _input(schema, optional=name not in required)
            for name, schema in parameters.get("properties", {}).items()
        }
        self._session, self._export = session, export
        super().__init__()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Make a call through the gate and block until it has a result.

        Raises:
            RuntimeError: If the call failed; smolagents shows the message to the model.
        """
        arguments = {**dict(zip(self.inputs, args, strict=False)), **kwargs}
        # smolagents passes None for optional arguments that the model left out.
        optional = {name for name, field in self.inputs.items() if field.get("nullable")}
        present = {
            name: value for name, value in arguments.items() if value is not None or name not in optional
        }
        result = call_blocking(self._session, self._export.tool_name, self._export.restore(present))
        if result.is_error:
            raise RuntimeError(result.content)
        pictures = list(images(result)) if result.kind == "binary" else []
        if pictures:
            from smolagents import AgentImage

            return AgentImage(pictures[0].data)
        if result.metadata.get(UNTRUSTED):
            return result.content  # smolagents shows values to the model, too
        return result.value if isinstance(result.value, dict | list | int | float) else result.content


def _input(schema: object, *, optional: bool) -> dict[str, Any]:
    """Convert a parameter's JSON Schema to smolagents' description."""
    schema = schema if isinstance(schema, Mapping) else {}
    kinds = schema.get("type", "any")
    if isinstance(kinds, list):
        kinds = [kind for kind in kinds if kind in _TYPES] or "any"
    elif kinds not in _TYPES:
        kinds = "any"
    field: dict[str, Any] = {"type": kinds, "description": str(schema.get("description", ""))}
    if optional:
        field["nullable"] = True
    return field


def _identifier(name: str) -> str:
    """Return the name as a Python identifier: smolagents' models write code that calls it."""
    plain = "".join(letter if letter.isalnum() or letter == "_" else "_" for letter in name)
    return plain if plain.isidentifier() else f"tool_{plain}"


def session_tools(session: Session, *, registry: ToolRegistry | None = None) -> list[SmolagentsSessionTool]:
    """Return the tools of an open session for smolagents.

    Args:
        session: Makes the calls; its own approver is asked.
        registry: Tools to offer; None for all tools of the session.
    """
    exports = (registry or session.registry).exports("openai", strict=False)
    return [SmolagentsSessionTool(session, export) for export in exports]
