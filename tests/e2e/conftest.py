"""A real JupyterLab and a real browser, one of each per run; a fresh notebook per test.

These tests run only when asked for: `pytest -m e2e`, or `-m "e2e and not slow"` for the quick ones. They need
Chromium (`apt-get install chromium`): without it they fail where `CI` is set, and are skipped elsewhere. The
browser is kept from every address but this machine's. Screenshots go to the folder named by
`AISOTOOLS_SCREENSHOTS`, else to a temporary one: look at them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import (
    Browser,
    BrowserContext,
    Dialog,
    Error,
    Locator,
    Page,
    Route,
    async_playwright,
    expect,
)

# What comes of a click is waited for; how long it takes is for the benchmarks to say.
expect.set_options(timeout=15_000)

OFFLINE = [
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-domain-reliability",
    "--disable-sync",
    "--no-first-run",
    "--no-pings",
]
QUIET = {
    "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False},
    "@jupyterlab/docmanager-extension:plugin": {"autosave": False},
}
_IDLE = """() => {
  const panel = window.jupyterapp && window.jupyterapp.shell.currentWidget;
  return panel && panel.context && panel.context.isReady && panel.content.widgets.length > 0
    && panel.sessionContext.session?.kernel?.status === 'idle';
}"""
_RUN = """(index) => {
  window.jupyterapp.shell.currentWidget.content.activeCellIndex = index;
  window.jupyterapp.commands.execute('notebook:run-cell');
}"""


_SHOW = """async (index) => {
  const notebook = window.jupyterapp.shell.currentWidget.content;
  await notebook.scrollToItem(index, 'center');
}"""


class NotebookPage:
    """A notebook that is open in the browser."""

    def __init__(self, page: Page, path: Path) -> None:
        self.page = page
        self.path = path
        self.foreign: list[str] = []
        self.left: list[str] = []
        self.dialogs: list[str] = []

    async def run(self, index: int) -> Locator:
        """Start a cell; its output area, while it runs."""
        await self.page.evaluate(_RUN, index)
        return self.output(index)

    def output(self, index: int) -> Locator:
        cell = f".jp-Notebook .jp-Cell[data-windowed-list-index='{index}']"
        return self.page.locator(cell).locator(".jp-Cell-outputArea")

    async def run_all(self) -> None:
        """Start all cells."""
        await self.page.evaluate("() => void window.jupyterapp.commands.execute('notebook:run-all-cells')")

    async def show_cell(self, index: int) -> Locator:
        """Have a cell in view, which the page may have left out until now; its output area."""
        await self.page.evaluate(_SHOW, index)
        await self.output(index).wait_for(state="attached")
        return self.output(index)

    async def idle(self) -> None:
        await self.page.wait_for_function(_IDLE)

    async def save(self) -> list[dict[str, Any]]:
        """Save; the cells as they are in the file."""
        await self.page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")
        cells: list[dict[str, Any]] = json.loads(self.path.read_text("utf-8"))["cells"]
        return cells

    async def theme(self, name: str) -> None:
        """`JupyterLab Light` or `JupyterLab Dark`."""
        await self.page.evaluate(
            "(theme) => window.jupyterapp.commands.execute('apputils:change-theme', {theme})", name
        )
        await self.page.wait_for_selector(f"body[data-jp-theme-name='{name}']", state="attached")

    async def on_dialog(self, dialog: Dialog) -> None:
        if dialog.type == "beforeunload":
            await dialog.accept()
            return
        self.dialogs.append(dialog.message)
        with contextlib.suppress(Error):  # what opened it may have taken the page away since
            await dialog.dismiss()

    async def guard(self, route: Route) -> None:
        origin = "/".join(self.page.url.split("/")[:3])
        leaves = route.request.is_navigation_request() and route.request.frame == self.page.main_frame
        if leaves and origin.startswith("http") and not route.request.url.startswith(origin):
            self.left.append(route.request.url)
            await route.fulfill(status=204)  # which leaves the page where it is
        elif route.request.url.startswith(("http://127.0.0.1:", "data:", "blob:")):
            await route.continue_()
        else:
            self.foreign.append(route.request.url)
            await route.abort()


class Lab:
    """A running JupyterLab."""

    def __init__(self, folder: Path, url: str, token: str) -> None:
        self.folder = folder
        self.url = url
        self.token = token
        self._count = 0

    async def open(self, browser: Browser, cells: list[str], **options: Any) -> NotebookPage:
        """A new notebook of code cells, open with its kernel idle."""
        self._count += 1
        path = self.folder / f"test-{self._count}.ipynb"
        code: list[dict[str, Any]] = [
            {
                "cell_type": "code",
                "id": f"cell{i}",
                "metadata": {},
                "source": c,
                "outputs": [],
                "execution_count": None,
            }
            for i, c in enumerate(cells)
        ]
        spec = {"name": "python3", "display_name": "Python 3", "language": "python"}
        notebook = {"nbformat": 4, "nbformat_minor": 5, "metadata": {"kernelspec": spec}, "cells": code}
        path.write_text(json.dumps(notebook), "utf-8")
        return await self.show(browser, path, **options)

    async def open_copy(self, browser: Browser, original: Path, **options: Any) -> NotebookPage:
        """A copy of a notebook and of all that lies beside it, likewise."""
        self._count += 1
        folder = self.folder / f"copy-{self._count}"
        shutil.copytree(original.parent, folder, ignore=shutil.ignore_patterns("workspace", ".*"))
        return await self.show(browser, folder / original.name, **options)

    async def show(self, browser: Browser, path: Path, app: str = "lab", **options: Any) -> NotebookPage:
        """The notebook in that file, open with its kernel idle, in `lab` or in Notebook 7 (`notebooks`)."""
        context = await browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        opened = await self._load(context, path, app)
        await opened.idle()
        return opened

    async def second_window(self, notebook: NotebookPage) -> NotebookPage:
        """The same notebook in another window of the same person."""
        self._count += 1
        return await self._load(notebook.page.context, notebook.path, "lab")

    async def _load(self, context: BrowserContext, path: Path, app: str) -> NotebookPage:
        page = await context.new_page()
        opened = NotebookPage(page, path)
        await page.route("**/*", opened.guard)
        page.on("dialog", opened.on_dialog)
        place = f"lab/workspaces/w{self._count}/tree" if app == "lab" else app
        where = f"{place}/{path.relative_to(self.folder).as_posix()}"
        await page.goto(f"{self.url}{where}?token={self.token}&reset")
        return opened


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def lab(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Lab]:
    """JupyterLab on a port of its own, with nothing of the user's."""
    home = tmp_path_factory.mktemp("lab")
    notebooks = home / "notebooks"
    settings = home / "config" / "labconfig" / "default_setting_overrides.json"
    for folder in (notebooks, settings.parent):
        folder.mkdir(parents=True)
    settings.write_text(json.dumps(QUIET), "utf-8")
    names = {"JUPYTER_CONFIG_DIR": "config", "JUPYTER_DATA_DIR": "data", "JUPYTER_RUNTIME_DIR": "runtime"}
    names |= {
        "IPYTHONDIR": "ipython",
        "JUPYTERLAB_SETTINGS_DIR": "settings",
        "JUPYTERLAB_WORKSPACES_DIR": "spaces",
    }
    env = {**os.environ, "HOME": str(home), **{key: str(home / name) for key, name in names.items()}}
    token = secrets.token_hex(16)
    command = [
        sys.executable,
        "-m",
        "jupyterlab",
        "--no-browser",
        "--expose-app-in-browser",
        "--JupyterNotebookApp.expose_app_in_browser=True",
        "--ip=127.0.0.1",
    ]
    command += [
        "--ServerApp.port=0",
        f"--IdentityProvider.token={token}",
        f"--ServerApp.root_dir={notebooks}",
    ]
    if os.geteuid() == 0:
        command.append("--allow-root")
    with (home / "server.log").open("wb") as log:
        server = await asyncio.create_subprocess_exec(*command, env=env, cwd=home, stdout=log, stderr=log)
        try:
            yield Lab(notebooks, await _url(home, server), token)
        finally:
            if server.returncode is None:
                server.terminate()
            await server.wait()


async def _url(home: Path, server: asyncio.subprocess.Process) -> str:
    for _ in range(600):
        for record in (home / "runtime").glob("jpserver-*.json"):
            url: str = json.loads(record.read_text("utf-8"))["url"]
            return url
        assert server.returncode is None, (home / "server.log").read_text("utf-8")
        await asyncio.sleep(0.1)
    raise TimeoutError((home / "server.log").read_text("utf-8"))


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Browser]:
    """Chromium as the system has it, with a home of its own."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        advice = "The browser tests need Chromium: apt-get install chromium"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(advice)
    arguments = [*OFFLINE, "--no-sandbox"] if os.geteuid() == 0 else OFFLINE
    async with async_playwright() as playwright:
        env: dict[str, str | float | bool] = {
            **{name: value for name, value in os.environ.items() if not name.startswith("XDG_")},
            "HOME": str(tmp_path_factory.mktemp("browser")),
        }
        running = await playwright.chromium.launch(executable_path=found, args=arguments, env=env)
        yield running
        await running.close()


Opener = Callable[..., Awaitable[NotebookPage]]


@pytest_asyncio.fixture(loop_scope="session")
async def open_notebook(lab: Lab, browser: Browser) -> AsyncIterator[Opener]:
    """Opens notebooks, and closes them after the test."""
    opened: list[NotebookPage] = []

    async def opener(*cells: str | Path, **options: Any) -> NotebookPage:
        if isinstance(cells[0], Path):
            opened.append(await lab.open_copy(browser, cells[0], **options))
        else:
            opened.append(await lab.open(browser, [str(cell) for cell in cells], **options))
        return opened[-1]

    yield opener
    for notebook in opened:
        await notebook.page.context.close()


@pytest.fixture(scope="session")
def screenshots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where screenshots go."""
    named = os.environ.get("AISOTOOLS_SCREENSHOTS")
    folder = Path(named) if named else tmp_path_factory.mktemp("screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    return folder
