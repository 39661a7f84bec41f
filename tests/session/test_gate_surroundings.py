"""What the gate takes from what is around a call: rules about paths, trials, turns of the event loop."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from aisotools.builtin.shell import sandbox_bash
from aisotools.core.events import CallDecided, CallRequested, CallTried, SessionEvent
from aisotools.core.protocols import ToolContext
from aisotools.core.types import Approval, Decision, Effect, Facts, Json, ToolResult
from aisotools.policy.approvers import ScriptedApprover
from aisotools.policy.rules import Policy, Rule
from aisotools.policy.trials import TrialLookups
from aisotools.session.path_rules import PathRules
from aisotools.testing.fakes import MockTool
from tests.session.test_gate_alone import Recording, Rig, changing, reading

# ---- what is assumed of a sandbox


async def test_without_a_session_a_preview_assumes_a_sandbox_with_readers() -> None:
    rig = Rig(reading(runs_in="sandbox"), policy=Policy(mode="plan"))
    assert rig.gate.prepare(rig.call("read"), "confined").evaluation.decision is Decision.ALLOW
    without = dataclasses.replace(rig.env, has_readers=lambda: False)
    prepared = rig.gate.prepare(rig.call("read"), "confined", without)
    assert (prepared.effect, prepared.evaluation.decision) == (Effect.LOCAL_MUTATION, Decision.DENY)
    within = dataclasses.replace(rig.env, has_readers=lambda: True)
    assert rig.gate.prepare(rig.call("read"), "confined", within).evaluation.decision is Decision.ALLOW


# ---- rules about paths

SECRETS = Rule(when={"paths": "secrets/*"}, decision=Decision.DENY)


class Noting(PathRules):
    """Has replaced something before each call."""

    async def enforce(self, name: str, *, is_trial: bool = False) -> str:
        return f"[before {name} a path was replaced]"


@pytest.mark.parametrize(
    ("level", "for_all", "for_commands"), [("isolated", True, True), ("confined", False, True)]
)
async def test_rules_that_the_sandbox_enforces_are_known_when_a_call_is_decided(
    tmp_path: Path, level: str, for_all: bool, for_commands: bool
) -> None:
    (tmp_path / "secrets").mkdir()
    rig = Rig(sandbox_bash, changing("code", runs_in="sandbox"), changing("host"))
    rig.gate.policy = Policy(mode="safe", rules=[SECRETS])
    env = dataclasses.replace(rig.env, level=level, workspace=tmp_path, path_rules=PathRules(tmp_path, level))

    def enforced(name: str, arguments: Mapping[str, Json] | None = None) -> bool:
        return bool(rig.gate.prepare(rig.call(name, arguments), level, env).facts.enforced)

    assert enforced("code") is for_all
    assert enforced("sandbox_bash", {"command": "cat a"}) is for_commands
    assert not enforced("host"), "no sandbox holds what runs on the host"
    rig.gate.policy = Policy(mode="safe")
    assert not enforced("sandbox_bash", {"command": "cat a"})


async def test_the_rules_follow_the_policy_of_the_moment_once_there_are_any(tmp_path: Path) -> None:
    (tmp_path / "secrets").mkdir()
    rules = PathRules(tmp_path, "isolated")
    rig = Rig()

    def enforced() -> bool:
        return bool(rules.enforcement.globs)

    assert rig.gate.effective_policy(rules=rules) == Policy(mode="auto")
    rig.gate.policy = Policy(mode="auto", rules=[SECRETS])
    rig.gate.effective_policy()
    assert not enforced(), "these were not given"
    rig.gate.effective_policy(rules=rules)
    assert enforced()
    rig.gate.policy = Policy(mode="auto")
    assert rig.gate.effective_policy(rules=rules) == Policy(mode="auto")
    assert not enforced(), "rules that are gone are not enforced any more"
    assert rig.gate.effective_policy(Policy(mode="auto", rules=[SECRETS]), rules).concerns_paths
    assert enforced(), "those of the workspace's own policy are"


async def test_the_result_says_what_was_done_for_the_rules_before_the_call(tmp_path: Path) -> None:
    rules = Noting(tmp_path, "isolated")
    rig = Rig(reading(runs_in="sandbox"), policy=Policy(mode="auto", rules=[SECRETS]))
    sandbox = Recording(ToolResult.text("out"))
    rig.env = dataclasses.replace(rig.env, sandbox=sandbox, has_readers=lambda: True, path_rules=rules)
    assert (await rig.run("read")).content == "out\n[before read a path was replaced]"
    sandbox.answer = ToolResult(content="")
    assert (await rig.run("read")).content == "[before read a path was replaced]"


# ---- trials

UNKNOWN = {"command": "captoinfo a.txt"}
"""A command of a program that no table has."""

LOOKUPS = TrialLookups(find_program=lambda program: f"/usr/bin/{program}", is_code=lambda path: False)


def printed(text: str, code: int = 0) -> ToolResult:
    value = {"stdout": text, "stderr": "", "exitCode": code}
    return ToolResult(content=text, value=value, is_error=code != 0)


class Trying(Rig):
    """A gate whose sandbox can try commands, with the answer that it gives."""

    def __init__(self, answer: ToolResult, *tools: Any, **options: Any) -> None:
        super().__init__(sandbox_bash, *tools, policy=Policy(mode="safe"), **options)
        self.recording = Recording(answer)
        self.env = dataclasses.replace(
            self.env, sandbox=self.recording, has_readers=lambda: True, trials=LOOKUPS, level="confined"
        )

    @property
    def trials(self) -> list[bool]:
        """Of each request to the sandbox, whether it was a trial."""
        return [request.is_trial for request in self.recording.requests]


async def test_an_unknown_command_is_tried_first_and_nobody_is_asked_if_that_counts() -> None:
    approver = ScriptedApprover([])
    rig = Trying(printed("three"), approver=approver)
    result = await rig.run("sandbox_bash", UNKNOWN)
    assert result.content.startswith("three\n[ran read-only")
    assert (rig.trials, approver.requests) == ([True], [])
    (decided,) = rig.events(CallDecided)
    assert (decided.decision, decided.decided_by) == (Decision.ALLOW, "trial")
    (batched,) = await rig.gate.run_many([rig.call("sandbox_bash", UNKNOWN)], rig.env)
    assert batched.content == result.content
    assert rig.trials == [True, True]


async def test_a_trial_that_comes_to_nothing_is_a_question_that_says_so() -> None:
    approver = ScriptedApprover([Approval("deny"), Approval("approve")])
    rig = Trying(printed("no", 1), approver=approver)
    assert (await rig.run("sandbox_bash", UNKNOWN)).error_kind == "denied"
    assert "it exited with code 1" in approver.requests[0].reasons[-1]
    assert rig.trials == [True]
    await rig.run("sandbox_bash", UNKNOWN)
    assert rig.trials == [True, True, False], "approved, it runs with its rights"


@pytest.mark.parametrize("ask", [True, False])
async def test_a_call_that_is_to_be_asked_about_is_not_tried(ask: bool) -> None:
    approver = ScriptedApprover([Approval("deny")])
    rig = Trying(printed("three"), approver=approver)
    await rig.run("sandbox_bash", UNKNOWN, ask=ask)
    assert (len(approver.requests), rig.trials) == (ask, [True] * (not ask))


async def test_nothing_is_tried_without_lookups_or_of_a_known_command() -> None:
    approver = ScriptedApprover([Approval("deny")])
    rig = Trying(printed("three"), approver=approver)
    assert rig.gate.prepare(rig.call("sandbox_bash", UNKNOWN), "confined", rig.env).is_tried
    assert not rig.gate.prepare(rig.call("sandbox_bash", UNKNOWN), "confined").is_tried
    assert (await rig.run("sandbox_bash", {"command": "cat a"})).content == "three"
    rig.env = dataclasses.replace(rig.env, trials=None)
    assert (await rig.run("sandbox_bash", UNKNOWN)).error_kind == "denied"
    assert (rig.trials, rig.events(CallTried)) == ([False], [])


async def test_the_very_same_call_is_asked_about_only_if_it_follows_at_once() -> None:
    approver = ScriptedApprover([Approval("deny")])
    rig = Trying(printed("three"), reading(), approver=approver)

    async def bash() -> ToolResult:
        return await rig.gate.run(rig.call("sandbox_bash", UNKNOWN, origin="model"), rig.env)

    assert not (await bash()).is_error
    await rig.gate.run(rig.call("read", origin="model"), rig.env)
    assert not (await bash()).is_error, "another call came in between"
    assert approver.requests == []
    assert (await bash()).error_kind == "denied"
    assert "is called again" in approver.requests[0].reasons[-1]
    assert rig.trials == [True, True]


async def test_commands_after_a_change_in_a_batch_are_asked_about_and_not_tried_before_it() -> None:
    """A trial would look at what is there before the change; and the change may be denied."""
    approver = ScriptedApprover([Approval("deny")] * 3)
    rig = Trying(printed("three"), changing(), approver=approver)
    calls = [rig.call("sandbox_bash", UNKNOWN), rig.call("write"), rig.call("sandbox_bash", UNKNOWN)]
    results = await rig.gate.run_many(calls, rig.env)
    assert [result.is_error for result in results] == [False, True, True]
    assert [request.call.name for request in approver.requests] == ["write", "sandbox_bash"]
    assert rig.trials == [True]


async def test_reading_and_a_denied_change_keep_nothing_in_a_batch_from_being_tried() -> None:
    rig = Trying(printed("three"), changing(), reading())
    rig.gate.policy = Policy(mode="safe", rules=[Rule(tool="write", decision=Decision.DENY)])
    calls = [rig.call("write"), rig.call("read"), rig.call("sandbox_bash", UNKNOWN)]
    results = await rig.gate.run_many(calls, rig.env)
    assert [result.is_error for result in results] == [True, False, False]
    assert rig.trials == [True]


# ---- turns of the loop

LARGE = {"text": "x" * (1 << 18)}


class Turns:
    """Counts the turns of the event loop."""

    def __init__(self) -> None:
        self.number = 0
        self._next()

    def _next(self) -> None:
        self.number += 1
        self._handle = asyncio.get_running_loop().call_soon(self._next)

    def stop(self) -> None:
        self._handle.cancel()


@pytest.mark.parametrize("many", [False, True], ids=["side by side", "in a batch"])
async def test_large_calls_leave_turns_of_the_loop_to_others_between_their_steps(many: bool) -> None:
    """However many are made at once: each step of one reads hundreds of kilobytes, and the page waits."""
    turns = Turns()
    steps: dict[str, list[int]] = {"copy": [], "request": [], "classify": [], "decision": [], "run": []}

    class Copied(dict[str, Json]):
        def __deepcopy__(self, memo: object) -> dict[str, Json]:
            steps["copy"].append(turns.number)
            return dict(self)

    def classify(arguments: Mapping[str, Json]) -> Facts:
        steps["classify"].append(turns.number)
        return Facts(effect=Effect.READ_ONLY)

    def work(arguments: Mapping[str, Json], context: ToolContext) -> str:
        steps["run"].append(turns.number)
        return "done"

    def on_event(event: SessionEvent) -> None:
        steps["request" if isinstance(event, CallRequested) else "decision"].append(turns.number)

    mock = MockTool("read", result=work)
    mock.gather_facts = classify
    rig = Rig(mock)
    rig.log.subscribe(on_event, (CallRequested, CallDecided))
    calls = [rig.call("read", Copied(LARGE)) for _ in range(4)]
    if many:
        await rig.gate.run_many(calls, rig.env)
    else:
        await asyncio.gather(*(rig.gate.run(call, rig.env) for call in calls))
    turns.stop()
    assert {kind: len(set(numbers)) for kind, numbers in steps.items()} == dict.fromkeys(steps, 4)
    assert not set(steps["request"]) & set(steps["classify"])
    turn_pairs = zip(steps["decision"], steps["run"], strict=True)
    assert all(recorded < begun for recorded, begun in turn_pairs)
