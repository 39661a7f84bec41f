"""Find the files of a workspace that settings of git name: folders of hooks, further settings, programs.

Threat: a person's own settings may name files in the workspace, such as `core.hooksPath=tools/hooks` or
`include.path=../shared.cfg`, or a protected file may be a link to one. Code in the sandbox writes such a
file, and the next `git commit` runs it, though no protected name was written.

Mechanism: settings are read as git reads them (system, person, the repositories in the workspace and above
it, all that they include, whatever the condition), at the moments at which their present state is accepted.
Named are the folders of hooks and of templates, files that are included, and whatever in the workspace any
other setting could lead to. Its value is the command of a shell, which nobody can fully understand without
running it. So it is searched for paths: it is read with and without its quotes and backslashes, with
variables and tildes replaced by what they may stand for, and at each place where a path could begin it is
compared with what lies in the folders in which the command may be. A file that is found counts, and with a
folder all that is below; where a path ends in something that is not there, the folder that is there.
Left out are aliases, which a person calls by name, settings that hold plain data, and those that
`aisotools.workspace.git_config` knows to be harmless, and folders if the command runs only programs that run
nothing of a folder. Links on the way count as well, since a program follows them.
Race: settings in the workspace cannot change in between, as they are protected. Those of a person, outside of
it, are looked at again whenever the time of their last change differs.
Cost: a few files are read when a session opens; after that one `lstat` for each of these files.
Failure: a setting that cannot be read names nothing, nor does a path that a command computes in other ways
(`$(echo dG9vbHM= | base64 -d)/x`), nor what a named script runs in turn. A file that is named without need
cannot be written by the sandbox. Settings in the environment (`GIT_CONFIG_COUNT`) and on the command line are
not seen.
"""

from __future__ import annotations

import fnmatch
import os
import re
import shutil
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from aisotools.workspace.dirfd import read_to_end
from aisotools.workspace.git_config import is_harmless_setting

MAX_SETTINGS_BYTES = 1 << 20
"""Size of the largest file of settings that is read."""

MAX_SETTINGS_FILES = 100
"""Files of settings that are read in all."""

MAX_COMMAND_CHARS = 4096
"""Characters of a value that are searched for paths."""

MAX_LOOKS = 20_000
"""Paths that are looked up for one file of settings, about 2 us each; beyond that nothing more is found."""

MAX_LOOKS_OF_ONE = 10_000
"""Paths that are looked up for one value."""

MAX_LINKS = 40
"""Links on the way of one path, as the system follows them."""

_FOLDERS = {("core", "hookspath"), ("init", "templatedir")}
_SECTIONS_OF_DATA = {"alias", "user", "author", "committer", "safe", "http", "color", "i18n", "gui"}
_SECTIONS_OF_DATA |= {"maintenance", "scalar"}
_ADDRESSES = {
    ("remote", "url"),
    ("remote", "pushurl"),
    ("branch", "remote"),
    ("branch", "pushremote"),
    ("submodule", "url"),
}
_KEYS_OF_DATA = {
    ("core", "excludesfile"),
    ("core", "worktree"),
    ("commit", "template"),
    ("blame", "ignorerevsfile"),
    ("mailmap", "file"),
    ("diff", "orderfile"),
}
_HEADER = re.compile(r'\[([A-Za-z0-9.-]+)(?:[ \t\r]+"((?:[^"\\\n]|\\.)*)")?\]')
_KEY = re.compile(r"([A-Za-z][A-Za-z0-9-]*)[ \t\r]*(=|(?=\n)|\Z)")
_BLANKS = " \t\r"
_WORDS = re.compile(r"[^\s'\"=;&|()<>$`:,!{}]+")
_VARIABLE = re.compile(
    r"\$\{([A-Za-z_]\w*)[^{}]*\}|\$([A-Za-z_]\w*)|\$\([^()]*\)|`[^`]*`|\$\{[^{}]*\}|\$[0-9@*]"
)
_DEFAULT = re.compile(r"\$\{\w+:?[-=+]([^{}]*)\}")
_ASSIGNMENT = re.compile(r"\b([A-Za-z_]\w*)=([^\s;&|()`]*)")
_TILDE = re.compile(r"(?<![\w./~-])~[\w.-]*(?=/|$|[\s;&|:)'\"])")
_OPTION = re.compile(r"(?<![^\s'\"=;&|()])-[A-Za-z]")
_MODULE = re.compile(r"(?:^|\s)-m\s*([A-Za-z_]\w*)")
_KNOWN_PROGRAMS = {"bat", "cache", "cat", "code", "delta", "emacs", "gh", "git-credential-manager", "git-lfs"}
_KNOWN_PROGRAMS |= {"glab", "gpg", "gpg2", "less", "manager", "manager-core", "meld", "more", "nano", "nvim"}
_KNOWN_PROGRAMS |= {"osxkeychain", "store", "true", "vi", "vim", "wincred"}
"""Programs that run nothing of a folder which they are given."""

_CODE_ENDINGS = (".py", ".js", ".cjs", ".mjs", ".ts", ".sh", ".pl", ".pm", ".rb", ".lua", ".php", ".awk")
_LOOKS_IN_REPOSITORIES = 200_000  # of a person's own settings, in all repositories of the workspace
_MAX_DEPTH = 60
_MAX_BASES = 12
_MAX_NAME_CHARS = 255
_ESCAPES = {"n": "\n", "t": "\t", "b": "\b"}


@dataclass(frozen=True, slots=True)
class GitSetting:
    """One setting: section and key in lower case, and the value as git understands it."""

    section: str
    name: str
    key: str
    value: str


@dataclass(frozen=True, slots=True)
class NamedFiles:
    """Paths in the workspace, relative to it, that settings of git name.

    Attributes:
        folders: What lies in these is named, too.
        files: Files, links on the way to them, and further settings.
    """

    folders: frozenset[str] = frozenset()
    files: frozenset[str] = frozenset()


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


def follow_links(root: str, path: str) -> Iterator[str]:
    """Yield the links in the folder `root` that the absolute `path` leads over, and its end, if it is there.

    All are relative to `root`, which is a real path.
    """
    pending = path.split("/")[::-1]
    current, links = "/", 0
    while pending:
        part = pending.pop()
        if part in {"", "."}:
            continue
        if part == "..":
            current = os.path.dirname(current)
            continue
        current = os.path.join(current, part)
        try:
            target = os.readlink(current)
        except (OSError, ValueError):
            continue
        # Each link counts, not only the end: whoever may replace it chooses what is run.
        if current.startswith(f"{root}/"):
            yield current[len(root) + 1 :]
        links += 1
        if links > MAX_LINKS:
            return
        pending += target.split("/")[::-1]
        current = "/" if target.startswith("/") else os.path.dirname(current)
    if current.startswith(f"{root}/"):
        yield current[len(root) + 1 :]


class PathSearch:
    """Finds what a command of a shell could lead to, without running it."""

    def __init__(self, root: str, environ: Mapping[str, str]) -> None:
        """Search for paths in the folder `root`, a real path; `environ` is what commands would see."""
        self._root = root
        self._environ = environ
        self._home = environ.get("HOME", "")
        self._left = 0
        self._left_here = 0
        self._files: set[str] = set()
        self._folders: set[str] = set()
        self._listings: dict[str, list[str]] = {}
        self._known = False

    def __repr__(self) -> str:
        return f"<PathSearch in {self._root!r}: {self._left} looks left>"

    def allow(self, looks: int) -> None:
        """Let so many paths be looked up by the next searches together."""
        self._left = looks

    def expand_path(self, value: str) -> list[str]:
        """Return what a path may mean that git itself expands."""
        if value.startswith("%(prefix)/"):
            return [prefix + value[9:] for prefix in _prefixes(self._environ)]
        return [self._expand_home(value)] if value.startswith("~") else [value]

    def find(self, command: str, worktree: str) -> tuple[set[str], set[str]]:
        """Return files and folders, in `root` and elsewhere, that the command may lead to.

        Args:
            command: As git gives it to a shell.
            worktree: The folder in which git runs it.
        """
        self._files, self._folders, self._listings = set(), set(), {}
        if self._left <= 0:
            return set(), set()
        self._known = _runs_only_known(command)
        self._left_here = min(self._left, MAX_LOOKS_OF_ONE)
        self._left -= self._left_here
        readings = self._read(command[:MAX_COMMAND_CHARS], worktree)
        bases = [worktree, *([self._home] if self._home else [])]
        # `cd tools && ./x` runs a file of a folder that the command itself names: each folder that is found
        # is one in which the rest may run. So `bases` grows while it is gone through.
        for base in bases:
            for text in readings:
                self._find_in(text, base)
                self._find_missing(text, base)
            if len(bases) < _MAX_BASES:
                bases += sorted(self._folders - set(bases), key=len)[: _MAX_BASES - len(bases)]
        self._left += self._left_here
        for file in [file for file in self._files if file.endswith(".py") or "python" in command]:
            self._folders.add(os.path.dirname(file))  # from where it imports
        if self._known:
            self._folders.clear()
        # git's own files are protected by name already, and it has to write them itself.
        in_repository = re.compile(r"/\.git(/(index|HEAD|config|refs|objects|logs|\w+_\w+)\b.*)?/?$")
        return (
            {file for file in self._files if not in_repository.search(file)},
            {folder for folder in self._folders if "/.git/" not in f"{folder}/" and not self._holds(folder)},
        )

    def _holds(self, folder: str) -> bool:
        """Return whether the workspace lies in the folder, or is it: that cannot be protected as a whole."""
        return f"{self._root}/".startswith(f"{os.path.realpath(folder).rstrip('/')}/")

    def _read(self, command: str, worktree: str) -> list[str]:
        """Return the ways to read a command."""
        known = {**self._environ, "PWD": worktree, "GIT_WORK_TREE": worktree, "HOME": self._home}
        known |= {name: re.sub(r"['\"]", "", value) for name, value in _ASSIGNMENT.findall(command)}
        # A dict for its order: the budget may end before the last reading, so the likely ones come first.
        # `${tools:-x/y}` may mean its default, and any variable that is not known one of three folders.
        readings = {command: None, _DEFAULT.sub(r"\1", command): None}
        for unknown in (worktree, f"{worktree}/.git", self._home):

            def expand(match: re.Match[str], unknown: str = unknown) -> str:
                return known.get(match[1] or match[2] or "", unknown)

            text = _VARIABLE.sub(expand, re.sub(r"(?<![\w/])~\+", lambda _: worktree, command))
            readings[_TILDE.sub(lambda match: self._expand_home(match[0]), text)] = None
        for prefix in _prefixes(self._environ) if "%(prefix)/" in command else ():
            readings[command.replace("%(prefix)", prefix)] = None
        # `to"ols"/x` and `to\ols/x` are `tools/x` for a shell.
        for text in tuple(readings):
            readings[re.sub(r"['\"]", "", text)] = None
            readings[re.sub(r"['\"]|\\(?=.)", "", text)] = None
        return list(readings)

    def _expand_home(self, text: str) -> str:
        """Return a path whose first part is a tilde, perhaps with the name of a user."""
        name, slash, rest = text.partition("/")
        home = self._home if name == "~" else os.path.expanduser(name)
        return f"{home}{slash}{rest}" if home else text

    def _find_in(self, text: str, base: str) -> None:
        """Look for paths at each place in the text where one could begin."""
        after_option = {match.end() for match in _OPTION.finditer(text)}
        for start, char in enumerate(text):
            # Wherever the root is written out: behind `=`, `:` or anything else that ends no name.
            if text.startswith(self._root, start):
                self._walk("/", text, start + 1)
            before = text[start - 1 : start]
            begins = not before or not (_is_name(before) or before in "/$") or start in after_option
            if begins and char == "/":
                self._walk("/", text, start + 1)
            elif begins and not char.isspace():
                self._walk(base, text, start, first=True)

    def _walk(self, folder: str, text: str, start: int, *, first: bool = False, depth: int = 0) -> None:
        """Follow the path that begins in the text at `start`, as far as something is there.

        A name may end wherever a shell could end it, or only with the next slash.
        """
        if self._left_here < 0 or depth > _MAX_DEPTH:
            # Not followed to its end: all that it could lead to is below.
            self._folders.add(folder)
            return
        while text.startswith("/", start):
            start += 1
        if not first and (start >= len(text) or (not _is_name(text[start]) and text[start] not in "*?[%")):
            self._folders.add(folder)
        # `x.sh,y` may be one name or end at the comma: every end that a shell could mean is tried.
        ends = list(_ends(text, start))
        found = False
        for end in ends:
            for name in self._names(folder, text[start:end]):
                path = os.path.join(folder, name)
                if not self._is_there(path):
                    continue
                found = True
                if not os.path.isdir(path):
                    self._files.add(path)
                elif text.startswith("/", end):
                    self._walk(path, text, end, depth=depth + 1)
                # A folder `make` beside the command `make all` is not what runs.
                elif not (first and _is_program(text, start)):
                    self._folders.add(path)
        if not found and not self._known:
            for end in ends:
                self._add_modules(folder, text[start:end])
        if not found and not first:  # the rest is not there, or cannot be understood
            self._folders.add(folder)
            self._files.update(os.path.join(folder, text[start:end]) for end in ends)

    def _names(self, folder: str, name: str) -> list[str]:
        """Return the name, or the names that it is a pattern for."""
        if not any(char in name for char in "*?["):
            return [name] if "\0" not in name else []
        return [one for one in self._list(folder) if fnmatch.fnmatchcase(one, name)]

    def _add_modules(self, folder: str, name: str) -> None:
        """Name the files of code that a program may mean by a name without ending."""
        for ending in _CODE_ENDINGS if name else ():
            if f"{name}{ending}" in self._list(folder):
                self._files.add(os.path.join(folder, f"{name}{ending}"))

    def _list(self, folder: str) -> list[str]:
        """Return the names in a folder."""
        names = self._listings.get(folder)
        if names is None:
            try:
                names = os.listdir(folder) if self._left_here > 0 else []
            except OSError:
                names = []
            self._left_here -= len(names)
            self._listings[folder] = names
        return names

    def _is_there(self, path: str) -> bool:
        self._left_here -= 1
        return self._left_here >= 0 and os.path.lexists(path)

    def _find_missing(self, text: str, base: str) -> None:
        """Name files that are not there yet: a program, what an option gives it, a module of Python."""
        for word in _WORDS.findall(text):
            # `-fx/y` is the option f with the path x/y, or a path that begins with a dash.
            for part in {word, word[2:] if word.startswith("-") else word}:
                path = os.path.join(base, part)
                self._left_here -= 2
                if self._left_here < 0:
                    return
                with suppress(OSError, ValueError):
                    if part and (os.path.isfile(path) or ("/" in part and not os.path.lexists(path))):
                        self._files.add(path)
        if "python" in text:
            for module in _MODULE.findall(text):
                self._files.add(os.path.join(base, f"{module}.py"))
                self._folders.add(os.path.join(base, module))


def _is_name(char: str) -> bool:
    return char.isalnum() or char in "_.-"


def _ends(text: str, start: int) -> Iterator[int]:
    """Yield where a name that begins at `start` could end: at the last with the next slash."""
    for end in range(start + 1, min(start + _MAX_NAME_CHARS, len(text)) + 1):
        if end == len(text) or not _is_name(text[end]):
            yield end
            if text.startswith("/", end):
                return


def _is_program(text: str, start: int) -> bool:
    """Return whether the word at `start` is a program, which a folder is not."""
    return re.search(r"(?:^|[;&|(!{\n]|-c ['\"])[^\S\n]*$", text[:start]) is not None


def _runs_only_known(command: str) -> bool:
    """Return whether a command runs only programs that run nothing of a folder which they are given."""
    for part in re.split(r"[;&|()`!\n]+|(?<=-c )\s*['\"]", command):
        words = part.strip(" \t'\"").split()
        known = not words or words[0] == "cd" or words in (["sh", "-c"], ["bash", "-c"])
        if not known and os.path.basename(words[0]) not in _KNOWN_PROGRAMS:
            return False
    return True


def _prefixes(environ: Mapping[str, str]) -> list[str]:
    """Return where git may have been installed to, which is what it calls its prefix."""
    program = shutil.which("git", path=environ.get("PATH"))
    programs = [program, os.path.realpath(program)] if program else []
    prefixes = [os.path.dirname(os.path.dirname(path)) for path in programs]
    return list(dict.fromkeys([*prefixes, "/usr", "/usr/local", "/opt/homebrew"]))


class GitNamedFiles:
    """What settings of git name in one workspace.

    Attributes:
        stamps: The settings outside the workspace that were read, with inode, device and change time of each;
            None where there was no file. When one of them differs, all are to be read again.
    """

    def __init__(self, root: str, environ: Mapping[str, str]) -> None:
        """Read nothing yet.

        Args:
            root: Real path of the workspace.
            environ: Says where the settings of the person and of the system are; none of them without `HOME`
                and the variables of git.
        """
        self._root = root
        self._home = environ.get("HOME", "")
        self._outer = _settings_of_person(environ)
        self.stamps: dict[str, tuple[int, int, int] | None] = {}
        self._everywhere: set[str] = set()
        self._folders: set[str] = set()
        self._files: set[str] = set()
        self._search = PathSearch(root, environ)
        self._todo: list[tuple[str, str | None]] = []
        self._commands: set[str] = set()
        self._searched: set[str] = set()
        self._environ = environ

    def __repr__(self) -> str:
        return f"<GitNamedFiles of {self._root!r}: {len(self._folders)} folders, {len(self._files)} files>"

    def read(
        self, settings: Iterable[str], links: Iterable[str], repositories: Collection[str]
    ) -> NamedFiles:
        """Read all settings, and return what they name.

        Args:
            settings: Files of settings, and files `.git`, in the workspace.
            links: Protected links in the workspace.
            repositories: Repositories in the workspace, as `of_repositories` takes them.
        """
        self.stamps, self._everywhere, self._folders, self._files = {}, set(), set(), set()
        self._commands, self._searched = set(), set()
        self._search = PathSearch(self._root, self._environ)
        self._todo = [(path, None) for path in self._outer]
        # git looks for its repository in each folder above, whose settings may be those that count here.
        for above in (Path(self._root), *Path(self._root).parents):
            if above == Path(self._root) or os.path.lexists(above / ".git"):
                self._add_repository(str(above))
        for path in settings:
            folder, name = os.path.split(os.path.join(self._root, path))
            if name.lower() == ".git":
                self._add_repository(folder)
            else:
                self._todo.append((os.path.join(folder, name), _worktree_of(folder)))
        seen: set[tuple[str, str | None]] = set()
        while self._todo and len(seen) < MAX_SETTINGS_FILES:
            item = self._todo.pop()
            if item not in seen:
                seen.add(item)
                self._read_file(*item)
        for link in links:
            self._name(os.path.join(self._root, link), folder=True)
        self._search.allow(_LOOKS_IN_REPOSITORIES)
        return self.of_repositories(repositories)

    def of_repositories(self, repositories: Collection[str]) -> NamedFiles:
        """Return what was read, with what a person's own settings name in each of these repositories."""
        for repository in repositories if self._everywhere else ():
            folder = os.path.join(self._root, repository.rstrip("/"))
            for value in self._everywhere:
                self._name(os.path.join(_worktree_of(folder), value), folder=True)
        for repository in repositories if self._commands else ():
            if repository not in self._searched:
                self._searched.add(repository)
                folder = _worktree_of(os.path.join(self._root, repository.rstrip("/")))
                for command in self._commands:
                    self._name_command(command, folder)
        return NamedFiles(frozenset(self._folders), frozenset(self._files))

    def _add_repository(self, worktree: str) -> None:
        """Read the settings of the repository at `worktree`, which may lie elsewhere."""
        folder = os.path.join(worktree, ".git")
        # `.git` is a file in a submodule and in a worktree of its own; `commondir` leads on to the main one.
        if os.path.isfile(folder):
            text = _read_small(folder).decode("utf-8", "surrogateescape")
            folder = os.path.join(worktree, text.removeprefix("gitdir:").strip())
        common = _read_small(os.path.join(folder, "commondir")).decode("utf-8", "surrogateescape").strip()
        for place in {folder, os.path.normpath(os.path.join(folder, common))}:
            self._todo += [(os.path.join(place, name), worktree) for name in ("config", "config.worktree")]

    def _read_file(self, path: str, worktree: str | None) -> None:
        if "\0" in path:
            return
        real = os.path.realpath(path)
        if real.startswith(f"{self._root}/"):
            if worktree is None:
                self._name(path)  # a person's own settings, in the workspace
        else:
            self.stamps[path] = stamp_of(path)
        self._search.allow(MAX_LOOKS)  # for each file, so that none uses up what another one needs
        for setting in parse_settings(_read_small(real)):
            self._read_setting(setting, path, worktree)

    def _read_setting(self, setting: GitSetting, path: str, worktree: str | None) -> None:
        section, key, value = setting.section, setting.key, setting.value
        if section in {"include", "includeif"} and key == "path":
            for text in self._search.expand_path(value):
                included = os.path.join(os.path.dirname(path), text)
                self._name(included)
                self._todo.append((included, worktree))
        elif (section, key) in _FOLDERS:
            # Relative to the worktree of whichever repository git works in, also one that is made later.
            if worktree is None and not value.startswith(("/", "~", "%")):
                self._everywhere.add(value)
            for text in self._search.expand_path(value):
                self._name(os.path.join(worktree or self._root, text), folder=True)
        elif section == "core" and key == "worktree" and worktree is not None:
            self._todo.append((path, os.path.normpath(os.path.join(os.path.dirname(path), value))))
        elif command := _command_of(setting):
            if worktree is None:
                self._commands.add(command)
            self._name_command(command, worktree or self._root)

    def _name_command(self, command: str, worktree: str) -> None:
        """Name what a command could lead to that git runs in the folder `worktree`."""
        files, folders = self._search.find(command, worktree)
        for file in files:
            self._name(file)
        for folder in folders:
            self._name(folder, folder=True)

    def _name(self, path: str, *, folder: bool = False) -> None:
        *links, end = [*follow_links(self._root, os.path.join(self._root, path))] or [""]
        self._files.update(links)
        if end:
            self._files.add(end)
            if folder:
                self._folders.add(end)


def _command_of(setting: GitSetting) -> str:
    """Return the part of a setting that git may run; empty if it holds data."""
    section, key, value = setting.section, setting.key, setting.value
    # An address runs a program only as `ext::command`, or by a helper as `name::address`.
    if section == "url":  # the address that takes the place of another one
        return setting.name if "::" in setting.name else ""
    if (section, key) in _ADDRESSES:
        return value if "::" in value else ""
    if section in _SECTIONS_OF_DATA or (section, key) in _KEYS_OF_DATA or _is_harmless(setting):
        return ""
    return value


def _is_harmless(setting: GitSetting) -> bool:
    parts = (setting.section, setting.name, setting.key, setting.value)
    return is_harmless_setting(*(part.encode("utf-8", "surrogateescape") for part in parts))


def _worktree_of(repository: str) -> str:
    """Return the folder in which git works for the repository: the one above a `.git`."""
    above, _, below = f"{repository}/".partition("/.git/")
    return above if below or repository.endswith("/.git") else repository


def _settings_of_person(environ: Mapping[str, str]) -> tuple[str, ...]:
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


def _read_small(path: str) -> bytes:
    """Return the content of a regular file, or nothing."""
    try:
        # Hostile: a FIFO in its place would block the open for ever, and a device never end.
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return b""
    try:
        # A folder, too, can be opened so; only then is it seen what was opened.
        if not stat.S_ISREG(os.fstat(file).st_mode):
            return b""
        return read_to_end(file, MAX_SETTINGS_BYTES - 1, MAX_SETTINGS_BYTES)
    except OSError:
        return b""
    finally:
        os.close(file)
