from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from pathlib import Path

import pytest

pytest.importorskip("mcp")

import httpx2

from aisotools.cli.main import main
from aisotools.cli.mcp import TOKEN_VARIABLE, select_tools
from aisotools.core.exceptions import UsageError
from tests.integrations.features import objects
from tests.waiting import HANG_S

BROUGHT = [objects]
CODE = "import sys; from aisotools.cli.main import main; sys.exit(main())"


def test_tools_are_chosen_by_name_and_brought_along() -> None:
    assert "python" in select_tools(None)
    assert [tool.name for tool in select_tools("python, file").list()] == ["file", "python"]
    assert {"objects", "python"} == {tool.name for tool in select_tools(f"{__name__}:BROUGHT,python").list()}
    with pytest.raises(UsageError, match="no tool named 'pyhton'"):
        select_tools("pyhton")
    with pytest.raises(UsageError, match="cannot be imported"):
        select_tools("no.such.module:tools")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--http", "99999"], "Port 99999 cannot be used"),
        (["--tools", "nothing"], "no tool named 'nothing'"),
    ],
)
def test_wrong_command_lines_are_reported(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["mcp", "serve", "--workspace", str(tmp_path / "work"), *words]) == 1
    printed = capsys.readouterr()
    assert message in printed.err
    assert not printed.out


@pytest.mark.slow
async def test_over_http_it_tells_address_and_token_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    words = ["mcp", "serve", "--http", "0", "--workspace", str(tmp_path / "work")]
    env = {**os.environ, "HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state")}
    env.pop(TOKEN_VARIABLE, None)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CODE, *words, stderr=asyncio.subprocess.PIPE, env=env
    )
    assert process.stderr is not None
    first = (await asyncio.wait_for(process.stderr.readline(), HANG_S)).decode()
    second = (await asyncio.wait_for(process.stderr.readline(), HANG_S)).decode()
    url = first.removeprefix("Serving at ").strip()
    token = second.rpartition(" ")[2].strip()
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/mcp", url)
    assert len(token) >= 40
    async with httpx2.AsyncClient() as http:
        assert (await http.post(url, json={})).status_code == 401
        good = {"Authorization": f"Bearer {token}"}
        assert (await http.post(url, json={}, headers=good)).status_code != 401
    process.send_signal(signal.SIGINT)
    assert await asyncio.wait_for(process.wait(), HANG_S) == 130
