from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from tests.notebook.client import Notebook, Run
from tests.notebook.conftest import the_display, usage_error
from tests.notebook.inert import assert_inert

# Holds a lock on a file for as long as it runs, and writes to it.
BUSY = """
import fcntl, time
with open('beats.txt', 'a', buffering=1) as beats:
    fcntl.flock(beats, fcntl.LOCK_EX)
    while True:
        print('.', file=beats)
        time.sleep(0.02)
""".strip()


def is_locked(path: Path) -> bool:
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


HELD = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\nos.remove('go')"
"""Goes on when there is the file that `gate` returns."""


def gate(notebook: Notebook) -> Path:
    return Path(notebook.run("print(current_session().workspace)").text.strip()) / "go"


@pytest.fixture(scope="module")
def notebook(loaded: Notebook) -> Notebook:
    assert not loaded.run("from aisotools import current_session\nawait current_session().start()").error
    return loaded


def the_only(run: Run) -> str:
    (shown,) = run.shown.values()
    return str(shown["text/plain"])


def test_output_is_shown_while_it_runs_then_the_result_in_its_place(notebook: Notebook) -> None:
    go = gate(notebook)
    run = notebook.start(f"%%sandbox\nprint('first')\n{HELD}\nprint('<b>last</b>')\n40 + 2")
    notebook.until(run, lambda: run.shown and "first" in the_only(run))
    assert not run.ended
    assert "last" not in the_only(run)
    go.touch()
    notebook.until(run, lambda: run.ended)
    assert run.text == ""
    assert len(run.displays) == 1, "it must stay in one place"
    shown = the_display(run)
    assert "output of python" in shown["text/plain"]
    for word in ("first", "<b>last</b>", "42"):
        assert word in shown["text/plain"]
    assert_inert(shown["text/html"])


def test_a_quick_call_is_shown_once(notebook: Notebook) -> None:
    run = notebook.run("%%sandbox\n6 * 7")
    assert "42" in the_display(run)["text/plain"]


def test_an_error_is_shown_too(notebook: Notebook) -> None:
    assert "ZeroDivisionError" in the_display(notebook.run("%%sandbox\n1 / 0"))["text/plain"]


def test_only_the_end_of_endless_output_is_shown_meanwhile(notebook: Notebook) -> None:
    go = gate(notebook)
    run = notebook.start(f"%%sandbox\nfor i in range(3000):\n    print(i, 'x' * 80)\nprint('here')\n{HELD}")
    notebook.until(run, lambda: run.shown and "here" in the_only(run))
    assert len(the_only(run)) < 5000
    go.touch()
    notebook.until(run, lambda: run.ended)


def test_progress_is_shown_as_a_bar(notebook: Notebook) -> None:
    draw = "print('\\rfit:  40%|####      | 4/10 [00:01<00:02]', end='', flush=True)"
    go = gate(notebook)
    run = notebook.start(f"%%sandbox\nprint('first')\n{draw}\n{HELD}")
    notebook.until(run, lambda: run.shown and "width:40.0%" in next(iter(run.shown.values()))["text/html"])
    shown = next(iter(run.shown.values()))
    assert "4/10 [00:01&lt;00:02]" in shown["text/html"]
    assert "####" not in shown["text/html"]
    assert_inert(shown["text/html"])
    go.touch()
    notebook.until(run, lambda: run.ended)


def test_a_denied_cell_says_so(notebook: Notebook) -> None:
    notebook.run("%policy plan")
    run = notebook.run("%%sandbox\n1")
    notebook.run("%policy safe")
    assert "not run" in the_display(run)["text/plain"]


@pytest.mark.parametrize(
    "cell",
    [f"%%sandbox\n{BUSY}", "%call python code=\"import runpy; runpy.run_path('busy.py')\""],
    ids=["sandbox", "call"],
)
def test_stop_ends_the_work_in_the_sandbox(notebook: Notebook, cell: str) -> None:
    write = "from pathlib import Path\nwhere = current_session().workspace\n"
    write += f"(where / 'busy.py').write_text({BUSY!r})\n(where / 'beats.txt').write_text('')"
    notebook.run(write)
    beats = Path(notebook.run("print(where)").text.strip()) / "beats.txt"
    run = notebook.start(cell)
    notebook.until(run, lambda: beats.stat().st_size > 0)
    assert not run.ended
    assert is_locked(beats)
    notebook.manager.interrupt_kernel()
    notebook.until(run, lambda: run.ended)
    assert run.error in {"CancelledError", "KeyboardInterrupt"}
    assert "42" in the_display(notebook.run("%%sandbox\n6 * 7"))["text/plain"], "the worker is free again"
    assert not is_locked(beats), "the loop still runs"


def test_a_closed_session_is_replaced(notebook: Notebook) -> None:
    notebook.run("await current_session().close()")
    assert "42" in the_display(notebook.run("%%sandbox\n6 * 7"))["text/plain"]


def test_a_session_that_cannot_be_opened_is_reported_in_one_line(notebook: Notebook) -> None:
    run = notebook.run(
        "from aisotools import Session\nfrom aisotools.notebook.current import use_session\n"
        "s = use_session(Session(workspace='/'))"
    )
    assert not run.error
    assert "/" in usage_error(notebook.run("%%sandbox\n1"))
    assert "/" in usage_error(notebook.run("%call file operation=list"))
