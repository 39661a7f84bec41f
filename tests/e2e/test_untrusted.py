"""A notebook that is opened again, by somebody who does not trust it: the records read well, nothing acts."""

from __future__ import annotations

import json

import pytest
from playwright.async_api import Browser, expect

from tests.e2e.cards import a_card
from tests.e2e.conftest import Lab, Opener

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(180),
]

EVIL = "<img src='https://evil.example/' onerror='alert(1)'>"


async def test_records_in_an_untrusted_notebook(open_notebook: Opener, lab: Lab, browser: Browser) -> None:
    notebook = await open_notebook(
        "%load_ext aisotools", "%call sandbox_bash command='echo hello > a.txt && cat a.txt' --ask"
    )
    await notebook.run(0)
    card = await a_card(notebook)
    await card.get_by_role("button", name="Approve", exact=True).click()
    await expect(notebook.output(1)).to_contain_text("output of sandbox_bash")
    await notebook.idle()
    await notebook.save()
    saved = json.loads(notebook.path.read_text("utf-8"))
    saved["cells"][0]["outputs"] = [
        {"output_type": "display_data", "data": {"text/html": EVIL, "text/plain": "evil"}, "metadata": {}}
    ]
    copy = notebook.path.with_name("from-a-stranger.ipynb")  # nobody has signed it here
    copy.write_text(json.dumps(saved), "utf-8")
    again = await lab.show(browser, copy)
    try:
        await expect(again.output(1)).to_contain_text("✓ Approved sandbox_bash")
        await expect(again.output(1)).to_contain_text("hello")
        await expect(again.output(1).locator(".aiso-card")).to_have_count(0)
        assert again.dialogs == []
        trusted = await again.page.evaluate(
            "() => window.jupyterapp.shell.currentWidget.content.widgets.every((cell) => cell.model.trusted)"
        )
        assert not trusted
    finally:
        await again.page.context.close()
