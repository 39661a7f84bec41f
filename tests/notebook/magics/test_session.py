from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from IPython.core.error import UsageError
from jupyter_client.blocking.client import BlockingKernelClient

from aisotools.notebook.magics import session as magics_module
from aisotools.notebook.magics.session import AisotoolsMagics, ToolMagics
from aisotools.tools.registry import ToolRegistry
from tests.notebook.client import Notebook
from tests.notebook.conftest import the_display, usage_error
from tests.notebook.inert import assert_inert
from tests.waiting import HANG_S, wait_until

OWN_TOOL = """
from pydantic import SecretStr
from aisotools import Effect, Limits, current_session, tool

@current_session().registry.register
@tool(effect=Effect.READ_ONLY, examples=[({"words": ["a"]}, "say <b>a</b>")])
def shout(words: list[str], times: int = 1, loud: bool = True) -> str:
    '''Say <script>it</script> again.'''
    return " ".join(words * times).upper() if loud else "-"
"""


@pytest.fixture(scope="module")
def notebook(loaded: Notebook) -> Notebook:
    assert not loaded.run(OWN_TOOL).error
    return loaded


def test_all_tools_as_a_table(notebook: Notebook) -> None:
    shown = the_display(notebook.run("%tools"))
    assert shown.keys() == {"text/html", "text/plain"}
    for word in ("sandbox_bash", "shout", "read only", "built-in"):
        assert word in shown["text/plain"]
        assert word in shown["text/html"]
    assert "Say &lt;script&gt;it" in shown["text/html"]
    assert_inert(shown["text/html"])


def test_one_tool_in_full(notebook: Notebook) -> None:
    shown = the_display(notebook.run("%tools shout"))
    for word in ("words", "required", "default 1", "integer", "say <b>a</b>", '{"words": ["a"]}'):
        assert word in shown["text/plain"], word
    assert_inert(shown["text/html"])
    assert "JSON Schema" in shown["text/html"]


def test_definitions_for_clients(notebook: Notebook) -> None:
    (exported,) = json.loads(notebook.run("%tools shout --format openai").text)
    assert exported["function"]["name"] == "shout"
    run = notebook.run("%tools shout --format gemini")
    assert json.loads(run.text)[0]["parameters"]["required"] == ["words"]
    assert "Changed in shout for" in the_display(run)["text/plain"]
    every = json.loads(notebook.run("%tools --format json").text)
    assert {"file", "sandbox_bash", "shout"} <= {definition["name"] for definition in every}
    assert every[-1]["parameters"]["required"] == ["words"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("%tools shuot", "There is no tool named 'shuot'. Did you mean 'shout'?"),
        ("%tools --format yaml", "or gemini or mcp, not 'yaml'"),
        ("%tools --formt json", "unrecognized arguments: --formt"),
        ("%tools a b", "unrecognized arguments: b"),
        ("%sandbox statsu", "interrupt, vars or attach, not 'statsu'"),
        ("%sandbox restart now", "takes no arguments, not 'now'"),
        ("%%sandbox -i nosuch\n1", "There is no variable 'nosuch' in the notebook"),
        ("%%sandbox restart\n", "%%sandbox does not take 'restart'"),
        ("%%sandbox\n  \n", "there are none"),
        ("%call", "Which tool?"),
        ("%call shuot", "Did you mean shout?"),
        ("%call nothing_like_it", "Known: file, "),
        ("%call shout words", "'words' is not key=value"),
        ("%call shout --aks", "'--aks' is not key=value"),
        ("%call shout --json '{'", "--json takes an object"),
        ("%call shout --json '[1]'", "--json takes an object, not '[1]'"),
        ("%call shout --json", "--json takes an object"),
        ("%call shout --timeout soon", "than 0, not 'soon'"),
        ("%call shout --timeout -1", "than 0, not '-1'"),
        ("%call shout --timeout", "than 0, not ''"),
        ("%call shout words='a", "Quote values"),
    ],
)
def test_typo_is_reported_in_one_line(notebook: Notebook, line: str, message: str) -> None:
    assert message in usage_error(notebook.run(line))


def test_arguments_are_typed_by_the_schema(notebook: Notebook) -> None:
    run = notebook.run('%call shout words=\'["a", "b"]\' times=2 loud=true')
    assert "A B A B" in run.result["text/plain"]
    assert_inert(run.result["text/html"])
    run = notebook.run('x = %call shout --json \'{"words": ["a"]}\' times=3\nprint(x.value)')
    assert run.text == "A A A\n"
    assert "the argument" in notebook.run("%call shout words=a times=many").result["text/plain"].lower()


def test_the_result_can_be_kept_anywhere(notebook: Notebook) -> None:
    code = """
class Box: pass
box, table = Box(), {}
box.result = %call shout words='["a"]'
if True:
    table["k"] = %call shout \\
        words='["b"]' times=2
print(box.result.value, table["k"].value)
"""
    assert notebook.run(code).text == "A B B\n"
    assert notebook.run("%call shout words='[\"a\"]'\nprint(_ is None)").text == "False\n"


def test_a_timeout_is_kept(notebook: Notebook) -> None:
    run = notebook.run(
        "r = %call sandbox_bash command='sleep 20' --timeout 0.5\nprint(r.is_error, r.content)"
    )
    assert run.text.startswith("True ")


def test_ask_shows_a_card(notebook: Notebook) -> None:
    run = notebook.start("r = %call shout words='[\"a\"]' --ask\nprint(r.value)")
    notebook.card(run)
    notebook.decide(run, "approve")
    notebook.until(run, lambda: run.ended)
    assert run.text == "A\n"


@pytest.mark.parametrize(
    "cell",
    [
        "def f():\n    %call shout times=1\nf()",
        "def f(\n    a=1,\n):\n    %call shout times=1\nf()",
        "class A:\n    x = %call shout times=1",
        "async def f():\n    %call shout times=1\nawait f()",
    ],
)
def test_other_form_is_advised_inside_a_definition(notebook: Notebook, cell: str) -> None:
    message = usage_error(notebook.run(cell))
    assert "await current_session().call('shout', {...})" in message


def test_other_form_is_advised_under_another_magic(notebook: Notebook) -> None:
    for cell in ("%%time\n%call shout times=1", "%time x = %call shout times=1"):
        assert "await current_session().call(" in notebook.run(cell).text
    assert "await current_session().restart()" in notebook.run("%%time\n%sandbox restart").text


def test_a_forgotten_await_is_hinted_at(notebook: Notebook) -> None:
    run = notebook.run("current_session().call('shout', {})")
    assert run.result["text/plain"] == (
        "Nothing has run yet: put `await` before it, as in `await session.call(...)`."
    )
    run = notebook.run("async def mine(): pass\nm = mine(); display(m); m.close()")
    assert "coroutine object mine" in the_display(run)["text/plain"]


def test_tracebacks_keep_their_line_numbers(notebook: Notebook) -> None:
    run = notebook.run(
        "import sys, traceback\nx = %call shout \\\n  words='[]' \\\n  times=1\ntry:\n    1 / 0\n"
        "except ZeroDivisionError as e:\n    print(e.__traceback__.tb_lineno)"
    )
    assert run.text == "6\n"


def test_history_keeps_what_was_typed(notebook: Notebook) -> None:
    notebook.run("h = %call shout words='[]'")
    assert (
        notebook.run("print(get_ipython().history_manager.input_hist_raw[-2])").text
        == "h = %call shout words='[]'\n"
    )


def test_state_of_the_sandbox(notebook: Notebook) -> None:
    notebook.run("%call python code='kept = 1'")
    shown = the_display(notebook.run("%sandbox"))
    assert shown == the_display(notebook.run("%sandbox status")) or "up for" in shown["text/plain"]
    for word in ("level", "protects", "workspace", "policy mode", "safe", "process"):
        assert word in shown["text/plain"], word
    assert "default" in shown["text/plain"]
    assert_inert(shown["text/html"])


@pytest.mark.slow
def test_a_client_attaches_to_the_session_of_the_notebook(notebook: Notebook) -> None:
    notebook.run("%call python code='shared = 41'")
    command_line = the_display(notebook.run("%sandbox attach"))["text/plain"]
    assert command_line.startswith("In a terminal: jupyter console --existing /")
    client = BlockingKernelClient(connection_file=command_line.rpartition(" ")[2])
    wait_until(lambda: notebook.run("1").ended and Path(client.connection_file).exists())
    client.load_connection_file()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=HANG_S)
        reply = client.execute_interactive(
            "shared += 1; print(shared)", timeout=HANG_S, output_hook=lambda _: None
        )
        assert reply["content"]["status"] == "ok"
    finally:
        client.stop_channels()
    assert "42" in notebook.run("a = %call python code='shared'\nprint(a.content)").text


def test_restart_loses_variables_and_keeps_files(notebook: Notebook) -> None:
    notebook.run('%call python code=\'kept = 1; open("kept.txt", "w").close()\'')
    assert notebook.run("%sandbox restart").text.startswith("The sandbox was restarted (")
    run = notebook.run(
        "a = %call python code='kept'\nb = %call file operation=list\nprint(a.content, b.content)"
    )
    assert "NameError" in run.text
    assert "kept.txt" in run.text


def test_interrupt_while_nothing_runs_is_harmless(notebook: Notebook) -> None:
    assert not notebook.run("%sandbox interrupt").text
    assert "2" in notebook.run("%call python code='1 + 1'").result["text/plain"]


def test_help_is_there(notebook: Notebook) -> None:
    for magic in ("%tools", "%call", "%sandbox", "%%sandbox", "%policy", "%approvals"):
        run = notebook.run(f"{magic}?")
        assert not run.error
        assert not run.text, magic


# ---- without a kernel


@pytest.mark.parametrize(
    ("magic", "line", "instead"),
    [
        ("call", "file path=a", "await current_session().call('file', {...})"),
        ("sandbox", "restart", "await current_session().restart()"),
        ("sandbox", "vars", "await current_session().call('variables')"),
        ("sandbox", "nosuch", "takes status, restart, interrupt, vars or attach"),
        ("call", "", "Which tool?"),
        ("tools", "nosuch", "nosuch"),
        ("tools", "--format nosuch", "--format takes json"),
        ("tools", "--set nosuch", "nosuch"),
    ],
)
def test_a_plain_magic_says_what_to_write_instead(
    monkeypatch: pytest.MonkeyPatch, magic: str, line: str, instead: str
) -> None:
    session = SimpleNamespace(registry=ToolRegistry([]))
    monkeypatch.setattr(magics_module, "current_session", lambda: session)
    magics = AisotoolsMagics(None)
    with pytest.raises(UsageError) as error:
        getattr(magics, magic)(line)
    assert instead in str(error.value)


@pytest.mark.parametrize(
    ("line", "cell", "problem"),
    [
        ("", "x = 1", "needs a function with type hints"),
        ("", "def f(:", "line 1 is not valid Python"),
    ],
)
def test_a_tool_cell_says_what_is_wrong(line: str, cell: str, problem: str) -> None:
    magics = ToolMagics(None)
    with pytest.raises(UsageError, match=problem):
        magics.tool_cell(line, cell)
