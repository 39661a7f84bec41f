"""Coroutines behind the rewritten magics, such as `%call`, `%%sandbox` and `%sandbox restart`.

`aisotools.notebook.magics.transform` turns these magics into `await run_magic(...)`.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

from IPython.core.error import UsageError

from aisotools.core.exceptions import AisotoolsError, ToolError, UsageError as InvalidUsageError
from aisotools.core.types import Json, ToolResult
from aisotools.notebook.current import current_session
from aisotools.notebook.magics.arguments import parse_call
from aisotools.notebook.magics.mcp import run_mcp_magic
from aisotools.notebook.magics.undo import run_undo_magic
from aisotools.notebook.render.listing import table_bundle
from aisotools.notebook.render.text import one_line
from aisotools.notebook.trace.view import show_while_running
from aisotools.session.session import Session
from aisotools.session.transfer import check_variable
from aisotools.workspace.diff import Changes

USAGE = "%%sandbox [-i NAME,...] [-o NAME,...], with the code below it"


@dataclass(frozen=True, slots=True, kw_only=True)
class CellLine:
    """The options of `%%sandbox`.

    Attributes:
        inputs: Variables of the notebook to copy into the sandbox first.
        outputs: Variables of the sandbox to copy back afterwards.
    """

    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()


def parse_cell_line(line: str) -> CellLine:
    """Parse the options of `%%sandbox`.

    Raises:
        UsageError: If they are invalid; one line.
    """
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise UsageError(f"%%sandbox: {error}. {USAGE}") from None
    names: dict[str, list[str]] = {"-i": [], "-o": []}
    while words:
        option = words.pop(0)
        if option not in names or not words:
            raise UsageError(f"%%sandbox does not take {option!r}. {USAGE}")
        try:
            names[option] += [
                check_variable(name.strip()) for name in words.pop(0).split(",") if name.strip()
            ]
        except InvalidUsageError as error:
            raise UsageError(f"%%sandbox {option}: {error}") from None
    return CellLine(inputs=tuple(names["-i"]), outputs=tuple(names["-o"]))


async def run_sandbox_cell(
    session: Session, line: str, body: str, variables: MutableMapping[str, Any]
) -> None:
    """Run a cell in the sandbox, and copy variables before and afterwards.

    Args:
        session: The session to run it in.
        line: The options of `%%sandbox`.
        body: The code.
        variables: The notebook's namespace.

    Raises:
        UsageError: If a variable does not exist or cannot be copied; for outputs, after the cell has run.
    """
    options = parse_cell_line(line)
    if not body.strip():
        raise UsageError("%%sandbox runs the lines below it in the sandbox; there are none.")
    missing = [name for name in options.inputs if name not in variables]
    if missing:
        raise UsageError(f"There is no variable {missing[0]!r} in the notebook to copy into the sandbox.")
    for name in options.inputs:
        try:
            await session.put(name, variables[name])
        except ToolError as error:
            raise UsageError(str(error)) from None
    result = await show_while_running(session, session.run_cell(body, origin="person"), "python")
    if result.is_error:
        return
    # All or nothing: a failing output must leave the notebook's variables as they are.
    outputs: dict[str, Any] = {}
    for name in options.outputs:
        try:
            outputs[name] = await session.get(name)
        except ToolError as error:
            raise UsageError(f"{error} The cell itself has run.") from None
    variables.update(outputs)


async def show_variables(session: Session, line: str) -> dict[str, str]:
    """Return a table of the sandbox's variables, and how far undo reaches back.

    Raises:
        UsageError: If they cannot be listed.
    """
    arguments = {"name": line.strip()} if line.strip() else {}
    result = await session.call("variables", arguments, origin="person")
    rows: Sequence[Mapping[str, Json]] = (
        result.value.get("variables", ()) if isinstance(result.value, Mapping) else ()
    )
    if result.is_error:
        raise UsageError(result.content)
    reach = await session.history.reach() if session.history is not None else ""
    if not rows:
        return {"text/plain": f"{result.content}\n\n{one_line(reach, 1_000)}".rstrip()}
    return table_bundle(
        ("name", "type", "shape", "bytes", "value"),
        [
            (
                str(row.get("name", "")),
                str(row.get("type", "")),
                " x ".join(map(str, row.get("shape") or ())),
                f"{row['size']:,}" if isinstance(row.get("size"), int) else "",
                str(row.get("repr", "")),
            )
            for row in rows
        ],
        note=one_line(reach, 1_000),
    )


async def run_magic(magic: str, line: str, body: str = "") -> ToolResult | Changes | None:
    """Run one rewritten magic.

    Args:
        magic: `call`, `undo`, `redo`, `changes`, `mcp`; `cell` for `%%sandbox`; `agent` for `%%agent`;
            `restart` for `%sandbox restart`.
        line: The rest of its line.
        body: The lines below a cell magic.

    Raises:
        UsageError: For every error that the person can correct; one line.
    """
    try:
        if magic == "call":
            return await _call(line)
        if magic in {"undo", "redo", "changes"}:
            return await run_undo_magic(magic, line)
        if magic == "cell":
            await _sandbox_cell(line, body)
        elif magic == "mcp":
            await run_mcp_magic(line)
        elif magic == "vars":
            await _variables(line)
        elif magic == "agent":
            await _agent_cell(line, body)
        else:
            await _restart(line)
    except AisotoolsError as error:
        raise UsageError(str(error)) from None
    return None


async def _call(line: str) -> ToolResult:
    session = current_session()
    schemas = {tool.name: tool.parameters_schema() for tool in session.registry.list()}
    call = parse_call(line, schemas)
    return await session.call(
        call.name, call.arguments, origin="person", ask=call.ask, timeout_s=call.timeout_s
    )


async def _sandbox_cell(line: str, body: str) -> None:
    from IPython import get_ipython

    shell = get_ipython()
    await run_sandbox_cell(current_session(), line, body, shell.user_ns if shell is not None else {})


async def _variables(line: str) -> None:
    from IPython.display import display

    display(await show_variables(current_session(), line), raw=True)


async def _agent_cell(line: str, body: str) -> None:
    from IPython import get_ipython

    from aisotools.notebook.magics.agent import run_agent

    await run_agent(line, body, get_ipython().user_ns)


async def _restart(line: str) -> None:
    if line:
        raise UsageError(f"%sandbox restart takes no arguments, not {line!r}.")
    session = current_session()
    await session.restart()
    print(f"The sandbox was restarted ({session.level}); its variables are gone, the workspace is as it was.")
