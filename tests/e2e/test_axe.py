"""axe-core on every kind of card: no serious finding.

axe-core is MPL-2.0 and not part of this repository: `npm pack` fetches the pinned version into pytest's own
cache the first time. Outside CI a machine without npm or network skips these tests.
"""

from __future__ import annotations

import asyncio
import io
import os
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import expect

from tests.e2e.cards import MANY, a_card, editing, ready
from tests.e2e.conftest import Opener
from tests.e2e.test_looks import SIGHTS

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(300),
]

VERSION = "4.14.1"
AUDIT = """async (root) => {
  const {violations} = await axe.run(root, {resultTypes: ['violations']});
  return violations.filter((v) => ['serious', 'critical'].includes(v.impact))
    .map((v) => [v.id, v.help, v.nodes.map((n) => n.html + ' ' + n.failureSummary)]);
}"""
TRACE = """
import asyncio, time
from aisotools.core.types import ToolCall
from aisotools.session.event_log import EventLog
from aisotools.notebook.trace.view import follow
from aisotools.core.events import CallOutput, CallRequested
journal = EventLog()
async def work():
    journal.add(CallRequested, "c1", call=ToolCall("c1", "python", {"code": "fit()"}, origin="model"))
    journal.output("c1", "stdout", "epoch 1\\n\\rtrain:  40%|####      | 4/10 [00:01<00:02, 3.1it/s]")
    await asyncio.sleep(8)
await follow(journal, work(), title="a run")
"""


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def axe(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The source of axe-core, fetched once."""
    own = getattr(pytestconfig, "cache", None)  # none with `-p no:cacheprovider`
    cache = own.mkdir("axe") if own is not None else tmp_path_factory.mktemp("axe")
    cached = cache / f"axe-core-{VERSION}.js"
    if not cached.is_file():
        cached.write_bytes(await _fetched(cache))
    return cached.read_text("utf-8")


async def _fetched(folder: Path) -> bytes:
    """`axe.min.js` out of the package of the pinned version."""
    npm = shutil.which("npm")
    reason = f"axe-core {VERSION} cannot be had: it needs npm and its registry once."
    if npm is not None:
        command = [npm, "pack", f"axe-core@{VERSION}", "--silent", "--pack-destination", str(folder)]
        command += ["--cache", str(folder / "npm")]
        packing = await asyncio.create_subprocess_exec(*command, cwd=folder)
        if await asyncio.wait_for(packing.wait(), 60) == 0:
            archive = folder / f"axe-core-{VERSION}.tgz"
            with tarfile.open(fileobj=io.BytesIO(archive.read_bytes())) as files:
                member = files.extractfile("package/axe.min.js")
                assert member is not None
                return member.read()
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.mark.parametrize("theme", ["Light", "Dark"])
async def test_cards(open_notebook: Opener, axe: str, theme: str) -> None:
    sights = {**SIGHTS, "many": MANY}
    notebook = await ready(open_notebook, *sights.values(), viewport={"width": 1280, "height": 1000})
    await notebook.theme(f"JupyterLab {theme}")
    await notebook.page.evaluate(axe)
    found: dict[str, Any] = {}
    for index, name in enumerate(sights, 1):
        card = await a_card(notebook, index)
        if name == "shell":
            await editing(card)
            await card.get_by_label("timeout", exact=True).fill("soon")
        elif name == "secret":
            await card.locator(".aiso-more").click()
        elif name == "write":
            await editing(card)
            await card.locator("summary").click()
        found[name] = await card.evaluate(AUDIT)
        await notebook.page.wait_for_timeout(350)
        await card.locator(".aiso-deny").click()
        await expect(notebook.output(index)).to_contain_text("->")
        found[f"{name}, record"] = (
            await notebook.output(index).locator(".jp-RenderedHTML").first.evaluate(AUDIT)
        )
    assert {name: problems for name, problems in found.items() if problems} == {}


@pytest.mark.parametrize("theme", ["Light", "Dark"])
async def test_trace(open_notebook: Opener, axe: str, screenshots: Path, theme: str) -> None:
    notebook = await open_notebook(TRACE)
    await notebook.theme(f"JupyterLab {theme}")
    await notebook.page.evaluate(axe)
    output = await notebook.run(0)
    await output.get_by_role("progressbar").wait_for()
    await output.screenshot(path=screenshots / f"trace-live-{theme.lower()}.png")
    assert await output.locator(".aiso-trace").evaluate(AUDIT) == []
