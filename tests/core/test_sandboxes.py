"""Values and Protocols of sandboxes."""

from __future__ import annotations

from aisotools.core.protocols import ToolPayload
from aisotools.core.sandboxes import (
    SandboxCall,
    SupportsDetection,
    SupportsLeastLevel,
    SupportsPlaces,
    SupportsRemoteLocation,
    SupportsSnapshotProcesses,
    SupportsSnapshots,
    SupportsSupervisor,
)
from aisotools.core.types import ToolCall

CAPABILITIES = (
    SupportsDetection,
    SupportsLeastLevel,
    SupportsPlaces,
    SupportsRemoteLocation,
    SupportsSnapshotProcesses,
    SupportsSnapshots,
    SupportsSupervisor,
)


def test_a_call_that_says_nothing_of_itself_gets_the_cautious_answer() -> None:
    """It may have changed the variables, may write, and what it started is ended with the next stop."""
    request = SandboxCall(
        call=ToolCall("1", "t", {}), shipment=ToolPayload(key="k", import_path="m:f"), timeout_s=1.0
    )
    assert (request.changes_variables, request.read_only, request.starts_task) == (True, False, False)


def test_nothing_has_a_capability_that_it_does_not_declare() -> None:
    assert not any(isinstance(object(), capability) for capability in CAPABILITIES)

    class Supervised:
        supervisor = 1
        worker_pid = 2

    assert [c for c in CAPABILITIES if isinstance(Supervised(), c)] == [SupportsSupervisor]
