"""Which calls are tried: those that are asked about for one reason alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from aisotools.builtin.shell import sandbox_bash
from aisotools.core.types import Decision, Effect, Facts, ToolCall
from aisotools.policy.prepared import PreparedCall, prepare_call
from aisotools.policy.rules import Mode, Policy, Rule
from aisotools.policy.trials import TrialLookups, why_not_tried
from aisotools.testing.fakes import MockTool
from tests.policy.shell.test_everyday import EverydayCommand, everyday_commands, only_reads

INSTALLED = frozenset(("frob", "nbdiff", "sponge", "ruby3.3", "make", "octave", "bzcat", "typos"))
CODE = frozenset(("x.py", "run.sh", "/workspace/run.sh"))
LOOKUPS = TrialLookups(
    find_program=lambda name: f"/usr/bin/{name}" if name.rpartition("/")[2] in INSTALLED else "",
    is_code=CODE.__contains__,
    workspace=("/workspace", "/srv/work"),
)


def prepared(command: str, policy: Policy, *, level: str = "confined", **more: Any) -> PreparedCall:
    call = ToolCall("id", "sandbox_bash", {"command": command, **more}, origin="model")
    return prepare_call(sandbox_bash, call, policy, level, has_readers=True)


def why_not(command: str, policy: Policy | None = None, **more: Any) -> str:
    policy = policy or Policy()
    return why_not_tried(prepared(command, policy, **more), policy, LOOKUPS)


@pytest.mark.parametrize("mode", ["safe", "auto"])
@pytest.mark.parametrize(
    "command",
    [
        "frob",
        "frob a.csv",
        "frob --file=a.csv | head -3",
        "nbdiff a.ipynb b.ipynb",
        "cat a.csv | frob -x",
        "ls; frob a && wc -l a",
        "/usr/bin/frob a",
        "frob /workspace/a.csv",
        "frob /srv/work/a.csv",
        "sponge -h",
        "for f in *.bz2; do bzcat $f; done",
    ],
)
def test_unknown_programs_are_tried(command: str, mode: Mode) -> None:
    assert why_not(command, Policy(mode=mode)) == ""


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("ls", "does not ask"),
        ("frob a > out", "not only about unknown programs"),
        ("frob a; rm b", "not only about unknown programs"),
        ("frob a; curl http://example.org", "not only about unknown programs"),
        ("frob a; ssh host", "not only about unknown programs"),
        ("frob a; git push", "not only about unknown programs"),
        ("python x.py", "not only about unknown programs"),
        ("python -c 'print(1)'", "not only about unknown programs"),
        ("bash run.sh", "not only about unknown programs"),
        ("pytest", "not only about unknown programs"),
        ("npm run build", "not only about unknown programs"),
        ("make", "not only about unknown programs"),
        ("source run.sh", "not only about unknown programs"),
        ("frob $x", "not only about unknown programs"),
        ("$frob a", "not only about unknown programs"),
        ("cd /tmp; frob a", "not only about unknown programs"),
        ("f() { frob; }; f", "not only about unknown programs"),
        ("FOO=1 frob a", "not only about unknown programs"),
        ('frob a; eval "$x"', "not only about unknown programs"),
        ("frob $(cat a)", "not only about unknown programs"),
        ("./frob", "not a program of the system"),
        ("bin/frob", "not a program of the system"),
        ("/workspace/frob", "not a program of the system"),
        ("/tmp/frob", "outside the workspace"),
        ("~/frob", "outside the workspace"),
        ("frobnicate", "not installed"),
        ("octave-cli a", "runs code that it finds"),
        ("prove .", "runs code that it finds"),
        ("bats t", "runs code that it finds"),
        ("cwltool a.cwl", "runs code that it finds"),
        ("frob x.py", "is a script"),
        ("frob --filter='sh x.sh' a", "may be a command, of which sh runs code"),
        ("frob --filter='cat x.sh | /bin/bash' a", "may be a command, of which /bin/bash runs code"),
        ("frob --filter=sh a", "may be a command, of which sh runs code"),
        ("frob -c 'y=1;x.py' a", "may be a command, of which x.py runs code"),
        ("frob 'a;python3.11 -c 1'", "may be a command, of which python3.11 runs code"),
        ("frob env,PATH=x,perl", "may be a command, of which perl runs code"),
        ("frob --script=x.py", "is a script"),
        ("frob /workspace/run.sh", "is a script"),
        ("frob /etc/passwd", "outside the workspace"),
        ("frob ../a", "outside the workspace"),
        ("frob ~/a", "outside the workspace"),
        ("frob --file=/data/a", "outside the workspace"),
        ("frob a; cat /etc/passwd", "outside the workspace"),
    ],
)
def test_no_other_is(command: str, why: str) -> None:
    assert why in why_not(command), why_not(command)


def test_none_is_in_mode_plan_nor_in_the_background_nor_in_another_folder() -> None:
    assert why_not("frob a", Policy(mode="plan"))
    assert why_not("frob a", background=True)
    assert why_not("frob a", workdir="sub")
    assert not why_not("frob a", workdir=".")


def test_none_that_a_person_typed() -> None:
    policy = Policy()
    typed = ToolCall("id", "sandbox_bash", {"command": "frob"}, origin="person")
    call = prepare_call(sandbox_bash, typed, policy, "confined", has_readers=True)
    assert call.evaluation.decision is Decision.ALLOW
    assert why_not_tried(call, policy, LOOKUPS)


def test_a_stranger_cannot_have_its_tool_tried() -> None:
    class Declares(MockTool):
        def gather_facts(self, _arguments: object) -> Facts:
            return Facts(certain=False, unknown=(("frob",),))

    tool = Declares(name="sandbox_bash")
    policy = Policy()
    call = prepare_call(tool, ToolCall("id", "sandbox_bash", {}, origin="model"), policy, "confined")
    assert why_not_tried(call, policy, LOOKUPS)


@pytest.mark.parametrize(
    "rules",
    [
        [Rule()],
        [Rule(tool="sandbox_*", decision=Decision.ASK)],
        [Rule(decision=Decision.ASK, when={"certain": False})],
        [Rule(decision=Decision.ASK, when={"commands": "frob*"})],
        [Rule(decision=Decision.ASK, when={"effect": "local_mutation"})],
        [Rule(decision=Decision.ASK, when={"effect": "read_only"})],
        [Rule(decision=Decision.DENY, when={"reads": "secrets/*"})],
        [Rule(decision=Decision.ASK, when={"paths": "*.key"})],
        [Rule(decision=Decision.DENY, when=lambda _call, _facts: False)],
    ],
)
def test_none_that_a_rule_is_about_or_may_be(rules: Sequence[Rule]) -> None:
    assert why_not("frob a") == ""
    assert why_not("frob a", Policy(rules=rules))
    assert why_not("frob a", Policy().narrowed(Policy(rules=rules))), "a bound counts as well"


@pytest.mark.parametrize(
    "rule",
    [
        Rule(tool="python", decision=Decision.DENY),
        Rule(decision=Decision.DENY, when={"commands": "other*"}),
        Rule(decision=Decision.DENY, when={"writes": "out/*"}),
        Rule(decision=Decision.ALLOW, when={"commands": "other*"}),
        Rule(decision=Decision.ASK, when={"hosts": "*"}),
    ],
)
def test_rules_about_other_things_do_not_matter(rule: Rule) -> None:
    assert why_not("frob a", Policy(rules=[rule])) == ""


def test_rules_that_the_sandbox_enforces_by_itself_do_not_matter() -> None:
    policy = Policy(rules=[Rule(decision=Decision.DENY, when={"reads": "secrets/*"})])
    call = prepared("frob a", policy)
    enforced = frozenset([("reads", "secrets/*")])
    hidden = dataclasses.replace(call, facts=dataclasses.replace(call.facts, enforced=enforced))
    assert why_not_tried(call, policy, LOOKUPS)
    assert why_not_tried(hidden, policy, LOOKUPS) == ""


def test_a_bound_in_mode_plan_counts() -> None:
    assert why_not("frob a", Policy().narrowed(Policy(mode="plan")))


def test_facts_of_an_unknown_command_stay_those_of_a_change() -> None:
    facts = prepared("frob a", Policy()).facts
    assert (facts.effect, facts.certain, facts.unknown) == (Effect.LOCAL_MUTATION, False, (("frob", "a"),))


# ---- what it is worth


@pytest.mark.parametrize("held_out", [False, True])
def test_of_everyday_reading_still_less_is_asked(
    held_out: bool, record_property: Callable[[str, object], None]
) -> None:
    installed = dataclasses.replace(LOOKUPS, find_program=lambda name: f"/usr/bin/{name}")

    def is_tried(entry: EverydayCommand) -> bool:
        policy = Policy()
        return not why_not_tried(prepared(entry.command, policy), policy, installed)

    half = [entry for entry in everyday_commands() if entry.is_held_out is held_out]
    asked = [entry for entry in half if not only_reads(entry)]
    reading = [entry for entry in asked if entry.wanted == "read"]
    left = [entry for entry in reading if not is_tried(entry)]
    total = sum(entry.wanted == "read" for entry in half)
    record_property("asked", f"{len(reading)} of {total}")
    record_property("asked, if each trial counts", f"{len(left)} of {total}")
    tried_in_vain = [entry for entry in asked if entry.wanted != "read" and is_tried(entry)]
    record_property("tried, though it does not only read", len(tried_in_vain))
    assert len(left) < len(reading)
    assert not [entry for entry in tried_in_vain if entry.wanted == "network"]


VERSIONED = [
    "tclsh8.6",
    "wish8.6",
    "guile-3.0",
    "pike8.0",
    "scala3",
    "julia-1.9",
    "R-4.3",
    "emacs-nox",
    "emacs-28.2",
    "vim.tiny",
    "nodejs18",
    "x86_64-linux-gnu-gcc-12",
    "x86_64-linux-gnu-g++-12",
    "aarch64-linux-gnu-python3.11-dbg",
    "erl25",
    "octave-cli-8.4.0",
    "gdb-13",
    "jimsh0.81",
    "bash5.2",
    "busybox-1.36",
]


@pytest.mark.parametrize("program", VERSIONED)
def test_interpreters_with_a_version_in_their_names_are_not_tried(program: str) -> None:
    lookups = dataclasses.replace(LOOKUPS, find_program=lambda name: f"/usr/bin/{name}")
    policy = Policy()
    assert "runs code that it finds" in why_not_tried(prepared(f"{program} a", policy), policy, lookups)


@pytest.mark.parametrize(
    "program",
    ["tclsh8.6", "python3.11", "perl5.36", "lua5.4", "ruby3.1", "php8.2", "node18", "gcc-12", "java17"],
)
def test_no_call_of_a_versioned_interpreter_is_tried(program: str) -> None:
    lookups = dataclasses.replace(LOOKUPS, find_program=lambda name: f"/usr/bin/{name}")
    policy = Policy()
    assert why_not_tried(prepared(f"{program} a", policy), policy, lookups)


@pytest.mark.parametrize("program", ["frob-2", "frob8.6", "nbdiff-web2", "clang-frob-14", "x86-64-frob"])
def test_other_programs_with_a_version_in_their_names_are_tried(program: str) -> None:
    lookups = dataclasses.replace(LOOKUPS, find_program=lambda name: f"/usr/bin/{name}")
    policy = Policy()
    assert why_not_tried(prepared(f"{program} a", policy), policy, lookups) == ""
