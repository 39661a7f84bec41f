"""The state of a session at one moment."""

from __future__ import annotations

from dataclasses import dataclass

from aisotools.contracts import SandboxStatus


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
    """

    level: str
    calls: int
    workspace: str
    alive: bool = False
    memory_bytes: int = 0
    age_s: float = 0.0
    pid: int = 0
    generation: int = 0

    @classmethod
    def of(cls, sandbox: SandboxStatus, *, calls: int, workspace: str) -> SessionStatus:
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
        )
