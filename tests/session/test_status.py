"""A session's status: its limits, and why the machine does not hold a stronger level."""

from __future__ import annotations

from aisotools.core.sandboxes import SandboxStatus
from aisotools.core.truncation import Retained
from aisotools.notebook.render.listing import status_bundle
from aisotools.sandbox.confinement.detect import ENABLED_BY, Detection, Probe
from aisotools.sandbox.limits import Limits
from aisotools.session.status import SessionStatus, describe_limits, describe_retained, missing_levels
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
