"""Level `isolated`, put together: namespaces, a root of its own, and the confinement on top of both.

Threat: one layer of several is left out or comes too late, and code finds the host's files, processes or
network.
Mechanism: the order is fixed here: a child is forked in namespaces of its own, builds and enters its root,
confines itself, and compares what it then sees with what was planned. Only after that is code of a stranger
run.
Race: none inside: until then the process has one thread and runs our code alone. Outside, a folder that is to
be shown may be replaced before it is cloned; what is mounted is what was there then, at the planned place.
Failure: each step raises, the worker reports why and ends before it has taken a call. Its namespaces end with
it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NoReturn

from aisotools.core.exceptions import SandboxError
from aisotools.sandbox.confinement import levels, namespaces, protected_mounts, rootfs

MEMORY_FOLDER_BYTES = 256 << 20
"""Size of each of the folders in memory, /tmp and /dev/shm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """The files that must be visible inside for Python to work, found out once.

    Attributes:
        paths: Files and folders.
        entries: What lies there.
        identities: Files that must be the same ones inside, each with its device and inode number.
    """

    paths: tuple[str, ...]
    entries: Mapping[str, rootfs.HostEntry]
    identities: Mapping[str, tuple[int, int]]

    @classmethod
    def running(cls) -> Interpreter:
        """Return the one that runs this.

        Raises:
            SandboxError: It lives in a home folder; see `levels.interpreter_paths`.
        """
        paths = levels.interpreter_paths()
        return cls(
            paths=paths,
            entries=rootfs.look_up((*paths, *rootfs.ALWAYS_SHOWN), follow=True),
            identities=rootfs.file_identities(levels.files_in_use(paths)),
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
    protected: protected_mounts.ProtectedNames
    memory_bytes: int = MEMORY_FOLDER_BYTES
    landlock_abi: int | None = None

    def confinement(self, root: rootfs.RootPlan) -> levels.Confinement:
        """Return what comes on top of a root of its own."""
        writable_inside = list(rootfs.PRIVATE_FOLDERS)
        if root.alias:
            writable_inside.append(rootfs.ALIAS)
        return levels.Confinement(
            level="isolated",
            writable=(self.workspace, self.scratch, *writable_inside),
            readable=(
                *(*self.interpreter.paths, *rootfs.ALWAYS_SHOWN, *rootfs.FILES),
                *(*self.readable, "/proc"),
            ),
            landlock_abi=self.landlock_abi,
        )

    def plan_root(self) -> rootfs.RootPlan:
        """Return what it sees; to be called on the host, where all of it can be looked up."""
        return rootfs.plan_root(
            interpreter=self.interpreter.entries,
            readable=rootfs.look_up(self.readable, follow=False),
            workspace=self.workspace,
            scratch=self.scratch,
            memory_bytes=self.memory_bytes,
        )


def start_isolated(
    isolation: Isolation,
    users: namespaces.UserNamespaces,
    child: Callable[[namespaces.NamespaceEntry], NoReturn],
) -> namespaces.NamespaceProcesses:
    """Fork `child` in namespaces of its own; it must call `enter` before anything else.

    Raises:
        SandboxError: It could not be done; the message says why.
    """
    return namespaces.start_in_namespaces(users, isolation.plan_root(), child)


def enter(isolation: Isolation, entry: namespaces.NamespaceEntry) -> None:
    """Build the root, move there, confine, and verify the confinement. Called in the child.

    Raises:
        SandboxError: A step failed, or something does not hold; the process must end.
    """
    plan = isolation.confinement(entry.plan)
    try:
        mount_points = rootfs.enter_root(entry.plan, entry.trees, isolation.protected)
    except OSError as error:
        raise SandboxError(f"The root of a worker could not be built: {error}.") from error
    # Order: what looks at the root as a whole comes before Landlock, under which "/" cannot be listed, and
    # what mounts before the system call filter, the last step of `confine`.
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        mount_table = file.read()
    entry.bind_to_supervisor()
    flaws = list(rootfs.find_flaws(entry.plan, mount_points, isolation.interpreter.identities, mount_table))
    levels.confine(plan)
    flaws += levels.verify_confinement(plan)
    if flaws:
        raise SandboxError("the isolation does not hold: " + "; ".join(flaws))
