"""What importing costs: the package alone loads none of the heavy libraries it may use later."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.notebook.client import Notebook, private_home

HEAVY = {
    "IPython",
    "anthropic",
    "anywidget",
    "cloudpickle",
    "griffe",
    "ipykernel",
    "ipywidgets",
    "jsonschema",
    "jupyter_client",
    "markdown_it",
    "matplotlib",
    "mcp",
    "nbclient",
    "nbformat",
    "nh3",
    "numpy",
    "openai",
    "pandas",
    "pydantic",
    "pydantic_core",
    "tree_sitter",
    "zmq",
}


def loaded_by(statement: str) -> set[str]:
    """Top-level modules that `statement` loads in a fresh interpreter, beyond what starting it loads."""
    code = f"""
import json, sys
before = set(sys.modules)
{statement}
json.dump(sorted({{name.partition(".")[0] for name in set(sys.modules) - before}}), sys.stdout)
"""
    run = subprocess.run([sys.executable, "-s", "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return set(json.loads(run.stdout))


@pytest.mark.parametrize(
    "statement",
    [
        "import aisotools",
        "from aisotools import AisotoolsError, Tool, ToolCall, ToolContext, ToolResult",
        "import aisotools.cli.main",
    ],
    ids=["package", "values and contracts", "command line"],
)
def test_loads_nothing_heavy(statement: str) -> None:
    loaded = loaded_by(statement)
    assert "aisotools" in loaded
    heavy = sorted(loaded & HEAVY)
    others = ", ".join(sorted(loaded - sys.stdlib_module_names - {"aisotools"})) or "none"
    assert not heavy, f"{statement!r} loads {', '.join(heavy)}; all outside libraries loaded: {others}"


@pytest.mark.parametrize("library", ["pydantic", "IPython"])
def test_the_check_sees_what_is_loaded(library: str) -> None:
    assert library in loaded_by(f"import {library}") & HEAVY


def test_loading_the_extension_adds_nothing_heavy_to_a_kernel(tmp_path: Path) -> None:
    notebook = Notebook(**private_home(tmp_path))
    try:
        notebook.run("import sys; before = set(sys.modules)")
        assert not notebook.run("%load_ext aisotools").error
        loaded = notebook.run("print(*{name.partition('.')[0] for name in set(sys.modules) - before})").text
        reads_shell = notebook.run("print('aisotools.policy.shell.commands' in sys.modules)").text
    finally:
        notebook.close()
    outside = set(loaded.split()) - sys.stdlib_module_names - {"aisotools"}
    assert outside <= {"IPython", "pydantic_core"}, f"%load_ext aisotools loads {', '.join(sorted(outside))}"
    assert reads_shell.strip() == "False", "what reads shell commands is loaded with the first of them"
