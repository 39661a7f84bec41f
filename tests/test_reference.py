"""The pages under `notebooks/reference/` say what is so, and every public name explains itself."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import aisotools
from tests import reference, shape


@pytest.mark.parametrize("page", reference.PAGES)
def test_pages_have_not_drifted(page: str) -> None:
    path = reference.FOLDER / page
    assert path.is_file(), "write it: python -m tests.reference"
    fresh = reference.PAGES[page]()
    assert path.read_text("utf-8") == fresh, (
        f"{page} is out of date; write it again: python -m tests.reference"
    )


def public() -> Iterator[tuple[str, object]]:
    """Every public name, and everything that it offers."""
    for name in aisotools.__all__:
        if name == "__version__":
            continue
        thing = getattr(aisotools, name)
        yield name, thing
        if inspect.isclass(thing):
            yield from ((f"{name}.{member}", value) for member, value in reference.public_members(thing))


def test_every_public_name_is_explained() -> None:
    bare = [name for name, thing in public() if not (inspect.getdoc(thing) or "").strip()]
    assert not bare, f"without a docstring: {', '.join(bare)}"


def test_every_parameter_of_a_public_function_is_explained() -> None:
    """A docstring that explains parameters explains all of them; a class explains them where it is made."""
    left_out = []
    for name, thing in public():
        function = getattr(thing, "__func__", thing)
        if not inspect.isfunction(function) or "Args:" not in (inspect.getdoc(function) or ""):
            continue
        docstring = inspect.getdoc(function) or ""
        left_out += [
            f"{name}({parameter})"
            for parameter in inspect.signature(function).parameters
            if parameter not in {"self", "cls"}
            and not re.search(rf"^ +\*{{0,2}}{parameter}:", docstring, re.MULTILINE)
        ]
    assert not left_out


def test_every_name_stands_in_one_chapter() -> None:
    listed = [name for _, names in reference.chapters() for name in names]
    assert sorted(listed) == sorted(set(aisotools.__all__) - {"__version__"})


def test_the_diagram_shows_the_real_imports() -> None:
    """Every import between two boxes is an arrow, or follows from arrows; no arrow leads up."""
    package = reference.package()
    box = reference.groups(package)
    drawn = re.findall(r"^  (\w+) --> (\w+)$", reference.architecture_page(), re.MULTILINE)
    follows = closed(set(drawn))
    assert not any(one == other for one, other in follows), "the arrows go round in a circle"
    ids = {name: re.sub(r"\W", "_", name) for name in box.values()}
    for name, module in package.items():
        for target, line in shape._inner(module):
            one, other = box.get(name), box.get(target)
            if one is None or other is None or one == other:
                continue
            assert (ids[one], ids[other]) in follows, f"{module.path}:{line} is not in the diagram"


MOVED_ROW = re.compile(r"\| `(aisotools[\w.]*)` \| (removed|`aisotools[\w.]+`(?:, `aisotools[\w.]+`)*) \|")


def moved_modules() -> Iterator[tuple[str, list[str]]]:
    """The rows of the page of moved modules: the path before, and the paths now; none if it was removed."""
    page = (reference.FOLDER / "moved-modules.md").read_text("utf-8")
    for line in page.partition("|---|---|\n")[2].splitlines():
        row = MOVED_ROW.fullmatch(line)
        assert row is not None, f"not a row of the table: {line}"
        yield row[1], re.findall(r"`(.+?)`", row[2])


def path_of(module: str) -> Path | None:
    """The file of a module or package of ours, or None."""
    base = reference.PROJECT.joinpath(*module.split("."))
    files = (base.with_name(f"{base.name}.py"), base / "__init__.py")
    return next((file for file in files if file.is_file()), None)


def test_every_module_that_moved_is_where_the_page_says() -> None:
    rows = list(moved_modules())
    assert len(rows) > 290
    assert [before for before, _ in rows] == sorted({before for before, _ in rows}), "one row each, in order"
    lost = [f"{before}: {name}" for before, now in rows for name in now if path_of(name) is None]
    assert not lost, f"correct notebooks/reference/moved-modules.md: {', '.join(lost)}"


def test_no_module_that_moved_is_still_there() -> None:
    """What has the old path now, if anything, is a package."""
    there = [before for before, _ in moved_modules() if (path := path_of(before)) and path.stem != "__init__"]
    assert not there, f"remove from notebooks/reference/moved-modules.md: {', '.join(there)}"


def test_a_module_that_does_not_exist_is_found() -> None:
    assert path_of("aisotools.session.gate") is not None
    assert path_of("aisotools.session") is not None
    assert path_of("aisotools.session.gates") is None


def test_every_name_in_the_walks_exists() -> None:
    assert len(reference.walk_references(reference.WALKS)) > 40
    missing = reference.missing_references(reference.WALKS)
    assert not missing, f"correct WALKS in tests/reference.py: {', '.join(missing)}"


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("session.gate.Gate.run", False),
        ("builtin.python", False),
        ("session.gates.Gate", True),
        ("session.gate.Gateway", True),
        ("session.gate.Gate.jump", True),
    ],
)
def test_a_name_that_does_not_exist_is_found(name: str, missing: bool) -> None:
    assert reference.missing_references(f"It calls `{name}` first.") == ([name] if missing else [])


def test_the_walks_pass_every_layer_that_a_call_needs() -> None:
    packages = {name.partition(".")[0] for name in reference.walk_references(reference.WALKS)}
    assert reference.WALKS in reference.architecture_page()
    assert packages >= {"core", "workspace", "tools", "policy", "sandbox", "builtin", "session", "notebook"}


def closed(arrows: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """The arrows and all that follows from them."""
    while more := {(a, d) for a, b in arrows for c, d in arrows if b == c} - arrows:
        arrows = arrows | more
    return arrows


def test_a_circle_is_seen() -> None:
    assert ("a", "a") in closed({("a", "b"), ("b", "c"), ("c", "a")})


def test_every_module_on_the_page_says_what_it_is_for() -> None:
    short = [name for name, one in reference.package().items() if len(reference.purpose(one).split()) < 3]
    assert [name for name in short if name in reference.groups(reference.package()) and "." in name] == []


@pytest.mark.parametrize(
    ("docstring", "purpose"),
    [
        ("Cut long output. Pure.\n\nMore of it.", "Cut long output"),
        ("Cut\nlong output.", "Cut long output"),
        ("Read `.gitignore` files.", "Read `.gitignore` files"),
        (f"Cut long output: {'and more ' * 20}.", "Cut long output"),
        (f"Cut long output {'and more ' * 20}.", f"Cut long output {'and more ' * 20}"),
    ],
)
def test_the_purpose_of_a_module(docstring: str, purpose: str) -> None:
    module = shape.parse({"aisotools/__init__.py": f'"""{docstring}"""\n'})[""]
    assert reference.purpose(module) == purpose
