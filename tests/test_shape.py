"""The package keeps its shape: layers, doors, sizes, docstrings; and each rule is seen to fail."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

import aisotools
from tests import shape

PROJECT = Path(__file__).resolve().parent.parent
HOME: dict[str, str] = aisotools._HOME


def told(findings: list[str]) -> str:
    return "\n" + "\n".join(findings)


@pytest.fixture(scope="module")
def package() -> shape.Package:
    return shape.read(PROJECT / "aisotools")


@pytest.mark.parametrize("rule", shape.RULES, ids=lambda rule: rule.__name__)
def test_package(rule: shape.Rule, package: shape.Package) -> None:
    findings = [str(finding) for finding in rule(package)]
    assert not findings, told(findings)


@pytest.mark.parametrize("rule", [shape.swallowing, shape.exemptions], ids=lambda rule: rule.__name__)
def test_tests(rule: shape.Rule) -> None:
    findings = [str(finding) for finding in rule(shape.read(PROJECT / "tests"))]
    assert not findings, told(findings)


def test_configuration_gives_a_reason_for_every_exemption() -> None:
    text = (PROJECT / "pyproject.toml").read_text("utf-8")
    bare = [
        f"pyproject.toml:{number}: an exemption without a reason; say why after it"
        for number, line in enumerate(text.splitlines(), 1)
        if re.match(r'(  |"[\w/*.]+" = \[)"[A-Z]+\d*"', line) and "#" not in line
    ]
    assert not bare, told(bare)


def test_public_names_are_few() -> None:
    assert len(aisotools.__all__) <= 45, (
        "more than 45 public names; let people import the rest from its module"
    )


def test_type_checkers_see_the_same_names(package: shape.Package) -> None:
    assert shape.typed_names(package[""]) == HOME


@pytest.mark.parametrize("name", HOME)
def test_public_name_resolves(name: str) -> None:
    assert getattr(aisotools, name) is not None


def broken(rule: shape.Rule, sources: dict[str, str]) -> list[str]:
    """What `rule` finds in a made-up package; paths and package roots are filled in."""
    files = {f"aisotools/{path}": textwrap.dedent(source) for path, source in sources.items()}
    folders = {path.rpartition("/")[0] for path in files} | {"aisotools"}
    files = {f"{folder}/__init__.py": "" for folder in sorted(folders)} | files
    return [str(finding) for finding in rule(shape.parse(files))]


@pytest.mark.parametrize(
    ("importer", "imported"),
    [
        ("events.py", "session"),
        ("schema.py", "function_tool"),
        ("registry.py", "sandbox.kernel"),  # same layer, another folder
        ("sandbox/kernel.py", "registry"),
        ("notebook/render.py", "bridges.mcp"),
        ("sandbox/channel.py", "schema"),
    ],
)
@pytest.mark.parametrize("form", ["from aisotools.{} import x", "def f():\n    import aisotools.{}"])
def test_layers_refuse(importer: str, imported: str, form: str) -> None:
    target = imported.replace(".", "/") + ".py"
    found = broken(shape.layers, {importer: form.format(imported), target: "x = 1"})
    assert len(found) == 1
    assert found[0].startswith(f"aisotools/{importer}:{form.count(chr(10)) + 1}: ")
    assert f"imports {imported} (layer" in found[0]


@pytest.mark.parametrize(
    ("importer", "source", "target"),
    [
        ("session.py", "from aisotools.events import x", "events.py"),
        ("registry.py", "from aisotools.approval import x", "approval.py"),  # same layer, both flat
        ("sandbox/kernel.py", "from .channel import x", "sandbox/channel.py"),
        (
            "sandbox/channel.py",
            "from aisotools.exceptions import x",
            "exceptions.py",
        ),  # same row, both single
        ("sandbox/confine.py", "from aisotools.sandbox import limits", "sandbox/limits.py"),  # up, own folder
        (
            "schema.py",
            "from aisotools.sandbox import channel",
            "sandbox/channel.py",
        ),  # a low part of a high folder
        ("events.py", "if TYPE_CHECKING:\n    from aisotools.session import x", "session.py"),
    ],
)
def test_layers_allow(importer: str, source: str, target: str) -> None:
    assert broken(shape.layers, {importer: source, target: "x = 1"}) == []


def test_layers_see_relative_imports_and_imports_by_name() -> None:
    sources = {
        "session.py": "",
        "sandbox/kernel.py": "from ..session import x",
        "builtin/files.py": "import_module('aisotools.session')",
    }
    found = broken(shape.layers, sources)
    assert [line.partition(" ")[0] for line in found] == [
        "aisotools/sandbox/kernel.py:1:",
        "aisotools/builtin/files.py:1:",
    ]


def test_layers_see_through_the_upper_part_of_a_folder() -> None:
    sources = {
        "function_tool.py": "",
        "sandbox/confine.py": "from aisotools.sandbox.supervisor import x",
        "sandbox/supervisor.py": "from aisotools.function_tool import x",
    }
    (found,) = broken(shape.layers, sources)
    assert found.startswith("aisotools/sandbox/confine.py:1: ")
    assert "function_tool (layer 2) through sandbox.supervisor" in found


def test_layers_refuse_a_module_without_one() -> None:
    (found,) = broken(shape.layers, {"utils.py": ""})
    assert "utils has no layer" in found


@pytest.mark.parametrize(
    ("sources", "loop"),
    [
        (
            {"registry.py": "import aisotools.approval", "approval.py": "import aisotools.registry"},
            "registry",
        ),
        (
            {
                "sandbox/a.py": "from aisotools.sandbox import b",
                "sandbox/b.py": "def f():\n    from aisotools.sandbox.c import x",
                "sandbox/c.py": "from .a import y",
            },
            "sandbox.a -> sandbox.b -> sandbox.c -> sandbox.a",
        ),
        (
            {
                "sandbox/__init__.py": "from aisotools.sandbox.a import x",
                "sandbox/a.py": "from aisotools.sandbox import y",
            },
            "sandbox -> sandbox.a -> sandbox",
        ),
    ],
    ids=["two", "three, one lazy", "through the package root"],
)
def test_cycles_are_found(sources: dict[str, str], loop: str) -> None:
    (found,) = broken(shape.cycles, sources)
    assert re.match(r"aisotools/\S+\.py:\d+: import cycle ", found)
    assert loop in found


def test_a_diamond_is_no_cycle() -> None:
    sources = {
        "events.py": "",
        "schema.py": "import aisotools.events",
        "policy.py": "import aisotools.events",
        "session.py": "import aisotools.schema, aisotools.policy",
    }
    assert broken(shape.cycles, sources) == []


FEW = {"events.py": "", "schema.py": "", "sandbox/kernel.py": "", "sandbox/channel.py": ""}


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("session.py", "from aisotools import Effect"),
        ("session.py", "import aisotools"),
        ("sandbox/kernel.py", "from .. import Effect"),
        ("__init__.py", "from aisotools.events import Effect"),
        ("sandbox/__init__.py", "def f():\n    from aisotools.sandbox.kernel import x"),
        ("sandbox/__init__.py", "import aisotools.schema"),  # sandbox.channel may not import it
    ],
)
def test_roots_refuse(path: str, source: str) -> None:
    (found,) = broken(shape.roots, FEW | {path: source})
    assert found.startswith(f"aisotools/{path}:")
    assert "package root" in found


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("__init__.py", "def load(shell):\n    from aisotools.sandbox import kernel"),
        ("session.py", "from aisotools import events"),  # a module, reached through the root
        ("builtin/__init__.py", "from aisotools.events import Effect"),  # every leaf below may, too
    ],
)
def test_roots_allow(path: str, source: str) -> None:
    assert broken(shape.roots, FEW | {"builtin/files.py": "", path: source}) == []


@pytest.mark.parametrize(
    ("path", "source", "message"),
    [
        ("session.py", "import jupyter_client", "outside its door"),
        ("sandbox/kernel.py", "from ipykernel.kernelbase import Kernel", "outside its door"),
        ("notebook/magics.py", "import anywidget", "outside its door"),
        ("transcript.py", "import nbclient", "outside its door"),
        ("schema.py", "def f():\n    import cloudpickle", "outside its door"),
        ("models/local.py", "import openai", "outside its door"),
        ("session.py", "from IPython import get_ipython", "outside its door"),
        ("session.py", "import leftpad", "has no door"),
    ],
)
def test_doors_refuse(path: str, source: str, message: str) -> None:
    (found,) = broken(shape.doors, {path: source})
    assert found.startswith(f"aisotools/{path}:")
    assert message in found


def test_doors_allow() -> None:
    sources = {
        "docstrings.py": "import json\nfrom griffe import Docstring\nimport pydantic",
        "cli.py": "import nbformat",
        "notebook/cards/approval.py": "import anywidget",
        "sandbox/front.py": "if TYPE_CHECKING:\n    import mcp\nimport ipykernel.kernelbase",
    }
    assert broken(shape.doors, sources) == []


def test_one_module_alone_holds_the_sanitiser() -> None:
    sources = {"notebook/a.py": "import nh3\nimport nh3", "notebook/b.py": "import nh3"}
    (found,) = broken(shape.doors, sources)
    assert found.startswith("aisotools/notebook/b.py:1: nh3 is already imported by notebook.a")


def test_sizes() -> None:
    body = "\n".join(f"    x = {n}" for n in range(shape.FUNCTION_LINES))
    docstring = '    """One.\n\n    Two.\n    """'
    sources = {
        "events.py": "\n" * shape.MODULE_LINES,
        "schema.py": "\n" * (shape.MODULE_LINES + 1),
        "policy.py": f"def long():\n{docstring}\n{body}",
        "shell.py": f"async def fits():\n{docstring}\n" + body.partition("\n")[2],
    }
    found = broken(shape.sizes, sources)
    assert len(found) == 2
    assert found[0].startswith(
        f"aisotools/schema.py:{shape.MODULE_LINES + 1}: {shape.MODULE_LINES + 1} lines"
    )
    assert found[1].startswith(f"aisotools/policy.py:1: long has {shape.FUNCTION_LINES + 1} lines")


def test_docstrings() -> None:
    source = '''
        """A module."""
        class Bare:
            def method(self): ...
            def _private(self): ...
            @property
            def p(self):
                """A value."""
            @p.setter
            def p(self, value): ...
        if True:
            async def bare(): ...
        def documented():
            """Say it."""
            def inner(): ...
        '''
    found = broken(shape.docstrings, {"__init__.py": '"""Root."""', "events.py": source, "schema.py": ""})
    assert [(line.split(":")[0], line.split(":")[1], line.split(":")[2].split()[0]) for line in found] == [
        ("aisotools/events.py", "3", "Bare"),
        ("aisotools/events.py", "4", "method"),
        ("aisotools/events.py", "12", "bare"),
        ("aisotools/schema.py", "1", "the"),
    ]


@pytest.mark.parametrize(
    ("source", "fine"),
    [
        ("try:\n    x\nexcept:\n    pass", False),
        ("try:\n    x\nexcept Exception:\n    pass", False),
        ("try:\n    x\nexcept (ValueError, BaseException):\n    ...", False),
        ("for y in x:\n    try:\n        x\n    except Exception as e:\n        continue", False),
        ("with contextlib.suppress(Exception):\n    x", False),
        ("with suppress(OSError):\n    x", True),
        ("try:\n    x\nexcept ValueError:\n    pass", True),
        ("try:\n    x\nexcept Exception as e:\n    report(e)", True),
    ],
)
def test_swallowing(source: str, fine: bool) -> None:
    assert (broken(shape.swallowing, {"events.py": source}) == []) is fine


MARK = "#"  # so that the checker does not take these for exemptions of this file


@pytest.mark.parametrize(
    ("comment", "message"),
    [
        (" noqa", "name the code"),
        (" noqa - because it is late", "name the code"),
        (" type: ignore", "name the code"),
        (" type: ignore  # the stubs are wrong", "name the code"),
        (" type: ignore[arg-type]", "say why"),
        (" noqa: S101", "say why"),
        (" ruff: noqa", "name the code"),
        (" pragma: no cover", "say why"),
        (" type: ignore[arg-type]  # the stubs are wrong", ""),
        (" noqa: S101, E501 - shown as it is", ""),
        (" fmt: skip - a table", ""),
        (" says why: a type is ignored here", ""),
    ],
)
def test_exemptions(comment: str, message: str) -> None:
    found = broken(shape.exemptions, {"events.py": f"x = 1  {MARK}{comment}"})
    assert len(found) == bool(message)
    assert all(message in line for line in found)


def test_names_under_type_checking_are_read() -> None:
    names = "from aisotools.events import Effect, ToolCall\n    from aisotools.a.b import c"
    root = f"if TYPE_CHECKING:\n    {names}\nelse:\n    from aisotools.d import e"
    module = shape.parse({"aisotools/__init__.py": root})[""]
    assert shape.typed_names(module) == {"Effect": "events", "ToolCall": "events", "c": "a.b"}
