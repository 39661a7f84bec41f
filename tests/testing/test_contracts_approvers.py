"""Everybody who can be asked passes the same suite."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from aisotools.core.protocols import Approver
from aisotools.core.types import Approval
from aisotools.notebook.approval.approver import NotebookApprover
from aisotools.policy.approvers import AllowAll, DenyAll, ScriptedApprover
from aisotools.session.approvers import ConsoleApprover
from aisotools.testing.contracts import ApproverContract


def typed(prompt: str) -> str:
    return "y"


def a_shell(**kernel: object) -> object:
    """A shell whose front end shows no card, or takes no input."""
    return SimpleNamespace(kernel=SimpleNamespace(raw_input=typed, **kernel))


APPROVERS: dict[str, Callable[[], Approver]] = {
    "allow all": AllowAll,
    "deny all": DenyAll,
    "script": lambda: ScriptedApprover(["approve", Approval("deny", reason="no")]),
    "empty script": ScriptedApprover,
    "console": lambda: ConsoleApprover(read_line=typed, write=lambda text: None),
    "notebook, input box": lambda: NotebookApprover(shell=a_shell(_allow_stdin=True), hello_s=0.05),
    "notebook, headless": lambda: NotebookApprover(shell=a_shell(_allow_stdin=False)),
    "notebook, card": lambda: NotebookApprover(shell=a_shell(_allow_stdin=True), hello_s=0.5),
}


class TestApprovers(ApproverContract):
    @pytest.fixture(autouse=True, params=list(APPROVERS))
    def _approver(self, request: pytest.FixtureRequest) -> None:
        self.make = APPROVERS[request.param]  # type: ignore[method-assign]  # one suite, many parts


def test_a_question_that_nobody_answers_can_be_withdrawn() -> None:
    never = threading.Event()

    def read(prompt: str) -> str:
        """Wait for a line that never comes, looking up now and then."""
        while not never.wait(0.01):
            pass
        return "y"

    class Suite(ApproverContract):
        def make(self) -> Approver:
            return ConsoleApprover(read_line=read, write=lambda text: None)

    Suite().test_can_be_withdrawn()
