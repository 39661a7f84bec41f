from __future__ import annotations

from pathlib import Path

import pytest
from playwright.async_api import expect

from tests.e2e.conftest import Opener

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(180)]


@pytest.mark.slow
async def test_the_harness_sees_what_hostile_output_does(open_notebook: Opener) -> None:
    evil = "<img src='https://evil.example/' onerror='alert(1)'>"
    notebook = await open_notebook(f"from IPython.display import display, HTML\ndisplay(HTML({evil!r}))")
    await notebook.run(0)
    await notebook.idle()
    for _ in range(50):
        if notebook.dialogs and notebook.foreign:
            break
        await notebook.page.wait_for_timeout(100)
    assert notebook.dialogs == ["1"]
    assert set(notebook.foreign) == {"https://evil.example/"}


GALLERY = """
import pandas as pd, matplotlib.pyplot as plt, io, base64
from IPython.display import display
from aisotools import ToolResult
from aisotools.notebook.render.results import render_result

def show(result, tool_name):
    display(render_result(result, tool_name), raw=True)

frame = pd.DataFrame({"species": ["Adelie", "Gentoo"], "cost": ["$5 and $6", "<b>7</b>"]}, index=[1, 2])
figure, file = plt.figure(figsize=(4, 1.6)), io.BytesIO()
plt.plot([1, 4, 2, 5]); plt.savefig(file); plt.close()
png = base64.b64encode(file.getvalue()).decode()
table = {"text/html": frame._repr_html_(), "text/plain": str(frame)}
value = {"stdout": "rows: 2\\n", "stderr": "UserWarning: small sample\\n", "error": None}
show(ToolResult.text("total 4\\n-rw-r--r-- 1 user user 12 a.txt"), "sandbox_bash")
show(ToolResult.json({"matches": [{"path": "a.txt", "line": 3}], "truncated": False}), "file")
show(ToolResult.error("There is no file 'b.txt'. Did you mean 'a.txt'?"), "sandbox_read")
show(ToolResult.error("You said: too broad", error_kind="denied"), "sandbox_write")
several = {"displays": [table, {"image/png": png}]}
show(ToolResult(content="", value=value, metadata=several), "python")
formula = {"text/latex": r"$\\int_0^1 x^2\\,dx = \\frac{1}{3}$"}
show(ToolResult(content="", data=formula), "python")
styled = frame.to_html(index=False).replace("<td>", "<td style='background:#ffe082'>")
show(ToolResult(content="", data={"text/html": styled}), "python")
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
