"""Watches files that no test has any business with, and names the test during which one of them changed.

Some tests are attacks, and some work through links that lead out of their folder; most run as the user root
in a container, whom nothing stops. A mistake in such a test overwrites the machine's own files, and the first
sign of it may be a shell that does not start. So those are compared: what a file is (`State`) with what it
was before the run, which is done only where a glance at it (`glance`) tells that something has happened.
"""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ADVICE = (
    "A test must change nothing outside its own folder. If a person or another program changed it meanwhile, "
    "no test is to blame: run this one again."
)

# ---------------------------------------------------------------- what a file is

Glance = tuple[int, ...] | None
"""What `stat` tells of a file and of what it links to; None where there is nothing."""


@dataclass(frozen=True, slots=True)
class State:
    """What must not change: kind, mode, and content; what is not there has mode 0.

    Attributes:
        mode: Kind and permissions, as `stat` has them.
        owner: User and group.
        link: Where it leads; empty for what is not a link.
        digest: Of its content; empty for what is not a file, or cannot be read.
    """

    mode: int = 0
    owner: tuple[int, int] = (0, 0)
    link: str = ""
    digest: str = ""


def glance(path: str) -> Glance:
    """What changes whenever the file does, for the price of a system call."""
    try:
        own = os.lstat(path)
    except OSError:
        return None
    marks = _marks(own)
    if stat.S_ISLNK(own.st_mode):
        try:
            marks += _marks(os.stat(path))  # noqa: PTH116 - a glance must be cheap
        except OSError:
            marks += (0,)
    return marks


def _marks(status: os.stat_result) -> tuple[int, ...]:
    return status.st_mode, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def state_of(path: str) -> State:
    """What lies there now; a link is followed for its content."""
    try:
        status = os.lstat(path)
    except OSError:
        return State()
    link = ""
    digest = ""
    try:
        if stat.S_ISLNK(status.st_mode):
            link = os.readlink(path)  # noqa: PTH115 - a name may be no text
        if stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116 - likewise; a pipe would not let go of us
            digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        pass
    return State(status.st_mode, (status.st_uid, status.st_gid), link, digest)


def difference(was: State, now: State) -> str:
    """In a few words, what became of it; empty if nothing."""
    if was == now:
        return ""
    if not was.mode:
        return "it is new"
    if not now.mode:
        return "it is gone"
    parts = {
        "its kind": stat.S_IFMT(was.mode) != stat.S_IFMT(now.mode),
        "its mode": stat.S_IMODE(was.mode) != stat.S_IMODE(now.mode),
        "its owner": was.owner != now.owner,
        "where it leads": was.link != now.link,
        "its content": was.digest != now.digest,
    }
    return ", ".join(part for part, differs in parts.items() if differs) + " changed"


def stamps_changed(was: Glance, now: Glance) -> str:
    """In a few words, which stamps of a file differ whose content does not; empty if none."""
    if was == now or was is None or now is None:
        return ""
    names = ("mode", "inode", "size", "mtime", "ctime")
    parts = [
        f"{'target ' if number >= len(names) else ''}{names[number % len(names)]} {old} -> {new}"
        for number, (old, new) in enumerate(zip(was, now, strict=False))
        if old != new
    ]
    return f"its content is the same, but it was written, replaced or touched ({', '.join(parts)})"


# ---------------------------------------------------------------- what is watched


class Watch:
    """Some paths, and what they were when last looked at."""

    def __init__(self, paths: Callable[[], Iterable[str]], untouched: Iterable[str] = ()) -> None:
        """Look at all of them.

        Args:
            paths: Asked again each time, as there may be more or fewer.
            untouched: Those that must not even be written back: a new time or inode counts as a change.
        """
        self._paths = paths
        self._untouched = frozenset(untouched)
        self._glances: Mapping[str, Glance] = self._look()
        self._states = {path: state_of(path) for path in self._glances}

    def _look(self) -> Mapping[str, Glance]:
        return {path: glance(path) for path in self._paths()}

    def changes(self, *, thorough: bool = False) -> list[str]:
        """What changed since this was last asked, each told once.

        Args:
            thorough: Read every file, even one that looks untouched.
        """
        glances, before = self._look(), self._glances
        if glances == before and not thorough:
            return []
        self._glances = glances
        found = []
        for path in sorted({*glances, *before}):
            if thorough or glances.get(path) != before.get(path):
                now = state_of(path)
                change = difference(self._states.get(path, State()), now)
                self._states[path] = now
                if not change and path in self._untouched:
                    change = stamps_changed(before.get(path), glances.get(path))
                found += [f"{path}: {change}"] if change else []
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """What no test may change.

    Attributes:
        files: Looked at after each test; not even their times may change.
        folders: Likewise, with all that is below them.
        checkout: The root of a git checkout, whose tracked files are looked at after each module of tests,
            with any new ones in its packages; None for none. Outside of a checkout nothing is looked at.
    """

    files: tuple[Path, ...] = ()
    folders: tuple[Path, ...] = ()
    checkout: Path | None = None

    def few(self) -> Iterator[str]:
        """The paths that are looked at after each test."""
        yield from map(str, self.files)
        for top in map(str, self.folders):
            yield top
            for folder, names, files in os.walk(top):
                yield from (f"{folder}/{name}" for name in (*names, *files))

    def many(self) -> tuple[str, ...]:
        """The paths that are looked at after each module."""
        return () if self.checkout is None else tracked(self.checkout)

    def new(self) -> tuple[str, ...]:
        """The paths in the packages that git does not track, as they are now."""
        return () if self.checkout is None else untracked(self.checkout)


def usual(environ: Mapping[str, str]) -> Watched:
    """What this project's own tests are kept from.

    Where nobody but the tests runs (`CI`), that includes what the user's own sessions keep. Elsewhere a
    session in another window may write there.
    """
    home = Path.home()
    etc = (Path("/etc", name) for name in ("passwd", "group", "hosts"))
    state = home / ".local/state/aisotools"
    own = [state / name for name in ("", "checkpoints", "claims", "ledger")] if environ.get("CI") else []
    rewriting = os.environ.get("AISOTOOLS_REWRITE")  # then a test writes a tracked file, as it was asked to
    return Watched(
        files=(*etc, *own, *(home / name for name in (".bashrc", ".profile", ".gitconfig"))),
        folders=(home / ".ssh",),
        checkout=None if rewriting else Path(__file__).resolve().parents[1],
    )


def tracked(checkout: Path) -> tuple[str, ...]:
    """Every file that git tracks there; none where this is not a checkout.

    Raises:
        pytest.UsageError: It is a checkout, but git lists nothing, so that nothing would be watched.
    """
    listed = _listed(checkout)
    if not listed and (checkout / ".git").exists():
        raise pytest.UsageError(f"git lists no file of the checkout {checkout}: nothing there can be watched")
    return listed


def untracked(checkout: Path) -> tuple[str, ...]:
    """Every file in the packages there that git neither tracks nor ignores."""
    return _listed(checkout, "--others", "--exclude-standard", "--", "aisotools", "tests")


def _listed(checkout: Path, *arguments: str) -> tuple[str, ...]:
    # The checkout may belong to another user, which git refuses unless it is asked not to.
    command = ["git", "-c", "safe.directory=*", "-C", str(checkout), "ls-files", "-z", *arguments]
    try:
        listed = subprocess.run(command, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ()
    return tuple(f"{checkout}/{os.fsdecode(name)}" for name in listed.split(b"\0") if name)


# ---------------------------------------------------------------- in pytest


class Guard:
    """A plugin of pytest: the test during which something changed ends in an error, and the run fails.

    Where tests run in several processes, each looks after its own tests, so that all those are named that ran
    at the time. The process that started the others looks once more at the end.
    """

    def __init__(self, watched: Watched) -> None:
        """Take down what everything is before the run."""
        many = watched.many()
        self._few = Watch(watched.few, untouched=map(str, watched.files))
        # Asked for once: what a test removes from the index stays watched.
        self._many = Watch(lambda: (*many, *watched.new()))
        self._last = ""
        self.found: list[str] = []

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self) -> None:
        """Importing the tests may have changed something."""
        self._note("while tests were collected", self._few.changes() + self._many.changes())

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
        """Look when all of the test is over, its fixtures too."""
        try:
            yield
        finally:
            self._last = item.nodeid
            problems = _describe(f"while {item.nodeid} ran", self._few.changes())
            if nextitem is None or nextitem.path != item.path:
                module = item.nodeid.partition("::")[0]
                problems += _describe(
                    f"while the tests of {module} ran, before {item.nodeid} ended", self._many.changes()
                )
            if problems:
                pytest.fail("\n".join([*problems, ADVICE]), pytrace=False)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Compare everything once more; a change that no test was told of fails the run."""
        left = self._few.changes(thorough=True) + self._many.changes(thorough=True)
        self._note(f"in the run that ended with {self._last}" if self._last else "in this run", left)
        output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
        if output is not None:
            output["host_guard"] = self.found
        elif self.found and session.exitstatus in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Another process has ended: what it saw is told here, where somebody reads it."""
        self.found += getattr(node, "workeroutput", {}).get("host_guard", ())

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Tell what was not told with a test."""
        if self.found:
            terminalreporter.section("changed outside the tests' own folders")
            for line in (*dict.fromkeys(self.found), ADVICE):
                terminalreporter.line(line)

    def _note(self, when: str, changes: list[str]) -> None:
        self.found += _describe(when, changes)


def _describe(when: str, changes: list[str]) -> list[str]:
    return [f"Changed {when}: {change}" for change in changes]


def install(config: pytest.Config, watched: Watched) -> None:
    """Have `watched` watched from now to the end of the run."""
    config.pluginmanager.register(Guard(watched), "host_guard")
