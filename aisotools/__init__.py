"""Tool calling you can see, approve, interrupt and undo, in a notebook.

Public names are imported on first use, so that worker processes and programs that use one part do not load
the others.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    # calls and results
    "Effect": "core.types",
    "ToolCall": "core.types",
    "ToolResult": "core.types",
    "ToolDefinition": "core.types",
    "Facts": "core.types",
    "Decision": "core.types",
    # tools
    "tool": "tools.function",
    "Tool": "core.protocols",
    "ToolContext": "core.protocols",
    "ToolRegistry": "tools.registry",
    # policy and approval
    "Policy": "policy.rules",
    "Rule": "policy.rules",
    "Evaluation": "policy.rules",
    "classify_shell": "policy.shell.classify",
    "ShellReport": "policy.shell.classify",
    "Approver": "core.protocols",
    "Approval": "core.types",
    "ApprovalRequest": "core.types",
    "AllowAll": "policy.approvers",
    "DenyAll": "policy.approvers",
    "ScriptedApprover": "policy.approvers",
    "ConsoleApprover": "session.approvers",
    "NotebookApprover": "notebook.approval.approver",
    # sessions and sandboxes
    "Session": "session.session",
    "SessionPool": "session.pool",
    "Limits": "sandbox.limits",
    "GatewaySandbox": "integrations.jupyter_gateway.sandbox",
    "current_session": "notebook.current",
    # agents
    "Agent": "agent.agent",
    "Budgets": "agent.budgets",
    "Model": "core.messages",
    "ScriptedModel": "agent.models.scripted",
    "ReplayModel": "agent.models.replay",
    "HumanModel": "agent.models.human",
    "LocalModel": "agent.models.local",
    "provider_model": "agent.models.provider",
    # testing
    "MockTool": "testing.fakes",
    "FakeSandbox": "testing.fakes",
    # errors
    "AisotoolsError": "core.exceptions",
    "ToolError": "core.exceptions",
    "UnknownTool": "core.exceptions",
}

__all__ = ["__version__", "load_ipython_extension", "unload_ipython_extension", *_HOME]  # noqa: PLE0604 - all strings


def __getattr__(name: str) -> Any:
    """Import a public name from its module on first use."""
    try:
        home = _HOME[name]
    except KeyError:
        raise AttributeError(f"module 'aisotools' has no attribute {name!r}") from None
    value = getattr(import_module(f"aisotools.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return every public name, imported or not."""
    return sorted({*globals(), *__all__})


def load_ipython_extension(shell: Any) -> None:
    """Register the magics, for `%load_ext aisotools`. Nothing is printed, started or contacted."""
    from aisotools.notebook import extension

    extension.load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """Undo `load_ipython_extension` and close the notebook's session, for `%unload_ext aisotools`."""
    from aisotools.notebook import extension

    extension.unload(shell)


if TYPE_CHECKING:
    # For type checkers and editors; tests/test_shape.py compares it with the table above. `X as X` exports X
    # to programs that are checked strictly.
    from aisotools.agent.agent import Agent as Agent
    from aisotools.agent.budgets import Budgets as Budgets
    from aisotools.agent.models.human import HumanModel as HumanModel
    from aisotools.agent.models.local import LocalModel as LocalModel
    from aisotools.agent.models.provider import provider_model as provider_model
    from aisotools.agent.models.replay import ReplayModel as ReplayModel
    from aisotools.agent.models.scripted import ScriptedModel as ScriptedModel
    from aisotools.core.exceptions import (
        AisotoolsError as AisotoolsError,
        ToolError as ToolError,
        UnknownTool as UnknownTool,
    )
    from aisotools.core.messages import Model as Model
    from aisotools.core.protocols import Approver as Approver, Tool as Tool, ToolContext as ToolContext
    from aisotools.core.types import (
        Approval as Approval,
        ApprovalRequest as ApprovalRequest,
        Decision as Decision,
        Effect as Effect,
        Facts as Facts,
        ToolCall as ToolCall,
        ToolDefinition as ToolDefinition,
        ToolResult as ToolResult,
    )
    from aisotools.integrations.jupyter_gateway.sandbox import GatewaySandbox as GatewaySandbox
    from aisotools.notebook.approval.approver import NotebookApprover as NotebookApprover
    from aisotools.notebook.current import current_session as current_session
    from aisotools.policy.approvers import (
        AllowAll as AllowAll,
        DenyAll as DenyAll,
        ScriptedApprover as ScriptedApprover,
    )
    from aisotools.policy.rules import Evaluation as Evaluation, Policy as Policy, Rule as Rule
    from aisotools.policy.shell.classify import ShellReport as ShellReport, classify_shell as classify_shell
    from aisotools.sandbox.limits import Limits as Limits
    from aisotools.session.approvers import ConsoleApprover as ConsoleApprover
    from aisotools.session.pool import SessionPool as SessionPool
    from aisotools.session.session import Session as Session
    from aisotools.testing.fakes import FakeSandbox as FakeSandbox, MockTool as MockTool
    from aisotools.tools.function import tool as tool
    from aisotools.tools.registry import ToolRegistry as ToolRegistry
