from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import expect

from tests.e2e.conftest import Opener
from tests.notebook.hostile import HOSTILE

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(180)]

SETUP = """
import json
from IPython.display import display
from aisotools import ToolResult
from aisotools.notebook.render import render_result, sanitize_bundle

def show(bundle):
    display(render_result(ToolResult(content="", data=bundle), "hostile"), raw=True)
    display(sanitize_bundle(bundle), raw=True)
"""


def as_json(value: Any) -> Any:
    return value if isinstance(value, (str, int, type(None), dict, list)) else repr(value)


@pytest.mark.slow
async def test_the_harness_sees_what_hostile_output_does(open_notebook: Opener) -> None:
    evil = "<img src='https://evil.example/' onerror='alert(1)'>"
    notebook = await open_notebook(f"from IPython.display import display, HTML\ndisplay(HTML({evil!r}))")
    await notebook.run(0)
    await notebook.idle()
    await notebook.page.wait_for_timeout(500)
    assert notebook.dialogs == ["1"]
    assert set(notebook.foreign) == {"https://evil.example/"}


async def test_hostile_output_does_nothing(open_notebook: Opener) -> None:
    corpus = {
        name: {mime: as_json(data) for mime, data in bundle.items()}
        for name, bundle in HOSTILE.items()
        if name != "surrogates"  # no JSON; they are seen off without a browser
    }
    # JupyterLab shows the first 50 outputs of a cell only.
    names = list(corpus)
    shares = [{name: corpus[name] for name in names[i : i + 20]} for i in range(0, len(names), 20)]
    texts = [json.dumps(json.dumps(share)) for share in shares]
    notebook = await open_notebook(
        SETUP, *(f"for b in json.loads({text}).values():\n    show(b)" for text in texts)
    )
    page = notebook.page
    for index in range(1 + len(texts)):
        await notebook.run(index)
    await expect(notebook.output(len(texts))).to_contain_text("output of hostile")
    await notebook.idle()
    for seen in await page.locator(".jp-OutputArea iframe, .jp-OutputArea details > summary").all():
        await seen.scroll_into_view_if_needed()
    for details in await page.locator(".jp-OutputArea details > summary").all():
        await details.click()
    await page.wait_for_timeout(1500)
    assert notebook.dialogs == []
    assert notebook.foreign == []
    acting = "script, form, button, input, link, a[href], [id^=main], [data-commandlinker-command]"
    shown = page.locator(".jp-CodeCell .jp-OutputArea-output")
    assert await shown.count() == 2 * len(corpus)
    shown = page.locator(
        ".jp-CodeCell .jp-OutputArea-output:not(.jp-RenderedJSON)"
    )  # JupyterLab's own viewer
    assert await shown.locator(acting).evaluate_all("found => found.map((node) => node.outerHTML)") == []
    covered = "([x, y]) => document.elementFromPoint(x, y).closest('.jp-OutputArea') !== null"
    assert not await page.evaluate(covered, [640, 10]), "output lies over the menu bar"
    headings = await page.evaluate(
        "() => [...document.querySelectorAll('.jp-OutputArea :is(h1, h2)')].map((h) => h.textContent)"
    )
    assert headings == []
    assert await page.locator(".jp-CodeCell").count() == 1 + len(texts), "a command of JupyterLab ran"


GALLERY = """
import pandas as pd, matplotlib.pyplot as plt, io, base64
from aisotools import ToolResult
from aisotools.notebook.render import display_result

frame = pd.DataFrame({"species": ["Adelie", "Gentoo"], "cost": ["$5 and $6", "<b>7</b>"]}, index=[1, 2])
figure, file = plt.figure(figsize=(4, 1.6)), io.BytesIO()
plt.plot([1, 4, 2, 5]); plt.savefig(file); plt.close()
png = base64.b64encode(file.getvalue()).decode()
table = {"text/html": frame._repr_html_(), "text/plain": str(frame)}
value = {"stdout": "rows: 2\\n", "stderr": "UserWarning: small sample\\n", "error": None}
display_result(ToolResult.text("total 4\\n-rw-r--r-- 1 user user 12 a.txt"), "sandbox_bash")
display_result(ToolResult.json({"matches": [{"path": "a.txt", "line": 3}], "truncated": False}), "file")
display_result(ToolResult.error("There is no file 'b.txt'. Did you mean 'a.txt'?"), "sandbox_read")
display_result(ToolResult.error("You said: too broad", error_kind="denied"), "sandbox_write")
several = {"displays": [table, {"image/png": png}]}
display_result(ToolResult(content="", value=value, metadata=several), "python")
formula = {"text/latex": r"$\\int_0^1 x^2\\,dx = \\frac{1}{3}$"}
display_result(ToolResult(content="", data=formula), "python")
styled = frame.to_html(index=False).replace("<td>", "<td style='background:#ffe082'>")
display_result(ToolResult(content="", data={"text/html": styled}), "python")
"""


@pytest.mark.slow
@pytest.mark.parametrize("theme", ["Light", "Dark"])
async def test_gallery(open_notebook: Opener, screenshots: Path, theme: str) -> None:
    notebook = await open_notebook(GALLERY, viewport={"width": 1280, "height": 1900})
    await notebook.theme(f"JupyterLab {theme}")
    await notebook.run(0)
    await notebook.idle()
    output = notebook.output(0)
    await expect(output.locator("mjx-container")).to_have_count(1)  # the formula, not the prices
    await expect(output).to_contain_text("$5 and $6")
    assert await output.locator("img").evaluate("image => image.naturalWidth") > 100
    await output.screenshot(path=screenshots / f"results-{theme.lower()}.png")
