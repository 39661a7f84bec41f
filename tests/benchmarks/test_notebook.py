"""What a person waits for in the page: the card, the start of what they approved, a trace that keeps moving.

Run with `python -m pytest tests/benchmarks/test_notebook.py -m "benchmark and e2e" -s`; it needs Chromium.
"""

from __future__ import annotations

import json
import re

import pytest

from tests.benchmarks.figures import Figure, show
from tests.e2e.cards import ASK, SETUP
from tests.e2e.conftest import Opener, browser, lab, open_notebook

__all__ = ["browser", "lab", "open_notebook"]

pytestmark = [
    pytest.mark.benchmark,
    pytest.mark.e2e,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(300),
]

ROUNDS = 9
# One clock for page and kernel: milliseconds since the epoch.
WATCH = """() => {
  const now = () => performance.timeOrigin + performance.now();
  window.seen = null;
  window.clicked = null;
  new MutationObserver(() => {
    const button = document.querySelector('.aiso-approve');
    if (window.seen === null && button) requestAnimationFrame(() => { window.seen ??= now(); });
  }).observe(document.body, {childList: true, subtree: true});
  document.addEventListener('click', (event) => {
    if (event.target.closest('.aiso-approve')) window.clicked = now();
  }, true);
}"""
RUN = """(index) => {
  window.seen = window.clicked = null;
  window.jupyterapp.shell.currentWidget.content.activeCellIndex = index;
  window.started = performance.timeOrigin + performance.now();
  window.jupyterapp.commands.execute('notebook:run-cell');
}"""
CALL = """
import time
from aisotools import current_session
s = current_session()
r = await s.call('python', {'code': f'import time; print(time.time() * 1000) #{time.time()}'}, origin='model')
print('started', r.value['stdout'].strip())
"""
TRACE = """
import asyncio
from aisotools.core.types import ToolCall
from aisotools.session.event_log import EventLog
from aisotools.notebook.trace.view import follow
from aisotools.core.events import CallRequested
journal = EventLog()
async def work():
    journal.add(CallRequested, "c1", call=ToolCall("c1", "python", {"code": "fit()"}, origin="model"))
    await asyncio.sleep(1.5)
    for n in range(1000):
        journal.output("c1", "stdout", f"line {n} of what a tool prints\\n")
        if n % 50 == 0:
            await asyncio.sleep(0.05)
    await asyncio.sleep(1.5)
await follow(journal, work(), title="a thousand events")
"""
FRAMES = """() => {
  window.frames_ms = [];
  let before = performance.now();
  const tick = (time) => {
    window.frames_ms.push(time - before);
    before = time;
    requestAnimationFrame(tick);
  };
  requestAnimationFrame(tick);
}"""


async def test_the_card(open_notebook: Opener) -> None:
    notebook = await open_notebook(
        SETUP, ASK, "%load_ext aisotools", CALL, viewport={"width": 1280, "height": 2200}
    )
    await notebook.run(0)
    await notebook.idle()
    await notebook.run(2)
    await notebook.idle()
    page = notebook.page
    await page.evaluate(WATCH)
    visible_ms: list[float] = []
    starting_ms: list[float] = []
    for _ in range(ROUNDS):
        await page.evaluate(RUN, 1)
        await page.wait_for_function("() => window.seen !== null")
        visible_ms.append(await page.evaluate("window.seen - window.started"))
        await page.wait_for_timeout(350)
        await notebook.output(1).locator(".aiso-deny").click()
        await notebook.idle()
    for _ in range(ROUNDS):
        await page.evaluate(RUN, 3)
        await page.wait_for_function("() => window.seen !== null")
        await page.wait_for_timeout(350)
        await notebook.output(3).locator(".aiso-approve").click()
        await notebook.output(3).get_by_text("started").wait_for()
        found = re.search(r"started ([\d.]+)", await notebook.output(3).inner_text())
        assert found is not None
        starting_ms.append(float(found[1]) - await page.evaluate("window.clicked"))
        await notebook.idle()
    show(
        Figure(what="run to visible buttons", samples=visible_ms, budget=100),
        Figure(what="click on Approve to the tool starting", samples=starting_ms[1:], budget=50),
    )


async def test_the_trace(open_notebook: Opener) -> None:
    notebook = await open_notebook(TRACE)
    output = await notebook.run(0)
    await output.locator(".aiso-trace").wait_for()
    await notebook.page.wait_for_timeout(500)
    await notebook.page.evaluate(FRAMES)
    await output.get_by_text("line 999").wait_for()
    frames_ms: list[float] = json.loads(await notebook.page.evaluate("JSON.stringify(window.frames_ms)"))
    show(Figure(what="longest frame while 1,000 events come", samples=[max(frames_ms)], budget=100))
