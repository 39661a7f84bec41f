"""`aisotools run -m MODEL "task"`: run an agent in the terminal. It asks there before it changes anything."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aisotools.cli.tools import Echo, add_subcommand
from aisotools.core.exceptions import UsageError
from aisotools.policy.prompts import visible, visible_json

if TYPE_CHECKING:
    from aisotools.agent.run import RunResult
    from aisotools.core.events import SessionEvent
    from aisotools.core.messages import Model
    from aisotools.session.session import Session


STATUS: Mapping[str, int] = {"answered": 0, "cancelled": 130, "stopped": 130}
"""Exit status by the outcome of the run; 1 for any other."""

_MAX_RESULT_LINES = 6
_MAX_LINE_CHARS = 160
_APPROVE = ("ask", "auto", "deny")
_MODELS = (
    "openai:NAME, anthropic:NAME, google:NAME, ollama:NAME, local, local:FILE.gguf, scripted:FILE.json or "
    "replay:RUN.ipynb"
)


def add_parser(commands: Any) -> None:
    """Add `run` to the subcommands."""
    parser = add_subcommand(
        commands,
        "run",
        "let a model work on a task with the tools of a session",
        epilog="Exit status: 0 if the model answered, 1 if not, 130 if the run was stopped.",
    )
    parser.add_argument("task", help="the task; - reads it from standard input")
    parser.add_argument("-m", "--model", required=True, help=_MODELS)
    parser.add_argument(
        "-w", "--workspace", type=Path, help="folder that tools may change (default: ./workspace/default)"
    )
    parser.add_argument("-t", "--tools", metavar="NAME,...", help="let it call only these tools")
    parser.add_argument("-i", "--instructions", default="", help="system prompt")
    parser.add_argument(
        "--approve",
        choices=_APPROVE,
        default="ask",
        help="for calls that need approval: ask here (default), use the policy mode auto, or deny",
    )
    parser.add_argument("--max-steps", type=int, metavar="N", help="stop after N answers of the model")
    parser.add_argument("--quiet", action="store_true", help="print only the answer")


def run(options: argparse.Namespace, echo: Echo, *, read: Callable[[], str] = sys.stdin.read) -> int:
    """Run `aisotools run`. Return 0 if the model answered, 1 if not, 130 if the run was stopped.

    Args:
        options: The parsed command line.
        echo: Prints a line.
        read: Returns the task where the command line has `-`.

    Raises:
        UsageError: If an option is invalid, or there is no such model, tool or file.
    """
    from aisotools.agent.budgets import Budgets

    if options.max_steps is not None and options.max_steps < 1:
        raise UsageError(f"--max-steps {options.max_steps}: use a number of at least 1.")
    task = read() if options.task == "-" else options.task
    if not task.strip():
        raise UsageError("The task is empty. Write what the model should do.")
    model = resolve_model(options.model)
    budgets = Budgets() if options.max_steps is None else Budgets(steps=options.max_steps)
    tools = None if options.tools is None else [name.strip() for name in options.tools.split(",")]

    async def run_agent() -> RunResult:
        from aisotools.agent.agent import Agent

        async with _session(options.workspace, options.approve) as session:
            agent = Agent(model, session, options.instructions, budgets, tools=tools)
            if not options.quiet:
                echo(f"{model.name} in {session.workspace} ({session.level})")
                agent.subscribe(TracePrinter(echo).print_event)
            return await agent.run(task)

    result = asyncio.run(run_agent())
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
    """Return the model for a name such as `openai:NAME` or `scripted:FILE.json`.

    Raises:
        UsageError: If there is no such model, or its file cannot be read.
    """
    kind, _, rest = name.partition(":")
    if kind == "scripted":
        return _read_script(Path(rest))
    if kind == "replay":
        from aisotools.agent.models.replay import ReplayModel
        from aisotools.agent.transcript.metadata import read_transcript

        return ReplayModel(read_transcript(rest).answers)
    if kind == "local":
        return _local(rest)
    from aisotools.agent.models.provider import MODEL_PROVIDERS, provider_model

    if kind not in MODEL_PROVIDERS or not rest:
        raise UsageError(f"There is no model {name!r}. Give one of {_MODELS}.")
    return provider_model(name)


def _local(path: str) -> Model:
    try:
        from aisotools.agent.models.local import LocalModel
    except ImportError as error:
        hint = 'Install it with: pip install "aisotools[local]"'
        raise UsageError(f"The local model is not installed ({error}). {hint}") from error
    return LocalModel(path) if path else LocalModel()


def _read_script(path: Path) -> Model:
    """Read a script: a JSON file with a list of turns."""
    from aisotools.agent.models.scripted import ScriptedModel

    try:
        turns = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"The script {path} cannot be read: {error}") from error
    if not isinstance(turns, list):
        raise UsageError(f"The script {path} must be a list of turns, not {type(turns).__name__}.")
    return ScriptedModel([_turn(turn) for turn in turns])


def _turn(turn: Any) -> Any:
    """Convert one turn. JSON has no tuples: a call is `["look", {"n": 1}]`; several parts are a list."""
    if isinstance(turn, list) and len(turn) == 2 and isinstance(turn[0], str) and isinstance(turn[1], dict):
        return tuple(turn)
    return [_turn(part) for part in turn] if isinstance(turn, list) else turn


class TracePrinter:
    """Prints the events of a run as lines of a terminal."""

    def __init__(self, echo: Echo) -> None:
        """Print with `echo`."""
        self._echo = echo

    def print_event(self, event: SessionEvent) -> None:
        """Print one event; kinds that are of no interest to people are left out."""
        from aisotools.core.events import (
            CallDecided,
            CallFinished,
            CallRequested,
            ContextTrimmed,
            ModelAnswered,
            ModelRetried,
        )

        match event:
            case ModelAnswered(message=message) if message.text and message.calls:
                self._echo(f"\n{visible(message.text)}")
            case ModelRetried(reason=reason, wait_s=wait_s):
                self._echo(f"  ! {visible(reason)}; trying again in {wait_s:g} s")
            case ContextTrimmed(call_ids=call_ids, chars=chars):
                self._echo(
                    f"  ! {len(call_ids)} old results were removed from the context ({chars} characters)"
                )
            case CallRequested(call=call):
                self._echo(f"\n> {visible(call.name)} {visible_json(call.arguments)}"[:_MAX_LINE_CHARS])
            case CallDecided(decision=decision, decided_by=who):
                self._echo(f"  {decision} by {who}")
            case CallFinished(result=result, duration_s=duration_s):
                lines = visible(result.content).splitlines() or [""]
                mark = "x" if result.is_error else "<"
                for line in lines[:_MAX_RESULT_LINES]:
                    self._echo(f"  {mark} {line[:_MAX_LINE_CHARS]}")
                omitted = len(lines) - _MAX_RESULT_LINES
                more = f", {omitted} more lines" if omitted > 0 else ""
                self._echo(f"  {duration_s:.2f} s{more}")
