"""The package keeps its shape: layers, doors, sizes, docstrings; and each rule is seen to fail."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

import aisotools
from tests import shape, sites

PROJECT = Path(__file__).resolve().parent.parent
HOME: dict[str, str] = aisotools._HOME


def joined(findings: list[str]) -> str:
    return "\n" + "\n".join(findings)


@pytest.fixture(scope="module")
def package() -> Iterator[shape.Package]:
    yield shape.read(PROJECT / "aisotools")
    shape.forget()


@pytest.fixture(scope="module")
def tests() -> Iterator[shape.Package]:
    yield shape.read(PROJECT / "tests")
    shape.forget()


@pytest.mark.parametrize("rule", [*shape.RULES, sites.uncommented], ids=lambda rule: rule.__name__)
def test_package(rule: shape.Rule, package: shape.Package) -> None:
    findings = [str(finding) for finding in rule(package)]
    assert not findings, joined(findings)


def test_the_package_root_holds_the_packages_and_nothing_else(package: shape.Package) -> None:
    entries = {path.name for path in (PROJECT / "aisotools").iterdir() if path.name != "__pycache__"}
    assert entries == {*shape.LAYERS, "__init__.py", "__main__.py", "py.typed", "kernelspec"}
    assert len(entries) <= shape.ROOT_ENTRIES


def test_every_module_has_a_test_of_its_own(package: shape.Package, tests: shape.Package) -> None:
    findings = [str(finding) for finding in shape.untested(package, tests)]
    assert not findings, "\n" + "\n".join(findings)


@pytest.mark.parametrize(
    "rule",
    [shape.swallowing, shape.exemptions, shape.words, shape.names_of_tests],
    ids=lambda rule: rule.__name__,
)
def test_tests(rule: shape.Rule, tests: shape.Package) -> None:
    findings = [str(finding) for finding in rule(tests)]
    assert not findings, joined(findings)


def test_configuration_gives_a_reason_for_every_exemption() -> None:
    text = (PROJECT / "pyproject.toml").read_text("utf-8")
    bare = [
        f"pyproject.toml:{number}: an exemption without a reason; say why after it"
        for number, line in enumerate(text.splitlines(), 1)
        if re.match(r'(  |"[\w/*.]+" = \[)"[A-Z]+\d*"', line) and "#" not in line
    ]
    assert not bare, joined(bare)


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
        ("core/events.py", "session.session"),
        ("tools/schema.py", "sandbox.host.sandbox"),
        ("policy/rules.py", "session.gate"),
        ("sandbox/host/sandbox.py", "builtin.shell"),
        ("notebook/render/results.py", "cli.main"),
        ("workspace/protected.py", "policy.rules"),
    ],
)
@pytest.mark.parametrize("form", ["from aisotools.{} import x", "def f():\n    import aisotools.{}"])
def test_layers_refuse(importer: str, imported: str, form: str) -> None:
    target = imported.replace(".", "/") + ".py"
    found = broken(shape.layers, {importer: form.format(imported), target: "x = 1"})
    assert len(found) == 1
    assert found[0].startswith(f"aisotools/{importer}:{form.count(chr(10)) + 1}: ")
    lower, upper = importer.partition("/")[0], imported.partition(".")[0]
    assert f"imports or names {imported}, but {upper} stands above {lower}" in found[0]


@pytest.mark.parametrize(
    ("importer", "source", "target"),
    [
        ("session/session.py", "from aisotools.core.events import x", "core/events.py"),
        ("tools/registry.py", "from aisotools.tools.schema import x", "tools/schema.py"),
        ("sandbox/host/sandbox.py", "from ..frames import x", "sandbox/frames.py"),
        (
            "cli/main.py",
            "def f():\n    from aisotools.notebook.kernel import kernel",
            "notebook/kernel/kernel.py",
        ),
        ("cli/main.py", "if TYPE_CHECKING:\n    from aisotools.session import session", "session/session.py"),
        ("session/session.py", "path = 'aisotools.tools.schema:x'", "tools/schema.py"),
        ("core/events.py", '"""See `aisotools.session.session`."""', "session/session.py"),  # a docstring
        ("core/events.py", "name = 'aisotools.toml'", "session/session.py"),  # no module
    ],
)
def test_layers_allow(importer: str, source: str, target: str) -> None:
    assert broken(shape.layers, {importer: source, target: "x = 1"}) == []


def test_layers_see_relative_imports_and_imports_by_name() -> None:
    sources = {
        "session/session.py": "",
        "sandbox/host/sandbox.py": "from ...session.session import x",
        "builtin/files.py": "import_module('aisotools.session.session')",
    }
    found = broken(shape.layers, sources)
    assert [line.partition(" ")[0] for line in found] == [
        "aisotools/sandbox/host/sandbox.py:1:",
        "aisotools/builtin/files.py:1:",
    ]


@pytest.mark.parametrize(
    "source",
    [
        "if TYPE_CHECKING:\n    from aisotools.session import session",
        "if typing.TYPE_CHECKING:\n    import aisotools.session.session",
        "if TYPE_CHECKING:\n    if sys.platform:\n        from ..session.session import Session",
        "if x:\n    pass\nelif TYPE_CHECKING:\n    from aisotools.session.session import Session",
        "load('aisotools.session.session')",
        "TOOLS = ('aisotools.session.session:Session', 'json')",
        "BOOT = 'import sys\\nfrom aisotools.session.session import Session'",
        "x = f'{y} aisotools.session.session.Session'",
    ],
)
def test_layers_refuse_what_is_only_named(source: str) -> None:
    (found,) = broken(shape.layers, {"core/events.py": source, "session/session.py": ""})
    assert "core.events imports or names session" in found


@pytest.mark.parametrize(
    ("source", "fine"),
    [
        ("importlib.import_module(name)", False),
        ("import_module(f'aisotools.{home}')", False),
        ("load = importlib.import_module", False),
        ("from importlib import import_module as load", False),
        ("__import__(name)", False),
        ("runpy.run_module(name)", False),
        ("pkgutil.resolve_name('aisotools.' + name)", False),
        ("importlib.import_module('json')", True),
        ("from importlib import import_module\nimport_module('json')", True),
    ],
)
def test_imports_by_name(source: str, fine: bool) -> None:
    assert (broken(shape.imports_by_name, {"core/types.py": source}) == []) is fine
    assert broken(shape.imports_by_name, {"cli/tools.py": source}) == [], "declared with its reason"


@pytest.mark.parametrize(
    ("source", "fine"),
    [
        ("A, B = 1, 2", False),
        ("A, B = range(2)", False),
        ("[A, B] = 1, 2", False),
        ("if x:\n    A, B = 1, 2", False),
        ("class C:\n    A, B = 1, 2", False),
        ("A = 1\nB = 2", True),
        ("PAIR = 1, 2", True),
        ("def f():\n    a, b = 1, 2", True),
    ],
)
def test_constants(source: str, fine: bool) -> None:
    assert (broken(shape.constants, {"core/types.py": source}) == []) is fine


@pytest.mark.parametrize(
    ("source", "fine"),
    [
        ("def _find(): ...", False),
        ("if x:\n    def _find(): ...", False),
        ("class _Part: ...", False),
        ("_LIMIT = 1", False),
        ("_limit: int = 1", False),
        ("def _find(): ...\n_find()", True),
        ("def _find(): ...\nTABLE = {'find': _find}", True),
        ("class _Part: ...\ndef f(part: '_Part') -> None: ...", True),
        ("_LIMIT = 1\nCODE = 'import m; m._LIMIT'", True),
        ("def find(): ...\nLIMIT = 1", True),
        ("class C:\n    def _called_by_a_framework(self): ...", True),
        ("def __getattr__(name): ...\n__all__ = ()\n_ = 1", True),
    ],
)
def test_unused(source: str, fine: bool) -> None:
    assert (broken(shape.unused, {"core/types.py": source}) == []) is fine


@pytest.mark.parametrize(
    ("docstring", "function", "anything"),
    [
        ("Return it.", True, True),
        ("True if it is open.", True, True),
        ("The number of calls.", True, True),
        ("What it does.", False, True),
        ("Whether it is open.", False, True),
        ("Who is asked.", False, True),
        ("How many there are.", False, True),
        ("Be this one.", False, True),
        ("It does this.", False, True),
        ("Something that is called.", False, True),
        ("Nothing much.", False, False),
        ("Nothing.", False, False),
        ("Prepare.", False, False),
        ("Howitzers go here.", True, True),
    ],
)
def test_contracts(docstring: str, function: bool, anything: bool) -> None:
    form = '{0} x{1}:\n    """{2}"""'
    for kind, fine in (("def", function), ("async def", function), ("class", anything)):
        source = form.format(kind, "" if kind == "class" else "()", docstring)
        assert (broken(shape.contracts, {"core/types.py": source}) == []) is fine, source
    assert (broken(shape.contracts, {"core/types.py": f'"""{docstring}"""'}) == []) is anything
    inner = f'class C:\n    def _x(self):\n        """{docstring}"""'
    assert (broken(shape.contracts, {"core/types.py": inner}) == []) is function


def test_tables_of_exceptions_hold_nothing_that_is_gone(package: shape.Package) -> None:
    assert list(shape.unused_declarations(package)) == []


def test_rows_that_allow_nothing_are_found() -> None:
    found = list(shape.unused_declarations(shape.parse({"aisotools/__init__.py": ""})))
    tables = {row.partition(":")[0] for row in found}
    assert tables == {
        *("FOREIGN_MEMBERS", "COMPUTED_MEMBERS", "NAMED_ABOVE", "IMPORTS_BY_NAME", "SHARED_NAMES", "DOORS")
    }


def test_layers_refuse_a_module_beside_the_packages() -> None:
    (found,) = broken(shape.layers, {"utils.py": ""})
    assert "utils lies in none of the packages" in found


@pytest.mark.parametrize(
    ("sources", "loop"),
    [
        (
            {
                "tools/registry.py": "import aisotools.tools.schema",
                "tools/schema.py": "import aisotools.tools.registry",
            },
            "tools.registry",
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
        "core/types.py": "",
        "tools/schema.py": "import aisotools.core.types",
        "policy/rules.py": "import aisotools.core.types",
        "session/session.py": "import aisotools.tools.schema, aisotools.policy.rules",
    }
    assert broken(shape.cycles, sources) == []


FEW = {"core/types.py": "", "tools/schema.py": "", "sandbox/limits.py": "", "builtin/files.py": ""}


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("session/session.py", "from aisotools import Effect"),
        ("session/session.py", "import aisotools"),
        ("session/session.py", "from aisotools.sandbox import Limits"),
        ("sandbox/host/sandbox.py", "from ... import Effect"),
        ("__init__.py", "from aisotools.core.types import Effect"),
        ("sandbox/__init__.py", "from aisotools.sandbox.limits import x"),
        ("builtin/__init__.py", "from aisotools.session.session import x"),  # a table, but of what lies below
    ],
)
def test_roots_refuse(path: str, source: str) -> None:
    (found,) = broken(shape.roots, FEW | {"session/session.py": "", path: source})
    assert found.startswith(f"aisotools/{path}:")
    assert "package root" in found


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("__init__.py", "def load(shell):\n    from aisotools.sandbox import limits"),
        ("session/session.py", "from aisotools.core import types"),  # a module, reached through the root
        ("session/session.py", "from aisotools.builtin import builtin_tools"),  # a table
        ("builtin/__init__.py", "from aisotools.core.types import Effect"),
    ],
)
def test_roots_allow(path: str, source: str) -> None:
    assert broken(shape.roots, FEW | {path: source}) == []


@pytest.mark.parametrize(
    ("path", "source", "message"),
    [
        ("session/session.py", "import jupyter_client", "outside its door"),
        ("sandbox/host/sandbox.py", "from ipykernel.kernelbase import Kernel", "outside its door"),
        ("notebook/magics/session.py", "import anywidget", "outside its door"),
        ("agent/transcript/notebook.py", "import nbclient", "outside its door"),
        ("tools/schema.py", "def f():\n    import cloudpickle", "outside its door"),
        ("agent/models/local.py", "import openai", "outside its door"),
        ("session/session.py", "from IPython import get_ipython", "outside its door"),
        ("notebook/render/mime.py", "import nh3", "outside its door"),
        ("session/session.py", "import leftpad", "has no door"),
    ],
)
def test_doors_refuse(path: str, source: str, message: str) -> None:
    (found,) = broken(shape.doors, {path: source})
    assert found.startswith(f"aisotools/{path}:")
    assert message in found


def test_doors_allow() -> None:
    sources = {
        "tools/schema.py": "import json\nfrom griffe import Docstring\nimport pydantic",
        "cli/main.py": "import nbformat",
        "notebook/approval/widgets.py": "import anywidget",
        "notebook/kernel/kernel.py": "if TYPE_CHECKING:\n    import mcp\nimport ipykernel.kernelbase",
    }
    assert broken(shape.doors, sources) == []


def test_sizes() -> None:
    few, many = "\n" * (shape.SMALL_MODULE_LINES - 1), "\n" * shape.SMALL_MODULE_LINES
    sources = {
        "core/types.py": "\n" * shape.MODULE_LINES,
        "core/events.py": "\n" * (shape.MODULE_LINES + 1),
        "tools/slice.py": few,
        "tools/alone.py": few,
        "tools/shared.py": few,
        "tools/guard.py": "import mcp" + few,
        "tools/one.py": "from aisotools.tools import shared, slice" + many,
        "tools/two.py": "from aisotools.tools.shared import x" + many,
    }
    found = broken(shape.sizes, sources)
    assert [line.partition(":")[0] for line in found] == [
        "aisotools/core/events.py",
        "aisotools/tools/slice.py",
        "aisotools/tools/alone.py",
    ]
    assert f"{shape.MODULE_LINES + 1} lines, {shape.MODULE_LINES} are allowed" in found[0]
    assert "imported by tools.one alone" in found[1]
    assert "imported by nobody alone" in found[2]


@pytest.mark.parametrize(
    ("first", "second", "finding"),
    [
        ("class Limits: ...", "def f():\n    class Limits: ...", "2: class Limits"),
        ("class State: ...", "State = Literal['a', 'b']", "1: alias State"),
        ("State = int", "State: TypeAlias = str", "1: alias State"),
        ("if x:\n    State = int\nelse:\n    State = str", "", ""),
        ("class _State: ...", "_State = tuple[int, int]", "1: alias _State"),
        ("def find(): ...", "async def find(): ...", "1: function find"),
        (
            "def find(): ...",
            "try:\n    import a\nexcept ImportError:\n    def find(): ...",
            "4: function find",
        ),
        ("def _find(): ...", "def _find(): ...", ""),  # a private helper means something in its module alone
        ("@overload\ndef find(x: int): ...\ndef find(x): ...", "class C:\n    def find(self): ...", ""),
        ("def outer():\n    def find(): ...", "def find(): ...", ""),
        ("T = TypeVar('T')", "T = TypeVar('T')", ""),
        ("LIMIT = 1", "LIMIT = 2", ""),
        ("def main(): ...", "def main(): ...", ""),
        ("def run(): ...", "def run(): ...", "1: function run"),  # the command line's name, elsewhere
    ],
)
def test_meanings(first: str, second: str, finding: str) -> None:
    found = broken(shape.meanings, {"core/types.py": first, "tools/schema.py": second})
    assert len(found) == bool(finding), found
    assert all(f":{finding} is defined at aisotools/" in line for line in found)


def test_a_class_is_defined_once_even_in_one_module() -> None:
    (found,) = broken(shape.meanings, {"core/types.py": "class A: ...\nif x:\n    class A: ..."})
    assert found == (
        "aisotools/core/types.py:3: class A is defined at aisotools/core/types.py:1 too; "
        "give one another name"
    )


def test_names_of_the_command_line_are_shared_within_it() -> None:
    sources = {"cli/log.py": "def run(): ...", "cli/replay.py": "def run(): ..."}
    assert broken(shape.meanings, sources) == []
    assert len(broken(shape.meanings, sources | {"core/types.py": "def run(): ..."})) == 1


@pytest.mark.parametrize(
    ("name", "fine"),
    [
        ("test_what_is_left", False),
        ("test_whatever_comes", False),
        ("test_who", False),
        ("test_it_ends", False),
        ("test_the_server_ends", True),
        ("test_items", True),
        ("test_whole_lines", True),
        ("what_is_left", True),  # no test
    ],
)
def test_names_of_tests(name: str, fine: bool) -> None:
    found = broken(shape.names_of_tests, {"core/types.py": f"class C:\n    async def {name}(self): ..."})
    assert (found == []) is fine


def test_untested() -> None:
    package = shape.parse(
        {
            "aisotools/__init__.py": "",
            "aisotools/core/__init__.py": "",
            "aisotools/core/types.py": "",
            "aisotools/core/events.py": "",
            "aisotools/core/messages.py": "",
        }
    )
    tests = shape.parse(
        {
            "tests/core/test_types.py": "from aisotools.core.types import Effect",
            "tests/core/test_events.py": "from aisotools.core.types import Effect",
        }
    )
    assert [str(finding) for finding in shape.untested(package, tests)] == [
        "tests/core/test_events.py:1: it does not import aisotools.core.events, which it is the test of",
        "aisotools/core/messages.py:1: it has no test of its own; write tests/core/test_messages.py",
    ]


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
    found = broken(
        shape.docstrings,
        {
            "__init__.py": '"""Root."""',
            "core/__init__.py": '"""Core."""',
            "tools/__init__.py": '"""Tools."""',
            "core/types.py": source,
            "tools/schema.py": "",
        },
    )
    assert [(line.split(":")[0], line.split(":")[1], line.split(":")[2].split()[0]) for line in found] == [
        ("aisotools/core/types.py", "3", "Bare"),
        ("aisotools/core/types.py", "4", "method"),
        ("aisotools/core/types.py", "12", "bare"),
        ("aisotools/tools/schema.py", "1", "the"),
    ]


def test_a_method_that_its_protocol_documents_needs_no_docstring() -> None:
    protocol = '"""A."""\nclass Asker(Protocol[T]):\n    """It."""\n    def ask(self):\n        """Ask."""\n'
    source = (
        '"""B."""\nclass Card(Asker[int]):\n    """It."""\n    def ask(self): ...\n    def more(self): ...\n'
    )
    documented = {"__init__.py": '"""Root."""', "core/__init__.py": '"""Core."""'}
    found = broken(shape.docstrings, documented | {"core/types.py": protocol, "core/events.py": source})
    assert found == ["aisotools/core/events.py:5: more has no docstring; say what it does"]


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
    assert (broken(shape.swallowing, {"core/types.py": source}) == []) is fine


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
    found = broken(shape.exemptions, {"core/types.py": f"x = 1  {MARK}{comment}"})
    assert len(found) == bool(message)
    assert all(message in line for line in found)


def test_names_under_type_checking_are_read() -> None:
    names = (
        "from aisotools.core.types import Effect as Effect, ToolCall\n    from aisotools.a.b import c as c"
    )
    root = f"if TYPE_CHECKING:\n    {names}\nelse:\n    from aisotools.d import e"
    module = shape.parse({"aisotools/__init__.py": root})[""]
    assert shape.typed_names(module) == {"Effect": "core.types", "c": "a.b"}


@pytest.mark.parametrize(
    ("source", "fine"),
    [
        ('x = getattr(y, "name", None)', False),
        ('x = getattr(y, "name", default)', False),
        ('x = getattr(y, "name")', True),
        ("x = getattr(y, name, None)", False),
        ("x = getattr(y, name)", False),
        ("x = getattr(y, 'a' + name)", False),
        ("x = {name: getattr(y, name, None) for name in NAMES}", False),
        ("x = builtins.getattr(y, name)", False),
        ('if hasattr(y, "name"): ...', False),
        ("if hasattr(y, name): ...", False),
        ('if hasattr(y, "__len__"): ...', True),
        ("x = [getattr(y, field.name) for field in dataclasses.fields(y)]", True),
        ("for field in fields(y): getattr(y, field.name)", True),
        ("for field in things: getattr(y, field.name)", False),
        ("for field in fields(y): pass\nfor field in things: getattr(y, field.name)", False),
        ("x = getattr(import_module(name), attribute)", True),
        ('x = getattr(y, "__module__", None)', True),
    ],
)
def test_undeclared(source: str, fine: bool) -> None:
    assert (broken(shape.undeclared, {"core/types.py": source}) == []) is fine


@pytest.mark.parametrize(
    ("source", "fine"),
    [
        ("told = 1", False),
        ("def f(told): ...", False),
        ("x.gave", False),
        ("f(told=1)", False),
        ("def told(): ...", False),
        ("for told in x: ...", False),
        ("async def heard(): ...", False),
        ("self._told = 1", False),
        ("_ran = 1", False),
        ("def f(*, kept=None): ...", False),
        ("class C:\n    said: str", False),
        ("wish_ = {}", False),
        ("with open(x) as ticket: ...", False),
        ("import json as told", False),
        ("try:\n    x\nexcept E as said:\n    raise", False),
        ("match x:\n    case [*kept]: ...", False),
        ("match x:\n    case {'a': ran}: ...", False),
        ("spoken['ran'] = row.was_run", True),
        ("x = 'told'", True),
        ("retold = 1", True),
    ],
)
def test_words(source: str, fine: bool) -> None:
    assert (broken(shape.words, {"core/types.py": source}) == []) is fine


@pytest.mark.parametrize(
    ("path", "fine"),
    [
        ("core/utils.py", False),
        ("notebook/magics/awaited.py", False),
        ("core/misc/__init__.py", False),
        ("core/path_helpers.py", False),
        ("_common.py", False),
        ("core/types.py", True),
        ("policy/shell/coreutils.py", True),
    ],
)
def test_words_in_names_of_modules(path: str, fine: bool) -> None:
    assert (broken(shape.words, {path: "x = 1"}) == []) is fine
