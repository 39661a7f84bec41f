"""Level `isolated`, put together: namespaces, a root of its own, and the confinement inside."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NoReturn

from aisotools.core.exceptions import SandboxError
from aisotools.sandbox.confinement import levels, namespaces, rootfs
from aisotools.sandbox.confinement import rootfs as shields

ALIAS = rootfs.ALIAS
"""Where the workspace is seen, beside its own path."""

MEMORY_BYTES = 256 << 20
"""Size of each of the folders in memory, /tmp and /dev/shm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """What must be seen inside for Python to work, found out once.

    Attributes:
        paths: Files and folders.
        found: What lies there.
        needed: Files that must be the same ones inside: path, device and number.
    """

    paths: tuple[str, ...]
    found: Mapping[str, rootfs.HostEntry]
    needed: Mapping[str, tuple[int, int]]

    @classmethod
    def running(cls) -> Interpreter:
        """The one that runs this.

        Raises:
            SandboxError: It lives in a home folder; see `confine.interpreter_paths`.
        """
        paths = levels.interpreter_paths()
        return cls(
            paths=paths,
            found=rootfs.look((*paths, *rootfs.ALWAYS), follow=True),
            needed=rootfs.identities(levels.files_in_use(paths)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolation:
    """What a worker at level `isolated` is left with.

    Attributes:
        interpreter: What it needs to run at all.
        readable: Further paths to be read.
        workspace: The folder it may change.
        scratch: Its home and temporary files.
        protected: What in the workspace is to be read only.
        memory_bytes: Size of each folder in memory.
        landlock_abi: Use at most this version of Landlock.
    """

    interpreter: Interpreter
    readable: tuple[str, ...] = ()
    workspace: str
    scratch: str
    protected: shields.ProtectedNames
    memory_bytes: int = MEMORY_BYTES
    landlock_abi: int | None = None

    def confinement(self, root: rootfs.RootPlan) -> levels.Confinement:
        """What comes on top of a root of its own."""
        inside = (*rootfs.PRIVATE, *((rootfs.ALIAS,) if root.alias else ()))
        return levels.Confinement(
            level="isolated",
            writable=(self.workspace, self.scratch, *inside),
            readable=(*self.interpreter.paths, *rootfs.ALWAYS, *self.readable, "/proc"),
            landlock_abi=self.landlock_abi,
        )

    def root(self) -> rootfs.RootPlan:
        """What it sees; to be asked where all of it can be reached."""
        return rootfs.plan_root(
            interpreter=self.interpreter.found,
            readable=rootfs.look(self.readable, follow=False),
            workspace=self.workspace,
            scratch=self.scratch,
            memory_bytes=self.memory_bytes,
        )


def start(
    wanted: Isolation, users: namespaces.UserNamespaces, child: Callable[[namespaces.Parted], NoReturn]
) -> namespaces.NamespaceProcesses:
    """Fork `child` in namespaces of its own; it is to call `settle`.

    Raises:
        SandboxError: It could not be done; the message says why.
    """
    return namespaces.start(users, wanted.root(), child)


def settle(wanted: Isolation, parted: namespaces.Parted) -> None:
    """In the child: build the root, confine, and check that all holds.

    Raises:
        SandboxError: A step failed, or something does not hold; the process must end.
    """
    root = parted.plan
    plan = wanted.confinement(root)
    try:
        points = rootfs.enter(root, parted.trees, wanted.protected)
    except OSError as error:
        raise SandboxError(f"The root of a worker could not be built: {error}.") from error
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        table = file.read()
    parted.bind()
    found = [*rootfs.flaws(root, points, wanted.interpreter.needed, table)]
    levels.confine(plan)
    found += levels.verify(plan)
    if found:
        raise SandboxError("the isolation does not hold: " + "; ".join(found))
