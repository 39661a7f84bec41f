"""Sessions in a pool: whatever is promised of a session holds there, too.

Tests with the mark `pooled` run twice, with a session alone and with one of a pool. With the option
`--pooled`, all tests of real sessions run in a pool.
"""

from __future__ import annotations

from typing import Any, TypeVar

import pytest

from aisotools.sandbox.host.sandbox import LocalSandbox
from aisotools.session.pool import SessionPool, _pooled_factory
from aisotools.session.pooled_sandbox import PooledSandbox
from aisotools.session.session import Session

ALONE, POOLED = "alone", "in a pool"


def open_in_pool(pool: SessionPool, /, **options: Any) -> Session:
    """Return a new session as `SessionPool.get` makes it, at a workspace and with options of its own."""
    sandbox = options.pop("sandbox", LocalSandbox)
    return Session(sandbox=_pooled_factory(sandbox, pool._slots, pool._adopt), **options)


Own = TypeVar("Own", bound=LocalSandbox)


def sandbox_of(session: Session, kind: type[Own]) -> Own:
    """Return the sandbox of a session, or the one that a pool has given it; it must have one of this kind."""
    sandbox: object = session.sandbox
    if isinstance(sandbox, PooledSandbox):
        sandbox = sandbox.live
    assert isinstance(sandbox, kind), f"{session} has no such sandbox now"
    return sandbox


def local_sandbox(session: Session) -> LocalSandbox:
    """Return the sandbox of a session, or the one that a pool has given it; it must have one."""
    return sandbox_of(session, LocalSandbox)


def place_of(request: pytest.FixtureRequest) -> str:
    """Return where a fixture is to open its sessions."""
    place: str = getattr(request, "param", POOLED if request.config.getoption("--pooled") else ALONE)
    return place


def parametrize(metafunc: pytest.Metafunc, fixture: str) -> None:
    """Run a test with the mark `pooled` in both places, unless the option asks for one of them."""
    is_marked = metafunc.definition.get_closest_marker("pooled") is not None
    if is_marked and fixture in metafunc.fixturenames and not metafunc.config.getoption("--pooled"):
        metafunc.parametrize(fixture, [ALONE, POOLED], indirect=True)
