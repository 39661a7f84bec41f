"""Files of a workspace that Python would run by itself, though it imports nothing from there.

Each case that concerns another interpreter first shows that it runs what is planted.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from aisotools.core.exceptions import WorkspaceRefused
from aisotools.session import guards
from aisotools.session.guards import ImportRootWatch
from aisotools.workspace.host_files import refuse_host_files
from aisotools.workspace.import_roots import refuse_import_root
from tests.waiting import HANG_S
from tests.workspace.test_import_roots import folder, refusal

SOURCES = str(Path(guards.__file__).parents[2])
PLANTED = "print('this came from the workspace')"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder."""
    place = folder(tmp_path / "place")
    monkeypatch.chdir(place)
    return place


@pytest.fixture(autouse=True)
def prefix() -> Iterator[None]:
    before = sys.pycache_prefix
    yield
    sys.pycache_prefix = before


def start(*arguments: str, cwd: Path, **environ: str) -> str:
    """What another interpreter prints."""
    done = subprocess.run(
        [sys.executable, *arguments],
        check=False,
        cwd=cwd,
        env={"PATH": "/usr/bin:/bin", "HOME": str(cwd), "PYTHONPATH": SOURCES, **environ},
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.stdout + done.stderr


# ---- compiled code


@pytest.mark.parametrize("variable", ["PYTHONPYCACHEPREFIX", "sys.pycache_prefix"])
@pytest.mark.parametrize("way", ["is", "contains", "link"])
def test_a_workspace_with_the_folder_of_compiled_code_is_refused(
    place: Path, variable: str, way: str
) -> None:
    workspace = folder(place / "workspace" / "mine")
    prefix = {"is": workspace, "contains": workspace / "pyc", "link": place / "link"}[way]
    if way == "link":
        prefix.symlink_to(workspace / "pyc")
    assert refusal(workspace) == ""
    environ = {variable: str(prefix)}
    if variable == "sys.pycache_prefix":
        environ, sys.pycache_prefix = {}, str(prefix)
    message = refusal(workspace, environ)
    assert f"the folder {variable}" in message
    advised = folder(place / "workspace" / "notes")
    assert f"such as {str(advised)!r}" in message
    assert refusal(advised, environ) == "", "what it suggests is accepted"


def test_a_workspace_at_the_place_of_compiled_code_is_refused(place: Path) -> None:
    prefix, sources = folder(place / "pyc"), folder(place.parent / "sources")
    environ = {"PYTHONPYCACHEPREFIX": str(prefix)}
    workspace = folder(Path(f"{prefix}{sources}/inner"))
    assert refusal(workspace, environ) == "", "there is no source that it could stand for"
    folder(sources / "inner")
    assert "it lies in the folder PYTHONPYCACHEPREFIX" in refusal(workspace, environ)
    assert "it lies in the folder PYTHONPYCACHEPREFIX" in refusal(workspace.parent, environ)
    assert refusal(folder(place / "work"), {"PYTHONPYCACHEPREFIX": "/"}) == ""


def test_a_watch_looks_again_when_the_folder_of_compiled_code_changes(place: Path) -> None:
    workspace = folder(place / "work")
    watch = ImportRootWatch(workspace, {})
    watch.check()
    sys.pycache_prefix = str(workspace / "pyc")
    with pytest.raises(WorkspaceRefused, match=r"it contains the folder sys\.pycache_prefix"):
        watch.check()
    sys.pycache_prefix = None
    watch.check()


def test_a_session_whose_workspace_has_compiled_code_is_refused_in_a_sentence(place: Path) -> None:
    """The imports of the host would fail: nothing is imported from there while the session is open."""
    workspace = folder(place / "work")
    script = textwrap.dedent(f"""
        import asyncio
        from aisotools import Session
        from aisotools.core.exceptions import WorkspaceRefused
        async def main():
            async with Session({str(workspace)!r}, level="confined"):
                print("opened")
        try:
            asyncio.run(main())
        except WorkspaceRefused as error:
            print("refused:", error)
    """)
    printed = start("-c", script, cwd=place, PYTHONPYCACHEPREFIX=str(workspace / "pyc"))
    assert printed.startswith("refused: ")
    assert "it contains the folder PYTHONPYCACHEPREFIX" in printed


def test_a_workspace_in_a_folder_for_bytecode_is_refused(place: Path) -> None:
    assert "'__pycache__'" in refusal(folder(place / "__pycache__"))
    for path in ("__pycache__", "other/__pycache__", "other/__pycache__/deep"):
        assert "it is or lies in a folder '__pycache__'" in refusal(folder(place.parent / path))


@pytest.mark.parametrize("inside", [False, True])
def test_a_link_from_a_folder_for_bytecode_is_refused(
    place: Path, monkeypatch: pytest.MonkeyPatch, *, inside: bool
) -> None:
    workspace = folder((place if inside else place.parent) / "workspace" / "mine")
    monkeypatch.chdir(place)
    (place / "__pycache__").symlink_to(workspace / "cache")
    folder(workspace / "cache")
    assert "__pycache__" in refusal(workspace)
    assert "__pycache__" in refusal(workspace / "cache")
    assert refusal(folder(place / "workspace" / "notes")) == ""


# ---- the running program

PROGRAM = textwrap.dedent("""
    import sys
    from pathlib import Path
    from aisotools.core.exceptions import WorkspaceRefused
    from aisotools.workspace.import_roots import refuse_import_root
    for workspace in sys.argv[1:]:
        try:
            refuse_import_root(Path(workspace))
            print("accepted")
        except WorkspaceRefused as error:
            print(error)
""")


@pytest.mark.parametrize("way", ["script", "link", "by hand"])
def test_the_folder_of_the_running_program_is_refused(place: Path, way: str) -> None:
    """Also if it is not an entry of `sys.path`, as with `python -P`: `multiprocessing` runs it again."""
    programs = folder(place.parent / "programs")
    below = folder(programs / "workspace" / "program")
    file = programs / "program.py"
    file.write_text(PROGRAM)
    link = folder(place.parent / "elsewhere") / "link.py"
    link.symlink_to(file)
    arguments = {
        "script": [str(file)],
        "link": [str(link)],
        "by hand": ["-c", f"import runpy; runpy.run_path({str(file)!r}, {{}}, '__main__')"],
    }[way]
    printed = start("-P", *arguments, str(programs), str(below), cwd=place).splitlines()
    assert "it contains the running program" in printed[0]
    assert printed[1:] == ["accepted"]


def test_a_spawned_process_refuses_the_folder_of_its_program(place: Path) -> None:
    programs = folder(place.parent / "programs")
    script = f"""
        import multiprocessing
        from pathlib import Path
        from aisotools.workspace.import_roots import refuse_import_root
        def look():
            try:
                refuse_import_root(Path({str(programs)!r}))
            except Exception as error:
                print(error)
        if __name__ == "__main__":
            process = multiprocessing.get_context("spawn").Process(target=look)
            process.start()
            process.join()
    """
    (programs / "program.py").write_text(textwrap.dedent(script))
    assert "program.py)" in start("-P", str(programs / "program.py"), cwd=place)


@pytest.mark.parametrize("arguments", [["-m", "program"], ["-c", PROGRAM], ["-I", "-c", PROGRAM]])
def test_programs_of_every_kind_may_use_a_folder_below(place: Path, arguments: list[str]) -> None:
    (place / "program.py").write_text(PROGRAM)
    below = folder(place / "workspace" / "program")
    assert start(*arguments, str(below), cwd=place) == "accepted\n"


def test_a_module_that_was_loaded_by_its_path_is_refused(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = folder(place / "workspace" / "mine")
    file = workspace / "plugin_of_ours.py"
    file.touch()
    assert refusal(workspace) == ""
    spec = importlib.util.spec_from_file_location("plugin_of_ours", file)
    assert spec is not None
    monkeypatch.setitem(sys.modules, "plugin_of_ours", importlib.util.module_from_spec(spec))
    assert "it contains the module plugin_of_ours" in refusal(workspace)
    assert "by its path" in refusal(workspace)
    assert refusal(folder(place / "workspace" / "notes")) == ""


def test_a_module_is_refused_when_a_link_on_its_way_has_been_changed(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace, old = folder(place / "workspace" / "mine"), folder(place / "old")
    for home in (workspace, old):
        (home / "plugin_of_ours.py").touch()
    link = place / "link"
    link.symlink_to(old)
    module = ModuleType("plugin_of_ours")
    module.__file__ = str(link / "plugin_of_ours.py")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert refusal(workspace) == ""
    link.unlink()
    link.symlink_to(workspace)
    assert "it contains the module plugin_of_ours" in refusal(workspace)


def test_a_module_that_was_imported_by_its_name_is_no_reason(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever imports `workspace.mine.helper` has read it; while a session is open, nothing is imported."""
    workspace = folder(place / "workspace" / "mine")
    module = ModuleType("workspace.mine.helper")
    module.__file__ = str(workspace / "helper.py")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert refusal(workspace) == ""


def test_a_link_to_the_interpreter_is_refused(place: Path) -> None:
    """`multiprocessing` and sandboxes start the same path again."""
    workspace = folder(place.parent / "work")
    (workspace / "python").symlink_to(sys.executable)
    code = "import sys\nsys.argv[0] = sys.executable\n" + PROGRAM
    done = subprocess.run(
        [str(workspace / "python"), "-c", code, str(workspace)],
        check=False,
        cwd=place,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "it contains the interpreter" in done.stdout, done.stderr


# ---- what Python and others run when they start


def test_the_startup_file_of_python_is_refused(place: Path) -> None:
    workspace = folder(place / "work")
    (workspace / "start.py").write_text(PLANTED)
    environ = {"PYTHONSTARTUP": str(workspace / "start.py")}
    done = subprocess.run(
        [sys.executable, "-i"],
        input="",
        check=False,
        env={"PATH": "/usr/bin:/bin", **environ},
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert "this came from" in done.stdout, "the control"
    assert "it contains the file PYTHONSTARTUP" in refusal(workspace, environ)
    assert refusal(workspace, {"PYTHONSTARTUP": str(place / "start.py")}) == ""


@pytest.mark.parametrize("variable", ["MPLCONFIGDIR", "MATPLOTLIBRC"])
def test_the_settings_of_matplotlib_are_refused(place: Path, variable: str) -> None:
    workspace = folder(place / "work")
    assert "the settings of matplotlib" in refusal(workspace, {variable: str(workspace)})
    assert "the settings of matplotlib" in refusal(workspace, {variable: str(workspace / "settings")})
    assert refusal(workspace, {variable: str(place)}) == ""


def test_the_home_of_python_is_refused(place: Path) -> None:
    home = folder(place.parent / "home")
    library = folder(home / sys.platlibdir / f"python{sys.version_info[0]}.{sys.version_info[1]}")
    environ = {"PYTHONHOME": str(home)}
    assert "it contains the standard library of PYTHONHOME" in refusal(home, environ)
    assert "it is the standard library of PYTHONHOME" in refusal(library, environ)
    assert refusal(folder(home / "work"), environ) == ""


@pytest.mark.parametrize("name", ["sitecustomize", "usercustomize"])
def test_a_folder_that_python_imports_when_it_starts_is_refused(place: Path, name: str) -> None:
    workspace = folder(place / name)
    (workspace / "__init__.py").write_text(PLANTED)
    environ = {"PYTHONPATH": str(place), "PYTHONUSERBASE": str(place / "base")}
    if name == "sitecustomize":
        assert "this came from" in start("-c", "", cwd=place.parent, **environ), "the control"
    (workspace / "__init__.py").unlink()
    assert "Python imports a module of that name whenever it starts" in refusal(workspace, environ)


@pytest.mark.parametrize("kind", ["line", "link"])
def test_a_file_of_paths_counts(place: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """The folder that it names was not there when this process started, so `sys.path` has it only later."""
    site = folder(place.parent / "site-packages")
    workspace = folder(place.parent / "work")
    monkeypatch.setattr(sys, "path", [*sys.path, str(site)])
    assert refusal(workspace) == ""
    (workspace / "planted.py").write_text(PLANTED)
    (workspace / "lines").write_text(f"import sys; {PLANTED}\n")
    if kind == "line":
        (site / "ours.pth").write_text(f"# a comment\nimport sys\n{workspace}\n")
    else:
        (site / "ours.pth").symlink_to(workspace / "lines")
    code = f"import site; site.addsitedir({str(site)!r})" + ("; import planted" if kind == "line" else "")
    assert "this came from" in start("-c", code, cwd=place), "the control"
    assert "ours.pth" in refusal(workspace)
    assert refusal(folder(workspace.parent / "notes")) == ""


def test_a_relative_path_without_a_current_folder_is_passed_over(place: Path) -> None:
    workspace = folder(place.parent / "work")
    sys.pycache_prefix = "compiled"
    place.rmdir()
    refuse_host_files(workspace, {"PYTHONSTARTUP": "start.py"}, loaded={}, roots=())
    sys.pycache_prefix = str(workspace)
    with pytest.raises(WorkspaceRefused, match="Use a folder elsewhere"):
        refuse_host_files(workspace, {}, loaded={}, roots=())


def test_the_environment_of_the_process_counts_by_itself(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = folder(place / "work")
    monkeypatch.setenv("PYTHONSTARTUP", str(workspace / "start.py"))
    with pytest.raises(WorkspaceRefused, match="PYTHONSTARTUP"):
        refuse_import_root(workspace)
