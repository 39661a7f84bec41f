"""The names of protected files: what a program outside the sandbox runs or obeys by being used in a folder.

Threat: code in the sandbox writes in its workspace, and a person uses the same folder. Pytest imports
`conftest.py`, git runs hooks, an editor runs tasks, a build tool obeys its file, all without being told to.

The criterion: a file that a tool finds by its name, in the folder where it is used or above, and that can
make the tool run a program, load a module, or obey other settings that do. It does not hold for files that a
person names to run them (scripts, notebooks), text that only a model reads (`AGENTS.md`), and settings of
style alone (`.editorconfig`). Files of continuous integration are protected although they run elsewhere: the
next push runs them with the secrets of the repository. Virtual environments are protected by `pyvenv.cfg`,
without which editors and `uv` do not take a folder for one. The list is in
`aisotools.workspace.protected_groups`.

Python loads the compiled form of a module in place of its source, without a look at the source if the form
says so. So whatever is protected as `conftest.py` is protected as `__pycache__/conftest.*.pyc` as well. A
folder `tasks` with an `__init__` is a module of the same name, which Python prefers to `tasks.py` beside it:
its `__init__` is protected in each of its forms, and so is a link in the place of the folder. Python and Node
also run a folder with the name of a file of code, beginning with one file in it (`setup.py/__main__.py`,
`gulpfile.js/index.js`), which is protected.

GNU make writes a file that a makefile includes, or that a rule in it needs, anew from one of the same name
with another ending (`Makefile.sh`, `package.json.c`) and from one of a version control (`Makefile,v`,
`s.Makefile`). It does so by rules of its own, and before it obeys what came out; the makefile itself is no
exception. So whatever is protected, by its name or by its place, is protected as such a source as well, also
in the folders `RCS` and `SCCS` beside it. Sources of what a rule of a person's own makes are not known here.

Tools of Python find plugins by the entry points of distributions, in every folder from which modules are
imported, and the current one is such a folder. So `entry_points.txt` is protected in `x.egg-info` and
`x.dist-info`, unless it names commands alone: those run when a person calls them, and most projects have no
others, so that they can be built in their folder. It is not protected in `site-packages`, where the modules
themselves lie beside it.

Mechanism: names are compared as file systems compare them that ignore case; see `fold_name`. A repository of
git is recognized by what it holds (`HEAD` with `objects` and `refs`, or `HEAD` with `commondir`), whatever
its name; links and plain files in the place of a protected folder count as the folder does. Matching is by
sets and expressions of fixed size, so that it takes about the same time for each entry of a folder.
A person can allow a name for one workspace; see `AllowedNames`. The workspace's own policy cannot be
allowed: it narrows what may run.
Race: none; names and texts are compared, and no file. When they are looked at is for
`aisotools.workspace.protected` to say.
Failure: a name that is missing in the list is written like any other file.
"""

from __future__ import annotations

import fnmatch
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace

from aisotools.core.exceptions import UsageError
from aisotools.workspace.command_loads import languages_below, may_load
from aisotools.workspace.protected_groups import EXCEPTIONS, PROTECTED_GROUPS

PROTECTED_NAMES = tuple(name for group in PROTECTED_GROUPS for name in group.names)
"""Names of such files, in any folder. The letter case of a file does not matter."""

PROTECTED_FOLDERS = tuple(folder for group in PROTECTED_GROUPS for folder in group.folders)
"""Folders that hold such files under any name, wherever they are."""

PROTECTED_PATHS = tuple(path for group in PROTECTED_GROUPS for path in group.paths)
"""Files that are protected in one folder only, wherever that folder is."""

ALWAYS_PROTECTED = ".aisotools.toml"
"""The one name that cannot be allowed."""


def fold_name(name: str) -> str:
    """Return a name, or a path, as a file system compares it that ignores case.

    Those also take other letters for the same (the long s, the sign for kelvin), and leave out characters
    that nobody can see.
    """
    if name.isascii():
        return name.lower()
    visible = _IGNORABLE.sub("", name)
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", visible).casefold())


# The property Default_Ignorable_Code_Point, and the category Cf. One expression, since hostile code can make
# a hundred thousand long names: a test of each character by itself takes up to fifty times as long.
_IGNORABLE = re.compile(
    "[\u00ad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb"
    "\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]+"
)


def name_matcher(names: Iterable[str]) -> Callable[[str], bool]:
    """Return a function that says whether a name in lower case is one of `names` or fits a glob of them.

    A name of which GNU make would make one of them counts, too.

    It is asked about every entry of a folder. Globs that are one ending are found by the last dot of the
    name, and the others are tried only on names with their first letter, or with more than one dot.
    """
    names = tuple(names)
    exact = frozenset(name for name in names if "*" not in name)
    endings: dict[str, tuple[str, ...]] = {}
    others: dict[str, list[str]] = {}
    tails: tuple[str, ...] = ()  # of the last part of a name, as in `*.*proj`
    for glob in names:
        ending = glob[1:]
        if glob.startswith("*.*") and "*" not in glob[3:]:
            tails = (*tails, glob[3:])
        elif glob.startswith("*") and "*" not in ending and "." in ending:
            last = ending[ending.rindex(".") :]
            endings[last] = (*endings.get(last, ()), ending)
        elif "*" in glob:
            others.setdefault(glob[0], []).append(fnmatch.translate(glob))
    by_first = {first: re.compile("|".join(globs)).match for first, globs in others.items() if first != "*"}
    of_any_first = re.compile("|".join(others.get("*", ["(?!)"]))).match  # of `*.x.*`: two dots at least

    def matches(name: str, *, source: bool = True) -> bool:
        """Take one step back from what make would make, at most: names may have very many parts."""
        if name in exact:
            return True
        last = name.rfind(".")
        ending = name[last:]
        if name.endswith(endings.get(ending, ())) or (last >= 0 and name.endswith(tails, last + 1)):
            return name not in EXCEPTIONS
        with_this_first = by_first.get(name[:1])
        if with_this_first is not None and with_this_first(name):
            return name not in EXCEPTIONS
        if name.count(".") > 1 and of_any_first(name) is not None:
            return True
        return source and any(matches(made, source=False) for made in names_made_of(name))

    return matches


_OF_SOURCES = frozenset(
    (
        *(".c", ".cc", ".cpp", ".f", ".l", ".m", ".mod", ".o"),
        *(".p", ".r", ".s", ".sh", ".w", ".web", ".y", ".ym"),
    )
)
"""Endings, in lower case, of what rules of GNU make turn into a file of the same name without an ending."""

_OTHER_ENDINGS = {
    ".y": (".c",),
    ".l": (".c", ".r"),
    ".w": (".c",),
    ".ym": (".m",),
    ".web": (".p",),
    ".r": (".f",),
}
"""By such an ending, the endings of what else they turn it into, one step at a time."""


def names_made_of(name: str) -> tuple[str, ...]:
    """Return the names in the same folder that GNU make would write from a file of this name, in one step.

    In `RCS` and `SCCS` such a file is for the folder above.

    Args:
        name: The name as `fold_name` gave it.
    """
    last = name.rfind(".")
    if name[last:] not in _OF_SOURCES and not name.endswith(",v") and not name.startswith("s."):
        return ()  # as almost all names: they are very many
    made = name.removesuffix(",v").removeprefix("s.")
    last = made.rfind(".")
    found = () if made == name else (made,)
    ending = made[last:]
    if last <= 0 or ending not in _OF_SOURCES:
        return found
    stem = made[:last]
    return (*found, stem, *(stem + other for other in _OTHER_ENDINGS.get(ending, ())))


_is_protected_name = name_matcher(PROTECTED_NAMES)
_FOLDERS = frozenset(PROTECTED_FOLDERS)
_MODULES = frozenset(
    name.removesuffix(".py") for name in PROTECTED_NAMES if name.endswith(".py") and "*" not in name
)
_BYTECODE_FOLDER = "__pycache__"
_CHECKPOINTS = ".ipynb_checkpoints/"
_NEVER_IMPORTED = frozenset(("conf", "duties"))
"""Modules that programs only read by their path, and whose folders are named like many others."""
_PACKAGES = frozenset(name for name in _MODULES - _NEVER_IMPORTED if name.isidentifier())
_PLACES_OF_INIT = _PACKAGES | {f"{name}/{_BYTECODE_FOLDER}" for name in _PACKAGES}
_INIT = "__init__"
_CODE = (".py", ".js", ".cjs", ".mjs", ".ts", ".cts", ".mts")
_FIRST_FILES = frozenset((_INIT, "__main__", "index"))
"""Names without endings of the file with which Python and Node begin in a folder."""
_PATHS = frozenset((*PROTECTED_PATHS, *(f"{name}/{_INIT}.py" for name in _PACKAGES)))
_LEADING_PARTS = frozenset(
    path[:end]
    for path in (*PROTECTED_FOLDERS, *_PATHS, *(f"{place}/" for place in _PLACES_OF_INIT))
    for end in range(len(path))
    if path[end] == "/"
)  # of which `.github` is one, and `.jj/repo`
_FIRST_PARTS = frozenset(part for part in (*_LEADING_PARTS, *PROTECTED_FOLDERS) if "/" not in part)
_ORDINARY_PARTS = _PACKAGES | {
    *(".config", "base", "classic", "custom_theme", "debian", "full", "mise", "overrides", "profiles"),
    "tools",
}
"""Of these folders, which other files are named after as well: only a link in the place of one counts."""
_METADATA = (".egg-info", ".dist-info", ".egg")
"""Endings of folders that a path in the list names as `*.egg-info`, for any name before it."""

_ENTRY_POINTS = "entry_points.txt"
_FOLDERS_OF_METADATA = frozenset(("*.egg-info", "*.dist-info"))
_INSTALLED = frozenset(("site-packages", "dist-packages"))
_REMEMBERED = _FIRST_PARTS | _INSTALLED
_COMPILED = (".pyc", ".pyo", ".so", ".pyd")
_SETTINGS_OF_GIT = frozenset(("config", "config.worktree"))
FILES_OF_GIT = _SETTINGS_OF_GIT | {"commondir", "hooks", "rebase-merge", "rebase-apply", "sequencer"}
"""Names, in lower case, that count directly in a repository of git."""

_FOLDERS_OF_VERSIONS = frozenset(("rcs", "sccs"))
_FOLDERS_OF_MODULES = frozenset(("modules", "worktrees"))
_FOLDERS_OF_REFERENCES = frozenset(("refs", "logs", "objects"))  # a branch may be named "config"
_TODO = "git-rebase-todo"
_STRATEGY = "strategy"
_STRATEGY_OPTIONS = "strategy_opts"
_FILES_OF_OPERATIONS = {
    "rebase-merge": frozenset((_TODO, _STRATEGY, _STRATEGY_OPTIONS)),
    "rebase-apply": frozenset((_STRATEGY, _STRATEGY_OPTIONS)),
    "sequencer": frozenset(("opts",)),
}
REPOSITORY_PARTS = frozenset(("head", "objects", "refs", "commondir"))
"""Names, in lower case, by which a repository of git is recognized."""


@dataclass(frozen=True, slots=True)
class Zone:
    """What the folders above a file mean for it.

    Attributes:
        first: Last components of the folder, in lower case, if a protected folder or path begins with them,
            or `site-packages`.
        inside: True in a protected folder, at any depth.
        repository: True directly in a repository of git.
        hooks: True in the hooks of a repository, at any depth.
        operation: Name of the folder, in lower case, directly in that of a rebase or another operation of git
            that waits; empty elsewhere.
        modules: True where repositories of submodules and of further worktrees lie.
        bytecode: True directly in a folder of bytecode.
        code: True directly in a folder that has the name of a protected file of code.
        place: The folder's path, if single files in it are protected by their paths; empty elsewhere.
        languages: Of which files are protected because a program of the person loads them from here or above.
    """

    first: str = ""
    inside: bool = False
    repository: bool = False
    hooks: bool = False
    operation: str = ""
    modules: bool = False
    bytecode: bool = False
    code: bool = False
    place: str = ""
    languages: frozenset[str] = frozenset()

    def enter(self, name: str) -> Zone:
        """Return the zone of the subfolder `name`."""
        name = fold_name(name)
        if name in _FOLDERS_OF_VERSIONS and not self.repository:
            return self  # make writes the files of this folder from there
        code = name.endswith(_CODE) and _is_protected_name(name)
        if name.endswith(_METADATA) and self.first not in _INSTALLED:
            name = f"*{name[name.rindex('.') :]}"
        if self is ROOT_ZONE and name not in _REMEMBERED and name != _BYTECODE_FOLDER and not code:
            return self
        hooks = self.hooks or (self.repository and name == "hooks")
        modules = (self.repository and name in _FOLDERS_OF_MODULES) or (
            self.modules and not hooks and name not in _FOLDERS_OF_REFERENCES
        )
        path = f"{self.first}/{name}"
        zone = Zone(
            first=path if path in _LEADING_PARTS else name if name in _REMEMBERED else "",
            inside=self.inside or hooks or name in _FOLDERS or path in _FOLDERS,
            repository=name == ".git" or modules,
            hooks=hooks,
            operation=name if self.repository and name in _FILES_OF_OPERATIONS else "",
            modules=modules,
            bytecode=name == _BYTECODE_FOLDER,
            code=code,
            languages=self.languages and languages_below(self.languages, name),
        )
        return ROOT_ZONE if zone == ROOT_ZONE else zone

    def as_protected(self) -> Zone:
        """Return the zone of a folder in which everything is protected, whatever its name."""
        return replace(self, inside=True)

    def with_languages(self, languages: frozenset[str]) -> Zone:
        """Return the zone of a folder from which programs load files of these languages as well."""
        return replace(self, languages=self.languages | languages)

    def of_folder(self, place: str) -> Zone:
        """Return the zone of the folder with this path, in which some paths are protected as such."""
        return replace(self, place=place)

    def as_repository(self) -> Zone:
        """Return the zone of a folder that is a repository by what it holds."""
        return replace(self, repository=True)

    def holds_candidate(self, name: str, *, link: bool = False) -> bool:
        """Return whether an entry `name` that is not a folder, perhaps a link, may have to be protected."""
        return self.holds_folded_candidate(fold_name(name), link=link)

    def holds_folded_candidate(self, name: str, *, link: bool = False) -> bool:
        """Return the same for a name that `fold_name` gave."""
        if _is_protected_name(name) or name.endswith(".ipynb") or name == _BYTECODE_FOLDER:
            return True
        if name in _FIRST_PARTS and (link or name not in _ORDINARY_PARTS):
            return True
        if link and name.endswith(_METADATA) and self.first not in _INSTALLED:
            return True
        if self.is_compiled(name):
            return True
        made = names_made_of(name)
        if made and any(map(self._holds_made, made)):
            return True
        if self is ROOT_ZONE:
            return False
        path = f"{self.first}/{name}"
        return (
            self.inside
            or (bool(self.languages) and may_load(name, self.languages, link=link))
            or (self.code and _is_first_file(name))
            or (self.repository and name in FILES_OF_GIT)
            or bool(self.operation and name in _FILES_OF_OPERATIONS[self.operation])
            or path in _FOLDERS
            or path in _PATHS
            or path in _LEADING_PARTS
        )

    def _holds_made(self, name: str) -> bool:
        """Return whether a file that make writes under this name counts; `name_matcher` knows names alone.

        It writes no folders. Of what stands in the place of one, git alone obeys a file.
        """
        if name == ".git" or self.is_compiled(name):
            return True
        return self is not ROOT_ZONE and (
            (self.code and _is_first_file(name))
            or (self.repository and name in FILES_OF_GIT)
            or bool(self.operation and name in _FILES_OF_OPERATIONS[self.operation])
            or f"{self.first}/{name}" in _PATHS
        )

    def is_git_settings(self, name: str) -> bool:
        """Return whether the entry `name` holds settings of git."""
        return self.repository and fold_name(name) in _SETTINGS_OF_GIT

    def is_rebase_todo(self, name: str) -> bool:
        """Return whether the entry `name` is what a rebase does next."""
        return self.operation == "rebase-merge" and fold_name(name) == _TODO

    def is_merge_strategy(self, name: str) -> bool:
        """Return whether the entry `name` holds the strategy with which a rebase merges."""
        return self.operation.startswith("rebase-") and fold_name(name) == _STRATEGY

    def is_strategy_options(self, name: str) -> bool:
        """Return whether the entry `name` holds the options of the strategy with which a rebase merges."""
        return self.operation.startswith("rebase-") and fold_name(name) == _STRATEGY_OPTIONS

    def is_sequencer_options(self, name: str) -> bool:
        """Return whether the entry `name` holds the options of a series of commits that git picks."""
        return self.operation == "sequencer" and fold_name(name) == "opts"

    def is_entry_points(self, name: str) -> bool:
        """Return whether the entry `name` holds the entry points of a distribution, and nothing else."""
        return not self.inside and self.first in _FOLDERS_OF_METADATA and fold_name(name) == _ENTRY_POINTS

    def is_compiled(self, name: str) -> bool:
        """Return whether Python may load the entry `name` in place of a protected module.

        Any file of the module in a folder of bytecode counts, as test runners add their own endings.

        Args:
            name: The name as `fold_name` gave it.
        """
        if not (self.bytecode or name.endswith(_COMPILED)):
            return False
        module = name.partition(".")[0]
        return module in _MODULES or (module == _INIT and self.first in _PLACES_OF_INIT)


def _is_first_file(name: str) -> bool:
    """Return whether Python or Node begins with this file in a folder, by its name from `fold_name`."""
    return name.partition(".")[0] in _FIRST_FILES


ROOT_ZONE = Zone()
"""The zone of every ordinary folder."""


def is_file_of_git(name: str) -> bool:
    """Return whether a file of this name, as `fold_name` gave it, counts directly in a repository."""
    return name in FILES_OF_GIT or not FILES_OF_GIT.isdisjoint(names_made_of(name))


def is_repository(parts: Collection[str]) -> bool:
    """Return whether git would take a folder with these of `REPOSITORY_PARTS` for a repository."""
    return "head" in parts and ("commondir" in parts or ("objects" in parts and "refs" in parts))


def zone_of(path: str) -> Zone:
    """Return the zone of the folder of `path`, as far as names alone tell."""
    zone = ROOT_ZONE
    for part in path.split("/")[:-1]:
        zone = zone.enter(part)
    return zone


def is_candidate(path: str) -> bool:
    """Return whether the file at `path`, relative to the workspace, may have to be protected."""
    return zone_of(path).holds_candidate(path.rpartition("/")[2])


def is_protected(path: str) -> bool:
    """Return whether no call may write the file at `path`, whatever its content."""
    zone, name = zone_of(path), fold_name(path.rpartition("/")[2])
    if zone.inside or _is_protected_name(name):
        return True
    return (
        zone.is_compiled(name) or _is_by_place(zone, name) or any(map(zone.is_compiled, names_made_of(name)))
    )


def _is_by_place(zone: Zone, name: str) -> bool:
    """Return whether an entry of this name, as `fold_name` gave it, is protected in such a folder only."""
    forms = (name, *names_made_of(name))
    return any(f"{zone.first}/{form}" in _PATHS or (zone.code and _is_first_file(form)) for form in forms)


def is_notebook(path: str) -> bool:
    """Return whether a file is a notebook, by its name."""
    return fold_name(path).endswith(".ipynb")


def find_checkpointed(files: Collection[str]) -> Iterator[str]:
    """Yield the notebooks of which Jupyter has a checkpoint. It creates one when it opens a notebook."""
    for path in files:
        folder, found, name = path.rpartition(_CHECKPOINTS)
        if found and name.endswith("-checkpoint.ipynb"):
            notebook = folder + name.removesuffix("-checkpoint.ipynb") + ".ipynb"
            if notebook in files:
                yield notebook


# ---- names that a person allows


@dataclass(frozen=True, slots=True)
class AllowedName:
    """A protected name that a person has allowed.

    Attributes:
        text: As it was given: a file name or glob of `PROTECTED_NAMES`, a folder of `PROTECTED_FOLDERS`, or
            the path of one such file, relative to the workspace.
    """

    text: str

    def __post_init__(self) -> None:
        text: object = self.text
        if isinstance(text, str) and text.lower().rpartition("/")[2] == ".git":
            raise UsageError(
                f"allow_protected: {text!r} stays protected: it leads git to settings of any kind. Give a "
                "part of it, such as '.git/hooks' or '.git/config'."
            )
        if not isinstance(text, str) or not _can_be_allowed(text):
            raise UsageError(
                f"allow_protected: {text!r} is not a protected name. Give a name such as 'conftest.py', a "
                "folder such as '.vscode', or the path of such a file in the workspace. A file that your "
                "settings of git name is protected until they no longer name it."
            )
        if text.lower().rpartition("/")[2] == ALWAYS_PROTECTED:
            raise UsageError(
                f"allow_protected: {ALWAYS_PROTECTED} cannot be allowed, because it narrows what may run. "
                "Edit it yourself."
            )

    def covers(self, path: str) -> bool:
        """Return whether this names `path`, relative to the workspace, or a folder above it."""
        path, text = fold_name(path), self.text.lower()
        if text in PROTECTED_FOLDERS:
            return f"/{path}".endswith(f"/{text}") or self.below(path) is not None
        if "/" in text:
            return path == text
        name = path.rpartition("/")[2]
        return name == text or (text in PROTECTED_NAMES and fnmatch.fnmatchcase(name, text))

    def below(self, path: str) -> str | None:
        """Return what of `path` is below the folder that this allows; None if it allows no folder above."""
        folder = f"/{self.text.lower()}/"
        _, found, rest = f"/{fold_name(path)}".partition(folder)
        return rest if found and self.text.lower() in PROTECTED_FOLDERS else None


def _can_be_allowed(text: str) -> bool:
    lowered = text.lower()
    if lowered in PROTECTED_FOLDERS or lowered in PROTECTED_NAMES:
        return True
    parts = lowered.split("/")
    if not all(parts) or {".", ".."} & set(parts) or "*" in lowered or lowered.endswith(".ipynb"):
        return False
    return zone_of(lowered).holds_candidate(parts[-1], link=True)


class AllowedNames:
    """The protected names that a person has allowed for the workspace of one session.

    Attributes:
        names: The names, in the order in which they were allowed.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        """Begin with `names`; see `allow`."""
        self._names: dict[str, AllowedName] = {}
        self.names: tuple[str, ...] = ()
        self.allow(names)

    def __repr__(self) -> str:
        return f"<AllowedNames {list(self._names)}>"

    def allow(self, names: Iterable[str]) -> None:
        """Protect these no longer.

        Raises:
            UsageError: If one of them is not a protected name, or must stay protected.
        """
        given: object = names
        if isinstance(given, str) or not isinstance(given, Iterable):
            such = given if isinstance(given, str) else "conftest.py"
            raise UsageError(f"allow_protected={given!r}: give a list of names, such as [{such!r}].")
        self._names |= {name: AllowedName(name) for name in names}
        self.names = tuple(self._names)

    def withdraw(self, names: Iterable[str]) -> None:
        """Protect these again."""
        for name in names:
            self._names.pop(name, None)
        self.names = tuple(self._names)

    def cover(self, path: str) -> bool:
        """Return whether a person has allowed `path`, relative to the workspace, to be written."""
        return _is_covered(self._names.values(), path)


def name_to_allow(path: str) -> str | None:
    """Return the name that allows the protected `path`: its last component, or all of it in a folder.

    None if it lies outside the workspace, or must stay protected.
    """
    zone, last = zone_of(path), path.rpartition("/")[2]
    name = path if zone.inside or zone.code or _is_by_place(zone, fold_name(last)) else last
    if path.startswith(("/", "..")):
        return None
    try:
        return AllowedName(name).text
    except UsageError:
        return None


def allows(names: Iterable[str], path: str) -> bool:
    """Return whether one of the allowed `names` covers `path`, relative to the workspace."""
    return _is_covered([AllowedName(name) for name in names], path)


def _is_covered(names: Collection[AllowedName], path: str) -> bool:
    """Return whether `names` cover `path`. What is protected by itself takes a name of its own.

    A folder allows what makes it protected, and nothing that would be protected elsewhere, too: a repository
    of git in an allowed `.vscode` would have programs run that `.vscode` does not say.
    """
    for name in names:
        below = name.below(path)
        if below is None:
            if name.covers(path):
                return True
        elif not (is_candidate(below) or _may_be_of_repository(below)) or _is_covered(names, below):
            return True
    return False


def _may_be_of_repository(path: str) -> bool:
    """Return whether git obeys the file at `path` if one of the folders above it is a repository."""
    return not FILES_OF_GIT.isdisjoint(path.split("/"))
