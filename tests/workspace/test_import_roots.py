"""What a sandbox writes is never imported by the host: refused folders and blocked imports."""

from __future__ import annotations

import ast
import importlib
import logging
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

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

    monkeypatch.setattr(sys, "meta_path", [Broken(), object(), *sys.meta_path])
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


def test_a_watch_sees_that_the_workspace_became_a_package(place: Path) -> None:
    workspace = folder(place / "mine")
    watch = ImportRootWatch(workspace, {})
    (workspace / "__init__.py").touch()
    for _ in range(2):
        with pytest.raises(WorkspaceRefused, match=r"mine/__init__\.py makes a package of it"):
            watch.check()
    (workspace / "__init__.py").unlink()
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
    assert not any("find_nothing" in repr(hook) for hook in sys.path_hooks)


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


def test_modules_elsewhere_are_imported_as_before(place: Path, block: Block) -> None:
    workspace, elsewhere = folder(place / "open"), plant(folder(place / "elsewhere"))
    (workspace / "planted_module.py").write_text("raise SystemExit('sandboxed code ran on the host')")
    sys.path[:0] = [str(workspace), str(elsewhere)]
    block(workspace)
    assert importlib.import_module("planted_module").value == 1
    forget()


# ---- other ways to start Python

SCRIPT = textwrap.dedent("""
    import asyncio, sys
    from aisotools import Session
    async def main():
        async with Session(sys.argv[1], level="confined") as session:
            await session.start()
            print("opened")
    try:
        asyncio.run(main())
    except Exception as error:
        print(type(error).__name__, error)
""")


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
