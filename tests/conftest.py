"""Fixtures for all tests: places of their own, and sessions that are closed again."""

from __future__ import annotations

import gc
import os
import sys
import tempfile
import zlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from functools import cache, partial
from pathlib import Path
from typing import Any

# Some images set it. What is imported from here on would be compiled again and again, in each process.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# `jsonschema` checks addresses in any script by it, which nobody asks for here: each process that imports it
# would build forty parsers, for two seconds and in 20 MB.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]  # as of a package that is not there

import pytest
from hypothesis import Phase, settings

from aisotools.core.protocols import Tool
from aisotools.session.pool import SessionPool
from aisotools.session.session import Session
from aisotools.testing.fakes import FakeSandbox
from aisotools.tools.registry import ToolRegistry
from tests import host_guard, pooled

# How long an example takes says more about the machine's other work than about the code: see benchmarks.
# Examples that failed are not kept, since tests write nothing into the checkout: what is printed repeats one.
settings.register_profile("aisotools", deadline=None, max_examples=50, print_blob=True)
settings.register_profile("thorough", deadline=None, max_examples=300, print_blob=True)
# Mutants are tried with the same examples each time, and nobody reads the smallest one that fails.
settings.register_profile(
    "mutants",
    deadline=None,
    max_examples=100,
    derandomize=True,
    database=None,
    phases=(Phase.explicit, Phase.generate),
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "aisotools"))

OpenSession = Callable[..., Session]
"""Makes a session of these tools and options; it opens itself at its first call and is closed by the test."""


@pytest.fixture
def environ(tmp_path: Path) -> Mapping[str, str]:
    """Where a session looks up settings: a home of the test's own."""
    (tmp_path / "home").mkdir()
    return {"HOME": str(tmp_path / "home"), "XDG_STATE_HOME": str(tmp_path / "state")}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of `pooled`."""
    parser.addoption("--pooled", action="store_true", help="open all real sessions of tests in a pool")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Have tests with the mark `pooled` run with a session alone and in a pool."""
    pooled.parametrize(metafunc, "real_session")


def pytest_configure(config: pytest.Config) -> None:
    """The machine's own files are watched: a test that changes one fails, see `host_guard`.

    And what asks for a folder of the user's to keep things in, in this process or below, is not given the
    user's own, which it would fill. The processes that share the work have those of the one that started
    them.
    """
    host_guard.install(config, host_guard.usual(os.environ))
    if "PYTEST_XDIST_WORKER" not in os.environ:
        folder = tempfile.TemporaryDirectory(prefix="aisotools-tests-")
        config.add_cleanup(folder.cleanup)
        for variable in ("HYPOTHESIS_STORAGE_DIRECTORY", "IPYTHONDIR", "MPLCONFIGDIR", "XDG_STATE_HOME"):
            os.environ[variable] = str(Path(folder.name, variable))
            Path(folder.name, variable).mkdir()


LONG = (
    "test_hostile_work.py",
    "test_timeline_faults.py",
    "worker/test_reader.py",
    "test_path_rules.py",
    "test_path_rules_later.py",
    "test_stopping.py",
    "test_guards_mode.py",
    "test_parsing.py",
    "test_outliving.py",
    "test_monitor.py",
    "host/test_sandbox.py",
    "test_host_guard.py",
    "test_protection_unwatched.py",
    "worker/test_worker.py",
    "checkpoints/test_timeline.py",
    "host/test_displays.py",
)
"""Modules that take longest, the longest first. The whole suite would wait for one of them in the end."""


@pytest.hookimpl(tryfirst=True)  # before those are left out that are marked as slow
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long modules come first, in the processes that share the work; of many variants, a sample runs."""
    _mark_what_is_not_sampled(items)
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: _rank(item.path))


@cache
def _rank(path: Path) -> int:
    name = path.as_posix()
    return next((rank for rank, long in enumerate(LONG) if name.endswith(long)), len(LONG))


def _mark_what_is_not_sampled(items: list[pytest.Item]) -> None:
    """Mark as slow all variants of a test beyond the number that its mark `sample` names.

    The choice looks random, so that it holds some of each parameter, and is the same each time.
    """
    variants: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("sample") is not None and item.get_closest_marker("slow") is None:
            variants.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for same in variants.values():
        mark = same[0].get_closest_marker("sample")
        assert mark is not None
        (count,) = mark.args
        same.sort(key=lambda item: zlib.crc32(item.name.encode()))
        for item in same[count:]:
            item.add_marker(pytest.mark.slow)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is collected stays to the end: looking through it for garbage takes two fifths of that time."""
    gc.disable()
    try:
        yield
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """The whole suite runs in several processes, a module to a process; what is named runs here, in order."""
    whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    if "PYTEST_XDIST_WORKER" in os.environ:
        return  # one of those processes itself
    if whole and config.pluginmanager.hasplugin("xdist") and config.option.numprocesses is None:
        # One more than there are cores: a third of the time, tests wait for processes to start and to end.
        config.option.numprocesses = 1 + max(1, min(4, os.cpu_count() or 1))
        config.option.dist = "loadfile"
        config.option.loadscopereorder = False  # they are in order; see below


@pytest.fixture
async def open_session(tmp_path: Path, environ: Mapping[str, str]) -> AsyncIterator[OpenSession]:
    """Sessions on a fake sandbox, without confinement or processes."""
    async with AsyncExitStack() as stack:
        yield partial(_session, stack, tmp_path / "workspace", environ, sandbox=FakeSandbox)


@pytest.fixture
async def real_session(
    tmp_path: Path, environ: Mapping[str, str], request: pytest.FixtureRequest
) -> AsyncIterator[OpenSession]:
    """Sessions on the real sandbox, at the best level that this machine holds; see `pooled`."""
    async with AsyncExitStack() as stack:
        make: Callable[..., Session] = Session
        if pooled.place_of(request) == pooled.POOLED:
            pool = SessionPool(root=tmp_path)
            stack.push_async_callback(pool.close)
            make = partial(pooled.open_in_pool, pool)
        yield partial(_session, stack, tmp_path / "workspace", environ, make=make)


def _session(
    stack: AsyncExitStack,
    workspace: Path,
    environ: Mapping[str, str],
    /,
    *tools: Tool,
    make: Callable[..., Session] = Session,
    **options: Any,
) -> Session:
    if tools:
        options["registry"] = ToolRegistry(tools)
    given: dict[str, Any] = {"workspace": workspace, "environ": environ, **options}
    session = make(**given)
    stack.push_async_callback(session.close)
    return session
