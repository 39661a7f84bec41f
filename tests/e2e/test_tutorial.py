"""The first tutorial as somebody meets it: opened in JupyterLab, Run All, one answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import expect

from tests.e2e.conftest import NotebookPage, Opener

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(180)]

TUTORIAL = Path(__file__).parents[2] / "notebooks" / "01-first-calls.ipynb"


def cell_with(text: str) -> int:
    cells = json.loads(TUTORIAL.read_text("utf-8"))["cells"]
    (index,) = [n for n, c in enumerate(cells) if c["cell_type"] == "code" and text in "".join(c["source"])]
    return int(index)


async def run_to_the_card(notebook: NotebookPage) -> int:
    """Run all cells until one asks; that one's number."""
    asks = cell_with("wishes")
    await notebook.run_all()
    await notebook.page.wait_for_function(
        "(n) => window.jupyterapp.shell.currentWidget.content.widgets[n].model.outputs.length >= 2", arg=asks
    )
    output = await notebook.show_cell(asks)
    await expect(
        output.locator(".aiso-card").get_by_role("button", name="Approve", exact=True)
    ).to_be_visible()
    await notebook.page.wait_for_timeout(400)
    return asks


async def finished(notebook: NotebookPage) -> list[dict[str, Any]]:
    """The cells of the saved notebook, all run without an error."""
    await notebook.page.wait_for_function(
        """() => window.jupyterapp.shell.currentWidget.content.widgets.every(
             (cell) => cell.model.type !== 'code' || cell.model.executionCount !== null)"""
    )
    await notebook.idle()
    cells = [cell for cell in await notebook.save() if cell["cell_type"] == "code"]
    for cell in cells:
        assert cell["execution_count"], cell["source"]
        for output in cell["outputs"]:
            assert output["output_type"] != "error", (cell["source"], output)
            assert output.get("name") != "stderr", (cell["source"], output)
            assert "application/vnd.jupyter.widget-view+json" not in output.get("data", {})
    return cells


@pytest.mark.parametrize("look", ["light", pytest.param("dark", marks=pytest.mark.slow)])
async def test_approve(open_notebook: Opener, screenshots: Path, look: str) -> None:
    notebook = await open_notebook(TUTORIAL, viewport={"width": 1100, "height": 900})
    await notebook.theme("JupyterLab Dark" if look == "dark" else "JupyterLab Light")
    summary = notebook.path.parent / "workspace" / TUTORIAL.stem / "summary.md"
    asks = await run_to_the_card(notebook)
    await notebook.page.screenshot(path=screenshots / f"tutorial-card-{look}.png")
    assert not summary.exists()
    await notebook.output(asks).get_by_role("button", name="Approve", exact=True).click()
    cells = await finished(notebook)
    assert summary.read_text("utf-8").startswith("# Penguins")
    assert "✓ Approved" in json.dumps(cells, ensure_ascii=False)
    assert notebook.foreign == []
    for index in range(0, 16, 3):
        await notebook.page.evaluate(
            "(n) => window.jupyterapp.shell.currentWidget.content.scrollToItem(n, 'start')", index
        )
        await notebook.page.wait_for_timeout(200)
        await notebook.page.screenshot(path=screenshots / f"tutorial-{index:02d}-{look}.png")


@pytest.mark.slow
async def test_deny(open_notebook: Opener, screenshots: Path) -> None:
    notebook = await open_notebook(TUTORIAL, viewport={"width": 760, "height": 900})
    asks = await run_to_the_card(notebook)
    card = notebook.output(asks).locator(".aiso-card")
    await card.get_by_label("Reason").fill("not this file")
    await notebook.page.screenshot(path=screenshots / "tutorial-card-narrow.png")
    await card.get_by_role("button", name="Deny").click()
    cells = await finished(notebook)
    assert not (notebook.path.parent / "workspace" / TUTORIAL.stem / "summary.md").exists()
    stored = json.dumps(cells, ensure_ascii=False)
    assert "✕ Denied" in stored
    assert "not this file" in stored
    await notebook.show_cell(cell_with("%load_ext"))
    await notebook.page.screenshot(path=screenshots / "tutorial-tools-narrow.png")
