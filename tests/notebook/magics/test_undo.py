from __future__ import annotations

import pytest

from aisotools.notebook.magics.undo import changes_bundle
from aisotools.workspace.diff import Changes, PathChange
from tests.notebook.client import Notebook
from tests.notebook.conftest import usage_error
from tests.notebook.inert import assert_inert

SETUP = """
from aisotools import Policy, Session
from aisotools.notebook.current import use_session
s = use_session(Session(policy=Policy(mode="auto")))
"""


@pytest.fixture(scope="module")
def notebook(loaded: Notebook) -> Notebook:
    assert not loaded.run(SETUP).error
    return loaded


def test_changes_of_a_call_are_shown_undone_and_redone(notebook: Notebook) -> None:
    assert not notebook.run("%call sandbox_write path=out/a.txt content='one'").error
    shown = notebook.run("%changes").result
    assert_inert(shown["text/html"])
    assert "workspace - 2 added" in shown["text/plain"]
    assert "+one" in shown["text/plain"]
    assert "Removed: out, out/a.txt." in notebook.run("%undo").result["text/plain"]
    assert notebook.run("import os; print(os.path.exists(s.workspace / 'out'))").text == "False\n"
    assert "Nothing changed." in notebook.run("%changes").result["text/plain"]
    assert "Brought back: out, out/a.txt." in notebook.run("x = %redo\nx").result["text/plain"]
    assert notebook.run("print((s.workspace / 'out/a.txt').read_text())").text == "one\n"


def test_files_alone_are_undone_and_the_reach_is_shown(notebook: Notebook) -> None:
    notebook.run("%%sandbox\nv = 1; open('c', 'w').write('1');")
    shown = notebook.run("%changes").result
    assert "Undo reaches back" in shown["text/plain"]
    assert "Undo reaches back" in shown["text/html"]
    undone = notebook.run("%undo 1 --files").result["text/plain"]
    assert "Removed: c." in undone
    assert "Variables: They were left as they are." in undone
    assert notebook.run("print(await s.get('v'))").text == "1\n"
    assert "Brought back: c." in notebook.run("%redo --files").result["text/plain"]


def test_undo_to_a_call_and_by_force(notebook: Notebook) -> None:
    notebook.run("await s.call('sandbox_write', {'path': 'b', 'content': '1'}, call_id='first')")
    notebook.run("await s.call('sandbox_write', {'path': 'b', 'content': '2'}, call_id='second')")
    notebook.run("(s.workspace / 'b').write_text('mine')")
    assert "somebody else" in notebook.run("%undo --to first").result["text/plain"]
    assert "Undid 2 calls" in notebook.run("%undo --to first --force").result["text/plain"]
    assert "+ b" not in notebook.run("%changes --since first").result["text/plain"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("%undo 0", "%undo does not take '0'. Use %undo [N | --to CALL] [--files] [--force]."),
        ("%undo all", "does not take 'all'"),
        (f"%undo {'9' * 5_000}", "does not take '999"),
        ("%undo 2 --to x", "a number or a call, not both"),
        ("%undo --to nobody", "There is no call 'nobody' to undo."),
        ("%redo --to x", "Use %redo [N] [--files] [--force]."),
        ("%changes 3", "Use %changes [--since CALL]."),
        ("%changes --since nobody", "There is no checkpoint from before a call 'nobody'."),
        ("%undo 'x", "No closing quotation"),
        ("def f():\n    %undo", ""),
    ],
)
def test_typo_is_reported_in_one_line(notebook: Notebook, line: str, message: str) -> None:
    if message:
        assert message in usage_error(notebook.run(line))
    else:
        assert "await current_session().undo()" in notebook.run(f"{line}\nf()").text


def test_the_card_holds_against_what_is_in_files() -> None:
    bad = "<script>x</script>\x1b[31m\r\u202e<img src=x onerror=1>"
    changes = Changes(
        every=(
            PathChange(path=f"a{bad}", kind="changed", diff=f"+{bad}\n" * 50_000),
            *(PathChange(path=f"{number}", kind="added", diff="+x\n" * 3000) for number in range(1000)),
        ),
        uncovered=(bad,),
    )
    shown = changes_bundle(changes)
    assert_inert(shown["text/html"])
    assert len(shown["text/html"]) < 600_000
    assert len(shown["text/plain"]) < 200_000
    assert "\x1b" not in shown["text/plain"]
    assert "\r" not in shown["text/plain"]
    assert "801 more changes." in shown["text/plain"]
