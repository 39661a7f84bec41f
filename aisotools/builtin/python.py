"""The tools `python`, which runs a cell in the worker's namespace, and `variables`, which lists it."""

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

_MAX_VARIABLES = 2_000
_MAX_REPR_CHARS = 120
_HIDDEN = frozenset({"In", "Out", "exit", "quit", "get_ipython", "open"})
_MEASURED_BY_LEN = (str, bytes, list, tuple, dict, set, frozenset)


# ---- python


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
    is the workspace; files elsewhere cannot be changed, and there is no input() and no network, but for the
    sandbox's own 127.0.0.1 at level isolated.
    """
    del timeout  # the gate has set the deadline from it
    shell, record = context.metadata_get("shell"), context.metadata_get("record")
    if shell is None or not isinstance(record, CallRecord):
        raise ToolError("python runs only in a sandbox worker; there is none here.", recoverable=False)
    from aisotools.sandbox.worker.ipython import run_cell

    await run_cell(shell, code)
    # A usage error of a magic is printed, not raised, so the record has no error; only IPython knows of it.
    return cell_result(record, failed=record.error is not None or not shell.last_execution_succeeded)


def cell_result(record: CallRecord, *, failed: bool) -> ToolResult:
    """Build the result of a cell: text for the model, a JSON value for programs, a MIME bundle for people."""
    stdout, stderr = record.text("stdout"), record.text("stderr")
    result = _plain_text(record.result) if record.result is not None else None
    bundles = [bundle for _, bundle in record.displays]
    if record.result is not None:
        bundles.append(record.result)
    pieces = [stdout.rstrip("\n"), stderr.rstrip("\n")]
    pieces += [_describe_display(bundle) for bundle in bundles]
    if record.error is not None:
        pieces.append(record.error["traceback"].rstrip())
    return ToolResult(
        content="\n".join(filter(None, pieces)),
        is_error=failed,
        recoverable=failed,
        error_kind="failed" if failed else None,
        kind="error" if failed else "text",
        value={"result": result, "stdout": stdout, "stderr": stderr, "error": record.error},
        data=_merge(bundles),
        metadata={"displays": bundles, "streams_taken": True},
    )


def _plain_text(bundle: MimeBundle) -> str | None:
    text = bundle.get("text/plain")
    return text if isinstance(text, str) else None


def _describe_display(bundle: MimeBundle) -> str:
    text = _plain_text(bundle)
    pictures = [mime for mime in bundle if mime.startswith("image/")]
    if pictures:
        return f"[{pictures[0]}: {text or 'a figure'}]"
    return text if text is not None else f"[{', '.join(bundle)}]"


def _merge(bundles: list[dict[str, Any]]) -> dict[str, Any]:
    # The last bundle of a type wins. The value of the cell comes last.
    merged: dict[str, Any] = {}
    for bundle in bundles:
        merged.update(bundle)
    return merged


# ---- variables


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
        raise ToolError("variables needs a sandbox worker; there is none here.", recoverable=False)
    hidden = {*_HIDDEN, *getattr(shell, "user_ns_hidden", ())}  # an attribute of IPython's shell
    names = [key for key in shell.user_ns if not key.startswith("_") and key not in hidden]
    if name is not None:
        names = [name] if name in names else [key for key in names if name in key]
    rows = [describe_variable(key, shell.user_ns[key]) for key in sorted(names)[:_MAX_VARIABLES]]
    lines = [_format_row(row) for row in rows]
    if len(names) > _MAX_VARIABLES:
        omitted = len(names) - _MAX_VARIABLES
        lines.append(f"[{omitted:,} of {len(names):,} variables are left out; choose some by name]")
    nothing = "There are no variables." if name is None else f"No variable is named like {name!r}."
    content = "\n".join(lines) or nothing
    return ToolResult.json({"variables": rows}, content).with_metadata(**{CAP: "list"})


def describe_variable(name: str, value: Any) -> dict[str, Json]:
    """Return name, type, shape, size in bytes and the beginning of the repr. Never raises."""
    kind = type(value)
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    row: dict[str, Json] = {
        "name": name,
        "type": module + kind.__qualname__,
        "shape": _shape(value),
        "size": _size_bytes(value),
    }
    if not isinstance(value, types.ModuleType | types.FunctionType | types.BuiltinFunctionType | type):
        row["repr"] = _short_repr(value)
    return row


# The attributes below are those of numpy and pandas; a user's object may have others under the same names, or
# raise when they are looked up.


def _shape(value: Any) -> Json:
    try:
        shape = getattr(value, "shape", None)
        if isinstance(shape, tuple):
            return [int(length) for length in shape]
        return [len(value)] if isinstance(value, _MEASURED_BY_LEN) else None
    except Exception:
        return None


def _size_bytes(value: Any) -> int | None:
    try:
        memory_usage = getattr(value, "memory_usage", None)
        if callable(memory_usage):
            usage = memory_usage(deep=False)  # per column for a frame, a number for a series
            return int(usage.sum() if hasattr(usage, "sum") else usage)
        nbytes = getattr(value, "nbytes", None)
        return nbytes if isinstance(nbytes, int) else sys.getsizeof(value)
    except Exception:
        return None


def _short_repr(value: Any) -> str:
    short = reprlib.Repr()
    short.maxstring = short.maxother = _MAX_REPR_CHARS
    try:
        if isinstance(getattr(value, "shape", None), tuple):
            # The repr of an array or a frame is a table of many lines.
            columns = getattr(value, "columns", None)
            text = (
                f"dtype {getattr(value, 'dtype', None)}"
                if columns is None
                else f"columns {list(columns[:20])}"
            )
        else:
            text = short.repr(value)
    except Exception as error:
        text = f"({type(error).__name__} from its repr)"
    return " ".join(text.split())[:_MAX_REPR_CHARS]


def _format_row(row: Mapping[str, Json]) -> str:
    shape = " x ".join(map(str, row["shape"])) if row["shape"] else ""
    size = f"{row['size']:,} B" if row["size"] is not None else ""
    details = ", ".join(filter(None, [shape, size]))
    line = f"{row['name']}: {row['type']}"
    if details:
        line += f" ({details})"
    if row.get("repr"):
        line += f" = {row['repr']}"
    return line
