"""Rules about paths hold when files are replaced, appear or move, and when the policy changes.

In a real sandbox each attack is made by a person who works as people do (an editor saves, a branch is checked
out), and by code that reads what it finds. The control is the same code without the rule.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aisotools.core.sandboxes import SupportsPathRules
from aisotools.core.types import Decision, ToolCall
from aisotools.policy.approvers import AllowAll, DenyAll
from aisotools.policy.rules import Policy, Rule
from aisotools.session import path_rules
from tests.conftest import OpenSession
from tests.session.idle import idle
from tests.session.test_path_rules import Questions, call, needs
from tests.waiting import eventually

SECRET = "TOPSECRET-91c2"


def lay_out(workspace: Path) -> None:
    (workspace / "secrets").mkdir(parents=True)
    (workspace / "deep" / "er").mkdir(parents=True)
    (workspace / "pub").mkdir()
    for name in ("secrets/key", "deep/er/key", ".env", "pub/p", "notes"):
        (workspace / name).write_text("public\n" if name in {"pub/p", "notes"} else f"{SECRET}\n")


def deny(*globs: str, key: str = "paths") -> Policy:
    return Policy(mode="auto", rules=[Rule(when={key: list(globs)}, decision=Decision.DENY)])


def save(path: Path) -> None:
    """Save as editors do: a new file takes the place of the old one."""
    new = path.with_name(f"{path.name}.new")
    new.write_text(f"{SECRET}\n")
    new.replace(path)


def recreate(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / "key").write_text(f"{SECRET}\n")


def restore_in_place(workspace: Path) -> None:
    """Remove the file and make it again; many file systems give it the same inode number."""
    (workspace / ".env").unlink()
    (workspace / ".env").write_text(f"{SECRET}\n")


def exchange_parent(workspace: Path) -> None:
    """Give the folder above another inode, and keep that of the folder itself."""
    (workspace / "deep.new").mkdir()
    (workspace / "deep" / "er").rename(workspace / "deep.new" / "er")
    (workspace / "deep").rmdir()
    (workspace / "deep.new").rename(workspace / "deep")


def move_in(workspace: Path) -> None:
    shutil.rmtree(workspace / "secrets")
    (workspace / "pub" / "key").write_text(f"{SECRET}\n")
    (workspace / "pub").rename(workspace / "secrets")
    (workspace / "pub").mkdir()


def save_settings(workspace: Path) -> None:
    save(workspace / ".env")
    save(workspace / ".env")


def make_folder(workspace: Path) -> None:
    (workspace / "new").mkdir()
    save(workspace / "new" / "key")


CHANGES: dict[str, tuple[str, str, Callable[[Path], object]]] = {
    "saved by an editor": (".env", ".env", save_settings),
    "removed and made again": (".env", ".env", restore_in_place),
    "a file in a folder saved": ("secrets/*", "secrets/key", lambda ws: save(ws / "secrets" / "key")),
    "one file of a folder saved": ("secrets/key", "secrets/key", lambda ws: save(ws / "secrets" / "key")),
    "a folder made again": ("secrets/*", "secrets/key", lambda ws: recreate(ws / "secrets")),
    "the file's folder made again": ("secrets/key", "secrets/key", lambda ws: recreate(ws / "secrets")),
    "another folder moved there": ("secrets/*", "secrets/key", move_in),
    "a deep folder made again": ("deep/er/*", "deep/er/key", lambda ws: recreate(ws / "deep" / "er")),
    "the folder above exchanged": ("deep/er/*", "deep/er/key", exchange_parent),
    "a file that appears": ("late", "late", lambda ws: (ws / "late").write_text(SECRET)),
    "a folder that appears": (
        "new/*",
        "new/key",
        make_folder,
    ),
}


def reading(path: str) -> dict[str, Any]:
    """Code that opens a file at both of its paths, and names it so that nobody sees it beforehand."""
    spelled = "\n try: print(open(q).read())\n except OSError as e: print(e)"
    return {"code": f"p = {path[::-1]!r}[::-1]\nfor q in (p, '/workspace/' + p):{spelled}"}


@pytest.mark.sample(8)
@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("when", ["before any call", "after a call"])
async def test_a_file_that_is_replaced_is_hidden_again_before_the_next_call(
    real_session: OpenSession, tmp_path: Path, name: str, when: str
) -> None:
    needs("isolated")
    workspace = tmp_path / "workspace"
    lay_out(workspace)
    glob, path, change = CHANGES[name]
    session = real_session(policy=deny(glob), level="isolated", approver=AllowAll())
    await session.start()
    if when == "after a call":
        await call(session, "python", {"code": "kept = 7"})
        await idle(session)
    change(workspace)
    for _ in range(2):
        for tool, arguments in (
            ("python", reading(path)),
            ("sandbox_bash", {"command": f'python3 -c "{reading(path)["code"]}"'}),
        ):
            result = await call(session, tool, arguments)
            assert SECRET not in result.content, (tool, result.content)
            assert result.content.count("ermission denied") == 2
    assert session.not_enforced == ()
    if when == "after a call":
        assert (await call(session, "python", {"code": "print(kept)"})).content.startswith("7"), (
            "its variables"
        )
    assert SECRET in (workspace / path).read_text(), "the person's file is as it was"


@pytest.mark.parametrize("name", CHANGES)
async def test_each_of_these_files_can_be_read_without_the_rule(
    real_session: OpenSession, tmp_path: Path, name: str
) -> None:
    """The control."""
    needs("isolated")
    workspace = tmp_path / "workspace"
    lay_out(workspace)
    _, path, change = CHANGES[name]
    session = real_session(policy=deny("other/*"), level="isolated", approver=AllowAll())
    await session.start()
    change(workspace)
    assert SECRET in (await call(session, "python", reading(path))).content


async def test_the_result_says_that_a_rule_was_enforced_again_and_only_then(
    real_session: OpenSession, tmp_path: Path
) -> None:
    needs("isolated")
    workspace = tmp_path / "workspace"
    lay_out(workspace)
    session = real_session(policy=deny(".env"), level="isolated", approver=AllowAll())
    quiet = await call(session, "python", {"code": "print(1)"})
    await idle(session)
    (workspace / ".env").write_text("edited where it is")
    edited = await call(session, "python", {"code": "print(2)"})
    await idle(session)
    save(workspace / ".env")
    again = await call(session, "python", {"code": "print(3)"})
    after = await call(session, "python", {"code": "print(4)"})
    assert [one.content.strip() for one in (quiet, edited, after)] == ["1", "2", "4"]
    assert again.content.startswith("3")
    assert "Before this call '.env', which a rule of the policy denies, had been replaced" in again.content
    assert "What ran meanwhile may have read it." in again.content


async def test_a_file_stays_hidden_where_a_link_takes_the_place_of_a_folder_above_it(
    real_session: OpenSession, tmp_path: Path
) -> None:
    needs("isolated")
    workspace = tmp_path / "workspace"
    lay_out(workspace)
    session = real_session(policy=deny("deep/er/key"), level="isolated", approver=AllowAll())
    await call(session, "python", {"code": "print(1)"})
    shutil.move(workspace / "deep", workspace / "moved")
    (workspace / "deep").symlink_to("moved")
    for path in ("moved/er/key", "deep/er/key"):
        assert SECRET not in (await call(session, "python", reading(path))).content


async def test_a_path_that_is_read_only_stays_so_when_it_is_replaced(
    real_session: OpenSession, tmp_path: Path
) -> None:
    needs("isolated")
    workspace = tmp_path / "workspace"
    lay_out(workspace)
    session = real_session(policy=deny("secrets/*", key="writes"), level="isolated", approver=AllowAll())
    await session.start()
    recreate(workspace / "secrets")
    written = await call(session, "python", {"code": "open('secr' + 'ets/key', 'w').write('x')"})
    assert "Read-only file system" in written.content
    assert (
        SECRET in (await call(session, "python", {"code": "print(open('secr' + 'ets/key').read())"})).content
    )


@pytest.mark.parametrize("level", ["confined", "guarded"])
async def test_a_reader_that_is_kept_does_not_read_what_was_moved_there(
    real_session: OpenSession, tmp_path: Path, level: str
) -> None:
    needs(level)
    workspace = tmp_path / "workspace"
    lay_out(workspace)
    session = real_session(policy=deny("secrets/*"), level=level, approver=AllowAll())
    before = await call(session, "sandbox_bash", {"command": "cat pub/p"})
    assert "public" in before.content
    move_in(workspace)
    for command in ("cat s*/key", "cat $(echo secrets/key)"):
        assert SECRET not in (await call(session, "sandbox_bash", {"command": command})).content


@pytest.mark.sample(5)
@pytest.mark.parametrize("level", ["isolated", "confined", "guarded"])
@pytest.mark.parametrize("decision", [Decision.DENY, Decision.ASK])
@pytest.mark.parametrize("folder", ["pub", "new/below"])
async def test_a_hard_link_that_is_made_later_is_no_way_round_a_rule(
    real_session: OpenSession, tmp_path: Path, level: str, decision: Decision, folder: str
) -> None:
    needs(level)
    workspace = tmp_path / "workspace"
    lay_out(workspace)
    (workspace / folder).mkdir(parents=True, exist_ok=True)
    policy = Policy(mode="auto", rules=[Rule(when={"paths": ["secrets/*"]}, decision=decision)])
    session = real_session(policy=policy, level=level, approver=DenyAll())
    link = workspace / folder / "later"
    for _ in range(2):
        assert "public" in (await call(session, "sandbox_bash", {"command": "cat pub/p"})).content
    link.hardlink_to(workspace / "secrets/key")
    for command in (f"cat {folder}/later", f"cat {folder}/la*", f"grep -r . {folder}"):
        assert SECRET not in (await call(session, "sandbox_bash", {"command": command})).content, command
    link.unlink()
    link.write_text("another")
    assert "another" in (await call(session, "sandbox_bash", {"command": f"cat {folder}/later"})).content


@pytest.mark.parametrize(
    "command",
    ["grep -R . pub", "cd pub && grep -R .", "rg -L . pub", "diff -rN pub other", "sort --files0-from=list"],
)
async def test_links_below_a_folder_and_lists_of_files_are_asked_about(
    real_session: OpenSession, tmp_path: Path, command: str
) -> None:
    workspace = tmp_path / "workspace"
    lay_out(workspace)
    (workspace / "other").mkdir()
    (workspace / "pub/link").symlink_to("../secrets")
    (workspace / "list").write_text("secrets/key\0")
    session = real_session(policy=Policy(mode="auto"), level="confined", approver=DenyAll())
    free = await call(session, "sandbox_bash", {"command": command})
    assert free.error_kind != "denied", "the control"
    rule = Rule(when={"paths": ["secrets/*"]}, decision=Decision.ASK)
    session.policy = Policy(mode="auto", rules=[rule])
    asked = await call(session, "sandbox_bash", {"command": command})
    assert asked.error_kind == "denied", asked.content
    assert SECRET not in asked.content


@pytest.mark.parametrize("first", [Policy(mode="auto"), deny("other/*"), deny("notes")])
async def test_a_policy_that_is_assigned_later_is_enforced_from_the_next_call_on(
    real_session: OpenSession, tmp_path: Path, first: Policy
) -> None:
    needs("isolated")
    workspace = tmp_path / "workspace"
    lay_out(workspace)
    session = real_session(policy=first, level="isolated", approver=AllowAll())
    assert SECRET in (await call(session, "python", reading("secrets/key"))).content, "the control"
    session.policy = deny("secrets/*")
    assert session.not_enforced == ()
    assert SECRET not in (await call(session, "python", reading("secrets/key"))).content
    assert "public" in (await call(session, "python", reading("notes"))).content, "denied no longer"
    await session.restart()
    assert SECRET not in (await call(session, "python", reading("secrets/key"))).content
    session.policy = deny("secrets/*", key="writes")
    assert SECRET in (await call(session, "python", reading("secrets/key"))).content
    written = await call(session, "python", {"code": "open('secr' + 'ets/key', 'w').write('x')"})
    assert "Read-only file system" in written.content


@pytest.mark.parametrize("level", ["confined", "guarded"])
async def test_a_policy_that_is_assigned_later_holds_for_readers_and_is_put_back(
    real_session: OpenSession, tmp_path: Path, level: str, caplog: pytest.LogCaptureFixture
) -> None:
    needs(level)
    workspace = tmp_path / "workspace"
    lay_out(workspace)
    session = real_session(policy=Policy(mode="auto"), level=level, approver=AllowAll())
    reader = {"command": "cat $(echo secrets/key)"}
    assert SECRET in (await call(session, "sandbox_bash", reader)).content, "the control"
    session.policy = deny("secrets/*")
    assert "the sandbox can reach 'secrets/*' all the same" in caplog.text
    (sentence,) = session.not_enforced
    assert "secrets/*" in sentence
    assert SECRET not in (await call(session, "sandbox_bash", reader)).content
    written = await call(session, "python", {"code": "open('secr' + 'ets/key', 'w').write('x')"})
    assert written.is_error
    assert SECRET in (workspace / "secrets" / "key").read_text()
    session.policy = deny("other/*")
    assert "other/*" in caplog.text
    assert all("secrets" not in one for one in session.not_enforced)
    assert SECRET in (await call(session, "sandbox_bash", reader)).content
    written = await call(session, "python", {"code": "open('secr' + 'ets/key', 'w').write('x')"})
    assert not written.is_error
    assert (workspace / "secrets" / "key").read_text() == "x"


async def test_the_card_follows_the_policy_of_the_moment(real_session: OpenSession, tmp_path: Path) -> None:
    needs("confined")
    approver = Questions()
    lay_out(tmp_path / "workspace")
    session = real_session(policy=Policy(), level="confined", approver=approver)
    await call(session, "python", {"code": "1"})
    session.policy = Policy(rules=[Rule(when={"paths": "secrets/*"}, decision=Decision.DENY)])
    await call(session, "python", {"code": "1"})
    session.policy = Policy()
    await call(session, "python", {"code": "1"})
    listed = [any("secrets/*" in reason for reason in request.reasons) for request in approver.asked]
    assert listed == [False, True, False]


@pytest.mark.sample(6)
@pytest.mark.parametrize("level", ["isolated", "confined"])
@pytest.mark.parametrize(
    "glob",
    [
        "/workspace/secrets/*",
        "{ws}/secrets/*",
        "{link}/secrets/*",
        "$WORKSPACE/secrets/*",
        "~/../workspace/secrets/*",
        "./secrets/*",
        "secrets/",
        "{ws}/secrets/key",
    ],
)
async def test_each_spelling_of_a_rule_holds_for_each_spelling_of_the_file(
    real_session: OpenSession, tmp_path: Path, level: str, glob: str
) -> None:
    needs(level)
    workspace = tmp_path / "workspace"
    lay_out(workspace)
    (tmp_path / "link").symlink_to("workspace")
    written = glob.format(ws=workspace, link=tmp_path / "link").replace("~/..", str(tmp_path))
    session = real_session(policy=deny(written), level=level, approver=AllowAll())
    for command in ("cat secrets/key", "cat /workspace/secrets/key", f"cat {workspace}/secrets/key"):
        result = await call(session, "sandbox_bash", {"command": command})
        assert result.error_kind == "denied", (command, result.content)
    read = await call(session, "file", {"operation": "read", "path": "secrets/key"})
    assert read.error_kind == "denied"
    assert "public" in (await call(session, "sandbox_bash", {"command": "cat notes"})).content
    if level == "isolated":
        assert session.not_enforced == ()
        assert SECRET not in (await call(session, "python", reading("secrets/key"))).content


MANY = 450
"""Files below a rule's path: more than are counted before each call."""


def crowd(workspace: Path) -> None:
    lay_out(workspace)
    for number in range(MANY):
        (workspace / f"secrets/{number}").write_text("one of many")
    (workspace / "secrets/z").mkdir()
    (workspace / "secrets/z/deep").write_text("deep")


@pytest.mark.sample(6)
@pytest.mark.parametrize("place", ["0", "449", "z/deep", "z/new"])
@pytest.mark.parametrize(
    "command", ["cat pub/later", "cat pub/l*", "cp pub/later pub/copy", "cd pub && wc later"]
)
async def test_a_later_hard_link_to_one_of_very_many_files(
    open_session: OpenSession, tmp_path: Path, place: str, command: str
) -> None:
    workspace = tmp_path / "workspace"
    crowd(workspace)
    policy = Policy(mode="auto", rules=[Rule(when={"paths": ["secrets/*"]}, decision=Decision.DENY)])
    session = open_session(policy=policy)
    await session.start()
    looked = ToolCall("one", "sandbox_bash", {"command": command}, origin="model")
    assert session.explain(looked).evaluation.decision is not Decision.DENY
    if place == "z/new":
        (workspace / "secrets" / place).write_text("new")
    (workspace / "pub/later").hardlink_to(workspace / "secrets" / place)
    found = session.explain(looked)
    assert found.evaluation.decision is Decision.DENY
    assert f"secrets/{place}" in found.facts.reads
    assert any("more than 200 files" in gap for gap in session.not_enforced)
    (workspace / "pub/later").unlink()
    (workspace / "pub/later").write_text("another")
    (workspace / "pub/other").hardlink_to(workspace / "pub/later")
    assert session.explain(looked).evaluation.decision is not Decision.DENY


async def test_a_hard_link_is_asked_about_where_not_all_files_can_be_looked_at(
    open_session: OpenSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(path_rules, "_MOST_SEARCHED", 100)
    workspace = tmp_path / "workspace"
    crowd(workspace)
    policy = Policy(mode="auto", rules=[Rule(when={"paths": ["secrets/*"]}, decision=Decision.DENY)])
    monkeypatch.setattr(path_rules, "_RACY_NS", 0)  # else what is as young is looked at anew
    session = open_session(policy=policy)
    await session.start()
    *_, last = (entry for entry in os.scandir(workspace / "secrets") if entry.is_file())
    (workspace / "pub/other").hardlink_to(last.path)  # in whichever order they are listed
    looked = ToolCall("one", "sandbox_bash", {"command": "cat pub/other"}, origin="model")
    assert session.explain(looked).evaluation.decision is Decision.ASK
    looked = ToolCall("two", "sandbox_bash", {"command": "cat pub/p"}, origin="model")
    assert session.explain(looked).evaluation.decision is Decision.ALLOW, "the control: it has one name"


LOOKING = """
import os, threading, time
path = {path!r}[::-1]
def look(state=None):
    while not os.path.exists("end"):
        try:
            now = open(path).read().strip()[:20] or "empty"
        except OSError as error:
            now = type(error).__name__
        if now != state:
            state = now
            with open("seen", "a") as seen:
                seen.write(state + "\\n")
        time.sleep(0.0005)
"""

LEFT_RUNNING = {
    "a thread": "threading.Thread(target=look, daemon=True).start()",
    "a process": "if not os.fork():\n    os.setsid()\n    look()\n    os._exit(0)",
    "the call itself": "look()",
}


@pytest.mark.sample(9)
@pytest.mark.parametrize("how", LEFT_RUNNING)
@pytest.mark.parametrize("name", [name for name in CHANGES if "appears" not in name])
async def test_a_file_that_is_replaced_is_hidden_again_from_what_runs_without_another_call(
    real_session: OpenSession, tmp_path: Path, name: str, how: str
) -> None:
    needs("isolated")
    workspace = tmp_path / "workspace"
    lay_out(workspace)
    glob, path, change = CHANGES[name]
    session = real_session(policy=deny(glob), level="isolated", approver=AllowAll())
    await session.start()
    code = LOOKING.format(path=path[::-1]) + LEFT_RUNNING[how]
    running = asyncio.ensure_future(call(session, "python", {"code": code}))
    if how != "the call itself":
        assert not (await running).is_error
    seen = workspace / "seen"
    await eventually(lambda: seen.exists() and seen.read_text() == "PermissionError\n")
    change(workspace)
    inside = Path(f"/proc/{session.status().pid}/root{workspace}/{path}")
    await eventually(lambda: SECRET not in content_of(inside))
    await eventually(lambda: seen.read_text().endswith("PermissionError\n"))
    (workspace / "end").touch()
    await running
    assert SECRET in (workspace / path).read_text(), "the person's file is as it was"


def content_of(path: Path) -> str:
    try:
        return path.read_text()
    except (PermissionError, FileNotFoundError, NotADirectoryError):
        return ""


def link_at(place: Path, target: str) -> None:
    """Have a link take the place of what is there, in one step."""
    new = place.with_name(f"{place.name}.new")
    new.symlink_to(target)
    new.replace(place)


def move_and_link(place: Path, target: Path) -> None:
    shutil.move(place, target)
    place.symlink_to(os.path.relpath(target, place.parent))


def other_secret(workspace: Path) -> None:
    """A file that no rule is about, and that nobody may read by a denied path."""
    (workspace / "pub" / "key").write_text(f"{SECRET}\n")
    (workspace / "cred").write_text(f"{SECRET}\n")


def link_first(workspace: Path) -> None:
    """A denied path that is a link from the start, by way of a second one."""
    other_secret(workspace)
    (workspace / "way").symlink_to("secrets")
    (workspace / "cred").unlink()
    (workspace / "cred").symlink_to("way/key")


def link_above_first(workspace: Path) -> None:
    other_secret(workspace)
    move_and_link(workspace / "deep", workspace / "moved")


def link_to_another_file(workspace: Path) -> None:
    (workspace / "deep/er/key").unlink()
    (workspace / "deep/er/key").symlink_to("../../pub/key")  # often with the same inode number


def link_to_another_folder(workspace: Path) -> None:
    (workspace / "deep").rename(workspace / "old")
    (workspace / "deep").symlink_to("new")


def repoint_folder(workspace: Path) -> None:
    (workspace / "pub/er").mkdir()
    (workspace / "pub/er/key").write_text(f"{SECRET}\n")
    link_at(workspace / "deep", "pub")


LINKS: dict[str, tuple[str, str, Callable[[Path], object], Callable[[Path], object]]] = {
    "a link renamed over a file": ("cred", "cred", other_secret, lambda ws: link_at(ws / "cred", "pub/key")),
    "an absolute link": ("cred", "cred", other_secret, lambda ws: link_at(ws / "cred", f"{ws}/pub/key")),
    "a deep file": (
        "deep/er/key",
        "deep/er/key",
        other_secret,
        link_to_another_file,
    ),
    "a folder moved and linked": (
        "secrets/*",
        "secrets/other",
        lambda ws: (ws / "secrets/other").write_text(SECRET),
        lambda ws: move_and_link(ws / "secrets", ws / "moved"),
    ),
    "a link to another folder above": (
        "deep/er/key",
        "deep/er/key",
        other_secret,
        link_to_another_folder,
    ),
    "a link repointed": ("cred", "cred", link_first, lambda ws: link_at(ws / "cred", "pub/key")),
    "a second link repointed": ("cred", "cred", link_first, lambda ws: link_at(ws / "way", "pub")),
    "the target of a link replaced": ("cred", "cred", link_first, lambda ws: save(ws / "secrets" / "key")),
    "a link above repointed": (
        "deep/er/key",
        "deep/er/key",
        link_above_first,
        repoint_folder,
    ),
}


def make_new_tree(workspace: Path) -> None:
    (workspace / "new" / "er").mkdir(parents=True)
    (workspace / "new" / "er" / "key").write_text(f"{SECRET}\n")


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", LINKS)
async def test_a_link_in_the_place_of_what_is_denied_is_hidden_from_what_runs_without_another_call(
    real_session: OpenSession, tmp_path: Path, name: str
) -> None:
    needs("isolated")
    workspace = tmp_path / "workspace"
    lay_out(workspace)
    make_new_tree(workspace)
    glob, path, first, change = LINKS[name]
    first(workspace)
    session = real_session(policy=deny(glob, key="reads"), level="isolated", approver=AllowAll())
    await session.start()
    code = LOOKING.format(path=path[::-1]) + LEFT_RUNNING["a process"]
    assert not (await call(session, "python", {"code": f"kept = 7\n{code}"})).is_error
    seen = workspace / "seen"
    await eventually(lambda: seen.exists() and seen.read_text() == "PermissionError\n")
    change(workspace)
    assert SECRET in (workspace / path).read_text(), "what the person made leads to a secret"
    inside = Path(f"/proc/{session.status().pid}/root{workspace}/{path}")
    await eventually(lambda: SECRET not in content_of(inside))
    await eventually(lambda: seen.read_text().splitlines()[-1] in {"PermissionError", "NotADirectoryError"})
    following = await call(session, "python", {"code": "print(kept)"})
    assert following.content.startswith("7"), following.content
    assert "which a rule of the policy denies, had been replaced" in following.content
    assert SECRET not in (await call(session, "python", reading(path))).content
    await eventually(lambda: seen.read_text().splitlines()[-1] in {"PermissionError", "NotADirectoryError"})
    (workspace / "end").touch()
    assert SECRET in (workspace / path).read_text(), "the person's files are as they were"


@pytest.mark.parametrize("name", LINKS)
async def test_each_of_these_links_can_be_read_without_the_rule(
    real_session: OpenSession, tmp_path: Path, name: str
) -> None:
    """The control."""
    needs("isolated")
    workspace = tmp_path / "workspace"
    lay_out(workspace)
    make_new_tree(workspace)
    _, path, first, change = LINKS[name]
    first(workspace)
    session = real_session(policy=deny("other/*"), level="isolated", approver=AllowAll())
    await session.start()
    change(workspace)
    code = {"code": f"print(open({path[::-1]!r}[::-1]).read())"}
    assert SECRET in (await call(session, "python", code)).content


async def test_a_link_is_uncovered_when_the_rule_goes_or_a_file_takes_its_place(
    real_session: OpenSession, tmp_path: Path
) -> None:
    needs("isolated")
    workspace = tmp_path / "workspace"
    lay_out(workspace)
    other_secret(workspace)
    session = real_session(policy=deny("cred", key="reads"), level="isolated", approver=AllowAll())
    await session.start()
    inside = Path(f"/proc/{session.status().pid}/root{workspace}")
    link_at(workspace / "cred", "pub/key")
    await eventually(lambda: not (inside / "cred").is_symlink())
    session.policy = deny("other/*")
    assert SECRET in (await call(session, "python", {"code": "print(open('cr' + 'ed').read())"})).content
    session.policy = deny("cred", key="reads")
    for path in ("cred", "pub/key"):
        assert SECRET not in (await call(session, "python", reading(path))).content
    save(workspace / "cred")
    assert SECRET not in (await call(session, "python", reading("cred"))).content
    free = await call(session, "python", {"code": "print(open('pub/k' + 'ey').read())"})
    assert SECRET in free.content, "no rule is about what the link led to"


def swap_file(workspace: Path) -> None:
    (workspace / "deep/er/key").rename(workspace.parent / "kept")
    (workspace / "deep/er/key").write_text(f"{SECRET}\n")
    (workspace.parent / "kept").replace(workspace / "deep/er/key")


def swap_folder(workspace: Path) -> None:
    (workspace / "deep").rename(workspace.parent / "kept")
    (workspace / "new").rename(workspace / "deep")
    (workspace / "deep").rename(workspace / "new")
    (workspace.parent / "kept").rename(workspace / "deep")


def move_away_and_back(workspace: Path) -> None:
    (workspace / "deep/er").rename(workspace / "deep/other")
    (workspace / "deep/other").rename(workspace / "deep/er")


@pytest.mark.parametrize("change", [swap_file, swap_folder, move_away_and_back])
async def test_the_result_names_what_was_replaced_and_put_back_between_two_calls(
    real_session: OpenSession, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    needs("isolated")
    workspace = tmp_path / "workspace"
    lay_out(workspace)
    make_new_tree(workspace)
    session = real_session(policy=deny("deep/er/key", ".env"), level="isolated", approver=AllowAll())
    await call(session, "python", {"code": "kept = 7"})
    await idle(session)
    sandbox: object = session.sandbox
    assert isinstance(sandbox, SupportsPathRules)
    for _ in range(2):
        change(workspace)
        await eventually(lambda: "deep/er/key" in sandbox.replaced_paths)
        named = await call(session, "python", {"code": "print(kept)"})
        assert named.content.startswith("7")
        assert "Before this call 'deep/er/key', which a rule of the policy denies, had been replaced" in (
            named.content
        )
        assert ".env" not in named.content
        quiet = await call(session, "python", {"code": "print(kept)"})
        assert quiet.content.strip() == "7"
        assert SECRET not in (await call(session, "python", reading("deep/er/key"))).content


async def test_path_that_code_in_the_sandbox_makes_and_removes_itself_is_named_at_most_once(
    real_session: OpenSession, tmp_path: Path
) -> None:
    needs("isolated")
    workspace = tmp_path / "workspace"
    lay_out(workspace)
    session = real_session(policy=deny("late", key="reads"), level="isolated", approver=AllowAll())
    code = """
import os
for _ in range(200):
    try:
        os.mkdir("la" + "te")
        os.rmdir("la" + "te")
    except OSError:
        break
"""
    await call(session, "python", {"code": code})
    # Race: where a look finds it in the moment in which it is there, nobody can tell who has made it. The
    # first call after that look says so, and on a busy machine the next call may have begun before it.
    results = [(await call(session, "python", {"code": f"print({n})"})).content for n in range(4)]
    assert [result[0] for result in results] == ["0", "1", "2", "3"]
    assert "".join(results).count("had been replaced") <= 1
    assert "had been replaced" not in results[-1]
