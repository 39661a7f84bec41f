"""A person allows a protected name for one workspace: by the program, by their settings, or on the card."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from aisotools.core.events import ProtectedNamesAllowed
from aisotools.core.exceptions import UsageError
from aisotools.core.types import Approval, ApprovalRequest
from aisotools.notebook.approval.view import card_payload, parse_decision
from aisotools.notebook.magics.policy import policy_bundle
from aisotools.notebook.render.listing import status_bundle
from aisotools.policy.approvers import AllowAll, DenyAll, ScriptedApprover
from aisotools.policy.rules import Policy
from aisotools.session.approvers import read_typed_approval
from aisotools.session.ledger import read
from aisotools.session.ledger_reader import events_of_records
from aisotools.session.session import Session
from tests.conftest import OpenSession

HIDDEN = "open('conf' + 'test.py', 'w').write('x = 1')"
ALLOW = Approval("approve", remember="protected")


async def write(session: Session, path: str = "conftest.py", content: str = "x = 1\n") -> tuple[bool, str]:
    """Return whether it was written, and the text of the result."""
    result = await session.call("sandbox_write", {"path": path, "content": content}, origin="model")
    assert session.workspace is not None
    place = session.workspace / path
    written = place.exists() and place.read_text() == content
    assert written is not result.is_error
    return written, result.content


def at(real_session: OpenSession, **options: object) -> Session:
    options = {"policy": Policy(mode="auto"), "level": "confined", **options}
    return real_session(**options)


async def test_without_a_choice_nobody_can_have_it_written(real_session: OpenSession) -> None:
    for approver in (AllowAll(), DenyAll(), None):
        written, content = await write(at(real_session, approver=approver))
        assert not written
        assert "conftest.py is protected" in content
    written, content = await write(at(real_session, approver=AllowAll()))
    assert "Session(allow_protected=['conftest.py'])" in content


async def test_a_program_allows_a_name(real_session: OpenSession) -> None:
    session = at(real_session, allow_protected=["conftest.py"])
    assert (await write(session))[0]
    assert not (await session.call("python", {"code": HIDDEN}, origin="person")).is_error
    assert not (await write(session, "tox.ini"))[0]
    assert session.workspace is not None
    assert (session.workspace / "conftest.py").read_text() == "x = 1"
    other = await session.call("python", {"code": "open('tox.ini', 'w').write('x')"}, origin="person")
    assert other.error_kind == "denied"


async def test_an_allowed_name_changes_no_mode(real_session: OpenSession) -> None:
    session = at(real_session, allow_protected=["conftest.py"], policy=Policy(mode="plan"))
    assert not (await write(session))[0]


@pytest.mark.parametrize("level", ["isolated", "confined", "limited"])
async def test_an_existing_file_can_be_changed_at_each_level(
    real_session: OpenSession, tmp_path: Path, level: str
) -> None:
    (tmp_path / "workspace" / "a").mkdir(parents=True)
    (tmp_path / "workspace" / "a" / "conftest.py").write_text("old")
    try:
        session = real_session(
            level=level, policy=Policy(), approver=AllowAll(), allow_protected=["a/conftest.py"]
        )
        await session.start()
    except Exception as error:
        pytest.skip(str(error))
    code = "open('a/conftest.py', 'w').write('new')"
    result = await session.call("python", {"code": code}, origin="model")
    assert not result.is_error, result.content
    assert (tmp_path / "workspace" / "a" / "conftest.py").read_text() == "new"


def settings(environ: Mapping[str, str], text: str) -> None:
    folder = Path(environ["HOME"]) / ".jupyter"
    folder.mkdir(exist_ok=True)
    (folder / "aisotools.toml").write_text(text)


@pytest.mark.parametrize("bare", [False, True])
async def test_a_repository_in_an_allowed_folder_stays_harmless(
    real_session: OpenSession, bare: bool
) -> None:
    session = at(real_session, allow_protected=[".vscode"])
    assert session.workspace is not None
    git = "." if bare else ".git"
    bare_option = ["--bare"] if bare else []
    made = await session.call(
        "python",
        {"code": f"import subprocess as s; s.run(['git', 'init', '-q', *{bare_option}, '.vs' 'code'])"},
    )
    assert not made.is_error, made.content
    for name in ("config", "hooks/post-index-change"):
        plant = f"open('.vs' 'code/{git}/{name}', 'w').write('[core]\\nfsmonitor = x\\n')"
        result = await session.call("python", {"code": plant}, origin="person")
        assert result.error_kind == "denied", result.content
        planted = session.workspace / ".vscode" / git / name
        assert not planted.exists() or b"fsmonitor" not in planted.read_bytes()
    assert (await write(session, ".vscode/settings.json", "{}"))[0]


async def test_a_persons_settings_allow_a_name_for_one_workspace(
    real_session: OpenSession, environ: Mapping[str, str], tmp_path: Path
) -> None:
    settings(environ, f'[allow_protected]\n"{tmp_path}/workspace" = ["conftest.py"]\n')
    session = at(real_session)
    assert (await write(session))[0]
    assert session.allowed_protected == ("conftest.py",)
    elsewhere = at(real_session, workspace=tmp_path / "elsewhere")
    assert not (await write(elsewhere))[0]


async def test_the_home_folder_may_be_written_as_a_tilde(
    real_session: OpenSession, environ: Mapping[str, str]
) -> None:
    settings(environ, '[allow_protected]\n"~/project" = ["conftest.py"]\n')
    assert (await write(at(real_session, workspace=Path(environ["HOME"]) / "project")))[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("allow_protected = ['conftest.py']", "as a table"),
        ("[allow_protected]\n'/x' = 'conftest.py'", "needs a list"),
        ("[allow_protected]\n'/x' = ['main.py']", "not a protected name"),
        ("[allow_protected]\n'/x' = ['.aisotools.toml']", "cannot be allowed"),
        ("[allow_protected]\n'/x' = [3]", "not a protected name"),
    ],
)
async def test_settings_that_are_broken_open_nothing(
    real_session: OpenSession, environ: Mapping[str, str], text: str, message: str
) -> None:
    settings(environ, text)
    with pytest.raises(UsageError, match=message):
        await at(real_session).start()


async def test_a_workspace_cannot_allow_its_own(real_session: OpenSession, tmp_path: Path) -> None:
    (tmp_path / "workspace").mkdir()
    policy = tmp_path / "workspace" / ".aisotools.toml"
    for text in (
        f'[allow_protected]\n"{tmp_path}/workspace" = ["conftest.py"]',
        'allow_protected = ["x.pth"]',
    ):
        policy.write_text(text)
        with pytest.raises(UsageError, match="unknown keys: allow_protected"):
            await at(real_session).start()


@pytest.mark.parametrize("names", [["main.py"], [".aisotools.toml"], "conftest.py", ["*"]])
def test_a_wrong_name_is_an_error_at_once(real_session: OpenSession, names: list[str]) -> None:
    with pytest.raises(UsageError, match="allow_protected"):
        at(real_session, allow_protected=names)


async def test_a_person_allows_a_name_on_the_card(real_session: OpenSession) -> None:
    approver = ScriptedApprover([ALLOW])
    session = at(real_session, approver=approver)
    assert (await write(session))[0]
    assert (await write(session, "tests/conftest.py"))[0], "it was asked once, for the name"
    assert not (await session.call("python", {"code": HIDDEN}, origin="person")).is_error
    (request,) = approver.requests
    assert request.preview["remember"] == {"protected": "conftest.py may be written in this workspace"}
    assert "conftest.py is protected" in request.reasons[0]
    assert session.allowed_protected == ("conftest.py",)


async def test_an_allowed_name_is_taken_back(real_session: OpenSession) -> None:
    session = at(real_session, approver=ScriptedApprover([ALLOW]))
    assert (await write(session))[0]
    (grant,) = session.grants.list()
    assert grant.description == "conftest.py may be written in this workspace"
    session.grants.revoke(grant.id)
    assert session.allowed_protected == ()
    assert not (await write(session, content="y = 2\n"))[0]
    result = await session.call("python", {"code": "open('conftest.py', 'w').write('z')"}, origin="person")
    assert result.error_kind == "denied"
    assert session.workspace is not None
    assert (session.workspace / "conftest.py").read_text() == "x = 1\n", (
        "what was written while allowed stays"
    )


async def test_edited_arguments_do_not_come_with_the_choice(real_session: OpenSession) -> None:
    arguments = {"path": "conftest.py", "content": "x = 1\n"}
    session = at(
        real_session,
        approver=ScriptedApprover([Approval("approve", arguments=arguments, remember="protected")]),
    )
    assert not (await write(session))[0]
    assert session.allowed_protected == ()


async def test_a_choice_of_another_call_does_not_count(real_session: OpenSession) -> None:
    """`protected` is offered for calls that write protected names alone."""
    session = at(real_session, policy=Policy(), approver=ScriptedApprover([ALLOW, "approve"]))
    assert (await write(session, "main.py"))[0]
    assert session.allowed_protected == ()
    assert not (await write(session))[0]


async def test_names_that_can_never_be_allowed_are_not_asked_about(real_session: OpenSession) -> None:
    approver = ScriptedApprover([ALLOW, ALLOW])
    session = at(real_session, approver=approver)
    for path in (".aisotools.toml", "a/.aisotools.toml"):
        assert not (await write(session, path))[0]
    assert approver.requests == []


async def test_a_policy_that_denies_is_not_asked_about(real_session: OpenSession) -> None:
    approver = ScriptedApprover([ALLOW])
    session = at(real_session, approver=approver, policy=Policy(mode="plan"))
    assert not (await write(session))[0]
    assert approver.requests == []


async def test_a_file_that_a_running_worker_has_read_only(real_session: OpenSession, tmp_path: Path) -> None:
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace" / "conftest.py").write_text("old")
    try:
        session = at(real_session, level="isolated", approver=ScriptedApprover([ALLOW]))
        await session.start()
    except Exception as error:
        pytest.skip(str(error))
    written, content = await write(session)
    assert not written
    assert "Restart the sandbox" in content
    await session.restart()
    assert (await write(session))[0]


async def test_the_choice_is_in_the_ledger_and_shown(
    real_session: OpenSession, environ: Mapping[str, str], tmp_path: Path
) -> None:
    settings(environ, f'[allow_protected]\n"{tmp_path}/workspace" = ["tox.ini"]\n')
    session = at(real_session, approver=ScriptedApprover([ALLOW]), allow_protected=["Makefile"])
    await write(session)
    shown = status_bundle(session.status(), "auto", {})["text/plain"]
    assert "Makefile, tox.ini, conftest.py" in shown
    assert "conftest.py" in policy_bundle(session.effective_policy)["text/plain"]
    await session.close()
    assert session.log_path is not None
    allowed = [
        event
        for event in events_of_records(read(session.log_path))
        if isinstance(event, ProtectedNamesAllowed)
    ]
    assert [(event.names, event.source) for event in allowed] == [
        (("Makefile",), "session"),
        (("tox.ini",), "settings"),
        (("conftest.py",), "approver"),
    ]


async def protected_request(real_session: OpenSession) -> ApprovalRequest:
    approver = ScriptedApprover([])
    await write(at(real_session, approver=approver))
    return approver.requests[0]


async def test_the_card_has_a_button_for_it_and_no_other_approval(real_session: OpenSession) -> None:
    request = await protected_request(real_session)
    card = card_payload(request)
    assert card["allow"] == "conftest.py may be written in this workspace"
    assert card["remember"] == []
    clicked: dict[str, object] = {
        "outcome": "approve",
        "reason": "",
        "edits": {},
        "whole": None,
        "remember": "protected",
    }
    assert parse_decision(request, clicked) == ALLOW


async def test_on_a_terminal_a_letter_chooses_it(real_session: OpenSession) -> None:
    request = await protected_request(real_session)
    assert await read_typed_approval(lambda _: "p", lambda: None, request) == ALLOW
    assert await read_typed_approval(lambda _: "y", lambda: None, request) == Approval("approve")


async def test_a_branch_has_the_same_names(real_session: OpenSession) -> None:
    session = at(real_session, allow_protected=["conftest.py"])
    await session.start()
    branch = await session.branch()
    try:
        assert branch.allowed_protected == ("conftest.py",)
    finally:
        await branch.close()
