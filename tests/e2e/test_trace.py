"""The live trace in a real page: it follows a run line by line, and leaves a static record."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.async_api import expect

from tests.e2e.conftest import Opener

pytestmark = [
    pytest.mark.e2e,
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


@pytest.mark.slow
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


ANSWER = """# Twice 21

It is **42**, by `21 * 2`:

| factor | product |
|---|--:|
| 2 | 42 |

```python
print(21 * 2 < 50)
```

- [a source](https://example.org/)
- <script>alert(1)</script> ![x](https://example.org/p.png)
"""
AGENT = f"""%load_ext aisotools
from aisotools.agent.models.scripted import ScriptedModel
model = ScriptedModel([("sandbox_bash", {{"command": "echo $((21 * 2))"}}), {ANSWER!r}])"""


@pytest.mark.parametrize("theme", ["Light", pytest.param("Dark", marks=pytest.mark.slow)])
async def test_the_answer_is_rendered_last_and_can_be_copied(
    open_notebook: Opener, screenshots: Path, theme: str
) -> None:
    notebook = await open_notebook(AGENT, "%%agent -m model\nWhat is twice 21?")
    await notebook.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await notebook.theme(f"JupyterLab {theme}")
    await notebook.run(0)
    await notebook.run(1)
    output = notebook.output(1)
    answer = output.locator(".aiso-answer")
    await expect(answer.locator("td").last).to_have_text("42")
    await expect(answer).to_be_in_viewport()
    assert await output.locator(".jp-OutputArea-child").last.locator(".aiso-answer").count() == 1
    await expect(answer.locator("strong").first).to_have_text("Twice 21")
    await expect(answer.locator("script, img, a")).to_have_count(0)
    await answer.get_by_role("button", name="Copy").click()
    await expect(answer.get_by_role("button")).to_have_text("Copied")
    assert await notebook.page.evaluate("navigator.clipboard.readText()") == ANSWER
    await output.screenshot(path=screenshots / f"answer-{theme.lower()}.png")
    await notebook.idle()
    await notebook.save()
    await notebook.page.evaluate(
        "() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()"
    )
    await notebook.page.reload()
    answer = notebook.output(1).locator(".aiso-answer")
    await expect(answer.locator("td").last).to_have_text("42")
    await expect(answer.get_by_role("button")).to_have_count(0)
    assert notebook.foreign == []
    assert notebook.dialogs == []
