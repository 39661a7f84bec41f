"""A call on its way to the worker: as the channel carries it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_core import to_json

from aisotools.contracts import SandboxCall
from aisotools.sandbox.calls import Pending
from aisotools.sandbox.link import Link


def send(link: Link, request: SandboxCall, watch: Mapping[str, Any], attached: Sequence[int] = ()) -> Pending:
    """Send a call, and its tool if the worker does not have it.

    Args:
        link: The worker.
        request: The call.
        watch: How it is watched.
        attached: Descriptors that go along.

    Raises:
        WorkerDied: If the worker is gone already.
        ChannelError: If the call is too large to send.
    """
    call, shipment, caps = request.call, request.shipment, request.output_caps
    header: dict[str, Any] = {
        "key": shipment.key,
        "concurrency": shipment.concurrency,
        "agent_id": call.agent_id,
        "turn_id": call.turn_id,
        "session_key": request.session_key,
        "read_only": request.read_only,
        "caps": caps,
        **watch,
    }
    parts = [to_json(call.arguments)]
    if shipment.import_path:
        header["import_path"] = shipment.import_path
    elif shipment.key not in link.shipped:
        parts.append(shipment.payload)
    pending = link.start_call(
        call.id,
        header,
        parts,
        stream_bytes=caps.stream_bytes,
        holds=shipment.concurrency != "overlap",
        attached=attached,
    )
    link.shipped.add(shipment.key)
    return pending
