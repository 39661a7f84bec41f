"""`aisotools run -m MODEL "task"`: an agent in the terminal, asking there before it changes anything."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aisotools.core.exceptions import UsageError
from aisotools.policy.prompts import visible, visible_json

if TYPE_CHECKING:
    from aisotools.agent.agent import Agent
    from aisotools.agent.run import RunResult
    from aisotools.core.events import SessionEvent
    from aisotools.core.messages import Model
    from aisotools.session.session import Session


Echo = Callable[[str], object]
"""Takes a line to print."""

STATUS: Mapping[str, int] = {"answered": 0, "cancelled": 130, "stopped": 130}
"""The exit status of a run by its outcome; 1 for any other."""

_SHOWN_LINES, _SHOWN_CHARS = 6, 160
_APPROVE = ("ask", "auto", "deny")
_MODELS = (
    "openai:NAME, anthropic:NAME, google:NAME or ollama:NAME, local, scripted:FILE.json, replay:RUN.ipynb"
)


def add_parser(commands: Any) -> None:
    """Add `run` to the command line's subcommands."""
    told = "let a model work on a task with the tools of a session"
    parser = commands.add_parser("run", help=told, description=told.capitalize() + ".", allow_abbrev=False)
    parser.add_argument("task", help="what to do; - reads it from standard input")
    parser.add_argument("-m", "--model", required=True, help=_MODELS)
    parser.add_argument("-w", "--workspace", type=Path, help="the folder it may change; ./workspace/default")
    parser.add_argument("-t", "--tools", help="names of the only tools it may call, with commas between")
    parser.add_argument("-i", "--instructions", default="", help="what the model is told first")
    parser.add_argument("--approve", choices=_APPROVE, default="ask", help="what becomes of calls that ask")
    parser.add_argument("--max-steps", type=int, metavar="N", help="answers of the model at most")
    parser.add_argument("--quiet", action="store_true", help="print nothing but the answer")


def run(options: argparse.Namespace, echo: Echo, *, read: Callable[[], str] = sys.stdin.read) -> int:
    """Carry out `aisotools run`; 0 when the model answered, 1 when it could not, 130 when it was stopped.

    Raises:
        UsageError: If there is no such model, tool or file.
    """
    from aisotools.agent.budgets import Budgets

    if options.max_steps is not None and options.max_steps < 1:
        raise UsageError(f"--max-steps {options.max_steps}: give a number of at least 1.")
    task = read() if options.task == "-" else options.task
    if not task.strip():
        raise UsageError("There is no task. Say what to do.")
    model = resolve_model(options.model)
    budgets = Budgets() if options.max_steps is None else Budgets(steps=options.max_steps)
    tools = None if options.tools is None else [one.strip() for one in options.tools.split(",")]

    async def work() -> RunResult:
        from aisotools.agent.agent import Agent

        async with _session(options.workspace, options.approve) as session:
            agent = Agent(model, session, options.instructions, budgets, tools=tools)
            if not options.quiet:
                echo(f"{model.name} in {session.workspace} ({session.level})")
                agent.subscribe(TracePrinter(agent, echo).hear)
            return await agent.run(task)

    result = asyncio.run(work())
    if result.ok and not options.quiet:
        echo("")
    echo(str(result))
    return STATUS.get(result.outcome, 1)


def _session(workspace: Path | None, approve: str) -> Session:
    from aisotools.policy.approvers import DenyAll
    from aisotools.policy.rules import Policy
    from aisotools.session.approvers import ConsoleApprover
    from aisotools.session.session import Session

    if approve == "deny":
        return Session(workspace, approver=DenyAll("the run was started with --approve deny"))
    policy = Policy(mode="auto") if approve == "auto" else None
    return Session(workspace, policy=policy, approver=ConsoleApprover())


def resolve_model(name: str) -> Model:
    """The model that a name on the command line stands for.

    Raises:
        UsageError: If it stands for none, or its file cannot be read.
    """
    kind, _, rest = name.partition(":")
    if kind == "scripted":
        return _scripted(Path(rest))
    if kind == "replay":
        from aisotools.agent.models.replay import ReplayModel
        from aisotools.agent.transcript.metadata import read_transcript

        return ReplayModel(read_transcript(rest).answers)
    if kind == "local":
        return _local(rest)
    from aisotools.agent.models.provider import provider_model

    return provider_model(name)


def _local(path: str) -> Model:
    try:
        found = import_module("aisotools.agent.models.local").LocalModel
    except ImportError as error:
        told = 'Install it with: pip install "aisotools[local]"'
        raise UsageError(f"The local model is not installed ({error}). {told}") from error
    made: Model = found(path) if path else found()
    return made


def _scripted(path: Path) -> Model:
    """A script in a JSON file: a list of turns."""
    from aisotools.agent.models.scripted import ScriptedModel

    try:
        turns = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"The script {path} cannot be read: {error}") from error
    if not isinstance(turns, list):
        raise UsageError(f"The script {path} holds {type(turns).__name__}; it must be a list of turns.")
    return ScriptedModel([_turn(turn) for turn in turns])


def _turn(turn: Any) -> Any:
    """A call is written as a list, `["look", {"n": 1}]`; several parts as a list of texts and calls."""
    if isinstance(turn, list) and len(turn) == 2 and isinstance(turn[0], str) and isinstance(turn[1], dict):
        return tuple(turn)
    return [_turn(part) for part in turn] if isinstance(turn, list) else turn


class TracePrinter:
    """Prints what happens in a run, line by line."""

    def __init__(self, agent: Agent, echo: Echo) -> None:
        """Print with `echo`."""
        self._agent = agent
        self._echo = echo

    def hear(self, event: SessionEvent) -> None:
        """Print one event, if it is of a kind that people want to see."""
        from aisotools.core import events as told
        from aisotools.core.events import CallDecided, CallFinished, CallRequested

        match event:
            case told.ModelAnswered(message=message) if message.text and message.calls:
                self._echo(f"\n{visible(message.text)}")
            case told.ModelRetried(reason=reason, wait_s=wait_s):
                self._echo(f"  ! {visible(reason)}; trying again in {wait_s:g} s")
            case told.ContextTrimmed(call_ids=call_ids, chars=chars):
                self._echo(
                    f"  ! {len(call_ids)} old results were taken out to make room ({chars} characters)"
                )
            case CallRequested(call=call):
                self._echo(f"\n> {visible(call.name)} {visible_json(call.arguments)}"[:_SHOWN_CHARS])
            case CallDecided(decision=decision, decided_by=who):
                self._echo(f"  {decision} by {who}")
            case CallFinished(result=result, duration_s=duration_s):
                lines = visible(result.content).splitlines() or [""]
                mark = "x" if result.is_error else "<"
                for line in lines[:_SHOWN_LINES]:
                    self._echo(f"  {mark} {line[:_SHOWN_CHARS]}")
                more = f", {len(lines) - _SHOWN_LINES} more lines" if len(lines) > _SHOWN_LINES else ""
                self._echo(f"  {duration_s:.2f} s{more}")
