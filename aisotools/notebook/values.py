"""Values between the notebook and its sandbox: `%%sandbox -i NAME,... -o NAME,...` and `%sandbox vars`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

from IPython.core.error import UsageError

from aisotools.events import Json
from aisotools.exceptions import ToolError
from aisotools.exceptions import UsageError as WrongUse
from aisotools.notebook.listing import table
from aisotools.notebook.live import show_while_running
from aisotools.session import Session
from aisotools.transfer import check_variable

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
    return table(
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
