"""The state of a session at one moment: what `%sandbox status` says of its level, limits and memory."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Protocol

from aisotools.core.retention import Retained
from aisotools.core.sandboxes import SandboxStatus
from aisotools.sandbox.confinement import levels
from aisotools.sandbox.confinement.detect import ENABLED_BY, Detection
from aisotools.sandbox.limits import Limits, format_amount


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskUse:
    """What a session keeps on the disk, in bytes.

    Attributes:
        checkpoint_bytes: The contents of files that undo needs, of all sessions on the workspace.
        checkpoint_limit_bytes: Above it the oldest calls can no longer be undone.
        ledger_bytes: The record of all calls, which nothing is removed from.
    """

    checkpoint_bytes: int
    checkpoint_limit_bytes: int
    ledger_bytes: int

    def __str__(self) -> str:
        limit = format_amount("limit_bytes", self.checkpoint_limit_bytes)
        checkpoints = f"{self.checkpoint_bytes / (1 << 20):.1f} MiB of {limit} for undo"
        return f"{checkpoints}, {self.ledger_bytes / (1 << 20):.1f} MiB for the ledger, which only grows"


class KeepsContents(Protocol):
    """A history that may keep contents of files on the disk."""

    @property
    def disk_bytes(self) -> tuple[int, int]:
        """Return how much is kept, and the limit, in bytes; zeros if the history keeps nothing."""


def measure_disk(history: KeepsContents, ledger: Path | None) -> DiskUse:
    """Return what a session keeps on the disk."""
    used, limit = history.disk_bytes
    try:
        size = 0 if ledger is None else ledger.stat().st_size
    except OSError:
        size = 0  # the file was removed; the next call reports that
    return DiskUse(checkpoint_bytes=used, checkpoint_limit_bytes=limit, ledger_bytes=size)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStatus:
    """The state of a session at one moment.

    Attributes:
        level: The confinement level; empty before the session is open.
        calls: Number of calls that reached the gate.
        workspace: The folder that tools may change; empty before the session is open.
        alive: Whether a worker is up.
        memory_bytes: Memory of the worker and its processes, at most; see `SandboxStatus.memory_bytes`.
        age_s: Seconds since the worker started.
        pid: The worker's process id, or 0.
        generation: Number of workers so far.
        limits: The sandbox's limits; None before the session is open.
        missing: For each stronger level, why this machine does not support it and what would enable it.
        allowed_protected: The protected names that may be written.
        retained: The memory of the host that it takes; None if it is not known.
        recovered: What of an earlier undo or call was completed, ended as it was, or is lost, in sentences.
        disk: What it keeps on the disk; None if it is not known.
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
    allowed_protected: tuple[str, ...] = ()
    retained: Retained | None = None
    recovered: tuple[str, ...] = ()
    disk: DiskUse | None = None

    @classmethod
    def of(
        cls,
        sandbox: SandboxStatus,
        *,
        calls: int,
        workspace: str,
        limits: Limits | None = None,
        missing: tuple[str, ...] = (),
        allowed_protected: tuple[str, ...] = (),
        retained: Retained | None = None,
        recovered: tuple[str, ...] = (),
        disk: DiskUse | None = None,
    ) -> SessionStatus:
        """Return the status of an open session whose sandbox has the status `sandbox`."""
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
            allowed_protected=allowed_protected,
            retained=retained,
            recovered=recovered,
            disk=disk,
        )


def missing_levels(level: str | None, found: Detection) -> tuple[str, ...]:
    """Return, for each unsupported level above `level`, why it is unsupported and what would enable it.

    Args:
        level: The level of the session; None stands for the weakest.
        found: The levels that were detected on this machine.
    """
    above = levels.LEVELS[levels.LEVELS.index(level) + 1 :] if level else levels.LEVELS[1:]
    failed = {probe.name: probe.detail for probe in found.probes if not probe.ok}
    return tuple(
        f"{name}: {failed.get(name, 'it was not tried')}. It takes: {ENABLED_BY[name]}"
        for name in reversed(above)
        if name in failed or found.level is None or not levels.at_least(found.level, name)
    )


def describe_retained(retained: Retained) -> str:
    """Return in one line what the host retains for a session, and what was dropped."""
    limit = format_amount("limit_bytes", retained.limit_bytes)
    text = f"{retained.used_bytes / (1 << 20):.1f} MiB of {limit} for events, results and checkpoints"
    if retained.dropped_events:
        text += f"; {retained.dropped_events:,} events dropped: over the session's budget"
    return text


def describe_limits(limits: Limits) -> str:
    """Return the limits in one line, by the names of their settings."""
    return ", ".join(
        f"{field.name} {format_amount(field.name, getattr(limits, field.name))}" for field in fields(limits)
    )
