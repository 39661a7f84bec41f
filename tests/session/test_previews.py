from __future__ import annotations

import difflib
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from aisotools.builtin import patch as patches
from aisotools.core.types import Approval, ApprovalRequest, Decision, Effect, ToolCall
from aisotools.policy.rules import Policy, Rule
from aisotools.session.previews import MAX_BYTES, MAX_LINES, Previewer, digest_of_file
from aisotools.workspace.workspace import Workspace
from tests.conftest import OpenSession
from tests.work import lines_run

OUR_PATCH = "aisotools.builtin.patch:apply_patch"
OURS = "aisotools.builtin.files:sandbox_write"


def diff(workspace: Path, **arguments: Any) -> dict[str, Any]:
    found: dict[str, Any] = preview(arguments, OURS, workspace)["diff"]
    return found


def preview(arguments: dict[str, Any], own_path: str, workspace: Path | None) -> dict[str, Any]:
    files = None if workspace is None else Workspace(workspace)
    return Previewer(files).preview(arguments, own_path)[0]


def test_a_new_file(tmp_path: Path) -> None:
    shown = diff(tmp_path, path="a/b.txt", content="one\ntwo\n")
    assert shown == {
        "path": "a/b.txt",
        "lines": ["+one", "+two"],
        "added": 2,
        "removed": 0,
        "note": "A new file.",
    }


def test_an_overwritten_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\nthree\n")
    shown = diff(tmp_path, path="a.txt", content="one\n2\nthree\n", operation="write")
    assert shown["lines"] == ["@@ -1,3 +1,3 @@", " one", "-two", "+2", " three"]
    assert (shown["added"], shown["removed"], shown["note"]) == (1, 1, "")


def test_edits(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a b a\n")
    edits = [{"old": "a", "new": "c", "replace_all": True}, {"old": "b", "new": "d"}]
    assert diff(tmp_path, path="a.txt", edits=edits)["lines"][1:] == ["-a b a", "+c d c"]
    once = [{"old": "a", "new": "c"}]
    note = diff(tmp_path, path="a.txt", edits=once)["note"]
    assert "stands there several times; the call will fail" in note
    once = [{"old": "a b", "new": "c b"}]
    assert diff(tmp_path, path="a.txt", edits=once)["lines"][1:] == ["-a b a", "+c b a"]
    shown = diff(tmp_path, path="a.txt", edits=[{"old": "x", "new": "y"}])
    assert "edit 1 replaces a text that is not in the file" in shown["note"]


def test_three_lines_around_a_change_are_shown(tmp_path: Path) -> None:
    before = "".join(f"{n}\n" for n in range(20))
    (tmp_path / "a.txt").write_text(before)
    shown = diff(tmp_path, path="a.txt", content=before.replace("10\n", "ten\n"))
    assert shown["lines"] == ["@@ -8,7 +8,7 @@", " 7", " 8", " 9", "-10", "+ten", " 11", " 12", " 13"]


def test_texts_of_one_mebibyte_are_compared_and_longer_ones_are_not(tmp_path: Path) -> None:
    text = "x" * (1 << 20)
    (tmp_path / "a").write_text(text)
    assert (diff(tmp_path, path="a", content="short")["removed"], MAX_BYTES) == (1, 1 << 20)
    (tmp_path / "a").write_text("short")
    assert diff(tmp_path, path="a", content=text)["added"] == 1
    assert "too many to compare" in diff(tmp_path, path="a", content=text + "x")["note"]


def test_line_ends_and_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one")
    assert "gains its line end" in diff(tmp_path, path="a.txt", content="one\n")["note"]
    assert "Nothing changes" in diff(tmp_path, path="a.txt", content="one")["note"]
    assert diff(tmp_path, path="new", content="")["note"] == "An empty file."


def test_only_our_own_tools_writes_are_taken_for_that(tmp_path: Path) -> None:
    arguments = {"path": "a.txt", "content": "x"}
    assert preview(arguments, "", tmp_path) == {}
    assert preview(arguments, OURS, None) == {}
    assert preview({"path": "a.txt", "operation": "read"}, OURS, tmp_path) == {}
    for odd in ({"path": 1, "content": "x"}, {"path": "a", "content": 1}, {"path": "a", "edits": [1]}, {}):
        assert preview(odd, OURS, tmp_path) == {}


def test_nothing_outside_is_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("hunter2\n")
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (workspace / "link").symlink_to(secret)
    (workspace / "folder").symlink_to(tmp_path)
    for path in ("../secret.txt", str(secret), "link", "folder/secret.txt", "~/x", "a\0b"):
        shown = diff(workspace, path=path, content="x\n")
        assert "hunter2" not in repr(shown), path


def test_file_that_cannot_be_compared_is_noted(tmp_path: Path) -> None:
    import os

    (tmp_path / "binary").write_bytes(b"\xff\xfe\0")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    (tmp_path / "large").write_text("x" * (MAX_BYTES + 1))
    for name in ("binary", "fifo", "folder", "large"):
        shown = diff(tmp_path, path=name, content="x\n")
        assert (shown["lines"], bool(shown["note"])) == ([], True), name


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([f"{n % 7}" for n in range(MAX_LINES - 1)], [f"{n * 5 % 11}" for n in range(MAX_LINES - 1)]),
        ([f"x{n}" for n in range(MAX_LINES - 1)], [f"x{MAX_LINES - n}" for n in range(MAX_LINES - 1)]),
    ],
    ids=["few different lines", "the order reversed"],
)
def test_a_preview_takes_little_work(tmp_path: Path, before: list[str], after: list[str]) -> None:
    (tmp_path / "a").write_text("\n".join(before))
    work = lines_run(lambda: diff(tmp_path, path="a", content="\n".join(after)), below=difflib.__file__)
    assert 0 < work < 50 * MAX_LINES, "each line compared with each other one would be 4,000 * MAX_LINES"


def test_files_of_too_many_lines_are_not_compared(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    assert "too many" in diff(tmp_path, path="a", content="\n" * (MAX_LINES + 1))["note"]


@pytest.mark.parametrize("path", ["a", "./a", "/workspace/a"])
def test_path_is_shown_as_it_was_given(tmp_path: Path, path: str) -> None:
    (tmp_path / "a").write_text("1\n")
    assert diff(tmp_path, path=path, content="2\n")["path"] == path


# ---- what was shown is what runs


def arguments(path: str, content: str) -> dict[str, Any]:
    return {"path": path, "content": content}


def edit(old: str, new: str) -> dict[str, Any]:
    return {"path": "a.txt", "edits": [{"old": old, "new": new}]}


def test_a_preview_comes_with_the_digest_of_what_it_was_computed_from(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n")
    _, contents = Previewer(Workspace(tmp_path)).preview(arguments("a.txt", "two\n"), OURS)
    assert contents == {"a.txt": digest_of_file(Workspace(tmp_path), "a.txt")}
    (tmp_path / "a.txt").write_text("else\n")
    assert contents != {"a.txt": digest_of_file(Workspace(tmp_path), "a.txt")}
    _, contents = Previewer(Workspace(tmp_path)).preview(arguments("new/b.txt", "x"), OURS)
    assert contents == {"new/b.txt": digest_of_file(Workspace(tmp_path), "new/b.txt")}
    (tmp_path / "binary").write_bytes(b"\xff\0")
    _, contents = Previewer(Workspace(tmp_path)).preview(arguments("binary", "x"), OURS)
    assert contents == {"binary": digest_of_file(Workspace(tmp_path), "binary")}


def test_previews_of_one_question_build_on_each_other(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n")
    previewer = Previewer(Workspace(tmp_path))
    first, before = previewer.preview(edit("one", "two"), OURS)
    second, between = previewer.preview(edit("two", "three"), OURS)
    assert first["diff"]["lines"][1:] == ["-one", "+two"]
    assert second["diff"]["lines"][1:] == ["-two", "+three"]
    assert before == {"a.txt": digest_of_file(Workspace(tmp_path), "a.txt")}
    (tmp_path / "a.txt").write_text("two\n")
    assert between == {"a.txt": digest_of_file(Workspace(tmp_path), "a.txt")}
    failing, contents = previewer.preview(edit("not there", "x"), OURS)
    assert "cannot be shown" in failing["diff"]["note"]
    assert contents


class Changing:
    """Approves, after it has changed the workspace as a person or a program could meanwhile."""

    def __init__(self, *changes: Callable[[], object]) -> None:
        self.requests: list[ApprovalRequest] = []
        self._changes = list(changes)

    async def ask(self, request: ApprovalRequest) -> Approval:
        return (await self.ask_many([request]))[0]

    async def ask_many(self, requests: Sequence[ApprovalRequest]) -> list[Approval]:
        self.requests += requests
        if self._changes:
            self._changes.pop(0)()
        return [Approval("approve") for _ in requests]


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    for name in ("e", "other"):
        (folder / name).mkdir(parents=True)
        (folder / name / "f.txt").write_text(f"{name}\n")
    (folder / "a.txt").write_text("one\n")
    return folder


async def test_a_file_that_changed_after_it_was_shown_is_asked_about_again(
    real_session: OpenSession, workspace: Path
) -> None:
    approver = Changing(lambda: (workspace / "a.txt").write_text("typed meanwhile\n"))
    session = real_session(approver=approver)
    result = await session.call("sandbox_write", arguments("a.txt", "two\n"), origin="model")
    assert not result.is_error
    first, second = approver.requests
    assert "-one" in first.preview["diff"]["lines"]
    assert "-typed meanwhile" in second.preview["diff"]["lines"]
    assert "a.txt has changed since it was shown" in second.reasons


async def test_a_pattern_is_asked_about_only_where_a_name_may_be_an_option(
    real_session: OpenSession, workspace: Path
) -> None:
    approver = Changing()
    session = real_session(approver=approver)
    sort = {"command": "sort *.txt"}
    assert (await session.call("sandbox_bash", sort, origin="model")).content == "one"
    assert approver.requests == []
    (workspace / "-ob.txt").write_text("")
    await session.call("sandbox_bash", sort, origin="model")
    (request,) = approver.requests
    assert request.effect is Effect.LOCAL_MUTATION
    assert (workspace / "b.txt").exists(), "the control: it is an option to sort"


async def test_a_name_that_became_an_option_after_the_question_is_asked_about_again(
    real_session: OpenSession, workspace: Path
) -> None:
    rule = Rule(tool="sandbox_bash", decision=Decision.ASK)
    approver = Changing(lambda: (workspace / "-oa.txt").write_text(""))
    session = real_session(approver=approver, policy=Policy(rules=[rule]))
    await session.call("sandbox_bash", {"command": "sort *.txt"}, origin="model")
    first, second = approver.requests
    assert (first.effect, second.effect) == (Effect.READ_ONLY, Effect.LOCAL_MUTATION)
    assert "it would reach -oa.txt as well" in second.reasons


async def test_a_folder_that_became_a_link_is_asked_about_again(
    real_session: OpenSession, workspace: Path
) -> None:
    def replace() -> None:
        (workspace / "e" / "f.txt").unlink()
        (workspace / "e").rmdir()
        (workspace / "e").symlink_to("other")

    approver = Changing(replace)
    session = real_session(approver=approver)
    await session.call("file", {"operation": "delete", "path": "e/f.txt"}, origin="model")
    first, second = approver.requests
    assert first.facts.writes == ("e/f.txt",)
    assert set(second.facts.writes) == {"e/f.txt", "other/f.txt"}
    assert "e/f.txt leads to other/f.txt now" in second.reasons


async def test_a_file_that_changes_each_time_is_not_written(
    real_session: OpenSession, workspace: Path
) -> None:
    count = itertools.count()
    change = [lambda: (workspace / "a.txt").write_text(f"{next(count)}\n")] * 9
    approver = Changing(*change)
    session = real_session(approver=approver)
    result = await session.call("sandbox_write", arguments("a.txt", "two\n"), origin="model")
    assert result.error_kind == "denied"
    assert "different each time it was shown" in result.content
    assert (workspace / "a.txt").read_text() != "two\n"


async def test_a_rule_that_denies_what_a_path_has_become_holds(
    real_session: OpenSession, workspace: Path
) -> None:
    def replace() -> None:
        (workspace / "a.txt").unlink()
        (workspace / "a.txt").symlink_to("other/f.txt")

    rule = Rule(when={"writes": "other/*"}, decision=Decision.DENY)
    session = real_session(approver=Changing(replace), policy=Policy(rules=[rule]))
    result = await session.call("sandbox_write", arguments("a.txt", "two\n"), origin="model")
    assert result.error_kind == "denied"
    assert (workspace / "other" / "f.txt").read_text() == "other\n"


async def test_three_edits_of_one_file_are_asked_about_once(
    real_session: OpenSession, workspace: Path
) -> None:
    approver = Changing()
    session = real_session(approver=approver)
    await session.call("file", {"operation": "read", "path": "a.txt"})
    words = ["one", "two", "three", "four"]
    calls = [
        ToolCall(f"c{number}", "edit", edit(old, new), origin="model")
        for number, (old, new) in enumerate(itertools.pairwise(words))
    ]
    results = await session.call_many(calls)
    assert not any(result.is_error for result in results), results
    assert (workspace / "a.txt").read_text() == "four\n"
    assert len(approver.requests) == 3


BASE = "one\ntwo\nthree\n"


def change(old: str, new: str, path: str = "c.txt") -> tuple[str, dict[str, Any]]:
    return "edit", {"path": path, "edits": [{"old": old, "new": new}]}


def operate(operation: str, path: str = "c.txt", **arguments: Any) -> tuple[str, dict[str, Any]]:
    return "file", {"operation": operation, "path": path, **arguments}


def patch(old: str, new: str) -> tuple[str, dict[str, Any]]:
    hunk = "".join(f"-{line}\n+{new}\n" if line == old else f" {line}\n" for line in BASE.split("\n") if line)
    return "apply_patch", {"patch": f"--- a/c.txt\n+++ b/c.txt\n@@ -1,3 +1,3 @@\n{hunk}"}


DELETING = "--- a/c.txt\n+++ /dev/null\n@@ -1,3 +0,0 @@\n-1\n-two\n-three\n"
CHAINS: dict[str, tuple[Sequence[tuple[str, dict[str, Any]]], dict[str, str]]] = {
    "edit, edit, edit": (
        [change("one", "1"), change("two", "2"), change("three", "3")],
        {"c.txt": "1\n2\n3\n"},
    ),
    "append, edit": ([operate("append", content="four\n"), change("four", "4")], {"c.txt": f"{BASE}4\n"}),
    "edit, append": ([change("one", "1"), operate("append", content="4\n")], {"c.txt": "1\ntwo\nthree\n4\n"}),
    "append, append": (
        [operate("append", content="4\n"), operate("append", content="5\n")],
        {"c.txt": f"{BASE}4\n5\n"},
    ),
    "write, edit": ([operate("write", content="a b\n"), change("a", "c")], {"c.txt": "c b\n"}),
    "new, edit": (
        [operate("write", "new/d.txt", content="a\n"), change("a", "c", "new/d.txt")],
        {"c.txt": BASE, "new/d.txt": "c\n"},
    ),
    "sandbox_write, append": (
        [("sandbox_write", {"path": "c.txt", "content": "a\n"}), operate("append", content="b\n")],
        {"c.txt": "a\nb\n"},
    ),
    "patch, edit": ([patch("two", "2"), change("three", "3")], {"c.txt": "one\n2\n3\n"}),
    "edit, patch": ([change("1", "one", "d.txt"), patch("two", "2")], {"c.txt": "one\n2\nthree\n"}),
    "edit, patch that deletes": ([change("one", "1"), ("apply_patch", {"patch": DELETING})], {}),
    "edit, move, edit": (
        [change("one", "1"), operate("move", destination="e.txt"), change("two", "2", "e.txt")],
        {"e.txt": "1\n2\nthree\n"},
    ),
    "edit, move into a folder, edit": (
        [change("one", "1"), operate("move", destination="sub"), change("two", "2", "sub/c.txt")],
        {"sub/c.txt": "1\n2\nthree\n"},
    ),
    "copy, edit of both": (
        [operate("copy", destination="e.txt"), change("one", "1", "e.txt"), change("two", "2")],
        {"c.txt": "one\n2\nthree\n", "e.txt": "1\ntwo\nthree\n"},
    ),
    "edit, delete": ([change("one", "1"), operate("delete")], {}),
    "delete, write": ([operate("delete"), operate("write", content="a\n")], {"c.txt": "a\n"}),
    "edit, delete, write, edit": (
        [change("one", "1"), operate("delete"), operate("write", content="a\n"), change("a", "b")],
        {"c.txt": "b\n"},
    ),
    "edit by other spellings": (
        [change("one", "1"), change("two", "2", "./sub/../c.txt"), change("three", "3", "link.txt")],
        {"c.txt": "1\n2\n3\n"},
    ),
}
"""Calls of one question on a file that was read, and what they leave."""


async def start_chain(real_session: OpenSession, workspace: Path, approver: Any) -> Any:
    (workspace / "c.txt").write_text(BASE)
    (workspace / "d.txt").write_text("1\n")
    (workspace / "sub").mkdir()
    (workspace / "link.txt").symlink_to("c.txt")
    session = real_session(approver=approver)
    for name in ("c.txt", "d.txt", "link.txt"):
        await session.call("file", {"operation": "read", "path": name})
    return session


def calls_of(calls: Sequence[tuple[str, dict[str, Any]]]) -> list[ToolCall]:
    return [ToolCall(f"c{number}", *call, origin="model") for number, call in enumerate(calls)]


@pytest.mark.sample(7)
@pytest.mark.parametrize("name", CHAINS)
async def test_each_call_of_a_chain_is_asked_about_once(
    real_session: OpenSession, workspace: Path, name: str
) -> None:
    calls, left = CHAINS[name]
    approver = Changing()
    session = await start_chain(real_session, workspace, approver)
    results = await session.call_many(calls_of(calls))
    again = [request.reasons for request in approver.requests[len(calls) :]]
    assert not again
    assert [result.content for result in results if result.is_error] == []
    for path in ("c.txt", "e.txt", "new/d.txt", "sub/c.txt"):
        file = workspace / path
        assert (file.read_text() if file.exists() else None) == left.get(path)


class Denying(Changing):
    """Denies the first call of the first question, and every later question."""

    async def ask_many(self, requests: Sequence[ApprovalRequest]) -> list[Approval]:
        is_first = not self.requests
        self.requests += requests
        return [Approval("approve" if is_first and n else "deny") for n, _ in enumerate(requests)]


@pytest.mark.parametrize("name", [name for name in CHAINS if "other" not in name and "of both" not in name])
async def test_no_call_of_a_chain_runs_on_what_it_was_not_shown(
    real_session: OpenSession, workspace: Path, name: str
) -> None:
    calls, _ = CHAINS[name]
    first = calls[0][1].get("path", "c.txt")
    calls = [call for call in calls if call[1].get("path", "c.txt") == first][:2]
    if len(calls) < 2:
        pytest.skip("the second call is about another file")
    approver = Denying()
    session = await start_chain(real_session, workspace, approver)
    await session.call_many(calls_of(calls))
    assert (workspace / "c.txt").read_text() == BASE
    assert len(approver.requests) == 3
    reason = "an earlier call was shown to change it, and has not"
    assert any(reason in one for one in approver.requests[2].reasons)


@pytest.mark.parametrize("name", [name for name in CHAINS if name != "edit, patch"])
async def test_a_change_of_a_person_between_card_and_run_stops_a_chain(
    real_session: OpenSession, workspace: Path, name: str
) -> None:
    calls, _ = CHAINS[name]
    path = workspace / "c.txt"
    approver = Denying(lambda: None)

    async def ask_many(requests: Sequence[ApprovalRequest]) -> list[Approval]:
        is_first = not approver.requests
        approver.requests += requests
        path.write_text(f"{BASE}typed\n")
        return [Approval("approve" if is_first else "deny") for _ in requests]

    approver.ask_many = ask_many  # type: ignore[method-assign]  # as a person who types meanwhile
    session = await start_chain(real_session, workspace, approver)
    await session.call_many(calls_of(calls))
    assert path.read_text() == f"{BASE}typed\n"


async def test_an_edit_of_a_file_that_was_not_read_is_refused_without_a_question(
    real_session: OpenSession, workspace: Path
) -> None:
    approver = Changing()
    session = real_session(approver=approver)
    calls = [change("one", "1", "a.txt"), change("one", "2", "a.txt")]
    calls.append(operate("append", "b.txt", content="x"))
    results = await session.call_many(calls_of(calls))
    assert ["was not read in this session" in result.content for result in results] == [True, True, False]
    assert [request.call.name for request in approver.requests] == ["file"]
    single = await session.call(*change("one", "1", "a.txt"), origin="model")
    assert "was not read in this session" in single.content
    assert len(approver.requests) == 1
    calls = [operate("read", "a.txt"), change("one", "1", "a.txt")]
    results = await session.call_many(
        [ToolCall(f"r{number}", *call, origin="model") for number, call in enumerate(calls)]
    )
    assert not results[1].is_error, "the control: it is read before it is edited"
    assert (workspace / "a.txt").read_text() == "1\n"


def test_a_patch_that_takes_long_to_fit_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x\n" * 100_000)
    hunks = "".join(f"@@ -{n},2 +{n},2 @@\n x\n-x\n+y\n" for n in range(1, 2_000, 2))
    arguments: dict[str, Any] = {"patch": f"--- a/a.txt\n+++ b/a.txt\n{hunks}"}
    previewer = Previewer(Workspace(tmp_path))
    folder = str(Path(patches.__file__).parent)
    assert lines_run(lambda: previewer.preview(arguments, OUR_PATCH), below=folder) < 300_000
    _, contents = previewer.preview(edit("x", "y"), OURS)
    assert contents == {"a.txt": "unknown"}


def test_an_edit_that_would_fill_memory_is_not_made(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a" * MAX_BYTES)
    edits = [{"old": "a", "new": "b" * 1_000_000, "replace_all": True}]
    assert "too long to compare" in diff(tmp_path, path="a.txt", edits=edits)["note"]


async def test_an_edit_whose_predecessor_was_denied_is_asked_about_again(
    real_session: OpenSession, workspace: Path
) -> None:
    (workspace / "a.txt").write_text("one two\n")
    asked: list[list[str]] = []

    class Approver:
        async def ask(self, request: ApprovalRequest) -> Approval:
            return (await self.ask_many([request]))[0]

        async def ask_many(self, requests: Sequence[ApprovalRequest]) -> list[Approval]:
            asked.append([line for r in requests for line in r.preview["diff"]["lines"][1:]])
            return [
                Approval("deny" if len(requests) > 1 and n == 0 else "approve")
                for n, _ in enumerate(requests)
            ]

    session = real_session(approver=Approver())
    await session.call("file", {"operation": "read", "path": "a.txt"})
    calls = [
        ToolCall("c1", "edit", edit("one", "1"), origin="model"),
        ToolCall("c2", "edit", edit("two", "2"), origin="model"),
    ]
    first, second = await session.call_many(calls)
    assert first.error_kind == "denied"
    assert not second.is_error
    assert asked == [["-one two", "+1 two", "-1 two", "+1 2"], ["-one two", "+one 2"]]
    assert (workspace / "a.txt").read_text() == "one 2\n"


async def test_calls_of_a_batch_see_what_those_before_have_made(
    real_session: OpenSession, workspace: Path
) -> None:
    """What the policy allows is decided once more, without a question."""
    rules = [Rule(when={"paths": "secrets/*"}, decision=Decision.DENY)]
    (workspace / "secrets").mkdir()
    (workspace / "secrets" / "key").write_text("TOPSECRET\n")
    session = real_session(approver=Changing(), policy=Policy(mode="auto", rules=rules))
    calls = [
        ToolCall("c1", "python", {"code": "import os; os.symlink('secr' 'ets/key', 'here')"}, origin="model"),
        ToolCall("c2", "sandbox_bash", {"command": "cat here"}, origin="model"),
    ]
    _, second = await session.call_many(calls)
    assert "TOPSECRET" not in second.content
    assert second.error_kind == "denied"
