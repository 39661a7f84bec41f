"""Follow paths through names that a call itself makes, before it has made them.

Threat: `ln -s ../secrets d/up; cat d/up/key` reads what a rule is about by a name that nobody finds in the
workspace beforehand. So do links that are copied or moved, alone or with the folder around them: the text of
a link is meant from where it then is.

Mechanism: the facts list every name that the call makes, and what it leads to or is a copy of. A path is
followed part by part, as the kernel does it, and at each place it goes on in all ways that there may be: past
what is there now, by the link that is there now, and by each link that the call may have put there. Which
command runs first does not count, since commands may be repeated or run side by side.

Race window: what calls make that run at the same time is not known. What is on disk is looked at once, and
once more at dispatch, as for all paths.

When it fails: where it is not known what is made (another state of a repository is checked out), or a path
has too many ways, `Unfollowed` is raised; the path counts as unresolved, and rules about paths ask.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence

from aisotools.core.path_texts import is_within
from aisotools.core.types import MadeName
from aisotools.workspace.paths import MAX_LINKS

_MAX_MADE = 500
_MAX_STEPS = 5_000
_MAX_DEPTH = 8  # copies of copies
_MAX_PASSES = 5
_GLOB = ("*", "?", "[")
_UNKNOWN = ("$", "`", "{}", "…")
_HOMES = {"$HOME": "~", "${HOME}": "~", "${TMPDIR}": "$TMPDIR"}
_PRIVATE = ("~", "$TMPDIR")
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/opt", "/dev", "/proc", "/sys")
"""Where no sandbox may write, so that no name is made there."""


class Unfollowed(Exception):
    """Raised where it cannot be told what a path leads to once the call has made its names."""


class MadeNames:
    """The names that one call makes. Looks at the workspace, and bounds what that costs.

    Places are absolute paths, or begin with `~` or `$TMPDIR`. A place in the workspace has several spellings,
    of which the one with its real path is the key.
    """

    def __init__(
        self,
        spellings: Sequence[str],
        absolute: Callable[[str], str | None],
        expand: Callable[[str], Sequence[str]],
    ) -> None:
        """Know of no names yet; see `add`.

        Args:
            spellings: The real path of the workspace, and the others by which code in the sandbox knows it.
            absolute: Returns the absolute path of a text that means a path in the workspace, else None.
            expand: Returns what such a text with a pattern in it matches, as texts; or raises `Unfollowed`.
        """
        self._root = spellings[0]
        self._spellings = tuple(spellings)
        self._absolute = absolute
        self._expand = expand
        self._steps = _MAX_STEPS
        self._links: dict[str, list[str]] = {}
        self._copies: dict[str, list[str]] = {}
        self._unknown: set[str] = set()

    def add(self, made: Sequence[MadeName]) -> None:
        """Follow paths by these names from now on."""
        if len(made) > _MAX_MADE:
            self._unknown.add("")
            return
        # A name may lie below another one that comes later, as commands can be repeated.
        for _ in range(_MAX_PASSES):
            before = self._count()
            for one in made:
                self._add(one)
            if before == self._count():
                return
        self._unknown.add("")

    def _count(self) -> int:
        known = (*self._links.values(), *self._copies.values())
        return sum(map(len, known)) + len(self._unknown)

    def follow(self, path: str) -> list[str]:
        """Return the places to which a path leads by names that the call makes; none if it meets none.

        Args:
            path: An absolute path, or one that begins with a variable for the home or the temporary folder.

        Raises:
            Unfollowed: It cannot be told.
        """
        return [place for place, by_made in self._walk(_begin(path)) if by_made]

    def list_names(self, folder: str) -> list[str]:
        """Return the names in a folder, given by its path, that nobody finds in it before the call.

        Raises:
            Unfollowed: It cannot be told.
        """
        names: dict[str, None] = {}
        for place, _ in self._walk(_begin(folder)):
            key = self._key(place)
            names |= dict.fromkeys(_list(key))
            for made in (*self._links, *self._copies):
                above, _, name = made.rpartition("/")
                if above == key:
                    names[name] = None
            for original in self._originals(key):
                for copied, _ in list(self._walk(original)):
                    names |= dict.fromkeys(_list(self._key(copied)))
        return list(names)

    # ---- what is made

    def _add(self, one: MadeName) -> None:
        name = self._absolute(one.name) or _begin(one.name)
        while name.rpartition("/")[2] in {"", ".", ".."} and "/" in name:
            name = name.rpartition("/")[0]
        source = self._absolute(one.source) or _begin(one.source)
        try:
            if not one.source or _has(_UNKNOWN, name) or _has(_UNKNOWN, source):
                raise Unfollowed
            if not _has(_GLOB, name + source):
                self._add_each(name, source, is_link=one.is_link)
                return
            last = name.rpartition("/")[2]
            keeps_name = last == one.source.rstrip("/").rpartition("/")[2]
            if one.is_link or _has(_GLOB, name[: -len(last)] if keeps_name else name):
                raise Unfollowed  # what the pattern becomes does not tell the name
            for match in self._expand(one.source):
                made = match.rstrip("/").rpartition("/")[2] if keeps_name else last
                self._add_each(name[: -len(last)] + made, self._absolute(match) or match, is_link=False)
        except Unfollowed:
            self._note_unknown(name)

    def _add_each(self, name: str, source: str, *, is_link: bool) -> None:
        if not is_link and self._leads_nowhere(source):
            return  # what is in a file is read when it is copied
        above, _, last = name.rpartition("/")
        for folder, _ in list(self._walk(above or "/")):
            place = f"{self._key(folder).rstrip('/')}/{last}"
            sources = (self._links if is_link else self._copies).setdefault(place, [])
            if source not in sources:
                sources.append(source)

    def _note_unknown(self, name: str) -> None:
        """Note that there may be anything below a name, as far as it is known."""
        parts = name.split("/")
        known = [parts[0]]
        for part in parts[1:]:
            if _has((*_UNKNOWN, *_GLOB), part):
                break
            known.append(part)
        if known[0] not in {"", *_PRIVATE}:
            self._unknown.add("")
            return
        path = "/".join(known) or "/"
        if any(one in self._unknown for one in _above(self._key(path))):
            return
        try:
            for place, _ in list(self._walk(path)):
                self._unknown.add(self._key(place))
        except Unfollowed:
            self._unknown.add("")

    def _leads_nowhere(self, source: str) -> bool:
        """Return whether a source certainly is a plain file, or nothing that could be copied."""
        key = self._key(source)
        if ".." in source.split("/") or not key.startswith("/"):
            return False
        if any(
            place in self._links or place in self._copies or place in self._unknown for place in _above(key)
        ):
            return False
        try:
            return stat.S_ISREG(os.lstat(key).st_mode)
        except FileNotFoundError:
            return True
        except (OSError, ValueError):
            return False

    def _key(self, place: str) -> str:
        for spelling in self._spellings:
            if is_within(place, spelling):
                return self._root + place[len(spelling) :]
        return place

    # ---- following

    def _walk(self, path: str, copied_from: frozenset[str] = frozenset()) -> Iterator[tuple[str, bool]]:
        """Yield each place that a path may lead to, and whether a name that is made is on the way.

        Args:
            path: What `follow` takes.
            copied_from: The places of which it is already looked for what is copied there.
        """
        if "" in self._unknown:
            raise Unfollowed
        start, _, rest = path.partition("/")
        waiting = [(start, rest.split("/")[::-1], False, list[tuple[str, str, list[str]]]())]
        seen: set[tuple[str, bool]] = set()
        while waiting:
            place, parts, by_made, followed = waiting.pop()
            while parts:
                part = parts.pop()
                self._steps -= 1
                if self._steps < 0:
                    raise Unfollowed
                if part in {"", "."}:
                    continue
                if part == "..":
                    if place in _PRIVATE:
                        raise Unfollowed
                    place = place.rpartition("/")[0]
                    continue
                above, place = place, f"{place}/{part}"
                key = self._key(place)
                ways = [(source, True) for source in self._links.get(key, ())]
                copied = self._texts_of_copies(key, copied_from)
                if copied is not None:
                    by_made = True
                    ways += [(text, True) for text in copied]
                ways += [(text, by_made) for text in _read_link(key)]
                for text, is_made in ways:
                    if len(followed) >= MAX_LINKS or _is_circle(key, text, parts, followed):
                        continue  # the kernel does not follow it either
                    # The text of a link on disk is a plain path; those of links that are made are places.
                    begins, _, more = text.partition("/")
                    is_place = text.startswith("/") or (is_made and begins in _PRIVATE)
                    onward = [*parts, *(more if is_place else text).split("/")[::-1]]
                    self._steps -= len(onward) // 8
                    way = [*followed, (key, text, list(parts))]
                    waiting.append((begins if is_place else above, onward, is_made, way))
            self._refuse_unknown(place)
            if (place, by_made) not in seen:
                seen.add((place, by_made))
                yield place or "/", by_made

    def _texts_of_copies(self, key: str, copied_from: frozenset[str]) -> list[str] | None:
        """Return the texts of links that are copied to a place; None if nothing is copied there."""
        originals = self._originals(key)
        if not originals or key in copied_from:
            return [] if originals else None
        if len(copied_from) >= _MAX_DEPTH:
            raise Unfollowed
        texts: list[str] = []
        for original in originals:
            above, _, last = original.rpartition("/")
            for folder, _ in list(self._walk(above or "/", copied_from | {key})):
                place = self._key(f"{folder.rstrip('/')}/{last}")
                texts += [*_read_link(place), *self._links.get(place, ())]
                if place != key:
                    texts += self._texts_of_copies(place, copied_from | {key}) or []
        return texts

    def _originals(self, key: str) -> list[str]:
        """Return of what a place may be a copy, or a part of one."""
        return [
            source.rstrip("/") + key[len(place) :]
            for place in _above(key)
            for source in self._copies.get(place, ())
        ]

    def _refuse_unknown(self, place: str) -> None:
        """Refuse a place at which there may be anything, or one outside that may be spelt in another way."""
        key = self._key(place)
        if any(one in self._unknown for one in _above(key)):
            raise Unfollowed
        if is_within(key, self._root) or any(is_within(key, folder) for folder in _SYSTEM):
            return
        for made in (*self._links, *self._copies, *self._unknown):
            if not is_within(made, self._root) and made.partition("/")[0] != key.partition("/")[0]:
                raise Unfollowed


def _above(place: str) -> Iterator[str]:
    """Yield a place, and the folders above it."""
    while place:
        yield place
        place = place.rpartition("/")[0]


def _begin(path: str) -> str:
    """Return a path with one spelling for the home, and for the temporary folder."""
    begins, slash, rest = path.partition("/")
    return f"{_HOMES.get(begins, begins)}{slash}{rest}"


def _is_circle(key: str, text: str, parts: list[str], followed: list[tuple[str, str, list[str]]]) -> bool:
    """Return whether a link was followed before, with no more to come after it than now."""
    return any(
        (place, before) == (key, text) and parts[: len(rest)] == rest for place, before, rest in followed
    )


def _has(marks: Sequence[str], path: str) -> bool:
    rest = path.removeprefix("$TMPDIR")
    return any(mark in rest for mark in marks)


def _read_link(place: str) -> list[str]:
    if not place.startswith("/"):
        return []
    try:
        return [os.readlink(place)]  # noqa: PTH115 - a text, as all places
    except (OSError, ValueError):  # no link, nothing there, or no path
        return []


def _list(folder: str) -> list[str]:
    if not folder.startswith("/"):
        return []
    try:
        return os.listdir(folder)  # noqa: PTH208 - texts, as all places
    except (OSError, ValueError):  # no folder, or nothing there
        return []
