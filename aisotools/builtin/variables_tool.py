"""The tool `variables`: what the sandbox's Python knows by name."""

from __future__ import annotations

import reprlib
import sys
import types
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from aisotools.contracts import ToolContext
from aisotools.events import Effect, Json, ToolResult
from aisotools.exceptions import ToolError
from aisotools.function_tool import tool
from aisotools.result_store import CAP

_REPR_CHARS = 120
_MOST = 2_000
_HIDDEN = frozenset({"In", "Out", "exit", "quit", "get_ipython", "open"})
_PLAIN = (int, float, complex, bool, str, bytes, type(None), list, tuple, dict, set, frozenset, range)


@tool(
    name="variables",
    effect=Effect.READ_ONLY,
    import_path="aisotools.builtin.variables_tool:variables",
    examples=[({}, "Which variables are there?"), ({"name": "df"}, "What is df?")],
)
def variables(
    name: Annotated[
        str | None,
        Field(
            description="One variable, or names that contain this; all without it.",
            min_length=1,
            max_length=200,
        ),
    ] = None,
    *,
    context: ToolContext,
) -> ToolResult:
    """List the variables of the sandbox's Python: name, type, shape, size in bytes, and how they begin.

    Modules, functions and classes are listed by type alone.
    """
    shell = context.metadata_get("shell")
    if shell is None:
        raise ToolError("variables needs a sandbox worker, and this is none.", recoverable=False)
    hidden = {*_HIDDEN, *getattr(shell, "user_ns_hidden", ())}
    names = [n for n in shell.user_ns if not n.startswith("_") and n not in hidden]
    if name is not None:
        names = [name] if name in names else [n for n in names if name in n]
    rows = [described(n, shell.user_ns[n]) for n in sorted(names)[:_MOST]]
    lines = [_line(row) for row in rows]
    if len(names) > _MOST:
        lines.append(
            f"[{len(names) - _MOST:,} of {len(names):,} variables are left out; choose some by name]"
        )
    nothing = "There are no variables." if name is None else f"No variable is named like {name!r}."
    told = "\n".join(lines) or nothing
    return ToolResult.json({"variables": rows}, told).with_metadata(**{CAP: "list"})


def described(name: str, value: Any) -> dict[str, Json]:
    """What there is to know about one variable; nothing here may fail, whatever the value is."""
    kind = type(value)
    own = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    row: dict[str, Json] = {
        "name": name,
        "type": own + kind.__qualname__,
        "shape": _shape(value),
        "size": _size(value),
    }
    if not isinstance(value, types.ModuleType | types.FunctionType | types.BuiltinFunctionType | type):
        row["repr"] = _brief(value)
    return row


def _shape(value: Any) -> Json:
    try:
        shape = getattr(value, "shape", None)
        if isinstance(shape, tuple):
            return [int(one) for one in shape]
        return (
            [len(value)] if isinstance(value, str | bytes | list | tuple | dict | set | frozenset) else None
        )
    except Exception:
        return None  # user code says so badly


def _size(value: Any) -> int | None:
    """Bytes that it takes itself; what a container holds is counted by those that know."""
    try:
        for attribute in ("memory_usage", "nbytes"):
            told = getattr(value, attribute, None)
            if callable(told) and attribute == "memory_usage":
                used = told(deep=False)
                return int(used.sum() if hasattr(used, "sum") else used)
            if isinstance(told, int):
                return told
        return sys.getsizeof(value)
    except Exception:
        return None


def _brief(value: Any) -> str:
    short = reprlib.Repr()
    short.maxstring = short.maxother = _REPR_CHARS
    try:
        if type(value) in _PLAIN:
            text = short.repr(value)
        elif isinstance(getattr(value, "shape", None), tuple):
            columns, dtype = getattr(value, "columns", None), getattr(value, "dtype", None)
            text = f"dtype {dtype}" if columns is None else f"columns {list(columns[:20])}"
        else:
            text = short.repr(value)
    except Exception as error:
        text = f"({type(error).__name__} from its repr)"
    return " ".join(text.split())[:_REPR_CHARS]


def _line(row: Mapping[str, Json]) -> str:
    shape = " x ".join(map(str, row["shape"])) if row["shape"] else ""
    size = f"{row['size']:,} B" if row["size"] is not None else ""
    about = ", ".join(filter(None, [shape, size]))
    value = f" = {row['repr']}" if row.get("repr") else ""
    return f"{row['name']}: {row['type']}" + (f" ({about})" if about else "") + value
