"""How real paths lie to each other. They are texts, as many are compared at each look at a workspace.

Also: what is on the way of a path, which links a folder has, by which other paths a folder or a file can be
reached, and how much there is below a path.
"""

from __future__ import annotations

import errno
import io
import itertools
import logging
import os
import re
import select
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Set as AbstractSet
from pathlib import Path
from typing import NamedTuple

from aisotools.core.path_texts import is_within
from aisotools.workspace.paths import MAX_LINKS, MAX_PARTS

_MOST_PLACES = 64  # by which one folder is looked for; there are more only where somebody mounts in a loop
_MOST_LISTINGS = 4096
_SETTLED_NS = 1_000_000_000  # beyond the granularity of any clock of a file system
_MAX_SEARCHED = 20_000  # for further names of denied files, and only if there are any
_MAX_COPIED = 2_000  # files and folders: each costs a look around every call
_MAX_COPIED_BYTES = 16 << 20
_MOUNTS = "/proc/self/mountinfo"
_MOST_READ_ALWAYS = 1 << 16
_PAUSE = 20  # times as long as it took to read a list that is longer
_ESCAPED = re.compile(r"\\([0-7]{3})")
_LAYERS = re.compile(r"(?:[^:\\]|\\.)+")
_BACKSLASH = re.compile(r"\\(.)")
_log = logging.getLogger(__name__)


def lies_to(workspace: str, folder: str) -> str:
    """Return how a workspace lies to a folder: "is", "contains" or "lies in"; empty if none of these."""
    if workspace == folder:
        return "is"
    if folder.startswith(f"{workspace.rstrip('/')}/"):
        return "contains"
    return "lies in" if workspace.startswith(f"{folder.rstrip('/')}/") else ""


def leads_into(
    path: str, folders: AbstractSet[str], identities: AbstractSet[tuple[int, int]] = frozenset()
) -> bool:
    """Return whether the path, or a link on its way, enters one of these real folders.

    A file that a link in a workspace stands for counts: sandboxed code can point the link elsewhere. So does
    a path of which not all parts are followed.

    Args:
        path: A path; one that is relative begins in the current folder.
        folders: Real paths.
        identities: Device and inode of further ones, which are found under whatever name they have now.
    """
    if not path.startswith("/"):
        try:
            path = f"{Path.cwd()}/{path}"
        except FileNotFoundError:  # the current folder is gone
            return False
    parts, place, links, parts_left = path.split("/")[::-1], "", 0, MAX_PARTS
    while parts:
        part = parts.pop()
        if part in {"", "."}:
            continue
        parts_left -= 1
        if parts_left < 0:
            return True
        if part == "..":
            place = place.rpartition("/")[0]
            continue
        place = f"{place}/{part}"
        if place in folders:
            return True
        try:
            if identities:
                status = os.lstat(place)
                if (status.st_dev, status.st_ino) in identities:
                    return True
                if not stat.S_ISLNK(status.st_mode):
                    continue
            link = os.readlink(place)  # noqa: PTH115 - done for each part at each import
        except (OSError, ValueError):  # no link, nothing there, or no path
            continue
        links += 1
        if links > MAX_LINKS:
            return False  # the kernel opens no such path either
        parts += link.split("/")[::-1]
        place = "" if link.startswith("/") else place.rpartition("/")[0]
    return False


class RealPaths:
    """Finds the real paths of one look: what it has found holds for it, as most paths share their parents."""

    __slots__ = ("_found", "_links")

    def __init__(self) -> None:
        self._found: dict[str, str] = {}
        self._links: dict[str, AbstractSet[str] | None] = {}

    def resolve(self, path: str) -> str:
        """Return the real path. Nothing need exist."""
        real = self._found.get(path)
        if real is None:
            parent, _, name = path.rpartition("/")
            if not parent or name in {"", ".", ".."}:
                real = resolve_links(path)
            else:
                folder = self.resolve(parent)
                links = self._remembered_links(folder)
                # One look at a folder tells it of all that is in there. But to list one costs more.
                is_link = os.path.islink(path) if links is None else name in links  # noqa: PTH114 - many
                real = resolve_links(path) if is_link else f"{folder.rstrip('/')}/{name}"
            self._found[path] = real
        return real

    def list_links(self, folder: str) -> AbstractSet[str] | None:
        """Return the names of the links in a folder, given by its real path; None if it cannot be listed."""
        links = self._links.get(folder)
        if links is None:
            try:
                links = list_links(folder)
            except OSError:  # gone, or not for this user to list
                return None
            self._links[folder] = links
        return links

    def _remembered_links(self, folder: str) -> AbstractSet[str] | None:
        """Return the links in a folder if they are known from an earlier look, and it is unchanged."""
        if folder not in self._links:
            last = _listings.get(folder)
            try:
                is_unchanged = last is not None and last[0] == _state_of(os.stat(folder))  # noqa: PTH116 - many
            except OSError:
                is_unchanged = False
            self._links[folder] = last[1] if last is not None and is_unchanged else None
        return self._links[folder]


_listings: dict[str, tuple[tuple[int, ...], frozenset[str]]] = {}
"""By folder: what tells that nothing was added, removed or replaced in it, and the names of its links."""


def list_links(folder: str, now_ns: Callable[[], int] = time.time_ns) -> frozenset[str]:
    """Return the names of the links in a folder.

    They are remembered for as long as the folder is unchanged: the folders of a process's modules are looked
    at again and again.

    Args:
        folder: Its path.
        now_ns: Returns the time since the epoch.

    Raises:
        OSError: It cannot be listed.
    """
    found = os.stat(folder)  # noqa: PTH116 - a text, as everything here
    state = _state_of(found)
    last = _listings.get(folder)
    if last is not None and last[0] == state:
        return last[1]
    began_ns = now_ns()
    with os.scandir(folder) as entries:
        links = frozenset(entry.name for entry in entries if entry.is_symlink())
    # Race: what is changed within one tick of the clock after this listing leaves the same times behind.
    if began_ns - max(found.st_mtime_ns, found.st_ctime_ns) > _SETTLED_NS:
        if len(_listings) >= _MOST_LISTINGS:
            _listings.clear()
        _listings[folder] = state, links
    return links


def _state_of(found: os.stat_result) -> tuple[int, ...]:
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns


def follow_path(path: str, read_link: Callable[[str], str] = os.readlink) -> tuple[str, list[str]]:
    """Return the real path, and the real places of all links on the way there. Nothing need exist.

    Each part is looked at once: a link that is put there afterwards is not followed.

    Args:
        path: A path; one that is relative begins in the current folder.
        read_link: Returns the text of the link at a place, as `os.readlink` does; another one can show the
            places of a sandbox.

    Raises:
        OSError: There are too many links or parts, or the current folder is gone.
    """
    if not path.startswith("/"):
        path = f"{os.getcwd()}/{path}"  # noqa: PTH109 - a text, as everything here
    parts, place = path.split("/")[::-1], ""
    links: list[str] = []
    parts_left = MAX_PARTS
    while parts:
        part = parts.pop()
        if part in {"", "."}:
            continue
        parts_left -= 1
        if parts_left < 0:
            raise OSError(errno.ELOOP, "Too many parts of links", path)
        if part == "..":
            place = place.rpartition("/")[0]
            continue
        place = f"{place}/{part}"
        try:
            link = read_link(place)
        except (OSError, ValueError):  # no link, nothing there, or no path
            continue
        links.append(place)
        if len(links) > MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        parts += link.split("/")[::-1]
        place = "" if link.startswith("/") else place.rpartition("/")[0]
    return place or "/", links


def resolve_links(path: str) -> str:
    """Return the real path, as `os.path.realpath` does, of one that may take very long to follow.

    Threat: `os.path.realpath` follows any number of links, each of which may have thousands of parts, and
    fails where there are a thousand in a row.
    Mechanism: the kernel follows the path, which takes it some milliseconds at most, or refuses to. Where
    nothing is at the end, `follow_path` does, within its bounds.
    Race: what is there may be replaced between the look and its use, as with every path.
    Failure: a path that nobody follows to its end is returned as an absolute path with its links. The kernel
    opens nothing by it, or only what `follow_path` finds too long to follow.
    """
    try:
        found = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            real = os.readlink(f"/proc/self/fd/{found}")  # noqa: PTH115 - a text, as everything here
            # Race: of what is removed meanwhile the kernel gives no path. Nor does it of what lies outside of
            # this process's root.
            if os.path.samestat(os.stat(real), os.fstat(found)):  # noqa: PTH116 - likewise
                return real
        finally:
            os.close(found)
    except (OSError, ValueError):
        pass
    try:
        return follow_path(path)[0]
    except (OSError, ValueError):
        return os.path.abspath(path)  # noqa: PTH100 - a text, as everything here


def is_plain_path(workspace: Path, path: str) -> bool:
    """Return whether there is something at a relative path in the workspace, and no link on the way."""
    place = os.path.realpath(workspace)
    for name in path.split("/"):
        place = f"{place}/{name}"
        try:
            if stat.S_ISLNK(os.lstat(place).st_mode):
                return False
        except (OSError, ValueError):
            return False
    return True


def real_path(workspace: Path, path: str) -> str | None:
    """Return the relative path that one in the workspace leads to; None if links lead out of it."""
    root = os.path.realpath(workspace)
    try:
        real, _ = follow_path(f"{root}/{path}", os.readlink)
    except (OSError, ValueError):
        return None
    return real[len(root) + 1 :] if real.startswith(f"{root}/") else None


def links_on_way(workspace: Path, path: str) -> list[str]:
    """Return the links in the workspace on the way to where a relative path leads, each by its real place."""
    root = os.path.realpath(workspace)
    try:
        _, links = follow_path(f"{root}/{path}")
    except (OSError, ValueError):
        return []
    return [link[len(root) + 1 :] for link in links if link.startswith(f"{root}/")]


def find_hard_links(workspace: Path, path: str) -> tuple[list[str], int]:
    """Return further names of the files at a path, or below it, and how many were not found.

    The search looks at some thousands of files, those near the top first.
    """
    root = os.path.realpath(workspace)
    inside: dict[tuple[int, int], int] = {}
    for _, status in _walk_files(f"{root}/{path}", _MAX_COPIED):
        if status.st_nlink > 1:
            key = status.st_dev, status.st_ino
            inside[key] = inside.get(key, status.st_nlink) - 1
    names = []
    if inside:
        for place, status in _walk_files(root, _MAX_SEARCHED):
            name, key = place[len(root) + 1 :], (status.st_dev, status.st_ino)
            if key in inside and not is_within(name, path):
                names.append(name)
                inside[key] -= 1
    return names, sum(inside.values())


LinkCount = tuple[int, int, int]
"""Device and inode, and of a file how many names it has, of a folder when it was changed."""


def list_below(workspace: Path, path: str, most: int) -> list[str]:
    """Return the files and folders at a relative path and below, the upper ones first, and at most `most`."""
    root = os.path.realpath(workspace)
    found: list[str] = []
    waiting = deque([f"{root}/{path}"])
    while waiting and len(found) < most:
        place = waiting.popleft()
        try:
            mode = os.lstat(place).st_mode
            if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
                found.append(place[len(root) + 1 :])
            if stat.S_ISDIR(mode):
                with os.scandir(place) as entries:
                    waiting.extend(itertools.islice((entry.path for entry in entries), most))
        except OSError:
            continue  # what cannot be looked at is not found
    return found


def count_links(workspace: Path, paths: Iterable[str]) -> dict[str, LinkCount | None]:
    """Return what changes when one of the files gets another name, or a folder another file."""
    counts: dict[str, LinkCount | None] = {}
    for path in paths:
        try:
            status = os.lstat(f"{workspace}/{path}")
        except (OSError, ValueError):
            counts[path] = None
            continue
        is_folder = stat.S_ISDIR(status.st_mode)
        last = status.st_mtime_ns if is_folder else status.st_nlink
        counts[path] = status.st_dev, status.st_ino, last
    return counts


def _walk_files(place: str, most: int) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the regular files at a place and below, the upper ones first, and at most so many entries."""
    waiting = deque([place])
    while waiting and most > 0:
        most -= 1
        place = waiting.popleft()
        try:
            status = os.lstat(place)
            if stat.S_ISREG(status.st_mode):
                yield place, status
            elif stat.S_ISDIR(status.st_mode):
                with os.scandir(place) as entries:
                    waiting.extend(itertools.islice((entry.path for entry in entries), most))
        except OSError:
            continue  # what cannot be looked at is not found


def is_small(workspace: Path, path: str) -> bool:
    """Return whether what is at a relative path in the workspace is little enough to keep a copy of it."""
    entries, size = 0, 0
    waiting = [f"{os.path.realpath(workspace)}/{path}"]
    while waiting:
        place = waiting.pop()
        entries += 1
        try:
            status = os.lstat(place)
            if stat.S_ISREG(status.st_mode):
                size += status.st_size
            elif stat.S_ISDIR(status.st_mode):
                with os.scandir(place) as inner:
                    waiting += itertools.islice((entry.path for entry in inner), _MAX_COPIED)
        except FileNotFoundError:
            continue
        except OSError:
            return False
        if entries + len(waiting) > _MAX_COPIED or size > _MAX_COPIED_BYTES:
            return False
    return True


def parents(path: str) -> list[str]:
    """Return the folders above a real path, without the root of the file system."""
    above = []
    while path := path.rpartition("/")[0]:
        above.append(path)
    return above


def _read_mounts() -> bytes:
    # Not by the file that is watched: a process may have entered another namespace since that was opened.
    return Path(_MOUNTS).read_bytes()


class MountWatch:
    """Counts how often the mounts of this process have changed, or where they and what they show lie.

    Somebody who moves a folder changes no mount. But a mount may show a part of that folder, or lie in it,
    and the kernel names both by their paths now. So the list is read each time, which takes a tenth of a
    millisecond for 20 mounts; one of more than 64 KiB (some 500 mounts) for at most a twentieth of the time,
    unless the kernel reports a change.
    """

    def __init__(
        self, read: Callable[[], bytes] = _read_mounts, now_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        """Open nothing yet.

        Args:
            read: Returns the list.
            now_ns: Returns a time that only grows.
        """
        self._read = read
        self._now_ns = now_ns
        self._lock = threading.Lock()
        self._file: io.FileIO | None = None
        self._changes = 0
        self._has_changed = False
        self._text = b""
        self._due_ns = 0
        # A fork shares the open file, and with it which changes were seen.
        os.register_at_fork(after_in_child=self._forget)

    def count(self) -> int:
        """Return a number that changes with every change of the mounts; 0 where the system has no list."""
        return self.read()[0]

    def read(self) -> tuple[int, bytes]:
        """Return that number and the list; nothing where the system has none."""
        # Race: the kernel reports a change once. Whoever asks at the same time must not miss it.
        with self._lock:
            try:
                if self._file is None:
                    self._file = Path(_MOUNTS).open("rb", buffering=0)  # noqa: SIM115 - it stays open
                    self._poll = select.poll()
                    self._poll.register(self._file, select.POLLPRI)
                    self._has_changed = True
                # Race: asked before the list is read, so that what changes meanwhile is reported again.
                self._has_changed |= bool(self._poll.poll(0))
                began_ns = self._now_ns()
                if self._has_changed or began_ns >= self._due_ns:
                    text = self._read()
                    took_ns = self._now_ns() - began_ns
                    is_long = len(text) > _MOST_READ_ALWAYS
                    self._due_ns = began_ns + _PAUSE * took_ns if is_long else 0
                    self._changes += self._has_changed or text != self._text
                    self._text, self._has_changed = text, False
            except OSError:  # it is read the next time; and without any, a folder has one path
                _log.debug("The mounts of this process cannot be read", exc_info=True)
            return self._changes, self._text

    def _forget(self) -> None:
        self._lock = threading.Lock()
        if self._file is not None:
            self._file.close()
            self._file = None


mount_watch = MountWatch()
"""That of this process."""


def find_places(folder: str, mounts: str | None = None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return where a real folder, or a part of it, can be found: bind mounts show it elsewhere, too.

    Args:
        folder: Its real path.
        mounts: The mounts, in the form of /proc/self/mountinfo, if others than those of this process.

    Returns:
        The paths that lead to the folder, the given one first; and mount points that show a part of it.
    """
    return _find_among(folder, _list_mounts() if mounts is None else _parse_mounts(mounts))


def _find_among(folder: str, known: Sequence[_Mount]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    # Of mounts at one point the last one covers the others.
    mount = _find_mount(folder, known)
    if mount is None:
        return (folder,), ()
    inside = _join(mount.root, _rest(folder, mount.point))
    whole, partly = [folder], list[str]()
    for other in known:
        if other.device != mount.device or len(whole) + len(partly) > _MOST_PLACES:
            continue
        relation = lies_to(inside, other.root)
        if relation in {"is", "lies in"}:
            place = _join(other.point, _rest(inside, other.root))
            if place not in whole and _is_same(place, folder):  # or it is covered by another mount
                whole.append(place)
        elif relation == "contains" and _is_same(other.point, _join(folder, _rest(other.root, inside))):
            partly.append(other.point)
    return tuple(whole), tuple(partly)


def find_other_places(folder: str) -> list[str]:
    """Return further paths by which a real folder, a part of it, or what is mounted in it can be found.

    What is written into the folder may be read there: by a bind mount, or by an overlay of which it is a
    layer; and what is written into an overlay is in its upper layer. Layers that have no path here, as those
    of a container's root, are not found.
    """
    known = _list_mounts()
    inner = [mount.point for mount in known if lies_to(folder, mount.point) == "contains"]
    places = dict.fromkeys([folder, *inner[:_MOST_PLACES]])
    waiting = deque(places)
    while waiting and len(places) <= _MOST_PLACES:
        place = waiting.popleft()
        whole, partly = _find_among(place, known)
        for one in (*whole, *partly, *_find_overlaid(place, known)):
            if one not in places:
                places[one] = None
                waiting.append(one)
    # What lies in the folder is looked at with it.
    return [one for one in places if lies_to(folder, one) not in {"is", "contains"}]


class OverlayPlace(NamedTuple):
    """A place in an overlay, which is the same place wherever the overlay is moved to."""

    mount: str
    rest: str


def note_overlays(places: Iterable[str]) -> frozenset[OverlayPlace]:
    """Return which of these real paths lie in an overlay, and where.

    The kernel names the layers of an overlay as they were called when it was mounted. So once a layer has
    another name, only who has seen it before knows what the overlay shows.
    """
    known = _list_mounts()
    noted = set()
    for place in places:
        mount = _find_mount(place, known)
        if mount is not None and mount.layers:
            noted.add(OverlayPlace(mount.number, _rest(place, mount.point)))
    return frozenset(noted)


def find_overlays(noted: Iterable[OverlayPlace]) -> list[str]:
    """Return the paths now of places in overlays, of those that are still mounted."""
    points = {mount.number: mount.point for mount in _list_mounts()}
    return [_join(points[place.mount], place.rest) for place in noted if place.mount in points]


class _Mount(NamedTuple):
    """A mount of this process.

    Attributes:
        device: Numbers of the file system.
        root: Path in it.
        point: Where it is mounted.
        layers: Paths of the layers of an overlay, the upper one among them. The kernel has relative ones as
            they were given, and does not say what to.
        upper: The one that is written to; empty for none.
        number: Of the mount, which it keeps for as long as it is there.
    """

    device: str
    root: str
    point: str
    layers: tuple[str, ...] = ()
    upper: str = ""
    number: str = ""


def _find_mount(folder: str, known: Iterable[_Mount]) -> _Mount | None:
    """Return the mount that a real folder lies on; of mounts at one point the last one covers the others."""
    covering = [mount for mount in known if lies_to(folder, mount.point) in {"is", "lies in"}]
    return max(reversed(covering), key=lambda mount: len(mount.point), default=None)


def _find_overlaid(folder: str, known: Sequence[_Mount]) -> list[str]:
    """Return where overlays show a real folder or a part of it, and the upper layer that it is written to."""
    places = []
    for mount in known:
        for layer in _resolve_layers(mount.layers, folder):
            relation = lies_to(folder, layer)
            if relation == "contains":
                places.append(mount.point)
            elif relation:
                inside = _rest(folder, layer) or "/"
                within = lies_to(inside, mount.root)
                place = _join(mount.point, _rest(inside, mount.root) if within != "contains" else "")
                if within and _is_on(place, mount.device):  # or it is covered by another mount
                    places.append(place)
    own = _find_mount(folder, known)
    if own is not None and own.upper:
        rest = _rest(_join(own.root, _rest(folder, own.point)), "/")
        places += [_join(upper, rest) for upper in _resolve_layers([own.upper], own.point)]
    return places


def _resolve_layers(layers: Iterable[str], folder: str) -> Iterator[str]:
    """Yield the real paths of layers. A relative one is tried from `folder` and from each folder above it."""
    for layer in layers:
        tries = (
            [layer] if layer.startswith("/") else [f"{one}/{layer}" for one in (folder, *parents(folder), "")]
        )
        yield from (resolve_links(one) for one in tries if os.path.isdir(one))  # noqa: PTH112 - a text


_last_mounts: tuple[int, list[_Mount]] = (0, [])


def _list_mounts() -> list[_Mount]:
    """Return the mounts of this process; see `_parse_mounts`. They are parsed when they have changed."""
    global _last_mounts  # noqa: PLW0603 - one value for this process, replaced as a whole
    count, text = mount_watch.read()
    last, known = _last_mounts
    if count != last:
        known = _parse_mounts(text.decode("utf-8", "surrogateescape"))
        _last_mounts = count, known
    return known


def _parse_mounts(text: str) -> list[_Mount]:
    """Return the mounts in a text of the form of /proc/self/mountinfo."""
    known = []
    for line in text.splitlines():
        fields = line.split(" ", 5)
        if len(fields) > 4 and fields[3].startswith("/"):
            options = fields[5].partition(" - ")[2].split(" ") if len(fields) > 5 else []
            layers, upper = _parse_layers(options[2]) if options[:1] == ["overlay"] else ((), "")
            points = _unescape(fields[3]), _unescape(fields[4])
            known.append(_Mount(fields[2], *points, layers, upper, fields[0]))
    return known


def _parse_layers(options: str) -> tuple[tuple[str, ...], str]:
    """Return the layers of an overlay, and the upper one of them."""
    layers, upper = [], ""
    for option in options.split(","):
        name, _, value = option.partition("=")
        if name in {"lowerdir", "lowerdir+", "datadir+"}:
            # Colons and backslashes in a path have a backslash before them.
            parts = _LAYERS.findall(_unescape(value))
            layers += [_BACKSLASH.sub(r"\1", part) for part in parts]
        elif name == "upperdir":
            upper = _unescape(value)
            layers.append(upper)
    return tuple(filter(None, layers)), upper


def _rest(path: str, folder: str) -> str:
    """Return what of a path lies below a folder, with the slash before it; empty for the folder itself."""
    rest = path[len(folder.rstrip("/")) :]
    return "" if rest == "/" else rest


def _join(folder: str, rest: str) -> str:
    return f"{folder.rstrip('/')}{rest}" or "/"


def _unescape(field: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1], 8)), field)


def _is_on(place: str, device: str) -> bool:
    try:
        found = os.stat(place).st_dev  # noqa: PTH116 - a text, as everything here
    except (OSError, ValueError):
        return False
    return f"{os.major(found)}:{os.minor(found)}" == device


def _is_same(one: str, other: str) -> bool:
    try:
        return Path(one).samefile(other)
    except (OSError, ValueError):
        return False
