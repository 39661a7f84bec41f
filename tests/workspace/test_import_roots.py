"""What a sandbox writes is never imported by the host: refused folders and blocked imports."""

from __future__ import annotations

import ast
import concurrent.futures
import importlib
import importlib.machinery
import importlib.util
import logging
import os
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import distributions
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest

from aisotools.core.exceptions import WorkspaceRefused
from aisotools.session.guards import ImportRootWatch
from aisotools.workspace import import_roots
from aisotools.workspace.import_roots import (
    OWN_IMPORTS,
    block_imports,
    refuse_import_root,
)

PACKAGE = Path(import_roots.__file__).resolve().parents[1]
Block = Callable[[Path], Callable[[], None]]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder that is an import root, and no other one near it."""
    place = tmp_path / "place"
    place.mkdir()
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return place


def folder(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    return path


def refusal(workspace: Path, environ: Mapping[str, str] | None = None) -> str:
    """Why `workspace` is refused; empty if it is not."""
    try:
        refuse_import_root(workspace, {} if environ is None else environ)
    except WorkspaceRefused as error:
        return str(error)
    return ""


# ---- in this process


def test_a_folder_below_an_import_root_will_do(place: Path) -> None:
    assert refusal(folder(place / "workspace" / "notes")) == ""
    assert refusal(folder(place / "results")) == ""
    assert refusal(folder(place / "not-a-name")) == ""


def test_the_current_folder_and_what_contains_it_are_refused(place: Path) -> None:
    message = refusal(place)
    assert "it is the current folder" in message
    assert f"will do: {str(place / 'workspace' / 'mine')!r}" in message
    assert "it contains the current folder" in refusal(place.parent)
    assert refusal(folder(place / "workspace" / "mine")) == "", "what it suggests is accepted"


@pytest.mark.parametrize("spelling", ["../link", "x/..", "."])
def test_the_spelling_of_the_workspace_does_not_matter(place: Path, spelling: str) -> None:
    (place.parent / "link").symlink_to(place)
    folder(place / "x")
    assert "it is the current folder" in refusal(Path(spelling))


@pytest.mark.parametrize("spelling", ["{0}/libraries", "{0}/libraries/", "{0}/link", "../libraries"])
def test_an_entry_of_sys_path_is_refused_however_it_is_spelled(place: Path, spelling: str) -> None:
    root = folder(place.parent / "libraries")
    (place.parent / "link").symlink_to(root)
    sys.path.append(spelling.format(place.parent))
    assert "it is an entry of sys.path" in refusal(root)


def test_a_folder_that_contains_an_entry_of_sys_path_is_refused(place: Path) -> None:
    inner = folder(place.parent / "outer" / "inner")
    sys.path.append(str(inner))
    assert "it contains an entry of sys.path" in refusal(inner.parent)
    archive = folder(place.parent / "archives") / "modules.zip"
    archive.write_bytes(b"")
    sys.path.append(str(archive))
    assert "it contains an entry of sys.path" in refusal(archive.parent)


@pytest.mark.parametrize("entry", [b"/nowhere", 3, None], ids=repr)
def test_an_entry_of_sys_path_that_is_no_text_is_named(place: Path, entry: object) -> None:
    workspace = folder(place / "workspace" / "mine")
    sys.path.append(place)  # type: ignore[arg-type]  # a path is taken as its text
    assert refusal(workspace) == ""
    sys.path.append(entry)  # type: ignore[arg-type]  # as a stranger does
    assert f"sys.path has the entry {entry!r}" in refusal(workspace)


@pytest.mark.parametrize("name", ["x-1.0.dist-info", "x.egg-info", "x.egg", "X.DIST-INFO"])
def test_a_folder_that_counts_as_an_installed_distribution_is_refused(place: Path, name: str) -> None:
    workspace = folder(place / name)
    points = f"[{name}]\nplanted = anything\n"
    inner = folder(workspace / "EGG-INFO") if name == "x.egg" else workspace
    (inner / "entry_points.txt").write_text(points)
    (inner / "METADATA").write_text("Name: x\nVersion: 1.0\n")
    obeyed = [str(workspace)] if name == "x.egg" else [str(place)]
    found = [point.name for one in distributions(path=obeyed) for point in one.entry_points]
    assert found == ["planted"], "unconfined, a program would load it"
    assert "for an installed distribution" in refusal(workspace)
    assert "for an installed distribution" in refusal(folder(workspace / "deeper"))
    assert refusal(folder(place / f"{name}s")) == ""


def test_an_entry_of_pythonpath_is_refused(place: Path) -> None:
    root = folder(place.parent / "more")
    environ = {"PYTHONPATH": f":/nowhere:{root}:"}
    assert "it is an entry of PYTHONPATH" in refusal(root, environ)
    assert refusal(folder(root / "data"), environ) == ""
    assert refusal(root) == ""


@pytest.mark.parametrize("init", ["__init__.py", "__init__.pyc", "__init__.so"])
def test_a_package_below_a_root_is_refused(place: Path, init: str) -> None:
    workspace = folder(place / "mine" / "data")
    assert refusal(workspace) == ""
    (place / "mine" / init).touch()
    assert f"mine/{init} makes a package of it" in refusal(workspace)
    (place / "mine" / init).unlink()
    (place / "mine" / "data" / init).touch()
    assert refusal(workspace) == "", "only the first folder below a root has the name"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("json", "the standard library"),
        ("pydantic", "aisotools imports"),
        ("smolagents", "aisotools imports"),
        ("pluggy", "is installed"),
        ("nearby", "nearby.py beside it"),
    ],
)
def test_a_folder_with_the_name_of_a_module_is_refused(place: Path, name: str, reason: str) -> None:
    (place / "nearby.py").touch()
    message = refusal(folder(place / name))
    assert f"it lies in the folder {name!r}" in message
    assert reason in message
    assert reason in refusal(folder(place / name / "deeper"))


def test_a_loaded_package_is_refused_wherever_it_was_loaded_from(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an editable install, whose folder need not be on `sys.path`."""
    source = folder(place.parent / "checkout" / "library_of_ours")
    (source / "__init__.py").touch()
    with monkeypatch.context() as patch:
        patch.syspath_prepend(str(source.parent))
        importlib.import_module("library_of_ours")
    try:
        assert "it lies in the package library_of_ours" in refusal(folder(source / "workspace"))
        assert "it is the package library_of_ours" in refusal(source)
        assert "it contains the package library_of_ours" in refusal(source.parent)
    finally:
        del sys.modules["library_of_ours"]


def test_a_finder_that_fails_is_passed_over(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        @staticmethod
        def find_spec(*_: object) -> None:
            raise ZeroDivisionError

    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    assert refusal(folder(place / "fine")) == ""
    assert "is installed" in refusal(folder(place / "pluggy"))


def test_a_current_folder_that_is_gone_is_no_root(place: Path) -> None:
    place.rmdir()
    assert refusal(folder(place.parent / "elsewhere")) == ""


def test_every_library_that_the_package_imports_is_listed() -> None:
    found = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                found.add(node.module.partition(".")[0])
    assert found - sys.stdlib_module_names == OWN_IMPORTS


# ---- looking again


def test_a_watch_looks_again_when_the_search_path_changes(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = folder(place.parent / "safe")
    watch = ImportRootWatch(workspace, {})
    watch.check()
    sys.path.append(str(workspace))
    with pytest.raises(WorkspaceRefused, match=r"is an entry of sys\.path"):
        watch.check()
    sys.path.pop()
    watch.check()
    monkeypatch.chdir(workspace)
    with pytest.raises(WorkspaceRefused, match="is the current folder"):
        watch.check()
    monkeypatch.chdir(place)
    watch.check()


# ---- no import out of an open workspace


@pytest.fixture
def block() -> Iterator[Block]:
    """Block imports from a folder until the test ends."""
    releases: list[Callable[[], None]] = []

    def start(workspace: Path) -> Callable[[], None]:
        releases.append(block_imports(workspace))
        return releases[-1]

    yield start
    for release in releases:
        release()


def plant(workspace: Path) -> Path:
    (workspace / "planted_module.py").write_text("value = 1")
    (folder(workspace / "planted_package") / "__init__.py").write_text("value = 1")
    return workspace


def forget() -> None:
    """Let the next import look for the planted modules again."""
    for name in [name for name in sys.modules if name.partition(".")[0] in {"ws", "planted_module"}]:
        del sys.modules[name]
    importlib.invalidate_caches()


@pytest.mark.parametrize("name", ["planted_module", "planted_package"])
def test_nothing_is_imported_from_an_open_workspace(
    place: Path, block: Block, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    workspace = plant(folder(place.parent / "open"))
    sys.path.insert(0, str(workspace))
    importlib.import_module(name)  # the control: without the block it is imported
    del sys.modules[name]
    release, again = block(workspace), block(workspace)
    with caplog.at_level(logging.WARNING), pytest.raises(ModuleNotFoundError):
        importlib.import_module(name)
    assert f"{name!r} was not imported from" in caplog.text
    again()
    again()
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(name)
    release()
    importlib.import_module(name)
    del sys.modules[name]
    # Our hook stays, once, and finds nothing: taking it out could make another thread pass over the next one.
    assert [repr(hook) for hook in sys.path_hooks].count(repr(import_roots._find_nothing_in_workspaces)) == 1


@pytest.mark.parametrize("way", ["chdir", "link", "below", "namespace"])
def test_no_way_to_the_workspace_leads_to_an_import(
    place: Path, monkeypatch: pytest.MonkeyPatch, block: Block, way: str
) -> None:
    workspace = plant(folder(place / "ws" / "open"))
    plant(folder(workspace / "below"))
    (place / "link").symlink_to(workspace)
    entry, name = {
        "chdir": ("", "planted_module"),
        "link": (str(place / "link"), "planted_module"),
        "below": (str(workspace / "below"), "planted_module"),
        "namespace": (str(place), "ws.open.planted_module"),
    }[way]
    if way == "chdir":
        monkeypatch.chdir(workspace)
    sys.path.insert(0, entry)
    importlib.import_module(name)  # the control
    forget()
    block(workspace)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(name)
    forget()


@pytest.mark.parametrize("moved", ["the workspace", "a folder above it", "twice", "below another"])
@pytest.mark.parametrize("way", ["entry", "before", "chdir", "link", "below", "namespace", "archive", "open"])
def test_a_workspace_that_a_person_renames_is_imported_from_by_no_way(
    place: Path, monkeypatch: pytest.MonkeyPatch, block: Block, way: str, moved: str
) -> None:
    workspace = plant(folder(place / "above" / "open"))
    plant(folder(workspace / "below"))
    with zipfile.ZipFile(workspace / "a.zip", "w") as archive:
        archive.writestr("planted_module.py", "value = 1")
    now, steps = {
        "the workspace": (place / "ws", [(workspace, place / "ws")]),
        "a folder above it": (place / "ws" / "open", [(place / "above", place / "ws")]),
        "twice": (place / "ws", [(workspace, place / "once"), (place / "once", place / "ws")]),
        "below another": (folder(place / "ws") / "inner", [(workspace, place / "ws" / "inner")]),
    }[moved]
    opened = os.open(workspace, os.O_RDONLY)
    entry, name = {
        "entry": (str(now), "planted_module"),
        "before": (str(now), "planted_module"),
        "chdir": ("", "planted_module"),
        "link": (str(place / "link" / "below"), "planted_module"),
        "below": (str(now / "below"), "planted_module"),
        "namespace": (str(place), f"{'.'.join(now.relative_to(place).parts)}.planted_module"),
        "archive": (str(now / "a.zip"), "planted_module"),
        "open": (f"/proc/self/fd/{opened}", "planted_module"),
    }[way]
    release = block(workspace)
    if way == "before":  # what the import system has learned of it
        sys.path.insert(0, entry)
        assert importlib.util.find_spec("planted_other") is None
    for source, target in steps:
        source.rename(target)
    (place / "link").symlink_to(now)
    if way == "chdir":
        monkeypatch.chdir(now)
    sys.path.insert(0, entry)
    importlib.invalidate_caches()
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(name)
    release()
    forget()
    sys.path_importer_cache.clear()
    assert importlib.import_module(name).value == 1, "the control"
    forget()
    os.close(opened)


@pytest.mark.parametrize("way", ["finder", "entry", "chdir", "dotted name", "none"])
def test_closed_workspace_is_imported_from_only_where_the_person_leads_there(
    place: Path, monkeypatch: pytest.MonkeyPatch, block: Block, finders: list[Any], way: str
) -> None:
    sys.path.insert(0, "")
    workspace = plant_mapped(plant(folder(place / "ws" / "open")))
    assert refusal(workspace) == ""
    block(workspace)()
    name = {"finder": "mapped_module", "dotted name": "ws.open.planted_module"}.get(way, "planted_module")
    if way == "finder":
        finders.append(make_mapping(workspace, "by hand"))
    elif way == "entry":
        sys.path.append(str(workspace))
    elif way == "chdir":
        monkeypatch.chdir(workspace)
    importlib.invalidate_caches()
    if way == "none":
        for missing in (name, "open.planted_module", "mapped_module"):
            with pytest.raises(ModuleNotFoundError):
                importlib.import_module(missing)
    else:
        assert importlib.import_module(name).value == 1
    forget()
    forget_mapped()


@pytest.mark.parametrize("way", ["by its path", "hard link"])
def test_a_file_that_the_program_names_itself_is_loaded(place: Path, block: Block, way: str) -> None:
    """An exception that README makes: no finder locates it, or it lies where the person has put it."""
    workspace = plant(folder(place / "open"))
    file = workspace / "planted_module.py"
    block(workspace)
    if way == "hard link":
        sys.path.insert(0, str(folder(place / "mine")))
        (place / "mine" / file.name).hardlink_to(file)
        importlib.invalidate_caches()
        assert importlib.import_module("planted_module").value == 1
        forget()
    else:
        spec = importlib.util.spec_from_file_location("planted_module", file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        assert module.value == 1


def test_modules_beside_a_renamed_workspace_are_imported(place: Path, block: Block) -> None:
    workspace, elsewhere = plant(folder(place / "open")), plant(folder(place / "elsewhere"))
    (workspace / "planted_module.py").write_text("raise SystemExit('sandboxed code ran on the host')")
    block(workspace)
    workspace.rename(place / "ws")
    sys.path[:0] = [str(place / "ws"), str(elsewhere)]
    assert importlib.import_module("planted_module").value == 1
    forget()


def test_modules_elsewhere_are_imported_as_before(place: Path, block: Block) -> None:
    workspace, elsewhere = folder(place / "open"), plant(folder(place / "elsewhere"))
    (workspace / "planted_module.py").write_text("raise SystemExit('sandboxed code ran on the host')")
    sys.path[:0] = [str(workspace), str(elsewhere)]
    block(workspace)
    assert importlib.import_module("planted_module").value == 1
    forget()


# ---- finders


class MapsToFiles:
    """A finder of an editable install, written by hand: it maps names to files or folders."""

    def __init__(self, **paths: Path) -> None:
        self.paths = paths
        self.asked: list[str] = []

    def find_spec(
        self, name: str, path: object = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        self.asked.append(name)
        first, *rest = name.split(".")
        if first not in self.paths:
            return None
        place = self.paths[first].joinpath(*rest)
        for file in (place / "__init__.py", place.with_name(f"{place.name}.py"), place):
            if file.is_file():
                return importlib.util.spec_from_file_location(name, file)
        return None


class MapsInClass:
    """The form of setuptools: a class with class methods, and `MAPPING`."""

    MAPPING: ClassVar[dict[str, str]] = {}
    NAMESPACES: ClassVar[dict[str, list[str]]] = {}

    @classmethod
    def find_spec(
        cls, name: str, path: object = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        return MapsToFiles(**{key: Path(value) for key, value in cls.MAPPING.items()}).find_spec(
            name, path, target
        )


@pytest.fixture
def finders(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The list `sys.meta_path`, which is as before after the test, as are the modules planted by it."""
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    yield sys.meta_path
    forget_mapped()


def forget_mapped() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0].startswith("mapped_")]:
        del sys.modules[name]


def plant_mapped(workspace: Path) -> Path:
    (workspace / "mapped_module.py").write_text("value = 1")
    package = folder(workspace / "mapped_package")
    (package / "__init__.py").write_text("value = 1")
    (package / "inner.py").write_text("value = 2")
    return workspace


def make_mapping(workspace: Path, form: str) -> Any:
    paths = {name: workspace / name for name in ("mapped_module", "mapped_package")}
    if form == "by hand":
        return MapsToFiles(**paths)
    mapping = {name: str(path) for name, path in paths.items()}
    return type("Mapping", (MapsInClass,), {"MAPPING": mapping})


@pytest.mark.parametrize("place_of_finder", ["first", "last", "first, later", "last, later"])
@pytest.mark.parametrize("form", ["by hand", "MAPPING"])
@pytest.mark.parametrize("name", ["mapped_module", "mapped_package", "mapped_package.inner"])
def test_no_finder_leads_to_an_import_from_an_open_workspace(
    place: Path,
    block: Block,
    finders: list[Any],
    caplog: pytest.LogCaptureFixture,
    *,
    name: str,
    form: str,
    place_of_finder: str,
) -> None:
    workspace = plant_mapped(folder(place / "workspace" / "open"))
    finder = make_mapping(workspace, form)
    watch = ImportRootWatch(workspace, {})
    is_later, at = place_of_finder.endswith("later"), 0 if place_of_finder.startswith("first") else 99
    release = block(workspace) if is_later else None
    finders.insert(at, finder)
    if release is None:
        importlib.import_module(name)  # the control: without the block it is imported
        forget_mapped()
        release = block(workspace)
    elif form == "by hand":
        watch.check()
    else:
        with pytest.raises(WorkspaceRefused, match="the editable install of mapped_"):
            watch.check()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            with pytest.raises(ModuleNotFoundError, match="Close the session, or copy") as caught:
                importlib.import_module(name)
    assert caught.value.name == name.partition(".")[0]
    assert caplog.text.count("was not imported from") == 1
    release()
    importlib.import_module(name)


def test_a_submodule_of_a_loaded_package_and_a_reload_are_blocked(
    place: Path, block: Block, finders: list[Any]
) -> None:
    workspace = plant_mapped(folder(place / "workspace" / "open"))
    finders.append(make_mapping(workspace, "by hand"))
    module, _ = importlib.import_module("mapped_module"), importlib.import_module("mapped_package")
    block(workspace)
    (workspace / "mapped_module.py").write_text("value = 'written by sandboxed code'")
    with pytest.raises(ModuleNotFoundError, match="mapped_module"):
        importlib.reload(module)
    assert module.value == 1
    with pytest.raises(ModuleNotFoundError, match=r"mapped_package\.inner"):
        importlib.import_module("mapped_package.inner")


@pytest.mark.parametrize("way", ["link to it", "link in it", "over it", "namespace", "cached", "loader"])
def test_every_location_of_a_spec_counts(
    place: Path, block: Block, finders: list[Any], monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    workspace = plant_mapped(folder(place / "workspace" / "open"))
    outside = plant_mapped(folder(place / "outside"))
    file = outside / "mapped_module.py"
    (workspace / "link.py").symlink_to(file)
    (outside / "link.py").symlink_to(workspace / "mapped_module.py")
    (outside / "over.py").symlink_to(workspace / "link.py")
    inside = {
        "link to it": outside / "link.py",
        "link in it": workspace / "link.py",
        "over it": outside / "over.py",
    }
    spec = importlib.util.spec_from_file_location("mapped_module", inside.get(way, file))
    assert spec is not None
    if way == "namespace":
        spec = importlib.machinery.ModuleSpec("mapped_module", None, is_package=True)
        spec.submodule_search_locations = [str(outside), str(workspace)]
    elif way == "cached":
        spec.cached = str(workspace / "mapped_module.pyc")
    elif way == "loader":
        loader = importlib.machinery.SourceFileLoader("mapped_module", str(workspace / "mapped_module.py"))
        spec = importlib.machinery.ModuleSpec("mapped_module", loader)

    class Fixed:
        @staticmethod
        def find_spec(name: str, *_: object) -> importlib.machinery.ModuleSpec | None:
            return spec if name == "mapped_module" else None

    finders.append(Fixed())
    importlib.import_module("mapped_module")  # the control
    forget_mapped()
    block(workspace)
    with pytest.raises(ModuleNotFoundError, match="is not imported from"):
        importlib.import_module("mapped_module")
    spec = importlib.util.spec_from_file_location("mapped_module", file)
    importlib.import_module("mapped_module")


def test_each_finder_is_asked_once_and_its_exception_goes_through(
    place: Path, block: Block, finders: list[Any]
) -> None:
    class Broken:
        @staticmethod
        def find_spec(name: str, *_: object) -> None:
            if name == "mapped_broken":
                raise ZeroDivisionError

    finder = MapsToFiles(mapped_module=plant_mapped(folder(place / "outside")) / "mapped_module")
    finders += [finder, Broken()]
    block(folder(place / "workspace" / "one"))
    block(folder(place / "workspace" / "two"))
    importlib.import_module("mapped_module")
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'mapped_nowhere'$") as caught:
        importlib.import_module("mapped_nowhere")
    assert caught.value.name == "mapped_nowhere"
    assert finder.asked == ["mapped_module", "mapped_nowhere"]
    assert importlib.util.find_spec("mapped_nowhere") is None
    with pytest.raises(ZeroDivisionError):
        importlib.import_module("mapped_broken")


def test_a_finder_that_asks_the_others_is_blocked_and_ends(
    place: Path, block: Block, finders: list[Any]
) -> None:
    class AsksOthers:
        def find_spec(self, name: str, *rest: Any) -> importlib.machinery.ModuleSpec | None:
            others = (other.find_spec(name, *rest) for other in sys.meta_path if other is not self)
            return next(filter(None, others), None)

    workspace = plant_mapped(folder(place / "workspace" / "open"))
    outside = plant_mapped(folder(place / "outside"))
    finders.insert(0, AsksOthers())
    finders.append(
        MapsToFiles(mapped_module=workspace / "mapped_module", mapped_package=outside / "mapped_package")
    )
    block(workspace)
    with pytest.raises(ModuleNotFoundError, match="Close the session"):
        importlib.import_module("mapped_module")
    assert importlib.import_module("mapped_package.inner").value == 2
    with pytest.raises(ModuleNotFoundError, match="No module named"):
        importlib.import_module("mapped_nowhere")


def test_imports_in_threads_go_on_while_blocks_come_and_go(place: Path, finders: list[Any]) -> None:
    outside = folder(place / "outside")
    names = [f"mapped_{number}" for number in range(200)]
    for name in names:
        (outside / f"{name}.py").write_text(f"value = {name!r}")
    finders.append(MapsToFiles(**{name: outside / name for name in names}))
    workspace = folder(place / "workspace" / "open")
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        imports = [threads.submit(importlib.import_module, name) for name in names]
        while not all(one.done() for one in imports):
            block_imports(workspace)()
        assert [one.result().value for one in imports] == names


def test_other_finders_keep_their_order_and_ours_finds_nothing_after_the_last_block(
    place: Path, finders: list[Any]
) -> None:
    before = import_roots.list_finders()
    one, two = folder(place / "ws" / "one"), folder(place / "ws" / "two")
    releases = [block_imports(one), block_imports(two), block_imports(two)]
    assert finders[1:] == before
    late = MapsToFiles()
    finders.insert(0, late)
    import_roots.keep_block_first()
    assert finders[1:] == [late, *before]
    for release in releases:
        assert finders[0] not in [late, *before]
        release()
    assert finders is sys.meta_path
    assert import_roots.list_finders() == [late, *before]
    assert finders[0].find_spec("json") is None
    finders.insert(0, late)
    import_roots.keep_block_first()
    assert finders[0] is late


def test_ordinary_imports_work_and_cost_little(tmp_path: Path) -> None:
    """The work is counted, not timed: each module is looked up as often as without a block."""
    script = textwrap.dedent("""
        import sys
        from pathlib import Path
        from aisotools.workspace.import_roots import block_imports
        class Counts:
            asked = []
            def find_spec(self, name, *_):
                self.asked.append(name)
        if sys.argv[2] == "block":
            block_imports(Path(sys.argv[1]))
        sys.meta_path.insert(len(sys.meta_path) - 3, Counts())
        import json.tool, xml.dom.minidom, sqlite3, pygments.lexers.python
        print(Counts.asked)
    """)
    outputs = [
        subprocess.run(
            [sys.executable, "-c", script, str(tmp_path), way],
            check=True,
            capture_output=True,
            text=True,
            timeout=120,
        ).stdout
        for way in ("block", "free")
    ]
    assert outputs[0] == outputs[1]
    assert "json.tool" in outputs[0]


@pytest.mark.parametrize("holder", ["finder", "module"])
@pytest.mark.parametrize("attribute", ["MAPPING", "NAMESPACES"])
def test_a_folder_that_an_editable_install_maps_to_is_refused(
    place: Path, finders: list[Any], monkeypatch: pytest.MonkeyPatch, holder: str, attribute: str
) -> None:
    source = folder(place.parent / "checkout" / "mapped_package")
    (place.parent / "link").symlink_to(source)
    path = str(place.parent / "link")
    assert refusal(source) == ""
    mapping = {"mapped_package": path if attribute == "MAPPING" else [path]}
    if holder == "finder":
        finders.append(type("Mapping", (MapsInClass,), {attribute: mapping}))
    else:
        module = ModuleType("__editable___mapped_package_1_0_finder")
        setattr(module, attribute, mapping)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    assert "it is the editable install of mapped_package" in refusal(source)
    assert "it contains the editable install of mapped_package" in refusal(source.parent)
    assert "it lies in the editable install of mapped_package" in refusal(folder(source / "data"))
    assert refusal(folder(source.parent / "data")) == ""


# ---- other ways to start Python

SCRIPT = textwrap.dedent("""
    import asyncio, sys
    from aisotools import Session
    from aisotools.testing import FakeSandbox  # what is refused is refused before there is one
    async def main():
        async with Session(sys.argv[1], sandbox=FakeSandbox) as session:
            await session.start()
            print("opened")
    try:
        asyncio.run(main())
    except Exception as error:
        print(type(error).__name__, error)
""")


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("way", "workspace", "expected"),
    [
        ("script", ".", "it is the current folder"),
        ("script", "work", "opened"),
        ("script elsewhere", "{place}", "it is an entry of sys.path"),
        ("module", ".", "it is the current folder"),
        ("module", "work", "opened"),
        ("PYTHONPATH", "{place}/lib", "it is an entry of PYTHONPATH"),
        ("PYTHONPATH", "{place}/lib/data", "opened"),
        (".pth", "{place}/lib", "it is an entry of sys.path"),
        ("notebook", "{place}/work", "opened"),
        ("notebook", "{place}", "it is the current folder"),
        ("-P", ".", "it is the current folder"),
    ],
)
def test_sessions_of_other_interpreters(tmp_path: Path, way: str, workspace: str, expected: str) -> None:
    place, elsewhere = folder(tmp_path / "place"), folder(tmp_path / "elsewhere")
    folder(place / "work")
    folder(place / "lib" / "data")
    (place / "script.py").write_text(SCRIPT)
    (elsewhere / "own.pth").write_text(f"{place / 'lib'}\n")
    command, cwd = {
        "script": (["script.py"], place),
        "script elsewhere": ([str(place / "script.py")], elsewhere),
        "module": (["-m", "script"], place),
        "PYTHONPATH": (["script.py"], place),
        ".pth": (["-c", f"import site; site.addsitedir({str(elsewhere)!r})\n{SCRIPT}"], tmp_path),
        "notebook": (["-c", f"import sys; sys.path.insert(0, '')\n{SCRIPT}"], place),
        "-P": (["-P", "-c", SCRIPT], place),
    }[way]
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state")}
    if way == "PYTHONPATH":
        environ["PYTHONPATH"] = str(place / "lib")
    done = subprocess.run(
        [sys.executable, *command, workspace.format(place=place)],
        check=False,
        cwd=cwd,
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert expected in done.stdout, done.stderr


def test_finder_that_equals_everything_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    class Agreeable:
        __hash__ = None  # type: ignore[assignment]  # compared, never hashed

        def __eq__(self, other: object) -> bool:
            return True

        def find_spec(self, name: str, path: object = None, target: object = None) -> None:
            return None

    finder = Agreeable()
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    assert any(one is finder for one in import_roots.list_finders())


# ---- mounts

MOUNTED = {
    "the workspace on the path": ("ws", "mnt", "mnt"),
    "a folder of it on the path": ("ws/lib", "mnt", "mnt"),
    "the path as the workspace": ("site", "ws", "site"),
    "the path in the workspace": ("site", "ws/lib", "site"),
    "the path above the workspace": ("site", "other", "site"),
}
"""What is mounted, where, and which folder is on the path of modules, relative to a temporary folder."""

IN_A_NAMESPACE = """
import ctypes, os, sys
sys.path.insert(0, {project!r})
from pathlib import Path
from aisotools.core.exceptions import WorkspaceRefused
from aisotools.workspace.import_roots import block_imports, refuse_import_root
from aisotools.session.guards import ImportRootWatch
libc = ctypes.CDLL(None, use_errno=True)
overlay = {overlay!r}.encode()
base, source, target, root = map(os.fsencode, {arguments!r})
own = 0x20000 if os.geteuid() == 0 else 0x10020000
if libc.unshare(own) or libc.mount(None, b"/", None, 0x44000, None):
    sys.exit("no mount namespaces here")
workspace = Path(os.fsdecode(base), "ws")
sys.path.insert(0, os.fsdecode(base + b"/" + root))
refuse_import_root(workspace)  # the control: without the mount it is a workspace
watch = ImportRootWatch(workspace, dict(os.environ))
os.chdir(base)  # what layers may be relative to
if overlay and libc.mount(b"overlay", base + b"/" + target, b"overlay", 0, overlay):
    sys.exit("no overlays here")
if not overlay and libc.mount(base + b"/" + source, base + b"/" + target, None, 4096, None):
    sys.exit("no bind mounts here")
os.chdir("/")
assert watch.has_changed()
for look in (watch.check, lambda: refuse_import_root(workspace)):
    try:
        look()
    except WorkspaceRefused as error:
        print(error)
block_imports(workspace)
Path(os.fsdecode(base), "ws", "lib", "planted.py").write_text("")
Path(os.fsdecode(base), "ws", "planted.py").write_text("")
try:
    import planted
except ModuleNotFoundError:
    print("blocked")
"""


@pytest.mark.parametrize("case", [case for case in MOUNTED if case != "the path above the workspace"])
def test_a_workspace_that_a_mount_shows_where_modules_are_is_refused(tmp_path: Path, case: str) -> None:
    for name in ("ws/lib", "mnt", "site/lib", "other"):
        (tmp_path / name).mkdir(parents=True)
    source, target, root = MOUNTED[case]
    done = run_in_namespace(tmp_path, source, target, root)
    assert done[-1] == "blocked", done
    assert len(done) == 3, done
    assert f"{str(tmp_path / 'ws')!r} cannot be the workspace: what is in it is at " in done[0]
    assert f"an entry of sys.path ({tmp_path / root})" in done[0]


def test_mounts_elsewhere_refuse_no_workspace(tmp_path: Path) -> None:
    for name in ("ws/lib", "mnt", "site/lib", "other"):
        (tmp_path / name).mkdir(parents=True)
    assert run_in_namespace(tmp_path, *MOUNTED["the path above the workspace"]) == ["blocked"]


OVERLAID = {
    "the workspace is the upper layer": ("lower", "ws", "mnt", "mnt"),
    "the workspace is a lower layer": ("lower:ws", "up", "mnt", "mnt"),
    "a folder of it is a layer": ("lower:ws/lib", "up", "mnt", "mnt"),
    "a layer around it": ("around", "up", "mnt", "mnt/ws"),
    "the workspace is an overlay": ("lower", "site", "ws", "site"),
    "the workspace has an overlay in it": ("lower", "site", "ws/lib", "site"),
    "a folder of the overlay on the path": ("lower:ws", "up", "mnt", "mnt/lib"),
}
"""Lower layers, the upper one, where they are mounted, and which folder is on the path of modules."""


@pytest.mark.sample(6)
@pytest.mark.parametrize("is_relative", [False, True])
@pytest.mark.parametrize("case", OVERLAID)
def test_a_workspace_that_an_overlay_shows_where_modules_are_is_refused(
    tmp_path: Path, case: str, is_relative: bool
) -> None:
    lower, upper, target, root = OVERLAID[case]
    done = run_overlaid(tmp_path, lower, upper, target, root, is_relative=is_relative)
    assert done[-1] == "blocked", done
    assert len(done) == 3, done
    assert "cannot be the workspace: what is in it is at " in done[0]
    assert f"an entry of sys.path ({tmp_path / root})" in done[0]


def test_overlays_whose_lower_layer_is_on_the_path_refuse_no_workspace(tmp_path: Path) -> None:
    """What is written into the workspace is in the upper layer."""
    assert run_overlaid(tmp_path, "site", "up", "ws", "site") == ["blocked"]


def run_overlaid(
    base: Path, lower: str, upper: str, target: str, root: str, *, is_relative: bool = False
) -> list[str]:
    for name in ("around/ws/lib", "mnt", "site/lib", "lower/lib", "up", "work"):
        (base / name).mkdir(parents=True)
    workspace = base / "ws"
    if lower == "around":
        workspace.symlink_to("around/ws")
    else:
        (workspace / "lib").mkdir(parents=True)
    start = "" if is_relative else f"{base}/"
    lowers = ":".join(f"{start}{name}" for name in lower.split(":"))
    options = f"lowerdir={lowers},upperdir={start}{upper},workdir={start}work"
    return run_in_namespace(base, "", target, root, options)


def run_in_namespace(base: Path, source: str, target: str, root: str, overlay: str = "") -> list[str]:
    """Mount something in a namespace of its own; return what is said of the workspace `ws`."""
    return run_alone(IN_A_NAMESPACE, arguments=(str(base), source, target, root), overlay=overlay)


def run_alone(script: str, **values: object) -> list[str]:
    """Run a script with a mount namespace of its own; return the lines that it prints."""
    code = script.format(project=str(Path(__file__).parents[2]), **values)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd="/", check=False)
    if done.stderr.endswith(" here\n"):
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


SHOWN_LATER = {
    "the workspace in a package": ("ws", "site/pack", "pack.planted"),
    "a folder of it in a package": ("ws/lib", "site/pack", "pack.planted"),
    "the workspace below a package": ("ws", "site/pack/inner", "pack.inner.planted"),
    "the workspace at an entry": ("ws", "site", "planted"),
    "a file of it at a module": ("ws/planted.py", "site/pack/module.py", "pack.module"),
    "bytecode of it in a package": ("ws/lib", "site/pack/__pycache__", "pack.module"),
    "the package in the workspace": ("site/pack", "ws/lib", "pack.planted"),
}
"""What is mounted while the workspace is open, where, and the module that shows then."""

IMPORTS_LATER = """
import ctypes, importlib, importlib.util, marshal, os, sys
sys.path.insert(0, {project!r})
from aisotools.workspace.import_roots import block_imports
from pathlib import Path
libc = ctypes.CDLL(None, use_errno=True)
base, source, target, module, how = {arguments!r}
own = 0x20000 if os.geteuid() == 0 else 0x10020000
if libc.unshare(own) or libc.mount(None, b"/", None, 0x44000, None):
    sys.exit("no mount namespaces here")
os.chdir("/")
sys.path.insert(0, base + "/site")
release = (lambda: None) if how == "free" else block_imports(Path(base, "ws"))
import pack, pack.inner
for missing in ("pack.planted", "planted", "pack.inner.planted"):  # what the finders have learned
    assert importlib.util.find_spec(missing) is None
workspace = "ws"
def rename():
    global workspace
    workspace = "moved"
    os.rename(base + "/ws", base + "/moved")
if how == "renamed":
    rename()
    source = source.replace("ws", "moved", 1)
outside = base + "/outside"
if how == "moved in":
    os.rename(base + "/" + source, outside)
shown, point = os.fsencode(base + "/" + source), os.fsencode(base + "/" + target)
layers = b"lowerdir=" + os.fsencode(base) + b"/lower:" + shown
kind = (b"overlay", 0, layers) if "overlay" in how else (None, 4096, None)
shown = b"overlay" if "overlay" in how else os.fsencode(outside) if how == "moved in" else shown
if libc.mount(shown, point, *kind):
    sys.exit("no such mounts here")
if how in ("moved in", "overlay, then renamed"):
    import colorsys  # any import looks
if how == "moved in":
    os.rename(outside, base + "/" + source)
if how.endswith("then renamed"):
    rename()
for folder in (workspace, workspace + "/lib"):  # a call writes what earlier ones could have written, too
    Path(base, folder, "planted.py").write_text("evil = True")
    code = marshal.dumps(compile("evil = True", "", "exec"))
    data = importlib.util.MAGIC_NUMBER + b"\\1" + bytes(11) + code
    Path(base, folder, f"module.{{sys.implementation.cache_tag}}.pyc").write_bytes(data)
importlib.invalidate_caches()
try:
    print(hasattr(importlib.import_module(module), "evil"))
except ModuleNotFoundError:
    print("blocked")
import json.tool  # elsewhere nothing is
release()
"""


WAYS = ["bind", "overlay", "renamed", "bind, then renamed", "overlay, then renamed", "moved in", "free"]


@pytest.mark.sample(16)
@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("case", SHOWN_LATER)
def test_a_mount_that_shows_an_open_workspace_to_imports_is_seen_at_once(
    tmp_path: Path, case: str, how: str
) -> None:
    """Nobody makes a call in between, which would look again. The control runs what was planted."""
    source, target, module = SHOWN_LATER[case]
    if "overlay" in how and (source.endswith(".py") or not source.startswith("ws")):
        pytest.skip("no layer of an overlay")
    if how == "moved in" and "/" not in source.removeprefix("site/"):
        pytest.skip("not something in the workspace")
    for name in ("ws/lib", "site/pack/inner", "site/pack/__pycache__", "lower"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("pack/__init__", "pack/inner/__init__", "pack/module", "module"):
        (tmp_path / "site" / f"{name}.py").write_text("")
    (tmp_path / "ws" / "planted.py").write_text("")
    done = run_alone(IMPORTS_LATER, arguments=(str(tmp_path), source, target, module, how))
    assert done == ["True" if how == "free" else "blocked"]
