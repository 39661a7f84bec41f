"""Tools with which bridges are tried."""

from __future__ import annotations

import base64

from pydantic import BaseModel

from aisotools.core.protocols import ToolContext
from aisotools.core.types import Effect, ToolResult
from aisotools.testing.fakes import MockTool
from aisotools.tools.function import tool

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


class Shape(BaseModel):
    width: float
    height: float = 1.0


@tool(effect=Effect.READ_ONLY)
def shape_area(shape: Shape, context: ToolContext) -> float:
    """Area of a shape.

    Args:
        shape: Its measures.
        context: Filled in.
    """
    assert context.session_key
    return shape.width * shape.height


@tool(name="geo.area", effect=Effect.READ_ONLY)
def dotted_area(side: int) -> int:
    """Area of a square."""
    return side * side


picture = MockTool("picture", effect=Effect.READ_ONLY, result=ToolResult.binary(PNG, "image/png"))
