"""What a sandbox shows cannot act on the page, tell anybody, or cover a button; unfiltered it can."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Request, expect

from tests.e2e.cards import ASK, SETUP
from tests.e2e.conftest import NotebookPage, Opener
from tests.e2e.payloads import payloads

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]

BEFORE = f"""{SETUP}
import asyncio, json
from IPython.display import display
from aisotools import ToolResult
from aisotools.notebook.approval.approver import pending_prompts
from aisotools.notebook.render.results import render_result, sanitize_bundle

task = asyncio.create_task({ASK.removeprefix("await ")})
await asyncio.sleep(0.5)
print("model-id", pending_prompts()[0]._card.model_id)
"""
FILTERED = """
for bundle in json.load(open("payloads-%d.json")).values():
    display(render_result(ToolResult(content="", data=bundle), "hostile"), raw=True)
    display(sanitize_bundle(bundle), raw=True)
"""
RAW = """
for bundle in json.load(open("payloads-%d.json")).values():
    display({mime: data for mime, data in bundle.items() if "/" in mime}, raw=True)
"""
# A browser acts on these as soon as JupyterLab shows them. Others need a click, or another front end.
ACTING = {
    "script that calls",
    "image that fails",
    "javascript that calls",
    "frame of an address",
}
ACTING |= {
    "object",
    "embed",
    "image set",
    "background",
    "sheet",
    "import",
    "markdown image",
    "poster",
    "audio",
}
COVERED = """() => [...document.querySelectorAll('.aiso-card .aiso-foot > button')].filter((button) => {
  const box = button.getBoundingClientRect();
  const seen = document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2);
  return box.width === 0 || !button.contains(seen);
}).map((button) => button.textContent)"""
SCROLL = "(n) => window.jupyterapp.shell.currentWidget.content.scrollToItem(n, 'start')"
SHARE = 15


class Canary:
    """A server that only remembers what it was asked for."""

    def __init__(self) -> None:
        self.hits: list[str] = []
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = await reader.readline()
        self.hits.append(line.decode("latin-1").split(" ")[1].strip("/").partition("/")[0])
        writer.write(b"HTTP/1.1 200 OK\r\nAccess-Control-Allow-Origin: *\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()


@pytest_asyncio.fixture(loop_scope="session")
async def canary() -> AsyncIterator[Canary]:
    made = Canary()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    async with server:
        yield made


async def shown(
    open_notebook: Opener, canary: Canary, cell: str
) -> tuple[NotebookPage, dict[str, Any], list[str]]:
    """All payloads on the page, beside an open card; also requests to Jupyter's own API that they made."""
    count = -(-len(payloads("", "")) // SHARE)
    notebook = await open_notebook(BEFORE, *(cell % n for n in range(count)))
    asked: list[str] = []

    def on_request(request: Request) -> None:
        if "canary" in request.url:
            asked.append(request.url)

    notebook.page.on("request", on_request)
    output = await notebook.run(0)
    await expect(output).to_contain_text("model-id")
    found = payloads(canary.url, (await output.inner_text()).split("model-id ")[1].split()[0])
    names = list(found)
    if cell is RAW:  # what is merely huge would only keep the browser busy
        names = [name for name in names if len(json.dumps(found[name])) < 10_000]
        names.sort(key=lambda name: "refresh" in str(found[name]))  # these take the whole page away
    for number in range(count):
        share = {name: found[name] for name in names[number * SHARE : (number + 1) * SHARE]}
        (notebook.path.parent / f"payloads-{number}.json").write_text(json.dumps(share), "utf-8")
    for index in range(1, count + 1):
        await notebook.run(index)
        await notebook.page.wait_for_timeout(1000)  # what acts may keep the page from ever saying idle
        await notebook.page.evaluate(SCROLL, index)
        await notebook.page.wait_for_timeout(300)
    return notebook, found, asked


async def test_nothing_acts_and_no_button_is_covered(open_notebook: Opener, canary: Canary) -> None:
    notebook, found, asked = await shown(open_notebook, canary, FILTERED)
    assert len(found) >= 60
    page = notebook.page
    await notebook.idle()
    for summary in await page.locator(".jp-OutputArea-output > :not(.aiso-card) details > summary").all():
        if await summary.is_visible():
            await summary.click()
    await page.wait_for_timeout(1500)
    assert (canary.hits, asked, notebook.dialogs, notebook.foreign, notebook.left) == ([], [], [], [], [])
    await page.evaluate("() => window.jupyterapp.shell.currentWidget.content.scrollToItem(0, 'center')")
    card = notebook.output(0).locator(".aiso-card")
    await card.locator(".aiso-approve").scroll_into_view_if_needed()
    await expect(page.locator(".aiso-card")).to_have_count(1)
    assert await page.evaluate(COVERED) == []
    menu = "([x, y]) => document.elementFromPoint(x, y).closest('.jp-OutputArea') !== null"
    assert not await page.evaluate(menu, [640, 10]), "output lies over the menu bar"
    # JupyterLab itself makes links of addresses in plain text.
    acting = "script, form, button, input, link, a[href]:not(pre a), [id^=main], [data-commandlinker-command]"
    outputs = page.locator(
        ".jp-CodeCell:not([data-windowed-list-index='0']) .jp-OutputArea-output:not(.jp-RenderedJSON)"
    )
    assert await outputs.locator(acting).evaluate_all("found => found.map((node) => node.outerHTML)") == []
    await page.wait_for_timeout(400)
    await card.get_by_role("button", name="Deny").click()
    await expect(notebook.output(0)).to_contain_text("Denied")


@pytest.mark.slow
async def test_the_same_unfiltered_does_act(open_notebook: Opener, canary: Canary) -> None:
    notebook, found, asked = await shown(open_notebook, canary, RAW)
    await notebook.page.wait_for_timeout(1500)
    hits = {name for name in found if "".join(c if c.isalnum() else "-" for c in name) in canary.hits}
    assert hits >= ACTING, f"these did nothing: {ACTING - hits}; these did: {sorted(hits)}"
    assert asked, "the API of Jupyter was reached"
    assert notebook.dialogs
    assert notebook.left, "the page was taken to another place"
    assert await notebook.page.evaluate(COVERED) or not await notebook.page.locator(".aiso-card").count()
