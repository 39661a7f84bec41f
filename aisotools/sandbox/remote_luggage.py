"""What a remote kernel is sent before the first call: our module, and the package if it is not there."""

from __future__ import annotations

import base64
import importlib.util
import io
import json
import zipfile
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from aisotools.contracts import SandboxCall
from aisotools.exceptions import WorkerDied
from aisotools.sandbox.remote_link import RemoteLink

_PACKAGE = Path(__file__).resolve().parent.parent
_STAYS = ("notebook", "bridges", "models", "tutorials")
_PART_CHARS = 2 << 20
_NEEDED = (3, 11)


async def settle(link: RemoteLink, folder: str, timeout_s: float) -> Mapping[str, Any]:
    """Make a kernel ready for our tools; what it says about itself.

    Args:
        link: The kernel.
        folder: Its workspace there, made if it is missing.
        timeout_s: How long each step may take.

    Raises:
        WorkerDied: If it is no kernel that can run them; the message says why.
    """
    told = await link.ask(f"{_MODULE}.hello({json.dumps(folder)})", timeout_s, _installation())
    python = told.get("python")
    if not isinstance(python, list) or len(python) != 2 or not all(type(n) is int for n in python):
        raise WorkerDied("it is no Python kernel, or does not say what it is")
    if tuple(python) < _NEEDED:
        here, needed = ".".join(map(str, python)), ".".join(map(str, _NEEDED))
        raise WorkerDied(f"its Python is {here}, and the tools need {needed} or newer. Use another kernel")
    if told.get("aisotools") != version("aisotools"):
        await carry(link, _archive(), timeout_s)
        await link.ask(f"{_MODULE}.Answer({{}})", timeout_s, f"{_MODULE}.unpack()")
    return told


_MODULE = '__import__("sys").modules["aisotools_remote"]'


def _installation() -> str:
    source = (_PACKAGE / "sandbox" / "remote_side.py").read_text("utf-8")
    lines = (
        "def _install(source):",
        "    import sys, types",
        '    module = sys.modules["aisotools_remote"] = types.ModuleType("aisotools_remote")',
        '    exec(compile(source, "<aisotools>", "exec"), module.__dict__)',
        f"_install({source!r})",
        "del _install",
    )
    return "\n".join(lines)


@cache
def _archive() -> bytes:
    """The package and cloudpickle, as a zip."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, place in (("aisotools", _PACKAGE), ("cloudpickle", _place("cloudpickle"))):
            for path in sorted(place.rglob("*.py")):
                inner = path.relative_to(place)
                if inner.parts[0] not in _STAYS:
                    archive.write(path, f"{name}/{inner.as_posix()}")
    return buffer.getvalue()


def _place(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


async def carry(link: RemoteLink, data: bytes, timeout_s: float) -> None:
    """Have the kernel take `data`, in as many messages as it needs."""
    for part in _parts(data):
        await link.ask(f"{_MODULE}.Answer({{}})", timeout_s, f"{_MODULE}.take({json.dumps(part)})")


def _parts(data: bytes) -> Iterator[str]:
    text = base64.b64encode(data).decode("ascii")
    for start in range(0, len(text), _PART_CHARS):
        yield text[start : start + _PART_CHARS]


def order_for(request: SandboxCall, shipped: bool) -> bytes:
    """A call, with its tool unless the kernel has it, as our module there takes it."""
    from dataclasses import asdict

    from pydantic_core import to_json

    call, shipment = request.call, request.shipment
    payload = b"" if shipped or shipment.import_path else shipment.payload
    return to_json(
        {
            "key": shipment.key,
            "import_path": shipment.import_path,
            "payload": base64.b64encode(payload).decode("ascii"),
            "arguments": call.arguments,
            "caps": asdict(request.output_caps),
            "agent_id": call.agent_id,
            "turn_id": call.turn_id,
            "call_id": call.id,
            "session_key": request.session_key,
            "read_only": request.read_only,
        }
    )


def cell_for(order: bytes, nonce: str, *, overlap: bool, own_kind: bool) -> tuple[list[str], str, str]:
    """The cells that a call takes: those that bring it, the one that runs it, and what tells its result."""
    *before, last = _parts(order)
    runs = f"{_MODULE}.take({json.dumps(last)}); "
    runs += f"await {_MODULE}.run_async({nonce!r})" if overlap else f"{_MODULE}.run({nonce!r})"
    told = f"{_MODULE}.answer({nonce!r}, {own_kind})"
    return [f"{_MODULE}.take({json.dumps(part)})" for part in before], runs, told
