"""The tutorials as somebody meets them: opened in JupyterLab, Run All, every card answered."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Locator, expect

from tests.e2e.cards import editing
from tests.e2e.conftest import Lab, NotebookPage, Opener
from tests.tutorials import TUTORIALS

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(240)]

Answer = Callable[[Locator], Awaitable[None]]
"""Answers the card that it is given."""

BY_NUMBER = {path.name[:2]: path for path in TUTORIALS}
QUICK = ("01", "02", "03")
"""The three that somebody meets first; the others are in the long run."""

_RUNNING = """() => {
  const cells = window.jupyterapp.shell.currentWidget.content.widgets;
  return cells.findIndex((cell) => cell.model.type === 'code' && cell.model.executionState === 'running');
}"""
_ANSWERED = "(card) => !card.isConnected || !card.querySelector('.aiso-approve:enabled')"
_DONE = """() => window.jupyterapp.shell.currentWidget.content.widgets.every(
  (cell) => cell.model.type !== 'code' || cell.model.executionCount !== null)"""


async def approve(card: Locator) -> None:
    await card.locator(".aiso-approve").click()


def deny(reason: str = "") -> Answer:
    async def answer(card: Locator) -> None:
        await card.get_by_label("Reason").fill(reason)
        await card.get_by_role("button", name="Deny").click()

    return answer


def edit(field: str, text: str) -> Answer:
    async def answer(card: Locator) -> None:
        await editing(card)
        box = card.get_by_label(field, exact=True)
        if not await box.is_visible():  # folded, because the diff shows it
            await card.locator("summary", has_text=field).click()
            await card.page.wait_for_timeout(500)  # what moves takes no clicks at once
        await box.fill(text)
        await card.locator(".aiso-approve").scroll_into_view_if_needed()
        await card.page.wait_for_timeout(500)
        await approve(card)

    return answer


async def approve_without_the_first(card: Locator) -> None:
    await card.get_by_role("checkbox").first.uncheck()
    await card.get_by_role("button", name="Approve selected").click()


async def remember_the_shape(card: Locator) -> None:
    await card.get_by_role("button", name="Approve and remember…").click()
    await card.get_by_role("radio", name="file writing only to report").check()
    await card.page.wait_for_timeout(400)
    await card.get_by_role("button", name="Approve and remember", exact=True).click()


async def call_to_read(card: Locator) -> None:
    await card.get_by_label("path", exact=True).fill("shopping.txt")
    await card.get_by_role("button", name="Call").click()


async def say_it(card: Locator) -> None:
    await card.get_by_label("Or answer in words").fill("Apples, bread and cheese.")
    await card.get_by_role("button", name="Answer").click()


ANSWERS: dict[str, Sequence[Answer]] = {
    "01": [approve],
    "02": [edit("times", "3")],
    "03": [
        approve,
        edit("content", "Roses are red.\n"),
        deny("keep the poem"),
        approve_without_the_first,
        remember_the_shape,
        deny(),
    ],
    "05": [call_to_read, say_it],
    "09": [approve, deny("Never delete the original."), approve],
}
SAID = {
    "01": ["✓ Approved", "3733.1"],
    "02": ["ROLLING WHEELS! ROLLING WHEELS! ROLLING WHEELS!"],
    "03": [
        "Created poem.txt (15 bytes)",
        "keep the poem",
        "Created report/fourth.md",
        "whole and unchanged: True",
    ],
    "04": ["still there: ['apple', 'pear']", "the combination is 1-2-3-4"],
    "05": ["You want to buy 6 things.", "Apples, bread and cheese.", "the budget of 4 steps is used up"],
    "06": ["Brought back: trees.txt", "with a fire break"],
    "07": ["All calls were the same.", "3 calls, 1 different."],
    "08": ["12.0", "nobody is here", "It is 285."],
    "09": ["Kepler's third law", "the original is untouched: True"],
}
"""What the saved notebook then says."""


async def card_of(notebook: NotebookPage) -> Locator | None:
    """The next card that can be answered, in view; None once all cells have run."""
    for _ in range(1200):
        if await notebook.page.evaluate(_DONE):
            return None
        running = await notebook.page.evaluate(_RUNNING)
        if running >= 0:
            card = (await notebook.show_cell(running)).locator(".aiso-card").last
            if await card.locator(".aiso-approve:enabled").count():
                await card.locator(".aiso-approve").first.scroll_into_view_if_needed()
                await notebook.page.wait_for_timeout(500)  # what comes into view takes no clicks at once
                return card
        await notebook.page.wait_for_timeout(100)
    raise TimeoutError("the notebook neither asks nor ends")


async def saved(notebook: NotebookPage) -> list[dict[str, Any]]:
    """The cells of the saved notebook, all run without an error."""
    await notebook.idle()
    cells = [cell for cell in await notebook.save() if cell["cell_type"] == "code"]
    for cell in cells:
        assert cell["execution_count"], cell["source"]
        for output in cell["outputs"]:
            assert output["output_type"] != "error", (cell["source"], output)
            assert output.get("name") != "stderr", (cell["source"], output)
            assert "application/vnd.jupyter.widget-view+json" not in output.get("data", {})
    return cells


async def look_through(notebook: NotebookPage, name: str, screenshots: Path) -> None:
    """One picture per three cells."""
    count = await notebook.page.evaluate("window.jupyterapp.shell.currentWidget.content.widgets.length")
    for index in range(0, count, 3):
        await notebook.page.evaluate(
            "(n) => window.jupyterapp.shell.currentWidget.content.scrollToItem(n, 'start')", index
        )
        await notebook.page.wait_for_timeout(200)
        await notebook.page.screenshot(path=screenshots / f"{name}-{index:02d}.png")


@pytest.mark.parametrize(
    "number", [pytest.param(n, marks=[] if n in QUICK else [pytest.mark.slow]) for n in sorted(BY_NUMBER)]
)
async def test_run_all_and_answer(
    open_notebook: Opener, lab: Lab, browser: Browser, screenshots: Path, number: str
) -> None:
    path = BY_NUMBER[number]
    notebook = await open_notebook(path, viewport={"width": 1100, "height": 900})
    await notebook.run_all()
    for place, answer in enumerate(ANSWERS.get(number, ()), 1):
        card = await card_of(notebook)
        assert card is not None, f"all cells have run, and card {place} never came"
        await notebook.page.screenshot(path=screenshots / f"{path.stem}-card-{place}.png")
        await card.screenshot(path=screenshots / f"{path.stem}-only-card-{place}.png")
        asked = await card.element_handle()
        await answer(card)
        await notebook.page.wait_for_function(_ANSWERED, arg=asked)
    assert await card_of(notebook) is None, "a card more than expected"
    stored = "\n".join(_texts(await saved(notebook)))
    for words in SAID.get(number, ()):
        assert words in stored, words
    assert notebook.foreign == []
    await look_through(notebook, path.stem, screenshots)
    if number == "07":  # what it exported is a notebook that opens
        exported = await lab.show(browser, notebook.path.parent / "workspace" / "fair-die.ipynb")
        await expect(exported.page.locator("blockquote p").first).to_have_text(
            "Is the die in throws.txt fair?"
        )
        await look_through(exported, "exported-run", screenshots)
        await exported.page.context.close()


def _texts(cells: list[dict[str, Any]]) -> list[str]:
    return [
        "".join(text)
        for cell in cells
        for output in cell["outputs"]
        for text in (output.get("text", ""), output.get("data", {}).get("text/plain", ""))
    ]


@pytest.mark.slow
@pytest.mark.parametrize("look", ["dark", "narrow"])
async def test_the_first_one_denied(open_notebook: Opener, screenshots: Path, look: str) -> None:
    path = BY_NUMBER["01"]
    notebook = await open_notebook(path, viewport={"width": 760 if look == "narrow" else 1100, "height": 900})
    if look == "dark":
        await notebook.theme("JupyterLab Dark")
    summary = notebook.path.parent / "workspace" / path.stem / "summary.md"
    await notebook.run_all()
    card = await card_of(notebook)
    assert card is not None
    assert not summary.exists()
    await notebook.page.screenshot(path=screenshots / f"{path.stem}-card-{look}.png")
    await deny("not this file")(card)
    assert await card_of(notebook) is None
    assert not summary.exists()
    stored = json.dumps(await saved(notebook), ensure_ascii=False)
    assert "✕ Denied" in stored
    assert "not this file" in stored
    await look_through(notebook, f"{path.stem}-{look}", screenshots)
