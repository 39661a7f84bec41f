"""Every error aisotools raises, in one tree.

A failure that a model can cause comes back as a `ToolResult`; what is raised is somebody else's to mend, and
the class says whose::

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
        └── ChannelError        the worker broke the protocol of the call channel
"""

from __future__ import annotations


class AisotoolsError(Exception):
    """Base of every error that aisotools raises."""


class UsageError(AisotoolsError):
    """The calling program used the library in a way that cannot work."""


class SignatureError(UsageError, TypeError):
    """A function cannot become a tool; the message names the parameter and the fix."""


class RegistryError(UsageError):
    """A registry was asked for something that cannot be."""


class UnknownTool(RegistryError, KeyError):
    """No tool of that name is registered.

    Attributes:
        name: What was asked for.
        near: Registered names that look like it, the nearest first.
    """

    def __init__(self, name: str, near: tuple[str, ...] = (), known: tuple[str, ...] = ()) -> None:
        """Remember the name and compose the message from it."""
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
        return f"There is no tool named {self.name!r}. {hint}"


class ToolClash(RegistryError):
    """Two different tools want one name."""


class SessionClosed(UsageError):
    """The session was closed; open a new one."""


class ToolError(AisotoolsError):
    """Raised by a tool to answer the model with an error it can act on.

    Attributes:
        recoverable: Whether another call, made differently, may succeed.
    """

    def __init__(self, message: str, *, recoverable: bool = True) -> None:
        """Take the message that the model will read."""
        super().__init__(message)
        self.recoverable = recoverable


class ArgumentError(ToolError):
    """The arguments of a call do not fit the tool's schema."""


class WorkspaceError(AisotoolsError):
    """A folder or path may not be used."""


class WorkspaceRefused(WorkspaceError):
    """This folder cannot be a workspace; the message says why and what would do."""


class PathOutside(WorkspaceError):
    """A path leads out of the workspace."""


class LedgerError(AisotoolsError):
    """The record of a session cannot be written or read, or was damaged."""


class ModelError(AisotoolsError):
    """A model gave no answer, or none that can be used.

    Attributes:
        retryable: Whether the same request may succeed later.
        retry_after_s: How long the provider asks to wait first; None when it does not say.
    """

    def __init__(self, message: str, *, retryable: bool = False, retry_after_s: float | None = None) -> None:
        """Take the message, and what may be done about it."""
        super().__init__(message)
        self.retryable = retryable
        self.retry_after_s = retry_after_s


class ReplayDiverged(ModelError):
    """A run that is replayed asks for something else than the recorded one; the message says where."""


class SandboxError(AisotoolsError):
    """The sandbox itself failed; neither the model nor the tool is at fault."""


class LevelUnavailable(SandboxError):
    """This machine cannot hold the confinement level that was demanded."""


class WorkerDied(SandboxError):
    """The worker ended in the middle of a call.

    Attributes:
        last_words: The end of what it wrote to its raw output, at most a few KiB.
    """

    def __init__(self, message: str, *, last_words: str = "") -> None:
        """Take the story and the last output of the worker."""
        super().__init__(message)
        self.last_words = last_words


class ChannelError(SandboxError):
    """A frame on the call channel was malformed or over its limits."""
