"""`%%agent`: a model works on the task in the cell, with a live trace below it."""

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
from aisotools.notebook.render.markdown import answer_bundle
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
_MODEL_HELP = (
    "Which model? -m human lets you be the model, -m local runs a small one here without a key, "
    "-m openai:NAME (or anthropic:, google:, ollama:) asks a provider, -m VARIABLE takes one that you made."
)
_PLACEHOLDER = re.compile(r"\{\{|\}\}|\{([^\W\d]\w*)\}")

_last: Agent | None = None
# The event loop holds tasks weakly; one that nobody awaits could be collected while it runs.
_background_tasks: set[asyncio.Future[None]] = set()


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentLine:
    """The options of `%%agent`.

    Attributes:
        model: A model's name or a variable; empty for the last one.
        tools: Names of the tools that may be called; None for all.
        output: Name of the variable for the result; empty for none.
        max_steps: Limit of requests to the model; None for the default.
        approve: `ask` as the session does, `auto` for mode auto, `deny` instead of asking.
        step: Pause before each request and each call.
        continues: Continue the conversation of the last `%%agent`.
        background: Let the cell end at once and the run go on.
        substitute: Replace `{name}` in the task by the variable's text.
    """

    model: str = ""
    tools: tuple[str, ...] | None = None
    output: str = ""
    max_steps: int | None = None
    approve: str = "ask"
    step: bool = False
    continues: bool = False
    background: bool = False
    substitute: bool = False


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"%%agent: {message}. {USAGE}")


def parse_agent(line: str) -> AgentLine:
    """Parse the options of `%%agent`.

    Raises:
        UsageError: If they are invalid; one line.
    """
    parser = _Parser("%%agent", add_help=False, allow_abbrev=False)
    parser.add_argument("-m", "--model", default="")
    parser.add_argument("-t", "--tools")
    parser.add_argument("-o", "--output", default="")
    parser.add_argument("--max-steps", type=int)
    parser.add_argument("--approve", choices=("ask", "auto", "deny"), default="ask")
    parser.add_argument("--step", action="store_true")
    parser.add_argument("-c", "--continue", dest="continues", action="store_true")
    parser.add_argument("--background", action="store_true")
    parser.add_argument("--vars", dest="substitute", action="store_true")
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
    """Return the task with `{name}` replaced by the text of a variable; `{{` and `}}` are literal braces.

    Raises:
        UsageError: If a variable does not exist.
    """

    def replacement(match: re.Match[str]) -> str:
        if match[0] in {"{{", "}}"}:
            return match[0][0]
        if match[1] not in variables:
            raise UsageError(f"%%agent --vars: there is no variable {match[1]!r}.")
        return str(variables[match[1]])

    return _PLACEHOLDER.sub(replacement, task)


async def run_agent(line: str, body: str, variables: dict[str, Any]) -> None:
    """Run an `%%agent` cell.

    Args:
        line: Its options.
        body: The task.
        variables: The notebook's namespace; also receives the result.

    Raises:
        UsageError: For every error that the person can correct; one line.
    """
    options = parse_agent(line)
    task = fill_in(body, variables) if options.substitute else body
    if not task.strip():
        raise UsageError("%%agent works on the lines below it; there are none.")
    session = current_session()
    try:
        agent = _make_agent(options, session, variables)
        if options.background:
            _start_in_background(agent, task.strip(), options, variables)
            return
        result = await _run_followed(agent, task.strip(), options)
    except AisotoolsError as error:
        raise UsageError(str(error)) from None
    if options.output:
        variables[options.output] = result


def _make_agent(options: AgentLine, session: Session, variables: Mapping[str, Any]) -> Agent:
    """Make the agent: from scratch, or with the conversation of the last one."""
    global _last  # noqa: PLW0603 - the conversation of this notebook
    from aisotools.agent.agent import Agent
    from aisotools.agent.budgets import Budgets

    last = _last if _last is not None and _last.session is session else None
    if options.continues and last is None:
        raise UsageError(
            "%%agent --continue: there is no earlier conversation to continue. Leave the option out."
        )
    if options.model:
        model = model_named(options.model, variables)
    elif last is not None:
        model = last.model
    elif current_settings().model:
        model = model_named(current_settings().model, variables)
    else:
        raise UsageError(_MODEL_HELP)
    budgets = Budgets() if options.max_steps is None else Budgets(steps=options.max_steps)
    tools = None if options.tools is None else _tool_names(options.tools, session)
    messages = last.messages if options.continues and last is not None else ()
    _last = Agent(
        model,
        session,
        budgets=budgets,
        tools=tools,
        messages=messages,
        stepper=_stepper(session) if options.step else None,
        chooser=_chooser(),
    )
    return _last


def last_agent() -> Agent | None:
    """Return the agent of the last `%%agent`, or None."""
    return _last


def _tool_names(names: Collection[str], session: Session) -> list[str]:
    """Expand names of tool sets to the registered tools of the set."""
    from aisotools.builtin import TOOLSETS

    expanded: list[str] = []
    for name in names:
        if name in session.registry:
            expanded.append(name)
        elif name in TOOLSETS:
            expanded += [member for member in TOOLSETS[name] if member in session.registry]
        else:
            # Raises UnknownTool with the nearest names.
            session.registry[name]
    return list(dict.fromkeys(expanded))


def model_named(name: str, variables: Mapping[str, Any]) -> Model:
    """Return the model of a variable, a built-in one, or a provider's.

    Raises:
        UsageError: If there is no such model; the message lists the possibilities.
    """
    value = variables.get(name)
    if value is not None:
        if not isinstance(value, Model) or isinstance(value, type):
            raise UsageError(f"-m {name}: the variable holds {type(value).__name__}, not a model.")
        return value
    factory = _MODEL_FACTORIES.get(name)
    if factory is not None:
        return factory()
    if ":" not in name:
        raise UsageError(f"-m {name}: there is no variable of that name. {_MODEL_HELP}")
    from aisotools.agent.models.provider import provider_model

    return provider_model(name)


async def _run_followed(agent: Agent, task: str, options: AgentLine) -> RunResult:
    from aisotools.notebook.approval.approver import display_bundle
    from aisotools.notebook.trace.view import follow

    restore = _override_approval(agent.session, options.approve)
    try:
        work = agent.run(task)
        title = f"agent · {agent.model.name}"
        result = await follow(agent, work, title=title, registry=agent.session.registry)
    finally:
        restore()
    # Below the trace, so that it is the last thing of the cell.
    display_bundle(run_bundle(result))
    return result


def run_bundle(result: RunResult) -> dict[str, str]:
    """Return the MIME bundle of a run's answer, and of how the run ended if it is none."""
    reason = f": {result.reason}" if result.reason else ""
    return answer_bundle(result.text, "" if result.ok else f"The run ended as {result.outcome}{reason}")


def _start_in_background(agent: Agent, task: str, options: AgentLine, variables: dict[str, Any]) -> None:
    restore = _override_approval(agent.session, options.approve)
    run: AgentRun = agent.start(task)

    async def wait() -> None:
        try:
            await run
        finally:
            restore()

    waiter = asyncio.ensure_future(wait())
    _background_tasks.add(waiter)
    waiter.add_done_callback(_background_tasks.discard)
    if options.output:
        variables[options.output] = run
    usage = ""
    if options.output:
        usage = f": `await {options.output}` returns its result, `{options.output}.cancel()` stops it"
    print(f"The agent works in the background{usage}. %trace shows its progress.")


def _override_approval(session: Session, approve: str) -> Callable[[], None]:
    """Change how the session decides. Return a function that restores it."""
    if approve == "auto":
        policy = session.policy
        session.policy = Policy(mode="auto", rules=policy.rules)

        def restore_policy() -> None:
            session.policy = policy

        return restore_policy
    if approve == "deny":
        approver = session.approver
        session.approver = DenyAll()

        def restore_approver() -> None:
            session.approver = approver

        return restore_approver
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


_MODEL_FACTORIES: dict[str, Callable[[], Model]] = {"human": _human, "local": _local}
