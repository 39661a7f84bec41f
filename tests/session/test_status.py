"""A session's status: its limits, and why the machine does not hold a stronger level."""

from __future__ import annotations

from aisotools.core.retention import Retained
from aisotools.core.sandboxes import SandboxStatus
from aisotools.notebook.render.listing import status_bundle
from aisotools.policy.rules import Policy
from aisotools.sandbox.confinement.detect import ENABLED_BY, Detection, Probe
from aisotools.sandbox.limits import Limits
from aisotools.session.status import (
    DiskUse,
    SessionStatus,
    describe_limits,
    describe_retained,
    measure_disk,
    missing_levels,
)
from aisotools.session.undo_history import NoUndoHistory
from aisotools.workspace.checkpoints.timeline import KEPT_BYTES
from tests.conftest import OpenSession

FOUND = Detection(
    "guarded",
    (
        Probe("guarded", True, "holds"),
        Probe("confined", False, "ABI 4"),
        Probe("isolated", False, "unshare: EPERM"),
    ),
)


def test_missing_levels_come_with_the_reason_and_the_remedy() -> None:
    isolated, confined = missing_levels("guarded", FOUND)
    assert isolated == f"isolated: unshare: EPERM. It takes: {ENABLED_BY['isolated']}"
    assert confined == f"confined: ABI 4. It takes: {ENABLED_BY['confined']}"
    assert missing_levels("isolated", FOUND) == ()
    assert len(missing_levels(None, Detection(None, ()))) == 3


def test_supported_level_that_was_not_chosen_is_not_missing() -> None:
    found = Detection("confined", (Probe("guarded", True, ""), Probe("confined", True, "")))
    assert [line.partition(":")[0] for line in missing_levels("guarded", found)] == ["isolated"]


def test_limits_are_described_in_one_line() -> None:
    text = describe_limits(Limits(cpu_s=2.5, disk_bytes=None, stream_bytes=100))
    for part in ("memory_bytes 4 GiB", "cpu_s 2.5 s", "disk_bytes unlimited", "stream_bytes 100 bytes"):
        assert part in text


def test_status_as_the_magic_shows_it() -> None:
    status = SessionStatus.of(
        SandboxStatus(level="guarded", alive=True, pid=7, memory_bytes=9 << 20, age_s=3),
        calls=2,
        workspace="/w",
        limits=Limits(),
        missing=missing_levels("guarded", FOUND),
    )
    text = status_bundle(status, "safe", {"guarded": ("does", "does not")})["text/plain"]
    for part in ("process 7", "9 MiB", "memory_bytes 4 GiB", "unshare: EPERM", "does not"):
        assert part in text


async def test_status_has_the_limits_once_the_session_is_open(open_session: OpenSession) -> None:
    session = open_session()
    assert session.status().limits is None
    await session.start()
    assert session.status().limits == Limits()


def test_the_memory_that_the_host_retains_is_shown() -> None:
    assert describe_retained(Retained(0, 64 << 20)) == "0.0 MiB of 64 MiB for events, results and checkpoints"
    retained = Retained(3 << 20, 64 << 20, dropped_events=1200)
    taken = "3.0 MiB of 64 MiB for events, results and checkpoints"
    expected = f"{taken}; 1,200 events dropped: over the session's budget"
    assert describe_retained(retained) == expected
    status = SessionStatus(level="guarded", calls=1, workspace="/w", retained=retained)
    assert expected in status_bundle(status, "safe", {})["text/plain"]


async def test_disk_use_is_shown(open_session: OpenSession) -> None:
    session = open_session(policy=Policy(mode="auto"))
    assert session.status().disk is None
    await session.start()
    await session.call("sandbox_write", {"path": "a", "content": "x" * 3_000_000})
    disk = session.status().disk
    assert disk is not None
    assert session.log_path is not None
    assert 3_000_000 < disk.checkpoint_bytes < 3_100_000
    assert (disk.checkpoint_limit_bytes, disk.ledger_bytes) == (KEPT_BYTES, session.log_path.stat().st_size)
    shown = "2.9 MiB of 1 GiB for undo, 0.0 MiB for the ledger, which only grows"
    assert str(disk) == shown
    assert shown in status_bundle(session.status(), "auto", {})["text/plain"]
    session.log_path.unlink()
    assert measure_disk(NoUndoHistory(), session.log_path) == DiskUse(
        checkpoint_bytes=0, checkpoint_limit_bytes=0, ledger_bytes=0
    )
