"""A question that waits finds the person: scrolled to, counted in the title, a button that leads to it."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.async_api import expect

from tests.e2e.cards import ASK, ready, takes_clicks
from tests.e2e.conftest import Lab, NotebookPage, Opener

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(180)]

LONG = "for n in range(40):\n    print('line', n)"
MARK = "for n in range(60):\n    print('output', n)"
IN_VIEW = """(node) => {
  const box = node.getBoundingClientRect();
  return box.top >= 0 && box.bottom <= window.innerHeight;
}"""


async def scroll(notebook: NotebookPage, pixels: int) -> None:
    """Turn the wheel above the notebook, as a person does."""
    box = await notebook.page.locator(".jp-Notebook").bounding_box()
    assert box is not None
    await notebook.page.mouse.move(box["x"] + 300, box["y"] + 300)
    await notebook.page.mouse.wheel(0, pixels)


async def asked_later(open_notebook: Opener) -> NotebookPage:
    """A long notebook of which the last cell, the seventh, asks in a few seconds.

    A first card has brought the script that sees a person scroll and type.
    """
    notebook = await ready(open_notebook, ASK, *[LONG] * 5, f"import asyncio\nawait asyncio.sleep(3)\n{ASK}")
    await notebook.run(1)
    card = await takes_clicks(notebook, 1)
    await card.get_by_role("button", name="Deny").click()
    await notebook.idle()
    for index in range(2, 7):
        await notebook.run(index)
    await notebook.idle()
    await notebook.run(7)
    return notebook


async def test_run_all_scrolls_to_the_card_and_the_title_counts(
    open_notebook: Opener, screenshots: Path
) -> None:
    """Run All leaves the page at the last cell; the card of a cell in the middle is not in view there."""
    notebook = await ready(open_notebook, LONG, LONG, f"{MARK}\n{ASK}", *[LONG] * 6)
    bare = await notebook.page.title()
    await notebook.run_all()
    card = await takes_clicks(notebook, 3)
    assert await card.locator(".aiso-approve").evaluate(IN_VIEW)
    assert await notebook.page.title() == f"(1) {bare}"
    await expect(notebook.page.locator(".aiso-waiting")).to_be_hidden()
    await notebook.page.screenshot(path=screenshots / "waiting-in-view.png")
    await card.get_by_role("button", name="Approve", exact=True).click()
    await expect(notebook.output(3)).to_contain_text("-> approve")
    await notebook.page.wait_for_function("(bare) => document.title === bare", arg=bare)


@pytest.mark.slow
async def test_scrolls_to_a_card_without_being_brought_there(open_notebook: Opener) -> None:
    """As above, but nothing of the test itself scrolls."""
    notebook = await ready(open_notebook, LONG, f"{MARK}\n{ASK}", *[LONG] * 6)
    await notebook.run_all()
    approve = notebook.output(2).locator(".aiso-approve")
    await approve.wait_for()
    await expect(approve).to_be_in_viewport()


async def test_a_person_who_has_scrolled_is_left_alone_and_a_button_leads_to_the_card(
    open_notebook: Opener, screenshots: Path
) -> None:
    notebook = await asked_later(open_notebook)
    await notebook.page.wait_for_timeout(300)
    await scroll(notebook, -20_000)
    button = notebook.page.locator(".aiso-waiting")
    await expect(button).to_be_visible()
    await expect(button).to_have_text("1 waiting ↓")
    await expect(notebook.output(7).locator(".aiso-approve")).not_to_be_in_viewport()
    assert (await notebook.page.title()).startswith("(1) ")
    await notebook.page.screenshot(path=screenshots / "waiting-out-of-view.png")
    await button.click()
    await expect(notebook.output(7).locator(".aiso-approve")).to_be_in_viewport()
    await expect(button).to_be_hidden()
    await notebook.page.wait_for_timeout(400)
    await notebook.page.keyboard.press("Alt+d")  # the card has the focus
    await expect(notebook.output(7)).to_contain_text("-> deny")
    assert not (await notebook.page.title()).startswith("(")


@pytest.mark.slow
async def test_a_person_who_types_is_left_alone(open_notebook: Opener) -> None:
    notebook = await asked_later(open_notebook)
    await notebook.show_cell(0)
    await notebook.page.locator(".jp-Cell .cm-content").first.click()
    await notebook.page.keyboard.type("# more")
    button = notebook.page.locator(".aiso-waiting")
    await expect(button).to_have_text("1 waiting ↓")
    await expect(notebook.output(7).locator(".aiso-approve")).not_to_be_in_viewport()
    await button.click()
    await expect(notebook.output(7).locator(".aiso-approve")).to_be_in_viewport()
    await notebook.page.wait_for_timeout(400)
    await notebook.page.keyboard.press("Alt+d")
    await expect(notebook.output(7)).to_contain_text("-> deny")


@pytest.mark.slow
async def test_a_card_in_another_tab_is_named(open_notebook: Opener, lab: Lab, screenshots: Path) -> None:
    notebook = await ready(open_notebook, ASK)
    await notebook.run(1)
    await takes_clicks(notebook, 1)
    other = notebook.path.with_name(f"other-{notebook.path.name}")
    other.write_text(notebook.path.read_text("utf-8"), "utf-8")
    await notebook.page.evaluate(
        "(path) => window.jupyterapp.commands.execute('docmanager:open', {path})", other.name
    )
    button = notebook.page.locator(".aiso-waiting")
    await expect(button).to_have_text(f"1 waiting in {notebook.path.name}")
    await expect(button).to_be_disabled()
    await notebook.page.wait_for_function("() => document.title.startsWith('(1) ')")
    await notebook.page.screenshot(path=screenshots / "waiting-in-another-tab.png")


@pytest.mark.slow
async def test_a_restart_ends_the_count(open_notebook: Opener) -> None:
    notebook = await ready(open_notebook, ASK)
    await notebook.run(1)
    await takes_clicks(notebook, 1)
    assert (await notebook.page.title()).startswith("(1) ")
    await notebook.page.evaluate(
        "() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()"
    )
    await notebook.page.wait_for_function("() => !document.title.startsWith('(')")


NOTES = """() => {
  window.notes = [];
  window.Notification = class {
    static permission = 'granted';
    static requestPermission() { window.notes.push('permission'); return Promise.resolve('granted'); }
    constructor(title, options) { window.notes.push(`${title}: ${options.body}`); }
  };
  window.AudioContext = class {
    destination = {}; currentTime = 0;
    createOscillator() {
      return {frequency: {}, connect: (x) => x, start: () => window.notes.push('tone'), stop() {}};
    }
    createGain() { return {gain: {}, connect: (x) => x}; }
  };
  Object.defineProperty(document, 'hidden', {get: () => window.looksElsewhere === true});
}"""


@pytest.mark.slow
async def test_notifications_are_what_the_person_has_asked_for(open_notebook: Opener) -> None:
    call = "%call sandbox_write path=a.txt content=x --ask"
    cells = ["%load_ext aisotools", call, "%config AisoTools.notify = ['desktop', 'sound']", call, call]
    notebook = await open_notebook(*cells)
    await notebook.page.evaluate(NOTES)
    await notebook.run(0)

    async def deny(index: int) -> None:
        await notebook.run(index)
        card = await takes_clicks(notebook, index)
        await card.get_by_role("button", name="Deny").click()
        await expect(notebook.output(index)).to_contain_text("not run")

    await deny(1)
    assert await notebook.page.evaluate("window.notes") == []
    await notebook.run(2)
    await deny(3)
    assert await notebook.page.evaluate("window.notes") == ["tone"], "the person looks at the card"
    await notebook.page.evaluate("() => { window.notes = []; window.looksElsewhere = true; }")
    await deny(4)
    tone, note = await notebook.page.evaluate("window.notes")
    assert tone == "tone"
    assert note == f"A question waits: Create a.txt · {notebook.path.name}"


@pytest.mark.slow
async def test_the_permission_for_notifications_is_asked_for_at_a_click(open_notebook: Opener) -> None:
    call = "%call sandbox_write path=a.txt content=x --ask"
    notebook = await open_notebook("%load_ext aisotools", "%config AisoTools.notify = ['desktop']", call)
    await notebook.page.evaluate(NOTES)
    await notebook.page.evaluate("() => { window.Notification.permission = 'default'; }")
    for index in (0, 1, 2):
        await notebook.run(index)
    card = await takes_clicks(notebook, 2)
    assert await notebook.page.evaluate("window.notes") == []
    await card.get_by_role("button", name="Deny").click()
    await expect(notebook.output(2)).to_contain_text("not run")
    assert await notebook.page.evaluate("window.notes") == ["permission"]
