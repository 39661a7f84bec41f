"""Fakes, contract suites and a pytest plugin, for tests of programs that use aisotools.

Names are imported on first use, so that loading the pytest plugin stays fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_HOME = {
    "ApproverContract": "testing.contracts",
    "FakeSandbox": "testing.fakes",
    "Heard": "testing.contracts",
    "MockTool": "testing.fakes",
    "ModelContract": "testing.contracts",
    "RecordingListener": "testing.contracts",
    "SandboxContract": "testing.contracts",
    "ScriptedApprover": "policy.approvers",
    "ScriptedModel": "agent.models.scripted",
    "ToolContract": "testing.contracts",
}

__all__ = [*_HOME]  # noqa: PLE0604 - all strings


def __getattr__(name: str) -> Any:
    """Import a public name from its module on first use."""
    try:
        home = _HOME[name]
    except KeyError:
        raise AttributeError(f"module 'aisotools.testing' has no attribute {name!r}") from None
    value = getattr(import_module(f"aisotools.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return every public name, imported or not."""
    return sorted({*globals(), *__all__})


if TYPE_CHECKING:
    # For type checkers and editors; tests/test_shape.py compares it with the table above.
    from aisotools.agent.models.scripted import ScriptedModel
    from aisotools.policy.approvers import ScriptedApprover
    from aisotools.testing.contracts import (
        ApproverContract,
        Heard,
        ModelContract,
        RecordingListener,
        SandboxContract,
        ToolContract,
    )
    from aisotools.testing.fakes import FakeSandbox, MockTool
