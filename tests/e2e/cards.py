"""Cells that ask, and how a test comes to a card that takes clicks."""

from __future__ import annotations

import contextlib
from typing import Any

from playwright.async_api import Locator, expect

from tests.e2e.conftest import NotebookPage, Opener

SETUP = """
import dataclasses, uuid
from aisotools import NotebookApprover
from aisotools.builtin import builtin_tools
from aisotools.core.protocols import UserQuestion
from aisotools.core.types import ApprovalRequest, Effect, Facts, ToolCall, ToolDefinition
from aisotools.tools.adapter import definition_of, gather_facts

LOCAL = Effect.LOCAL_MUTATION
TOOLS = {tool.name: tool for tool in builtin_tools()}
SCHEMA = {"type": "object", "properties": {
    "password": {"type": "string", "writeOnly": True},
    "url": {"type": "string", "description": "What to fetch."},
    "method": {"enum": ["GET", "POST"], "description": "How."},
    "retries": {"type": "integer", "minimum": 0, "maximum": 5, "description": "Further tries."},
    "follow": {"type": "boolean", "description": "Whether to follow redirects."},
    "headers": {"type": "object", "description": "More lines of the request."}}}
OFFER = {"remember": {
    "call": "sandbox_bash with exactly these arguments",
    "shape": "sandbox_bash running only make, tail, writing only to build, up to local change",
    "tool": "sandbox_bash with any arguments, up to local change, in the workspace",
}}
DIFF = {"diff": {"path": "notes.md", "added": 2, "removed": 1, "note": "", "lines": [
    "@@ -1,4 +1,5 @@", " # Penguins", " ", "-344 rows.", "+333 rows: those without a value were left out.",
    "+", " Source: Palmer Station."]}, "undo": "puts notes.md back as it is now"}

def request(name="sandbox_bash", effect=LOCAL, level="confined", timeout_s=300, preview=None, links=(),
            **arguments):
    tool = TOOLS.get(name)
    known = tool is not None
    hosts = Facts(hosts=("example.org",) if "url" in arguments else ())
    facts = gather_facts(tool, arguments) if known else hosts
    return ApprovalRequest(
        id=uuid.uuid4().hex,
        call=ToolCall("c1", name, arguments, origin="model", agent_id="researcher", turn_id="3"),
        definition=definition_of(tool) if known else ToolDefinition(name, "Does what it is told.", SCHEMA),
        facts=dataclasses.replace(facts, links=links),
        effect=effect, level=level, timeout_s=timeout_s, preview=preview or {},
        reasons=("mode safe asks before anything changes",),
    )

async def ask(*arguments, hello_s=2.0, **more):
    answer = await NotebookApprover(hello_s=hello_s).ask(request(*arguments, **more))
    print("->", answer.outcome, answer.arguments, repr(answer.reason), answer.remember or "")
    return answer

async def ask_user(text, *choices, agent_id="researcher", timeout_s=300):
    key = uuid.uuid4().hex
    question = UserQuestion(id=key, text=text, choices=choices, agent_id=agent_id, timeout_s=timeout_s)
    print("->", repr(await NotebookApprover().ask_user(question)))

async def ask_many(*requests):
    for answer in await NotebookApprover().ask_many(requests):
        print("->", answer.outcome, repr(answer.reason))
"""
ASK = "await ask(command='make -j2 all\\nmake test | tail -n 20', timeout=30000)"
LINKS = (
    "await ask('file', Effect.DESTRUCTIVE, operation='delete', path='data', links=("
    "('data', '../elsewhere/secret'), ('a\\u202etxt.b', 'x\\x1b[31m'), ('n' * 300, 'c \u2192 d')))"
)
MANY = (
    "await ask_many(request(command='mkdir -p build'), "
    "request('login', Effect.READ_ONLY, user='ann', password='hunter2'), "
    "request('python', Effect.DESTRUCTIVE, code='import shutil\\nshutil.rmtree(\"build\")'), "
    "request('web_fetch', Effect.REMOTE_ACTION, 'host', url='https://example.org/' + 'a' * 200))"
)


async def takes_clicks(notebook: NotebookPage, index: int) -> Locator:
    """The card below a cell, once it takes clicks: what comes into view takes none at once."""
    card = notebook.output(index).locator(".aiso-card")
    await expect(card.locator(".aiso-deny")).to_be_visible(timeout=30_000)  # the page may be loading
    await card.locator(".aiso-deny").scroll_into_view_if_needed()
    await notebook.page.wait_for_timeout(400)
    return card


async def a_card(notebook: NotebookPage, index: int = 1) -> Locator:
    """Run the cell that asks, and wait until its card takes clicks."""
    await notebook.run(index)
    return await takes_clicks(notebook, index)


async def editing(card: Locator) -> Locator:
    """The card with its fields open."""
    await card.get_by_role("button", name="Edit", exact=True).click()
    return card


async def ready(open_notebook: Opener, *cells: str, **options: Any) -> NotebookPage:
    """A notebook whose first cell, run already, defines how to ask."""
    notebook = await open_notebook(SETUP, *cells, **options)
    await notebook.run(0)
    await notebook.idle()
    return notebook


async def goes_on(notebook: NotebookPage, index: int, words: str) -> None:
    """The cell runs; tried again, since an error takes along the cells that are sent soon after it."""
    for _ in range(10):
        await notebook.run(index)
        with contextlib.suppress(AssertionError):
            await expect(notebook.output(index)).to_contain_text(words, timeout=2_000)
            return
    raise AssertionError(f"cell {index} does not run any more")
