"""Writes the pages under `notebooks/reference/` from what they describe: `python -m tests.reference`.

`tests/test_reference.py` compares the pages with what this would write now.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import enum
import inspect
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import aisotools
import aisotools.testing
from aisotools.cli.main import command_parser
from aisotools.notebook.current import settings_table
from aisotools.sandbox.confinement import levels
from aisotools.sandbox.confinement.detect import ENABLED_BY, PROTECTS
from tests import shape

PROJECT = Path(__file__).resolve().parent.parent
FOLDER = PROJECT / "notebooks" / "reference"
WRITTEN = "<!-- Written by `python -m tests.reference`; change what it describes instead. -->\n"

CHAPTERS: Mapping[str, tuple[str, ...]] = {
    "Tools": ("tool", "Tool", "ToolContext", "ToolRegistry", "ToolDefinition"),
    "Calls and results": ("ToolCall", "ToolResult", "Effect", "Facts"),
    "Sessions": ("Session", "SessionPool", "GatewaySandbox", "Limits", "current_session"),
    "Deciding": ("Policy", "Rule", "Evaluation", "Decision", "classify_shell", "ShellReport"),
    "Asking": (
        "Approver",
        "ApprovalRequest",
        "Approval",
        "NotebookApprover",
        "ConsoleApprover",
        "ScriptedApprover",
        "AllowAll",
        "DenyAll",
    ),
    "Agents and models": (),
    "For tests": ("MockTool", "FakeSandbox"),
    "Errors": ("AisotoolsError", "ToolError", "UnknownTool"),
    "The extension": ("load_ipython_extension", "unload_ipython_extension"),
}
"""Where a public name stands; what is named nowhere is about agents and models."""


# ---- the API


def chapters() -> Iterator[tuple[str, list[str]]]:
    """The chapters with their names."""
    names = [name for name in aisotools.__all__ if name != "__version__"]
    assigned = {name for chapter in CHAPTERS.values() for name in chapter}
    for title, chapter in CHAPTERS.items():
        yield title, [*chapter] or [name for name in names if name not in assigned]


def api_page() -> str:
    """Every public name with its signature and its docstring."""
    lines = [
        WRITTEN,
        "# API\n",
        "Everything that `import aisotools` and `import aisotools.testing` offer. Names are loaded on use.\n",
    ]
    anchors: list[str] = []
    for title, names in chapters():
        lines.append(f"- {title}: {', '.join(_link(name, anchors) for name in names)}")
    links = ", ".join(_link(name, anchors) for name in testing_names())
    lines.append(f"- `aisotools.testing`, fakes and contract suites for tests of your own: {links}")
    for title, names in chapters():
        lines.append(f"\n## {title}\n")
        for name in names:
            lines += list(_entry(name, getattr(aisotools, name)))
    lines.append("\n## aisotools.testing\n")
    for name in testing_names():
        lines += list(_entry(name, getattr(aisotools.testing, name)))
    return "\n".join(lines).rstrip() + "\n"


def testing_names() -> list[str]:
    """Return the names that only `aisotools.testing` offers."""
    return [name for name in aisotools.testing.__all__ if name not in aisotools.__all__]


def _link(name: str, anchors: list[str]) -> str:
    """A link to a heading; Markdown numbers headings that differ only in case."""
    earlier = anchors.count(name.lower())
    anchors.append(name.lower())
    return f"[`{name}`](#{name.lower()}{f'-{earlier}' if earlier else ''})"


def _entry(name: str, thing: Any) -> Iterator[str]:
    yield f"### {name}\n"
    yield from _described(name, thing)
    if isinstance(thing, enum.EnumType):
        yield f"Values: {', '.join(f'`{value}`' for value in thing.__members__)}.\n"
    elif inspect.isclass(thing):
        for member, method in public_members(thing):
            yield from _member(member, method)


def public_members(thing: type) -> Iterator[tuple[str, Any]]:
    """What a class of ours offers beyond its attributes, in the order of the source, inherited or not."""
    seen: set[str] = set()
    for base in thing.__mro__:
        if not base.__module__.startswith("aisotools") or (
            base.__name__.endswith("Error") and base is not thing
        ):
            continue
        fields = {one.name for one in dataclasses.fields(base)} if dataclasses.is_dataclass(base) else set()
        for member, value in vars(base).items():
            # Of a contract suite, what it needs is listed, and not each of its tests.
            if member.startswith(("_", "test_")) or member in seen or member in fields:
                continue
            seen.add(member)
            if isinstance(value, property | classmethod | staticmethod) or inspect.isfunction(value):
                yield member, value


def _member(name: str, thing: Any) -> Iterator[str]:
    if isinstance(thing, property):
        yield f"**`.{name}`** {_text(thing)}\n"
        return
    function = thing.__func__ if isinstance(thing, classmethod | staticmethod) else thing
    wait = "await " if inspect.iscoroutinefunction(function) else ""
    yield f"**`{wait}.{name}{signature(function, bound=not isinstance(thing, staticmethod))}`**\n"
    yield f"{_text(function)}\n"


def _described(name: str, thing: Any) -> Iterator[str]:
    if inspect.isfunction(thing) or (inspect.isclass(thing) and _constructible(thing)):
        yield f"```text\n{name}{signature(thing)}\n```\n"
    yield f"{_text(thing)}\n"
    made = vars(thing).get("__init__") if inspect.isclass(thing) else None
    if made is not None and not dataclasses.is_dataclass(thing) and made.__doc__:
        yield f"{_text(made)}\n"


def _constructible(thing: type) -> bool:
    plain = not isinstance(thing, enum.EnumType) and not getattr(thing, "_is_protocol", False)
    return plain and not issubclass(thing, BaseException)


def signature(thing: Callable[..., Any], *, bound: bool = False) -> str:
    """The parameters as they are written, without `self` and without the annotations' quotes."""
    parameters = list(inspect.signature(thing).parameters.values())
    parameters = parameters[1:] if bound else parameters
    shown = inspect.Signature(parameters, return_annotation=inspect.signature(thing).return_annotation)
    if inspect.isclass(thing):
        shown = shown.replace(return_annotation=inspect.Signature.empty)
    text = re.sub(
        r"(?<=[:>\[| ] )'([^']*)'|(?<=: )'([^']*)'", lambda found: found[1] or found[2] or "''", str(shown)
    )
    text = re.sub(r"<(\w+\.[A-Z_]+): \w+>", r"\1", text)  # a value of an enumeration
    return re.sub(r"<[^<>]+>", "...", text)


def _text(thing: Any) -> str:
    """A docstring as Markdown: sections become lists."""
    lines = (inspect.getdoc(thing) or "").splitlines()
    out: list[str] = []
    section = False
    for line in lines:
        if re.fullmatch(r"(Args|Attributes|Returns|Raises|Yields):", line):
            section = True
            out.append(f"*{line[:-1]}*\n")
        elif section and (found := re.fullmatch(r"    ([\w.*]+): (.*)", line)):
            out.append(f"- `{found[1]}`: {found[2]}")
        elif section and line.startswith("        "):
            out.append(f"  {line.strip()}")
        elif section and line.startswith("    "):
            out.append(line.strip())
        else:
            section = section and not line
            out.append(line)
    return "\n".join(out).strip()


# ---- architecture


@cache
def package() -> shape.Package:
    """The package, read once."""
    return shape.read(PROJECT / "aisotools")


def groups(package: shape.Package) -> dict[str, str]:
    """For each module the package that it lies in, which is its box in the diagram."""
    return {name: name.partition(".")[0] for name in package if name.partition(".")[0] in shape.LAYERS}


def edges(package: shape.Package) -> set[tuple[str, str]]:
    """Which boxes import from which, without what follows from other arrows."""
    box = groups(package)
    straight: dict[str, set[str]] = defaultdict(set)
    for name, module in package.items():
        for target, _ in shape._inner(module):
            if name not in box or target not in box or box[name] == box[target]:
                continue
            straight[box[name]].add(box[target])
    return {
        (one, other)
        for one, others in straight.items()
        for other in others
        if not any(other in _reached(straight, middle, {one}) for middle in others - {other})
    }


def _reached(straight: Mapping[str, set[str]], start: str, seen: set[str]) -> set[str]:
    found: set[str] = set()
    todo = [start]
    while todo:
        for following in straight.get(todo.pop(), set()) - found - seen:
            found.add(following)
            todo.append(following)
    return found


def diagram(package: shape.Package) -> str:
    """The boxes and arrows as Mermaid text."""
    names = sorted(set(groups(package).values()))
    ids = {name: re.sub(r"\W", "_", name) for name in names}
    lines = ["flowchart TD", *(f'  {ids[name]}["{name}"]' for name in names)]
    lines += [f"  {ids[one]} --> {ids[other]}" for one, other in sorted(edges(package))]
    return "\n".join(lines)


def architecture_page() -> str:
    """The packages drawn, three walks through them, and all modules."""
    members: dict[str, list[str]] = defaultdict(list)
    for name, box in groups(package()).items():
        members[box].append(name)
    lines = [
        WRITTEN,
        "# Architecture\n",
        (
            "A module imports only from below. An arrow means *imports from*; what follows from other arrows "
            "is left out. `tests/test_shape.py` checks it. [CONTRIBUTING](../../CONTRIBUTING.md) says what "
            "each package is for, and where to put what.\n"
        ),
        f"```mermaid\n{diagram(package())}\n```\n",
        (
            "Cards, transcripts, the trace, the ledger and replay are folds over the events that are named "
            "below.\n"
        ),
        WALKS,
        "## Modules\n",
        (
            "What each is for, in the first words of its docstring. Where everyday behaviour is, down to the "
            "function, is a table in [CONTRIBUTING](../../CONTRIBUTING.md#where-is-).\n"
        ),
    ]
    for box in sorted(members):
        lines += [f"### {box}\n", f"{purpose(package()[box])}.\n", "| module | what it is for |", "|---|---|"]
        names = [name for name in members[box] if name != box]
        lines += [f"| `{name.removeprefix(box + '.')}` | {_cell(package()[name])} |" for name in names]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


PURPOSE_CHARS = 110
"""A first sentence that is longer is cut at the end of its first clause."""


def purpose(module: shape.Module) -> str:
    """Return the first sentence of a module's docstring without its full stop, or its first clause."""
    paragraph = " ".join((ast.get_docstring(module.tree) or "").partition("\n\n")[0].split())
    sentence = re.split(r"\.(?:\s|$)", paragraph, maxsplit=1)[0]
    clauses = re.split(r"(?<=\w)[;:] ", sentence)
    return clauses[0] if len(sentence) > PURPOSE_CHARS and len(clauses[0]) > 1 else sentence


def _cell(module: shape.Module) -> str:
    """Return the purpose of a module as a cell of a table, where a bar would end it."""
    return purpose(module).replace("|", "\\|")


WALKS = """\
## One call

A model asks for `python` with the code `print(1)`. An agent, a magic, the command line and a bridge to
another framework all enter at the first step.

1. **session**: `session.session.Session.call` makes a `core.types.ToolCall`. The first call of a session
   also opens the workspace, the history and the sandbox.
2. **session**: `session.gate.Gate.run` copies the arguments, so that the caller cannot change them any
   more, and records `core.events.CallRequested`. No call runs without passing here.
3. **policy**: `policy.prepared.prepare_in_steps` finds out what the call is. The tool validates the arguments
   (`tools.adapter.validate_arguments`) and names its facts (`tools.adapter.gather_facts`), and
   `policy.rules.Policy.check` returns allow, ask or deny with reasons. For shell commands the facts come
   from `policy.shell.classify.classify_shell`.
4. **policy**: `policy.prepared.call_digest` binds the decision to the tool's version, the exact arguments
   and the sandbox level. The gate compares it again just before the call runs, so that the call that was
   shown is the call that runs.
5. **session**: A call that is allowed is recorded as `core.events.CallDecided` and
   `core.events.CallStarted`. If it may change something, the guards run around it (`session.guards.Guard`):
   protected files, files read before, and the undo history.
6. **sandbox**: `sandbox.host.sandbox.LocalSandbox.call` waits for its turn
   (`sandbox.host.scheduler.CallScheduler`), takes a snapshot of the variables unless the call only reads,
   and sends the call as frames (`sandbox.frames`) to the worker process. A tool that runs on the host goes to
   `session.host_calls.HostCalls.run` instead.
7. **sandbox**: In the confined process, `sandbox.worker.worker.Worker.serve` receives it and runs the tool,
   here `builtin.python`. Output streams back while it runs; the result comes last.
8. **session**: The gate treats the result as hostile. It checks the value against the declared type
   (`tools.adapter.validate_value`), cuts long text (`core.truncation.truncate_result`) and records
   `core.events.CallFinished`.
9. **notebook**: Whoever subscribed to the events shows the call: `notebook.trace.view` in a notebook,
   `cli.run.TracePrinter` in a terminal. `session.recording.Recording` writes it to the ledger.

## One approval

The same way, for a call that the policy asks about, in a notebook.

1. **policy**: `policy.rules.Policy.check` returned ask. `policy.grants.Grants.find` is asked first: a call
   that a person has allowed for the rest of the session is not asked about again.
2. **session**: `session.approvals.ApprovalManager.resolve` builds a `core.types.ApprovalRequest` with a
   preview of the change (`session.previews.Previewer`) and what can be undone, and records
   `core.events.ApprovalAsked`. Meanwhile the sandbox starts.
3. **policy**: `policy.approvers.request_approvals` calls the approver under a deadline. No approver, an
   exception, a timeout and an answer of a wrong type are all denials.
4. **notebook**: `notebook.approval.approver.NotebookApprover.ask_many` puts an
   `notebook.approval.subjects.ApprovalSubject` on a card
   (`notebook.approval.approver.NotebookPrompt.answer`). The first valid reply counts; if no page shows the
   card, the input box of the kernel asks.
5. **session**: `session.approvals.ApprovalManager.resolve` records `core.events.ApprovalAnswered`. Edited
   arguments are validated and checked against the policy again; what is to be remembered goes to
   `policy.grants.Grants.add`.
6. **session**: The gate looks once more at what the call would touch and read, and asks the policy of this
   moment if it is another one (`session.gate.Gate._confirm`). What that denies does not run. If files have
   changed since the card was shown, it asks again and says what changed. Else it goes on as for a call that
   the policy allowed. A denial becomes a result with its reason (`policy.prepared.denial_result`),
   which the model can read.

## One undo

A call has changed files and variables, and a person types `%undo`.

1. **session**: Before that call ran, `session.history.WorkspaceHistory.before` took the lock of the
   workspace, and `workspace.checkpoints.timeline.Checkpoints.begin` stored the content of what had changed
   since the last scan. After it, `workspace.checkpoints.timeline.Checkpoints.end` recorded the result.
2. **sandbox**: For the variables, `sandbox.host.snapshots.SnapshotHistory.take_snapshot` let the worker
   fork. The fork sleeps and holds the variables as they were. A tool that only touches files shares the
   newest fork instead.
3. **session**: `session.session.Session.undo` asks `session.history.WorkspaceHistory.undo`, which waits for
   running calls and refuses if a background task could still change files. Before anything is touched,
   `session.undo_steps.UndoChoice.plan` finds which calls that takes and whether the variables from before
   them are kept, and otherwise refuses with the nearest states that are.
4. **workspace**: `workspace.checkpoints.timeline.Checkpoints.move` plans the restore with
   `workspace.checkpoints.plan.plan_restore`. If somebody else has changed the same files since, nothing
   is touched and the conflicts are listed.
5. **workspace**: The move is recorded first, so that a crash in the middle can be completed. Then
   `workspace.checkpoints.restore.carry_out` writes and removes files.
6. **sandbox**: `sandbox.host.snapshots.SnapshotHistory.restore` wakes the fork, which takes the place of
   the worker. If that fails, `workspace.checkpoints.timeline.Checkpoints.revert` puts the files back.
7. **session**: The result says what came back and what did not, and `core.events.Undone` is recorded.
   `session.session.Session.redo` goes the same way forward.
"""
"""Three ways through the packages. A name in backticks that starts with a package must exist."""

_REFERENCE = re.compile(rf"`((?:{'|'.join(shape.LAYERS)})(?:\.\w+)+)`")


def walk_references(text: str) -> list[str]:
    """Return the dotted names of modules and their members in `text`."""
    return _REFERENCE.findall(text)


def missing_references(text: str) -> list[str]:
    """Return the names in `text` of which there is no module, class or function."""
    return [name for name in walk_references(text) if not _exists(name)]


def _exists(name: str) -> bool:
    module = name
    while module not in package() and "." in module:
        module = module.rpartition(".")[0]
    if module not in package():
        return False
    value: object = import_module(f"aisotools.{module}")
    for member in filter(None, name.removeprefix(module).split(".")):
        if not hasattr(value, member):
            return False
        value = getattr(value, member)
    return True


# ---- settings, levels, commands


def settings_page() -> str:
    """The settings, the levels and the command line."""
    lines = [
        WRITTEN,
        "# Settings, levels and commands\n",
        "## Settings\n",
        (
            "Set one in a cell (`%config AisoTools.mode = 'plan'`), in `ipython_config.py` "
            "(`c.AisoTools.mode = 'plan'`), or under `[settings]` in `aisotools.toml` in the Jupyter config "
            "folder. A cell beats `ipython_config.py`, which beats the file. They are about the notebook's "
            "own session; a program says what it wants when it makes its `Session`.\n"
        ),
        settings_table(),
        "## Levels\n",
        *levels_table(),
        "\n## Commands\n",
    ]
    parser = command_parser()
    choices: list[argparse.Action] = next(
        one._choices_actions for one in parser._actions if isinstance(one, argparse._SubParsersAction)
    )
    lines += [f"- `aisotools {action.dest}`: {action.help}" for action in choices]
    return "\n".join(lines) + "\n"


def levels_table() -> list[str]:
    """The levels, the strongest first, in the words that the program itself uses."""
    head = ["| level | what it takes | what it protects | what it leaves open |", "|---|---|---|---|"]
    rows = [
        f"| `{level}` | {ENABLED_BY[level]} | {PROTECTS[level][0]} | {PROTECTS[level][1]} |"
        for level in reversed(levels.LEVELS)
    ]
    return head + rows


PAGES: Mapping[str, Callable[[], str]] = {
    "api.md": api_page,
    "architecture.md": architecture_page,
    "settings.md": settings_page,
}
"""The pages and what writes them."""


def main() -> None:
    """Write the pages."""
    FOLDER.mkdir(exist_ok=True)
    for name, write in PAGES.items():
        (FOLDER / name).write_text(write(), "utf-8")
        print(FOLDER / name, file=sys.stderr)


if __name__ == "__main__":
    main()
