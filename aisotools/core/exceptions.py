"""All exceptions that aisotools raises.

Failures that a model can cause are returned as a `ToolResult`. An exception is for the program or the person,
and its class says whose mistake it is::

    AisotoolsError
    ├── UsageError              the calling program's mistake
    │   ├── SignatureError      a function that cannot become a tool (also a TypeError)
    │   ├── RegistryError
    │   │   ├── UnknownTool     no tool of that name (also a KeyError)
    │   │   └── ToolClash       two tools of one name
    │   └── SessionClosed       the session was closed before the call
    ├── ToolError               a tool says what went wrong, for the model to read
    │   └── ArgumentError       arguments that do not fit the schema
    ├── WorkspaceError          a folder or path that may not be used
    │   ├── WorkspaceRefused    this folder cannot be a workspace
    │   └── PathOutside         a path that leaves the workspace
    ├── LedgerError             the record of a session cannot be kept, or is damaged
    ├── ModelError              a model gave no usable answer
    │   └── ReplayDiverged      a run that is replayed went another way than the recorded one
    └── SandboxError            our own environment failed, or cannot do what was asked
        ├── LevelUnavailable    this machine cannot hold the level that was demanded
        ├── WorkerDied          the worker ended in the middle of something
        ├── WorkerBroken        the worker cannot run calls any more, and is replaced
        └── ChannelError        the worker broke the protocol of the call channel
"""

from __future__ import annotations

import errno
import os

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
TOO_MANY_FILES = frozenset({errno.EMFILE, errno.ENFILE})
"""Errors of the system that say that no more files can be opened."""

CLOSE_FILES = "Too many files are open: close sessions or files, or raise the limit (`ulimit -n`)."
"""What to do where this process cannot open more of them."""
_REPAIR = "Repair that, and try again."


def as_clause(message: object) -> str:
    """Return a message without the full stops at its end, for a sentence that goes on after it."""
    return str(message).rstrip(" .")


def storage_remedy(error: OSError) -> str:
    """Return a sentence on what to do where something cannot be kept in the state folder."""
    if error.errno in _FULL:
        return "Make room there, or set XDG_STATE_HOME to another disk."
    if error.errno in TOO_MANY_FILES:
        return CLOSE_FILES
    return "See that it is there and can be written, or set XDG_STATE_HOME to another disk."


def too_many_files_remedy(error: OSError) -> str:
    """Return what to do where no more files can be opened, as a sentence after another; else nothing."""
    return f" {CLOSE_FILES}" if error.errno in TOO_MANY_FILES else ""


def explain_system_error(error: OSError) -> str:
    """Return what the system has refused, where that was, and what to do, in sentences."""
    place = f" ({os.fsdecode(error.filename)!a})" if isinstance(error.filename, str | bytes) else ""
    problem = f"{error.strerror or type(error).__name__}{place}."
    return f"{problem} {CLOSE_FILES if error.errno in TOO_MANY_FILES else _REPAIR}"


class AisotoolsError(Exception):
    """Base of every error that aisotools raises."""


class UsageError(AisotoolsError):
    """Misuse of the library by the calling program."""


class SignatureError(UsageError, TypeError):
    """A function cannot become a tool; the message names the parameter and the fix."""


class RegistryError(UsageError):
    """A tool cannot be registered or found."""


MAX_NAME_CHARS = 200
"""Characters of a name in a message: a model may ask for a tool by a name of any length."""


class UnknownTool(RegistryError, KeyError):
    """No tool of that name is registered.

    Attributes:
        name: The requested name.
        near: Similar registered names, nearest first.
        known: All registered names.
    """

    def __init__(self, name: str, near: tuple[str, ...] = (), known: tuple[str, ...] = ()) -> None:
        self.name = name
        self.near = near
        self.known = known
        super().__init__(name, near, known)

    def __str__(self) -> str:
        if self.near:
            hint = "Did you mean " + " or ".join(repr(n) for n in self.near) + "?"
        elif self.known:
            hint = "Registered tools: " + ", ".join(self.known) + "."
        else:
            hint = "No tools are registered."
        name = self.name if len(self.name) <= MAX_NAME_CHARS else self.name[:MAX_NAME_CHARS] + "..."
        return f"There is no tool named {name!r}. {hint}"


class ToolClash(RegistryError):
    """Two different tools have the same name."""


class SessionClosed(UsageError):
    """The session was closed; open a new one."""


class ToolError(AisotoolsError):
    """Raised by a tool to answer the model with an error it can act on.

    Attributes:
        recoverable: True if a different call may succeed.
    """

    def __init__(self, message: str, *, recoverable: bool = True) -> None:
        super().__init__(message)
        self.recoverable = recoverable


class ArgumentError(ToolError):
    """The arguments of a call do not fit the tool's schema."""


class WorkspaceError(AisotoolsError):
    """A folder or path may not be used."""


class WorkspaceRefused(WorkspaceError):
    """A folder cannot be a workspace; the message says why, and what to use instead."""


class PathOutside(WorkspaceError):
    """A path leads out of the workspace."""


class LedgerError(AisotoolsError):
    """A ledger cannot be written or read, or is damaged.

    Attributes:
        retryable: True if the same may succeed later, such as when there is room on the disk again.
    """

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        """Describe the problem."""
        super().__init__(message)
        self.retryable = retryable


class ModelError(AisotoolsError):
    """A model returned no answer, or an unusable one.

    Attributes:
        retryable: True if the same request may succeed later.
        retry_after_s: Seconds that the provider asks to wait; None if it does not say.
    """

    def __init__(self, message: str, *, retryable: bool = False, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retryable = retryable
        self.retry_after_s = retry_after_s


class ReplayDiverged(ModelError):
    """A replayed run differs from the recorded one; the message says where."""


class SandboxError(AisotoolsError):
    """Failure of the sandbox itself; neither the model nor the tool caused it."""


class LevelUnavailable(SandboxError):
    """The required confinement level is not available on this machine."""


class WorkerDied(SandboxError):
    """The worker ended in the middle of a call.

    Its message is a clause in which `it` is the worker, to follow "The worker ended: ".

    Attributes:
        last_words: End of its raw output, at most a few KiB.
        is_broken: Whether it ended because calls could not run in it any more; see `WorkerBroken`.
    """

    def __init__(self, message: str, *, last_words: str = "", is_broken: bool = False) -> None:
        super().__init__(message)
        self.last_words = last_words
        self.is_broken = is_broken


class WorkerBroken(SandboxError):
    """What a worker needs to run calls at all does not work in it any more: it has to be replaced."""


class ChannelError(SandboxError):
    """A frame on the call channel was malformed or over its limits."""
