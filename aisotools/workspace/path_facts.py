"""Resolve the paths in the facts of a call: what a spelling means in this workspace, at this moment.

Threat: a rule, a grant or a card speaks of `secrets/*`, and the call names the same file as
`/workspace/secrets/key`, `$WORKSPACE/secrets/key`, `secr*/key`, or by a link that code in the sandbox has
made. A tool on the host, of an MCP server or made of a function, does not say what it reads, but opens what
its arguments name: `file:///workspace/secrets/key`, `" secrets/key"`, `secrets%2Fkey`, `{"folder": "secrets",
"name": "key"}`, or a path that is a key, in JSON, or in a command.

Mechanism: `PathResolver.resolve` replaces every path by the one relative to the workspace that it leads to,
with links followed and patterns expanded. Where a link is on the way, the name itself is listed as well, so
that a rule about either one holds; a text that a shell may read in two ways counts in both. A name that the
call itself will make counts for what it will lead to; see `workspace.made_names`. Of arguments,
`readings_of` yields every text at any depth, keys included, in the ways in which programs read paths, and
`joined` puts folders and names of one call together; those that name something count.

Race window: a link or a file can be put there after the look. The gate looks once more at dispatch and asks
again if anything differs; what changes after that is for the confinement to hold.

When it fails: a path that cannot be followed, too many paths or too long ones, or a pattern that would have
to look at too many names, becomes `unresolved`, and rules about paths then ask. So they do where arguments
have more texts than are looked at. Encodings that no everyday program undoes by itself (base64, a name built
from parts of words) are not seen.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import posixpath
import re
import unicodedata
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import filterfalse
from pathlib import Path
from urllib.parse import unquote

from pydantic_core import from_json

from aisotools.core.exceptions import WorkspaceError
from aisotools.core.types import Effect, Facts, GitPrograms, Json
from aisotools.workspace.git_settings import ANY_HOOKS, ANY_PROGRAMS, GitProgram, digest_of_program
from aisotools.workspace.patch_names import names_in_patch
from aisotools.workspace.path_lookup import GLOB, FollowedPaths, NameOf, PathLookup, Spellings, may_be_path
from aisotools.workspace.paths import Root, as_utf8
from aisotools.workspace.scripts import (
    FOLDER,
    HOME_SETTINGS,
    MISSING,
    digest_of_settings,
    digests_of,
    is_code,
    source_digests,
)
from aisotools.workspace.stamps import NAMED, UNKNOWN, stamps_of
from aisotools.workspace.workspace import Workspace

_MAX_MENTIONED = 150
_MAX_PATCHES = 10
_OF_RUN_TIME = re.compile(r"[$`*?\[]")
MAX_PATCH_BYTES = 4 << 20
"""Bytes of patches in which the names of files are looked for, in all the patches of a call."""

_WITHOUT_SETTINGS = frozenset(
    (
        *(":", "[", "cd", "echo", "exit", "export", "false", "printf", "pwd", "read", "set", "test", "true"),
        *("basename", "cat", "chmod", "cmp", "comm", "cp", "cut", "date", "dirname", "du", "expr", "fold"),
        *("grep", "head", "join", "ln", "ls", "md5sum", "mkdir", "mktemp", "mv", "nl", "od", "paste"),
        *("readlink", "realpath", "rev", "rm", "rmdir", "seq", "sha256sum", "shuf", "sleep", "stat", "tac"),
        *("tail", "tee", "touch", "tr", "truncate", "uniq", "wc"),
    )
)
"""Programs and builtins of a shell that read no settings in a home folder, and start no other program."""

_MAX_SHOWN_PROGRAMS = 3
_MAX_REPOSITORIES = 10
_REFERENCE = re.compile(r"\$(?:\{\w+\}|\w+)")
_WITHOUT_FOLDER = re.compile(r"[^$`…{}~]+")
_GIVEN_LATER = frozenset(("{}", "…"))
"""In place of paths that another program gives at run time."""
_ENDINGS_OF_PROGRAMS = ("", ".jq", ".sql")  # beside those that `is_code` knows
_OF_A_PROCESS = re.compile(r"/+(?:proc/(?:self|thread-self|\d+)|dev/fd)(?:/|$)")

MAX_VALUES = 5_000
"""Values of the arguments that are looked at, keys of objects included."""

MAX_CHARS = 1 << 18
"""Characters of all texts together that are looked at."""

MAX_TEXTS = 500
"""Different texts that are looked at: each is split and looked for."""

MAX_PATH_CHARS = 4_096
"""Longer texts are no path as a whole; the words in them may be."""

_MAX_WORDS = 1_500
_MAX_JOINED = 5_000
_FEW_WORDS = 20  # a command, not prose: words without a slash or a dot count as names as well
_MAX_DECODED = 3
_BLANKS_AND_QUOTES = " \t\r\n\f\v\0'\"`<>()[]{},;"
_split_words = re.compile(r"""[\s,;=@?&|<>()\[\]{}"'`\0]+""").split
_split_parts = re.compile(r"[:#]").split
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:(?://[^/]*)?(?=/)")
_LOCAL_SCHEMES = ("file:", "vscode:", "vscode-insiders:", "cursor:", "idea:", "local:", "path:", "resource:")
_BRACES = re.compile(r"\{([^{}\n]*,[^{}\n]*)\}")
_MAX_ALTERNATIVES = 50
_DRIVE = re.compile(r"[A-Za-z]:[\\/]")


class PathResolver:
    """Resolves the paths of calls in one workspace. Holds no descriptors."""

    def __init__(
        self,
        workspace: str | os.PathLike[str],
        name_lookup: Callable[[], NameOf | None] = lambda: None,
        home_of: Callable[[], str] = str,
    ) -> None:
        """Resolve in an existing folder.

        Args:
            workspace: The folder.
            name_lookup: Returns, for one call, what names files with several names as rules do; None if
                no rule is about such a file. It may be called in any thread.
            home_of: Returns the home folder of programs in the sandbox; empty if there is none.
        """
        self._name_lookup = name_lookup
        self._home_of = home_of
        self._root = Root.of(workspace)
        self._spellings = Spellings.of(self._root.path, os.fspath(Path(workspace).absolute()))

    def __repr__(self) -> str:
        return f"<PathResolver {self._root.path!r}>"

    def resolve(self, facts: Facts, arguments: Mapping[str, Json] | None = None) -> Facts:
        """Return `facts` with every path resolved.

        Args:
            facts: As a tool declares them.
            arguments: The arguments of a tool that declares no paths: what they name becomes `mentions`.
        """
        return self._paths_of_call().resolve(facts, arguments)

    def with_sources(self, declared: Facts, facts: Facts) -> Facts:
        """Return `facts`, which are those that are `declared` with their paths resolved, with the sources."""
        return self._paths_of_call().with_sources(declared, facts)

    def _paths_of_call(self) -> _CallPaths:
        return _CallPaths(self._root, self._spellings, self._name_lookup(), self._home_of)


@dataclass(frozen=True, slots=True)
class _CallPaths:
    """Resolves the paths of one call; see `PathResolver`.

    Attributes:
        root: The workspace.
        spellings: How it may be written.
        name_of: What names files with several names.
        home_of: Returns the home folder of programs in the sandbox.
    """

    root: Root
    spellings: Spellings
    name_of: NameOf | None
    home_of: Callable[[], str]

    def resolve(self, facts: Facts, arguments: Mapping[str, Json] | None) -> Facts:
        """Return `facts` with every path resolved."""
        if facts.without_dashes is not None:
            facts = self._settle_patterns(facts, facts.without_dashes)
        mentioned = FollowedPaths()
        if arguments and not (facts.reads or facts.commands):
            mentioned = self._find_mentioned(arguments)
        is_mentioning = bool(mentioned.paths or mentioned.unresolved)
        started: dict[str, str] = {}
        if facts.git_programs:
            facts, started = self._name_git_programs(facts)
        is_naming = bool(facts.named or facts.scripts or started or is_mentioning)
        if not (facts.reads or facts.writes or facts.recorded or is_naming):
            return dataclasses.replace(facts, made=())
        named = self._find_named(facts.named) if facts.named else FollowedPaths()
        look = PathLookup(self.spellings, facts.made, name_of=self.name_of)
        read_texts: Sequence[str] = facts.reads
        if facts.commands and not facts.certain and not facts.made:
            # Of words of commands that may do anything, those are no paths that could name nothing here.
            read_texts = [text for text in facts.reads if text in facts.unresolved or look.may_be_read(text)]
        if facts.patches:
            facts = self._name_patched(facts)
        reads = look.follow_all(read_texts, doubtful=facts.unresolved)
        writes = look.follow_all(facts.writes, doubtful=facts.writes)
        shown_reads = _as_utf8(reads.paths)
        # What a call reads that may do anything decides what it does.
        scripts: tuple[tuple[str, str], ...] = ()
        if facts.scripts or facts.named or not facts.certain:
            scripts = self._find_scripts(facts, shown_reads, named)
        unresolved = dict.fromkeys(
            (
                *facts.unresolved,
                *reads.unresolved,
                *reads.loose,
                *writes.unresolved,
                *writes.loose,
                *named.unresolved,
            )
        )
        unresolved |= mentioned.unresolved
        # What is said to be written is not a sign of what is read.
        mentions = [path for path in mentioned.paths if path not in writes.paths]
        folders = reads.folders | writes.folders | named.folders | mentioned.folders
        links = reads.links | writes.links
        return dataclasses.replace(
            facts,
            reads=shown_reads,
            scripts=tuple(sorted({**dict(scripts), **started}.items())),
            losses=self._find_losses(facts.effect, reads, writes),
            writes=_as_utf8(writes.paths),
            folders=_as_utf8(folders),
            links=tuple(zip(_as_utf8(links), _as_utf8(links.values()), strict=True)),
            mentions=_as_utf8(mentions),
            named=_as_utf8(named.paths),
            unresolved=_as_utf8(unresolved),
            made=(),
            recorded=_as_utf8(dict.fromkeys(map(look.recorded_path, facts.recorded))),
            outside=writes.outside or (facts.outside and not (facts.writes and facts.runs_in == "sandbox")),
            # Which file is written must be known, or nobody has been asked about it.
            certain=facts.certain and not writes.unresolved,
        )

    def with_sources(self, declared: Facts, facts: Facts) -> Facts:
        """Return `facts`, which are those that are `declared` with their paths resolved, with the sources."""
        # What the call itself makes is left out: the files of this moment are compared.
        look = PathLookup(self.spellings, name_of=self.name_of, is_generous=True)
        paths = dict.fromkeys((*facts.reads, *facts.mentions))
        if facts.path_guarded or any(command.startswith("mv ") for command in facts.commands):
            # Case: a file comes to lie in a folder that is to be moved, and is moved along.
            paths |= dict.fromkeys(path for path in facts.writes if path in facts.folders)
        if any(map(_WITHOUT_FOLDER.fullmatch, {*declared.unresolved} - {*declared.reads})):
            paths["."] = None  # a file of any folder
        unclear: dict[str, str] = {}
        texts = [_REFERENCE.sub("*", text) for text in declared.named if not text.startswith("$")]
        for text in (*facts.reads, *((*declared.named, *texts) if facts.commands else ())):
            if text not in declared.places and may_be_path(text) and look.may_exist(text):
                followed = look.follow_all((text,))
                paths |= dict.fromkeys(filter(look.exists_beneath, followed.paths))
                if followed.unresolved and GLOB.search(text):
                    unclear[text] = UNKNOWN
        if look.is_exhausted:
            unclear["..."] = UNKNOWN
        compared = {path for path, digest in facts.scripts if digest not in {"", FOLDER}}
        sources = source_digests(Path(self.root.path), filterfalse(compared.__contains__, paths))
        sources += tuple(unclear.items())
        sources += self._repository_sources(facts)
        sources += self._named_sources(facts, compared.union(path for path, _ in sources))
        return dataclasses.replace(
            facts,
            sources=tuple((as_utf8(path), digest) for path, digest in sources),
            scripts=(*facts.scripts, *self._home_settings(facts)),
        )

    def _home_settings(self, facts: Facts) -> tuple[tuple[str, str], ...]:
        """Return the settings in the home folder, with a digest, for a call whose programs may obey them.

        Case: a setting that was written after an approval was remembered names a program, which then has all
        rights of the command. Without settings nothing is returned, so that a new home folder is the same.
        """
        home = self.home_of()
        # Code names no commands, and may start any program.
        is_plain = facts.certain and bool(facts.commands)
        is_plain = is_plain and all(
            command.partition(" ")[0] in _WITHOUT_SETTINGS for command in facts.commands
        )
        if is_plain or not home or facts.path_guarded or facts.runs_in != "sandbox":
            return ()
        digest = digest_of_settings(Path(self.root.path), home)
        if digest is not None and digest.startswith(UNKNOWN):
            # Nothing is remembered; what could be looked at is compared between card and run.
            return (HOME_SETTINGS, ""), (f"{HOME_SETTINGS} (in part)", digest)
        return () if digest is None else ((HOME_SETTINGS, digest),)

    def _named_sources(self, facts: Facts, compared: Container[str]) -> tuple[tuple[str, str], ...]:
        """Return the files and folders that code names in quotes, with digests; none of those compared.

        It may write them as well, so they differ after each run, and no approval is bound to them.
        """
        if facts.commands or facts.path_guarded:
            return ()
        named = [path for path in facts.named if path != "." and path not in compared]
        found = source_digests(Path(self.root.path), named)
        return tuple((path, f"{NAMED}{digest}") for path, digest in found if digest != MISSING)

    def _repository_sources(self, facts: Facts) -> tuple[tuple[str, str], ...]:
        """Return what git would start here, with digests, for a call that may start git without naming it.

        Case: `make`, a script, `$G commit`, or code that is given to Python. Hooks and settings are those of
        the repositories in which the workspace lies, and in which what the call reads or names lies.
        """
        is_known = facts.certain and bool(facts.commands)  # without commands, it may be code
        if is_known or facts.path_guarded or facts.runs_in != "sandbox":
            return ()
        look = PathLookup(self.spellings)
        folders = {"."}
        for path in (*facts.reads, *facts.named, *facts.places, *facts.mentions):
            if not path.startswith(("/", "~", "$")):
                above = itertools.takewhile(bool, itertools.accumulate(path.split("/"), posixpath.join))
                folders |= {one for one in above if os.path.lexists(f"{self.root.path}/{one}/.git")}
        if len(folders) > _MAX_REPOSITORIES:
            return (("...", UNKNOWN),)
        home = self.home_of()
        found = [
            one
            for folder in folders
            for one in look.started_by_git(GitPrograms(folder, ANY_HOOKS, ANY_PROGRAMS), home)
        ]
        known = dict(facts.scripts)
        digests = self._digest_git_programs(found)
        return tuple((path, digest or UNKNOWN) for path, digest in digests.items() if path not in known)

    def _find_scripts(
        self, facts: Facts, reads: Iterable[str], named: FollowedPaths
    ) -> tuple[tuple[str, str], ...]:
        """Return what a call may run, with digests: what it reads or loads, and code that it names."""
        workspace = Path(self.root.path)
        reads = () if facts.certain else reads
        # Of what is only named, data and results stay out: a result differs after each run.
        code = [
            path
            for path in named.paths
            if path not in named.folders
            and (posixpath.splitext(path)[1] in _ENDINGS_OF_PROGRAMS or is_code(workspace, path))
        ]
        loaded = [path for path, _ in facts.scripts]
        return digests_of(workspace, (*reads, *code), loaded, named.folders)

    def _name_git_programs(self, facts: Facts) -> tuple[Facts, dict[str, str]]:
        """Return the facts with what git would start, and the digests of it, and of what it loads.

        Case: a hook that a call can have written or chosen is a program of which nothing is known, and so is
        what a setting names: it is the command of a shell, which attributes that a call writes have run.
        """
        look = PathLookup(self.spellings)
        home = self.home_of()
        found = [one for programs in facts.git_programs for one in look.started_by_git(programs, home)]
        doubts = dict.fromkeys(as_utf8(one.doubt) for one in found if one.doubt)
        hooks = list(dict.fromkeys(one.hook for one in found if one.hook and not one.doubt))
        settings = list(dict.fromkeys(one.setting for one in found if one.setting))
        folders: dict[str, list[str]] = {}
        for path in hooks:
            folders.setdefault(posixpath.dirname(path), []).append(posixpath.basename(path))
        programs = [GitPrograms(as_utf8(place), _as_utf8(names)) for place, names in folders.items()]
        if settings:
            programs.append(GitPrograms("", settings=_as_utf8(settings)))
        facts = dataclasses.replace(
            facts,
            git_programs=tuple(programs),
            certain=facts.certain and not doubts,
            doubts=tuple(dict.fromkeys((*list(doubts)[:_MAX_SHOWN_PROGRAMS], *facts.doubts))),
        )
        return facts, self._digest_git_programs(found)

    def _digest_git_programs(self, found: Sequence[GitProgram]) -> dict[str, str]:
        """Return the files that git would run or obey, and what they load, and settings, with digests."""
        paths = dict.fromkeys(one.hook for one in found if one.hook and not one.doubt)
        paths |= dict.fromkeys(file for one in found for file in one.files)
        digests = dict(digests_of(Path(self.root.path), (path for path in paths if not path.startswith("/"))))
        # Case: what lies outside the workspace, or is a link to that.
        for path in paths:
            place = posixpath.join(self.root.path, path)
            if not digests.get(path):
                digests[path] = digest_of_program(place) if os.path.lexists(place) else MISSING
        if "..." in paths:
            digests["..."] = ""
        for one in found:
            if one.setting:  # two long settings may have the same beginning
                digests[one.setting] = digests.get(one.setting, "") + one.digest
        return {as_utf8(path): digest for path, digest in digests.items()}

    def _name_patched(self, facts: Facts) -> Facts:
        """Return the facts with what patches name among the writes, and a doubt where they do not say it."""
        workspace = Workspace(self.root.path)
        # What the call itself makes is left out: the patches of this moment are read.
        look = PathLookup(self.spellings, name_of=self.name_of)
        names: dict[str, None] = {}
        doubts: list[str] = []
        bytes_left = MAX_PATCH_BYTES
        for patch in facts.patches:
            is_named = patch.path != "-" and not _OF_RUN_TIME.search(patch.path)
            files = look.follow_all((patch.path,) if is_named else facts.reads[:_MAX_PATCHES]).paths
            found: list[str] = []
            for file in files:
                try:
                    data = workspace.read_bytes(file, max_bytes=bytes_left)
                except (OSError, ValueError, WorkspaceError) as error:
                    if not is_named and patch.path != "-" and GLOB.search(file):
                        continue  # a pattern as it is written
                    why = error.strerror if isinstance(error, OSError) else str(error).rstrip(".")
                    doubts.append(f"what the patch {file} changes cannot be told: {why}")
                    continue
                bytes_left -= len(data)
                named = names_in_patch(data.decode("utf-8", "surrogateescape"), patch.strip)
                found += named.names
                if not named.is_complete and (named.names or patch.path != "-"):
                    doubts.append(f"not all files that the patch {file} changes can be named")
            if not found and not doubts:
                doubts.append("which files the patch changes cannot be told")
            names |= dict.fromkeys(posixpath.normpath(f"{patch.folder}/{name}") for name in found)
        return dataclasses.replace(
            facts,
            writes=tuple(dict.fromkeys((*facts.writes, *names))),
            doubts=tuple(dict.fromkeys((*doubts[:_MAX_SHOWN_PROGRAMS], *facts.doubts))),
            patches=(),
        )

    def _find_losses(
        self, effect: Effect, reads: FollowedPaths, writes: FollowedPaths
    ) -> tuple[tuple[str, str], ...]:
        """Return what a call would remove or overwrite, with stamps."""
        if effect is Effect.READ_ONLY:
            return ()
        destroys = effect is Effect.DESTRUCTIVE
        if destroys:
            lost = writes.paths or reads.folders  # `find out -delete` removes what it finds
            if not _GIVEN_LATER.isdisjoint(lost) or any(path in writes.unresolved for path in lost):
                # `ls *.csv | xargs rm` and `find out -exec rm {} +` remove what they are given.
                lost = {**lost, **reads.folders, **reads.paths}
        else:  # moved, or written into, a folder keeps what is in it
            lost = dict.fromkeys(filterfalse(writes.folders.__contains__, writes.paths))
        stamps = dict(stamps_of(Path(self.root.path), lost))
        return tuple(zip(_as_utf8(stamps), stamps.values(), strict=True))

    def _settle_patterns(self, facts: Facts, without_dashes: Facts) -> Facts:
        """Return the facts that hold, as there is a name that may be taken for an option, or is none."""
        look = PathLookup(self.spellings)
        holds = all(map(look.has_plain_names, facts.dash_folders)) and all(map(look.is_absent, facts.absent))
        on_programs = [absent for absent in facts.absent if absent.programs]
        home = self.home_of() if on_programs else ""
        named = [each for absent in on_programs for each in look.programs_in(absent, home)]
        if not holds or named:
            doubts = (*dict.fromkeys(named[:_MAX_SHOWN_PROGRAMS]), *facts.doubts)
            return dataclasses.replace(facts, dash_folders=(), absent=(), without_dashes=None, doubts=doubts)
        return dataclasses.replace(
            without_dashes,
            runs_in=facts.runs_in,
            level=facts.level,
            path_guarded=facts.path_guarded,
            enforced=facts.enforced,
            basis=facts.basis,
        )

    def _find_named(self, texts: Iterable[str]) -> FollowedPaths:
        """Return what of the workspace texts name: only what is there, since any text may be a name."""
        look = PathLookup(self.spellings, name_of=self.name_of)
        named = FollowedPaths()
        for text in texts:
            if may_be_path(text) and look.may_exist(text):
                self._add_named(text, look, named)
        if look.is_exhausted:
            named.unresolved["more names than are looked at"] = None
        return named

    def _find_mentioned(self, arguments: Mapping[str, Json]) -> FollowedPaths:
        """Return what of the workspace arguments name: as a whole, in words, or as a folder and a name."""
        readings = readings_of(arguments)
        look = PathLookup(self.spellings, max_paths=_MAX_MENTIONED, name_of=self.name_of)
        named = FollowedPaths()
        for text in readings.wholes:
            if _OF_A_PROCESS.match(text):
                named.unresolved[text] = None
            elif look.may_exist(text):
                self._add_named(text, look, named)
        folders = [path for path in named.folders if not path.startswith("/")]
        folders += [text for text in readings.wholes if text.startswith("/") and self._is_around(text)]
        pairs, is_complete = joined(folders, readings.wholes) if folders else ([], True)
        for pair in pairs:
            if not GLOB.search(pair) and look.exists_beneath(pair):
                self._add_named(pair, look, named)
        for word in readings.words:
            if word in readings.wholes or not look.may_exist(word) or (GLOB.search(word) and "/" not in word):
                continue
            of_word = FollowedPaths()
            self._add_named(word, look, of_word)
            # Prose has words such as `data`: a folder counts where it is written as a path.
            if "/" in word or not of_word.folders:
                named.paths |= of_word.paths
                named.folders |= of_word.folders
        if not (readings.is_complete and is_complete) or look.is_exhausted:
            named.unresolved["more names in its arguments than are looked at"] = None
        return named

    def _add_named(self, text: str, look: PathLookup, named: FollowedPaths) -> None:
        found = look.follow_all((text,))
        for path in found.paths:
            if path.startswith("/") and self._is_around(path):
                named.paths["."] = named.folders["."] = None
            elif not path.startswith(("/", "~", "$")) and look.exists(path):
                named.paths[path] = None
        named.folders |= found.folders

    def _is_around(self, path: str) -> bool:
        """Return whether an absolute path is a folder that the workspace lies in."""
        return self.root.path.startswith(f"{posixpath.normpath(path).rstrip('/')}/")


def _as_utf8(paths: Iterable[str]) -> tuple[str, ...]:
    """Return the paths as texts that can be recorded: a name on disk need not be UTF-8."""
    names = tuple(paths)
    return names if "".join(names).isascii() else tuple(map(as_utf8, names))


@dataclass(slots=True)
class Readings:
    """What the arguments of a call may name.

    Attributes:
        wholes: Readings of a whole text: a path, if there is one. Folders among them count as named.
        words: Words of commands and prose, and parts of texts.
        is_complete: False if there was more than is looked at.
    """

    wholes: dict[str, None] = field(default_factory=dict)
    words: dict[str, None] = field(default_factory=dict)
    is_complete: bool = True


def readings_of(arguments: Mapping[str, Json]) -> Readings:
    """Return the readings of all texts in the arguments, in the order in which they stand there."""
    found = Readings()
    chars_left = MAX_CHARS
    waiting: deque[Json] = deque(arguments.values())
    # The names of parameters are the tool's own words, unless they look like paths.
    keys = [key for key in arguments if _looks_like_path(key)]
    seen: set[str] = set()
    for looked_at in itertools.count():
        if not waiting and not keys:
            break
        is_key = not waiting
        value = keys.pop() if is_key else waiting.popleft()
        if looked_at >= MAX_VALUES:
            found.is_complete = False
            break
        if isinstance(value, Mapping):
            waiting += itertools.islice(value.values(), MAX_VALUES)
            keys += itertools.islice((key for key in value if key not in seen), MAX_VALUES)
        elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
            waiting += itertools.islice((inner for inner in value if not _is_number(inner)), MAX_VALUES)
        elif isinstance(value, str) and value not in seen:
            seen.add(value)
            chars_left -= len(value)
            if chars_left < 0 or len(seen) > MAX_TEXTS:
                found.is_complete = False
                break
            # A key such as `data` is a word of some format more often than a folder.
            waiting += _read_text(value, found, as_whole=not is_key or _looks_like_path(value))
    return found


def joined(folders: Iterable[str], names: Iterable[str]) -> tuple[list[str], bool]:
    """Return each folder followed by each name, and whether that was all of them."""
    names = [name.lstrip("/") for name in names]
    pairs: dict[str, None] = {}
    for folder in folders:
        for name in names:
            if name and name != ".":
                pairs[f"{folder.rstrip('/') if folder != '.' else '.'}/{name}"] = None
            if len(pairs) > _MAX_JOINED:
                return list(pairs), False
    return list(pairs), True


def _looks_like_path(key: str) -> bool:
    return not {"/", ".", "\\", "%"}.isdisjoint(key)


def _is_number(value: Json) -> bool:
    return value is None or isinstance(value, bool | int | float)


def _read_text(text: str, found: Readings, *, as_whole: bool) -> list[Json]:
    """Note the readings of one text. Return what it holds as JSON, to be read like the arguments."""
    if as_whole and len(text) <= MAX_PATH_CHARS:
        for form in _decoded(text):
            for alternative in _alternatives(form):
                found.wholes |= dict.fromkeys(_as_paths(alternative))
    for form in _decoded(text):
        words = [word for word in _split_words(form) if word]
        is_short = len(words) <= _FEW_WORDS
        for word in words:
            for part in {word: None, word.rstrip(".!"): None, **dict.fromkeys(_split_parts(word))}:
                # Prose has dots and slashes of its own; as a path of a command, a dot is the folder.
                is_name = bool(part.strip("/")) and bool(is_short or part.strip("./"))
                if not is_name or len(part) > MAX_PATH_CHARS or not (is_short or "/" in part or "." in part):
                    continue
                found.words |= dict.fromkeys(_as_paths(part))
        if len(found.words) > _MAX_WORDS:
            found.is_complete = False
            break
    return _inner_json(text)


def _decoded(text: str) -> Iterator[str]:
    """Yield a text, and what it is percent-decoded, as long as that makes a difference."""
    for _ in range(_MAX_DECODED):
        yield text
        if "%" not in text:
            return
        plain = unquote(text, errors="surrogateescape")
        if plain == text:
            return
        text = plain
    yield text


def _alternatives(text: str) -> list[str]:
    """Return a text, and each of the alternatives that the first braces in it stand for."""
    braces = _BRACES.search(text)
    if braces is None:
        return [text]
    inner = braces[1].split(",")[:_MAX_ALTERNATIVES]
    return [text, *(f"{text[: braces.start()]}{one}{text[braces.end() :]}" for one in inner)]


def _as_paths(text: str) -> Iterator[str]:
    """Yield a text as the paths that programs may take it for."""
    forms = {text: None, text.partition("\0")[0]: None, text.strip(_BLANKS_AND_QUOTES): None}
    if not text.isascii():
        forms |= {unicodedata.normalize("NFKC", form): None for form in tuple(forms)}
    for form in forms:
        if not form or "\0" in form:
            continue
        yield form
        if "\\" in form:
            slashes = _DRIVE.sub("/", form).replace("\\", "/")
            yield slashes
            yield slashes.lstrip("/")
        if scheme := _SCHEME.match(form):
            if form.lower().startswith(_LOCAL_SCHEMES):
                path = re.split("[?#]", form[scheme.end() :], maxsplit=1)[0]
                yield path
                yield path.lstrip("/")
            continue
        if form.lower().startswith("file:"):
            yield form[5:]
        if form.startswith("/") and not form.startswith("//"):
            yield form.lstrip("/")  # many servers take the workspace for the root of all paths
        if form.startswith("~"):
            yield os.path.expanduser(form)
        elif "$" in form:
            yield os.path.expandvars(form)


def _inner_json(text: str) -> list[Json]:
    """Return what a text holds as JSON, if that is an object or a list."""
    if text.lstrip()[:1] not in {"{", "["}:
        return []
    try:
        value = from_json(text)
    except (ValueError, RecursionError):
        return []
    return [value]
