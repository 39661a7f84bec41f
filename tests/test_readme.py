"""README, CONTRIBUTING and the reference: what they show runs, what they claim is so, their links hold."""

from __future__ import annotations

import ast
import json
import os
import pydoc
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from aisotools.agent.agent import Agent
from aisotools.core.types import Decision, ToolCall
from aisotools.notebook.current import AisoTools
from aisotools.notebook.extension import _MAGICS
from aisotools.notebook.magics.agent import parse_agent
from aisotools.notebook.magics.arguments import parse_call
from aisotools.policy.approvers import ScriptedApprover
from aisotools.policy.config import policy_from_toml, user_allowed_names, user_file
from aisotools.policy.rules import Policy, Rule
from aisotools.policy.shell.classify import shell_facts
from aisotools.sandbox.confinement import levels
from aisotools.sandbox.confinement.detect import PROTECTS
from aisotools.sandbox.limits import Limits
from aisotools.sandbox.process.spawn import WorkerSpec
from aisotools.testing.contracts import (
    ApproverContract,
    ModelContract,
    RecordingListener,
    SandboxContract,
    ToolContract,
)
from tests import shape
from tests.conftest import OpenSession
from tests.waiting import HANG_S

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text("utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "notebooks/data/SOURCES.md")
COMMAND = [sys.executable, "-c", "from aisotools.cli.main import main; raise SystemExit(main())"]


def blocks(text: str) -> list[tuple[str, str]]:
    """The fenced blocks: what stands behind the fence, and what is inside."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def block(text: str, kind: str, holding: str = "") -> str:
    (found,) = (inside for name, inside in blocks(text) if name == kind and holding in inside)
    return found


@pytest.fixture
def place(tmp_path: Path) -> Mapping[str, str]:
    """An environment of the test's own; the working folder is its `work`."""
    (tmp_path / "work").mkdir()
    scripts = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state"), "PATH": scripts}


def run(command: list[str], place: Mapping[str, str]) -> str:
    done = subprocess.run(
        command,
        cwd=Path(place["HOME"], "work"),
        env=place,
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# ---- README


def test_no_block_is_left_out() -> None:
    """Every block of README is run by a test below."""
    assert [name for name, _ in blocks(README)] == ["", "toml", "python", "console", "toml"]


def test_the_python_example(place: Mapping[str, str]) -> None:
    output = run([sys.executable, "-c", block(README, "python")], place)
    assert output.splitlines() == ["3.0 3.0", "It has 8 square metres."]


def test_the_example_is_short() -> None:
    lines = [line for line in block(README, "python").splitlines() if line.strip()]
    assert len(lines) <= 20


def test_the_policy_example() -> None:
    text = block(README, "toml", "[[rule]]")
    policy = policy_from_toml(text, beside=("settings",))
    pushing, trusted = policy.rules
    assert pushing.reason == "people push, models do not"
    assert (trusted.tool, trusted.decision, trusted.when) == ("get_balance", "allow", None)
    assert set(tomllib.loads(text)["settings"]) <= set(AisoTools.class_trait_names(config=True))


def test_the_example_of_allowed_names(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "config")}
    file = user_file(environ)
    file.parent.mkdir(parents=True)
    file.write_text(block(README, "toml", "[allow_protected]"))
    assert user_allowed_names(environ, tmp_path / "project") == ("conftest.py", "pyproject.toml")
    assert user_allowed_names(environ, tmp_path / "other") == ()


def test_the_agent_in_the_terminal(place: Mapping[str, str]) -> None:
    text = block(README, "console")
    commands = [shlex.split(line[2:]) for line in text.splitlines() if line.startswith("$ ")]
    turns = json.loads(text.splitlines()[1])
    Path(place["HOME"], "work", "turns.json").write_text(json.dumps(turns))
    shown = text.split(f"$ {shlex.join(commands[1])}\n".replace("'", '"'))[1].split("$ ")[0]
    output = run([*COMMAND, *commands[1][1:]], place)
    assert same(output) == same(shown)
    assert "sound" in run([*COMMAND, *commands[2][1:]], place)


def same(output: str) -> list[str]:
    """What was told, without moments and the level of this machine."""
    output = re.sub(r"scripted in \S+ \(\w+\)", "scripted", output)
    return re.sub(r"\d+\.\d+ s", "0.00 s", output).split()


def test_the_magics_are_there() -> None:
    lines = block(README, "").splitlines()
    assert lines[0] == "%load_ext aisotools"
    for line in lines[1:]:
        example = re.split(r"\s{2,}", line)[0]
        magic, _, rest = example.lstrip("%").partition(" ")
        kind = "cell" if example.startswith("%%") else "line"
        assert magic == "config" or magic in _MAGICS[kind], line
        if magic == "call":
            assert parse_call(rest, {"sandbox_bash": {}}).name == "sandbox_bash"
        if magic == "agent":
            assert parse_agent(rest).model == "human"


def test_every_magic_is_named() -> None:
    text = block(README, "") + README
    missing = [name for names in _MAGICS.values() for name in names if f"%{name}" not in text]
    assert not missing


def test_the_levels_are_those_of_the_code() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([^|]*) \| ([^|]*) \| ([^|]*) \|$", README, re.MULTILINE)
    assert [row[0] for row in rows] == list(reversed(levels.LEVELS))
    for level, _, protects, leaves_open in rows:
        assert (protects, leaves_open) == PROTECTS[level], f"README says something else about {level}"


def test_figures_are_not_claimed_without_a_command() -> None:
    """No times, sizes or ratios in README: what is fast is said by the benchmarks."""
    prose = re.sub(r"^```.*?^```$", "", README, flags=re.MULTILINE | re.DOTALL)
    assert not re.findall(r"\b\d[\d.,]* ?(?:ms|µs|us|seconds|MiB|MB|GB|GiB|times faster|x)\b", prose)
    assert "python -m pytest tests/benchmarks -m benchmark -s" in README


# ---- links


def links(text: str) -> Iterator[str]:
    text = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)
    yield from re.findall(r"\]\(<?([^)\s>]+)", text)


def anchors(path: Path) -> set[str]:
    """The headings of a page, as they are linked to."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.*)$", path.read_text("utf-8"), re.MULTILINE):
        name = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        number = sum(one == name or re.fullmatch(rf"{re.escape(name)}-\d+", one) is not None for one in found)
        found.add(f"{name}-{number}" if number else name)
    return found


def pages() -> list[Path]:
    written = (ROOT / "notebooks" / "reference").glob("*.md")
    return [*(ROOT / name for name in PAGES), *sorted(written), *sorted((ROOT / "notebooks").glob("*.ipynb"))]


def texts_of(path: Path) -> str:
    if path.suffix != ".ipynb":
        return path.read_text("utf-8")
    cells = json.loads(path.read_text("utf-8"))["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


def broken(path: Path, text: str) -> Iterator[str]:
    """The links to files and headings of ours that lead nowhere."""
    for link in links(text):
        target, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", link):
            continue
        aim = (path.parent / target).resolve() if target else path
        if not aim.exists() or (anchor and aim.suffix == ".md" and anchor not in anchors(aim)):
            yield f"{path.name}: {link}"


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    assert not list(broken(path, texts_of(path)))


def test_a_broken_link_is_seen() -> None:
    text = "[a](nowhere.md) [b](README.md#no-such-heading) [c](https://a.org) `[d](x)` [e](README.md#try-it)"
    assert list(broken(ROOT / "README.md", text)) == [
        "README.md: nowhere.md",
        "README.md: README.md#no-such-heading",
    ]


def test_links_to_elsewhere_are_encrypted_and_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """They are only listed: tests use no network."""
    remote = sorted({one for path in pages() for one in links(texts_of(path)) if re.match(r"[a-z]+:", one)})
    print(*remote, sep="\n")
    assert all(one.startswith("https://") for one in remote)


def test_every_tutorial_is_linked() -> None:
    tutorials = {f"notebooks/{path.name}" for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert tutorials <= set(links(README)), "name it in README.md"


# ---- CONTRIBUTING


def example(holding: str) -> dict[str, Any]:
    """What a block of CONTRIBUTING defines."""
    space: dict[str, Any] = {"__name__": "example"}
    exec(compile(block(CONTRIBUTING, "python", holding), "CONTRIBUTING.md", "exec", dont_inherit=True), space)
    return space


def test_every_example_of_contributing_is_run_here() -> None:
    source = Path(__file__).read_text("utf-8")
    for name, inside in blocks(CONTRIBUTING):
        assert name == "python"
        assert any(one in inside for one in re.findall(r'example\("([^"]+)"\)', source)), inside


def test_the_picture_of_contributing_shows_the_packages_in_order() -> None:
    picture = CONTRIBUTING.partition("## Architecture")[2].partition("### ")[0]
    drawn = re.findall(r"^    ([a-z]+) {2,}", picture, re.MULTILINE)
    assert drawn == [*reversed(shape.LAYERS)]


@pytest.mark.parametrize("text", [README, CONTRIBUTING], ids=["README", "CONTRIBUTING"])
def test_every_dotted_name_of_the_package_exists(text: str) -> None:
    names = set(re.findall(r"`(aisotools(?:\.\w+)+)", text)) - {"aisotools.toml"}
    assert names
    for name in sorted(names):
        assert pydoc.locate(name) is not None, f"{name} is not a module or member"


def test_every_path_in_contributing_exists() -> None:
    paths = re.findall(r"`((?:aisotools|tests)/[\w./]*)`", CONTRIBUTING)
    assert len(paths) > 40
    example_of_a_name = {"aisotools/a/b.py", "tests/a/test_b.py"}
    assert [path for path in paths if not (ROOT / path).exists()] == sorted(example_of_a_name)


def places(text: str) -> Iterator[tuple[str, str]]:
    """Each module in the table "Where is ...?" with each name that it is said to define, or an empty one."""
    table = text.partition("### Where is ...?")[2].partition("\n## ")[0]
    for path, names in re.findall(r"`(aisotools/[\w/]+\.py)`(?: \(([^)]*)\))?", table):
        for name in re.findall(r"`([\w.]+)`", names) or [""]:
            yield path, name


def lost_places(text: str) -> list[str]:
    """The places of the table that are not there."""
    return [f"{path}: {name}" for path, name in places(text) if not is_defined(ROOT / path, name)]


def is_defined(path: Path, name: str) -> bool:
    """Whether the module is there and defines `name`, a function or class or a member of a class."""
    if not path.is_file():
        return False
    node: ast.AST | None = ast.parse(path.read_text("utf-8"))
    for part in filter(None, name.split(".")):
        kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
        body = getattr(node, "body", ())
        node = next((one for one in body if isinstance(one, kinds) and one.name == part), None)
    return node is not None


def test_every_place_of_everyday_behaviour_is_there() -> None:
    table = CONTRIBUTING.partition("### Where is ...?")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) >= 30
    assert [row for row in rows if "`aisotools/" not in row] == []
    assert lost_places(CONTRIBUTING) == [], "correct the table in CONTRIBUTING.md"


@pytest.mark.parametrize(
    ("cell", "lost"),
    [
        ("`aisotools/session/gate.py` (`Gate.run`, `Gate.close`)", []),
        ("`aisotools/session/gates.py`", ["aisotools/session/gates.py: "]),
        ("`aisotools/session/gate.py` (`Gate.jump`)", ["aisotools/session/gate.py: Gate.jump"]),
        ("`aisotools/session/gate.py` (`Gate.run`, `jump`)", ["aisotools/session/gate.py: jump"]),
    ],
)
def test_a_place_that_is_not_there_is_found(cell: str, lost: list[str]) -> None:
    assert lost_places(f"### Where is ...?\n\n| what | {cell} |\n\n## Rules\n") == lost


@pytest.mark.parametrize(
    "words",
    [
        f"{shape.SMALL_MODULE_LINES} lines",
        f"{shape.MODULE_LINES} lines",
        "tests.structure",
        "tests.call_paths",
    ],
)
def test_contributing_states_the_rules_of_today(words: str) -> None:
    assert words in CONTRIBUTING


class TestTheTool(ToolContract):
    arguments = ({}, {"reset": True})

    def make(self) -> Any:
        return example("class Counter")["Counter"]()


async def test_the_tool_in_a_session(open_session: OpenSession) -> None:
    session = open_session(example("class Counter")["Counter"](), approver=ScriptedApprover(["deny"]))
    assert (await session.call("count", origin="model")).value == 1
    assert (await session.call("count", {"reset": True}, origin="model")).error_kind == "denied"
    assert (await session.call("count", origin="model")).value == 2


class TestTheApprover(ApproverContract):
    def make(self) -> Any:
        return example("class OfficeHours")["OfficeHours"]()


class TestTheModel(ModelContract):
    def make(self) -> Any:
        return example("class Parrot")["Parrot"]()


async def test_the_model_in_an_agent(open_session: OpenSession) -> None:
    result = await Agent(example("class Parrot")["Parrot"](), open_session()).run("Hello.")
    assert (result.ok, str(result)) == (True, "You said: Hello.")


async def test_the_view(open_session: OpenSession) -> None:
    session = open_session(approver=ScriptedApprover([]))
    await session.call("file", {"operation": "list", "path": "."})
    await session.call("file", {"operation": "write", "path": "a", "content": ""})
    assert example("def summary")["summary"](session.events) == "2 calls, 1 denied"


class TestTheSandbox(SandboxContract):
    @pytest.fixture(autouse=True)
    def _workspace(self, tmp_path: Path) -> None:
        self.wanted = WorkerSpec(level="confined", workspace=str(tmp_path), limits=Limits())

    def make(self, listener: RecordingListener) -> Any:
        return example("class Counting")["Counting"](self.wanted, listener)


async def test_the_sandbox_in_a_session(open_session: OpenSession) -> None:
    session = open_session(sandbox=example("class Counting")["Counting"])
    assert not (await session.call("file", {"operation": "list", "path": "."})).is_error


def test_the_levels_of_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    found = example("detect_in_subprocess()")["detection"]
    assert f"{found.level} protects: " in capsys.readouterr().out


def test_rules_about_commands_mean_what_readme_says() -> None:
    (section,) = re.findall(r"^## Rules about commands\n(.*?)^## ", README, re.MULTILINE | re.DOTALL)
    meant = re.findall(r"(`[^`]+`) means ((?:`[^`]+`(?:, | and )?)+)", section)
    pairs = [
        (glob.strip("`"), one) for glob, all_of_them in meant for one in re.findall(r"`([^`]+)`", all_of_them)
    ]
    asked = re.findall(r"`([^`]+)`", section.partition("is asked about:")[2].partition("\n")[0])
    assert len(pairs) >= 12
    assert len(asked) >= 3
    for glob, command in [*pairs, *(("rm -r*", command) for command in asked)]:
        policy = Policy(mode="auto", rules=[Rule(when={"commands": [glob]}, decision=Decision.DENY)])
        call = ToolCall("1", "sandbox_bash", {"command": command}, origin="model")
        decision = policy.check(call, shell_facts(command)).decision
        assert decision is (Decision.ASK if command in asked else Decision.DENY), command
