"""Writes the pages under `notebooks/reference/` from what they describe: `python -m tests.reference`.

`tests/test_reference.py` compares the pages with what this would write now.
"""

from __future__ import annotations

import argparse
import dataclasses
import enum
import inspect
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import aisotools
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
    told = {name for chapter in CHAPTERS.values() for name in chapter}
    for title, chapter in CHAPTERS.items():
        yield title, [*chapter] or [name for name in names if name not in told]


def api_page() -> str:
    """Every public name with its signature and its docstring."""
    lines = [
        WRITTEN,
        "# API\n",
        "Everything that `import aisotools` offers. Each name is loaded on first use.\n",
    ]
    anchors: list[str] = []
    for title, names in chapters():
        lines.append(f"- {title}: {', '.join(_link(name, anchors) for name in names)}")
    for title, names in chapters():
        lines.append(f"\n## {title}\n")
        for name in names:
            lines += list(_entry(name, getattr(aisotools, name)))
    return "\n".join(lines).rstrip() + "\n"


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
            if member.startswith("_") or member in seen or member in fields:
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
    """The layers, drawn and listed."""
    members: dict[str, list[str]] = defaultdict(list)
    for name, box in groups(package()).items():
        members[box].append(name)
    lines = [
        WRITTEN,
        "# Architecture\n",
        (
            "A module imports only from below. An arrow says *imports from*; what already follows from other "
            "arrows is left out. `tests/test_shape.py` holds the package to it.\n"
        ),
        f"```mermaid\n{diagram(package())}\n```\n",
        (
            "One call passes one gate, in `session/gate.py`: the name is resolved, arguments are validated, "
            "facts are gathered, the policy decides, a person is asked if need be, a checkpoint is made, "
            "the call runs in the sandbox under a deadline, its output is capped and cleaned, and each of "
            "these steps is an event. Cards, transcripts, the ledger and replay are folds over these "
            "events.\n"
        ),
        "| part | modules |",
        "|---|---|",
    ]
    for box in sorted(members):
        names = [name for name in members[box] if name != box]
        shown = ", ".join(f"`{name.removeprefix(box + '.')}`" for name in names)
        lines.append(f"| {box} | {shown} |")
    return "\n".join(lines) + "\n"


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
