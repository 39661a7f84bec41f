"""Functions arrive where nothing of the caller's can be imported: tried in a process of its own."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import importlib.util
import subprocess
import sys
import sysconfig
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import cloudpickle
import pytest
from pydantic import BaseModel, Field
from pydantic_core import from_json

from aisotools.core.exceptions import SignatureError
from aisotools.core.protocols import ToolContext
from aisotools.tools.function import FunctionTool, tool
from aisotools.tools.serialization import MAX_PAYLOAD_BYTES, is_self_contained, pickle_by_value

OFFSET = 5


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Point(BaseModel):
    x: int
    y: int = 0
    colour: Colour = Colour.RED
    tags: list[str] = Field(default_factory=list)


@dataclasses.dataclass
class Size:
    width: int
    height: int = 1
    parts: list[int] = dataclasses.field(default_factory=list)


def shifted(x: int) -> int:
    return x + OFFSET


ELSEWHERE = """
import asyncio, pickle, sys
from aisotools.core.protocols import ToolContext
from pydantic_core import from_json, to_json
tools = pickle.load(sys.stdin.buffer)
for tool, arguments in tools:
    tool = pickle.loads(tool)
    result = asyncio.run(tool.execute(from_json(arguments), ToolContext(call_id="c1")))
    print(to_json(result.value if not result.is_error else result.content).decode())
"""


def run_elsewhere(*calls: tuple[FunctionTool[..., Any], str]) -> list[Any]:
    """What tools give in a process that can import only what is installed, `aisotools` among it."""
    import pickle

    sent = pickle.dumps([(pickle_by_value(t.name, t), arguments) for t, arguments in calls])
    run = subprocess.run(
        [sys.executable, "-P", "-c", ELSEWHERE], input=sent, capture_output=True, cwd="/", check=False
    )
    assert run.returncode == 0, run.stderr.decode()
    return [from_json(line) for line in run.stdout.splitlines()]


def load(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def helpers(tmp_path: Path) -> Iterator[ModuleType]:
    """A module of the user's own, which lies where no worker may read."""
    path = tmp_path / "my_helpers.py"
    path.write_text(
        "FACTOR = 3\n\ndef inner(x):\n    return x * FACTOR\n\ndef times(x):\n    return inner(x)\n"
    )
    yield load(path, "my_helpers")
    del sys.modules["my_helpers"]


def test_everything_a_function_refers_to_travels_along(helpers: ModuleType) -> None:
    times, bonus = helpers.times, 7

    @tool
    def model(point: Point, size: Size, colour: Colour = Colour.BLUE) -> Point:
        return Point(x=shifted(point.x) + size.height, colour=colour, tags=[colour.name])

    @tool
    def by_name(x: int) -> int:
        return int(times(x))

    @tool
    def by_module(x: int) -> int:
        return int(helpers.times(x))

    @tool
    def closure(x: Annotated[int, Field(ge=0)], context: ToolContext) -> tuple[int, str]:
        return x + bonus, context.call_id

    @tool
    async def asynchronous(x: "int | None" = None) -> str:  # noqa: UP037 - text inside text
        return f"got {x}"

    given = '{"point": {"x": 1}, "size": {"width": 2}}'
    assert run_elsewhere(
        (model, given),
        (by_name, '{"x": 2}'),
        (by_module, '{"x": 2}'),
        (closure, '{"x": 1}'),
        (asynchronous, "{}"),
    ) == [
        {"x": 7, "y": 0, "colour": "blue", "tags": ["BLUE"]},
        6,
        6,
        [8, "c1"],
        "got None",
    ]


def test_a_cell_of_a_notebook_travels() -> None:
    cell = """
from __future__ import annotations
from pydantic import BaseModel
from aisotools.tools.function import tool

class Person(BaseModel):
    name: str

def greet(person):
    return f"Hello {person.name}"

@tool
def hello(person: Person) -> str:
    return greet(person)
"""
    names: dict[str, Any] = {"__name__": "__main__", "In": ["", "..."], "get_ipython": lambda: None}
    exec(compile(textwrap.dedent(cell), "<cell>", "exec"), names)
    assert run_elsewhere((names["hello"], '{"person": {"name": "Ada"}}')) == ["Hello Ada"]


def test_a_script_travels(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
import enum, sys
from dataclasses import dataclass, field
from pydantic import BaseModel
from aisotools.tools.function import tool
from aisotools.tools.serialization import pickle_by_value

class Unit(enum.Enum):
    METRE = "m"

@dataclass
class Size:
    width: int
    units: list[Unit] = field(default_factory=lambda: [Unit.METRE])

class Box(BaseModel):
    size: Size
    next: "Box | None" = None

@tool
def width(box: Box, unit: Unit = Unit.METRE) -> dict[str, int]:
    assert box.size.units == [unit]
    return {unit.value: box.size.width}

sys.stdout.buffer.write(pickle_by_value("width", width))
"""),
    )
    payload = subprocess.run([sys.executable, script], capture_output=True, check=True).stdout
    run = subprocess.run(
        [sys.executable, "-P", "-c", ELSEWHERE],
        input=__import__("pickle").dumps([(payload, '{"box": {"size": {"width": 2}, "next": null}}')]),
        capture_output=True,
        cwd="/",
        check=True,
    )
    assert from_json(run.stdout) == {"m": 2}


def test_installed_functions_are_sent_by_name() -> None:
    @tool
    def installed(x: str) -> str:
        return sysconfig.get_platform() + textwrap.dedent(x)

    assert len(pickle_by_value("installed", installed)) < 2000


def test_a_function_is_sent_as_it_is_now() -> None:
    names: dict[str, Any] = {"helper": lambda: 1}
    exec("def ask() -> int:\n    return helper()", names)
    asking = tool(names["ask"])
    first, same = asking.shipment(), asking.shipment()
    names["helper"] = lambda: 2
    second = asking.shipment()
    assert first is not None
    assert second is not None
    assert first == same
    assert first.key != second.key


def test_value_that_cannot_be_sent_is_reported() -> None:
    lock = threading.Lock()

    @tool
    def locked() -> bool:
        return lock.locked()

    with pytest.raises(
        SignatureError, match="Tool locked cannot be sent to the sandbox: TypeError"
    ) as raised:
        locked.shipment()
    assert "Create that inside the function, or use runs_in='host'" in str(raised.value)


def test_payload_that_is_too_large_is_reported() -> None:
    data = bytes(MAX_PAYLOAD_BYTES)

    @tool
    def heavy() -> int:
        return len(data)

    with pytest.raises(SignatureError, match="Save the data to a file in the workspace"):
        heavy.shipment()


def test_cloudpickle_is_left_as_it_was(helpers: ModuleType) -> None:
    cloudpickle.register_pickle_by_value(helpers)
    before = cloudpickle.list_registry_pickle_by_value()
    try:
        pickle_by_value("times", tool(name="times")(lambda: helpers.times(1)))
        assert cloudpickle.list_registry_pickle_by_value() == before
    finally:
        cloudpickle.unregister_pickle_by_value(helpers)


def test_many_threads_may_pack_at_once(helpers: ModuleType) -> None:
    payloads: list[bytes] = []

    @tool
    def times(x: int) -> int:
        return int(helpers.times(x))

    def pack() -> None:
        payloads.extend(pickle_by_value("times", times) for _ in range(20))

    threads = [threading.Thread(target=pack) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(payloads) == 160
    assert all(b"FACTOR" in payload for payload in payloads)


async def test_a_script_uses_its_own_types_in_the_real_sandbox(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        from __future__ import annotations
        import asyncio, enum, sys
        from dataclasses import dataclass, field
        from pydantic import BaseModel
        from aisotools import AllowAll, Session, ToolRegistry, tool

        class Unit(enum.Enum):
            METRE = "m"

        @dataclass
        class Size:
            width: int
            units: list[Unit] = field(default_factory=lambda: [Unit.METRE])

        class Box(BaseModel):
            size: Size
            inner: Box | None = None

        BONUS = 1

        def bonus() -> int:
            return BONUS

        @tool
        def width(box: Box, unit: Unit = Unit.METRE) -> Box:
            assert isinstance(box, Box) and box.size.units == [unit], box
            return Box(size=Size(box.size.width + bonus()), inner=box)

        async def main() -> None:
            global BONUS
            registry = ToolRegistry([width])
            async with Session(sys.argv[1], registry, approver=AllowAll()) as session:
                for BONUS in (1, 10):
                    result = await session.call("width", {"box": {"size": {"width": "2"}}})
                    assert not result.is_error, result.content
                    print(result.value["size"]["width"], result.value["inner"]["size"]["units"])

        asyncio.run(main())
        """),
    )
    home = {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state"), "PATH": "/usr/bin:/bin"}
    run = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, str(script), str(tmp_path / "workspace")],
        capture_output=True,
        text=True,
        env=home,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout == "3 ['m']\n12 ['m']\n"


LIMIT = 3


def plain(a: int, b: str = "x", *, c: float | None = None) -> int:
    return len(b) + a


def bare(a, b=1):  # type: ignore[no-untyped-def]  # noqa: ANN201 - no annotations is the point
    return [n for n in range(a) if n > b]


def with_global(a: int) -> int:
    return a + LIMIT


def with_nested_global(a: int) -> list[int]:
    return [n for n in range(a) if n < LIMIT]


def with_list(a: list[int] = []) -> int:  # noqa: B006 - a default that could change is the point
    return len(a)


def with_type(a: Path) -> str:
    return str(a)


def closing_over(limit: int) -> object:
    def inner(a: int) -> int:
        return a + limit

    return inner


def with_attribute(a: int) -> int:
    return a


with_attribute.seen = []  # type: ignore[attr-defined]  # the point


@pytest.mark.parametrize(
    ("function", "alone"),
    [
        (bare, True),
        (plain, False),  # `float | None` is not a plain annotation
        (with_global, False),
        (with_nested_global, False),
        (with_list, False),
        (with_type, False),
        (closing_over(1), False),
        (with_attribute, False),
        (len, False),
    ],
)
def test_only_what_refers_to_nothing_stands_alone(function: object, alone: bool) -> None:
    assert is_self_contained(function) is alone
