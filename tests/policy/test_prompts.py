from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from aisotools.core.types import ApprovalRequest, Effect, Facts, GitPrograms, ToolCall, ToolDefinition
from aisotools.policy.prompts import (
    argument_fields,
    describe_effect,
    describe_git_programs,
    describe_links,
    describe_request,
    describe_trust,
    is_risky,
    parse_approval,
    remember_choices,
    summarize_request,
    visible,
    visible_json,
)


def a_request(arguments: dict[str, Any], **more: Any) -> ApprovalRequest:
    name = more.pop("name", "sandbox_bash")
    call = ToolCall(
        "c1", name, arguments, origin=more.pop("origin", "model"), agent_id=more.pop("agent_id", "")
    )
    return ApprovalRequest(
        **{
            "id": "r1",
            "call": call,
            "definition": ToolDefinition(name, "Runs a command.", {"type": "object"}),
            "effect": Effect.LOCAL_MUTATION,
            "level": "confined",
            **more,
        }
    )


HIDING = [
    "\x00",
    "\x07",
    "\x08",
    "\r",
    "\x1b",
    "\x7f",
    "\x9b",
    "\xad",
    "\u034f",
    "\u061c",
    "\u115f",
    "\u180e",
    "\u200b",
    "\u200d",
    "\u200e",
    "\u2028",
    "\u202a",
    "\u202e",
    "\u2066",
    "\u2800",
    "\u3164",
    "\ufe0f",
    "\ufeff",
    "\uffa0",
    "\ud800",
    "\U000e0041",
    "\U000e0100",
]


@pytest.mark.parametrize("char", HIDING, ids=ascii)
def test_invisible_characters_are_escaped(char: str) -> None:
    shown = visible(f"a{char}b")
    assert char not in shown
    assert shown.isascii()
    assert json.loads(f'"{shown}"') == f"a{char}b" if char != "\ud800" else "\\ud800" in shown


def test_visible_characters_stay() -> None:
    text = "def f(x):\n\treturn 'grün 日本 ∫ 😀'"
    assert visible(text) == text


@given(st.text(max_size=60))
def test_nothing_unprintable_is_left(text: str) -> None:
    shown = visible(text, keep="")
    assert shown.isprintable()


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists))
def test_visible_json_is_the_same_value(value: Any) -> None:
    assert json.loads(visible_json(value)) == value
    assert visible_json(value).replace("\n", "").isprintable()


def test_code_is_shown_raw_and_the_rest_as_json() -> None:
    fields = argument_fields(a_request({"timeout": 5, "command": "ls -la", "stdin": "a\nb"}))
    assert [(f.name, f.kind, f.text) for f in fields] == [
        ("command", "shell", "ls -la"),
        ("", "json", '{\n  "timeout": 5\n}'),
        ("stdin", "text", "a\nb"),
    ]


def test_preview_names_what_is_code() -> None:
    fields = argument_fields(
        a_request({"q": "rm -rf /", "p": "1/0"}, preview={"shell": "q", "python": ["p"]})
    )
    assert [(f.name, f.kind) for f in fields] == [("q", "shell"), ("p", "python")]


@pytest.mark.parametrize("command", ["echo a\r\necho b", "rm \u202ex", "a\u200bb", "x\x00y"])
def test_code_that_hides_something_goes_to_json_where_it_shows(command: str) -> None:
    (field,) = argument_fields(a_request({"command": command}))
    assert field.kind == "json"
    assert "\\" in field.text
    assert field.has_escapes
    assert json.loads(field.text) == {"command": command}


def test_a_backslash_is_nothing_hidden() -> None:
    (field,) = argument_fields(a_request({"pattern": "\\u202e", "n": "ü"}))
    assert not field.has_escapes


def test_no_arguments_are_an_empty_object() -> None:
    (field,) = argument_fields(a_request({}))
    assert (field.name, field.text) == ("", "{}")


def test_a_very_long_field_says_what_is_missing() -> None:
    request = a_request({"content": "x\n" * 100_000})
    (field,) = argument_fields(request)
    assert "150,000 characters are not shown" in field.display_text
    assert len(field.display_text) < 51_000
    assert not field.editable


def test_the_question_as_text() -> None:
    request = a_request(
        {"command": "make\nmake install", "timeout": 5},
        reasons=("it writes files",),
        agent_id="bob\u202e",
    )
    assert describe_request(request).splitlines() == [
        "May this run?  sandbox_bash",
        "  local change, sandbox level confined, asked by a model, agent bob\\u202e",
        "  because it writes files",
        "  command:",
        "    make",
        "    make install",
        "  arguments:",
        "    {",
        '      "timeout": 5',
        "    }",
    ]


def test_question_says_that_a_call_runs_without_write_rights() -> None:
    request = a_request({}, effect=Effect.READ_ONLY, in_reader=True)
    line = describe_request(request).splitlines()[1]
    assert "sandbox level confined, without write rights" in line
    assert "changes of the variables does not reach the worker" in line
    assert "write rights" not in describe_request(a_request({}))


@pytest.mark.parametrize("level", ["host", "limited"])
def test_the_question_does_not_promise_a_sandbox_where_there_is_none(level: str) -> None:
    words = describe_request(a_request({}, level=level))
    assert "outside the sandbox" in words or "not a sandbox" in words


@pytest.mark.parametrize(
    ("typed", "outcome", "reason"),
    [
        ("y", "approve", ""),
        (" YES \n", "approve", ""),
        ("", "deny", ""),
        ("n", "deny", ""),
        ("No, too broad", "deny", "too broad"),
        ("n: later", "deny", "later"),
        ("yse", "deny", "yse"),
        ("y but only once", "deny", "y but only once"),
        ("never", "deny", "never"),
    ],
)
def test_typed_answers(typed: str, outcome: str, reason: str) -> None:
    approval = parse_approval(typed)
    assert (approval.outcome, approval.reason) == (outcome, reason)


# ---- secrets

SECRETS = ToolDefinition(
    "login",
    "Logs in.",
    {
        "properties": {
            "password": {"type": "string", "format": "password"},
            "token": {"anyOf": [{"type": "string", "writeOnly": True}, {"type": "null"}]},
            "user": {"type": "string"},
        }
    },
)


def a_login() -> ApprovalRequest:
    return a_request(
        {"user": "ann", "password": "hunter2!", "token": "tiger3\nx"}, name="login", definition=SECRETS
    )


def test_secrets_are_not_shown() -> None:
    request = a_login()
    for text in (describe_request(request), summarize_request(request), repr(argument_fields(request))):
        assert "hunter2" not in text
        assert "tiger3" not in text
        assert "secret, not shown" in text
        assert "ann" in text


def test_a_secret_without_a_name_is_not_shown_either() -> None:
    schema = {"properties": {"": {"writeOnly": True}}}
    request = a_request({"": "hunter2!", "a": 1}, definition=ToolDefinition("t", "", schema))
    assert "hunter2" not in describe_request(request) + summarize_request(request)


# ---- remembering

WORDS = {"tool": "any\u202e", "call": "just this", "shape": "such"}


def test_remember_scopes_are_described_narrowest_first() -> None:
    request = a_request({"n": 1}, preview={"remember": WORDS})
    assert remember_choices(request) == {"call": "just this", "shape": "such", "tool": "any\\u202e"}
    text = describe_request(request)
    for line in ("c  for just this", "s  for such", "t  for any\\u202e"):
        assert line in text
    assert "not be asked again" not in describe_request(a_request({"n": 1}))
    assert "not be asked again" not in describe_request(request, typed=False)


@pytest.mark.parametrize("preview", [{}, {"remember": "all"}, {"remember": {"world": "x", "call": 3}}])
def test_only_offered_scopes_are_choices(preview: dict[str, Any]) -> None:
    assert remember_choices(a_request({}, preview=preview)) == {}


def test_answers_that_remember() -> None:
    assert parse_approval(" S ", ["call", "shape"]).remember == "shape"
    assert parse_approval("s", ["call", "shape"]).outcome == "approve"
    assert parse_approval("t", ["call", "shape"]).outcome == "deny", "it was not offered"
    assert parse_approval("s", []).reason == "s"
    assert parse_approval("s is too broad", ["shape"]).reason == "s is too broad"
    assert parse_approval("y", ["shape"]).remember is None


# ---- among others


@pytest.mark.parametrize(
    ("more", "risky"),
    [
        ({}, False),
        ({"effect": Effect.READ_ONLY}, False),
        ({"effect": Effect.DESTRUCTIVE}, True),
        ({"effect": Effect.REMOTE_ACTION}, True),
        ({"level": "host"}, True),
        ({"facts": Facts(runs_in="host")}, True),
        ({"facts": Facts(certain=False)}, True),
        ({"facts": Facts(outside=True)}, True),
    ],
)
def test_risky_requests(more: dict[str, Any], risky: bool) -> None:
    assert is_risky(a_request({"n": 1}, **more)) is risky


def test_a_call_in_one_line() -> None:
    assert (
        summarize_request(a_request({"command": "make\n\u202eall", "n": 1}))
        == "command=make ↵ \\u202eall n=1"
    )
    assert summarize_request(a_request({"command": "make\nall", "n": 1})) == "make ↵ all"
    assert summarize_request(a_request({"a": "x" * 500})).endswith("…")
    assert len(summarize_request(a_request({"a": "x" * 500, "b": ["y"] * 500}))) == 120
    assert summarize_request(a_request({})) == ""
    assert summarize_request(a_request({"command": "ls" + " " * 300 + "\t; make"})) == "ls ; make"


# ---- tools on the host


def test_a_prompt_says_that_nothing_is_known_of_a_tool_on_the_host() -> None:
    facts = Facts(certain=False, outside=True, runs_in="host", basis="nothing")
    request = a_request({"x": 1}, name="mine", level="host", facts=facts)
    assert describe_effect(request) == "effect unknown"
    text = describe_request(request)
    assert "local change" not in text
    assert "runs on the host, outside the sandbox" in text
    assert "Nothing is known of what it does." in text
    assert is_risky(request)


@pytest.mark.parametrize("effect", list(Effect))
def test_a_prompt_says_that_nothing_enforces_what_is_declared(effect: Effect) -> None:
    facts = Facts(effect=effect, runs_in="host")
    request = a_request({"x": 1}, name="mine", level="host", effect=effect, facts=facts)
    text = describe_request(request)
    assert "What it does is what its author declares; nothing enforces it." in text
    assert "Nothing is known" not in text


def test_a_prompt_says_nothing_of_the_kind_about_our_own_tools_and_the_sandbox() -> None:
    ours = Facts(runs_in="host", basis="analysis")
    assert describe_trust(a_request({}, level="host", facts=ours)) == ()
    assert describe_trust(a_request({}, facts=Facts(certain=False))) == ()


def test_hints_are_shown_as_what_nobody_has_checked() -> None:
    facts = Facts(certain=False, outside=True, runs_in="host", basis="nothing")
    hints = ["that it only reads\u202e", "x" * 5_000, 5]
    request = a_request({}, level="host", facts=facts, preview={"hints": hints})
    sentence = describe_trust(request)[-1]
    assert sentence.startswith("Its origin says, and nobody has checked: that it only reads\\u202e, xxx")
    assert len(sentence) < 500
    assert "5" not in sentence.replace("\\u202e", "")


# ---- links


@pytest.mark.parametrize(
    ("links", "shown"),
    [
        ((), ""),
        ((("data", "../elsewhere/secret"),), "data \u2192 ../elsewhere/secret"),
        ((("a", "b"), ("c", "/d")), "a \u2192 b, c \u2192 /d"),
        ((("/srv/ws/a", "a"), ("/workspace/link", "a")), "/workspace/link \u2192 a"),
        ((("a\u202eb", "c\x1b[2J\n"),), "a\\u202eb \u2192 c\\u001b[2J\\u000a"),
        ((("a \u2192 b", "c, d"),), '"a \u2192 b" \u2192 "c, d"'),
        ((('a"b', ""),), '"a\\"b" \u2192 ""'),
    ],
)
def test_links_with_where_they_lead(links: tuple[tuple[str, str], ...], shown: str) -> None:
    assert describe_links(Facts(links=links)) == shown


def test_links_that_are_long_or_many_are_shown_in_part() -> None:
    name = "a" * 5_000 + "/secrets/key"
    shown = describe_links(Facts(links=((name, "b"),)))
    assert shown.startswith('"aaa')
    assert shown.endswith('/secrets/key" \u2192 b')
    assert "4,852 characters" in shown
    many = describe_links(Facts(links=tuple((f"{number}", "b") for number in range(20))))
    assert many.endswith("7 \u2192 b, and 12 more")


def test_a_request_at_a_prompt_shows_links() -> None:
    text = describe_request(a_request({"command": "rm data"}, facts=Facts(links=(("data", "../x"),))))
    assert "  links: data \u2192 ../x" in text.split("\n")
    assert "links" not in describe_request(a_request({"command": "rm data"}))


# ---- hooks


def test_a_request_at_a_prompt_names_the_hooks_that_git_may_run() -> None:
    facts = Facts(
        git_programs=(
            GitPrograms(".git/hooks", ("pre-commit", "commit-msg")),
            GitPrograms("a b", ("pre-push",)),
        )
    )
    shown = '.git/hooks/pre-commit, .git/hooks/commit-msg, "a b/pre-push"'
    assert describe_git_programs(facts) == [("git hooks", shown)]
    text = describe_request(a_request({"command": "git commit"}, facts=facts))
    assert f"  git hooks: {shown}" in text.split("\n")
    assert "hooks" not in describe_request(a_request({"command": "git commit"}))
    many = describe_git_programs(Facts(git_programs=(GitPrograms("h", tuple(map(str, range(20)))),)))
    assert many[0][1].endswith("h/7, and 12 more")


def test_a_request_at_a_prompt_names_the_settings_of_git_that_name_programs() -> None:
    setting = "filter.t.clean = 'tools/c.sh'"
    facts = Facts(
        git_programs=(GitPrograms("", settings=(setting, "core.editor = 'e\u202e'")),), certain=False
    )
    text = describe_request(a_request({"command": "git add f"}, facts=facts))
    assert f"  git programs: {setting}, core.editor" in text
    assert "\u202e" not in text
