"""A model's own question: chosen or typed in the running cell, by mouse and by keyboard."""

from __future__ import annotations

import pytest
from playwright.async_api import expect

from tests.e2e.cards import a_card, ready, takes_clicks
from tests.e2e.conftest import Opener

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(180),
]

ASK_USER = """
from aisotools import current_session
question = {"question": "Which <b>file</b>?", "choices": ["data.csv", "data-2.csv"]}
result = await current_session().call("ask_user", question, origin="model")
print("->", result.content)
"""


async def test_a_choice_through_the_gate(open_notebook: Opener) -> None:
    notebook = await open_notebook("%load_ext aisotools", ASK_USER)
    await notebook.run(0)
    await notebook.idle()
    card = await a_card(notebook)
    await expect(card).to_contain_text("Which <b>file</b>?")
    await expect(card.get_by_role("button")).to_have_count(3)
    await card.get_by_role("button", name="data-2.csv").click()
    await expect(notebook.output(1)).to_contain_text("-> data-2.csv")
    await expect(notebook.output(1)).to_contain_text("✓ Answered")
    await expect(notebook.output(1).locator(".aiso-card")).to_have_count(0)
    await notebook.idle()
    shown = [o["data"] for o in (await notebook.save())[1]["outputs"] if o["output_type"] == "display_data"]
    assert [data.keys() for data in shown] == [{"text/html", "text/plain"}]
    assert notebook.foreign == []
    assert notebook.dialogs == []


async def test_the_keyboard_alone(open_notebook: Opener) -> None:
    notebook = await ready(
        open_notebook,
        "await ask_user('Which?', 'a', 'b', 'c')",
        "await ask_user('How?')",
        "await ask_user('Why?')",
    )
    card = await a_card(notebook)
    assert not await card.evaluate("node => node.contains(document.activeElement)"), "it took the focus"
    await card.focus()
    for key in ("Tab", "ArrowDown", "ArrowDown", "ArrowUp", "Enter"):
        await notebook.page.keyboard.press(key)
    await expect(notebook.output(1)).to_contain_text("-> 'b'")
    card = await a_card(notebook, 2)
    await expect(card.get_by_role("button", name="Answer", exact=True)).to_be_disabled()
    await card.locator("textarea").focus()
    await notebook.page.keyboard.press("Enter")
    await notebook.page.keyboard.type("by train")
    await notebook.page.keyboard.press("Shift+Enter")
    await notebook.page.keyboard.type("and boat")
    await notebook.page.keyboard.press("Enter")
    await expect(notebook.output(2)).to_contain_text("-> 'by train\\nand boat'")
    card = await a_card(notebook, 3)
    await card.focus()
    await notebook.page.keyboard.press("Alt+d")
    await expect(notebook.output(3)).to_contain_text("-> None")
    await expect(notebook.output(3)).to_contain_text("No answer was given")


async def test_after_a_reload(open_notebook: Opener) -> None:
    notebook = await ready(open_notebook, "await ask_user('Which?', 'a', 'b')")
    await a_card(notebook)
    await notebook.save()
    await notebook.page.reload()
    card = await takes_clicks(notebook, 1)
    await card.get_by_role("button", name="a", exact=True).click()
    await expect(notebook.output(1)).to_contain_text("✓ Answered")
    await expect(notebook.output(1).get_by_role("button")).to_have_count(0)


async def test_without_a_card_an_input_box_asks(open_notebook: Opener) -> None:
    notebook = await ready(
        open_notebook,
        "i = UserQuestion(id='i', text='Which?', choices=('a', 'b'))\n"
        "print('->', repr(await NotebookApprover(hello_s=0).ask_user(i)))",
    )
    output = await notebook.run(1)
    box = output.locator("input.jp-Stdin-input")
    await box.wait_for()
    await expect(output.locator(".aiso-card")).to_have_count(0)
    await box.fill("2")
    await box.press("Enter")
    await expect(output).to_contain_text("-> 'b'")
