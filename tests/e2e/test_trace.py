"""The live trace in a real page: it follows a run line by line, and leaves a static record."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.async_api import expect

from tests.e2e.conftest import Opener

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(180),
]

RUN = """
from aisotools import current_session
from aisotools.notebook.trace.view import follow
session = current_session()
code = '''
import time
print("first line")
for n in range(41):
    print(f"\\\\rtrain: {n * 2.5:3.0f}%|{'#' * (n // 4)}| {n}/40 [00:01<00:02]", end="", flush=True)
    time.sleep(0.1)
print()
'''
async def work():
    await session.call("file", {"operation": "list"}, origin="model")
    return await session.run_cell(code, origin="person")
result = await follow(session, work(), title="two calls", registry=session.registry)
print("then", result.is_error)
"""


async def test_a_run_is_followed_line_by_line(open_notebook: Opener, screenshots: Path) -> None:
    notebook = await open_notebook(RUN)
    output = await notebook.run(0)
    trace = output.locator(".aiso-trace")
    await expect(trace).to_contain_text("first line", timeout=20_000)
    bar = trace.get_by_role("progressbar")
    await expect(bar).to_be_visible()
    early = int(await bar.get_attribute("aria-valuenow") or 0)
    await notebook.page.wait_for_timeout(800)
    assert int(await bar.get_attribute("aria-valuenow") or 0) > early
    assert await trace.locator(".aiso-item-lines > div").count() <= 2, "progress is no thousand lines"
    await output.screenshot(path=screenshots / "trace-live.png")
    await expect(output).to_contain_text("then False", timeout=20_000)
    await expect(trace).to_have_count(0)
    await expect(output).to_contain_text("trace of two calls")
    await output.locator("summary").first.click()
    await output.screenshot(path=screenshots / "trace-record.png")
    await notebook.idle()
    (shown, *_) = (await notebook.save())[0]["outputs"]
    assert shown["data"].keys() == {"text/html", "text/plain"}
    assert len(str(shown["data"])) < 64 << 10
    assert "train: 100%" in str(shown["data"])
    assert notebook.foreign == []
