"""Tool calling you can see, approve, interrupt and undo, in a notebook.

Every public name is imported on first use, so that a child process, or a program that wants one part, does
not pay for the others.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    # calls and what they give
    "Effect": "events",
    "ToolCall": "events",
    "ToolResult": "events",
    "ToolDefinition": "events",
    "Facts": "events",
    "Decision": "events",
    # tools
    "tool": "function_tool",
    "Tool": "contracts",
    "ToolContext": "contracts",
    "ToolRegistry": "registry",
    # deciding
    "Policy": "policy",
    "Rule": "policy",
    "Evaluation": "policy",
    "classify_shell": "shell",
    "ShellReport": "shell",
    "Approver": "contracts",
    "Approval": "events",
    "ApprovalRequest": "events",
    "AllowAll": "approval",
    "DenyAll": "approval",
    "ScriptedApprover": "approval",
    "ConsoleApprover": "approval",
    "NotebookApprover": "notebook.ask",
    # running
    "Session": "session",
    "SessionPool": "pool",
    "Limits": "sandbox.limits",
    "current_session": "notebook.current",
    # agents
    "Agent": "agent",
    "Budgets": "budgets",
    "Model": "contracts",
    "ScriptedModel": "models.scripted",
    "ReplayModel": "models.replay",
    "HumanModel": "models.human",
    "LocalModel": "models.local",
    "provider_model": "models.provider",
    # testing
    "MockTool": "testing",
    "FakeSandbox": "testing",
    # errors
    "AisotoolsError": "exceptions",
    "ToolError": "exceptions",
    "UnknownTool": "exceptions",
}

__all__ = ["__version__", "load_ipython_extension", "unload_ipython_extension", *_HOME]  # noqa: PLE0604 - all strings


def __getattr__(name: str) -> Any:
    """Import a public name from its home on first use."""
    try:
        home = _HOME[name]
    except KeyError:
        raise AttributeError(f"module 'aisotools' has no attribute {name!r}") from None
    value = getattr(import_module(f"aisotools.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Every public name, imported or not."""
    return sorted({*globals(), *__all__})


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext aisotools`: register the magics; prints nothing, starts nothing, contacts nothing."""
    from aisotools.notebook import extension

    extension.load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """`%unload_ext aisotools`: take back everything that loading did, and close the notebook's session."""
    from aisotools.notebook import extension

    extension.unload(shell)


if TYPE_CHECKING:
    # What type checkers and editors see; tests/test_shape.py holds it equal to the table above.
    from aisotools.agent import Agent
    from aisotools.approval import AllowAll, ConsoleApprover, DenyAll, ScriptedApprover
    from aisotools.budgets import Budgets
    from aisotools.contracts import Approver, Model, Tool, ToolContext
    from aisotools.events import (
        Approval,
        ApprovalRequest,
        Decision,
        Effect,
        Facts,
        ToolCall,
        ToolDefinition,
        ToolResult,
    )
    from aisotools.exceptions import AisotoolsError, ToolError, UnknownTool
    from aisotools.function_tool import tool
    from aisotools.models.human import HumanModel
    from aisotools.models.local import LocalModel
    from aisotools.models.provider import provider_model
    from aisotools.models.replay import ReplayModel
    from aisotools.models.scripted import ScriptedModel
    from aisotools.notebook.ask import NotebookApprover
    from aisotools.notebook.current import current_session
    from aisotools.policy import Evaluation, Policy, Rule
    from aisotools.pool import SessionPool
    from aisotools.registry import ToolRegistry
    from aisotools.sandbox.limits import Limits
    from aisotools.session import Session
    from aisotools.shell import ShellReport, classify_shell
    from aisotools.testing import FakeSandbox, MockTool
