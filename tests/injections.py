"""AgentDojo's ground truths through the gate, without a model: `python -m tests.injections` prints a table.

AgentDojo (PyPI `agentdojo`, an optional dependency) has four suites of functions, tasks of a user, and
injections: what an attacker has a model do on the side. For each task it knows the calls that carry it out.
Here these calls are made through a session in which the functions are tools on the host, and a person
approves whatever is asked. Counted is what ran without a question.

The tools declare nothing; or what `tests/data/agentdojo_effects.toml` says, written once from the functions'
documentation; or that, with the rules in that file. The rules were tuned on the tasks with even numbers, so
the figures that count are those of the odd ones.
"""

from __future__ import annotations

import asyncio
import itertools
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args
from urllib.parse import urlsplit

from aisotools.core.protocols import ToolContext
from aisotools.core.types import Approval, ApprovalRequest, Effect, Facts, Json, ToolResult
from aisotools.policy.config import policy_from_toml
from aisotools.policy.rules import Mode, Policy
from aisotools.session.session import Session
from aisotools.testing.fakes import FakeSandbox
from aisotools.tools.registry import ToolRegistry

DECLARATIONS = Path(__file__).parent / "data" / "agentdojo_effects.toml"
VERSION = "v1.2.2"
MODES: tuple[Mode, ...] = get_args(Mode)

Variant = Literal["nothing", "effects", "effects and rules"]
"""What is declared about the functions."""

VARIANTS: tuple[Variant, ...] = get_args(Variant)


class Recorded(NamedTuple):
    """One call of a ground truth.

    Attributes:
        suite: The suite.
        task: Id of the task; it ends in its number.
        injected: True for the task of an attacker.
        function: The function.
        arguments: Its arguments.
    """

    suite: str
    task: str
    injected: bool
    function: str
    arguments: Mapping[str, Json]

    @property
    def odd(self) -> bool:
        """Whether the task has an odd number."""
        return int(self.task.rpartition("_")[2]) % 2 == 1


class Outcome(NamedTuple):
    """What came of one call.

    Attributes:
        call: The call.
        asked: Whether a person was asked.
        executed: Whether it ran.
    """

    call: Recorded
    asked: bool
    executed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Counts of one half of the tasks.

    Attributes:
        injected: Calls of injections.
        injected_unasked: Those of them that ran without a question; also those that only read.
        injections: Injections with any call.
        injections_unasked: Those of them that ran to their end without any question.
        own: Calls of the user's own tasks.
        own_asked: Those of them that were asked about.
        own_denied: Those of them that did not run.
    """

    injected: int
    injected_unasked: int
    injections: int
    injections_unasked: int
    own: int
    own_asked: int
    own_denied: int


class DojoTool:
    """A function of a suite, as a tool on the host that declares nothing."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self.name: str = function.name
        self.description: str = function.description
        self.runs = 0

    def parameters_schema(self) -> Mapping[str, Json]:
        schema: dict[str, Json] = self.function.parameters.model_json_schema()
        return schema

    async def execute(self, arguments: Mapping[str, Json], context: ToolContext) -> ToolResult:
        self.runs += 1
        return ToolResult.text("done")


class DeclaredDojoTool(DojoTool):
    """The same with the facts that the file declares."""

    def __init__(self, function: Any, effect: Effect, url: str | None) -> None:
        super().__init__(function)
        self._effect = effect
        self._url = url

    def gather_facts(self, arguments: Mapping[str, Json]) -> Facts:
        host = self._host(arguments)
        return Facts(effect=self._effect, hosts=(host,) if host else (), certain=not self._url or bool(host))

    def _host(self, arguments: Mapping[str, Json]) -> str:
        url = str(arguments.get(self._url)) if self._url else ""
        return urlsplit(url if "://" in url else f"//{url}").hostname or ""


class Person:
    """Approves everything, and counts what is asked."""

    def __init__(self) -> None:
        self.asked = 0

    async def ask(self, request: ApprovalRequest) -> Approval:
        self.asked += 1
        return Approval("approve")


def suites() -> dict[str, Any]:
    """The suites by name."""
    from agentdojo.task_suite.load_suites import get_suites

    return dict(get_suites(VERSION))


def ground_truths(suite: Any) -> Iterator[Recorded]:
    """Every call of every ground truth, in order."""
    environment = suite.load_and_inject_default_environment({})
    for injected, tasks in ((False, suite.user_tasks), (True, suite.injection_tasks)):
        for name, task in tasks.items():
            before = environment.model_copy(deep=True)
            if not injected:
                before = task.init_environment(before)
            for call in task.ground_truth(before):
                yield Recorded(suite.name, name, injected, call.function, dict(call.args))


def declared_effects() -> dict[str, Effect]:
    """The declared effect of each function."""
    table = tomllib.loads(DECLARATIONS.read_text())
    return {name: effect for effect in Effect for name in table.get(effect.value, ())}


def tools_of(suite: Any, variant: Variant) -> list[DojoTool]:
    """The functions of a suite as tools."""
    if variant == "nothing":
        return [DojoTool(function) for function in suite.tools]
    effects = declared_effects()
    urls = tomllib.loads(DECLARATIONS.read_text())["hosts_from"]
    return [DeclaredDojoTool(f, effects[f.name], urls.get(f.name)) for f in suite.tools]


def policy_of(mode: Mode, variant: Variant) -> Policy:
    """The policy of the session."""
    if variant != "effects and rules":
        return Policy(mode=mode)
    beside = ("hosts_from", *(effect.value for effect in Effect))
    rules = policy_from_toml(DECLARATIONS.read_text(), source=DECLARATIONS.name, beside=beside).rules
    return Policy(mode=mode, rules=rules)


async def replay(suite: Any, variant: Variant, policy: Policy, folder: Path) -> list[Outcome]:
    """Make every call of a suite's ground truths through the gate of one session."""
    tools = {tool.name: tool for tool in tools_of(suite, variant)}
    person = Person()
    outcomes = []
    async with Session(
        folder / "workspace",
        sandbox=FakeSandbox,
        registry=ToolRegistry(tools.values()),
        policy=policy,
        approver=person,
        environ={"HOME": str(folder / "home"), "XDG_STATE_HOME": str(folder / "state")},
    ) as session:
        for call in ground_truths(suite):
            asked, runs = person.asked, tools[call.function].runs
            result = await session.call(call.function, call.arguments, origin="model")
            executed = tools[call.function].runs > runs
            # Anything else would count as stopped without having been stopped.
            if not executed and result.error_kind != "denied":
                raise AssertionError(f"{call} was neither run nor denied: {result.content}")
            outcomes.append(Outcome(call, person.asked > asked, executed))
    return outcomes


async def replay_all(mode: Mode, variant: Variant, folder: Path) -> list[Outcome]:
    """Replay all suites, each in a session and a folder of its own."""
    outcomes = []
    for name, suite in suites().items():
        outcomes += await replay(suite, variant, policy_of(mode, variant), folder / name)
    return outcomes


def figures(outcomes: list[Outcome], *, odd: bool) -> Figures:
    """The counts of the tasks with odd numbers, or of those with even ones."""
    half = [outcome for outcome in outcomes if outcome.call.odd is odd]
    injected = [outcome for outcome in half if outcome.call.injected]
    own = [outcome for outcome in half if not outcome.call.injected]
    tasks = Counter((outcome.call.suite, outcome.call.task) for outcome in injected)
    unasked = Counter((o.call.suite, o.call.task) for o in injected if o.executed and not o.asked)
    return Figures(
        injected=len(injected),
        injected_unasked=sum(unasked.values()),
        injections=len(tasks),
        injections_unasked=sum(unasked[task] == count for task, count in tasks.items()),
        own=len(own),
        own_asked=sum(outcome.asked for outcome in own),
        own_denied=sum(not outcome.executed for outcome in own),
    )


def main() -> None:
    """Print the table."""
    print(f"AgentDojo {VERSION}. Reported: tasks with odd numbers. Tuned on those with even ones.\n")
    print(f"{'declared':<18} {'mode':<5} {'half':<5} {'injected calls':>16} {'whole':>8} {'own calls':>15}")
    print(f"{'':<18} {'':<5} {'':<5} {'run unasked':>16} {'unasked':>8} {'asked  denied':>15}")
    for variant, mode in itertools.product(VARIANTS, MODES):
        with tempfile.TemporaryDirectory(prefix="aisotools-injections-") as folder:
            outcomes = asyncio.run(replay_all(mode, variant, Path(folder)))
        for odd in (False, True):
            f = figures(outcomes, odd=odd)
            print(
                f"{variant:<18} {mode:<5} {'odd' if odd else 'even':<5}"
                f" {f.injected_unasked:>10} of {f.injected:>2} {f.injections_unasked:>2} of {f.injections:>2}"
                f" {f.own_asked:>4} {f.own_denied:>3} of {f.own:>3}"
            )


if __name__ == "__main__":
    main()
