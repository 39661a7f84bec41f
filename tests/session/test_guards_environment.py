"""Where calls run: the rules about paths that the sandbox enforces, and no imports from the workspace."""

from __future__ import annotations

import dataclasses
import logging
import sys
import threading
import types
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from aisotools.core.exceptions import WorkspaceRefused
from aisotools.core.types import Decision, Facts, Json, ToolCall
from aisotools.policy.enforcement import PathEnforcement
from aisotools.policy.rules import Policy, Rule
from aisotools.sandbox.limits import Limits
from aisotools.sandbox.process.spawn import WorkerSpec
from aisotools.session.event_log import EventLog
from aisotools.session.guards import CallEnvironment, ImportRootWatch
from aisotools.session.path_rules import PathRules
from aisotools.testing.fakes import FakeSandbox, MockTool
from aisotools.workspace.import_roots import block_imports

DENYING = Policy(rules=[Rule(when={"paths": "secrets/*"}, decision=Decision.DENY)])


def environment(folder: Path, rules: PathRules | None = None) -> CallEnvironment:
    spec = WorkerSpec(level="confined", workspace=str(folder), limits=Limits())
    sandbox = FakeSandbox(spec, EventLog())
    return CallEnvironment(sandbox=sandbox, level="confined", workspace=folder, path_rules=rules)


# ---- preparing a call


def uncertain(facts: Facts, arguments: Mapping[str, Json] | None) -> Facts:
    del arguments
    return dataclasses.replace(facts, reads=(threading.current_thread().name,), certain=False)


async def test_files_of_a_call_that_may_do_anything_are_looked_at_in_a_thread(tmp_path: Path) -> None:
    env = dataclasses.replace(environment(tmp_path), resolve_paths=uncertain)
    tool, call = MockTool(facts=Facts(certain=False)), ToolCall("c", "mock", {})
    here = threading.current_thread().name
    assert env.prepare(tool, call, Policy()).facts.reads == (here,)
    (elsewhere,) = (await env.prepare_in_threads(tool, call, Policy())).facts.reads
    assert elsewhere != here


async def test_an_error_in_a_thread_is_that_of_the_look(tmp_path: Path) -> None:
    def fail(facts: Facts, arguments: Mapping[str, Json] | None) -> Facts:
        raise OSError(f"{facts.certain} {arguments}")

    def fail_later(declared: Facts, facts: Facts) -> Facts:
        raise OSError(f"{declared.certain} {facts.certain}")

    tool, call = MockTool(facts=Facts(certain=False)), ToolCall("c", "mock", {})
    following = dataclasses.replace(environment(tmp_path), resolve_paths=fail)
    denied = await following.prepare_in_threads(tool, call, Policy())
    assert denied.evaluation.decision is Decision.DENY
    comparing = dataclasses.replace(following, resolve_paths=uncertain, find_sources=fail_later)
    with pytest.raises(OSError, match="False False"):
        await comparing.prepare_in_threads(tool, call, Policy())


# ---- rules about paths


def test_without_rules_nothing_is_enforced_and_nothing_is_left_open(tmp_path: Path) -> None:
    env = environment(tmp_path)
    assert env.enforcement == PathEnforcement()
    assert (env.not_enforced, env.gaps_of(Facts())) == ((), ())
    env.announce(DENYING)
    assert not env.has_readers(), "unless somebody has found that it can hold them"


async def test_gaps_are_said_of_each_rule_that_the_sandbox_does_not_enforce(tmp_path: Path) -> None:
    rules = PathRules(tmp_path, "confined")
    rules.follow(DENYING)
    env = environment(tmp_path, rules)
    assert env.enforcement is rules.enforcement
    (gap,) = env.not_enforced
    assert "secrets/*" in gap
    assert env.gaps_of(Facts(runs_in="sandbox")) == (gap,)
    assert env.gaps_of(Facts(runs_in="host")) == ()


@pytest.mark.parametrize("kind", ["folder", "file", "link to nowhere"])
async def test_a_repository_in_the_workspace_is_one_more_way_to_what_a_rule_denies(
    tmp_path: Path, kind: str
) -> None:
    rules = PathRules(tmp_path, "isolated")
    rules.follow(DENYING)
    env = environment(tmp_path, rules)
    before = env.not_enforced
    assert env.gaps_of(Facts()) == before
    git = tmp_path / ".git"
    if kind == "folder":
        git.mkdir()
    elif kind == "file":
        git.touch()
    else:
        git.symlink_to("gone")
    (more,) = set(env.not_enforced) - set(before)
    assert "repository of git" in more
    assert more in env.gaps_of(Facts())


async def test_gaps_of_another_policy_are_printed_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rules = PathRules(tmp_path, "confined")
    env = environment(tmp_path, rules)
    with caplog.at_level(logging.WARNING):
        env.announce(Policy())
        assert caplog.text == ""
        env.announce(DENYING)
        env.announce(DENYING)
    assert rules.has_any
    assert caplog.text.count("secrets/*") == 1


# ---- import roots


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workspace that is accepted, beside the current folder."""
    (tmp_path / "place").mkdir()
    monkeypatch.chdir(tmp_path / "place")
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


def test_a_watch_looks_again_when_the_search_path_or_the_current_folder_changes(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = ImportRootWatch(workspace, {})
    watch.check()
    sys.path.append(str(workspace.parent / "elsewhere"))
    assert watch.has_changed()
    watch.check()
    assert not watch.has_changed(), "the folders of modules are not listed again before each call"
    sys.path.append(str(workspace))
    for _ in range(2):
        with pytest.raises(WorkspaceRefused, match=r"is an entry of sys\.path"):
            watch.check()
    sys.path.pop()
    watch.check()
    monkeypatch.chdir(workspace)
    with pytest.raises(WorkspaceRefused, match="is the current folder"):
        watch.check()
    monkeypatch.chdir(workspace.parent / "place")
    watch.check()


def test_a_watch_works_in_a_current_folder_that_is_gone(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = workspace.parent / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    watch = ImportRootWatch(workspace, {})
    gone.rmdir()
    watch.check()


def test_a_watch_looks_again_when_a_variable_that_chooses_code_changes(workspace: Path) -> None:
    environ = {"PATH": "/usr/bin", "COLOR": "red"}
    watch = ImportRootWatch(workspace, environ)
    environ["COLOR"] = str(workspace)
    watch.check()
    environ["PATH"] = f"{workspace}/bin"
    with pytest.raises(WorkspaceRefused, match="the variable PATH"):
        watch.check()


def test_a_watch_sees_that_the_workspace_became_a_package(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(workspace.parent)
    watch = ImportRootWatch(workspace, {})
    watch.check()
    (workspace / "__init__.py").touch()
    for _ in range(2):
        with pytest.raises(WorkspaceRefused, match=r"work/__init__\.py makes a package of it"):
            watch.check()
    (workspace / "__init__.py").unlink()
    watch.check()


@pytest.fixture
def package() -> Iterator[types.ModuleType]:
    """A loaded package without a file, whose folders anybody can change."""
    module = types.ModuleType("made_by_a_test")
    module.__path__ = []
    yield module
    sys.modules.pop(module.__name__, None)


@pytest.mark.parametrize("loaded", ["before", "later", "in the place of another"])
def test_a_watch_looks_at_the_folders_of_loaded_packages(
    workspace: Path, package: types.ModuleType, loaded: str
) -> None:
    """Of one that is loaded later, too, also if as many others are gone."""
    name = package.__name__
    if loaded == "before":
        sys.modules[name] = package
    elif loaded == "in the place of another":
        sys.modules[name] = types.ModuleType(name)
    watch = ImportRootWatch(workspace, {})
    watch.check()
    sys.modules[name] = package
    watch.check()
    package.__path__.append(str(workspace))
    with pytest.raises(WorkspaceRefused):
        watch.check()


def test_a_package_whose_folders_cannot_be_read_leads_nowhere(
    workspace: Path, package: types.ModuleType
) -> None:
    class Broken(list[str]):
        def __iter__(self) -> Iterator[str]:
            raise RuntimeError("no folders")

    package.__path__ = Broken()
    sys.modules[package.__name__] = package
    watch = ImportRootWatch(workspace, {})
    watch.check()
    sys.path.append(str(workspace))
    with pytest.raises(WorkspaceRefused):
        watch.check()


def test_the_block_of_imports_stays_before_finders_that_came_later(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Finder:
        def find_spec(self, *_: object) -> None:
            return None

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    release = block_imports(workspace)
    try:
        block = sys.meta_path[0]
        later = Finder()
        sys.meta_path.insert(0, later)
        watch = ImportRootWatch(workspace, {})
        assert sys.meta_path[0] is block
        sys.meta_path.remove(block)
        sys.meta_path.append(block)
        watch.check()
        assert sys.meta_path[0] is block
        assert later in sys.meta_path
        sys.meta_path.insert(0, Finder())
        sys.path.append(str(workspace))
        with pytest.raises(WorkspaceRefused):
            watch.check()
        assert sys.meta_path[0] is block, "the session stays open although the call is refused"
    finally:
        release()
