from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, strategies as st

from aisotools.core.types import Approval, ApprovalRequest, Effect, Facts, GitPrograms
from aisotools.notebook.approval.view import (
    HIGHLIGHT_CLASSES,
    MAX_DIFF_LINES,
    MAX_HIGHLIGHT_CHARS,
    action_title,
    build_previews,
    card_payload,
    fallback_bundle,
    highlight,
    is_diff,
    record_bundle,
)
from aisotools.notebook.approval.widgets import load_page_files
from aisotools.policy.shell.classify import shell_facts
from tests.notebook.inert import assert_inert
from tests.policy.test_prompts import a_request

HOSTILE = "<img src=x onerror=alert(1)>\u202e"


def a_diff(*lines: str, **more: Any) -> dict[str, Any]:
    return {"diff": {"path": "a.txt", "lines": list(lines), "added": 1, "removed": 1, "note": "", **more}}


def write_request(**more: Any) -> ApprovalRequest:
    return a_request(
        more.pop("arguments", {"path": "a.txt", "content": "x\ny\n"}), name="sandbox_write", **more
    )


# ---- what is shown


def test_a_change_is_shown_instead_of_the_content() -> None:
    request = write_request(preview=a_diff("@@ -1 +1 @@", "-old", "+new"))
    view = card_payload(request)
    assert view["preview"]["diff"]["lines"] == ["@@ -1 +1 @@", "-old", "+new"]
    assert {f["name"]: f["folded"] for f in view["fields"]} == {"path": False, "content": True}


@pytest.mark.parametrize("lines", [["+x"] * (MAX_DIFF_LINES + 5), ["+" + "x" * 5000]])
def test_a_truncated_preview_does_not_replace_the_content(lines: list[str]) -> None:
    view = card_payload(write_request(preview=a_diff(*lines)))
    assert not view["preview"]["diff"]["whole"]
    assert not any(field["folded"] for field in view["fields"])


def test_fallback_says_how_to_type_an_answer_where_it_is_typed_alone() -> None:
    request = a_request({"n": 1}, preview={"remember": {"call": "just this"}})
    for kind in ("text/html", "text/plain"):
        assert "just this" in fallback_bundle(request, "Answer in the box below.")[kind]
        assert "just this" not in fallback_bundle(request)[kind]


def test_card_says_that_a_call_runs_without_write_rights() -> None:
    view = card_payload(a_request({"x": 1}, effect=Effect.READ_ONLY, in_reader=True))
    assert "without write rights, what it changes of the variables does not reach the worker" in view["place"]
    assert "write rights" not in card_payload(a_request({"x": 1}))["place"]


def unknown_request(**more: Any) -> ApprovalRequest:
    facts = Facts(certain=False, outside=True, runs_in="host", basis="nothing")
    return a_request({"x": 1}, name="mine", level="host", facts=facts, **more)


def test_card_says_that_nothing_is_known_of_a_tool_on_the_host() -> None:
    view = card_payload(unknown_request(preview={"hints": ["that it only reads"]}))
    assert view["effect_words"] == "effect unknown"
    assert view["unconfined"]
    (first_word, first), (second_word, second) = view["preview"]["findings"]
    assert first_word == second_word == "beware"
    assert "runs on the host, outside the sandbox" in first
    assert "Nothing is known of what it does." in first
    assert second == "Its origin says, and nobody has checked: that it only reads."
    assert "it writes outside" not in str(view), "that is not known either"


@pytest.mark.parametrize("effect", [Effect.READ_ONLY, Effect.LOCAL_MUTATION])
def test_card_says_that_nothing_enforces_what_a_tool_on_the_host_declares(effect: Effect) -> None:
    facts = Facts(effect=effect, runs_in="host")
    view = card_payload(a_request({"x": 1}, name="mine", level="host", effect=effect, facts=facts))
    ((word, sentence),) = view["preview"]["findings"]
    assert word == "note"
    assert sentence.endswith("What it does is what its author declares; nothing enforces it.")


def test_record_and_fallback_say_once_what_is_known_of_a_tool_on_the_host() -> None:
    request = unknown_request()
    for bundle in (
        fallback_bundle(request),
        record_bundle(request, Approval("approve")),
        record_bundle(request, Approval("approve", arguments={"x": 2})),
    ):
        for text in bundle.values():
            assert text.count("Nothing is known of what it does.") == 1
            assert "effect unknown" in text
            assert "local change" not in text


def test_a_request_that_goes_out_names_the_host_as_the_network_sees_it() -> None:
    arguments = {"url": "https://exämple.org:8080/x?q=1", "method": "post"}
    shown = build_previews(write_request(arguments=arguments, effect=Effect.REMOTE_ACTION))["web"]
    assert (shown["method"], shown["host"]) == ("POST", "xn--exmple-cua.org")
    for url in ("https://user@evil.example@good.example/", "https://[::1", "x" * 9000, "https://\udcff/"):
        assert (
            build_previews(write_request(arguments={"url": url}, effect=Effect.REMOTE_ACTION))["web"]["host"]
            is not None
        )


def test_hooks_of_git_are_among_the_findings() -> None:
    facts = Facts(commands=("git commit -m x",), git_programs=(GitPrograms(".git/hooks", ("pre-commit",)),))
    found = dict(build_previews(write_request(facts=facts))["findings"])
    assert found["git hooks"] == ".git/hooks/pre-commit"


def test_findings_of_a_command() -> None:
    facts = Facts(commands=("make", "rm -r x"), writes=("build", "../x"), outside=True, certain=False)
    found = dict(build_previews(write_request(facts=facts))["findings"][:2])
    assert found == {"runs": "make, rm -r x", "writes": "build, ../x"}
    assert [word for word, _ in build_previews(write_request(facts=facts))["findings"]].count("beware") == 2


def test_a_card_says_why_not_everything_could_be_seen() -> None:
    facts = Facts(commands=("make",), certain=False, doubts=("make runs code", "b\x1b[31m" + "c" * 500))
    found = dict(build_previews(write_request(facts=facts))["findings"])
    assert found["beware"].startswith("not everything it does could be seen: make runs code; b")
    assert "\x1b" not in found["beware"]
    assert len(found["beware"]) < 300


def test_a_doubt_that_is_a_reason_is_not_said_again() -> None:
    facts = Facts(commands=("make",), certain=False, doubts=("make runs code", "another"))
    reason = "it counts as a local change, since not everything could be determined: make runs code"
    found = dict(build_previews(write_request(facts=facts, reasons=(reason,)))["findings"])
    assert found["beware"] == "not everything it does could be seen: another"


def test_the_card_says_how_far_undo_reaches() -> None:
    assert build_previews(write_request(preview={"undo": "puts a.txt back"}))["undo"] == "puts a.txt back"
    assert "undo" not in build_previews(write_request(preview={"undo": ["x"]}))


def test_the_card_shows_what_a_trial_printed() -> None:
    trial = {"reason": "it exited with code 1", "output": "\n".join(f"line {n}" for n in range(30))}
    request = write_request(preview={"trial": trial})
    lines = build_previews(request)["trial"]
    assert (lines[0], lines[-1], len(lines)) == ("line 0", "and 10 more lines", 21)
    assert "when it was tried without write rights" in fallback_bundle(request)["text/plain"]
    for nothing in ({}, {"output": ""}, {"output": 1}, "text"):
        assert "trial" not in build_previews(write_request(preview={"trial": nothing}))


def test_strangers_text_is_inert_and_visible_everywhere() -> None:
    facts = Facts(commands=(HOSTILE,), writes=(HOSTILE,), hosts=(HOSTILE,))
    shown = a_diff(f"+{HOSTILE}", path=HOSTILE, note=HOSTILE)
    shown |= {"undo": HOSTILE, "trial": {"output": f"{HOSTILE}\n{HOSTILE}"}}
    request = write_request(arguments={"url": HOSTILE, "command": HOSTILE}, facts=facts, preview=shown)
    approval = Approval("approve", arguments={"url": "x" * 300 + HOSTILE, "command": f"{HOSTILE}\n"})
    for bundle in (fallback_bundle(request), record_bundle(request, approval)):
        assert_inert(bundle["text/html"])
        assert "\u202e" not in repr(list(bundle.values())).replace("\\u202e", "")
        assert "\u202e" not in "".join(bundle.values())
    assert "\u202e" not in repr(card_payload(request)["preview"])


def test_the_record_says_what_was_changed() -> None:
    request = write_request(preview=a_diff("+stale"))
    record = record_bundle(request, Approval("approve", arguments={"path": "b.txt", "content": "x\nz\n"}))
    assert "  path: a.txt → b.txt" in record["text/plain"]
    assert "<del>a.txt</del> → <ins>b.txt</ins>" in record["text/html"]
    assert "-y" in record["text/html"]
    assert "stale" not in record["text/html"], "it was worked out for other arguments"


# ---- colours


def test_a_shell_command_in_colours() -> None:
    code = "FOO=1 make -j2 all > out.log 2>&1 | tail '-n' \"$X\" # then\nrm -r $HOME"
    pieces = highlight(code, "shell", ("out.log",))
    kinds = {text: kind for kind, text in pieces}
    assert kinds["make"] == kinds["tail"] == kinds["rm"] == "command"
    assert kinds["out.log"] == "written"
    assert kinds["# then\n"] == "comment"
    assert kinds["'-n'"] == "string"
    assert kinds["$HOME"] == "name"


def test_python_in_colours() -> None:
    pieces = highlight("import os\nfor n in range(3):\n    print(f'{n}')  # count\n", "python")
    kinds = {text: kind for kind, text in pieces}
    assert (kinds["import"], kinds["range"], kinds["3"], kinds["# count"]) == (
        "keyword",
        "command",
        "number",
        "comment",
    )


@given(st.text(max_size=300), st.sampled_from(["shell", "python", "diff", "text"]))
def test_the_pieces_are_the_code_in_known_classes(code: str, language: str) -> None:
    pieces = highlight(code, language)
    assert "".join(text for _, text in pieces) == code
    assert {name for name, _ in pieces} <= HIGHLIGHT_CLASSES


def test_the_style_sheet_knows_every_class() -> None:
    css = load_page_files("approval/card.css")
    assert set(re.findall(r"\.aiso-c-(\w+)", css)) == HIGHLIGHT_CLASSES - {""}


@pytest.mark.parametrize(
    ("code", "commands"),
    [
        ("cd x && ls -l | wc; (rm y)", ["cd", "ls", "wc", "rm"]),
        ("if true; then make test; fi", ["true", "make"]),
        ("A=1 B=b make cd", ["make"]),
        ("make > log 2>&1 x & ls\nrm", ["make", "ls", "rm"]),
    ],
)
def test_commands_are_found_by_their_place(code: str, commands: list[str]) -> None:
    assert [text for name, text in highlight(code, "shell") if name == "command"] == commands


# What a lexer could take quadratic time for is bounded by the length that it is given.
@pytest.mark.parametrize(
    "part", ["'", '"\\', "$(", "\\", "'''", "#", "a" * 10 + "\\", "(", "${", "\n'", "f'{"]
)
@pytest.mark.parametrize("language", ["shell", "python"])
def test_hostile_code_is_kept_whole_and_longer_code_is_not_lexed(part: str, language: str) -> None:
    code = (part * MAX_HIGHLIGHT_CHARS)[:MAX_HIGHLIGHT_CHARS]
    assert "".join(text for _, text in highlight(code, language)) == code
    longer = code + "x"
    assert highlight(longer, language) == [("", longer)]


PATCH = "--- a/notes.md\n+++ b/notes.md\n@@ -1,2 +1,2 @@\n # Penguins\n-344 rows.\n+333 rows.\n"


def test_a_patch_has_its_colours_and_every_character() -> None:
    pieces = highlight(PATCH, "diff")
    assert "".join(text for _, text in pieces) == PATCH
    assert ("removed", "-344 rows.\n") in pieces
    assert ("added", "+333 rows.\n") in pieces
    assert pieces[0] == ("where", "--- a/notes.md\n+++ b/notes.md\n@@ -1,2 +1,2 @@\n")
    assert is_diff(PATCH)
    assert not is_diff("+ one\n- two\n")


def test_links_stand_once_on_the_card_in_its_fallback_and_in_its_record() -> None:
    request = a_request({"path": "data"}, facts=Facts(links=(("data", "../x\u202e"), ("<b>", "a&b"))))
    text = "data \u2192 ../x\\u202e, <b> \u2192 a&b"
    assert ["links", text] in [list(found) for found in card_payload(request)["preview"]["findings"]]
    for bundle in (fallback_bundle(request), record_bundle(request, Approval("approve"))):
        assert bundle["text/plain"].count(text) == 1
        assert bundle["text/html"].count("&lt;b&gt; \u2192 a&amp;b") == 1
    edited = record_bundle(request, Approval("approve", arguments={"path": "other"}))
    assert text not in edited["text/plain"], "they were looked up for the path before the edit"


# ---- titles


@pytest.mark.parametrize(
    ("request_", "title"),
    [
        (write_request(preview=a_diff("@@ -1 +1 @@", "-old", "+new")), "Write a.txt"),
        (a_request({"command": "make"}, facts=shell_facts("make")), "Run a command"),
        (a_request({"command": "rm a.txt"}, facts=shell_facts("rm a.txt")), "Delete a.txt"),
        (
            a_request({"command": "rm -r a b c"}, facts=shell_facts("rm -r a b c")),
            "Delete 3 files or folders",
        ),
        (a_request({"command": "rm a; make"}, facts=shell_facts("rm a; make")), "Run a command"),
        (a_request({"code": "1 + 1"}, name="python"), "Run Python code"),
        (a_request({"code": "SUMMER24"}, name="redeem"), "Use redeem"),
        (a_request({"patch": "--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n"}, name="p"), "Apply a patch"),
        (
            a_request({"url": "https://x.example/a"}, facts=Facts(hosts=("x.example",))),
            "Fetch from x.example",
        ),
        (
            a_request({"url": "https://x.example/", "method": "POST"}, facts=Facts(hosts=("x.example",))),
            "Send to x.example",
        ),
        (
            a_request({"operation": "delete", "path": "a.txt"}, facts=Facts(path_guarded=True)),
            "Delete a.txt",
        ),
        (
            a_request({"operation": "move", "path": "a", "destination": "b"}, facts=Facts(path_guarded=True)),
            "Move a to b",
        ),
        # Of a tool that somebody else has made, only its name is known.
        (a_request({"operation": "delete", "path": "a.txt"}, name="theirs"), "Use theirs"),
        (a_request({"command": "rm a"}, name="theirs"), "Use theirs"),
        (a_request({"x": 1}, name="any\u202ething"), r"Use any\u202ething"),
    ],
)
def test_title_says_in_plain_words_what_is_known(request_: ApprovalRequest, title: str) -> None:
    assert action_title(request_) == card_payload(request_)["title"] == title


def test_card_says_nothing_twice() -> None:
    request = write_request(
        preview=a_diff("@@ -1 +1 @@", "-old", "+new"),
        reasons=("it is a local change", "mode safe asks before anything changes"),
    )
    view = card_payload(request)
    assert view["reasons"] == ["mode safe asks before anything changes"]
    assert {field["name"]: field["said"] for field in view["fields"]} == {"path": True, "content": False}
    command = card_payload(a_request({"command": "rm a"}, facts=shell_facts("rm a")))
    assert "runs" not in dict(command["preview"]["findings"])
