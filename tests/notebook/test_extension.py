from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from IPython.core.error import UsageError

from aisotools.core.exceptions import AisotoolsError
from aisotools.notebook import extension
from tests.notebook.client import Notebook
from tests.notebook.conftest import usage_error
from tests.waiting import wait_until

STATE = """
import json, threading
from pathlib import Path
from aisotools.session import approvers
from aisotools.notebook import current

def state():
    ip = get_ipython()
    kinds = ip.magics_manager.magics
    return {
        "magics": sorted(f"{k} {n}" for k in kinds for n in kinds[k] if n in OURS),
        "registry": sorted(n for n in ip.magics_manager.registry if "olicyMagics" in n or "isotools" in n),
        "cleanup": [f.__name__ for f in ip.input_transformers_cleanup if "aisotools" in f.__module__],
        "formats": [str(t) for f in ip.display_formatter.formatters.values()
                    for t in [*f.type_printers, *f.deferred_printers] if "aisotools" in str(t)],
        "bundles": [str(t) for t in ip.display_formatter.mimebundle_formatter.type_printers],
        "factory": approvers._factory is not None,
        "session": current._session is not None,
    }

OURS = {"tools", "sandbox", "call", "policy", "approvals"}
before = state()
"""


def children(notebook: Notebook) -> list[int]:
    """The processes below the kernel. Only their numbers are asked for: some may end at this moment."""
    code = "import psutil; print([c.pid for c in psutil.Process().children(recursive=True)])"
    return list(json.loads(notebook.run(code).text))


def test_load_use_reload_and_unload(kernel: Notebook) -> None:
    assert not kernel.run(STATE).error
    threads = kernel.run("print(threading.active_count())").text

    run = kernel.run("%load_ext aisotools")
    assert (run.text, run.error, run.displays, run.result) == ("", "", [], {})
    assert children(kernel) == []
    assert kernel.run("print(threading.active_count())").text == threads
    assert kernel.run("print(current._session, list(Path().iterdir()))").text.startswith("None [")
    assert "workspace" not in kernel.run("print(list(Path().iterdir()))").text

    again = kernel.run("one = state()\n%load_ext aisotools\n%reload_ext aisotools\nprint(state() == one)")
    assert "True" in again.text
    assert kernel.run("r = %call python code='1 + 1'\nprint(r.content)").text == "2\n"
    assert children(kernel)

    assert not kernel.run("mine = current.current_session()\n%unload_ext aisotools").text
    assert kernel.run(
        "import asyncio\nfor _ in range(600):\n    if mine.closed and state() == before: break\n"
        "    await asyncio.sleep(0.1)\nprint(mine.closed, state() == before)"
    ).text == ("True True\n")
    assert "not found" in usage_error(kernel.run("%tools"))
    assert "not found" in usage_error(kernel.run("%call python code='1'"))
    # Only the fork server, the fork that waits for the next session, and what cleans up after both may stay;
    # the others end a moment after the session.
    wait_until(lambda: len(children(kernel)) <= 3)


def test_the_extension_loads_again(kernel: Notebook) -> None:
    assert not kernel.run("%load_ext aisotools").text
    assert kernel.run("r = %call python code='1 + 2'\nprint(r.content)").text == "3\n"


def test_an_invalid_settings_file_stops_loading_before_anything_is_registered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(_shell: Any) -> Any:
        raise AisotoolsError("settings: broken")

    monkeypatch.setattr(extension, "settings_for", broken)
    shell = SimpleNamespace(configurables=[])  # has nothing else: whatever is registered would fail
    with pytest.raises(UsageError, match="settings: broken"):
        extension.load(shell)
    assert shell.configurables == []
