from __future__ import annotations

import re
from typing import Any

import pytest

from aisotools.core.types import Decision
from aisotools.notebook.magics.policy import (
    MODE_DESCRIPTIONS,
    policy_bundle,
    protected_bundle,
    rule_sentence,
    when_words,
)
from aisotools.policy.rules import Policy, Rule
from aisotools.workspace.protected_groups import PROTECTED_GROUPS
from aisotools.workspace.protected_names import is_protected
from tests.notebook.client import WIDGET_VIEW, Notebook
from tests.notebook.conftest import the_display, usage_error
from tests.notebook.inert import assert_inert

SETUP = """
from aisotools import Approval, Policy, Rule, ScriptedApprover, Session, current_session
from aisotools.notebook.current import use_session
approver = ScriptedApprover([Approval("approve", remember="shape"), Approval("approve", remember="tool")])
s = use_session(Session(approver=approver))
"""


@pytest.fixture(scope="module")
def notebook(loaded: Notebook) -> Notebook:
    assert not loaded.run(SETUP).error
    return loaded


def plain(notebook: Notebook, line: str) -> str:
    shown = the_display(notebook.run(line))
    assert_inert(shown["text/html"])
    return str(shown["text/plain"])


def test_the_policy_is_readable(notebook: Notebook) -> None:
    rule = "Rule(tool='web*', decision='deny', reason='<b>never</b>', when={'paths': 'a*'})"
    notebook.run(f"s.policy = Policy(mode='safe', rules=[{rule}])")
    text = plain(notebook, "%policy")
    for words in (
        "Mode safe: what reads runs; everything else is asked about.",
        "Calls of web* that touch a path like a* are denied: <b>never</b>.",
        "No call may write files that programs outside the sandbox run or obey",
        "They include conftest.py, ",
        "Nothing beyond single calls.",
    ):
        assert words in text, words


def test_the_mode_can_be_set(notebook: Notebook) -> None:
    assert notebook.run("%policy plan").text.startswith("Mode plan: only what reads runs")
    assert notebook.run("print(s.policy.mode, len(s.policy.rules))").text == "plan 1\n"
    assert "not run" in notebook.run("%call sandbox_write path=a content=b").result["text/plain"]
    assert notebook.run("%policy safe").text.startswith("Mode safe")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("%policy paln", "plan, safe, auto, protected or `why NAME key=value`, not 'paln'"),
        ("%policy plan now", "not 'plan now'"),
        ("%policy why", "Which tool?"),
        ("%policy why fiel", "Did you mean file?"),
        ("%policy why file operation=fly", "operation"),
        ("%approvals revoke", "revoke NUMBER"),
        ("%approvals remove 1", "revoke NUMBER"),
        ("%approvals revoke 99", "There is no approval '99' to take back. Numbers: none."),
        ("%approvals revoke \u00b2", "There is no approval"),
    ],
)
def test_typo_is_reported_in_one_line(notebook: Notebook, line: str, message: str) -> None:
    assert message in usage_error(notebook.run(line))


def test_the_reason_for_a_decision(notebook: Notebook) -> None:
    shown = plain(notebook, "%policy why sandbox_write path=out/a.txt content=x")
    assert "is asked about" in shown
    assert "out/a.txt" in shown
    assert "runs" in plain(notebook, "%policy why sandbox_read path=a.txt")
    assert "events" not in notebook.run("print(len(s.events))").text


def test_allowed_names_are_listed_and_taken_back(notebook: Notebook) -> None:
    assert "Nothing was allowed beyond single calls" in plain(notebook, "%approvals")
    notebook.run(
        "for n in 'ab':\n    await s.call('sandbox_write', {'path': f'{n}/x', 'content': ''}, origin='model')"
    )
    listed = plain(notebook, "%approvals")
    assert "shape" in listed
    assert "sandbox_write writing only to a" in listed
    assert "sandbox_write with any arguments" in listed
    assert "1. sandbox_write writing only to a" in plain(notebook, "%policy")
    assert "you allowed sandbox_write" in plain(notebook, "%policy why sandbox_write path=a/y content=x")
    assert notebook.run("%approvals revoke 1").text.startswith("Taken back: sandbox_write writing only to a")
    assert "writing only" not in plain(notebook, "%approvals")
    assert notebook.run("%approvals revoke all").text == "1 approvals were taken back.\n"
    assert "is asked about" in plain(notebook, "%policy why sandbox_write path=a/y content=x")


def test_open_questions_are_listed_and_shown_again(notebook: Notebook) -> None:
    run = notebook.start(
        "import asyncio\nuse_session(Session())\n"
        "t = asyncio.ensure_future(current_session().call('sandbox_write', {'path': 'a', 'content': ''}))\n"
        "from aisotools.notebook.approval.approver import pending_prompts\n"
        "while not pending_prompts(): await asyncio.sleep(0.01)\n"
        "%approvals\nawait t"
    )
    notebook.card(run)
    notebook.until(run, lambda: any("waiting" in d["text/plain"] for d in run.displays))
    notebook.until(run, lambda: sum(WIDGET_VIEW in shown for shown in run.displays) == 2)
    notebook.decide(run, "deny")
    notebook.until(run, lambda: run.ended)
    assert not any(WIDGET_VIEW in shown for shown in run.shown.values())


# ---- sentences


@pytest.mark.parametrize(
    ("rule", "sentence"),
    [
        (Rule(tool="*", decision=Decision.ALLOW), "Calls of any tool run."),
        (Rule(tool="web*", decision=Decision.DENY, reason="never."), "Calls of web* are denied: never."),
        (
            Rule(tool="*", decision=Decision.ASK, when={"reads": "a", "outside": True}),
            "Calls of any tool that read a path like a and that write outside the workspace are asked about.",
        ),
        (
            Rule(tool="t", decision=Decision.ASK, when={"arguments": {"n": [1, 2]}, "outside": False}),
            "Calls of t with n like 1 or 2 and that write nothing outside the workspace are asked about.",
        ),
    ],
)
def test_rules_as_sentences(rule: Rule, sentence: str) -> None:
    assert rule_sentence(rule) == sentence


def test_a_condition_in_code_is_named() -> None:
    def at_night(_call: object, _facts: object) -> bool:
        return True

    assert (
        when_words(Rule(tool="*", decision=Decision.DENY, when=at_night)) == "for which at_night returns true"
    )
    assert when_words(Rule(tool="*", decision=Decision.DENY)) == ""


@pytest.mark.parametrize("mode", ["plan", "safe", "auto"])
def test_a_policy_says_its_mode_and_what_is_always_protected(mode: Any) -> None:
    bundle = policy_bundle(Policy(mode=mode))
    assert f"Mode {mode}: {MODE_DESCRIPTIONS[mode]}." in bundle["text/plain"]
    assert "Always protected" in bundle["text/plain"]
    examples = re.findall(r"They include (.*); `%policy protected`", bundle["text/plain"])[0].split(", ")
    assert len(examples) > 3
    assert all(is_protected(f"{name}x" if name.endswith("/") else name) for name in examples)
    assert ("What you type in a cell" in bundle["text/plain"]) is (mode != "plan")
    assert_inert(bundle["text/html"])


def test_all_protected_names_are_listed_with_their_programs(notebook: Notebook) -> None:
    assert plain(notebook, "%policy protected") == protected_bundle(Policy())["text/plain"]
    bundle = protected_bundle(Policy(allow_protected=("conftest.py",)))
    assert "Allowed for this workspace all the same\n  conftest.py" in bundle["text/plain"]
    for group in PROTECTED_GROUPS:
        assert f"{group.programs}: " in bundle["text/plain"]
        for name in (*group.names, *group.folders, *group.paths):
            assert name in bundle["text/plain"]
    assert_inert(bundle["text/html"])


def test_an_explanation_says_that_a_command_is_tried_first(notebook: Notebook) -> None:
    notebook.run("s.policy = Policy()\nawait s.start()")
    level = notebook.run("print(s.level)").text.strip()
    tried = plain(notebook, '%policy why sandbox_bash command="captoinfo a.txt"')
    assert ("is tried" in tried) is (level in {"isolated", "confined"})
    assert "is tried" not in plain(notebook, '%policy why sandbox_bash command="python a.py"')
