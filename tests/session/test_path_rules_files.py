"""What a rule denies, against the tools that work on files: every operation of theirs, at each level.

Each attempt names something around the denied file, or another name of it, and would show its content. The
control is the same attempt without the rule.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from aisotools.core.exceptions import SandboxError
from aisotools.core.types import Approval, ApprovalRequest, Decision, Remember, ToolResult
from aisotools.policy.approvers import AllowAll
from aisotools.policy.rules import Policy, Rule
from aisotools.session.session import Session
from tests.conftest import OpenSession
from tests.session.test_path_rules import Questions, call, needs

SECRET = "TOPSECRET-5d20"
PICTURE = b"\x89PNG\r\n\x1a\n" + SECRET.encode()
DENIED = ("secrets/*", "deep/er/key", "secret.txt")

Attempt = tuple[tuple[str, dict[str, Any]], ...]


def search(path: str = ".", **arguments: Any) -> Attempt:
    """A search for lines of the secret, and of files that may be read."""
    return (("file", {"operation": "search", "path": path, "pattern": "TOP", **arguments}),)


def reading(path: str) -> Sequence[Attempt]:
    """Ways to read one file."""
    old = {"old": "TOP", "new": "top"}
    patch = f"--- a/{path}\n+++ b/{path}\n@@ -1 +1 @@\n-nothing\n+new\n"
    return [
        (("file", {"operation": "read", "path": path}),),
        (("file", {"operation": "read", "path": path, "start_line": 1, "end_line": 1}),),
        (("sandbox_read", {"path": path}),),
        search(path),
        search(path, regex=False),
        (
            ("file", {"operation": "read", "path": path}),  # what is edited has to be read before
            ("edit", {"path": path, "edits": [old]}),
        ),
        (("apply_patch", {"patch": patch}), ("file", {"operation": "read", "path": path})),
        (
            ("file", {"operation": "copy", "path": path, "destination": "taken"}),
            ("sandbox_read", {"path": "taken"}),
        ),
        (
            ("file", {"operation": "move", "path": path, "destination": "taken"}),
            ("sandbox_read", {"path": "taken"}),
        ),
    ]


ATTEMPTS: list[Attempt] = [
    search(),
    search(include_ignored=True),
    search(context_lines=3),
    search(glob="*.txt"),
    search(glob="**/key"),
    search(pattern="."),
    search("deep"),
    search("deep/er"),
    search("deep/er", pattern="[A-Z]{3}SECRET"),
    search("secrets"),
    search("way"),
    *(
        attempt
        for path in ("secrets/key", "deep/er/key", "secret.txt", "link", "way/key", "hard", "secrets/in/a")
        for attempt in reading(path)
    ),
    *(
        (
            ("file", {"operation": operation, "path": path, "destination": "taken"}),
            ("sandbox_read", {"path": f"taken/{inner}"}),
            *search("taken"),
        )
        for operation in ("copy", "move")
        for path, inner in (("deep", "er/key"), ("deep/er", "key"), ("secrets", "key"), ("secrets/in", "a"))
    ),
    (("display", {"image": "secrets/pic.png"}),),
    (("display", {"image": "way/pic.png"}),),
]


def lay_out(workspace: Path) -> None:
    for folder in ("secrets/in", "deep/er", "pub"):
        (workspace / folder).mkdir(parents=True)
    for name in ("secrets/key", "secrets/in/a", "deep/er/key", "secret.txt"):
        (workspace / name).write_text(f"{SECRET}\n")
    (workspace / "secrets" / "pic.png").write_bytes(PICTURE)
    (workspace / "pub" / "notes").write_text("TOP of the notes\n")
    (workspace / "deep" / "beside").write_text("TOP beside\n")
    (workspace / "link").symlink_to("secret.txt")
    (workspace / "way").symlink_to("secrets")
    os.link(workspace / "secrets" / "key", workspace / "hard")


def shows(result: ToolResult) -> bool:
    pictures = [base64.b64decode(one) for name, one in (result.data or {}).items() if name == "image/png"]
    return SECRET in f"{result.content}{result.value}{pictures}"


def deny(*globs: str, key: str = "paths") -> Policy:
    return Policy(mode="auto", rules=[Rule(when={key: list(globs)}, decision=Decision.DENY)])


async def shown_by(session: Session, attempt: Attempt) -> bool:
    """Return whether a call of an attempt shows the secret."""
    results = [await call(session, name, arguments) for name, arguments in attempt]
    return any(map(shows, results))


@pytest.mark.parametrize("key", ["paths", "reads"])
@pytest.mark.parametrize("level", ["isolated", "confined", "guarded"])
async def test_no_operation_of_a_file_tool_shows_what_a_rule_denies(
    real_session: OpenSession, tmp_path: Path, level: str, key: str
) -> None:
    """Whoever is asked allows everything."""
    needs(level)
    workspace = tmp_path / "workspace"
    lay_out(workspace)
    session = real_session(policy=deny(*DENIED, key=key), level=level, approver=AllowAll())
    shown = [attempt for attempt in ATTEMPTS if await shown_by(session, attempt)]
    assert shown == []
    for name in ("secrets/key", "secrets/in/a", "deep/er/key", "secret.txt", "hard"):
        assert (workspace / name).read_text() == f"{SECRET}\n", f"{name} is as it was"


@pytest.mark.parametrize("level", ["isolated", "confined", "guarded"])
async def test_each_of_these_operations_shows_it_without_the_rule(
    real_session: OpenSession, tmp_path: Path, level: str
) -> None:
    needs(level)
    lay_out(tmp_path / "workspace")
    session = real_session(policy=Policy(mode="auto"), level=level, approver=AllowAll())
    for attempt in ATTEMPTS:
        assert await shown_by(session, attempt), attempt
        if any(name == "edit" or arguments.get("destination") for name, arguments in attempt):
            await session.undo()


@pytest.mark.parametrize("level", ["confined", "guarded"])
async def test_a_search_names_how_many_files_a_rule_denies_and_is_not_asked_about(
    real_session: OpenSession, tmp_path: Path, level: str
) -> None:
    needs(level)
    lay_out(tmp_path / "workspace")
    asked = Questions()
    session = real_session(policy=deny(*DENIED), level=level, approver=asked)
    found = await call(session, *search()[0])
    assert found.content == (
        "deep/beside:1: TOP beside\npub/notes:1: TOP of the notes\n"
        "[Files left out since a rule of the policy denies them: 6.]"
    )
    names = await call(session, "file", {"operation": "search", "glob": "**/key"})
    assert names.content == "deep/er/key\nsecrets/key", "names can be listed"
    assert asked.asked == []


@pytest.mark.parametrize("operation", ["copy", "move"])
@pytest.mark.parametrize("level", ["isolated", "confined", "guarded"])
async def test_a_folder_that_holds_what_a_rule_denies_is_not_taken_elsewhere(
    real_session: OpenSession, tmp_path: Path, level: str, operation: str
) -> None:
    needs(level)
    workspace = tmp_path / "workspace"
    lay_out(workspace)
    session = real_session(
        policy=deny("deep/er/key", "deep/none", key="reads"), level=level, approver=AllowAll()
    )
    arguments = {"operation": operation, "path": "deep", "destination": "taken"}
    refused = await call(session, "file", arguments)
    assert refused.is_error
    assert "a rule of the policy denies 'deep/er/key', which is in it" in refused.content
    assert not (workspace / "taken").exists()
    beside = await call(session, "file", {**arguments, "path": "deep/beside", "operation": "copy"})
    assert not beside.is_error, beside.content
    assert (workspace / "taken").read_text() == "TOP beside\n"


@pytest.mark.parametrize("level", ["confined", "guarded"])
async def test_a_hard_link_that_the_sandbox_makes_later_is_left_out_as_well(
    real_session: OpenSession, tmp_path: Path, level: str
) -> None:
    needs(level)
    lay_out(tmp_path / "workspace")
    session = real_session(policy=deny("secret.txt", key="reads"), level=level, approver=AllowAll())
    assert SECRET not in (await call(session, *search("secret.txt")[0])).content
    made = await call(session, "python", {"code": "import os; os.link('secret' + '.txt', 'pub/later')"})
    assert not made.is_error, made.content
    for attempt in (search("pub"), *reading("pub/later")):
        assert not await shown_by(session, attempt), attempt


class Remembering:
    """Allows, and remembers it for one scope where that is offered."""

    def __init__(self, scope: Remember) -> None:
        self._scope = scope
        self.asked: list[ApprovalRequest] = []

    async def ask(self, request: ApprovalRequest) -> Approval:
        self.asked.append(request)
        is_offered = self._scope in request.preview["remember"]
        return Approval("approve", remember=self._scope if is_offered else None)


@pytest.mark.parametrize("has_rule", [True, False])
@pytest.mark.parametrize("level", ["confined", "isolated"])
async def test_an_approval_of_a_tool_does_not_reach_what_a_rule_denies_by_a_pattern(
    real_session: OpenSession, tmp_path: Path, level: str, has_rule: bool
) -> None:
    """A pattern hides nothing, so a call that may concern it is a question each time."""
    needs(level)
    workspace = tmp_path / "workspace"
    lay_out(workspace)
    (workspace / "pub" / "a.key").write_text(f"{SECRET}\n")
    rules = [Rule(when={"paths": "*.key"}, decision=Decision.DENY)] if has_rule else []
    approver = Remembering("tool")
    session = real_session(policy=Policy(mode="safe", rules=rules), level=level, approver=approver)
    write = {"operation": "write", "path": "pub/new", "content": "new"}
    copy = {"operation": "copy", "path": "pub", "destination": "taken"}
    for arguments in (write, {**write, "content": "newer"}):
        assert not (await call(session, "file", arguments)).is_error
    assert len(approver.asked) == 1, "remembered"
    for arguments in (*search("pub")[0][1:], *search("pub")[0][1:], copy):
        await call(session, "file", arguments)
    assert len(approver.asked) == 1 + 3 * has_rule
    offered = [set(request.preview["remember"]) for request in approver.asked[1:]]
    assert all("tool" not in one for one in offered)


async def test_move_out_of_a_folder_with_hidden_files_says_what_to_do_instead(
    real_session: OpenSession, tmp_path: Path
) -> None:
    needs("isolated")
    (tmp_path / "workspace" / "deep" / "er").mkdir(parents=True)
    for name in ("key", "other"):
        (tmp_path / "workspace" / "deep" / "er" / name).write_text(name)
    rule = Rule(decision=Decision.DENY, when={"paths": ["deep/er/key"]}, reason="It is secret.")
    session = real_session(level="isolated", policy=Policy(mode="auto", rules=(rule,)), approver=AllowAll())
    arguments = {"operation": "move", "path": "deep/er/other", "destination": "other"}
    refused = await session.call("file", arguments)
    assert "they are on different mounts, as a folder is in which a rule hides files" in refused.content
    for change in ({"operation": "copy"}, {"operation": "delete"}):
        done = await session.call("file", {**arguments, **change})
        assert not done.is_error, done.content
    assert (tmp_path / "workspace" / "other").read_text() == "other"
    assert not (tmp_path / "workspace" / "deep" / "er" / "other").exists()


async def test_call_before_which_the_sandbox_cannot_follow_a_rule_is_no_step(
    real_session: OpenSession,
) -> None:
    session = real_session(policy=Policy(mode="auto"))
    assert not (await session.run_cell("import os; os.mkdir('secrets'); open('secrets/key', 'w')")).is_error
    sandbox: Any = session.sandbox

    async def fail(unreadable: Sequence[str], unwritable: Sequence[str]) -> Sequence[str]:
        raise SandboxError("the kernel refused.")

    sandbox.deny_paths = fail
    denied = Rule(when={"reads": ["secrets/*"]}, decision=Decision.DENY)
    session.policy = Policy(mode="auto", rules=[denied])
    result = await session.run_cell("x = 1")
    assert "the kernel refused" in result.content
    history: Any = session.history
    assert len(history._checkpoints.steps) == 1
