"""`%%sandbox -i -o`, `%sandbox vars` and `%tools --set`, in a notebook's kernel."""

from __future__ import annotations

import pytest
from IPython.core.error import UsageError

from aisotools.builtin import builtin_tools
from aisotools.core.exceptions import UsageError as WrongUse
from aisotools.notebook.current import select_toolset
from aisotools.notebook.magics.coroutines import CellLine, parse_cell_line
from aisotools.testing.fakes import MockTool
from aisotools.tools.registry import ToolRegistry
from tests.notebook.client import Notebook
from tests.notebook.conftest import the_display, usage_error


def test_values_go_in_and_come_out(loaded: Notebook) -> None:
    assert not loaded.run("cfg, name = {'n': 3}, 'w\u00f6rld'").error
    run = loaded.run("%%sandbox -i cfg,name -o result,raw\nresult = [name] * cfg['n']\nraw = b'\\x00\\xff'")
    assert not run.error, run.error
    assert (
        loaded.run("print(result, raw)").text == "['w\u00f6rld', 'w\u00f6rld', 'w\u00f6rld'] b'\\x00\\xff'\n"
    )


def test_variables_are_shown(loaded: Notebook) -> None:
    loaded.run("%%sandbox\nshown_here = [1, 2, 3]")
    shown = the_display(loaded.run("%sandbox vars shown_here"))
    assert "shown_here" in shown["text/plain"]
    assert "[1, 2, 3]" in shown["text/plain"]
    assert "Undo reaches back" in shown["text/plain"]
    assert "for files; for variables" in shown["text/html"]


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        (
            "%%sandbox -o nothing_there\n1",
            "There is no variable 'nothing_there' in the sandbox. The cell itself",
        ),
        ("%%sandbox -i print\n1", "There is no variable 'print' in the notebook"),
        ("f = lambda: 1", ""),
        ("%%sandbox -i f\n1", "'f' is function, which cannot travel"),
        ("%%sandbox -i 1x\n1", "cannot be the name of a variable"),
        ("%%sandbox -i\n1", "%%sandbox does not take '-i'"),
        ("%%sandbox -o a\n", "there are none"),
    ],
)
def test_mistake_is_reported_in_one_line(loaded: Notebook, cell: str, message: str) -> None:
    run = loaded.run(cell)
    assert not message or message in usage_error(run)


def test_lines() -> None:
    assert parse_cell_line("") == CellLine()
    assert parse_cell_line("-i a,b -o c -o d") == CellLine(inputs=("a", "b"), outputs=("c", "d"))
    for line in ("-i", "x", "-i 'a", "-x a", "-i a;b", "-o class"):
        with pytest.raises(UsageError):
            parse_cell_line(line)


def test_a_set_replaces_the_built_in_tools_and_leaves_others_alone() -> None:
    registry = ToolRegistry([*builtin_tools(), MockTool("mine"), MockTool("display2")])
    assert select_toolset(registry, "web").startswith("4 tools: ")
    assert {tool.name for tool in registry} == {"web_fetch", "read_result", "mine", "display2"}
    select_toolset(registry, "all")
    assert {tool.name for tool in builtin_tools()} <= {tool.name for tool in registry}
    with pytest.raises(WrongUse, match="no toolset"):
        select_toolset(registry, "nosuch")
    assert "mine" in registry
