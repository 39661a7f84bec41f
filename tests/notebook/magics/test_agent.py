"""`%%agent`: what is typed behind it, and what a cell with it does."""

from __future__ import annotations

import pytest
from IPython.core.error import UsageError

from aisotools.notebook.magics.agent import AgentLine, fill_in, model_named, parse_agent
from tests.notebook.client import Notebook
from tests.notebook.conftest import usage_error

MODEL = """
from aisotools import Effect, ScriptedModel, current_session, tool

@current_session().registry.register
@tool(effect=Effect.READ_ONLY)
def double(x: int) -> int:
    "Twice a number."
    return 2 * x

def scripted(*turns):
    return ScriptedModel(list(turns))
"""


@pytest.fixture(scope="module")
def notebook(loaded: Notebook) -> Notebook:
    assert not loaded.run(MODEL).error
    return loaded


def test_typed_lines_are_parsed() -> None:
    assert parse_agent("") == AgentLine()
    typed = "-m 'openai:gpt 5' -t file,double -o r --max-steps 3 --approve deny --step -c --background --vars"
    assert parse_agent(typed) == AgentLine(
        model="openai:gpt 5",
        tools=("file", "double"),
        output="r",
        max_steps=3,
        approve="deny",
        step=True,
        continues=True,
        background=True,
        substitute=True,
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--approve maybe", "invalid choice: 'maybe'"),
        ("-o 5x", "give the name of a variable"),
        ("--max-steps 0", "at least 1"),
        ("--max-steps x", "invalid int value"),
        ("--nosuch", "unrecognized arguments: --nosuch"),
        ("-m 'x", "No closing quotation"),
    ],
)
def test_unreadable_line_is_reported_in_one_line(line: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as raised:
        parse_agent(line)
    assert "\n" not in str(raised.value)


def test_variables_are_filled_in_and_nothing_else_is_evaluated() -> None:
    assert fill_in("{a} and {{b}} {c.d} {0} {}", {"a": 1}) == "1 and {b} {c.d} {0} {}"
    with pytest.raises(UsageError, match="no variable 'x'"):
        fill_in("{x}", {})


def test_models_by_name() -> None:
    with pytest.raises(UsageError, match="holds int, not a model"):
        model_named("m", {"m": 5})
    with pytest.raises(UsageError, match="-m nosuch: there is no variable of that name"):
        model_named("nosuch", {})


def test_a_run_is_seen_and_its_result_kept(notebook: Notebook) -> None:
    run = notebook.run("m = scripted(('double', {'x': 21}), 'It is **42**.')\n")
    assert not run.error
    run = notebook.run("%%agent -m m -o answer\nWhat is twice 21? {not_a_variable}")
    assert not run.error, run
    shown = str(run.shown)
    assert "double" in shown
    assert "42" in shown
    assert notebook.run("print(answer.outcome, answer.text, answer.calls)").text.split()[:2] == [
        "answered",
        "It",
    ]


def test_the_answer_is_the_last_thing_of_the_cell_and_so_is_that_of_a_result(notebook: Notebook) -> None:
    notebook.run("m = scripted(('double', {'x': 21}), 'It is **42**.')\n")
    run = notebook.run("%%agent -m m -o answer\nWhat is twice 21?")
    last = list(run.shown.values())[-1]
    assert "It is <strong>42</strong>." in last["text/html"]
    assert last["text/plain"] == "It is **42**."
    assert notebook.run("answer").result == last


def test_a_run_without_an_answer_says_how_it_ended(notebook: Notebook) -> None:
    notebook.run("m = scripted(('double', {'x': 21}), ('double', {'x': 22}), 'never')\n")
    run = notebook.run("%%agent -m m --max-steps 1\nWhat is twice 21?")
    last = list(run.shown.values())[-1]
    assert "The run ended as budget" in last["text/html"]


def test_a_conversation_goes_on_only_when_asked_to(notebook: Notebook) -> None:
    notebook.run("m = scripted('one', 'two', 'three')")
    notebook.run("%%agent -m m -o r\nfirst")
    notebook.run("%%agent -c -o r\nsecond")
    code = "from aisotools.notebook.magics.agent import last_agent; print(len(last_agent().messages))"
    assert notebook.run(code).text.strip() == "4"
    notebook.run("%%agent -o r\nthird")
    assert notebook.run("print(len(last_agent().messages), r.text)").text.strip() == "2 three"


def test_approve_deny_denies_and_auto_allows_for_this_run_only(notebook: Notebook) -> None:
    notebook.run("wants = lambda: scripted(('sandbox_write', {'path': 'a.txt', 'content': 'x'}), 'done')")
    notebook.run("m = wants()")
    notebook.run("%%agent -m m --approve deny -o r\nwrite")
    output = notebook.run(
        "import os; s = current_session(); there = lambda: os.path.exists(s.workspace / 'a.txt')\n"
        "print(there(), s.policy.mode, s.approver)"
    )
    assert output.text.split() == ["False", "safe", "None"]
    notebook.run("m = wants()")
    notebook.run("%%agent -m m --approve auto -o r\nwrite")
    assert notebook.run("print(there(), s.policy.mode)").text.split() == [
        "True",
        "safe",
    ]


def test_interpolation_is_opt_in(notebook: Notebook) -> None:
    notebook.run("m, who = scripted('hi'), 'Ada'")
    notebook.run("%%agent -m m --vars\nGreet {who}.")
    assert notebook.run("print(last_agent().messages[0].text)").text.strip() == "Greet Ada."


def test_background_runs_go_on_after_the_cell(notebook: Notebook) -> None:
    notebook.run("m = scripted(('double', {'x': 1}), 'done')")
    run = notebook.run("%%agent -m m --background -o r\ngo")
    assert "`await r` returns its result" in run.text
    assert notebook.run("print((await r).text)").text.strip() == "done"


def test_mistake_of_a_person_is_reported_in_one_line(notebook: Notebook) -> None:
    assert "there are none" in usage_error(notebook.run("%%agent -m m\n  \n"))
    assert "no variable of that name" in usage_error(notebook.run("%%agent -m nosuch\nhi"))
    assert "no tool named 'doubel'" in usage_error(notebook.run("%%agent -m m -t doubel\nhi"))
    assert "await Agent(model" in notebook.run("%%time\n%%agent -m m\nhi").text
