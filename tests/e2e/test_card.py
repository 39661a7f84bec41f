from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Locator, expect

from tests.e2e.conftest import NotebookPage, Opener

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(180)]

SETUP = """
import uuid
from aisotools import NotebookApprover
from aisotools.events import ApprovalRequest, Effect, ToolCall, ToolDefinition

LOCAL = Effect.LOCAL_MUTATION

SCHEMA = {"type": "object", "properties": {"password": {"type": "string", "writeOnly": True}}}
OFFER = {"remember": {
    "call": "sandbox_bash with exactly these arguments",
    "shape": "sandbox_bash running only make, tail, writing only to build, up to local mutation",
    "tool": "sandbox_bash with any arguments, up to local mutation, in the workspace",
}}

def wish(name="sandbox_bash", effect=LOCAL, level="confined", timeout_s=300, preview=None, **arguments):
    return ApprovalRequest(
        id=uuid.uuid4().hex, call=ToolCall("c1", name, arguments, origin="model", agent_id="researcher"),
        definition=ToolDefinition(name, "Run a shell command in the sandbox.", SCHEMA),
        effect=effect, level=level, timeout_s=timeout_s, preview=preview or {},
        reasons=("make writes files in the workspace", "mode safe asks before changes of files"),
    )

async def ask(*arguments, hello_s=2.0, **more):
    answer = await NotebookApprover(hello_s=hello_s).ask(wish(*arguments, **more))
    print("->", answer.outcome, answer.arguments, repr(answer.reason), answer.remember or "")
    return answer

async def ask_many(*wishes):
    for answer in await NotebookApprover().ask_many(wishes):
        print("->", answer.outcome, repr(answer.reason))
"""
ASK = "await ask(command='make -j2 all\\nmake test | tail -n 20', timeout=30000)"


async def a_card(notebook: NotebookPage, index: int = 1) -> Locator:
    """Run the cell that asks, and wait until its card takes clicks."""
    output = await notebook.run(index)
    card = output.locator(".aiso-card")
    await expect(card.locator(".aiso-approve")).to_be_visible()
    await card.locator(
        ".aiso-approve"
    ).scroll_into_view_if_needed()  # what comes into view takes no click at once
    await notebook.page.wait_for_timeout(400)
    return card


async def ready(open_notebook: Opener, *cells: str, **options: Any) -> NotebookPage:
    notebook = await open_notebook(SETUP, *cells, **options)
    await notebook.run(0)
    await notebook.idle()
    return notebook


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


@pytest.mark.slow
async def test_deny_with_a_reason(open_notebook: Opener) -> None:
    notebook = await ready(open_notebook, ASK)
    card = await a_card(notebook)
    await card.get_by_label("Reason").fill("use ninja <b>instead</b>")
    await card.get_by_role("button", name="Deny").click()
    await expect(notebook.output(1)).to_contain_text("-> deny None 'use ninja <b>instead</b>'")
    await expect(notebook.output(1)).to_contain_text("reason: use ninja <b>instead</b>")


REMEMBER = "await ask(command='make -j2 all', preview=OFFER)"


async def test_approve_and_remember(open_notebook: Opener, screenshots: Path) -> None:
    notebook = await ready(open_notebook, REMEMBER, REMEMBER)
    card = await a_card(notebook)
    await card.get_by_role("button", name="Approve and remember…").click()
    offered = card.get_by_role("radio", name="sandbox_bash running only make, tail, writing only to build")
    await expect(offered).to_be_visible()
    await card.get_by_label("command").fill("rm -r build")
    await expect(offered).to_be_hidden()
    await expect(card.get_by_role("button", name="Approve and remember…")).to_be_disabled()
    await card.get_by_label("command").fill("make -j2 all")
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


MANY = (
    "await ask_many(wish(command='make -j2 all'), "
    "wish('file', Effect.READ_ONLY, operation='read', path='data/penguins.csv', password='hunter2'), "
    "wish('python', Effect.DESTRUCTIVE, code='import shutil\\nshutil.rmtree(\"build\")'), "
    "wish('web_fetch', Effect.REMOTE_ACTION, 'host', url='https://example.org/' + 'a' * 200))"
)


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


@pytest.mark.slow
async def test_edits_run_and_bad_json_does_not_leave_the_page(open_notebook: Opener) -> None:
    notebook = await ready(open_notebook, ASK)
    card = await a_card(notebook)
    await card.get_by_label("command").fill("make check")
    await card.get_by_label("arguments").fill('{"timeout": }')
    await expect(card.get_by_role("alert").filter(has_text="not valid JSON")).to_be_visible()
    await card.get_by_role("button", name="Approve edited").click()
    await expect(card.get_by_label("arguments")).to_be_focused()
    await expect(notebook.output(1)).not_to_contain_text("->")
    await card.get_by_label("arguments").fill('{"timeout": 5, "timeout": 6}')
    await card.get_by_role("button", name="Approve edited").click()
    await expect(card.get_by_role("alert").filter(has_text="stands there twice")).to_be_visible()
    await card.get_by_label("arguments").fill('{"timeout": 5}')
    await card.get_by_role("button", name="Approve edited").click()
    await expect(notebook.output(1)).to_contain_text("-> approve {'command': 'make check', 'timeout': 5} ''")


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
        "aiso-text",
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
async def test_stop_button_and_timeout_leave_a_record(open_notebook: Opener) -> None:
    notebook = await ready(open_notebook, "await ask(n=1, timeout_s=1)", ASK)
    await notebook.run(1)
    await expect(notebook.output(1)).to_contain_text("Not answered in time")
    await notebook.idle()
    await a_card(notebook, 2)
    await notebook.page.evaluate("() => window.jupyterapp.commands.execute('notebook:interrupt-kernel')")
    await expect(notebook.output(2)).to_contain_text("Stopped before an answer")
    await expect(notebook.output(2)).to_contain_text("CancelledError")


@pytest.mark.slow
async def test_reload_while_waiting(open_notebook: Opener) -> None:
    notebook = await ready(open_notebook, f"answer = {ASK}", "print(answer.outcome)")
    await a_card(notebook)
    await notebook.save()
    await notebook.page.reload()
    card = notebook.output(1).locator(".aiso-card")
    await expect(card.get_by_role("button", name="Approve", exact=True)).to_be_visible(timeout=20_000)
    await notebook.page.wait_for_timeout(400)
    await card.get_by_role("button", name="Approve", exact=True).click()
    # No front end takes in what a cell from before the reload still prints; the answer counts all the same.
    await notebook.run(2)
    await expect(notebook.output(2)).to_contain_text("approve")


@pytest.mark.slow
async def test_where_no_card_shows_an_input_box_asks(open_notebook: Opener, screenshots: Path) -> None:
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


SIGHTS = {
    "shell": ASK,
    "read": "await ask('file', Effect.READ_ONLY, operation='read', path='data/penguins.csv')",
    "hidden": "await ask(command='rm -rf \\u202egnissim\\u202c build', note='zero\\u200bwidth')",
    "destructive": "await ask('python', Effect.DESTRUCTIVE, 'limited', timeout_s=20, "
    "code='import shutil\\nfor n in range(3):\\n\\tshutil.rmtree(f\"build{n}\")')",
    "secret": "await ask('login', password='hunter2', preview=OFFER, user='ann')",
    "many": MANY,
    "remote": "await ask('web_fetch', Effect.REMOTE_ACTION, 'host', url='https://example.org/' + 'a' * 200)",
}


@pytest.mark.slow
@pytest.mark.parametrize("look", ["light", "dark", "narrow"])
async def test_looks(open_notebook: Opener, screenshots: Path, look: str) -> None:
    width = 560 if look == "narrow" else 1280
    notebook = await ready(open_notebook, *SIGHTS.values(), viewport={"width": width, "height": 1000})
    await notebook.theme("JupyterLab Dark" if look == "dark" else "JupyterLab Light")
    if look == "narrow":
        await notebook.page.evaluate(
            "() => window.jupyterapp.commands.execute('application:toggle-left-area')"
        )
    for index, name in enumerate(SIGHTS, 1):
        card = await a_card(notebook, index)
        if name == "shell":
            await card.get_by_label("command").fill("make -j2 all")
            await card.get_by_label("arguments").fill('{"timeout": 30000,}')
        elif name == "read":
            await card.locator(".aiso-approve").focus()
        elif name == "secret":
            await card.locator(".aiso-more").click()
        elif name == "many":
            await card.locator("summary").first.click()
        await notebook.output(index).screenshot(path=screenshots / f"card-{name}-{look}.png")
        overflow = await card.evaluate("node => node.scrollWidth - node.clientWidth")
        assert overflow <= 0, "it is wider than its place"
        if name == "shell":
            await card.get_by_label("arguments").fill('{"timeout": 30000}')
        await notebook.page.wait_for_timeout(400)  # what was scrolled into view takes no click at once
        await card.locator(".aiso-approve" if index % 2 else ".aiso-deny").click()
        await expect(notebook.output(index)).to_contain_text("->")
    await notebook.page.screenshot(path=screenshots / f"records-{look}.png")
