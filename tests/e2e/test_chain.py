"""What becomes of a question when the page or the kernel goes away: in no case runs what was not approved."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from playwright.async_api import Locator, expect

from tests.e2e.cards import a_card, goes_on, takes_clicks
from tests.e2e.conftest import Lab, NotebookPage, Opener

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(240)]

WRITE = "%call sandbox_write path={name} content=x --ask"


def written(notebook: NotebookPage, name: str = "a.txt") -> Path:
    """The file that the call of a test would write."""
    return notebook.path.parent / "workspace" / notebook.path.stem / name


async def asking(open_notebook: Opener, *more: str) -> NotebookPage:
    """A notebook with a card for a call that would write `a.txt`."""
    notebook = await open_notebook("%load_ext aisotools", WRITE.format(name="a.txt"), *more)
    await notebook.run(0)
    await notebook.idle()
    card = await a_card(notebook)
    await expect(card).to_contain_text("A new file.")
    return notebook


async def test_stop_while_waiting(open_notebook: Opener) -> None:
    notebook = await asking(open_notebook, "1 + 1")
    began_ms = await notebook.page.evaluate("performance.now()")
    await notebook.page.evaluate("() => window.jupyterapp.commands.execute('notebook:interrupt-kernel')")
    await expect(notebook.output(1)).to_contain_text("Stopped before an answer")
    assert await notebook.page.evaluate("performance.now()") - began_ms < 1500
    await notebook.idle()
    assert not written(notebook).exists()
    await goes_on(notebook, 2, "2")


@pytest.mark.slow
async def test_time_runs_out(open_notebook: Opener) -> None:
    short = "from aisotools import Session\nfrom aisotools.notebook.current import use_session\n"
    cells = (f"{short}use_session(Session(approval_timeout_s=1.5));", WRITE.format(name="a.txt"))
    notebook = await open_notebook("%load_ext aisotools", *cells)
    for index in range(3):
        await notebook.run(index)
    await expect(notebook.output(2)).to_contain_text("Not answered in time")
    await expect(notebook.output(2)).to_contain_text("not run")
    await notebook.idle()
    assert not written(notebook).exists()


PRINTS = """from IPython.display import display
for turn in range(3):
    print("turn", turn)
print("to stderr", file=__import__("sys").stderr)
handle = display({"text/plain": "before"}, raw=True, display_id="later")
handle.update({"text/plain": "after"}, raw=True)
6 * 7"""


async def test_reload_while_waiting(open_notebook: Opener) -> None:
    """The record takes the place of the card, also in the file, and nothing that the cell shows is lost."""
    cell = f"{WRITE.format(name='a.txt')}\n{PRINTS}"
    notebook = await open_notebook("%load_ext aisotools", cell, "'next'")
    await notebook.run(0)
    await notebook.idle()
    await a_card(notebook)
    await notebook.save()
    await notebook.page.reload()
    card = await takes_clicks(notebook, 1)
    await card.get_by_role("button", name="Approve", exact=True).click()
    output = notebook.output(1)
    await expect(output).to_contain_text("✓ Approved sandbox_write")
    await expect(output).to_contain_text("turn 2")
    await expect(output).to_contain_text("to stderr")
    await expect(output).to_contain_text("42")
    await expect(output).to_contain_text("after")
    await expect(output).not_to_contain_text("before")
    await expect(output.locator(".aiso-card")).to_have_count(0)
    await notebook.idle()
    assert written(notebook).read_text("utf-8") == "x"
    # Without a save by hand: the file held the question before.
    await notebook.page.wait_for_function("() => !window.jupyterapp.shell.currentWidget.context.model.dirty")
    await notebook.run(2)
    await expect(notebook.output(2)).to_contain_text("next")
    await expect(notebook.output(2)).not_to_contain_text("Approved")
    for _ in range(2):
        await notebook.page.reload()
        await expect(notebook.output(1)).to_contain_text("✓ Approved sandbox_write")
        await expect(notebook.output(1)).to_contain_text("turn 2")
        await expect(notebook.output(1)).not_to_contain_text("A question comes")


async def test_reload_after_the_answer_to_a_saved_question(open_notebook: Opener) -> None:
    """The file holds the card that waited; a page that is loaded later shows what became of it."""
    notebook = await asking(open_notebook)
    await notebook.save()
    waiting = notebook.path.read_text("utf-8")
    await notebook.output(1).get_by_role("button", name="Approve", exact=True).click()
    await expect(notebook.output(1)).to_contain_text("✓ Approved sandbox_write")
    await notebook.idle()
    assert "widget-view" in waiting
    for _ in range(2):
        await notebook.page.reload()
        await expect(notebook.output(1)).to_contain_text("✓ Approved sandbox_write")
        await expect(notebook.output(1)).not_to_contain_text("A question comes")
    await notebook.idle()
    outputs = str((await notebook.save())[1]["outputs"])
    assert "✓ Approved" in outputs
    assert "widget-view" not in outputs


@pytest.mark.slow
async def test_reload_without_a_save(open_notebook: Opener) -> None:
    """The page has lost the card and the kernel waits: nothing runs, and Stop ends it."""
    notebook = await asking(open_notebook, "1 + 1")
    await notebook.page.reload()
    await notebook.page.wait_for_selector(".jp-Notebook .jp-Cell")
    await expect(notebook.page.locator(".aiso-card")).to_have_count(0)
    await notebook.page.wait_for_function(
        "() => window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel"
    )
    assert not written(notebook).exists()
    await notebook.page.evaluate("() => window.jupyterapp.commands.execute('notebook:interrupt-kernel')")
    await notebook.idle()
    await goes_on(notebook, 2, "2")
    assert not written(notebook).exists()


RESTART = "() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()"
SHUT_DOWN = "() => window.jupyterapp.shell.currentWidget.sessionContext.shutdown()"


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "how", ["restarted", pytest.param("shut down", marks=SLOW), pytest.param("killed", marks=SLOW)]
)
async def test_kernel_goes_while_a_card_waits(open_notebook: Opener, how: str, screenshots: Path) -> None:
    """The card says so at once, has no button, and its record in the file says it too."""
    own_pid = "import os, pathlib\npathlib.Path('pid').write_text(str(os.getpid()))"
    notebook = await open_notebook("%load_ext aisotools", own_pid, WRITE.format(name="a.txt"), "1 + 1")
    await notebook.run(0)
    await notebook.run(1)
    await notebook.idle()
    await a_card(notebook, 2)
    if how == "killed":
        os.kill(int((notebook.path.parent / "pid").read_text("utf-8")), signal.SIGKILL)
    else:
        await notebook.page.evaluate(RESTART if how == "restarted" else SHUT_DOWN)
    output = notebook.output(2)
    await expect(output).to_contain_text("This question is gone: the kernel was restarted or has ended.")
    await expect(output).to_contain_text("It was not answered.")
    await expect(output.get_by_role("button")).to_have_count(0)
    await output.screenshot(path=screenshots / f"gone-{how}.png")
    assert not written(notebook).exists()
    outputs = str((await notebook.save())[2]["outputs"])
    assert "This question is gone" in outputs
    assert "widget-view" not in outputs
    if how == "restarted":
        await notebook.idle()
        await goes_on(notebook, 3, "2")


async def approved_while_busy(open_notebook: Opener, busy_s: int) -> tuple[NotebookPage, Locator]:
    """A notebook and its card, on which Approve was clicked while the loop of the kernel is held up."""
    busy = f"import asyncio, time\nasyncio.get_running_loop().call_later(2, time.sleep, {busy_s})\n"
    notebook = await open_notebook("%load_ext aisotools", busy + WRITE.format(name="a.txt"))
    await notebook.run(0)
    await notebook.idle()
    card = await a_card(notebook)
    await notebook.page.wait_for_timeout(2_000)  # until it is
    await card.get_by_role("button", name="Approve", exact=True).click()
    await expect(card.get_by_role("status")).to_have_text("Sending…")
    return notebook, card


async def test_a_click_is_not_called_approved_before_the_kernel_has_confirmed(
    open_notebook: Opener, screenshots: Path
) -> None:
    """A kernel that is busy: first the click is being sent, then there is no answer, then there is."""
    notebook, card = await approved_while_busy(open_notebook, 5)
    await expect(card).not_to_contain_text("Approved")
    await expect(card.get_by_role("status")).to_contain_text("No answer yet")
    await expect(card.get_by_role("button", name="Approve", exact=True)).to_be_disabled()
    await expect(card).not_to_contain_text("Approved")
    await notebook.output(1).screenshot(path=screenshots / "no-answer-yet.png")
    assert not written(notebook).exists()
    await expect(notebook.output(1)).to_contain_text("✓ Approved sandbox_write")
    await notebook.idle()
    assert written(notebook).exists()


@pytest.mark.slow
async def test_a_click_that_was_sent_when_the_kernel_ended_is_not_called_approved(
    open_notebook: Opener,
) -> None:
    notebook, _ = await approved_while_busy(open_notebook, 60)
    await notebook.page.evaluate(RESTART)
    await expect(notebook.output(1)).to_contain_text("the kernel did not confirm it")
    await expect(notebook.output(1)).not_to_contain_text("Approved")
    assert not written(notebook).exists()


@pytest.mark.slow
async def test_run_all(open_notebook: Opener) -> None:
    """The cells behind a question wait for its answer, and each asks for itself."""
    cells = [WRITE.format(name=name) for name in ("a.txt", "b.txt")]
    notebook = await open_notebook("%load_ext aisotools", *cells, "print('the end')")
    await notebook.run_all()
    card = await takes_clicks(notebook, 1)
    await expect(notebook.output(2).locator(".aiso-card")).to_have_count(0)
    await card.get_by_role("button", name="Deny").click()
    card = await takes_clicks(notebook, 2)
    assert not written(notebook).exists()
    assert await notebook.output(3).inner_text() == ""
    await card.get_by_role("button", name="Approve", exact=True).click()
    await expect(notebook.output(3)).to_contain_text("the end")
    assert not written(notebook).exists()
    assert written(notebook, "b.txt").exists()


@pytest.mark.slow
async def test_a_second_window(open_notebook: Opener, lab: Lab) -> None:
    """Both windows show the card; the first answer wins, and the other window is told."""
    notebook = await asking(open_notebook)
    await notebook.save()
    second = await lab.second_window(notebook)
    card = await takes_clicks(second, 1)
    await card.get_by_role("button", name="Deny").click()
    await expect(notebook.output(1)).to_contain_text("✕ Denied sandbox_write")
    await expect(second.output(1)).to_contain_text("✕ Denied sandbox_write")
    await expect(second.output(1).get_by_role("button")).to_have_count(0)
    assert not written(notebook).exists()


async def test_notebook_7(open_notebook: Opener, screenshots: Path) -> None:
    notebook = await open_notebook(
        "%load_ext aisotools", WRITE.format(name="a.txt"), WRITE.format(name="b.txt"), app="notebooks"
    )
    await notebook.run(0)
    await notebook.idle()
    card = await a_card(notebook)
    await notebook.page.screenshot(path=screenshots / "notebook-7.png")
    await card.get_by_role("button", name="Approve", exact=True).click()
    await expect(notebook.output(1)).to_contain_text("output of sandbox_write")
    card = await a_card(notebook, 2)
    await card.focus()
    await notebook.page.keyboard.press("Alt+d")
    await expect(notebook.output(2)).to_contain_text("not run: it was not allowed")
    assert written(notebook).exists()
    assert not written(notebook, "b.txt").exists()
    assert notebook.foreign == []
