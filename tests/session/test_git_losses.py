"""What git would destroy: asked about again when a person changes it, and covered by no earlier approval."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aisotools.core.types import Approval, ApprovalRequest, Decision, ToolCall
from aisotools.policy.approvers import DenyAll
from aisotools.policy.rules import Policy, Rule
from aisotools.session.session import Session
from tests.conftest import OpenSession

SETUP = """
git init -q -b main . && git config user.name a && git config user.email a@b
mkdir -p data out && echo one > in.txt && echo raw > data/raw.csv
git add . && git commit -qm first && git branch br
echo before > in.txt && echo before > data/raw.csv && echo old > out/old.txt
"""
MINE = "the person's work\n"


def save(path: str) -> Callable[[Path], None]:
    """What a person does: a file with new content."""

    def change(workspace: Path) -> None:
        (workspace / path).write_text(MINE, "utf-8")

    return change


LOSING: list[tuple[str, Callable[[Path], None]]] = [
    ("git checkout -- in.txt", save("in.txt")),
    ("git checkout in.txt", save("in.txt")),
    ("git checkout HEAD in.txt", save("in.txt")),
    ("git checkout -- '*.txt'", save("in.txt")),
    ("git checkout -- data", save("data/raw.csv")),
    ("git checkout -f br", save("in.txt")),
    ("git restore in.txt", save("in.txt")),
    ("git restore .", save("data/raw.csv")),
    ("git restore data", save("data/raw.csv")),
    ("git reset --hard", save("in.txt")),
    ("git switch -f br", save("in.txt")),
    ("git rm -f in.txt", save("in.txt")),
    ("git clean -fdx", save("new.txt")),
    ("git clean -fd out", save("out/new.txt")),
    ("git clean -f out/old.txt", save("out/old.txt")),
    ("cd out && git reset --hard", save("in.txt")),
    ("git -C out checkout -- ../in.txt", save("in.txt")),
    ("find data -delete", save("data/new.csv")),
]


class Person:
    """Approves the first question, perhaps after saving a file, and denies every other."""

    def __init__(self, change: Callable[[], None] | None = None, remember: Any = None) -> None:
        self.requests: list[ApprovalRequest] = []
        self.change, self.remember = change, remember

    async def ask(self, request: ApprovalRequest) -> Approval:
        self.requests.append(request)
        if len(self.requests) > 1:
            return Approval("deny")
        if self.change is not None:
            self.change()
        return Approval("approve", remember=self.remember)


def run(script: str, workspace: Path) -> None:
    subprocess.run(["bash", "-e", "-c", script], cwd=workspace, check=True)


async def opened(open_one: OpenSession, **options: Any) -> tuple[Session, Path]:
    session = open_one(**options)
    await session.start()
    workspace = session.workspace
    assert workspace is not None
    run(SETUP, workspace)
    return session, workspace


def is_there(workspace: Path) -> bool:
    return any(
        MINE.encode() in path.read_bytes()
        for path in workspace.rglob("*")
        if path.is_file() and ".git" not in path.parts
    )


@pytest.mark.parametrize(("command", "change"), LOSING, ids=[command for command, _ in LOSING])
async def test_a_file_that_is_saved_while_the_card_is_up_is_asked_about_again(
    real_session: OpenSession, command: str, change: Callable[[Path], None]
) -> None:
    session, workspace = await opened(real_session)
    person = session.approver = Person(lambda: change(workspace))
    await session.call("sandbox_bash", {"command": command}, origin="model")
    assert len(person.requests) == 2
    assert any("changed" in reason for reason in person.requests[1].reasons)
    assert is_there(workspace)


@pytest.mark.parametrize(("command", "change"), LOSING, ids=[command for command, _ in LOSING])
async def test_an_approval_that_is_remembered_covers_no_other_loss(
    real_session: OpenSession, command: str, change: Callable[[Path], None]
) -> None:
    session, workspace = await opened(real_session)
    person = session.approver = Person(remember="call")
    first = await session.call("sandbox_bash", {"command": command}, origin="model")
    assert not first.is_error, "the control: it runs, and is remembered"
    assert len(session.grants) == 1
    (workspace / "data").mkdir(exist_ok=True)
    (workspace / "out").mkdir(exist_ok=True)
    change(workspace)
    await session.call("sandbox_bash", {"command": command}, origin="model")
    assert len(person.requests) == 2
    assert is_there(workspace)


@pytest.mark.parametrize(
    ("command", "decision"),
    [
        ("git mv data/raw.csv data/q.txt", Decision.DENY),
        ("git mv in.txt data/n.csv", Decision.DENY),
        ("git rm -f data/raw.csv", Decision.DENY),
        ("git restore data/raw.csv", Decision.DENY),
        ("git checkout -- data/raw.csv", Decision.DENY),
        ("git checkout HEAD data/raw.csv", Decision.DENY),
        ("git stash push data/raw.csv", Decision.DENY),
        ("find data/raw.csv -delete", Decision.DENY),
        ("gofmt -w data/raw.csv", Decision.DENY),
        ("shfmt -w data/raw.csv", Decision.DENY),
        ("git mv data dd", Decision.ASK),
        ("git stash", Decision.ASK),
        ("git checkout br", Decision.ASK),
        ("git merge br", Decision.ASK),
        ("git reset --hard", Decision.ASK),
        ("git clean -fd data", Decision.ASK),
        ("gofmt -w .", Decision.ASK),
        ("gdalinfo -stats data/x.tif", Decision.ASK),
        ("git add in.txt", Decision.ALLOW),
        ("git commit -qm x", Decision.ALLOW),
        ("git tag x", Decision.ALLOW),
        ("gofmt -w main.go", Decision.ALLOW),
    ],
)
async def test_a_rule_about_writing_concerns_what_git_changes(
    real_session: OpenSession, command: str, decision: Decision
) -> None:
    rule = Rule(when={"writes": ["*.csv"]}, decision=Decision.DENY)
    session, _ = await opened(real_session, policy=Policy(mode="auto", rules=[rule]))
    found = session.explain(ToolCall("one", "sandbox_bash", {"command": command}, origin="model"))
    assert found.evaluation.decision is decision


@pytest.mark.parametrize(
    "command",
    [
        *("grep -r TOPSECRET", "grep -rh ''", "cd data; grep -r TOPSECRET", "echo x | grep -r TOPSECRET"),
        *("grep -r --include=*.pem TOPSECRET", "grep -d recurse TOPSECRET"),
        *("git stash list -p", "git stash list --cc"),
    ],
)
@pytest.mark.parametrize("mode", ["plan", "safe", "auto"])
async def test_content_that_a_rule_denies_is_not_shown_unasked_by_searching_the_folder(
    real_session: OpenSession, command: str, mode: Any
) -> None:
    rule = Rule(when={"paths": ["*.pem"]}, decision=Decision.DENY)
    session, workspace = await opened(real_session, policy=Policy(mode=mode, rules=[rule]))
    (workspace / "data" / "server.pem").write_text("TOPSECRET\n", "utf-8")
    run("git stash -qu && git stash apply -q", workspace)
    session.approver = DenyAll()
    result = await session.call("sandbox_bash", {"command": command}, origin="model")
    assert result.is_error
    assert "TOPSECRET" not in result.content.replace(command, "")
