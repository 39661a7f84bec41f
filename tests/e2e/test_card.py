from __future__ import annotations

from pathlib import Path

import pytest
from playwright.async_api import expect

from tests.e2e.cards import ASK, LINKS, MANY, a_card, editing, ready
from tests.e2e.conftest import Opener

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(180)]


async def test_approve_while_the_cell_runs(open_notebook: Opener) -> None:
    notebook = await ready(open_notebook, ASK)
    card = await a_card(notebook)
    await expect(card.get_by_role("group")).to_have_count(0)
    await expect(card).to_have_attribute("role", "group")
    await card.get_by_role("button", name="Approve", exact=True).click()
    await expect(notebook.output(1)).to_contain_text("-> approve None ''")
    await expect(notebook.output(1)).to_contain_text("✓ Approved sandbox_bash")
    await expect(notebook.output(1).locator(".aiso-card")).to_have_count(0)
    await notebook.idle()
    outputs = (await notebook.save())[1]["outputs"]
    (shown,) = [output["data"] for output in outputs if output["output_type"] == "display_data"]
    assert shown.keys() == {"text/html", "text/plain"}
    assert "widgets" not in notebook.path.read_text("utf-8")
    assert notebook.foreign == []


async def test_links_are_shown_with_where_they_lead(open_notebook: Opener, screenshots: Path) -> None:
    notebook = await ready(open_notebook, LINKS)
    card = await a_card(notebook)
    shown = card.locator(".aiso-finding", has_text="links")
    await expect(shown).to_contain_text("data \u2192 ../elsewhere/secret")
    await expect(shown).to_contain_text("a\\u202etxt.b \u2192 x\\u001b[31m")
    await expect(shown).to_contain_text("140 characters ...]")
    await expect(shown).to_contain_text('\u2192 "c \u2192 d"')
    assert await card.evaluate("node => node.scrollWidth - node.clientWidth") <= 0
    await notebook.output(1).screenshot(path=screenshots / "card-links.png")
    await card.get_by_role("button", name="Approve", exact=True).click()
    await expect(notebook.output(1)).to_contain_text("links: data \u2192 ../elsewhere/secret")
    await notebook.output(1).screenshot(path=screenshots / "record-links.png")


@pytest.mark.slow
async def test_deny_with_a_reason(open_notebook: Opener) -> None:
    notebook = await ready(open_notebook, ASK)
    card = await a_card(notebook)
    await card.get_by_label("Reason").fill("use ninja <b>instead</b>")
    await card.get_by_role("button", name="Deny").click()
    await expect(notebook.output(1)).to_contain_text("-> deny None 'use ninja <b>instead</b>'")
    await expect(notebook.output(1)).to_contain_text("reason: use ninja <b>instead</b>")


REMEMBER = "await ask(command='make -j2 all', preview=OFFER)"


@pytest.mark.slow
async def test_approve_and_remember(open_notebook: Opener, screenshots: Path) -> None:
    notebook = await ready(open_notebook, REMEMBER, REMEMBER)
    card = await a_card(notebook)
    await card.get_by_role("button", name="Approve and remember…").click()
    offered = card.get_by_role("radio", name="sandbox_bash running only make, tail, writing only to build")
    await expect(offered).to_be_visible()
    await editing(card)
    await card.get_by_label("command", exact=True).fill("rm -r build")
    await expect(offered).to_be_hidden()
    await expect(card.get_by_role("button", name="Approve and remember…")).to_be_disabled()
    await card.get_by_label("command", exact=True).fill("make -j2 all")
    await notebook.page.wait_for_timeout(400)
    await card.get_by_role("button", name="Approve and remember…").click()
    await offered.check()
    await notebook.page.wait_for_timeout(400)
    await notebook.output(1).screenshot(path=screenshots / "remember.png")
    await card.get_by_role("button", name="Approve and remember", exact=True).click()
    await expect(notebook.output(1)).to_contain_text("-> approve None '' shape")
    await expect(notebook.output(1)).to_contain_text("not asked again for sandbox_bash running only make")
    card = await a_card(notebook, 2)
    await card.focus()
    await notebook.page.keyboard.press("Alt+s")
    await notebook.page.keyboard.press("Alt+s")
    await expect(notebook.output(2)).not_to_contain_text("->")  # nobody can have read the words yet
    await notebook.page.keyboard.press("ArrowDown")
    await notebook.page.wait_for_timeout(400)
    await notebook.page.keyboard.press("Alt+s")
    await expect(notebook.output(2)).to_contain_text("-> approve None '' shape")


async def test_several_calls_on_one_card(open_notebook: Opener, screenshots: Path) -> None:
    notebook = await ready(open_notebook, MANY)
    card = await a_card(notebook)
    assert await card.get_by_role("checkbox").evaluate_all("all => all.map((box) => box.checked)") == [
        True,
        True,
        False,
        False,
    ]
    await card.locator("summary").nth(2).click()
    await expect(card).to_contain_text('shutil.rmtree("build")')
    await expect(card).not_to_contain_text("hunter2")
    await card.get_by_role("checkbox").nth(0).uncheck()
    await card.get_by_role("checkbox").nth(2).check()
    await notebook.output(1).screenshot(path=screenshots / "batch.png")
    await card.get_by_label("Reason").fill("make is broken")
    await card.get_by_role("button", name="Approve selected (2)").click()
    await expect(notebook.output(1)).to_contain_text(
        "-> deny 'make is broken'\n-> approve ''\n-> approve ''\n-> deny 'make is broken'"
    )
    await expect(notebook.output(1)).to_contain_text("2 of 4 calls approved")
    await expect(notebook.output(1)).not_to_contain_text("hunter2")
    await notebook.output(1).screenshot(path=screenshots / "batch-record.png")


async def test_edit_then_approve(open_notebook: Opener) -> None:
    notebook = await ready(open_notebook, ASK)
    card = await a_card(notebook)
    await editing(card)
    command, timeout = card.get_by_label("command", exact=True), card.get_by_label("timeout", exact=True)
    await command.fill("make check")
    await expect(card.locator(".aiso-was:visible")).to_contain_text("make -j2 all")
    await timeout.fill("soon")
    await expect(card.get_by_role("alert").filter(has_text="must be a number")).to_be_visible()
    await timeout.fill("0")
    await expect(card.get_by_role("alert").filter(has_text="at least 1")).to_be_visible()
    await card.get_by_role("button", name="Approve edited").click()
    await expect(timeout).to_be_focused()
    await expect(notebook.output(1)).not_to_contain_text("->")
    await timeout.fill("5")
    await card.get_by_role("button", name="Approve edited").click()
    await expect(notebook.output(1)).to_contain_text("-> approve {'command': 'make check', 'timeout': 5} ''")
    await expect(notebook.output(1)).to_contain_text("timeout: 30000 → 5")


@pytest.mark.slow
async def test_all_arguments_as_json(open_notebook: Opener) -> None:
    notebook = await ready(open_notebook, ASK)
    card = await a_card(notebook)
    await editing(card)
    await card.get_by_label("timeout", exact=True).fill("5")
    await card.get_by_role("button", name="Edit as JSON").click()
    whole = card.get_by_label("arguments", exact=True)
    assert '"timeout": 5' in await whole.input_value()
    await whole.fill('{"command": "make", "timeout": 5, "timeout": 6}')
    await expect(card.get_by_role("button", name="Back to fields")).to_be_disabled()  # edits are not lost
    await card.get_by_role("button", name="Approve edited").click()
    await expect(card.get_by_role("alert").filter(has_text="occurs twice")).to_be_visible()
    await whole.fill('{"command": "make", "timeout": 999999999}')
    await card.get_by_role("button", name="Approve edited").click()
    await expect(card.get_by_role("alert").filter(has_text="timeout")).to_be_visible()
    await whole.fill('{"command": "make", "workdir": "src"}')
    await card.get_by_role("button", name="Approve edited").click()
    await expect(notebook.output(1)).to_contain_text("-> approve {'command': 'make', 'workdir': 'src'} ''")


@pytest.mark.slow
async def test_the_shown_text_is_the_text_of_the_field(open_notebook: Opener) -> None:
    notebook = await ready(open_notebook, ASK)
    card = await a_card(notebook)
    await editing(card)
    command = card.get_by_label("command", exact=True)
    same = "(area) => area.previousSibling.textContent === area.value + '\\n'"
    boxes = """(area) => { const [a, b] = [area, area.previousSibling].map((n) => n.getBoundingClientRect());
      return [a.width - b.width, a.height - b.height, area.scrollHeight - area.clientHeight]; }"""
    for text in (None, "x" * 3000, "a\tb\n" * 60, "wide 文字 " * 90):
        if text is not None:
            await command.fill(text)
        assert await command.evaluate(same)
        assert [abs(n) <= 2 for n in await command.evaluate(boxes)] == [True] * 3, text
    await card.get_by_role("button", name="Put back").click()
    await expect(card.locator(".aiso-c-command").first).to_have_text("make")


@pytest.mark.slow
@pytest.mark.parametrize(("key", "outcome"), [("Alt+a", "approve"), ("Alt+d", "deny")])
async def test_keyboard(open_notebook: Opener, key: str, outcome: str) -> None:
    notebook = await ready(open_notebook, ASK, "1")
    card = await a_card(notebook)
    assert not await card.evaluate("node => node.contains(document.activeElement)"), (
        "it must not take the focus"
    )
    await card.focus()
    for stray in ("a", "d", "d", "b", "x", "Enter", "y"):
        await notebook.page.keyboard.press(stray)
    assert await notebook.page.locator(".jp-CodeCell").count() == 3, "the notebook took the keys"
    await expect(notebook.output(1)).not_to_contain_text("->")
    await notebook.page.keyboard.press(key)
    await expect(notebook.output(1)).to_contain_text(f"-> {outcome} None ''")


@pytest.mark.slow
async def test_tab_order_ends_at_the_buttons(open_notebook: Opener) -> None:
    notebook = await ready(open_notebook, ASK)
    card = await a_card(notebook)
    await card.focus()
    reached = []
    for _ in range(5):
        await notebook.page.keyboard.press("Tab")
        reached.append(await notebook.page.evaluate("document.activeElement.className"))
    assert [name.split()[-1] for name in reached] == [
        "aiso-text",
        "aiso-small",
        "aiso-reason",
        "aiso-deny",
        "aiso-approve",
    ]


@pytest.mark.slow
async def test_an_early_click_does_not_decide(open_notebook: Opener) -> None:
    notebook = await ready(open_notebook, ASK)
    await notebook.page.evaluate(
        """() => new MutationObserver(() => {
             const button = document.querySelector('.aiso-approve');
             if (button && !window.early) { window.early = true; button.click(); }
           }).observe(document.body, {childList: true, subtree: true})"""
    )
    card = await a_card(notebook)
    assert await notebook.page.evaluate("window.early")
    await expect(card.get_by_role("button", name="Approve", exact=True)).to_be_enabled()
    await card.get_by_role("button", name="Deny").click()
    await expect(notebook.output(1)).to_contain_text("-> deny")


@pytest.mark.slow
async def test_without_a_card_an_input_box_asks(open_notebook: Opener, screenshots: Path) -> None:
    notebook = await ready(open_notebook, "await ask(hello_s=0, command='make', timeout=5)")
    output = await notebook.run(1)
    box = output.locator("input.jp-Stdin-input")
    await box.wait_for()
    await expect(output).to_contain_text("Answer in the box below.")
    await expect(output.locator(".aiso-card")).to_have_count(0)
    await output.screenshot(path=screenshots / "input-box.png")
    await box.fill("too broad")
    await box.press("Enter")
    await expect(output).to_contain_text("-> deny None 'too broad'")


@pytest.mark.slow
async def test_through_the_gate(open_notebook: Opener, screenshots: Path) -> None:
    call = "%call sandbox_bash command='echo hello > a.txt && cat a.txt' --ask"
    notebook = await open_notebook("%load_ext aisotools", call, call)
    await notebook.run(0)
    card = await a_card(notebook)
    await card.get_by_role("button", name="Approve", exact=True).click()
    await expect(notebook.output(1)).to_contain_text("output of sandbox_bash")
    await expect(notebook.output(1)).to_contain_text("hello")
    card = await a_card(notebook, 2)
    await card.get_by_label("Reason").fill("not again")
    await card.get_by_role("button", name="Deny").click()
    await expect(notebook.output(2)).to_contain_text("not run: it was not allowed")
    await expect(notebook.output(2)).to_contain_text("not again")
    await notebook.idle()
    await notebook.page.screenshot(path=screenshots / "gate.png")
    assert notebook.foreign == []


TRIED = (
    "await ask(command='frob a', preview={'trial': {'output': 'frob: <b>denied</b>\\nmore', 'reason': 'x'}})"
)


async def test_output_of_a_trial_is_on_the_card_as_text(open_notebook: Opener) -> None:
    notebook = await ready(open_notebook, TRIED)
    card = await a_card(notebook)
    await expect(card).to_contain_text("printed when it was tried without write rights")
    await expect(card.get_by_role("region", name="output of the trial")).to_contain_text(
        "frob: <b>denied</b>"
    )
    await card.get_by_role("button", name="Deny").click()
    await expect(notebook.output(1)).to_contain_text("-> deny")
