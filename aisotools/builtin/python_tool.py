"""The `python` tool: a cell in the worker's own namespace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from aisotools.contracts import ToolContext
from aisotools.events import Effect, MimeBundle, ToolResult
from aisotools.exceptions import ToolError
from aisotools.function_tool import tool
from aisotools.sandbox.streams import CallRecord


def _deadline_s(arguments: Mapping[str, Any]) -> float | None:
    timeout = arguments.get("timeout")
    return timeout / 1000 if isinstance(timeout, int | float) else None


@tool(
    name="python",
    effect=Effect.LOCAL_MUTATION,
    import_path="aisotools.builtin.python_tool:python",
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
    from aisotools.sandbox.shell import run_cell

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
