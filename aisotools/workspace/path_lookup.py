"""Follow the paths of one call in the workspace: links, patterns, variables and names that the call makes.

A path is followed as a shell in the sandbox would: relative to the workspace or by one of its absolute
spellings, with links resolved and patterns expanded. A lookup counts what it looks at, all paths of a call
together: hostile code can make long chains of links and folders with many names. What is beyond the bounds,
or depends on what is not known, is `unresolved`, for which rules about paths ask.
"""

from __future__ import annotations

import fnmatch
import os
import posixpath
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from aisotools.core.exceptions import WorkspaceError
from aisotools.core.path_texts import is_within
from aisotools.core.types import AbsentNames, GitPrograms, MadeName
from aisotools.workspace.git_settings import SYSTEM_FOLDERS, GitProgram, find_programs, find_started
from aisotools.workspace.importable import is_among
from aisotools.workspace.made_names import MadeNames, Unfollowed
from aisotools.workspace.paths import check_path
from aisotools.workspace.real_paths import follow_path

_MAX_PATHS = 200
_MAX_PARTS = 10_000  # of all paths of a call; each may cost a system call
_MAX_MATCHES = 500
_MAX_PATTERN_CHARS = 1_000
_MAX_ENTRIES = 5_000  # looked at for all patterns of a call: some milliseconds of the event loop
_MAX_TEXT_CHARS = 1_000
GLOB = re.compile(r"[*?\[]")
"""Where a path is a pattern."""

_PATH_FORM = re.compile(r"[^\s()'\"`;{}<>|=:&!,]+")
_NUMBER = re.compile(r"[+-]?[\d._]+(?:[eE][+-]?\d+)?")
_CLASS = re.compile(r"\[[:.=]")
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))(?=/|$)")
_WORKSPACE_VARIABLES = frozenset(("WORKSPACE", "PWD"))
_PRIVATE_VARIABLES = frozenset(("HOME", "TMPDIR"))
_DIFFERS_BY_PROCESS = re.compile(r"/(?:proc|dev/fd|sys)(?:/|\Z)")
_ALIAS = "/workspace"


class _Unclear(Exception):
    """Raised where a pattern cannot be expanded: it would take too long, or depends on what is not known."""


@dataclass(slots=True)
class FollowedPaths:
    """What the paths of a call lead to, in the order in which they were found."""

    paths: dict[str, None] = field(default_factory=dict)
    folders: dict[str, None] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    unresolved: dict[str, None] = field(default_factory=dict)
    loose: dict[str, None] = field(default_factory=dict)
    """Those that may lead somewhere else by what the call itself makes, which is not known."""
    outside: bool = False


def may_be_path(text: str) -> bool:
    """Return whether a text can be a path: neither empty nor very long, and of one line."""
    return 0 < len(text) <= _MAX_TEXT_CHARS and "\n" not in text and "\0" not in text


@dataclass(frozen=True, slots=True)
class Spellings:
    """The absolute paths that lead to a workspace.

    Attributes:
        root: The real one.
        all: All that a call may begin a path with: as the workspace was named, the real one, the alias.
        has_alias: Whether a sandbox shows it at the alias. One that lies there itself, or below, has none.
    """

    root: str
    all: tuple[str, ...]
    has_alias: bool

    @classmethod
    def of(cls, root: str, spelled: str) -> Spellings:
        """Return those of the workspace with this real path, which was named by another."""
        return cls(root, tuple(dict.fromkeys((spelled, root, _ALIAS))), not is_within(root, _ALIAS))


NameOf = Callable[[int, int], str | None]
"""Returns the path in the workspace by which rules know the file of a device and inode.

The path is empty if that cannot be told, and None if no rule is about the file.
"""


class PathLookup:
    """One look at the workspace, which counts what it has looked at."""

    def __init__(
        self,
        spellings: Spellings,
        made: Sequence[MadeName] = (),
        *,
        max_paths: int = _MAX_PATHS,
        name_of: NameOf | None = None,
        is_generous: bool = False,
    ) -> None:
        self._name_of = name_of
        self._is_generous = is_generous  # names that a pattern may match count as well
        self._root = spellings.root
        self._spellings = spellings.all
        self._has_alias = spellings.has_alias
        self._paths_left = max_paths
        self._first_names: dict[str, bool] = {}
        self._parts_left = _MAX_PARTS
        self._entries_left = _MAX_ENTRIES
        self._made: MadeNames | None = None
        if made:
            spelled = [path for path in spellings.all if path != _ALIAS or self._has_alias]
            self._made = MadeNames((self._root, *spelled), self._absolute, self._expand_source)
            self._made.add(made)

    def exists(self, path: str) -> bool:
        """Return whether there is something at a path relative to the workspace."""
        return any(map(os.path.lexists, self._places(path)))

    @property
    def is_exhausted(self) -> bool:
        """True if there was more to look at than is allowed."""
        return min(self._paths_left, self._parts_left, self._entries_left) < 0

    def may_exist(self, text: str) -> bool:
        """Return whether it is worth while to look for a text; nearly all texts are no paths."""
        beneath = self._beneath(text)
        if beneath is None and not text.startswith("/"):
            return self.exists(text)
        first = (text.lstrip("/") if beneath is None else beneath).partition("/")[0]
        if first in {"", ".", ".."} or (beneath is not None and GLOB.search(first)):
            return True
        place = f"/{first}" if beneath is None else f"{self._root}/{first}"
        if place not in self._first_names:
            self._first_names[place] = os.path.lexists(place)
        return self._first_names[place]

    def may_be_read(self, text: str) -> bool:
        """Return whether a word can be the path of a file: of one that is there, or by its form."""
        if not may_be_path(text):
            return False
        beneath = self._beneath(text)
        if beneath is None or self.exists(beneath):
            return True
        folder, _, name = beneath.rpartition("/")
        if not _PATH_FORM.fullmatch(beneath) or _NUMBER.fullmatch(beneath):
            return False
        return bool(GLOB.search(beneath)) or (self.exists(folder) if folder else "." in name.lstrip("."))

    def exists_beneath(self, path: str) -> bool:
        """Return whether there is something at a path that is relative to the workspace, or absolute."""
        place = path if path.startswith("/") else f"{self._root}/{path}"
        return "\0" not in place and os.path.lexists(place)

    def has_plain_names(self, folder: str) -> bool:
        """Return whether it is certain that no name in a folder begins like an option.

        For some programs that is `@file`, with more arguments in the file, or `|program`.
        """
        return self._has_none(folder, lambda entry: entry.name.startswith(("-", "@", "|")))

    def is_absent(self, absent: AbsentNames) -> bool:
        """Return whether it is certain that nothing is there of what must not be, programs of git aside."""
        if not (absent.names or absent.modules):
            return True
        folder = self._beneath(absent.folder)
        if folder is None or ".." in folder.split("/"):
            return False
        parts = folder.split("/") if absent.above else []
        folders = [folder, *("/".join(parts[:count]) or "." for count in range(len(parts)))]

        return all(self._has_none(each, lambda entry: is_among(entry, absent)) for each in folders)

    def programs_in(self, absent: AbsentNames, home: str) -> list[str]:
        """Return which settings of git name programs that must not be named, or why nobody can tell."""
        beneath = self._beneath(absent.folder)
        if beneath is not None and not GLOB.search(beneath) and "\0" not in beneath:
            return find_programs(f"{self._root}/{beneath}", absent.programs, root=self._root, home=home)
        if beneath is None and absent.folder.startswith(SYSTEM_FOLDERS):
            return find_programs(absent.folder, absent.programs, root=self._root, home=home)
        return [f"nobody can tell which programs the settings of git in {absent.folder} name"]

    def started_by_git(self, programs: GitPrograms, home: str) -> list[GitProgram]:
        """Return which of the programs that git may start are there, or why nobody can tell."""
        beneath = self._beneath(programs.folder)
        if beneath is not None and not GLOB.search(beneath) and "\0" not in beneath:
            return find_started(
                f"{self._root}/{beneath}", programs.hooks, programs.settings, root=self._root, home=home
            )
        return [GitProgram(doubt=f"nobody can tell which hooks and programs git runs in {programs.folder}")]

    def _has_none(self, folder: str, is_meant: Callable[[os.DirEntry[str]], bool]) -> bool:
        beneath = self._beneath(folder)
        if beneath is None or GLOB.search(beneath):
            return False
        for place in self._places(beneath):
            try:
                with os.scandir(place) as entries:
                    for entry in entries:
                        self._entries_left -= 1
                        if self._entries_left < 0 or is_meant(entry):
                            return False
            except FileNotFoundError:
                continue  # without a folder nothing matches, and a pattern begins with no dash
            except OSError:
                return False
        return True

    def recorded_path(self, text: str) -> str:
        """Return a path as git has recorded it, relative to the workspace; `.` if that cannot be told."""
        beneath = self._beneath(text)
        path = "." if beneath is None or GLOB.search(beneath) else posixpath.normpath(beneath)
        return "." if path.partition("/")[0] == ".." else path

    def follow_all(self, paths: Sequence[str], *, doubtful: Sequence[str] = ()) -> FollowedPaths:
        """Return what paths lead to.

        Args:
            paths: As they are written.
            doubtful: Those in which an unknown variable is one; in the others it may only be the name of a
                file, or is known to the tool.
        """
        found = FollowedPaths()
        for path in paths:
            self._paths_left -= 1
            if self._paths_left < 0:
                found.unresolved[f"and {len(paths)} paths in all"] = None
                break
            self._parts_left -= path.count("/") + 1
            if self._parts_left < 0:  # not looked at, so nothing says that it stays inside
                found.paths[path] = found.unresolved[path] = None
                found.outside = True
                continue
            try:
                self._follow_text(path, found, is_doubtful=path in doubtful)
            except (_Unclear, WorkspaceError, OSError, ValueError):  # OSError: a circle of links
                found.paths[path] = found.unresolved[path] = None
        return found

    def _follow_text(self, text: str, found: FollowedPaths, *, is_doubtful: bool) -> None:
        """Follow a path as it was written: with variables and patterns, or with characters that look so."""
        beneath = self._beneath(text)
        if beneath is None:
            self._follow_other(text, found, is_doubtful=is_doubtful)
            return
        if text.startswith(f"{_ALIAS}/") and ".." in text.split("/"):  # in a sandbox, / is above the alias
            self._follow_absolute(text, found)
        matches = self._expand(beneath) if GLOB.search(beneath) else []
        for match in matches:
            self._follow(match, found)
        # Without a match bash passes the pattern on; in quotes it is the name of a file.
        if not matches or self.exists(beneath):
            self._follow(beneath, found)
        for path in (*matches, beneath):
            self._follow_made(f"{self._root}/{path}", found)

    def _beneath(self, text: str) -> str | None:
        """Return a path relative to the workspace, or None for one that is written in another way."""
        variable = _VARIABLE.match(text)
        if variable and (variable[1] or variable[2]) in _WORKSPACE_VARIABLES:
            return text[variable.end() + 1 :] or "."
        for spelling in self._spellings:
            if text == spelling or text.startswith(f"{spelling}/"):
                return text[len(spelling) + 1 :].lstrip("/") or "."
        return None if text.startswith(("/", "~", "$")) or "$" in text or "`" in text else text or "."

    def _follow_other(self, text: str, found: FollowedPaths, *, is_doubtful: bool) -> None:
        """Follow a path that is absolute or has a variable or a tilde in it."""
        self._follow_made(text, found)
        if text.startswith("/"):
            self._follow_absolute(text, found)
            return
        exists = self.exists(text)
        if exists:  # quoted, it is the name of a file right here
            self._follow(text, found)
        variable = _VARIABLE.match(text)
        name = (variable[1] or variable[2]) if variable else ""
        is_private = name in _PRIVATE_VARIABLES or text == "~" or text.startswith("~/")
        # Case: `~+` is the folder itself, `~-` the last one, `~2` one of the stack, `~ann` a person's home.
        is_doubtful = is_doubtful or (text.startswith("~") and not is_private)
        if is_private and ".." not in text.split("/") and "$" not in text[1:]:
            found.paths[posixpath.normpath(text)] = None
            # TMPDIR is a folder of the sandbox's own at every level; HOME may be the person's.
            found.outside |= name != "TMPDIR"
        elif is_private or (is_doubtful and (not exists or text.startswith("~"))):
            found.paths[text] = found.unresolved[text] = None
            found.outside = True

    def _follow_absolute(self, text: str, found: FollowedPaths) -> None:
        normal = posixpath.normpath(text)
        if _DIFFERS_BY_PROCESS.match(normal):
            found.paths[normal] = None
            found.unresolved[text] = None
            found.outside = True
            return
        for real in self._real_paths(text, found):
            below = self._relative(real, self._spellings)
            if below is None:
                found.paths[real] = found.paths[normal] = None
                found.outside = True
                if real != normal:
                    found.links[normal] = real
            else:
                found.paths[below] = None
                found.links[normal] = below
                self._note_folder(below, found)

    def _follow(self, path: str, found: FollowedPaths) -> None:
        """Follow a plain path relative to the workspace; what is missing counts as if it were created."""
        check_path(path)
        lexical = posixpath.normpath(path)
        for real in self._real_paths(f"{self._root}/{path}", found):
            below = self._relative(real, (self._root,))
            found.outside |= below is None
            place = real if below is None else below
            found.paths[place] = None
            self._note_folder(place, found)
            if lexical != place and lexical.partition("/")[0] != "..":
                found.paths[lexical] = None
                found.links[lexical] = place

    def _follow_made(self, path: str, found: FollowedPaths) -> None:
        """Follow a path by the names that the call makes, as well as by those that are there."""
        if self._made is None:
            return
        inside = self._relative(path, self._spellings)
        lexical = posixpath.normpath(path if inside is None else inside)
        try:
            places = self._made.follow(path)
        except Unfollowed:
            found.paths[lexical] = found.loose[lexical] = None
            return
        for place in places:
            below = self._relative(place, self._spellings)
            if below is None:
                if _DIFFERS_BY_PROCESS.match(place):
                    found.unresolved[place] = None
                found.outside |= not is_within(place, "$TMPDIR")
            shown_place = place if below is None else below
            found.paths[shown_place] = None
            self._note_folder(shown_place, found)
            if shown_place != lexical:
                found.links[lexical] = shown_place

    def _absolute(self, text: str) -> str | None:
        """Return the absolute path of a text that means a path in the workspace; None for any other text."""
        beneath = self._beneath(text)
        return None if beneath is None else f"{self._root}/{beneath}"

    def _expand_source(self, text: str) -> Sequence[str]:
        """Return what a text with a pattern matches in the workspace; itself if that is nothing.

        Raises:
            Unfollowed: It cannot be told.
        """
        beneath = self._beneath(text)
        if beneath is None:
            raise Unfollowed
        try:
            return self._expand(beneath) or [text]
        except _Unclear as error:
            raise Unfollowed from error

    def _relative(self, real: str, folders: Sequence[str]) -> str | None:
        """Return a real path relative to one of the folders; None if it lies in none of them."""
        for folder in folders:
            if real == folder or real.startswith(f"{folder.rstrip('/')}/"):
                return real[len(folder) :].lstrip("/") or "."
        return None

    def _real_paths(self, path: str, found: FollowedPaths) -> Iterator[str]:
        """Yield the real path, and the one in a sandbox that shows the workspace at the alias as well.

        Raises:
            OSError: There are too many links.
            _Unclear: A link on the way leads to where every process sees something else.
        """
        real, links = self._walk(path, os.readlink, found)
        yield real
        is_plain = not links and ".." not in path and path.startswith(f"{self._root}/")
        if self._has_alias and not is_plain:
            seen, _ = self._walk(path, self._read_link, found)
            below = self._relative(seen, (_ALIAS,))
            if below is not None:
                yield posixpath.normpath(f"{self._root}/{below}")
            elif seen != real:
                yield seen

    def _walk(
        self, path: str, read_link: Callable[[str], str], found: FollowedPaths
    ) -> tuple[str, list[str]]:
        real, links = follow_path(path, read_link)
        if any(map(_DIFFERS_BY_PROCESS.match, (real, *links))):
            found.outside = True
            raise _Unclear
        return real, links

    def _read_link(self, place: str) -> str:
        """Return the text of the link at a place of the sandbox."""
        below = self._relative(place, (_ALIAS,))
        return os.readlink(place if below is None else f"{self._root}/{below}")  # noqa: PTH115 - as follow_path

    def _note_folder(self, path: str, found: FollowedPaths) -> None:
        try:
            status = os.lstat(path if path.startswith("/") else f"{self._root}/{path}")
        except OSError:
            return
        if stat.S_ISDIR(status.st_mode):
            found.folders[path] = None
        elif status.st_nlink > 1 and self._name_of is not None:
            name = self._name_of(status.st_dev, status.st_ino)
            if name:
                found.paths[name] = None
                if name != path:
                    found.links[path] = name
            elif name is not None:
                found.unresolved[path] = None

    # ---- patterns

    def _expand(self, pattern: str) -> list[str]:
        """Return the paths that a pattern matches, as bash expands it without options.

        Raises:
            _Unclear: It cannot be told, or more names would have to be looked at than are allowed.
        """
        names = [name for name in pattern.split("/") if name]
        found = ["."]
        for name in names:
            if not GLOB.search(name):
                self._parts_left -= len(found)
                if self._parts_left < 0:
                    raise _Unclear
                found = [f"{folder}/{name}" for folder in found]
                continue
            if self._is_generous and _CLASS.search(name):
                name = f"{name.partition('[')[0]}*"  # noqa: PLW2901 - all that it may match
            elif _CLASS.search(name):
                raise _Unclear  # which characters belong to a class depends on the locale
            if len(name) > _MAX_PATTERN_CHARS:
                raise _Unclear  # to translate it takes time with the square of its length
            matcher = re.compile(fnmatch.translate(_as_fnmatch(name))).match
            found = [
                f"{folder}/{entry}"
                for folder in found
                for entry in self._list(folder)
                if (not entry.startswith(".") or name.startswith(".")) and matcher(entry)
            ]
            if len(found) > _MAX_MATCHES:
                raise _Unclear
        return [path.removeprefix("./") for path in found if self._made or self.exists(path)]

    def _list(self, folder: str) -> list[str]:
        names: dict[str, None] = {}
        for place in self._places(folder):
            try:
                with os.scandir(place) as entries:
                    for entry in entries:
                        self._entries_left -= 1
                        if self._entries_left < 0:
                            raise _Unclear
                        names[entry.name] = None
            except OSError:
                continue
        if self._made is not None:
            try:
                names |= dict.fromkeys(self._made.list_names(f"{self._root}/{folder}"))
            except Unfollowed as error:
                raise _Unclear from error
        return list(names)

    def _places(self, path: str) -> Iterator[str]:
        """Yield where a path relative to the workspace is on the host, and where a sandbox has it."""
        yield f"{self._root}/{path}"
        if self._has_alias:
            with suppress(OSError):  # a circle of links: there is nothing
                seen, _ = follow_path(f"{self._root}/{path}", self._read_link)
                below = self._relative(seen, (_ALIAS,))
                if below is not None:
                    yield f"{self._root}/{below}"


def _as_fnmatch(name: str) -> str:
    """Return a pattern of bash as one of fnmatch, whose negated sets begin with `!` alone."""
    return name.replace("[^", "[!")
