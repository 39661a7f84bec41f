"""Being the model, stepping through a run and choosing when the model cannot, in a real page."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.async_api import Locator, expect

from tests.e2e.conftest import NotebookPage, Opener

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(240),
]

SETUP = """
%load_ext aisotools
from aisotools import Effect, ScriptedModel, current_session, tool
from aisotools.core.messages import CallPart, Finished, Proposal, TextDelta
session = current_session()
await session.start()
(session.workspace / "letter.txt").write_text("The answer is 42.")

@session.registry.register
@tool(effect=Effect.READ_ONLY)
def area(width: float, height: float, unit: str = "cm") -> float:
    "Area of a rectangle."
    return width * height

class Unsure:
    name = "unsure"
    async def request(self, messages, tools, *, instructions=""):
        if messages[-1].role == "tool":
            yield TextDelta("It is " + messages[-1].content)
            yield Finished("stop")
            return
        yield TextDelta("Which of these?")
        yield Proposal(tuple(CallPart("", "area", {"width": w, "height": 2}) for w in (1, 2, 3)))
        yield Finished("undecided")

unsure = Unsure()
scripted = ScriptedModel([("area", {"width": 2, "height": 3}), "It is 6."])
"""


async def ready(open_notebook: Opener, *cells: str, **options: object) -> NotebookPage:
    notebook = await open_notebook(SETUP, *cells, **options)
    await notebook.run(0)
    await notebook.idle()
    return notebook


async def form_card(notebook: NotebookPage, index: int, title: str) -> Locator:
    """The card with that title, once it takes clicks."""
    card = notebook.output(index).locator(".aiso-card").filter(has_text=title)
    await expect(card.locator(".aiso-deny")).to_be_visible(timeout=30_000)
    await card.locator(".aiso-deny").scroll_into_view_if_needed()
    await notebook.page.wait_for_timeout(450)
    overflow = await card.evaluate("node => node.scrollWidth - node.clientWidth")
    assert overflow <= 0, "it is wider than its place"
    return card


BE_THE_MODEL = "%%agent -m human -t file,area -o r\nList the files, read one, and tell me the answer."


async def test_three_steps_as_the_model(open_notebook: Opener, screenshots: Path) -> None:
    notebook = await ready(open_notebook, BE_THE_MODEL, "print('->', r.outcome, r.text)")
    await notebook.run(1)
    card = await form_card(notebook, 1, "You are the model")
    await notebook.output(1).screenshot(path=screenshots / "human-first.png")
    await card.get_by_label("operation").select_option('"list"')
    await card.get_by_role("button", name="Call").click()
    card = await form_card(notebook, 1, "letter.txt")
    await card.get_by_label("operation").select_option('"read"')
    await card.get_by_label("path").fill("letter.txt")
    await notebook.output(1).screenshot(path=screenshots / "human-second.png")
    await card.focus()
    await notebook.page.keyboard.press("Alt+a")
    card = await form_card(notebook, 1, "The answer is 42.")
    await card.get_by_role("button", name="Answer").click()
    await expect(card.get_by_role("alert").filter(has_text="Write the answer first.")).to_be_visible()
    await card.get_by_label("Or answer in words").fill("It is 42.")
    await card.get_by_role("button", name="Answer").click()
    await notebook.idle()
    await notebook.output(1).screenshot(path=screenshots / "human-record.png")
    await notebook.run(2)
    await expect(notebook.output(2)).to_contain_text("-> answered It is 42.")
    assert notebook.foreign == []


async def test_wrong_arguments_are_reported_on_the_form(open_notebook: Opener, screenshots: Path) -> None:
    notebook = await ready(
        open_notebook,
        "%%agent -m human -t area -o r\nHow large is 2 by 3?",
        "print('->', r.outcome, r.calls)",
    )
    await notebook.run(1)
    card = await form_card(notebook, 1, "You are the model")
    await card.get_by_label("width", exact=True).fill("2")
    await card.get_by_role("button", name="Call").click()
    await expect(card.get_by_role("alert").filter(has_text="'height' of area is required")).to_be_visible()
    await notebook.output(1).screenshot(path=screenshots / "human-problem.png")
    await card.get_by_label("height", exact=True).fill("three")
    await card.get_by_role("button", name="Call").click()
    await expect(card.get_by_role("alert").filter(has_text="must be a number")).to_be_visible()
    await card.get_by_label("height", exact=True).fill("3")
    await card.get_by_role("button", name="Call").click()
    card = await form_card(notebook, 1, "6.0")
    await card.get_by_role("button", name="Stop").click()
    await notebook.idle()
    await notebook.run(2)
    await expect(notebook.output(2)).to_contain_text("-> failed 1")


async def test_step_by_step(open_notebook: Opener, screenshots: Path) -> None:
    notebook = await ready(
        open_notebook, "%%agent -m scripted --step -o r\nHow large?", "print('->', r.outcome, r.text)"
    )
    await notebook.theme("JupyterLab Dark")
    await notebook.run(1)
    card = await form_card(notebook, 1, "the model is about to be asked")
    await notebook.output(1).screenshot(path=screenshots / "step-request.png")
    await card.get_by_role("button", name="Continue").click()
    card = await form_card(notebook, 1, "area is about to be called")
    await card.get_by_label("width", exact=True).fill("20")
    await notebook.output(1).screenshot(path=screenshots / "step-call.png")
    await card.get_by_role("button", name="Continue").click()
    card = await form_card(notebook, 1, "Step 2")
    await expect(card).to_contain_text("60.0")
    await card.get_by_label("Instead").fill("It is sixty.")
    await card.get_by_role("button", name="Answer myself").click()
    await notebook.idle()
    await notebook.run(2)
    await expect(notebook.output(2)).to_contain_text("-> answered It is sixty.")


async def test_unsure_offers_buttons(open_notebook: Opener, screenshots: Path) -> None:
    notebook = await ready(
        open_notebook, "%%agent -m unsure -o r\nHow large?", "print('->', r.outcome, r.text)"
    )
    await notebook.run(1)
    card = await form_card(notebook, 1, "The model is not sure")
    await notebook.output(1).screenshot(path=screenshots / "chooser.png")
    await card.get_by_role("button", name="2. area").click()
    await notebook.idle()
    await notebook.run(2)
    await expect(notebook.output(2)).to_contain_text("-> answered It is 4.0")
