"""What the rewritten magics run: `%call`, `%%sandbox`, `%sandbox restart`.

Values between the notebook and its sandbox: `%%sandbox -i NAME,... -o NAME,...` and `%sandbox vars`.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

from IPython.core.error import UsageError

from aisotools.core.exceptions import AisotoolsError, ToolError
from aisotools.core.exceptions import UsageError as WrongUse
from aisotools.core.types import Json, ToolResult
from aisotools.notebook.current import current_session
from aisotools.notebook.magics.arguments import parse_call
from aisotools.notebook.magics.mcp import run_mcp_magic
from aisotools.notebook.magics.undo import run_undo_magic
from aisotools.notebook.render.listing import table_bundle
from aisotools.notebook.trace.view import show_while_running
from aisotools.session.session import Session
from aisotools.session.transfer import check_variable
from aisotools.workspace.diff import Changes

USAGE = "%%sandbox [-i NAME,...] [-o NAME,...], with the code below it"


@dataclass(frozen=True, slots=True, kw_only=True)
class CellLine:
    """What stands behind `%%sandbox`.

    Attributes:
        inputs: Variables of the notebook to take in first.
        outputs: Variables of the sandbox to take out afterwards.
    """

    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()


def parse_cell_line(line: str) -> CellLine:
    """Read what stands behind `%%sandbox`.

    Raises:
        UsageError: In one line, when it cannot be read.
    """
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise UsageError(f"%%sandbox: {error}. {USAGE}") from None
    names: dict[str, list[str]] = {"-i": [], "-o": []}
    while words:
        option = words.pop(0)
        if option not in names or not words:
            raise UsageError(f"{option!r} is not understood. {USAGE}")
        try:
            names[option] += [
                check_variable(name.strip()) for name in words.pop(0).split(",") if name.strip()
            ]
        except WrongUse as error:
            raise UsageError(f"%%sandbox {option}: {error}") from None
    return CellLine(inputs=tuple(names["-i"]), outputs=tuple(names["-o"]))


async def run_sandbox_cell(
    session: Session, line: str, body: str, variables: MutableMapping[str, Any]
) -> None:
    """Run a cell in the sandbox, with values of the notebook taken in before and out afterwards.

    Args:
        session: Where.
        line: What stands behind `%%sandbox`.
        body: The lines below it.
        variables: Those of the notebook.

    Raises:
        UsageError: If a value is not there or cannot travel; for what is taken out, once the cell has run.
    """
    wanted = parse_cell_line(line)
    if not body.strip():
        raise UsageError("%%sandbox runs the lines below it in the sandbox; there are none.")
    missing = [name for name in wanted.inputs if name not in variables]
    if missing:
        raise UsageError(f"There is no variable {missing[0]!r} here to take into the sandbox.")
    for name in wanted.inputs:
        try:
            await session.put(name, variables[name])
        except ToolError as error:
            raise UsageError(str(error)) from None
    result = await show_while_running(session, session.run_cell(body, origin="person"), "python")
    if result.is_error:
        return
    taken: dict[str, Any] = {}
    for name in wanted.outputs:
        try:
            taken[name] = await session.get(name)
        except ToolError as error:
            raise UsageError(f"{error} The cell itself has run.") from None
    variables.update(taken)


async def show_variables(session: Session, line: str) -> dict[str, str]:
    """The sandbox's variables as a table.

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
    if not rows:
        return {"text/plain": result.content}
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
    )


async def run_magic(magic: str, line: str, body: str = "") -> ToolResult | Changes | None:
    """Run one rewritten magic.

    Args:
        magic: `call`, `undo`, `redo`, `changes`, `mcp`; `cell` for `%%sandbox`; `agent` for `%%agent`;
            `restart` for `%sandbox restart`.
        line: What was typed behind it.
        body: The lines below it.

    Raises:
        UsageError: In one line, for whatever the person who typed it can mend.
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
    known = {tool.name: tool.parameters_schema() for tool in session.registry.list()}
    typed = parse_call(line, known)
    return await session.call(
        typed.name, typed.arguments, origin="person", ask=typed.ask, timeout_s=typed.timeout_s
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
        raise UsageError(f"%sandbox restart takes nothing more, not {line!r}.")
    session = current_session()
    await session.restart()
    print(f"The sandbox was restarted ({session.level}); its variables are gone, the workspace is as it was.")
