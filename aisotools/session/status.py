"""The state of a session at one moment."""

from __future__ import annotations

from dataclasses import dataclass, fields

from aisotools.core.protocols import SandboxStatus
from aisotools.sandbox.confinement import levels
from aisotools.sandbox.confinement.detect import ENABLED_BY, Detection
from aisotools.sandbox.limits import Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStatus:
    """A session at one moment.

    Attributes:
        level: The confinement level; empty before the session is open.
        alive: Whether a worker is up.
        memory_bytes: Memory of the worker.
        calls: How many calls reached the gate.
        age_s: Seconds since the worker started.
        pid: The worker's process id, or 0.
        generation: How many workers there have been.
        workspace: The folder that tools may change; empty before the session is open.
        limits: What the sandbox may use up; None before the session is open.
        missing: For each stronger level, why this machine does not hold it and what would enable it.
    """

    level: str
    calls: int
    workspace: str
    alive: bool = False
    memory_bytes: int = 0
    age_s: float = 0.0
    pid: int = 0
    generation: int = 0
    limits: Limits | None = None
    missing: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        sandbox: SandboxStatus,
        *,
        calls: int,
        workspace: str,
        limits: Limits | None = None,
        missing: tuple[str, ...] = (),
    ) -> SessionStatus:
        """The status of a session that is open."""
        return cls(
            level=sandbox.level,
            calls=calls,
            workspace=workspace,
            alive=sandbox.alive,
            memory_bytes=sandbox.memory_bytes,
            age_s=sandbox.age_s,
            pid=sandbox.pid,
            generation=sandbox.generation,
            limits=limits,
            missing=missing,
        )


def missing_levels(level: str | None, found: Detection) -> tuple[str, ...]:
    """For each level above this one that the machine does not hold: why not, and what would enable it."""
    above = levels.LEVELS[levels.LEVELS.index(level) + 1 :] if level else levels.LEVELS[1:]
    failed = {probe.name: probe.detail for probe in found.probes if not probe.ok}
    return tuple(
        f"{name}: {failed.get(name, 'it was not tried')}. It takes: {ENABLED_BY[name]}"
        for name in reversed(above)
        if name in failed or found.level is None or not levels.at_least(found.level, name)
    )


def told_limits(limits: Limits) -> str:
    """The limits in one line, by the names under which they are set."""
    return ", ".join(f"{one.name} {_amount(one.name, getattr(limits, one.name))}" for one in fields(limits))


def _amount(name: str, value: float | None) -> str:
    if value is None:
        return "unlimited"
    if name.endswith("_s"):
        return f"{value:g} s"
    if not name.endswith("_bytes"):
        return f"{value:,}"
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if value >= size:
            return f"{value / size:g} {unit}"
    return f"{value:g} bytes"
