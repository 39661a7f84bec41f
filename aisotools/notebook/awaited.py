"""What the rewritten magics run: `%call`, `%%sandbox`, `%sandbox restart`."""

from __future__ import annotations

from IPython.core.error import UsageError

from aisotools.call_line import parse_call
from aisotools.changes import Changes
from aisotools.events import ToolResult
from aisotools.exceptions import AisotoolsError
from aisotools.notebook.current import current_session
from aisotools.notebook.mcp_magic import run_mcp_magic
from aisotools.notebook.undo_magics import run_undo_magic
from aisotools.notebook.values import run_sandbox_cell, show_variables


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

    from aisotools.notebook.agent_magic import run_agent

    await run_agent(line, body, get_ipython().user_ns)


async def _restart(line: str) -> None:
    if line:
        raise UsageError(f"%sandbox restart takes nothing more, not {line!r}.")
    session = current_session()
    await session.restart()
    print(f"The sandbox was restarted ({session.level}); its variables are gone, the workspace is as it was.")
