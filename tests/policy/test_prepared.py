from __future__ import annotations

import copy
import dataclasses
import errno
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest
from hypothesis import given, strategies as st

from aisotools.builtin.conversation import todo
from aisotools.builtin.files import sandbox_read, sandbox_write
from aisotools.builtin.python import python, variables
from aisotools.builtin.shell import sandbox_bash
from aisotools.builtin.tasks import task_list
from aisotools.core.exceptions import ArgumentError
from aisotools.core.protocols import Tool, ToolPayload
from aisotools.core.types import Decision, Effect, Facts, Json, ToolCall, ToolResult
from aisotools.policy import prepared as prepared_module
from aisotools.policy.prepared import (
    CallDecision,
    CallSteps,
    PreparedCall,
    bound_sources,
    call_digest,
    changes_something,
    denial_result,
    finish_steps,
    in_waves,
    prepare_call,
    prepare_in_steps,
)
from aisotools.policy.rules import Policy, Rule
from aisotools.testing.fakes import MockTool
from aisotools.tools.adapter import renamed_tool
from aisotools.tools.function import tool
from aisotools.workspace import stamps
from aisotools.workspace.scripts import MISSING

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-1000, 1000) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
ARGUMENTS = st.dictionaries(st.text(max_size=4), JSON, max_size=4)


def call(**arguments: Any) -> ToolCall:
    return ToolCall("c1", "mock", arguments)


def test_only_our_own_file_tools_count_as_touching_only_files() -> None:
    def touches_only_files(tool: Tool, **arguments: Any) -> bool:
        return prepare_call(tool, call(**arguments), Policy(), "confined").only_touches_files

    assert touches_only_files(sandbox_write, path="a", content="b")
    assert not touches_only_files(python, code="1"), "it changes variables"
    assert not touches_only_files(sandbox_bash, command="touch a"), "a program opens files by itself"

    @tool(gather_facts=lambda _: Facts(path_guarded=True))
    def stranger() -> None:
        """Claims what only our own tools are believed."""

    assert not touches_only_files(stranger)


class Impostor(MockTool):
    """Names one of our own tools as what the worker is to import, and says of it what it likes."""

    def shipment(self) -> ToolPayload:
        return ToolPayload(key="x", import_path="aisotools.builtin.files:file")


def test_a_tool_that_only_names_one_of_ours_is_not_believed() -> None:
    prepared = prepare_call(
        Impostor(facts=Facts(effect=Effect.READ_ONLY, path_guarded=True)),
        call(),
        Policy(),
        "confined",
        has_readers=True,
    )
    assert not prepared.only_touches_files
    assert not prepared.facts.path_guarded
    assert prepared.own_path == ""
    assert prepared.needs_reader


def test_our_own_tools_are_known_by_any_name() -> None:
    for one in (sandbox_read, renamed_tool(sandbox_read, "other")):
        prepared = prepare_call(one, call(path="a"), Policy(), "confined")
        assert prepared.own_path == "aisotools.builtin.files:sandbox_read"
    assert prepare_call(copy.copy(sandbox_read), call(path="a"), Policy(), "confined").own_path == ""


# ---- what only reads


@tool(effect=Effect.READ_ONLY)
def reads() -> None:
    """Says that it only reads."""


@tool(effect=Effect.READ_ONLY, runs_in="host")
def reads_on_the_host() -> None:
    """Says so on the host."""


@tool(effect=Effect.LOCAL_MUTATION)
def changes() -> None:
    """Says that it changes something."""


@tool(gather_facts=lambda _: Facts(effect=Effect.READ_ONLY, certain=False))
def unsure() -> None:
    """Says that it only reads, perhaps."""


@pytest.mark.parametrize(
    ("one", "arguments", "needs_reader"),
    [
        (reads, {}, True),
        (reads_on_the_host, {}, False),
        (changes, {}, False),
        (unsure, {}, False),
        (python, {"code": "1"}, False),
        (variables, {}, True),
        (sandbox_read, {"path": "a"}, False),
        (sandbox_write, {"path": "a", "content": "b"}, False),
        (sandbox_bash, {"command": "ls"}, False),
        (task_list, {}, False),
        (renamed_tool(task_list, "other"), {}, False),
        (renamed_tool(reads, "other"), {}, True),
    ],
)
def test_reader_is_needed_by_strangers_that_only_read(
    one: Tool, arguments: dict[str, Any], needs_reader: bool
) -> None:
    prepared = prepare_call(one, call(**arguments), Policy(), "confined", has_readers=True)
    assert prepared.needs_reader is needs_reader
    assert not prepare_call(one, call(**arguments), Policy(), "confined").needs_reader


@pytest.mark.parametrize(
    ("mode", "decision"), [("plan", Decision.DENY), ("safe", Decision.ASK), ("auto", Decision.ALLOW)]
)
def test_reading_that_cannot_be_enforced_counts_as_a_local_change(mode: Any, decision: Decision) -> None:
    believed = prepare_call(reads, call(), Policy(mode=mode), "confined", has_readers=True)
    assert (believed.effect, believed.evaluation.decision) == (Effect.READ_ONLY, Decision.ALLOW)
    prepared = prepare_call(reads, call(), Policy(mode=mode), "guarded", lambda _: True)
    assert (prepared.effect, prepared.facts.effect) == (Effect.LOCAL_MUTATION,) * 2
    assert prepared.evaluation.decision is decision
    assert prepared.evaluation.reasons[-1].startswith(
        "its tool says that it only reads, which cannot be enforced"
    )
    assert "guarded" in prepared.evaluation.reasons[-1]
    assert prepared.facts.undoable, "so it is covered by a checkpoint"
    ours = prepare_call(sandbox_read, call(path="a"), Policy(mode=mode), "guarded")
    assert ours.evaluation.decision is Decision.ALLOW


# ---- what is decided is what runs


def test_a_ticket_holds_what_was_decided() -> None:
    mock = MockTool(effect=Effect.READ_ONLY, timeout_s=3)
    prepared = prepare_call(mock, call(x=[1]), Policy(), "guarded")
    assert prepared.tool is mock
    assert prepared.arguments == {"x": [1]}
    assert prepared.call == call(x=[1])
    assert (prepared.effect, prepared.deadline_s, prepared.payload) == (Effect.READ_ONLY, 3.0, None)
    assert (prepared.facts.runs_in, prepared.facts.level) == ("host", "guarded")
    assert (prepared.is_tried, prepared.trial) == (False, {}), "that takes more than the call"
    assert prepared.evaluation.decision is Decision.ALLOW


def test_readers_of_the_arguments_get_copies() -> None:
    prepared = prepare_call(MockTool(), call(x=[1]), Policy(), "confined")
    prepared.arguments["x"].append(2)
    prepared.call.arguments["x"].append(2)
    assert prepared.arguments == {"x": [1]}


def test_nobody_who_is_asked_on_the_way_can_change_them() -> None:
    def meddle(arguments: Any) -> Any:
        arguments["x"] = "changed"

    class Meddler(MockTool):
        def gather_facts(self, arguments: Mapping[str, Any]) -> Facts:
            meddle(arguments)
            return Facts()

        def timeout_s(self, arguments: Mapping[str, Any]) -> float:  # type: ignore[override]  # a function of them
            meddle(arguments)
            return 5

    rule = Rule(when=lambda call, facts: bool(meddle(call.arguments)))
    prepared = prepare_call(Meddler(), call(x=1), Policy(rules=[rule]), "confined")
    assert prepared.arguments == {"x": 1}
    assert prepared.call.arguments == {"x": 1}


def test_the_payload_is_packed_at_the_decision() -> None:
    names: dict[str, Any] = {"value": 1}
    exec("def mock() -> int:\n    return value", names)
    mock = tool(names["mock"])
    before = prepare_call(mock, call(), Policy(), "confined").payload
    names["value"] = 2
    after = prepare_call(mock, call(), Policy(), "confined").payload
    assert before is not None
    assert after is not None
    assert before.key != after.key
    assert prepare_call(mock, call(), Policy(), "confined").facts.runs_in == "sandbox"


def test_arguments_that_do_not_fit_never_get_a_ticket() -> None:
    parameters = {"type": "object", "properties": {"x": {"type": "integer"}}}
    with pytest.raises(ArgumentError, match="x: does not fit"):
        prepare_call(MockTool(parameters=parameters), call(x="1"), Policy(), "confined")
    with pytest.raises(ArgumentError, match="not JSON"):
        prepare_call(MockTool(), call(x="\ud800"), Policy(), "confined")


def test_a_classifier_that_fails_denies_and_is_named() -> None:
    def classify(arguments: Mapping[str, Any]) -> Effect:
        raise KeyError("operation")

    mock = MockTool()
    mock.classify = classify
    prepared = prepare_call(
        mock, call(), Policy(mode="auto", rules=[Rule(decision=Decision.ALLOW)]), "confined"
    )
    assert prepared.evaluation.decision is Decision.DENY
    assert prepared.evaluation.reasons == (
        "its effects could not be determined (KeyError: 'operation'); fix its classify()",
    )
    assert prepared.effect is Effect.DESTRUCTIVE
    # Nothing may look certain, undoable or confined that was never classified.
    assert prepared.facts == Facts(effect=Effect.DESTRUCTIVE, certain=False, runs_in="host", level="confined")


def test_a_failing_check_of_undo_denies_and_hides_nothing() -> None:
    def can_undo(facts: Facts) -> bool:
        raise OSError("no history")

    prepared = prepare_call(MockTool(), call(), Policy(mode="auto"), "confined", can_undo)
    assert prepared.evaluation.decision is Decision.DENY
    assert prepared.evaluation.reasons == (
        "its effects could not be determined (OSError: no history); fix its classify()",
    )
    assert (prepared.facts.certain, prepared.facts.undoable) == (False, False)


def test_a_classifier_for_which_no_file_can_be_opened_is_not_to_blame() -> None:
    def classify(arguments: Mapping[str, Any]) -> Effect:
        raise OSError(errno.EMFILE, "Too many open files")

    mock = MockTool()
    mock.classify = classify
    evaluation = prepare_call(mock, call(), Policy(mode="auto"), "confined").evaluation
    assert evaluation.decision is Decision.DENY
    (reason,) = evaluation.reasons
    assert "Too many open files); Too many files are open: close sessions or files, or raise" in reason
    assert "classify" not in reason


@pytest.mark.parametrize("undoable", [True, False])
def test_whether_a_change_can_be_undone_is_asked_with_its_facts(undoable: bool) -> None:
    asked: list[Facts] = []

    def can_undo(facts: Facts) -> bool:
        asked.append(facts)
        return undoable

    shown = Facts(effect=Effect.DESTRUCTIVE, writes=("a",))
    prepared = prepare_call(MockTool(facts=shown), call(), Policy(), "guarded", can_undo)
    assert prepared.facts.undoable is undoable
    (facts,) = asked
    assert (facts.writes, facts.level, facts.runs_in) == (("a",), "guarded", "host")
    assert not prepare_call(MockTool(facts=shown), call(), Policy(), "guarded").facts.undoable


def test_a_call_that_only_reads_is_never_asked_about_undo() -> None:
    def can_undo(facts: Facts) -> bool:
        raise AssertionError

    reading = MockTool(effect=Effect.READ_ONLY)
    assert prepare_call(reading, call(), Policy(), "confined", can_undo).evaluation.decision is Decision.ALLOW
    uncertain = MockTool(facts=Facts(effect=Effect.READ_ONLY, certain=False))
    with_undo = prepare_call(uncertain, call(), Policy(), "confined", lambda _facts: True)
    assert with_undo.facts.undoable
    assert with_undo.effect is Effect.LOCAL_MUTATION


def test_the_level_and_place_are_the_gates_and_not_the_tools() -> None:
    boasting = MockTool(facts=Facts(runs_in="sandbox", level="isolated", undoable=True))
    facts = prepare_call(boasting, call(), Policy(), "limited").facts
    assert (facts.runs_in, facts.level, facts.undoable) == ("host", "limited", False)


def test_the_policy_decides_with_what_is_known() -> None:
    rule = Rule(when=lambda call, facts: call.arguments == {"x": 1} and facts.level == "confined")
    policy = Policy(mode="auto", rules=[rule])
    mock = MockTool(facts=Facts(writes=("a",)))
    assert prepare_call(mock, call(x=1), policy, "confined").evaluation.decision is Decision.ASK
    assert prepare_call(mock, call(x=2), policy, "confined").evaluation.decision is Decision.ALLOW
    assert prepare_call(mock, call(x=1), policy, "guarded").evaluation.decision is Decision.ALLOW


def test_parts_of_a_digest_cannot_run_together() -> None:
    one = call_digest(MockTool("a"), b"{}", "bconfined", Facts())
    assert one != call_digest(MockTool("ab"), b"{}", "confined", Facts())


# ---- the digest


@given(one=ARGUMENTS, other=ARGUMENTS)
def test_the_digest_changes_with_the_arguments(one: dict[str, Any], other: dict[str, Any]) -> None:
    from pydantic_core import to_json

    mock = MockTool()
    tickets = [prepare_call(mock, ToolCall("c", "mock", a), Policy(), "confined") for a in (one, other)]
    same = to_json(one) == to_json(other)
    assert (tickets[0].digest == tickets[1].digest) is same


def test_the_digest_changes_with_the_tool_the_level_and_the_paths() -> None:
    mock, facts = MockTool(), Facts(reads=("a",))
    digests = {
        call_digest(mock, b"{}", "confined", facts),
        call_digest(MockTool(description="Another."), b"{}", "confined", facts),
        call_digest(MockTool("other"), b"{}", "confined", facts),
        call_digest(mock, b"{}", "guarded", facts),
        call_digest(mock, b"[]", "confined", facts),
        call_digest(mock, b"{}", "confined", Facts(reads=("a", "b"))),
        call_digest(mock, b"{}", "confined", Facts(writes=("a",))),
        call_digest(mock, b"{}", "confined", Facts(reads=("a",), links=(("a", "b"),))),
        call_digest(mock, b"{}", "confined", Facts(reads=("a",), unresolved=("$x",))),
    }
    assert len(digests) == 9
    assert call_digest(mock, b"{}", "confined", facts) in digests
    assert call_digest(mock, b"{}", "confined", Facts(reads=("\ud800",)))


def test_paths_are_resolved_where_something_goes_by_them() -> None:
    def resolve(facts: Facts, arguments: Mapping[str, Json] | None) -> Facts:
        return dataclasses.replace(facts, reads=("resolved",), mentions=tuple(arguments or ()))

    def reads(policy: Policy, facts: Facts) -> tuple[str, ...]:
        prepared = prepare_call(
            MockTool(facts=facts), call(x=1), policy, "confined", has_readers=True, resolve_paths=resolve
        )
        return prepared.facts.reads

    reading = Facts(effect=Effect.READ_ONLY, reads=("spelled",))
    assert reads(Policy(), reading) == ("spelled",)
    assert reads(Policy(), Facts(reads=("spelled",))) == ("resolved",)
    by_path = Rule(when={"paths": "resolved"}, decision=Decision.DENY)
    assert reads(Policy(rules=[by_path]), reading) == ("resolved",)
    assert reads(Policy().narrowed(Policy(rules=[by_path])), reading) == ("resolved",)
    assert reads(Policy(rules=[Rule(when=lambda _call, _facts: False)]), reading) == ("resolved",)
    assert reads(Policy(rules=[Rule(tool="mock", decision=Decision.ASK)]), reading) == ("resolved",)


def test_a_call_whose_paths_turn_out_to_be_uncertain_is_not_taken_for_one_that_reads() -> None:
    """It is resolved late, since only the person who is asked about it sees its paths."""

    def resolve(facts: Facts, arguments: Mapping[str, Json] | None) -> Facts:
        del arguments
        return dataclasses.replace(facts, certain=False)

    policy = Policy(rules=[Rule(tool="mock", decision=Decision.ASK)])
    reading = MockTool(facts=Facts(effect=Effect.READ_ONLY, reads=("a",)))
    effects = [
        prepare_call(reading, call(x=1), policy, "confined", has_readers=True, resolve_paths=look).effect
        for look in (None, resolve)
    ]
    assert effects == [Effect.READ_ONLY, Effect.LOCAL_MUTATION]


def digest_nothing(texts: Iterable[str], scripts: Iterable[str], *, is_any: bool = False) -> str:
    return f"{texts} {scripts} {is_any}"


UNCERTAIN = Facts(certain=False, reads=("a",))


@pytest.mark.parametrize(
    ("facts", "policy", "looks"),
    [
        (Facts(effect=Effect.READ_ONLY, reads=("a",)), Policy(), 0),
        (UNCERTAIN, Policy(mode="auto", rules=[Rule(tool="mock", decision=Decision.ALLOW)]), 1),
        (Facts(reads=("a",), commands=("cp a b",)), Policy(mode="auto"), 1),
        (
            Facts(effect=Effect.READ_ONLY, reads=("a",)),
            Policy(rules=[Rule(tool="mock", decision=Decision.ASK)]),
            2,
        ),
        (UNCERTAIN, Policy(), 2),
    ],
)
def test_looks_at_many_files_are_left_to_whoever_prepares_a_call(
    facts: Facts, policy: Policy, looks: int
) -> None:
    """They follow what a call names that may do anything, and compare what one reads that is asked about."""

    def prepare(finish: Callable[[CallSteps], PreparedCall]) -> PreparedCall:
        return finish(
            prepare_in_steps(
                MockTool(facts=facts),
                call(x=1),
                policy,
                "confined",
                has_readers=True,
                resolve_paths=lambda facts, _: facts,
                find_sources=lambda _, facts: dataclasses.replace(facts, sources=(("a", "digest"),)),
                digest_code=digest_nothing,
            )
        )

    yielded: list[Facts] = []

    def count(steps: CallSteps) -> PreparedCall:
        look = next(steps, None)
        try:
            while look is not None:
                yielded.append(look())
                look = steps.send(yielded[-1])
        except StopIteration as end:
            prepared: PreparedCall = end.value
            return prepared
        return prepare(finish_steps)

    assert prepare(count).facts == prepare(finish_steps).facts
    assert len(yielded) == looks


def test_an_error_of_a_look_that_follows_paths_denies_the_call() -> None:
    def fail(facts: Facts, arguments: Mapping[str, Json] | None) -> Facts:
        raise OSError(f"cannot look {facts.reads} {arguments}")

    prepared = prepare_call(MockTool(facts=UNCERTAIN), call(), Policy(), "confined", resolve_paths=fail)
    assert prepared.evaluation.decision is Decision.DENY
    assert "OSError: cannot look" in prepared.evaluation.reasons[0]


# ---- the result


@pytest.mark.parametrize(
    ("reasons", "expected"),
    [
        (("it was denied",), "file was not run: it was denied."),
        (("a.", "b"), "file was not run: a; b."),
        ((), "file was not run: no reason was given."),
        (("", ""), "file was not run: no reason was given."),
    ],
)
def test_a_denial_says_why(reasons: tuple[str, ...], expected: str) -> None:
    result = denial_result("file", reasons)
    assert (result.content, result.error_kind, result.recoverable) == (expected, "denied", False)


# ---- which paths are resolved


@pytest.mark.parametrize("is_builtin", [False, True])
@pytest.mark.parametrize("effect", [Effect.READ_ONLY, Effect.LOCAL_MUTATION])
@pytest.mark.parametrize("by_paths", [False, True])
def test_paths_are_resolved_where_they_matter(is_builtin: bool, effect: Effect, by_paths: bool) -> None:
    """And only a tool of a stranger has its arguments looked through for them: ours say what they are."""
    seen: list[Mapping[str, Json] | None] = []

    def resolve(facts: Facts, arguments: Mapping[str, Json] | None) -> Facts:
        seen.append(arguments)
        return dataclasses.replace(facts, unresolved=("$X",))

    rules = [Rule(when={"paths": ["secret/**"]}, decision=Decision.DENY)] if by_paths else []
    policy = Policy(mode="safe", rules=rules)
    assert policy.concerns_paths is by_paths
    if is_builtin:
        used: Tool = sandbox_write if effect is Effect.LOCAL_MUTATION else sandbox_read
        arguments: dict[str, Json] = {"path": "a"}
        if effect is Effect.LOCAL_MUTATION:
            arguments["content"] = "x"
    else:
        used, arguments = MockTool("m", effect=effect), {"path": "a"}
    prepared = prepare_call(
        used, call(**arguments), policy, "confined", has_readers=True, resolve_paths=resolve
    )
    matters = by_paths or effect is not Effect.READ_ONLY
    assert len(seen) == matters
    assert prepared.facts.unresolved == ("$X",) * matters
    if matters:
        assert (seen[0] is None) is is_builtin
        assert is_builtin or seen[0] == arguments


# ---- what is known of a call, and by whom


def facts_of(one: Tool, level: str = "confined", policy: Policy | None = None, **arguments: Any) -> Facts:
    return prepare_call(one, call(**arguments), policy or Policy(), level, has_readers=True).facts


def test_facts_of_our_own_tools_are_found_out_and_those_of_others_declared() -> None:
    ours = facts_of(todo, items=[])
    assert (ours.runs_in, ours.basis) == ("host", "analysis")
    assert facts_of(sandbox_read, path="a").basis == "analysis"
    assert facts_of(MockTool(effect=Effect.READ_ONLY)).basis == "declaration"
    assert facts_of(MockTool(effect=Effect.READ_ONLY, runs_in="sandbox")).basis == "declaration"
    assert facts_of(MockTool()).basis == "nothing"


def reasons(one: Tool, mode: Any = "safe", **arguments: Any) -> tuple[str, ...]:
    prepared = prepare_call(one, call(**arguments), Policy(mode=mode), "confined", has_readers=True)
    return prepared.evaluation.reasons


def test_that_nothing_enforces_what_a_tool_on_the_host_declares_is_a_reason() -> None:
    note = "its author declares that it only reads, and nothing on the host enforces that"
    assert note in reasons(MockTool(effect=Effect.READ_ONLY))
    assert note not in reasons(MockTool(effect=Effect.READ_ONLY, runs_in="sandbox")), "a reader enforces it"
    assert note not in reasons(todo, items=[]), "it is ours"
    assert note not in reasons(MockTool(effect=Effect.LOCAL_MUTATION))
    assert note not in reasons(MockTool()), "it declares nothing"


@pytest.mark.parametrize("mode", ["safe", "plan"])
def test_flaw_of_a_declaration_is_a_reason_where_the_call_is_not_allowed(mode: Any) -> None:
    flawed = MockTool(facts=Facts(writes=("a\0b",)))
    (flaw,) = [reason for reason in reasons(flawed, mode) if "which is none" in reason]
    assert flaw not in reasons(MockTool(facts=Facts(writes=("a",))), mode)
    allowing = Policy(rules=[Rule(decision=Decision.ALLOW)])
    allowed = prepare_call(flawed, call(), allowing, "confined").evaluation
    assert allowed.decision is Decision.ALLOW
    assert flaw not in allowed.reasons, "nobody looks at it there"


# ---- commands that a tool on the host declares


def declaring(*commands: str, **fields: Any) -> MockTool:
    fields = {"effect": Effect.READ_ONLY, **fields}
    return MockTool(facts=Facts(commands=commands, **fields))


def test_a_tool_on_the_host_is_no_milder_than_the_commands_that_it_names() -> None:
    assert facts_of(declaring("cat a")).effect is Effect.READ_ONLY
    assert facts_of(declaring("cat a", "rm -rf b")).effect is Effect.DESTRUCTIVE
    assert facts_of(declaring("rm -rf b", "cat a")).effect is Effect.DESTRUCTIVE
    written = facts_of(declaring("touch b", effect=Effect.LOCAL_MUTATION, writes=("a",)))
    assert set(written.writes) == {"a", "b"}
    assert not facts_of(declaring("cat a", certain=False)).certain, "the author is not certain"
    assert facts_of(declaring("cat a")).certain
    assert not facts_of(declaring("cat a", "made-up-program x")).certain
    assert not facts_of(declaring("made-up-program x", "cat a")).certain
    assert facts_of(declaring("touch /etc/x", effect=Effect.LOCAL_MUTATION)).outside
    assert facts_of(declaring("cat a", outside=True)).outside
    assert not facts_of(declaring("cat a")).outside


def test_a_program_alone_counts_for_what_it_does_with_any_argument() -> None:
    for alone in ("gzip", " gzip "):  # without a file it would only pack what it reads from its input
        assert facts_of(declaring(alone)).effect is Effect.LOCAL_MUTATION
    assert not facts_of(declaring("date")).certain, "with an argument it may set the clock"
    assert facts_of(declaring("cat")).effect is Effect.READ_ONLY
    # With an argument it is a command, which does what it says and no more.
    assert facts_of(declaring("git branch")).effect is Effect.READ_ONLY


def test_the_commands_of_a_tool_in_the_sandbox_are_its_own_to_declare() -> None:
    named = MockTool(facts=Facts(effect=Effect.LOCAL_MUTATION, commands=("rm -rf b",)), runs_in="sandbox")
    assert facts_of(named).effect is Effect.LOCAL_MUTATION


@pytest.mark.parametrize(
    ("commands", "certain"),
    [
        (["cat a"] * 20, True),
        (["cat a"] * 21, False),
        ([f"cat {'a' * 4_996}"], True),
        ([f"cat {'a' * 4_997}"], False),
    ],
    ids=["20", "21", "5,000 characters", "5,001 characters"],
)
def test_more_commands_than_can_be_looked_at_are_uncertain(commands: list[str], certain: bool) -> None:
    facts = facts_of(declaring(*commands, reads=("a",)))
    assert (facts.certain, facts.reads, facts.effect) == (certain, ("a",), Effect.READ_ONLY)


# ---- code that a stranger's tool gets


def looked_at(one: Tool, **arguments: Any) -> tuple[Facts, Mapping[str, Json] | None]:
    """The facts of a call, and the arguments in which paths were looked for."""
    seen: list[Mapping[str, Json] | None] = []

    def resolve(facts: Facts, given: Mapping[str, Json] | None) -> Facts:
        seen.append(given)
        return facts

    prepared = prepare_call(one, call(**arguments), Policy(), "confined", resolve_paths=resolve)
    return prepared.facts, seen[-1] if seen else None


def test_of_code_what_stands_in_quotes_is_looked_at_and_the_rest_of_the_arguments_as_it_is() -> None:
    code = "import helper\nprint(open('secrets/key').read())"
    facts, looked = looked_at(MockTool(), code=code, path="b")
    assert "secrets/key" in facts.named
    assert any("helper" in name for name, _ in facts.scripts)
    assert looked == {"path": "b"}
    _, plain = looked_at(MockTool(), code="secrets/key", path="b")
    assert plain == {"code": "secrets/key", "path": "b"}, "it may as well be the name of a file"
    _, longer = looked_at(MockTool(), code="#" * 5_000)
    assert longer == {}, "no path is so long, and to look through megabytes for signs of code takes long"
    _, number = looked_at(MockTool(), code=7)
    assert number == {"code": 7}
    _, other = looked_at(MockTool(), text=code)
    assert other == {"text": code}
    _, nothing = looked_at(MockTool())
    assert nothing == {}
    without = prepare_call(MockTool(), call(code=code), Policy(), "confined").facts
    assert "secrets/key" in without.named
    assert without.scripts == (), "nobody can look at them"


# ---- what the sandbox enforces

ENFORCED = frozenset({("paths", "secrets/*")})
FOR_READING = frozenset({("reads", "keys/*")})


def enforced_for(one: Tool, **arguments: Any) -> frozenset[tuple[str, str]]:
    return prepare_call(
        one,
        call(**arguments),
        Policy(),
        "confined",
        has_readers=True,
        enforced=ENFORCED,
        enforced_for_reading=FOR_READING,
    ).facts.enforced


def test_rules_hold_in_the_sandbox_and_more_of_them_for_calls_that_only_read() -> None:
    assert enforced_for(sandbox_bash, command="cat a") == ENFORCED | FOR_READING
    assert enforced_for(sandbox_bash, command="touch a") == ENFORCED
    assert enforced_for(sandbox_bash, command="made-up-program a") == ENFORCED
    assert enforced_for(sandbox_bash, command="cat a", background=True) == ENFORCED
    assert enforced_for(task_list) == ENFORCED, "no command"
    assert enforced_for(sandbox_read, path="a") == ENFORCED | FOR_READING
    assert enforced_for(sandbox_write, path="a", content="") == ENFORCED
    assert enforced_for(reads) == ENFORCED
    claims = MockTool(runs_in="sandbox", facts=Facts(effect=Effect.READ_ONLY, commands=("cat a",)))
    assert enforced_for(claims) == ENFORCED, "a stranger's commands are not held by ours"
    assert enforced_for(MockTool(effect=Effect.READ_ONLY)) == frozenset(), "no sandbox holds the host"


# ---- variables of the sandbox


@tool(effect=Effect.LOCAL_MUTATION)
def alone() -> None:
    """Changes something, and shares the worker with no other call."""


@pytest.mark.parametrize(
    ("one", "arguments", "changes_variables"),
    [
        (alone, {}, True),
        (python, {"code": "x = 1"}, True),
        (reads, {}, False),
        (variables, {}, False),
        (MockTool(effect=Effect.LOCAL_MUTATION), {}, False),
        (MockTool(effect=Effect.LOCAL_MUTATION, runs_in="sandbox"), {}, False),
        (sandbox_write, {"path": "a", "content": "b"}, False),
        (sandbox_bash, {"command": "touch a"}, False),
    ],
    ids=["alone", "python", "reader", "variables", "host", "overlap", "files", "bash"],
)
def test_variables_are_kept_before_calls_that_may_change_them(
    one: Tool, arguments: dict[str, Any], changes_variables: bool
) -> None:
    prepared = prepare_call(one, call(**arguments), Policy(), "confined", has_readers=True)
    assert prepared.changes_variables is changes_variables


def test_reading_that_nothing_holds_may_change_variables() -> None:
    assert prepare_call(reads, call(), Policy(), "guarded").changes_variables


# ---- late


def test_paths_are_looked_at_again_where_they_were_resolved() -> None:
    target = ["a"]

    def resolve(facts: Facts, arguments: Mapping[str, Json] | None) -> Facts:
        del arguments
        return dataclasses.replace(facts, reads=(target[0],))

    def prepared(policy: Policy, facts: Facts) -> PreparedCall:
        return prepare_call(MockTool(facts=facts), call(), policy, "confined", resolve_paths=resolve)

    asked = Policy(rules=[Rule(tool="mock", decision=Decision.ASK)])
    reading = Facts(effect=Effect.READ_ONLY, reads=("spelled",))
    for one in (prepared(Policy(), Facts()), prepared(asked, reading)):
        target[0] = "a"
        assert one.look_again is not None
        target[0] = "b"
        assert one.look_again().reads == ("b",)
    assert prepared(Policy(), reading).look_again is None, "nobody went by its paths"
    assert prepare_call(MockTool(), call(), Policy(), "confined").look_again is None


def test_facts_resolved_for_the_question_alone_are_not_milder_than_what_was_decided() -> None:
    def resolve(facts: Facts, arguments: Mapping[str, Json] | None) -> Facts:
        del arguments
        return dataclasses.replace(facts, effect=Effect.READ_ONLY, reads=("resolved",), undoable=True)

    policy = Policy(rules=[Rule(tool="reads", decision=Decision.ASK)])
    asked = ToolCall("c1", "reads", {})
    prepared = prepare_call(reads, asked, policy, "guarded", lambda _: False, resolve_paths=resolve)
    assert prepared.facts.reads == ("resolved",)
    assert (prepared.effect, prepared.facts.undoable) == (Effect.LOCAL_MUTATION, False)


UNKNOWN = Facts(effect=Effect.LOCAL_MUTATION, certain=False)


@pytest.mark.parametrize(
    ("facts", "runs_in", "arguments", "is_digested"),
    [
        (UNKNOWN, "sandbox", {"path": "a"}, True),
        (UNKNOWN, "host", {"path": "a"}, False),
        (dataclasses.replace(UNKNOWN, commands=("./run",)), "sandbox", {"path": "a"}, True),
        (dataclasses.replace(UNKNOWN, commands=("./run",)), "host", {"path": "a"}, True),
        (dataclasses.replace(UNKNOWN, certain=True, commands=("ls",)), "sandbox", {"path": "a"}, False),
        (dataclasses.replace(UNKNOWN, certain=True), "sandbox", {"path": "a"}, False),
        (dataclasses.replace(UNKNOWN, certain=True), "sandbox", {"code": "f()", "path": "a"}, True),
        (dataclasses.replace(UNKNOWN, certain=True), "sandbox", {"code": 1}, False),
    ],
)
def test_a_call_that_may_run_code_without_naming_it_is_bound_to_all_code(
    facts: Facts, runs_in: Any, arguments: dict[str, Any], is_digested: bool
) -> None:
    texts: list[list[str]] = []

    def digest_code(given: Iterable[str], _scripts: Iterable[str], *, is_any: bool = False) -> str:
        texts.append(list(given))
        return "1f"

    def prepare(policy: Policy) -> PreparedCall:
        one = MockTool(facts=facts, runs_in=runs_in)
        return prepare_call(one, call(**arguments), policy, "confined", digest_code=digest_code)

    asked = prepare(Policy(rules=[Rule(decision=Decision.ASK)]))
    assert asked.facts.code == ("1f" if is_digested else None)
    assert texts == ([[one for one in arguments.values() if isinstance(one, str)]] if is_digested else [])
    texts.clear()
    denied = prepare(Policy(rules=[Rule(decision=Decision.DENY)]))
    assert (denied.facts.code, texts) == (None, []), "all code is read only for a question"


def test_the_digest_covers_what_would_be_destroyed() -> None:
    def digest(effect: Effect, *losses: tuple[str, str]) -> str:
        return call_digest(MockTool(), b"{}", "confined", Facts(effect=effect, losses=losses))

    destroyed = digest(Effect.DESTRUCTIVE, ("a", "1"))
    assert destroyed != digest(Effect.DESTRUCTIVE, ("a", "2"))
    changed = digest(Effect.LOCAL_MUTATION, ("a", "1"))
    assert changed == digest(Effect.LOCAL_MUTATION, ("a", "2")), "it is kept, and can be put back"


def test_large_arguments_are_what_was_given_and_nobody_shares_them() -> None:
    text = "x" * 50_000
    prepared = prepare_call(MockTool(), call(text=text, parts=["a"]), Policy(), "confined")
    prepared.arguments["parts"].append("b")
    assert prepared.arguments == {"text": text, "parts": ["a"]}
    assert prepared.call.arguments == {"text": text, "parts": ["a"]}


def test_only_the_arguments_of_a_call_are_exchanged() -> None:
    """Field by field: a new field of a call must not be forgotten."""
    made = ToolCall("1", "file", {"path": "a"}, origin="model", agent_id="a", turn_id="t")
    assert all(getattr(made, one.name) != one.default for one in dataclasses.fields(ToolCall)), (
        "each field has another value than by default"
    )
    assert prepared_module._with_arguments(made, {"path": "b"}) == dataclasses.replace(
        made, arguments={"path": "b"}
    )


def test_sources_are_found_only_for_a_question() -> None:
    found: list[Facts] = []

    def resolve(facts: Facts, _arguments: object) -> Facts:
        return dataclasses.replace(facts, reads=("resolved",))

    def find(declared: Facts, facts: Facts) -> Facts:
        found.append(declared)
        assert facts.reads == ("resolved",)
        return dataclasses.replace(facts, sources=(("resolved", str(len(found))),))

    def prepare(policy: Policy, effect: Effect, *, is_asked: bool = False) -> PreparedCall:
        one = MockTool(facts=Facts(effect=effect, reads=("written",)), runs_in="sandbox")
        return prepare_call(
            one,
            call(),
            policy,
            "confined",
            has_readers=True,
            resolve_paths=resolve,
            find_sources=find,
            is_asked=is_asked,
        )

    asks = Policy(rules=[Rule(decision=Decision.ASK)])
    allows = Policy(rules=[Rule(decision=Decision.ALLOW)])
    denies = Policy(rules=[Rule(decision=Decision.DENY)])
    assert prepare(allows, Effect.LOCAL_MUTATION).facts.sources == ()
    assert prepare(denies, Effect.LOCAL_MUTATION).facts.sources == ()
    assert prepare(asks, Effect.READ_ONLY).facts.sources == ()
    assert found == []
    asked = prepare(asks, Effect.LOCAL_MUTATION)
    assert asked.facts.sources == (("resolved", "1"),)
    assert found[0].reads == ("written",)
    assert asked.look_again is not None
    assert asked.look_again().sources == (("resolved", "2"),), "the second look finds them as well"
    assert prepare(allows, Effect.LOCAL_MUTATION, is_asked=True).facts.sources == (("resolved", "3"),)
    assert asked.policy == asks


def test_a_card_names_what_cannot_be_compared_of_what_a_call_reads() -> None:
    """Three names at most, and only if the approval would depend on it."""
    sources = tuple(
        (name, stamps.UNKNOWN if name != "known" else "1") for name in ("known", "a", "b", "c", "d")
    )

    def reasons_of(*names: str) -> tuple[str, ...]:
        found = tuple(one for one in sources if one[0] in names)
        prepared = prepare_call(
            MockTool(facts=Facts(certain=False), runs_in="sandbox"),
            call(),
            Policy(rules=[Rule(decision=Decision.ASK)]),
            "confined",
            resolve_paths=lambda facts, _: facts,
            find_sources=lambda _, facts: dataclasses.replace(facts, sources=found),
        )
        return prepared.evaluation.reasons

    assert not any("cannot be remembered" in reason for reason in reasons_of("known"))
    reason = "an approval cannot be remembered: not all that it reads can be compared ({})"
    assert reasons_of("known", "a")[-1] == reason.format("a")
    assert reasons_of("known", "a", "b", "c", "d")[-1] == reason.format("a, b, c and 1 more")


SOURCES = (("a", "1"), ("b", MISSING))


@pytest.mark.parametrize(
    ("facts", "is_bound"),
    [
        (Facts(sources=SOURCES), False),
        (Facts(sources=SOURCES, certain=False), True),
        (Facts(sources=SOURCES, unresolved=("$x",)), True),
        (Facts(sources=SOURCES, effect=Effect.REMOTE_ACTION), True),
        (Facts(sources=SOURCES, effect=Effect.DESTRUCTIVE), False),
    ],
)
def test_the_digest_covers_the_sources_of_what_depends_on_them(facts: Facts, is_bound: bool) -> None:
    assert bound_sources(facts) == (SOURCES if is_bound else ())
    other = dataclasses.replace(facts, sources=(("a", "2"),))
    same = call_digest(MockTool(), b"{}", "confined", facts) == call_digest(
        MockTool(), b"{}", "confined", other
    )
    assert same is not is_bound


@pytest.mark.parametrize(
    ("known", "is_any"),
    [
        ({"unresolved": ("$x",)}, True),
        ({"unresolved": ("`cat list`",)}, True),
        ({"unresolved": ("…",)}, True),
        ({"unresolved": ("*.diff", "a/b")}, False),
        ({"unresolved": ("$HOME/a", "${PWD}/b", "$TMPDIR")}, False),
        ({"unresolved": ("$HOMES",)}, True),
        ({"commands": ("tar cf a.tar -T list",)}, True),
        ({"commands": ("rsync --files-from=list . b",)}, True),
        ({"commands": ("tar cf a.tar list",)}, False),
    ],
)
def test_a_call_that_finds_names_when_it_runs_is_bound_to_all_files(
    known: dict[str, Any], is_any: bool
) -> None:
    given: list[bool] = []

    def digest_code(_texts: Iterable[str], _scripts: Iterable[str], *, is_any: bool = False) -> str:
        given.append(is_any)
        return "1f"

    one = MockTool(facts=dataclasses.replace(UNKNOWN, **known), runs_in="sandbox")
    prepare_call(
        one, call(), Policy(rules=[Rule(decision=Decision.ASK)]), "confined", digest_code=digest_code
    )
    assert given == [is_any]


def test_a_word_that_is_only_known_at_run_time_binds_all_files() -> None:
    given: list[bool] = []

    def digest_code(_texts: Iterable[str], _scripts: Iterable[str], *, is_any: bool = False) -> str:
        given.append(is_any)
        return "1f"

    for command in ("strange a.csv", "strange $HOME", "strange $x", "strange $(cat list)"):
        prepare_call(sandbox_bash, call(command=command), Policy(), "confined", digest_code=digest_code)
    assert given == [False, False, True, True]


def test_calls_that_only_read_run_together_and_each_other_one_alone() -> None:
    def decided(effect: Effect, decision: Decision = Decision.ALLOW) -> CallDecision:
        one = MockTool(facts=Facts(effect=effect), runs_in="sandbox")
        prepared = prepare_call(one, call(), Policy(), "confined", has_readers=True)
        return CallDecision(prepared, decision, "policy", ())

    reads, writes = decided(Effect.READ_ONLY), decided(Effect.LOCAL_MUTATION)
    denied = decided(Effect.LOCAL_MUTATION, Decision.DENY)
    error = ToolResult.error("no call")
    waves = list(in_waves([reads, reads, writes, denied, error, writes]))
    assert waves == [[0, 1], [2], [3, 4], [5], []]
    assert [changes_something(one) for one in (reads, writes, denied, error)] == [False, True, False, False]


@pytest.mark.parametrize(("chars", "is_left"), [(10, False), (5_000, True)])
def test_long_commands_are_left_to_a_thread(chars: int, is_left: bool) -> None:
    command = "touch " + "a" * chars
    steps_left = prepare_in_steps(sandbox_bash, call(command=command), Policy(), "confined")
    assert prepare_call(sandbox_bash, call(command=command), Policy(), "confined").facts.writes == (
        "a" * chars,
    )
    if is_left:
        look = next(steps_left)
        assert look().writes == ("a" * chars,)
        with pytest.raises(StopIteration):
            steps_left.send(look())
    else:
        with pytest.raises(StopIteration):
            next(steps_left)


def test_long_arguments_of_tools_of_others_are_left_to_nobody() -> None:
    @tool(gather_facts=lambda _: Facts())
    def other(text: str) -> str:
        """Do something."""
        return text

    with pytest.raises(StopIteration):
        next(prepare_in_steps(other, call(text="x" * 5_000), Policy(), "confined"))
