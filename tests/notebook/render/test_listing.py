from __future__ import annotations

from typing import Any

from aisotools.builtin import builtin_tools
from aisotools.core.types import Effect
from aisotools.notebook.render.listing import (
    effect_word,
    status_bundle,
    table_bundle,
    tool_bundle,
    tools_bundle,
)
from aisotools.session.status import SessionStatus
from aisotools.testing.fakes import MockTool
from aisotools.tools.function import tool
from tests.notebook.inert import assert_inert

HOSTILE = "<img src=x onerror=alert(1)> \u202egnp.exe\x1b]8;;javascript:1\x07"


def test_every_tool_has_a_row() -> None:
    tools = [*builtin_tools(), MockTool("mine", effect=Effect.DESTRUCTIVE)]
    shown = tools_bundle(tools)
    lines = shown["text/plain"].splitlines()
    assert len(lines) == 1 + len(tools)
    assert [line.split()[0] for line in lines[1:]] == [each.name for each in tools]
    assert "destructive" in lines[-1]
    assert "host" in lines[-1].lower()
    assert shown["text/html"].count("<tr>") == 1 + len(tools)


def test_no_tools() -> None:
    assert "No tools are registered" in tools_bundle([])["text/plain"]


def test_an_effect_that_depends_on_the_call_says_so() -> None:
    words = {each.name: effect_word(each) for each in builtin_tools()}
    assert words["file"].startswith("read only or local change")
    assert words["sandbox_read"] == "read only"


def test_unknown_effect_is_no_error() -> None:
    class Odd(MockTool):
        def classify(self, arguments: Any) -> Effect:
            raise ZeroDivisionError

    assert "unknown (ZeroDivisionError)" in tools_bundle([Odd("odd")])["text/plain"]
    assert "unknown (ZeroDivisionError)" in tool_bundle(Odd("odd"))["text/plain"]


def test_text_of_strangers_is_inert() -> None:
    odd = MockTool("odd", description=HOSTILE)
    for shown in (tools_bundle([odd]), tool_bundle(odd), table_bundle(("a", "b"), [(HOSTILE, HOSTILE)])):
        assert_inert(shown["text/html"])
        assert "\u202e" not in shown["text/html"] + shown["text/plain"]
        assert "\x1b" not in shown["text/html"] + shown["text/plain"]


def test_types_are_described_in_words() -> None:
    @tool
    def f(a: int | None, b: list[str] | str = "x", c: float = 1.5) -> str:
        """Do it.

        Args:
            a: First.
        """
        return ""

    lines = tool_bundle(f)["text/plain"].splitlines()
    assert any(line.split() == ["a", "integer", "or", "null", "required", "First."] for line in lines)
    assert any("array or string" in line and 'default "x"' in line for line in lines)


def test_a_sandbox_that_has_not_started() -> None:
    shown = status_bundle(SessionStatus(level="", calls=0, workspace=""), "safe", {})
    assert "has not started" in shown["text/plain"]


def test_recovered_work_stands_in_the_status() -> None:
    status = SessionStatus(
        level="limited", calls=0, workspace="/w", recovered=("The undo of <b> was completed.",)
    )
    shown = status_bundle(status, "safe", {})
    assert "earlier work" in shown["text/plain"]
    assert "The undo of <b> was completed." in shown["text/plain"]
    assert_inert(shown["text/html"])


def test_a_sandbox_that_is_none_says_so() -> None:
    status = SessionStatus(level="limited", calls=3, workspace="/w <b>")
    shown = status_bundle(status, "safe", {"limited": ("does", "does not")})
    assert "not a sandbox" in shown["text/plain"]
    assert "not up; the next call starts one" in shown["text/plain"]
    assert "/w &lt;b&gt;" in shown["text/html"]
    assert_inert(shown["text/html"])
