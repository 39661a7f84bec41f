"""`%trace export`: a notebook that gives the same when it is run, and a page that can do nothing."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import nbformat
import pytest

from aisotools.agent.agent import Agent
from aisotools.agent.delegation import delegate_tool
from aisotools.agent.models.scripted import ScriptedModel
from aisotools.agent.transcript.metadata import read_transcript
from aisotools.builtin import builtin_tools
from aisotools.core.exceptions import UsageError
from aisotools.core.types import Effect, ToolResult
from aisotools.notebook.magics.export import POLICY, export_session
from aisotools.policy.approvers import AllowAll
from aisotools.session.session import Session
from aisotools.testing.fakes import MockTool
from aisotools.tools.registry import ToolRegistry
from tests.agent.recorded_runs import TOOLS, bash, python, write
from tests.conftest import OpenSession
from tests.notebook.client import private_home
from tests.notebook.hostile import HOSTILE
from tests.notebook.inert import EVIL_TAGS, IMAGE, OUR_TAGS, assert_inert

BIG = "x" * (65 << 10)
HOSTILE_WORDS = [
    "<script>alert(1)</script>",
    "</pre></section><img src=x onerror=alert(1)>",
    "`<b>`**<i>**",
    "```\n</pre><script>x</script>",
    "\u202egnp.exe\x1b[31m\0",
    "sk-" + "a" * 30 + "<b>",
    "password=</main><script>",
]


@pytest.fixture
async def session(tmp_path: Path, environ: Mapping[str, str]) -> AsyncIterator[Session]:
    """A session in which much was done."""
    work = tmp_path / "work"
    (work / "in").mkdir(parents=True)
    (work / "in/data.csv").write_text("a,b\n1,2\n3,4\n")
    (work / "blob").write_bytes(b"\0\1\2")
    (work / "big.txt").write_text(BIG)
    (work / "link").symlink_to("in")
    registry = ToolRegistry([*builtin_tools(), *TOOLS])
    async with Session(work, registry=registry, approver=AllowAll(), environ=environ) as session:
        turns: list[Any] = [
            python("import csv\nrows = list(csv.reader(open('in/data.csv')))\nrows"),
            [("triple", {"x": 4}), write("b.txt", "eight\n")],
            python("import matplotlib.pyplot as plt\nplt.plot([1, 2, 4])\nplt.show()"),
            bash("cat b.txt; exit 3"),
            bash("pwd; date"),
            python("1/0"),
            ("nosuch", {}),
            ("delegate", {"task": "Count."}),
            ("twice", {"path": "b.txt"}),
            "It has **2** rows: `rows`.",
        ]
        agent = Agent(ScriptedModel(turns), session)
        delegate_tool(agent, model=ScriptedModel([bash("wc -l < in/data.csv"), "Three."]))
        await agent.run("How many rows?")
        await session.call(*write("c.txt", "nine"), origin="person")
        await session.undo()
        await session.call("file", {"operation": "search", "path": ".", "query": "eight"}, origin="person")
        yield session


def run_in(folder: Path, command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, **private_home(folder), capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_a_notebook_run_again_gives_the_same_outputs(session: Session, tmp_path: Path) -> None:
    summary = str(export_session(session, tmp_path / "run.ipynb"))
    assert summary.splitlines()[0].endswith("run.ipynb: 15 calls, and 1 file of the workspace.")
    for missing in ("blob: no text", "big.txt: 66,560 bytes", "link: a link"):
        assert f"Not in it: {missing}" in summary
    command = [sys.executable, "-m", "pytest", "-q", "--nbval", "run.ipynb", "--rootdir", str(tmp_path)]
    command += ["-c", "/dev/null", "-p", "no:cacheprovider", "-p", "no:asyncio"]
    run = await asyncio.to_thread(run_in, tmp_path, command)
    assert run.returncode == 0, run.stdout
    stored = nbformat.read(tmp_path / "run.ipynb", as_version=4)
    code = [cell for cell in stored.cells if cell.cell_type == "code"]
    assert f"{len(code)} passed" in run.stdout
    checked = [cell for cell in code if cell.outputs and not cell.metadata.get("tags")]
    assert len(checked) >= 9, "most outputs are the same each time, and are checked"
    assert any("image/png" in cell.outputs[0].data for cell in checked)
    (dated,) = [cell for cell in code if "pwd; date" in cell.source]
    assert dated.metadata.tags == ["nbval-ignore-output"], "the workspace lies elsewhere when it is run"
    assert "/work" in dated.outputs[0].data["text/plain"]
    assert str(tmp_path) not in json.dumps(stored)


async def test_files_beyond_a_mebibyte_are_named(open_session: OpenSession, tmp_path: Path) -> None:
    session = open_session(MockTool("look", effect=Effect.READ_ONLY))
    await session.start()
    assert session.workspace is not None
    for number in range(20):
        (session.workspace / f"{number:02}.txt").write_text("x" * (60 << 10))
    (session.workspace / "key.txt").write_text(f"sk-{'a' * 30}")
    summary = export_session(session, tmp_path / "run.ipynb")
    assert (summary.embedded, len(summary.missing)) == (18, 3)
    assert "17.txt: the files together are larger than 1 MiB" in summary.missing
    assert "aaaaaaaaaa" not in (tmp_path / "run.ipynb").read_text()
    transcript = read_transcript(tmp_path / "run.ipynb")
    assert transcript.files["key.txt"] == "[redacted: api-key]"
    assert transcript.missing == summary.missing


@pytest.mark.parametrize("name", ["run.txt", "run", "none/run.ipynb", "none/run.html"])
async def test_failed_write_is_reported(open_session: OpenSession, tmp_path: Path, name: str) -> None:
    session = open_session(MockTool("look", effect=Effect.READ_ONLY))
    with pytest.raises(UsageError, match=r"must end with|cannot be written"):
        export_session(session, tmp_path / name)
    assert not (tmp_path / name).exists()


# ---- the page


class _Page(HTMLParser):
    """Checks each tag of a page; what lies in the boxes of results is checked once more by itself."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        ours = {"html", "head", "meta", "title", "style", "body", "header", "main", "footer", "section", "h1"}
        assert tag in OUR_TAGS | ours, f"<{tag}> is in the page"
        for name, given in attrs:
            value = given or ""
            assert not name.startswith(("on", "data-")), f"{name} on <{tag}>"
            assert name not in {"href", "srcset", "action", "formaction", "background", "ping"}
            if name == "src":
                assert IMAGE.fullmatch(value)
            if name == "style":
                assert "url" not in value
            if tag == "iframe" and name == "sandbox":
                assert value == ""
            if tag == "meta" and name == "http-equiv":
                assert value == "Content-Security-Policy"

    def handle_decl(self, decl: str) -> None:
        assert decl == "doctype html"


def assert_harmless(page: str) -> _Page:
    walker = _Page()
    walker.feed(page)
    walker.close()
    style = page.partition("<style>")[2].partition("</style>")[0]
    assert "url(" not in style
    assert "@import" not in style
    assert f'content="{POLICY}"' in page.partition("</head>")[0]
    for tag in ("html", "head", "style", "body", "main", "h1", "title"):
        assert walker.tags.count(tag) == 1
    assert not EVIL_TAGS & {*walker.tags} - {"iframe", "meta", "style", "h1"}
    # Without the page's own tags and classes all of it must pass as a single result does.
    inside = page.partition("<main>")[2].partition("</main>")[0]
    plain = re.sub(r' class="(?!mathjax)[a-z ]+"', "", inside)
    assert_inert(plain.replace("<section>", "<div>").replace("</section>", "</div>"))
    return walker


async def test_the_page_shows_everything_and_stands_alone(session: Session, tmp_path: Path) -> None:
    export_session(session, tmp_path / "run.ipynb")
    start = {"in/data.csv": "a,b\n1,2\n3,4\n"}
    assert read_transcript(tmp_path / "run.ipynb").files == start, "not those of now"
    assert str(export_session(session, tmp_path / "run.html")).endswith("run.html: 15 calls.")
    page = (tmp_path / "run.html").read_text()
    walker = assert_harmless(page)
    assert walker.tags.count("img") == 1
    for text in ("How many rows?", "It has <strong>2</strong> rows: <code>rows</code>.", "ZeroDivisionError"):
        assert text in page
    assert "http" not in page.replace("http-equiv", "")
    assert str(tmp_path) not in page
    assert "prefers-color-scheme:dark" in page


@pytest.mark.parametrize("text", HOSTILE_WORDS)
async def test_hostile_words_do_nothing(open_session: OpenSession, tmp_path: Path, text: str) -> None:
    say = MockTool("say", effect=Effect.READ_ONLY, result=lambda *_: text)
    session = open_session(say)
    agent = Agent(ScriptedModel([("say", {text: text}), ("say", {"x": text}), text]), session, text)
    await agent.run(text)
    await session.call(text, {})
    export_session(session, tmp_path / "run.html", title=text)
    page = (tmp_path / "run.html").read_text()
    assert_harmless(page)
    assert "aaaaaaaa" not in page
    for bad in ("\x1b", "\0", "\u202e"):
        assert bad not in page


@pytest.mark.sample(8)
@pytest.mark.parametrize("name", HOSTILE)
async def test_hostile_outputs_do_nothing(open_session: OpenSession, tmp_path: Path, name: str) -> None:
    bundle: Any = HOSTILE[name]
    result = ToolResult.text("token=</div><script>").with_metadata(displays=[bundle])
    session = open_session(MockTool("say", effect=Effect.READ_ONLY, result=lambda *_: result))
    await session.call("say", {})
    export_session(session, tmp_path / "run.html")
    assert_harmless((tmp_path / "run.html").read_text())
