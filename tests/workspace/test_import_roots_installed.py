"""Workspaces that other programs import from: by links, editable installs, namespaces, own packages.

Each case first shows with another interpreter that a file written in the folder is imported.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import ClassVar

import pytest

from aisotools.core.exceptions import WorkspaceRefused
from aisotools.session.guards import ImportRootWatch
from tests.waiting import HANG_S
from tests.workspace.test_import_roots import folder, refusal

PLANTED = "print('imported from the workspace')"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder, and beside it a folder `site` that modules are imported from."""
    place = folder(tmp_path / "place")
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "path", [*sys.path, str(folder(tmp_path / "site"))])
    return place


@pytest.fixture(autouse=True)
def finders() -> Iterator[None]:
    before = list(sys.meta_path)
    yield
    sys.meta_path[:] = before


def imports(place: Path, code: str) -> bool:
    """Whether another interpreter, started in this folder, runs what was planted."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.append({str(place.parent / 'site')!r})\n{code}"],
        check=False,
        cwd=place,
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    return "imported from the workspace" in done.stdout


def write(path: Path, text: str = PLANTED) -> Path:
    folder(path.parent)
    path.write_text(text)
    return path


@pytest.mark.parametrize("kind", ["package", "module in a folder of links", "module"])
def test_a_link_on_the_search_path_counts(place: Path, kind: str) -> None:
    """As flit and the strict editable installs of setuptools make them."""
    site, source = place.parent / "site", folder(place.parent / "checkout" / "source")
    assert refusal(source) == ""
    if kind == "package":
        write(source / "__init__.py")
        (site / "linked").symlink_to(source)
    elif kind == "module":
        write(source / "linked.py")
        (site / "linked.py").symlink_to(source / "linked.py")
    else:
        strict = site / "__editable__.linked-1-py3-none-any"
        write(source / "__init__.py")
        folder(strict / "linked")
        (strict / "linked/__init__.py").symlink_to(source / "__init__.py")
        sys.path.append(str(strict))
    assert imports(place, f"sys.path += {sys.path[-1:]}\nimport linked"), "the control"
    assert "linked" in refusal(source)
    assert "linked" in refusal(source.parent)
    assert (refusal(folder(source / "data")) != "") is (kind == "package")
    assert refusal(folder(source.parent / "other")) == ""


def test_links_that_lead_elsewhere_or_nowhere_do_not_count(place: Path) -> None:
    site, source = place.parent / "site", folder(place.parent / "checkout")
    (site / "gone").symlink_to(source / "gone")
    (site / "loop").symlink_to("loop")
    (site / "elsewhere").symlink_to(folder(place.parent / "elsewhere"))
    (site / "data.txt").symlink_to(write(source / "data.txt"))
    assert refusal(source) == ""


REDIRECTING = textwrap.dedent("""
    import importlib.util
    class Redirecting:
        _redirections = {}
        @classmethod
        def find_spec(cls, name, path=None, target=None):
            if name in cls._redirections:
                return importlib.util.spec_from_file_location(name, cls._redirections[name])
    sys.meta_path.append(Redirecting)
""")


@pytest.mark.parametrize("holder", ["class", "instance"])
@pytest.mark.parametrize("attribute", ["_redirections", "known_source_files"])
def test_a_finder_that_redirects_to_files_counts(place: Path, holder: str, attribute: str) -> None:
    """As editables (for hatchling and PDM) and scikit-build-core install them."""
    init = write(place.parent / "checkout" / "source" / "__init__.py")
    code = f"{REDIRECTING}\nRedirecting._redirections['redirected'] = {str(init)!r}\nimport redirected"
    assert imports(place, code), "the control"
    source = init.parent
    assert refusal(source) == ""

    class Finder:
        count = 7
        numbers: ClassVar = {1: 2, "a": None, "b": "relative/x"}

        @classmethod
        def find_spec(cls, name: str, path: object = None, target: object = None) -> None:
            return None

    finder: object = Finder if holder == "class" else Finder()
    setattr(finder, attribute, {"redirected": str(init)})
    sys.meta_path.append(finder)  # type: ignore[arg-type]  # as such finders are
    assert "the editable install of redirected" in refusal(source)
    assert "the editable install of redirected" in refusal(source.parent)
    assert "the editable install of redirected" in refusal(folder(source / "data"))
    assert refusal(folder(source.parent / "data")) == ""


@pytest.mark.parametrize("deeper", ["", "inner", "inner/more"])
def test_a_part_of_an_installed_namespace_is_refused(place: Path, deeper: str) -> None:
    """What is written in the workspace comes before what is installed, or beside it."""
    write(place.parent / "site" / "namespace_of_many" / "inner" / "__init__.py", "")
    workspace = folder(place / "namespace_of_many" / deeper)
    reason = refusal(workspace)
    package = write(place / "namespace_of_many" / "inner" / "__init__.py")
    assert imports(place, "import namespace_of_many.inner"), "the control"
    package.unlink()
    assert "a module of that name is installed" in reason


def test_a_plain_folder_is_no_installed_namespace(place: Path) -> None:
    write(place / "plain_folder" / "sub" / "x.py")
    assert refusal(place / "plain_folder") == ""
    assert refusal(place / "plain_folder" / "sub") == ""


def test_a_loaded_package_of_a_namespace_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = write(place.parent / "site" / "namespace_of_one" / "inner" / "__init__.py", "").parent
    write(package / "late.py")
    assert imports(place, "import namespace_of_one.inner.late"), "the control"
    assert refusal(folder(package / "data")) == ""
    importlib.import_module("namespace_of_one.inner")
    assert "the package namespace_of_one.inner" in refusal(package)
    assert "the package namespace_of_one.inner" in refusal(package / "data")
    for name in ("namespace_of_one", "namespace_of_one.inner"):
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.parametrize("below", ["", "lib", "lib/python{version}/site-packages"])
def test_the_folder_of_a_persons_own_packages_counts_before_it_exists(place: Path, below: str) -> None:
    """Python adds it to its search path at the next start, once it is there."""
    base = folder(place.parent / "base")
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    site = base / f"lib/python{version}/site-packages"
    workspace = folder(base / below.format(version=version))
    environ = {"PYTHONUSERBASE": str(base)}
    reason = refusal(workspace, environ)
    write(site / "planted_by_sandbox.py")
    done = subprocess.run(
        [os.path.realpath(sys.executable), "-c", "import planted_by_sandbox"],
        check=False,
        cwd=place,
        env={"PATH": "/usr/bin:/bin", **environ},
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert "imported from the workspace" in done.stdout, "the control"
    assert "your own packages" in reason
    assert refusal(folder(base / "share"), environ) == ""


def test_a_watch_sees_that_a_linked_workspace_became_a_package(place: Path) -> None:
    workspace = folder(place.parent / "checkout" / "source")
    (place / "linked").symlink_to(workspace)
    watch = ImportRootWatch(workspace, {})
    watch.check()
    write(workspace / "__init__.py")
    assert imports(place, "import linked"), "the control"
    with pytest.raises(WorkspaceRefused, match=r"linked/__init__\.py makes a package of it"):
        watch.check()


# ---- packages that look for their modules in several folders


@pytest.fixture
def extended(place: Path) -> Iterator[ModuleType]:
    """A loaded package whose `__path__` has a second folder."""
    write(place.parent / "site/extended/__init__.py", "")
    package = importlib.import_module("extended")
    package.__path__.append(str(folder(place.parent / "more" / "extended")))
    yield package
    del sys.modules["extended"]


def test_a_folder_that_a_package_looks_in_is_refused(place: Path, extended: ModuleType) -> None:
    more = Path(extended.__path__[-1])
    write(more / "planted.py")
    code = f"import extended; extended.__path__.append({str(more)!r}); import extended.planted"
    assert imports(place, code), "the control"
    for workspace, relation in ((more, "is"), (more.parent, "contains"), (folder(more / "x"), "lies in")):
        message = refusal(workspace)
        assert f"it {relation} {str(more)!r}" in message
        assert "modules of the package extended" in message
    assert refusal(folder(place.parent / "other")) == ""


def test_the_bytecode_of_a_folder_that_a_package_looks_in_counts(place: Path, extended: ModuleType) -> None:
    workspace = folder(place.parent / "workspace")
    assert refusal(workspace) == ""
    Path(extended.__path__[-1], "__pycache__").symlink_to(workspace)
    assert f"it is {str(workspace)!r}" in refusal(workspace)


def test_a_part_of_a_namespace_is_refused(place: Path) -> None:
    part = folder(place.parent / "site" / "spaces_of_ours")
    write(part / "known.py", "")
    namespace = importlib.import_module("spaces_of_ours")
    workspace = folder(place.parent / "more" / "spaces_of_ours")
    try:
        assert refusal(workspace) == ""
        assert refusal(folder(part / "notes")) == "", "a folder in a plain folder on the search path"
        namespace.__path__.append(str(workspace))
        assert f"it is {str(workspace)!r}" in refusal(workspace)
        assert f"it lies in {str(workspace)!r}" in refusal(folder(workspace / "notes"))
    finally:
        del sys.modules["spaces_of_ours"]


def test_a_package_without_a_readable_path_is_passed_over(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        def __iter__(self) -> Iterator[str]:
            raise ZeroDivisionError

    for number, path in enumerate((Broken(), None, [b"/tmp", 1, "a\0b"])):
        module = ModuleType(f"broken_{number}")
        module.__dict__["__path__"] = path
        monkeypatch.setitem(sys.modules, module.__name__, module)
    workspace = folder(place / "work")
    assert refusal(workspace) == ""
    ImportRootWatch(workspace, {}).check()


def test_a_lazy_module_is_not_loaded(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("lazy", write(place.parent / "lazy.py", "1 / 0"))
    assert spec is not None
    assert spec.loader is not None
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, "lazy", module)
    assert refusal(folder(place / "work")) == ""
    with pytest.raises(ZeroDivisionError):
        dir(module)


def test_an_object_that_says_it_is_a_module_is_passed_over(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Library:
        """As those of cffi."""

        __slots__ = ()
        __class__ = ModuleType  # type: ignore[assignment]  # as `isinstance` is answered

    monkeypatch.setitem(sys.modules, "library.lib", Library())
    workspace = folder(place / "work")
    assert refusal(workspace) == ""
    ImportRootWatch(workspace, {}).check()


def test_a_watch_looks_again_when_a_package_looks_elsewhere(place: Path, extended: ModuleType) -> None:
    workspace = folder(place / "work")
    watch = ImportRootWatch(workspace, {})
    watch.check()
    extended.__path__.append(str(workspace))
    for _ in range(2):
        with pytest.raises(WorkspaceRefused, match="modules of the package extended"):
            watch.check()
    extended.__path__.pop()
    watch.check()
    write(place.parent / "site/later/__init__.py", f"__path__.append({str(workspace)!r})")
    importlib.import_module("later")
    try:
        with pytest.raises(WorkspaceRefused, match="modules of the package later"):
            watch.check()
    finally:
        del sys.modules["later"]
    watch.check()
