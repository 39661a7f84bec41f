from __future__ import annotations

import contextvars
import dataclasses
import threading
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, strategies as st

from aisotools.core.exceptions import ToolError
from aisotools.core.types import Effect, Facts, MadeName
from aisotools.testing.fakes import MockTool
from aisotools.tools.declarations import (
    MAX_NAMES,
    MAX_PATH_BYTES,
    check_facts,
    declaration_of,
    declared_facts,
)
from aisotools.tools.function import tool
from tests.waiting import HANG_S, wait_until

UNKNOWN = Facts(effect=Effect.LOCAL_MUTATION, certain=False, outside=True, basis="nothing")


def declaring(**members: Any) -> MockTool:
    made = MockTool()
    for name, member in members.items():
        setattr(made, name, member)
    return made


@tool(runs_in="host")
def silent() -> None:
    """Declare nothing."""


@tool(runs_in="host", effect=Effect.DESTRUCTIVE)
def constant() -> None:
    """Declare one effect."""


@tool(runs_in="host", classify=lambda _: Effect.READ_ONLY)
def computed() -> None:
    """Compute it."""


@pytest.mark.parametrize(
    ("made", "wanted"),
    [
        (MockTool(), "none"),
        (MockTool(effect=Effect.READ_ONLY), "constant"),
        (MockTool(effect=Effect.READ_ONLY, facts=Facts()), "computed"),
        (MockTool(facts=Facts()), "computed"),
        (declaring(effect=Effect.READ_ONLY), "computed"),
        (declaring(classify=None, gather_facts=None), "none"),
        (silent, "none"),
        (constant, "constant"),
        (computed, "computed"),
        (declaring(declaration="constant"), "none"),
        (declaring(declaration="none", effect=Effect.READ_ONLY), "none"),
        (declaring(declaration=5, effect=Effect.READ_ONLY), "none"),
        (declaring(declaration="trust me", effect=Effect.READ_ONLY), "none"),
        (declaring(declaration="computed", effect=Effect.READ_ONLY), "computed"),
    ],
)
def test_declaration_of_a_tool(made: Any, wanted: str) -> None:
    assert declaration_of(made) == wanted


def test_nothing_is_known_on_the_host_of_what_declares_nothing() -> None:
    for made in (MockTool(), silent):
        assert declared_facts(made, b"{}", on_host=True) == (UNKNOWN, "")
        assert declared_facts(made, b"{}", on_host=False) == (Facts(), "")


def test_declared_facts_count() -> None:
    assert declared_facts(constant, b"{}", on_host=True).facts.effect is Effect.DESTRUCTIVE
    assert declared_facts(computed, b"{}", on_host=True).facts == Facts(effect=Effect.READ_ONLY)
    facts = Facts(writes=("a",), reads=("b",), hosts=("c.org",), commands=("d",), background=True)
    assert declared_facts(MockTool(facts=facts), b"{}", on_host=True) == (facts, "")
    assert (
        declared_facts(declaring(effect=Effect.DESTRUCTIVE), b"{}", on_host=True).facts.effect
        == "destructive"
    )


def test_basis_that_a_tool_names_does_not_count() -> None:
    claiming = MockTool(facts=Facts(basis="analysis", path_guarded=True, undoable=True, runs_in="sandbox"))
    assert declared_facts(claiming, b"{}", on_host=True).facts == Facts()


def test_a_flaw_keeps_what_a_rule_may_deny() -> None:
    made = MockTool(
        facts=Facts(
            effect=Effect.DESTRUCTIVE,
            writes=("conftest.py", ""),
            hosts=("evil.org", 5),  # type: ignore[arg-type]  # as a stranger may
        )
    )
    facts, flaw = declared_facts(made, b"{}", on_host=True)
    assert flaw == "its facts have the path '', which is none"
    assert (facts.effect, facts.writes, facts.hosts) == (Effect.DESTRUCTIVE, ("conftest.py",), ("evil.org",))
    assert (facts.basis, facts.certain, facts.outside) == ("nothing", False, True)
    one: Any = Facts(writes="conftest.py")  # type: ignore[arg-type]  # the same
    assert declared_facts(MockTool(facts=one), b"{}", on_host=True).facts.writes == ("conftest.py",)


@pytest.mark.parametrize("on_host", [True, False])
@pytest.mark.parametrize("effect", [None, *Effect])
def test_a_constant_effect_is_the_same_as_one_that_is_computed(effect: Effect | None, on_host: bool) -> None:
    def change() -> None:
        """Change something."""

    short = tool(runs_in="host", effect=effect)(change)
    looked_up = tool(runs_in="host", effect=effect)(change)
    vars(looked_up)["gather_facts"] = looked_up.gather_facts
    for _ in range(2):
        facts = declared_facts(short, b"{}", on_host=on_host)
        assert facts == declared_facts(looked_up, b"{}", on_host=on_host)
    short.effect = Effect.DESTRUCTIVE
    assert declared_facts(short, b"{}", on_host=on_host).facts.effect is Effect.DESTRUCTIVE
    short.effect = "read_only"  # type: ignore[assignment]  # a program may do that
    assert "Effect" in declared_facts(short, b"{}", on_host=on_host).flaw


def test_a_constant_tool_that_is_given_other_members_is_asked_them() -> None:
    @tool(runs_in="host", effect=Effect.READ_ONLY)
    def look() -> None:
        """Look at something."""

    vars(look)["gather_facts"] = lambda _: Facts(effect=Effect.DESTRUCTIVE, writes=("a",))
    assert declared_facts(look, b"{}", on_host=True).facts.writes == ("a",)


def test_flawed_facts_in_the_sandbox_are_uncertain() -> None:
    made = MockTool(facts=Facts(writes=("",)), runs_in="sandbox")
    facts, flaw = declared_facts(made, b"{}", on_host=False)
    assert flaw
    assert (facts.certain, facts.outside, facts.basis) == (False, False, "declaration")


@pytest.mark.parametrize("path", ["/etc/passwd", "..", "../a", "a/../../b", "./../a", "~/a", "~", "//a", "/"])
def test_paths_that_leave_the_workspace_are_outside(path: str) -> None:
    made = MockTool(facts=Facts(writes=("a", path)))
    facts, flaw = declared_facts(made, b"{}", on_host=True)
    assert (facts.outside, facts.certain, flaw) == (True, True, "")


@pytest.mark.parametrize(
    "path",
    [
        *("https://example.org/x", "s3://bucket/x", "file:///etc/x", "smb://host/x", "data:text/plain,x"),
        *("host:/x", "bob@host:x", "bob@host:/x", "C:\\x", "C:/x", "c:x", "\\\\srv\\share"),
        *("a\\..\\..\\b", " ", "\t\n", "%HOME%/x", "$OUT/x", "${OUT}/x", "a/$(x)", " https://example.org/x"),
    ],
)
def test_paths_of_other_machines_and_systems_are_outside_and_uncertain(path: str) -> None:
    facts, flaw = declared_facts(MockTool(facts=Facts(writes=("a", path))), b"{}", on_host=True)
    assert (facts.outside, facts.certain, flaw) == (True, False, "")
    reading = MockTool(facts=Facts(effect=Effect.READ_ONLY, reads=(path,)))
    facts, flaw = declared_facts(reading, b"{}", on_host=True)
    assert (facts.outside, facts.certain, flaw) == (False, False, "")


@pytest.mark.parametrize("path", ["a", "a/../b", "./a", "..a", "a/..", "a~", ".", "a\nb", "\udcff"])
def test_other_paths_do_not(path: str) -> None:
    facts, flaw = declared_facts(MockTool(facts=Facts(writes=(path,))), b"{}", on_host=True)
    assert (facts.outside, flaw) == (False, "")


@pytest.mark.parametrize(
    ("host", "usable"),
    [
        *(("example.org", True), ("EXAMPLE.org.", True), ("localhost:8080", True), ("a_b.c", True)),
        *(("::1", True), ("[::1]:80", True), ("127.0.0.1", True), ("xn--bcher-kva.de", True)),
        *(("", False), ("*", False), ("*.org", False), ("a b", False), ("a/b", False), ("a\n", False)),
        *(
            ("http://a", False),
            ("user@a", False),
            ("a..b", False),
            ("b\u00fccher.de", False),
            ("a" * 64, False),
        ),
        *(
            ("a." * 200, False),
            ("[::1", False),
            ("\u212aa.org", False),
            ("a:\u0661", False),
            ("a:b", False),
            ("a:123456", False),
        ),
    ],
)
def test_hosts(host: str, usable: bool) -> None:
    checked = check_facts(Facts(hosts=(host,)))
    assert bool(checked.flaw) is not usable
    assert checked.facts.hosts == ((host,) if usable else ())


def test_facts_are_bounded() -> None:
    many = check_facts(Facts(writes=("a",) * (MAX_NAMES + 1)))
    assert "10,001 writes" in many.flaw
    assert not many.facts.writes
    assert not check_facts(Facts(writes=("a" * MAX_PATH_BYTES,))).flaw
    assert check_facts(Facts(writes=("a" * (MAX_PATH_BYTES + 1),))).flaw


WRONG: tuple[Any, ...] = (
    object(),
    2,
    1.5,
    b"a",
    {"a": 1},
    {"a"},
    ((),),
    (None,),
    (("a", "b", "c"),),
    ((1, 2),),
)
"""Values that no field of facts may have."""


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Facts)])
def test_a_wrong_value_of_any_field_is_a_flaw(name: str) -> None:
    """Also of a field that is added later: each has a check."""
    default = check_facts(Facts(effect=Effect.READ_ONLY))
    assert not default.flaw
    for value in WRONG:
        wrong: Any = {"effect": Effect.READ_ONLY, name: value}
        found = check_facts(Facts(**wrong))
        assert found.flaw, f"{name}={value!r}"
        assert name in found.flaw or found.flaw.startswith("its facts say that it only reads"), found.flaw
        assert dataclasses.replace(found.facts, effect=Effect.READ_ONLY) == default.facts


ELSEWHERE: dict[str, dict[str, Any]] = {
    "losses": {"losses": (("secrets/key", "stamp"),)},
    "made": {"made": (MadeName("secrets/key"),)},
    "a source of made": {"made": (MadeName("a", "secrets/key"),)},
    "scripts": {"scripts": (("secrets/key", ""),)},
    "links": {"links": (("secrets/key", "b"),)},
    "the target of links": {"links": (("b", "secrets/key"),)},
    **{name: {name: ("secrets/key",)} for name in ("mentions", "named", "places")},
}


@pytest.mark.parametrize("name", ELSEWHERE)
@pytest.mark.parametrize("effect", Effect)
def test_a_path_in_any_field_counts_for_rules(name: str, effect: Effect) -> None:
    facts, _ = check_facts(Facts(effect=effect, **ELSEWHERE[name]))
    assert "secrets/key" in (facts.writes if name in {"losses", "made"} else facts.reads)


def test_fields_that_the_gate_fills_are_not_taken_from_a_tool() -> None:
    facts, flaw = check_facts(
        Facts(
            writes=("a",),
            enforced=frozenset({("read", "secrets/*")}),
            sources=(("a", "digest"),),
            code="digest",
            undoable=True,
            path_guarded=True,
            runs_in="sandbox",
            level="isolated",
            basis="analysis",
        )
    )
    assert (facts, flaw) == (Facts(writes=("a",)), "")


@pytest.mark.parametrize("declaration", ["trust me", 5, Effect.READ_ONLY, ["computed"]])
def test_a_nonsensical_declaration_is_named(declaration: Any) -> None:
    made = declaring(declaration=declaration, classify=lambda _: Effect.READ_ONLY)
    facts, flaw = declared_facts(made, b"{}", on_host=True)
    assert facts == UNKNOWN
    assert flaw.startswith("its declaration is ")
    assert "'computed'" in flaw


ANY = st.none() | st.booleans() | st.integers() | st.text() | st.binary() | st.floats() | st.just(object())
ANYTHING = ANY | st.lists(ANY, max_size=4) | st.tuples(ANY) | st.dictionaries(st.text(), ANY, max_size=2)


@given(
    values=st.fixed_dictionaries(
        {},
        optional=dict.fromkeys([field.name for field in dataclasses.fields(Facts)], ANYTHING),
    )
)
def test_checked_facts_have_only_plain_values(values: dict[str, Any]) -> None:
    facts, _ = check_facts(Facts(**values))
    assert type(facts) is Facts
    assert type(facts.effect) is Effect
    assert all(type(flag) is bool for flag in (facts.outside, facts.certain, facts.background))
    for names in (facts.reads, facts.writes, facts.hosts, facts.commands):
        assert type(names) is tuple
        assert all(type(name) is str and name and "\0" not in name for name in names)
    hash(facts)


@given(values=ANYTHING)
def test_no_value_of_classify_is_taken_for_an_effect(values: Any) -> None:
    facts, flaw = declared_facts(declaring(classify=lambda _: values), b"{}", on_host=True)
    assert facts == UNKNOWN
    assert "Effect" in flaw


def test_two_answers_are_no_answer() -> None:
    answers = iter([Facts(writes=("a",)), Facts(effect=Effect.DESTRUCTIVE, reads=("b",))])
    facts, flaw = declared_facts(declaring(gather_facts=lambda _: next(answers)), b"{}", on_host=True)
    assert "differently" in flaw
    assert (facts.effect, facts.writes, facts.reads) == (Effect.DESTRUCTIVE, ("a",), ("b",))
    assert facts.basis == "nothing"


def test_each_answer_is_about_the_arguments_as_they_came() -> None:
    seen = []

    def classify(arguments: dict[str, Any]) -> Effect:
        seen.append(dict(arguments))
        arguments.clear()
        return Effect.READ_ONLY

    declared_facts(declaring(classify=classify), b'{"x":1}', on_host=True)
    assert seen == [{"x": 1}, {"x": 1}]


def test_code_of_a_tool_has_the_context_of_the_call() -> None:
    variable = contextvars.ContextVar("variable", default="")
    variable.set("here")
    made = declaring(classify=lambda _: Effect.READ_ONLY if variable.get() == "here" else None)
    assert not declared_facts(made, b"{}", on_host=True).flaw


@pytest.mark.parametrize("error", [KeyError("x"), TimeoutError("x")])
def test_an_exception_passes_through(error: Exception) -> None:
    def classify(_: Mapping[str, Any]) -> Effect:
        raise error

    with pytest.raises(type(error), match="x"):
        declared_facts(declaring(classify=classify), b"{}", on_host=True)


@pytest.mark.parametrize("error", [SystemExit("x"), KeyboardInterrupt("x"), GeneratorExit("x")])
def test_exceptions_that_would_end_the_program_are_errors_of_the_tool(error: BaseException) -> None:
    def classify(_: Mapping[str, Any]) -> Effect:
        raise error

    with pytest.raises(ToolError, match=f"it raised {type(error).__name__}: x"):
        declared_facts(declaring(classify=classify), b"{}", on_host=True)


def test_a_tool_that_does_not_answer_is_given_up_and_asked_again_once_it_has() -> None:
    release = threading.Event()

    def classify(_: Mapping[str, Any]) -> Effect:
        release.wait(HANG_S)
        return Effect.READ_ONLY

    made, other = declaring(classify=classify), MockTool(effect=Effect.READ_ONLY)
    try:
        with pytest.raises(ToolError, match=r"did not answer within 0\.01 s"):
            declared_facts(made, b"{}", on_host=True, timeout_s=0.01)
        with pytest.raises(ToolError, match="still busy"):
            declared_facts(made, b"{}", on_host=True)
        assert not declared_facts(other, b"{}", on_host=True).flaw, "others are not held up"
    finally:
        release.set()

    def answers() -> bool:
        try:
            return declared_facts(made, b"{}", on_host=True).facts.effect is Effect.READ_ONLY
        except ToolError:
            return False

    wait_until(answers)


def test_a_thread_answers_one_question_after_the_other_and_ends_if_it_was_late() -> None:
    threads: list[threading.Thread] = []
    release = threading.Event()
    release.set()

    def classify(_: Mapping[str, Any]) -> Effect:
        threads.append(threading.current_thread())
        release.wait(HANG_S)
        return Effect.READ_ONLY

    made = declaring(classify=classify)
    for _ in range(3):
        assert not declared_facts(made, b"{}", on_host=True).flaw
    assert len(set(threads)) == 1
    release.clear()
    with pytest.raises(ToolError, match="did not answer"):
        declared_facts(made, b"{}", on_host=True, timeout_s=0.01)
    release.set()
    threads[-1].join(HANG_S)
    assert not threads[-1].is_alive()
    assert not declared_facts(MockTool(effect=Effect.READ_ONLY), b"{}", on_host=True).flaw
