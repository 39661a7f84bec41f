"""The `python` tool: a cell in the worker's own namespace.

The tool `variables`: what the sandbox's Python knows by name.
"""

from __future__ import annotations

import reprlib
import sys
import types
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from aisotools.core.exceptions import ToolError
from aisotools.core.protocols import ToolContext
from aisotools.core.truncation import CAP
from aisotools.core.types import Effect, Json, MimeBundle, ToolResult
from aisotools.sandbox.worker.output import CallRecord
from aisotools.tools.function import tool


def _deadline_s(arguments: Mapping[str, Any]) -> float | None:
    timeout = arguments.get("timeout")
    return timeout / 1000 if isinstance(timeout, int | float) else None


@tool(
    name="python",
    effect=Effect.LOCAL_MUTATION,
    import_path="aisotools.builtin.python:python",
    concurrency="exclusive",
    timeout_s=_deadline_s,
    examples=[
        ({"code": "import statistics\nstatistics.mean([1, 2, 3])"}, "what is the mean of 1, 2 and 3?"),
        ({"code": "6 * 7"}, "What is 6 * 7?"),
        ({"code": "print('ok')"}, "Run this Python code: print('ok')"),
    ],
)
async def python(
    code: Annotated[
        str,
        Field(
            description="Python source, one or more statements, as in a notebook cell. The value of the last "
            "expression is the result. `await` works at the top level, `!cmd` runs a shell command.",
        ),
    ],
    timeout: Annotated[  # noqa: ASYNC109 - part of the tool's schema; the gate enforces it
        int | None,
        Field(description="Milliseconds after which the code is stopped.", ge=1, le=3_600_000),
    ] = None,
    *,
    context: ToolContext,
) -> ToolResult:
    """Run Python in the sandbox's notebook-like interpreter and return what it shows.

    Variables, imports and functions persist from call to call. Printed text, the value of the last
    expression, figures, tables and the traceback of an error are all part of the result. The current folder
    is the workspace; files elsewhere cannot be changed, and there is no network and no input().
    """
    del timeout  # the gate has set the deadline from it
    shell, record = context.metadata_get("shell"), context.metadata_get("record")
    if shell is None or not isinstance(record, CallRecord):
        raise ToolError("python runs only in a sandbox worker, and this is none.", recoverable=False)
    from aisotools.sandbox.worker.ipython import run_cell

    await run_cell(shell, code)
    # A usage error of a magic is printed, not raised; IPython knows all the same that the cell failed.
    return outcome(record, failed=record.error is not None or not shell.last_execution_succeeded)


def outcome(record: CallRecord, *, failed: bool) -> ToolResult:
    """What a cell showed, as a result with three faces."""
    stdout, stderr = record.text("stdout"), record.text("stderr")
    result = _plain_text(record.result) if record.result is not None else None
    bundles = [bundle for _, bundle in record.displays]
    if record.result is not None:
        bundles.append(record.result)
    pieces = [stdout.rstrip("\n"), stderr.rstrip("\n")]
    pieces += [_told(bundle) for bundle in bundles]
    if record.error is not None:
        pieces.append(record.error["traceback"].rstrip())
    return ToolResult(
        content="\n".join(p for p in pieces if p),
        is_error=failed,
        recoverable=failed,
        error_kind="failed" if failed else None,
        kind="error" if failed else "text",
        value={"result": result, "stdout": stdout, "stderr": stderr, "error": record.error},
        data=_merged(bundles),
        metadata={"displays": bundles, "streams_taken": True},
    )


def _plain_text(bundle: MimeBundle) -> str | None:
    text = bundle.get("text/plain")
    return text if isinstance(text, str) else None


def _told(bundle: MimeBundle) -> str:
    """A display in the words that a model reads."""
    text = _plain_text(bundle)
    pictures = [mime for mime in bundle if mime.startswith("image/")]
    if pictures:
        return f"[{pictures[0]}: {text or 'a figure'}]"
    return text if text is not None else f"[{', '.join(bundle)}]"


def _merged(bundles: list[dict[str, Any]]) -> dict[str, Any]:
    """One bundle of all: per type the last one wins, so that the value of the cell has the last word."""
    merged: dict[str, Any] = {}
    for bundle in bundles:
        merged.update(bundle)
    return merged


_REPR_CHARS = 120
_MOST = 2_000
_HIDDEN = frozenset({"In", "Out", "exit", "quit", "get_ipython", "open"})
_PLAIN = (int, float, complex, bool, str, bytes, type(None), list, tuple, dict, set, frozenset, range)


@tool(
    name="variables",
    effect=Effect.READ_ONLY,
    import_path="aisotools.builtin.python:variables",
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
