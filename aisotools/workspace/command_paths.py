"""Find what a command of a shell could lead to in a workspace, without running it.

Threat: a person's setting names a file of the workspace in the command of a shell, which has very many ways
to write a path, and code in the sandbox writes that file.

Mechanism: the command is searched for paths: it is read with and without its quotes and backslashes, with
variables and tildes replaced by what they may stand for, and at each place where a path could begin it is
compared with what lies in the folders in which the command may be. A file that is found counts, and with a
folder all that is below; where a path ends in something that is not there, the folder that is there. What
programs load beside that is for `command_loads` to find.
Race: none of its own; the caller looks again whenever the settings have changed.
Failure: a path that a command computes in other ways (`$(echo dG9vbHM= | base64 -d)/x`) is not found here.
Beyond a number of looks, what is below the folder that was reached counts.
"""

from __future__ import annotations

import fnmatch
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from aisotools.workspace.command_loads import Loads, find_loads
from aisotools.workspace.real_paths import resolve_links

MAX_COMMAND_CHARS = 4096
"""Characters of a value that are searched for paths."""

MAX_LOOKS = 20_000
"""Paths that are looked up for one file of settings, about 2 us each; beyond that nothing more is found."""

MAX_LOOKS_OF_ONE = 10_000
"""Paths that are looked up for one value."""

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
_MAX_DEPTH = 60
_MAX_BASES = 12
_MAX_NAME_CHARS = 255


@dataclass(frozen=True, slots=True)
class CommandPaths:
    """What a command may lead to.

    Attributes:
        files: Absolute paths of files, which need not exist.
        folders: Absolute paths of folders; all that is in them counts.
        languages: By folder, an absolute path, the languages of which files are loaded from there; see
            `command_loads`.
    """

    files: set[str] = field(default_factory=set)
    folders: set[str] = field(default_factory=set)
    languages: Mapping[str, set[str]] = field(default_factory=dict)


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

    def find(self, command: str, worktree: str) -> CommandPaths:
        """Return what, in `root` and elsewhere, the command may lead to.

        Args:
            command: As git gives it to a shell.
            worktree: The folder in which git runs it.
        """
        self._files, self._folders, self._listings = set(), set(), {}
        if self._left <= 0:
            return CommandPaths()
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
        loads = Loads()
        if self._known:
            self._folders.clear()
        else:
            loads = find_loads(
                command, worktree, root=self._root, environ=self._environ, named=frozenset(self._files)
            )
            self._files |= loads.files
        # git's own files are protected by name already, and it has to write them itself.
        in_repository = re.compile(r"/\.git(/(index|HEAD|config|refs|objects|logs|\w+_\w+)\b.*)?/?$")
        return CommandPaths(
            files={file for file in self._files if not in_repository.search(file)},
            folders={one for one in self._folders if "/.git/" not in f"{one}/" and not self._holds(one)},
            languages=loads.languages,
        )

    def _holds(self, folder: str) -> bool:
        """Return whether the workspace lies in the folder, or is it: that cannot be protected as a whole."""
        return f"{self._root}/".startswith(f"{resolve_links(folder).rstrip('/')}/")

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
