"""Every kind of card, light, dark and narrow: what a test can tell of its looks, and pictures to look at."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.async_api import expect

from tests.e2e.cards import ASK, LINKS, MANY, a_card, editing, ready
from tests.e2e.conftest import Opener

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(240),
]

SIGHTS = {
    "shell": ASK,
    "findings": "await ask(command='cp data/*.csv build/ && rm -rf cache > log.txt 2>&1 # tidy', "
    "effect=Effect.DESTRUCTIVE)",
    "write": "await ask('sandbox_write', path='notes.md', content='# Penguins\\n', preview=DIFF)",
    "read": "await ask('file', Effect.READ_ONLY, operation='search', path='data', regex=False)",
    "hidden": "await ask(command='rm -rf \\u202egnissim\\u202c build', note='zero\\u200bwidth')",
    "links": LINKS,
    "python": "await ask('python', Effect.DESTRUCTIVE, 'limited', timeout_s=20, "
    "code='import shutil\\nfor n in range(3):  # all of them\\n\\tshutil.rmtree(f\"build{n}\")')",
    "secret": "await ask('login', password='hunter2', preview=OFFER, user='ann')",
    "patch": "await ask('apply_patch', patch='--- a/notes.md\\n+++ b/notes.md\\n@@ -1,2 +1,2 @@\\n"
    " # Penguins\\n-344 rows.\\n+333 rows.\\n')",
    "choice": "await ask_user('Which of the two files do you mean?\\nBoth have a column \u201ccost\u201d.', "
    "'data.csv, the one from today', 'data-2.csv', 'neither, stop here')",
    "typed": "await ask_user('What should the report be called?', agent_id='')",
    "many": MANY,
    "remote": "await ask('http_request', Effect.REMOTE_ACTION, 'host', method='POST', retries=2, "
    "url='https://exämple.org/' + 'a' * 200, follow=True, headers={'accept': 'text/html'})",
}


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
            await notebook.output(index).screenshot(path=screenshots / f"card-{name}-read-{look}.png")
            await editing(card)
            await card.get_by_label("command", exact=True).fill("make -j2 all")
            await card.get_by_label("timeout", exact=True).fill("30 s")
        elif name == "read":
            await card.locator(".aiso-approve").focus()
        elif name == "secret":
            await card.locator(".aiso-more").click()
        elif name == "choice":
            await card.locator(".aiso-answer").first.focus()
        elif name == "typed":
            await card.locator("textarea").fill("Penguins of the\nPalmer Archipelago")
        elif name == "many":
            await card.locator("summary").first.click()
        await notebook.output(index).screenshot(path=screenshots / f"card-{name}-{look}.png")
        overflow = await card.evaluate("node => node.scrollWidth - node.clientWidth")
        assert overflow <= 0, "it is wider than its place"
        if name == "shell":
            await card.get_by_label("timeout", exact=True).fill("30")
        await notebook.page.wait_for_timeout(400)  # what was scrolled into view takes no click at once
        await card.locator(".aiso-approve, .aiso-answer" if index % 2 else ".aiso-deny").first.click()
        await expect(notebook.output(index)).to_contain_text("->")
        await notebook.output(index).screenshot(path=screenshots / f"record-{name}-{look}.png")
