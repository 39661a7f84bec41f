"""What becomes of a question when the page or the kernel goes away: in no case runs what was not approved."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.async_api import expect

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


async def test_reload_while_waiting(open_notebook: Opener) -> None:
    notebook = await asking(open_notebook, "'next'")
    await notebook.save()
    await notebook.page.reload()
    card = await takes_clicks(notebook, 1)
    await card.get_by_role("button", name="Approve", exact=True).click()
    # No front end takes in what a cell from before the reload still shows. So the card becomes the record,
    await expect(notebook.output(1)).to_contain_text("✓ Approved: sandbox_write")
    await expect(notebook.output(1).get_by_role("button")).to_have_count(0)
    # and the next cell stores it.
    await notebook.run(2)
    await expect(notebook.output(2)).to_contain_text("✓ Approved sandbox_write")
    await expect(notebook.output(2)).to_contain_text("next")
    await notebook.idle()
    assert "✓ Approved" in str((await notebook.save())[2]["outputs"])
    assert written(notebook).read_text("utf-8") == "x"


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


@pytest.mark.slow
async def test_kernel_restart_while_waiting(open_notebook: Opener) -> None:
    notebook = await asking(open_notebook, "1 + 1")
    await notebook.page.evaluate(
        "() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()"
    )
    await notebook.idle()
    # Whether the page keeps the dead card or not: it cannot decide anything any more.
    approve = notebook.output(1).get_by_role("button", name="Approve", exact=True)
    if await approve.count():
        await approve.click(timeout=2000)
        await goes_on(notebook, 2, "2")
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
    await expect(second.output(1)).to_contain_text("✕ Denied: sandbox_write")
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
