from __future__ import annotations

import pytest

from tests.notebook.client import Notebook
from tests.notebook.conftest import the_display, usage_error
from tests.notebook.inert import assert_inert

AREA = '''%%tool{options}
import math
def helper(r: float) -> float:
    return r * r

def area(radius: float) -> float:
    """Area of a circle.{more}"""
    return math.pi * helper(radius)
'''


def cell(options: str = "", more: str = "") -> str:
    return AREA.format(options=options, more=more)


def test_the_function_of_a_cell_becomes_a_tool(loaded: Notebook) -> None:
    shown = the_display(loaded.run(cell()))
    assert "Area of a circle." in shown["text/plain"]
    assert "radius" in shown["text/plain"]
    assert_inert(shown["text/html"])
    assert "area" in the_display(loaded.run("%tools"))["text/plain"]
    run = loaded.run("r = %call area radius=2\nprint(round(r.value, 2), area(1.0) > 3)")
    assert run.text == "12.57 True\n"


def test_running_the_cell_again_replaces_the_tool(loaded: Notebook) -> None:
    assert "As before." not in the_display(loaded.run(cell()))["text/plain"]
    assert "As before." in the_display(loaded.run(cell(more=" As before.")))["text/plain"]


def test_options(loaded: Notebook) -> None:
    shown = the_display(loaded.run(cell(" --name circle --effect read_only --host")))
    assert shown["text/plain"].startswith("circle - read only - runs in the HOST")
    assert "circle" in usage_error(loaded.run("%call circl radius=1"))


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("%%tool\nx = 1", "needs a function"),
        ("%%tool\ndef f(:", "line 1 is not valid Python"),
        ("%%tool --effect none\ndef f(x: int) -> int:\n    'Doc.'\n    return x", "--effect takes read_only"),
        ("%%tool\ndef f(x) -> int:\n    'Doc.'\n    return x", "x"),
        ("%%tool --name python\ndef f(x: int) -> int:\n    'Doc.'\n    return x", "python"),
        ("%%tool --nme x\ndef f(): 1", "--nme"),
    ],
)
def test_cell_that_cannot_become_a_tool_is_reported_in_one_line(
    loaded: Notebook, cell: str, message: str
) -> None:
    assert message in usage_error(loaded.run(cell))


def test_an_error_in_the_cell_shows_its_line(loaded: Notebook) -> None:
    run = loaded.run("%%tool\nimport nothing_of_that_name\ndef f() -> int:\n    'Doc.'\n    return 1")
    assert run.error == "ModuleNotFoundError"


def test_trace_before_any_run(loaded: Notebook) -> None:
    assert "No run was followed yet" in the_display(loaded.run("%trace"))["text/plain"]


def test_a_run_is_followed_and_shown_again(loaded: Notebook) -> None:
    run = loaded.run(
        "from aisotools.notebook.trace.view import follow\n"
        "async def work(s):\n    return await s.call('python', {'code': 'print(6 * 7)'}, origin='person')\n"
        "from aisotools import current_session\ns = current_session()\n"
        "r = await follow(s, work(s), title='sum', registry=s.registry)"
    )
    shown = the_display(run)
    assert shown.keys() == {"text/html", "text/plain"}
    assert shown["text/plain"].startswith("trace of sum: 1 call")
    assert "42" in shown["text/plain"]
    assert_inert(shown["text/html"])
    assert the_display(loaded.run("%trace"))["text/plain"] == shown["text/plain"]


def test_an_export(loaded: Notebook) -> None:
    loaded.run("%call file operation=write path=t.txt content=hello")
    run = loaded.run("%trace export run.ipynb")
    assert run.text.startswith("run.ipynb: ")
    assert loaded.run("%trace export 'a page.html'").text.startswith("a page.html: ")
    code = "import json; print(json.load(open('run.ipynb'))['metadata']['aisotools']['format'])"
    assert loaded.run(code).text == "1\n"
    assert "must end with .ipynb" in usage_error(loaded.run("%trace export run.pdf"))
    assert "does not take 'nonsense'" in usage_error(loaded.run("%trace nonsense"))
    assert "does not take" in usage_error(loaded.run("%trace export"))


def test_tools_of_a_kernel_bring_their_source(loaded: Notebook) -> None:
    """What `%%tool` made, with what other cells defined and imported."""
    loaded.run("import json, math as m\nRATE = 2.5\ndef half(x: float) -> float:\n    return x / 2")
    loaded.run(
        '%%tool --effect read_only --name rated\ndef rate(x: float) -> float:\n    """Rates x."""\n'
        "    return m.floor(half(x) * RATE)"
    )
    assert loaded.run("r = %call rated x=4\nprint(r.value)").text == "5.0\n"
    loaded.run("%trace export tools.ipynb")
    source = loaded.run(
        "cells = json.load(open('tools.ipynb'))['cells']\n"
        "code = next(''.join(c['source']) for c in cells if 'def rate' in ''.join(c['source']))\nprint(code)"
    ).text
    for line in ("import math as m", "RATE = 2.5", "def half(x: float)", "@tool(name='rated', runs_in="):
        assert line in source
    assert source.index("def half") < source.index("def rate")
    again = loaded.run(
        "from aisotools import current_session\ncurrent_session().registry.unregister('rated')\nexec(code)\n"
        "print(current_session().registry['rated'].classify({}))"
    )
    assert again.text.endswith("read_only\n"), again
