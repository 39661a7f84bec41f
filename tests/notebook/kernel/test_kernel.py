"""The sandboxed kernel as a Jupyter client meets it: output, input, interrupts, dying workers, history."""

from __future__ import annotations

import ast
import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from aisotools.notebook.kernel.kernel import InputHistory
from aisotools.notebook.kernel.output import COMMS_DROPPED, NEXT_INPUT_DROPPED
from tests.notebook.kernel.jupyter import Client, kernel
from tests.waiting import HANG_S, wait_until

STUCK = {
    "sleep": "import time; time.sleep(1000)",
    "awaiting": "import asyncio; await asyncio.sleep(1000)",
    "loop": "while True: pass",
    "regex": "import re; re.match(r'(a+)+$', 'a' * 40 + 'b')",
    "child": "import subprocess; subprocess.run(['sleep', '1000'])",
    "question": "input('well?')",
}
HARD = "sum(range(10 ** 12))"


@pytest.fixture(scope="module")
def k(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with kernel(tmp_path_factory.mktemp("front")) as made:
        yield made


def run_interrupted(k: Client, code: str) -> Any:
    """Run code that prints when it begins, and interrupt it then. It would run for long."""

    def interrupt(kind: str, content: Mapping[str, Any]) -> None:
        if kind == "stream" and content["text"] == "go\n":
            k.manager.interrupt_kernel()

    return k.run(f"print('go')\n{code}", meanwhile=interrupt, answer=lambda _question: None)


# ---- what cells show


def test_text_displays_and_the_value_come_in_order(k: Client) -> None:
    code = """
import os, subprocess, sys
from IPython.display import display, HTML
print('one')
display(HTML('<b>two</b>'))
subprocess.run(['echo', 'three'])
display({'text/plain': 'four'}, raw=True)
print('five', file=sys.stderr)
'six'
"""
    cell = k.run(code)
    kinds = [kind for kind, _ in cell.messages]
    assert kinds == ["stream", "display_data", "stream", "display_data", "stream", "execute_result"]
    assert cell.text() == "one\nthree\n"
    assert cell.text("stderr") == "five\n"
    assert cell.result["text/plain"] == "'six'"
    assert cell.reply["status"] == "ok"


def test_text_shows_while_the_cell_runs(k: Client) -> None:
    folder = Path(ast.literal_eval(k.run("import os, time; os.getcwd()").result["text/plain"]))
    texts: list[str] = []

    def go_on(_kind: str, content: Mapping[str, Any]) -> None:
        texts.append(content["text"])
        (folder / f"go{len(texts)}").touch()  # without which the next one is not printed

    code = "for n in range(3):\n    print(n)\n    while not os.path.exists(f'go{n + 1}'): time.sleep(0.01)"
    k.run(code, meanwhile=go_on)
    assert texts == ["0\n", "1\n", "2\n"]


def test_errors(k: Client) -> None:
    cell = k.run("def f():\n    raise ValueError('no such thing')\nf()")
    (error,) = cell.of("error")
    assert (error["ename"], error["evalue"]) == ("ValueError", "no such thing")
    trace = "\n".join(error["traceback"])
    assert "\x1b[" in trace  # coloured, as people expect
    assert "raise" in trace
    assert "aisotools" not in trace
    assert cell.reply["status"] == "error"
    assert cell.reply["traceback"] == error["traceback"]


def test_numbers_of_cells(k: Client) -> None:
    first = k.run("1").reply["execution_count"]
    assert k.run("2", silent=True).messages == []
    assert k.run("3", store_history=False).reply["execution_count"] == first + 1
    cell = k.run("4")
    assert cell.reply["execution_count"] == first + 1
    assert cell.of("execute_result")[0]["execution_count"] == first + 1
    assert k.run(f"In[{first + 1}], Out[{first + 1}], _{first + 1}").result["text/plain"] == "('4', 4, 4)"
    assert f"In[{first + 3}]" in "\n".join(k.run("1/0").reply["traceback"]).replace("\x1b[32m", "")
    assert k.run("  \n").reply["execution_count"] == first + 4


def test_an_update_finds_the_display_of_an_earlier_cell(k: Client) -> None:
    (shown,) = k.run("h = display('a', display_id='mine')").of("display_data")
    (update,) = k.run("h.update('b')").of("update_display_data")
    name = shown["transient"]["display_id"]
    assert name not in {"mine", ""}
    assert update["transient"]["display_id"] == name
    assert (
        k.run("from IPython.display import *\nupdate_display('c', display_id='of another notebook')").messages
        == []
    )


def test_background_tasks_print_below_their_cell(k: Client) -> None:
    go_on = Path(ast.literal_eval(k.run("import asyncio, os; os.getcwd()").result["text/plain"]), "go on")
    wait = "    while not os.path.exists('go on'): await asyncio.sleep(0.01)\n"
    code = f"async def later():\n{wait}    print('later')\n    display('shown')\n"
    cell = k.run(f"{code}t = asyncio.create_task(later())")
    assert cell.messages == []
    go_on.touch()
    assert k.late() == [("stream", {"name": "stdout", "text": "later\n"})]
    assert k.late()[0][0] == "display_data"


def test_unknown_magic_is_an_error_of_the_cell(k: Client) -> None:
    cell = k.run("%nosuch")
    assert "UsageError" in cell.text("stderr")
    assert cell.reply["ename"] == "UsageError"
    assert cell.of("error") == []


@pytest.mark.slow
def test_long_text_is_cut_with_a_note(k: Client) -> None:
    cell = k.run("for _ in range(12): print('x' * 1_000_000)")
    assert 7_000_000 < len(cell.text()) < 9_000_000
    assert "were dropped" in cell.text("stderr")


# ---- asking


def test_input_and_passwords(k: Client) -> None:
    asked = []

    def answer(question: Mapping[str, Any]) -> str:
        asked.append((question["prompt"], question["password"]))
        return "Ada"

    code = "import getpass\nname = input('Who? ')\nword = getpass.getpass('Word: ')\nname, word"
    assert k.run(code, answer=answer).result["text/plain"] == "('Ada', 'Ada')"
    assert asked == [("Who? ", False), ("Word: ", True)]


def test_a_thread_may_ask(k: Client) -> None:
    code = "import asyncio\nawait asyncio.to_thread(input, '?')"
    assert k.run(code, answer=lambda _: "yes").result["text/plain"] == "'yes'"


def test_the_end_of_input(k: Client) -> None:
    assert k.run("input()", answer=lambda _: "\x04").reply["ename"] == "EOFError"


def test_nobody_to_ask(k: Client) -> None:
    cell = k.run("input('name?')")
    assert cell.reply["ename"] == "RuntimeError"
    assert "Pass the value in" in cell.reply["evalue"]


# ---- what people bring along


def test_plotly_says_why_it_has_no_picture(k: Client) -> None:
    cell = k.run("import plotly.graph_objects as go\nfig = go.Figure(go.Bar(y=[1, 2]))\nfig")
    shown = [content["data"] for content in [*cell.of("display_data"), *cell.of("execute_result")]]
    assert all(set(data) <= {"text/plain", "text/html"} for data in shown)
    assert "<script" not in "".join(data.get("text/html", "") for data in shown)
    assert "is not shown" in "".join(data["text/plain"] for data in shown)
    cell = k.run("fig.to_image('png')")
    assert cell.reply["status"] == "error"
    assert "kaleido" in cell.reply["evalue"].lower()


def test_a_style_of_pandas_keeps_its_looks_in_a_frame(k: Client) -> None:
    cell = k.run("import pandas as pd\npd.DataFrame({'a': [1, 2]}).style.highlight_max()")
    assert 'sandbox=""' in cell.result["text/html"]


def test_processes_by_fork(k: Client) -> None:
    code = "import multiprocessing as mp\nfork = mp.get_context('fork')\nours, theirs = fork.Pipe()\n"
    code += "p = fork.Process(target=theirs.send, args=(42,)); p.start(); p.join(); ours.recv()"
    assert k.run(code).result["text/plain"] == "42"


# ---- typing


def test_completion(k: Client) -> None:
    k.run("import pandas as pd\ndf = pd.DataFrame({'alpha': [1]})")
    assert ".alpha" in k.ask("complete", "df.al")["matches"]
    reply = k.ask("complete", "x = df['al\nprint(x)", 10)
    assert (reply["matches"], reply["cursor_start"], reply["cursor_end"]) == (["alpha"], 8, 10)
    assert "%timeit" in k.ask("complete", "%time")["matches"]
    reply = k.ask("complete", "pri")
    assert {"start": 0, "end": 3, "text": "print"}.items() <= reply["metadata"][
        "_jupyter_types_experimental"
    ][0].items()


def test_inspection(k: Client) -> None:
    k.run("def twice(x):\n    'Twice as much.'\n    return 2 * x")
    assert "Twice as much." in k.ask("inspect", "twice(", 3)["data"]["text/plain"]
    assert "2" in k.ask("inspect", "twice", 3, detail_level=1)["data"]["text/plain"]
    assert k.ask("inspect", "nosuchname", 3)["found"] is False


@pytest.mark.slow
def test_a_property_that_never_returns_does_not_hold_up_typing(k: Client) -> None:
    k.run("class Slow:\n    def __dir__(self):\n        while True: pass\nslow = Slow()\nkept = 7")
    assert k.ask("complete", "slow.x")["matches"] == []
    assert k.run("kept").result["text/plain"] == "7"


# ---- stopping and dying


@pytest.mark.parametrize("what", STUCK)
def test_interrupt(k: Client, what: str) -> None:
    k.run("kept = 42")
    cell = run_interrupted(k, STUCK[what])
    assert cell.reply["ename"] in {"KeyboardInterrupt", "CancelledError"}
    assert k.run("kept").result["text/plain"] == "42"


def test_a_cell_that_cannot_be_interrupted_is_ended(k: Client) -> None:
    cell = run_interrupted(k, HARD)
    assert cell.reply["status"] == "error"
    assert k.run("1 + 1").result["text/plain"] == "2"


def test_a_signal_to_the_kernel_process_is_an_interrupt(k: Client) -> None:
    def interrupt(kind: str, _content: Mapping[str, Any]) -> None:
        if kind == "stream":
            provisioner: Any = k.manager.provisioner
            os.kill(provisioner.pid, signal.SIGINT)

    # A worker that a busy machine lets run too late to be interrupted is ended instead, so try again then.
    for _ in range(5):
        cell = k.run("print('go')\nimport time; time.sleep(1000)", meanwhile=interrupt)
        if cell.reply["ename"] != "WorkerDied":
            break
    assert cell.reply["ename"] == "KeyboardInterrupt"


@pytest.mark.parametrize("how", ["import os; os.kill(os.getpid(), 9)", "import ctypes; ctypes.string_at(0)"])
def test_a_worker_that_dies_is_reported_and_replaced(k: Client, how: str) -> None:
    cell = k.run(how)
    (error,) = cell.of("error")
    assert error["ename"] == "WorkerDied"
    assert cell.reply["status"] == "error"
    assert k.run("6 * 7").result["text/plain"] == "42"


def test_cells_behind_one_that_failed_are_not_run(k: Client) -> None:
    requests = [k.client.execute(code) for code in ("import time; time.sleep(1); 1/0", "ran = True")]
    statuses: dict[str, str] = {}
    while len(statuses) < 2:
        reply = k.client.get_shell_msg(timeout=HANG_S)
        statuses[reply["parent_header"]["msg_id"]] = reply["content"]["status"]
    assert [statuses[request] for request in requests] == ["error", "aborted"]
    assert k.run("'ran' in globals()").result["text/plain"] == "False"


# ---- what does not get out


def test_widgets_show_their_text_and_their_messages_are_dropped(k: Client) -> None:
    cell = k.run("import ipywidgets\nipywidgets.IntSlider(7)")
    assert cell.result == {"text/plain": "IntSlider(value=7)"}
    assert [kind for kind, _ in cell.messages] == ["stream", "execute_result"]
    assert cell.text("stderr") == COMMS_DROPPED
    assert k.ask("comm_info")["comms"] == {}


def test_no_text_is_put_into_new_cells(k: Client) -> None:
    cell = k.run("get_ipython().set_next_input('import os; os.system(...)', replace=True)")
    assert cell.reply["payload"] == []
    assert cell.text("stderr") == NEXT_INPUT_DROPPED


def test_a_comm_of_the_page_is_dropped(k: Client) -> None:
    k.run(
        "import comm\nopened = []\ncomm.get_comm_manager().register_target('x', lambda *a: opened.append(a))"
    )
    message = k.client.session.msg("comm_open", {"comm_id": "c", "target_name": "x", "data": {}})
    k.client.shell_channel.send(message)
    assert k.run("opened").result["text/plain"] == "[]"


def test_a_folder_full_of_traps_is_not_imported_from(tmp_path: Path) -> None:
    folder = tmp_path / "notebooks"
    folder.mkdir()
    for name in ("random", "aisotools", "zmq", "json", "IPython", "sitecustomize"):
        (folder / f"{name}.py").write_text(
            f"import os; os.close(os.open({str(tmp_path / name)!r}, 64, 0o600))"
        )
    (folder / "ipython_config.py").write_text(f"open({str(tmp_path / 'config')!r}, 'w')")
    (folder / "ipython_kernel_config.py").write_text(f"open({str(tmp_path / 'config')!r}, 'w')")
    with kernel(tmp_path, cwd=folder, more={"SECRET": "hunter2"}) as made:
        assert made.run("1 + 1").result["text/plain"] == "2"
        assert made.run("import os; 'SECRET' in os.environ").result["text/plain"] == "False"
    assert {path.name for path in tmp_path.iterdir()} <= {
        *("home", "state", "runtime", "jupyter", "notebooks", "connection.json"),
    }


@pytest.mark.slow
def test_the_end_leaves_nothing(tmp_path: Path) -> None:
    with kernel(tmp_path) as made:
        made.run("import subprocess; p = subprocess.Popen(['sleep', '77'])")
        provisioner: Any = made.manager.provisioner
        os.kill(provisioner.pid, signal.SIGKILL)
        folder = str(tmp_path / "notebooks")
        wait_until(lambda: _processes_in(folder) == [])


def _processes_in(folder: str) -> list[str]:
    found = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and str((process / "cwd").readlink()) == folder:
                found.append(process.name)
        except OSError:
            continue
    return found


# ---- the history of inputs


@pytest.fixture
def history() -> InputHistory:
    inputs = InputHistory()
    for count, code in enumerate(("a = 1", "b = 2", "a = 1", "print(a)"), 1):
        inputs.add(count, code)
    return inputs


@pytest.mark.parametrize(
    ("query", "numbers"),
    [
        ({"access": "tail", "n": 2}, [3, 4]),
        ({"access": "tail", "n": 0}, []),
        ({"access": "tail"}, [1, 2, 3, 4]),
        ({"access": "range", "start": 2, "stop": 4}, [2, 3]),
        ({"access": "range", "start": 3}, [3, 4]),
        ({"access": "range"}, [1, 2, 3, 4]),
        ({"access": "search", "pattern": "a*"}, [1, 3]),
        ({"access": "search", "pattern": "a*", "unique": True}, [3]),
        ({"access": "search", "pattern": "nosuch"}, []),
        ({"access": "nosuch"}, []),
    ],
)
def test_queries_of_the_history(history: InputHistory, query: dict[str, Any], numbers: list[int]) -> None:
    assert [number for _, number, _ in history.query(**query)] == numbers


def test_outputs_are_not_stored(history: InputHistory) -> None:
    assert history.query("tail", output=True, n=1) == [(0, 4, ("print(a)", None))]
