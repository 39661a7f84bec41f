"""`%%agent`: a model works on the task in the cell, seen live below it."""

from __future__ import annotations

import argparse
import asyncio
import re
import shlex
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from IPython.core.error import UsageError

from aisotools.agent.run import Chooser, Stepper
from aisotools.core.exceptions import AisotoolsError
from aisotools.core.messages import Model
from aisotools.notebook.current import current_session, current_settings
from aisotools.policy.approvers import DenyAll
from aisotools.policy.rules import Policy
from aisotools.session.session import Session

if TYPE_CHECKING:
    from aisotools.agent.agent import Agent
    from aisotools.agent.run import AgentRun, RunResult


USAGE = (
    "%%agent [-m MODEL] [-t TOOL,...] [-o VAR] [--max-steps N] [--approve ask|auto|deny] [--step] "
    "[--continue] [--background] [--vars]"
)
_WHICH = (
    "Which model? -m human lets you be the model, -m local runs a small one here without a key, "
    "-m openai:NAME (or anthropic:, google:, ollama:) asks a provider, -m VARIABLE takes one that you made."
)
_PLACE = re.compile(r"\{\{|\}\}|\{([^\W\d]\w*)\}")

_last: Agent | None = None
_waiting: set[asyncio.Future[None]] = set()


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentLine:
    """What was typed behind `%%agent`.

    Attributes:
        model: A model's name or a variable; empty for the one used last.
        tools: Names of the tools that may be called; None for all.
        output: The variable that gets the result.
        max_steps: How many answers the run may take; None for the usual.
        approve: `ask` as the session does, `auto` for mode auto, `deny` for what would be asked.
        step: Whether to pause before each request and each call.
        goes_on: Whether the conversation of the last `%%agent` goes on.
        background: Whether the cell ends at once and the run goes on.
        fills_in: Whether `{name}` in the task stands for a variable.
    """

    model: str = ""
    tools: tuple[str, ...] | None = None
    output: str = ""
    max_steps: int | None = None
    approve: str = "ask"
    step: bool = False
    goes_on: bool = False
    background: bool = False
    fills_in: bool = False


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"%%agent: {message}. {USAGE}")


def parse_agent(line: str) -> AgentLine:
    """Read what was typed behind `%%agent`.

    Raises:
        UsageError: In one line, when it cannot be read.
    """
    parser = _Parser("%%agent", add_help=False, allow_abbrev=False)
    parser.add_argument("-m", "--model", default="")
    parser.add_argument("-t", "--tools")
    parser.add_argument("-o", "--output", default="")
    parser.add_argument("--max-steps", type=int)
    parser.add_argument("--approve", choices=("ask", "auto", "deny"), default="ask")
    parser.add_argument("--step", action="store_true")
    parser.add_argument("-c", "--continue", dest="goes_on", action="store_true")
    parser.add_argument("--background", action="store_true")
    parser.add_argument("--vars", dest="fills_in", action="store_true")
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise UsageError(f"%%agent: {error} in {line!r}.") from None
    options = parser.parse_args(words)
    if options.output and not options.output.isidentifier():
        raise UsageError(f"%%agent -o {options.output!r}: give the name of a variable.")
    if options.max_steps is not None and options.max_steps < 1:
        raise UsageError(f"%%agent --max-steps {options.max_steps}: give a number of at least 1.")
    tools = None if options.tools is None else tuple(filter(None, map(str.strip, options.tools.split(","))))
    return AgentLine(**{**vars(options), "tools": tools})


def fill_in(task: str, variables: Mapping[str, Any]) -> str:
    """The task with `{name}` replaced by the text of a variable; `{{` and `}}` stand for braces.

    Raises:
        UsageError: If there is no such variable.
    """

    def value(match: re.Match[str]) -> str:
        if match[0] in {"{{", "}}"}:
            return match[0][0]
        if match[1] not in variables:
            raise UsageError(f"%%agent --vars: there is no variable {match[1]!r}.")
        return str(variables[match[1]])

    return _PLACE.sub(value, task)


async def run_agent(line: str, body: str, variables: dict[str, Any]) -> None:
    """Run the cell.

    Args:
        line: What was typed behind `%%agent`.
        body: The task.
        variables: The notebook's own; the result goes there too.

    Raises:
        UsageError: In one line, for whatever the person who typed it can mend.
    """
    options = parse_agent(line)
    task = fill_in(body, variables) if options.fills_in else body
    if not task.strip():
        raise UsageError("%%agent works on the lines below it; there are none.")
    session = current_session()
    try:
        agent = _agent(options, session, variables)
        if options.background:
            _start(agent, task.strip(), options, variables)
            return
        result = await _followed(agent, task.strip(), options)
    except AisotoolsError as error:
        raise UsageError(str(error)) from None
    if options.output:
        variables[options.output] = result


def _agent(options: AgentLine, session: Session, variables: Mapping[str, Any]) -> Agent:
    """The agent to run: a new one, or the last with what was said before."""
    global _last  # noqa: PLW0603 - the conversation of this notebook
    from aisotools.agent.agent import Agent
    from aisotools.agent.budgets import Budgets

    last = _last if _last is not None and _last.session is session else None
    if options.goes_on and last is None:
        raise UsageError("%%agent --continue: nothing was said before. Leave it out.")
    if options.model:
        model = model_named(options.model, variables)
    elif last is not None:
        model = last.model
    elif usual := current_settings().model:
        model = model_named(usual, variables)
    else:
        raise UsageError(_WHICH)
    budgets = Budgets() if options.max_steps is None else Budgets(steps=options.max_steps)
    tools = None if options.tools is None else _tools(options.tools, session)
    said = last.messages if options.goes_on and last is not None else ()
    _last = Agent(
        model,
        session,
        budgets=budgets,
        tools=tools,
        messages=said,
        stepper=_stepper(session) if options.step else None,
        chooser=_chooser(),
    )
    return _last


def last_agent() -> Agent | None:
    """The agent of the last `%%agent`, or None."""
    return _last


def _tools(names: Collection[str], session: Session) -> list[str]:
    """Names of tools; the name of a set stands for all tools of it that are registered."""
    from aisotools.builtin import TOOLSETS

    found: list[str] = []
    for name in names:
        if name in session.registry:
            found.append(name)
        elif name in TOOLSETS:
            found += [one for one in TOOLSETS[name] if one in session.registry]
        else:
            session.registry[name]  # raises UnknownTool, with the nearest names
    return list(dict.fromkeys(found))


def model_named(name: str, variables: Mapping[str, Any]) -> Model:
    """The model that was meant: a variable's, one of ours, or a provider's.

    Raises:
        UsageError: If there is none; the message says what there is.
    """
    value = variables.get(name)
    if value is not None:
        if not isinstance(value, Model) or isinstance(value, type):
            raise UsageError(f"-m {name}: that variable holds {type(value).__name__}, which is no model.")
        return value
    maker = _MODELS.get(name)
    if maker is not None:
        return maker()
    if ":" not in name:
        raise UsageError(f"-m {name}: there is no variable of that name. {_WHICH}")
    from aisotools.agent.models.provider import provider_model

    return provider_model(name)


async def _followed(agent: Agent, task: str, options: AgentLine) -> RunResult:
    from aisotools.notebook.trace.view import follow

    stop = _approving(agent.session, options.approve)
    try:
        work = agent.run(task)
        return await follow(agent, work, title=f"agent · {agent.model.name}", registry=agent.session.registry)
    finally:
        stop()


def _start(agent: Agent, task: str, options: AgentLine, variables: dict[str, Any]) -> None:
    stop = _approving(agent.session, options.approve)
    run: AgentRun = agent.start(task)

    async def wait() -> None:
        try:
            await run
        finally:
            stop()

    waiting = asyncio.ensure_future(wait())
    _waiting.add(waiting)
    waiting.add_done_callback(_waiting.discard)
    if options.output:
        variables[options.output] = run
    told = (
        f"`await {options.output}` gives its result, `{options.output}.cancel()` stops it"
        if options.output
        else ""
    )
    print(f"The agent works in the background{': ' + told if told else ''}. %trace shows how far it is.")


def _approving(session: Session, approve: str) -> Callable[[], None]:
    """Have the session decide as `approve` says until what is returned is called."""
    if approve == "auto":
        policy = session.policy
        session.policy = Policy(mode="auto", rules=policy.rules)

        def back() -> None:
            session.policy = policy

        return back
    if approve == "deny":
        approver = session.approver
        session.approver = DenyAll()

        def asked_again() -> None:
            session.approver = approver

        return asked_again
    return lambda: None


def _stepper(session: Session) -> Stepper:
    from aisotools.notebook.approval.steering import NotebookStepper

    return NotebookStepper(session.registry)


def _chooser() -> Chooser:
    from aisotools.notebook.approval.steering import NotebookChooser

    return NotebookChooser()


def _human() -> Model:
    from aisotools.agent.models.human import HumanModel

    return HumanModel()


def _local() -> Model:
    from aisotools.agent.models.local import LocalModel

    return LocalModel()


_MODELS: dict[str, Callable[[], Model]] = {"human": _human, "local": _local}
