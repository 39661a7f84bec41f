"""Read settings of git, and find the programs and hooks that they name for its commands.

Threat: `git status`, `git diff` and `git log -p` change nothing by themselves, but run what settings name:
`core.fsmonitor`, `diff.external`, a `textconv`, a filter. Those that look at files write the index then, for
which git runs the hook `post-index-change`. A command that runs a program is not one that is known to read,
wherever that program comes from: mode `plan` promises that nobody's program runs.

Mechanism: `find_programs` reads the settings that git in a sandbox sees from a folder: those of the
repository and of each further one that git may take for it, all that they include, whatever the condition,
those of its submodules, which git finds by their entries in the index, and those in the sandbox's own home
folder; and it looks into the folders of hooks. The person's own settings and the system's are out of reach
there. Each setting counts in its group, whether or not another one revokes it.
`find_started` names the hooks that a command which changes something may run, and the settings that name
programs for it, with the files that these name and the attributes which say what they are run for. Hooks are
a person's, and no call can write them (`aisotools.workspace.protected`), but for those to which a setting in
the sandbox's own home leads, or in a folder that it can write. Attributes may be written by any call.
A push to a repository on this machine has that one run its own.
Race: a setting can change after the look. The gate looks once more at dispatch; calls cannot write settings
that name a program (`aisotools.workspace.protected`).
Cost: the settings of one repository take about 0.2 ms, and nothing for a command that is not git's.
Failure: what cannot be read, leads to where a sandbox may write, or is more than is looked at, counts as a
program, and the command is asked about. Settings in the environment, which a call that was allowed to change
things can prepare, are not seen, nor those that a later git will have.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from aisotools.workspace.dirfd import open_regular, read_to_end
from aisotools.workspace.real_paths import resolve_links

MAX_SETTINGS_BYTES = 1 << 20
"""Size of the largest file of settings that is read."""

MAX_SETTINGS_FILES = 100
"""Files of settings that are read in all."""

MAX_INDEX_BYTES = 64 << 20
"""Size of the largest index of a repository in which submodules are looked for."""

_HEADER = re.compile(r'\[([A-Za-z0-9.-]+)(?:[ \t\r]+"((?:[^"\\\n]|\\.)*)")?\]')
_KEY = re.compile(r"([A-Za-z][A-Za-z0-9-]*)[ \t\r]*(=|(?=\n)|\Z)")
_MAX_SHOWN_CHARS = 100
_BLANKS = " \t\r"
_ESCAPES = {"n": "\n", "t": "\t", "b": "\b"}


@dataclass(frozen=True, slots=True)
class GitSetting:
    """One setting: section and key in lower case, and the value as git understands it."""

    section: str
    name: str
    key: str
    value: str

    def __str__(self) -> str:
        value = self.value if len(self.value) <= _MAX_SHOWN_CHARS else f"{self.value[:_MAX_SHOWN_CHARS]}..."
        return f"{'.'.join(filter(None, (self.section, self.name, self.key)))} = {value!r}"


def parse_settings(data: bytes) -> Iterator[GitSetting]:
    """Yield the settings of a file. What is malformed is passed over, as git refuses the whole file."""
    text = data.decode("utf-8", "surrogateescape").removeprefix("\ufeff").replace("\r\n", "\n")
    section, name = "", ""
    place = 0
    while place < len(text):
        if text[place] in "\n \t\r":
            place += 1
        elif header := _HEADER.match(text, place):
            section, _, old_name = header[1].lower().partition(".")
            name = re.sub(r"\\(.)", r"\1", header[2]) if header[2] is not None else old_name
            place = header.end()
        # git takes a setting on the line of its header, too: so no end of a line is needed between them.
        elif (key := _KEY.match(text, place)) and section:
            value, place = _parse_value(text, key.end()) if key[2] else ("", _end_of_line(text, key.end()))
            yield GitSetting(section, name, key[1].lower(), value)
        else:
            place = _end_of_line(text, place)  # a comment, whatever its last character, or nonsense


def _end_of_line(text: str, place: int) -> int:
    end = text.find("\n", place)
    return len(text) if end < 0 else end


def _parse_value(text: str, place: int) -> tuple[str, int]:
    """Return a value without quotes, escapes and comment, and where its last line ends."""
    chars: list[str] = []
    quoted = False
    end = 0  # of the value without blanks at its end
    while place < len(text) and text[place] != "\n":
        char = text[place]
        place += 1
        if char in "#;" and not quoted:
            place = _end_of_line(text, place)
            break
        if not chars and char in _BLANKS and not quoted:
            continue
        if char == '"':
            quoted = not quoted
        elif char == "\\":
            escaped = text[place : place + 1]
            place += 1
            # A backslash at the end of a line joins it with the next one, within quotes and outside.
            chars.append("" if escaped == "\n" else _ESCAPES.get(escaped, escaped))
            if escaped == "\n":
                continue
        else:
            chars.append(char)
        if quoted or char not in _BLANKS:
            end = len(chars)
    return "".join(chars[:end]), min(place, len(text))


def settings_of_person(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return where a person's settings and those of the system are; they need not exist."""
    home = environ.get("HOME")
    if "GIT_CONFIG_GLOBAL" in environ:
        own = [environ["GIT_CONFIG_GLOBAL"]]
    elif home:
        base = environ.get("XDG_CONFIG_HOME") or f"{home}/.config"
        own = [f"{base}/git/config", f"{home}/.gitconfig"]
    else:
        own = []
    if home and "GIT_CONFIG_NOSYSTEM" not in environ:
        own.append(environ.get("GIT_CONFIG_SYSTEM", "/etc/gitconfig"))
    return tuple(path for path in own if path)


def stamp_of(path: str) -> tuple[int, int, int] | None:
    """Return inode, device and change time of a file, or of what a link leads to; None if there is none."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_ino, status.st_dev, status.st_ctime_ns


def read_small(path: str) -> bytes:
    """Return the content of a regular file, or nothing."""
    with suppress(OSError), open_regular(path) as file:
        return read_to_end(file, MAX_SETTINGS_BYTES - 1, MAX_SETTINGS_BYTES)
    return b""


def repository_of(worktree: str) -> str:
    """Return the folder of the repository of a work tree: `.git`, or where a file of that name leads.

    It is a file in a submodule, and in a work tree that was added to a repository.
    """
    git = os.path.join(worktree, ".git")
    if os.path.isfile(git):
        text = read_small(git).decode("utf-8", "surrogateescape")
        git = os.path.join(worktree, text.removeprefix("gitdir:").strip())
    return git


def settings_files(repository: str) -> Iterator[str]:
    """Yield where a repository may have settings: its own files, and those of the one that it belongs to."""
    common = read_small(os.path.join(repository, "commondir")).decode("utf-8", "surrogateescape").strip()
    places = [repository]
    if "\0" not in common:
        places.append(os.path.normpath(os.path.join(repository, common)))
    for place in dict.fromkeys(places):
        for name in ("config", "config.worktree"):
            yield os.path.join(place, name)


# ---- programs for commands that only read

_SCRATCH = ("/tmp/", "/var/tmp/", "/dev/shm/", "/run/", "/proc/")  # noqa: S108 - compared, never opened
SYSTEM_FOLDERS = ("/usr/", "/opt/", "/etc/", "/lib/")
"""Folders beside the workspace that are the same in a sandbox, where it cannot write."""

_BOOLEANS = frozenset(("", "true", "yes", "on", "1", "false", "no", "off", "0"))
_TRUE = frozenset(("", "true", "yes", "on", "1"))
_KEYS = {
    ("core", "alternaterefscommand"): "alternates",
    ("diff", "command"): "patch",
    ("diff", "external"): "patch",
    ("diff", "textconv"): "patch",
    ("filter", "clean"): "filter",
    ("filter", "process"): "filter",
    ("browser", "cmd"): "help",
    ("browser", "path"): "help",
    ("help", "browser"): "help",
    ("man", "cmd"): "help",
    ("man", "path"): "help",
    ("web", "browser"): "help",
}
_TRANSPORTS = frozenset(
    (
        *(("core", "askpass"), ("core", "gitproxy"), ("core", "sshcommand"), ("credential", "helper")),
        *(("remote", "receivepack"), ("remote", "uploadpack"), ("remote", "vcs"), ("url", "insteadof")),
    )
)
_OF_PROGRAMS = re.compile(
    r"(?:cmd|command|program|driver|helper|editor|pager|hook|difffilter|tunnel)$"
    r"|^(?:clean|smudge|process|textconv|external|browser|httpd|smtpserver)$"
)
"""Keys, in any section, of which the value is a program; also those that a later git may have."""

_PATHS_OF_PROGRAMS = frozenset((("difftool", "path"), ("mergetool", "path")))
_BY_ATTRIBUTES = frozenset(("diff", "filter", "merge"))
"""Sections of settings that name programs for files with an attribute."""

ANY_HOOKS = (
    *("applypatch-msg", "pre-applypatch", "post-applypatch", "pre-commit", "pre-merge-commit"),
    *("prepare-commit-msg", "commit-msg", "post-commit", "pre-rebase", "post-checkout", "post-merge"),
    *("pre-push", "pre-receive", "update", "proc-receive", "post-receive", "post-update"),
    *("reference-transaction", "push-to-checkout", "pre-auto-gc", "post-rewrite", "sendemail-validate"),
    "post-index-change",
)
"""Hooks that git runs for some command or another."""

ANY_PROGRAMS = ("alias", "alternates", "change", "fetch", "filter", "fsmonitor", "help", "patch", "transport")
"""Groups of settings that name programs for some command or another."""

_COMMAND_WORDS = re.compile(r"[^\s'\"=;&|()<>$`:,!{}]+")
_MAX_WORDS = 50
_MAX_ENTRIES = 20_000  # looked at for files of attributes
_HOOK = "post-index-change"
_GITLINK = b"\x00\x00\xe0\x00"  # the mode of a submodule in an index
_NAME_MASK = 0x0FFF  # of the flags of an entry: the length of its name, or that it is at least this long
_EXTENDED = 0x4000  # of the flags: two more bytes of them follow
_COMPRESSED_VERSION = 4
_OBJECT_BYTES = (20, 32)  # of SHA-1 and SHA-256


def find_programs(folder: str, groups: Collection[str], *, root: str, home: str = "") -> list[str]:
    """Return the settings that name programs of these groups for git in a folder, each as text.

    Args:
        folder: The folder in which git is started.
        groups: Of `fsmonitor`, `filter`, `hook`, `patch`, `signature`, `fetch`, `alternates` and `help`; see
            `aisotools.policy.shell.git_programs`.
        root: Real path of the workspace.
        home: The home folder of programs in the sandbox, on this machine; empty if there is none.

    Returns:
        Clauses about the command; those among them that say what could not be looked at.
    """
    search = _ProgramSearch(frozenset(groups), root)
    search.look_in(resolve_links(folder))
    if home:
        search.read_home(home)
    return search.found()


class GitProgram(NamedTuple):
    """A hook that git may run, or a setting that names a program.

    Attributes:
        hook: The hook, relative to the workspace if it lies there; with some doubts, the folder.
        setting: The setting, as text.
        doubt: Why nobody knows what would be run, as a clause; empty for a hook that no call can have written
            or chosen.
        files: What the setting names, and the attributes that may have it run, relative to the workspace if
            they lie there. Attributes that cannot all be listed are "...".
        digest: Of the whole setting, and of the file in which it stands.
    """

    hook: str = ""
    setting: str = ""
    doubt: str = ""
    files: tuple[str, ...] = ()
    digest: str = ""


def find_started(
    folder: str, hooks: Collection[str], groups: Collection[str], *, root: str, home: str = ""
) -> list[GitProgram]:
    """Return the hooks and the programs of settings that git may start in a folder, and in submodules.

    Args:
        folder: The folder in which git is started.
        hooks: Which hooks it may run.
        groups: Which settings may name programs for it: those of `find_programs`, and `change`, `transport`
            and `alias`. With `receiver`, the folder is that of a repository, and none above it counts; with
            `remotes`, those repositories on this machine count, in this way, that settings there name for a
            push.
        root: Real path of the workspace.
        home: The home folder of programs in the sandbox, on this machine; empty if there is none.
    """
    place = resolve_links(folder)
    if "remotes" in groups:
        search = _ProgramSearch(frozenset(("hook",)), root)
        search.look_in(place)
        inner = frozenset(groups) - {"remotes"} | {"receiver"}
        return [
            one
            for receiver in dict.fromkeys(search.receivers(place))
            for one in find_started(receiver, hooks, inner, root=root, home=home)
        ]
    search = _ProgramSearch(frozenset((*groups, "hook")), root)
    if "receiver" in groups:
        search.look_at(place)
    else:
        search.look_in(place)
    if home:
        search.read_home(home)
    found = [*search.hooks(hooks), *search.started()]
    return list(dict.fromkeys(found))


def digest_of_program(path: str) -> str:
    """Return a digest of the content of a program outside the workspace; empty if it cannot be read whole."""
    data = read_small(path)
    return hashlib.sha256(data).hexdigest() if data else ""


def _may_be_run(path: str) -> bool:
    """Return whether there is a file that can be run, or one of which nobody can tell."""
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return bool(mode & (stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH))


class _ProgramSearch:
    """Looks through the repositories that git may take for that of one folder."""

    def __init__(self, groups: frozenset[str], root: str) -> None:
        self._groups = groups
        self._root = root
        self._named: dict[str, None] = {}
        self._settings: dict[GitSetting, None] = {}
        self._addresses: list[str] = []
        self._attribute_files: list[str] = []
        self._promisors: list[str] = []
        self._transports: list[str] = []
        self._hook_folders: dict[str, bool] = {}  # and whether a call can have chosen it
        self._is_home = False
        self._worktrees: list[str] = []
        self._seen: set[str] = set()
        self._waiting: list[str] = []

    def found(self) -> list[str]:
        """Return what was found."""
        self._name_fetching()
        if "hook" in self._groups:
            self._find_hooks()
        return list(self._named)

    def started(self) -> Iterator[GitProgram]:
        """Yield the settings of these groups that name programs, and what could not be looked at."""
        self._name_fetching()
        attributes: tuple[str, ...] | None = None
        for setting in self._settings:
            files = tuple(self._files_named_by(setting))
            if setting.section in _BY_ATTRIBUTES:
                attributes = tuple(self._find_attributes()) if attributes is None else attributes
                files += attributes
            digest = hashlib.sha256(repr(setting).encode("utf-8", "surrogatepass")).hexdigest()
            yield GitProgram(setting=str(setting), doubt=_clause(str(setting)), files=files, digest=digest)
        clauses = {_clause(str(setting)) for setting in self._settings}
        yield from (GitProgram(doubt=doubt) for doubt in self._named if doubt not in clauses)

    def receivers(self, folder: str) -> Iterator[str]:
        """Yield the repositories on this machine that settings may name for a push out of a folder."""
        for address in self._addresses:
            path = address.removeprefix("file://")
            is_local = path.startswith(("/", ".")) or ":" not in path.partition("/")[0]
            if is_local and "://" not in path and "\0" not in path:
                for base in dict.fromkeys((*self._worktrees, folder)):
                    yield resolve_links(os.path.normpath(os.path.join(base, path)))

    def _files_named_by(self, setting: GitSetting) -> Iterator[str]:
        """Yield the files that words of a setting name, relative to the workspace if they lie there."""
        words = _COMMAND_WORDS.findall(setting.value)[:_MAX_WORDS]
        for word in dict.fromkeys(words):
            for base in dict.fromkeys((*self._worktrees, self._root)):
                path = os.path.normpath(os.path.join(base, word))
                # A script that is missing may come; none is meant in the folder of the repository itself.
                is_place = "/" in word and path.startswith(f"{self._root}/") and not os.path.isdir(path)
                is_place = is_place and os.path.basename(base) != ".git"
                if is_place or os.path.isfile(path):
                    yield path.removeprefix(f"{self._root}/")

    def _find_attributes(self) -> Iterator[str]:
        """Yield the files of attributes in the work trees, and those of their repositories."""
        entries_left = _MAX_ENTRIES
        for file in self._attribute_files:
            yield file.removeprefix(f"{self._root}/")
        waiting = list(dict.fromkeys(self._worktrees))
        seen: set[str] = set()
        while waiting:
            folder = waiting.pop()
            if folder in seen:
                continue
            seen.add(folder)
            is_repository = os.path.basename(folder) == ".git"
            path = os.path.join(folder, "info/attributes" if is_repository else ".gitattributes")
            if os.path.lexists(path):
                yield path.removeprefix(f"{self._root}/")
            if is_repository:
                continue
            try:
                with os.scandir(folder) as entries:
                    for entry in entries:
                        entries_left -= 1
                        if entry.is_dir(follow_symlinks=False):
                            waiting.append(entry.path)
            except OSError:
                entries_left = -1
            if entries_left < 0:
                yield "..."
                return

    def hooks(self, names: Collection[str]) -> Iterator[GitProgram]:
        """Yield the hooks of these names that git would run, in the folders that it may take for theirs."""
        seen: set[str] = set()
        for folder, is_chosen in self._hook_folders.items():
            # A relative one is meant in the work tree, or in the repository if that has none.
            for base in self._worktrees or [self._root]:
                place = os.path.normpath(os.path.join(base, folder))
                if place in seen:
                    continue
                seen.add(place)
                is_private = f"{place}/".startswith(_SCRATCH) and not f"{place}/".startswith(f"{self._root}/")
                if folder.startswith(("~", "%")) or "\0" in folder or is_private:
                    doubt = f"git may run hooks in {folder}, where a sandbox may write"
                    yield GitProgram(folder, doubt=doubt)
                    continue
                for name in names:
                    path = f"{place}/{name}"
                    if _may_be_run(path):
                        real = resolve_links(path)
                        path = path.removeprefix(f"{self._root}/")
                        doubt = f"a call may have chosen the hook {path} that git runs" if is_chosen else ""
                        if real.startswith(_SCRATCH) and not real.startswith(f"{self._root}/"):
                            doubt = f"the hook {path} of git leads to {real}, where a sandbox may write"
                        yield GitProgram(path, doubt=doubt)

    def _find_hooks(self) -> None:
        for hook in self.hooks((_HOOK,)):
            self._named[hook.doubt or f"git may run the hook {hook.hook}"] = None

    def _name(self, setting: str) -> None:
        self._named[_clause(setting)] = None

    def _name_fetching(self) -> None:
        if "fetch" in self._groups and self._promisors and self._transports:
            self._name(f"{self._promisors[0]} with {self._transports[0]}")

    def look_at(self, folder: str) -> None:
        """Look through the settings of the repository in a folder, a real path, or of the one that it is."""
        for place in (folder, f"{folder}.git"):
            if os.path.lexists(os.path.join(place, ".git")):
                self._read_repository(repository_of(place), place)
            elif os.path.isfile(os.path.join(place, "HEAD")):
                self._read_repository(place, place)

    def look_in(self, folder: str) -> None:
        """Look through the settings for git in a folder, a real path, and those of its submodules."""
        # git takes the nearest repository that is a sound one, and code in a sandbox can damage one.
        places = folder.split("/")
        for end in range(len(places), 0, -1):
            place = "/".join(places[:end]) or "/"
            git = os.path.join(place, ".git")
            if os.path.lexists(git):
                self._waiting.append(place)
            elif os.path.isfile(os.path.join(place, "HEAD")) and os.path.isdir(
                os.path.join(place, "objects")
            ):
                self._read_repository(place, place)
        while self._waiting:
            worktree = self._waiting.pop()
            self._read_repository(repository_of(worktree), worktree)

    def read_home(self, home: str) -> None:
        """Look through the settings that the sandbox has in its own home folder."""
        self._is_home = True
        for path in (f"{home}/.gitconfig", f"{home}/.config/git/config"):
            self._read_file(path)

    def _read_repository(self, folder: str, worktree: str) -> None:
        folder = os.path.normpath(folder)
        if "\0" in folder or folder in self._seen:
            return
        self._seen.add(folder)
        self._worktrees += [worktree, folder]
        for path in settings_files(folder):
            self._hook_folders[os.path.join(os.path.dirname(path), "hooks")] = False
            self._read_file(path)
        if not self._groups.isdisjoint({"fsmonitor", "filter", "hook", "patch"}):
            self._find_submodules(folder, worktree)

    def _read_file(self, path: str, *, is_included: bool = False) -> None:
        if path in self._seen:
            return
        self._seen.add(path)
        if len(self._seen) > MAX_SETTINGS_FILES:
            self._name(f"there are more than {MAX_SETTINGS_FILES} files of settings")
            return
        try:
            status = os.stat(path)
        except FileNotFoundError:
            if is_included and not path.startswith(f"{self._root}/"):
                self._name(f"{path}, which is included, is not there to be read")
            return
        except (OSError, ValueError):
            status = None
        data = read_small(path) if status is not None and status.st_size < MAX_SETTINGS_BYTES else b""
        if status is None or not stat.S_ISREG(status.st_mode) or (status.st_size and not data):
            self._name(f"{path} cannot be read")
            return
        for setting in parse_settings(data):
            self._read_setting(setting, path)

    def _read_setting(self, setting: GitSetting, path: str) -> None:
        section, key, value = setting.section, setting.key, setting.value
        if section in {"include", "includeif"} and key == "path":
            included = os.path.normpath(os.path.join(os.path.dirname(path), value))
            is_private = included.startswith(_SCRATCH) and not included.startswith(f"{self._root}/")
            if value.startswith(("~", "%")) or "\0" in value or is_private:
                self._name(f"{setting}, which leads to where a sandbox may write")
            else:
                self._read_file(included, is_included=True)
            return
        if (section, key) == ("core", "hookspath") and value:
            self._hook_folders[value] = self._hook_folders.get(value, False) or self._is_home
        is_promisor = (section, key) == ("remote", "promisor") and value.lower() in _TRUE
        if is_promisor or (section, key) == ("extensions", "partialclone"):
            self._promisors.append(str(setting))
        elif (section, key) in _TRANSPORTS or (section == "remote" and "::" in value):
            self._transports.append(str(setting))
        if (section, key) == ("core", "attributesfile") and not re.search(r"\0|^[~%]", value):
            bases = [*self._worktrees, self._root]
            self._attribute_files += [os.path.normpath(os.path.join(base, value)) for base in bases]
        if section == "remote" and key in {"url", "pushurl"}:
            self._addresses.append(value)
        elif section == "url":
            self._addresses.append(setting.name)
        elif section == "branch" and key in {"remote", "pushremote"} and "/" in value:
            self._addresses.append(value)
        if _group_of(setting) in self._groups:
            self._name(str(setting))
            self._settings[setting] = None

    def _find_submodules(self, folder: str, worktree: str) -> None:
        """Have the submodules of a repository looked at, by their entries in the index."""
        try:
            names = sorted(os.listdir(folder))
        except OSError:
            return
        for name in names:
            if name != "index" and not name.startswith("sharedindex."):
                continue
            path = os.path.join(folder, name)
            data = _read_index(path)
            if data is None:
                self._name(f"{path} cannot be read, in which submodules may be")
                continue
            if _GITLINK not in data:
                continue
            if data[4:8] == _COMPRESSED_VERSION.to_bytes(4, "big"):
                self._name(f"{path} has submodules, and names that are compressed")
            for submodule in _list_gitlinks(data):
                place = os.path.normpath(os.path.join(worktree, submodule))
                if len(self._waiting) < MAX_SETTINGS_FILES and os.path.lexists(os.path.join(place, ".git")):
                    self._waiting.append(place)


def _group_of(setting: GitSetting) -> str:
    """Return the group of programs to which the program of a setting belongs; empty for none."""
    section, key, value = setting.section, setting.key, setting.value
    if (section, key) == ("core", "fsmonitor"):
        return "" if value.lower() in _BOOLEANS else "fsmonitor"
    if (section, key) in {("man", "viewer"), ("help", "format")}:
        return "" if value == "man" else "help"
    if (section, key) == ("log", "showsignature"):
        return "signature" if value.lower() in _TRUE or value not in _BOOLEANS else ""
    if section == "pretty" or (section, key) == ("format", "pretty"):
        return "signature" if "%G" in value else ""
    if group := _KEYS.get((section, key), ""):
        return group
    if section == "alias":
        return "alias"
    is_outer = (section == "remote" and "::" in value) or (section == "url" and "::" in setting.name)
    if is_outer or ((section, key) in _TRANSPORTS and section != "url"):
        return "transport"
    names_program = section == "pager" or (section, key) in _PATHS_OF_PROGRAMS or _OF_PROGRAMS.search(key)
    if value.lower() not in _BOOLEANS and (names_program or value.startswith("!")):
        return "change"
    return ""


def _clause(setting: str) -> str:
    return f"a setting of git may have it run a program: {setting}"


def _read_index(path: str) -> bytes | None:
    """Return the content of an index; None if it cannot be read, or has more than `MAX_INDEX_BYTES`."""
    with suppress(OSError), open_regular(path) as file:
        size = os.fstat(file).st_size
        return read_to_end(file, size, MAX_INDEX_BYTES) if size <= MAX_INDEX_BYTES else None
    return None


def _list_gitlinks(data: bytes) -> Iterator[str]:
    """Yield the paths of what may be entries of submodules: what only looks like one names nothing."""
    place = data.find(_GITLINK)
    while place >= 0:
        for object_bytes in _OBJECT_BYTES:
            # Behind the mode: owner, group and size, the name of the object, and flags with the length.
            flags_at = place + 4 * 4 + object_bytes
            flags = int.from_bytes(data[flags_at : flags_at + 2], "big")
            start = flags_at + (4 if flags & _EXTENDED else 2)
            length = flags & _NAME_MASK
            end = data.find(b"\0", start) if length == _NAME_MASK else start + length
            name = data[start:end]
            if name and b"\0" not in name:
                yield os.fsdecode(name)
        place = data.find(_GITLINK, place + 1)
