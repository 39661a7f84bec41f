"""Find the files of a workspace that settings of git name: folders of hooks, further settings, programs.

Threat: a person's own settings may name files in the workspace, such as `core.hooksPath=tools/hooks` or
`include.path=../shared.cfg`, or a protected file may be a link to one. Code in the sandbox writes such a
file, and the next `git commit` runs it, though no protected name was written.

Mechanism: settings are read as git reads them (system, person, the repositories in the workspace and above
it, all that they include, whatever the condition), at the moments at which their present state is accepted.
Named are the folders of hooks and of templates, files that are included, and whatever in the workspace any
other setting could lead to. Its value is the command of a shell, which nobody can fully understand without
running it. So it is searched for paths (`aisotools.workspace.command_paths`), and read for what its programs
load by themselves (`aisotools.workspace.command_loads`): files of such a language count in the whole folder.
Left out are aliases, which a person calls by name, settings that hold plain data, and those that
`aisotools.workspace.git_config` knows to be harmless, and folders if the command runs only programs that run
nothing of a folder. Links on the way count as well, since a program follows them.
Race: settings in the workspace cannot change in between, as they are protected. Those of a person, outside of
it, are looked at again whenever the time of their last change differs.
Cost: a few files are read when a session opens; after that one `lstat` for each of these files.
Failure: a setting that cannot be read names nothing; what a command may lead to beyond what is found is said
in the two modules. A file that is named without need
cannot be written by the sandbox. Settings in the environment (`GIT_CONFIG_COUNT`) and on the command line are
not seen.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from aisotools.workspace.command_loads import ANY, CODE, languages_below, may_load
from aisotools.workspace.command_paths import MAX_LOOKS, PathSearch
from aisotools.workspace.git_config import is_harmless_setting
from aisotools.workspace.git_settings import (
    MAX_SETTINGS_FILES,
    GitSetting,
    parse_settings,
    read_small,
    repository_of,
    settings_files,
    settings_of_person,
    stamp_of,
)
from aisotools.workspace.protected_names import fold_name
from aisotools.workspace.real_paths import resolve_links

MAX_LINKS = 40
"""Links on the way of one path, as the system follows them."""

_LOOKS_IN_REPOSITORIES = 200_000  # of a person's own settings, in all repositories of the workspace
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
    ("diff", "funcname"),
    ("diff", "wordregex"),
    ("diff", "xfuncname"),
    ("format", "headers"),
    ("format", "pretty"),
    ("format", "signature"),
    ("core", "excludesfile"),
    ("core", "worktree"),
    ("commit", "template"),
    ("blame", "ignorerevsfile"),
    ("mailmap", "file"),
    ("diff", "orderfile"),
}
_ADVICE = {
    "python": "starts Python in this folder, which imports what lies in it; `python3 -I` would not",
    ANY: "runs a file whose name nobody can tell beforehand, so no file may be written there",
    CODE: "runs a program that may load any code from this folder",
}
_ADVICE_FOR_OTHERS = "starts an interpreter in this folder, which loads what lies in it"


@dataclass(frozen=True, slots=True)
class NamedFiles:
    """Paths in the workspace, relative to it, that settings of git name.

    Attributes:
        folders: What lies in these is named, too.
        files: Files, links on the way to them, and further settings.
        languages: By folder, empty for the workspace, the languages of which files are loaded from there and
            from the folders below; see `command_loads`.
    """

    folders: frozenset[str] = frozenset()
    files: frozenset[str] = frozenset()
    languages: Mapping[str, frozenset[str]] = field(default_factory=dict)


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
        self._outer = settings_of_person(environ)
        self.stamps: dict[str, tuple[int, int, int] | None] = {}
        self._everywhere: set[str] = set()
        self._folders: set[str] = set()
        self._files: set[str] = set()
        self._search = PathSearch(root, environ)
        self._todo: list[tuple[str, str | None]] = []
        self._commands: dict[str, str] = {}
        self._loaders: dict[tuple[str, str], str] = {}
        """By folder and language, the setting because of which files of it are loaded from there."""
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
        self._commands, self._searched, self._loaders = {}, set(), {}
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
                for command, name in self._commands.items():
                    self._name_command(command, folder, name)
        languages: dict[str, frozenset[str]] = {}
        for folder, language in self._loaders:
            languages[folder] = languages.get(folder, frozenset()) | {language}
        return NamedFiles(frozenset(self._folders), frozenset(self._files), languages)

    def explain(self, path: str) -> str:
        """Return which setting loads the file at `path`, and what to do about it; empty if none does.

        Args:
            path: Relative to the workspace.
        """
        *above, name = fold_name(path).split("/")
        for (folder, language), setting in self._loaders.items():
            parts = fold_name(folder).split("/") if folder else []
            languages = frozenset((language,))
            for part in above[len(parts) :]:
                languages = languages_below(languages, part)
            if above[: len(parts)] == parts and languages and may_load(name, languages, link=True):
                return f"{setting} {_ADVICE.get(language, _ADVICE_FOR_OTHERS)}"
        return ""

    def _add_repository(self, worktree: str) -> None:
        """Read the settings of the repository at `worktree`, which may lie elsewhere."""
        self._todo += [(path, worktree) for path in settings_files(repository_of(worktree))]

    def _read_file(self, path: str, worktree: str | None) -> None:
        if "\0" in path:
            return
        real = resolve_links(path)
        if real.startswith(f"{self._root}/"):
            if worktree is None:
                self._name(path)  # a person's own settings, in the workspace
        else:
            self.stamps[path] = stamp_of(path)
        self._search.allow(MAX_LOOKS)  # for each file, so that none uses up what another one needs
        for setting in parse_settings(read_small(real)):
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
                self._commands[command] = str(setting)
            self._name_command(command, worktree or self._root, str(setting))

    def _name_command(self, command: str, worktree: str, setting: str) -> None:
        """Name what a command could lead to that git runs in the folder `worktree`.

        Args:
            command: A command of a shell.
            worktree: An absolute path.
            setting: The setting that has it, for messages.
        """
        found = self._search.find(command, worktree)
        for file in found.files:
            self._name(file)
        for folder in found.folders:
            self._name(folder, folder=True)
        for folder, languages in found.languages.items():
            real = f"{resolve_links(folder).rstrip('/')}/"
            # From above the workspace its files are loaded as those of a package.
            inside = real[len(self._root) + 1 : -1] if real.startswith(f"{self._root}/") else ""
            if inside or f"{self._root}/".startswith(real):
                for language in languages:
                    self._loaders.setdefault((inside, language), setting)

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
