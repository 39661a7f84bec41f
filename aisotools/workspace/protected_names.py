"""The names of protected files: what a program outside the sandbox runs or obeys by being used in a folder.

Threat: code in the sandbox writes in its workspace, and a person uses the same folder. Pytest imports
`conftest.py`, git runs hooks, an editor runs tasks, a build tool obeys its file, all without being told to.

What belongs here: a file that a tool finds by its name, in the folder where it is used or above, and that can
make the tool run a program, load a module, or obey other settings that do. What does not: files that a person
names to run them (scripts, notebooks, a Dockerfile), text that only a model reads (`AGENTS.md`), and settings
of style alone (`.editorconfig`). Files of continuous integration are here although they run elsewhere: the
next push runs them with the secrets of the repository. Virtual environments are here by `pyvenv.cfg`, without
which editors and `uv` do not take a folder for one.

Python loads the compiled form of a module in place of its source, without a look at the source if the form
says so. So whatever is protected as `conftest.py` is protected as `__pycache__/conftest.*.pyc` as well.

Mechanism: names are compared in lower case, since some file systems ignore case. A repository of git is
recognized by what it holds (`HEAD` with `objects` and `refs`, or `HEAD` with `commondir`), whatever its name;
links and plain files in the place of a protected folder count as the folder does. Matching is by sets and by
one expression of fixed size for each name, so that it takes the same time for each entry of a folder.
A person can allow a name for one workspace; see `AllowedNames`. The workspace's own policy cannot be
allowed: it narrows what may run.
Failure: a name that is missing here is written like any other file. The list can only follow the tools.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from aisotools.core.exceptions import UsageError

PROTECTED_NAMES = (
    # Python: test runners, installers, checkers, debuggers, the start of the interpreter
    "conftest.py",
    "pytest.ini",
    ".pytest.ini",
    "pytest.toml",
    ".pytest.toml",
    "tox.ini",
    "tox.toml",
    "toxfile.py",
    "setup.cfg",
    "setup.py",
    "pyproject.toml",
    "noxfile.py",
    "dodo.py",
    "fabfile.py",
    "tasks.py",
    "sitecustomize.py",
    "usercustomize.py",
    "*.pth",
    "pyvenv.cfg",
    ".python-version",
    ".pdbrc",
    ".coveragerc",
    ".coveragerc.toml",
    "mypy.ini",
    ".mypy.ini",
    ".flake8",
    ".pylintrc",
    ".pylintrc.toml",
    "pylintrc",
    "pylintrc.toml",
    "jupyter*_config.py",
    "jupyter*_config.json",
    "ipython*_config.py",
    "nbgrader_config.py",
    "matplotlibrc",
    "hatch.toml",
    "pixi.toml",
    "pipfile",
    # Build tools and package managers
    "makefile",
    "gnumakefile",
    "justfile",
    ".justfile",
    "taskfile.yml",
    "taskfile.yaml",
    "rakefile",
    "gemfile",
    "cmakepresets.json",
    "build.rs",
    ".latexmkrc",
    "latexmkrc",
    "package.json",
    ".npmrc",
    ".yarnrc",
    ".yarnrc.yml",
    ".pnpmfile.cjs",
    ".pnp.cjs",
    ".eslintrc.js",
    ".eslintrc.cjs",
    ".mocharc.*",
    ".bazelrc",
    ".tool-versions",
    "mise.toml",
    ".mise.toml",
    "uv.toml",
    # Git and continuous integration
    ".gitconfig",
    ".pre-commit-config.yaml",
    "lefthook.yml",
    ".lefthook.yml",
    ".gitlab-ci.yml",
    ".travis.yml",
    ".drone.yml",
    ".woodpecker.yml",
    "azure-pipelines.yml",
    "jenkinsfile",
    # Shells, editors, debuggers, other interpreters and agents
    ".env",
    ".envrc",
    ".bashrc",
    ".bash_profile",
    ".bash_login",
    ".profile",
    ".zshrc",
    ".zshenv",
    ".zprofile",
    ".zlogin",
    ".exrc",
    ".vimrc",
    ".nvimrc",
    ".nvim.lua",
    ".dir-locals.el",
    ".dir-locals-2.el",
    ".gdbinit",
    ".lldbinit",
    ".rprofile",
    ".renviron",
    ".rdata",
    ".octaverc",
    ".irbrc",
    ".pryrc",
    ".rspec",
    ".proverc",
    ".ghci",
    "*.code-workspace",
    "*.sublime-project",
    ".mcp.json",
    ".aider.conf.yml",
    "opencode.json",
    # Our own
    ".aisotools.toml",
)
"""Names of such files, in any folder. The letter case of a file does not matter."""

PROTECTED_FOLDERS = (
    ".git/hooks",
    ".githooks",
    ".husky",
    ".github/workflows",
    ".github/actions",
    ".gitea/workflows",
    ".forgejo/workflows",
    ".circleci",
    ".ipython",
    ".jupyter",
    ".vscode",
    ".idea",
    ".zed",
    ".helix",
    ".vs",
    ".devcontainer",
    ".mvn",
    ".claude",
    ".codex",
    ".cursor",
    ".gemini",
    ".opencode",
    ".windsurf",
    ".roo",
    ".kiro",
    ".amazonq",
    ".qwen",
    ".continue",
)
"""Folders that hold such files under any name, wherever they are."""

PROTECTED_PATHS = (
    ".cargo/config",
    ".cargo/config.toml",
    ".hg/hgrc",
    ".jj/repo/config.toml",
    ".sl/config",
)
"""Files that are protected in one folder only, wherever that folder is."""

ALWAYS_PROTECTED = ".aisotools.toml"
"""The one name that cannot be allowed."""

_EXACT_NAMES = frozenset(name for name in PROTECTED_NAMES if "*" not in name)
_matches_glob = re.compile("|".join(fnmatch.translate(name) for name in PROTECTED_NAMES if "*" in name)).match
_FOLDERS = frozenset(PROTECTED_FOLDERS)
_PATHS = frozenset(PROTECTED_PATHS)
_LEADING_PARTS = frozenset(
    path[:end]
    for path in (*PROTECTED_FOLDERS, *PROTECTED_PATHS)
    for end in range(len(path))
    if path[end] == "/"
)  # of which `.github` is one, and `.jj/repo`
_FIRST_PARTS = frozenset(part for part in (*_LEADING_PARTS, *PROTECTED_FOLDERS) if "/" not in part)
_MODULES = frozenset(name.removesuffix(".py") for name in _EXACT_NAMES if name.endswith(".py"))
_BYTECODE_FOLDER = "__pycache__"
_COMPILED = (".pyc", ".pyo", ".so", ".pyd")
_SETTINGS_OF_GIT = frozenset(("config", "config.worktree"))
_FILES_OF_GIT = _SETTINGS_OF_GIT | {"commondir", "hooks", "rebase-merge", "rebase-apply", "sequencer"}
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
        first: Last components of the folder, in lower case, if a protected folder or path begins with them.
        inside: True in a protected folder, at any depth.
        repository: True directly in a repository of git.
        hooks: True in the hooks of a repository, at any depth.
        operation: Name of the folder, in lower case, directly in that of a rebase or another operation of git
            that waits; empty elsewhere.
        modules: True where repositories of submodules and of further worktrees lie.
        bytecode: True directly in a folder of bytecode.
    """

    first: str = ""
    inside: bool = False
    repository: bool = False
    hooks: bool = False
    operation: str = ""
    modules: bool = False
    bytecode: bool = False

    def enter(self, name: str) -> Zone:
        """Return the zone of the subfolder `name`."""
        name = name.lower()
        if self is ROOT_ZONE and name not in _FIRST_PARTS and name != _BYTECODE_FOLDER:
            return self
        hooks = self.hooks or (self.repository and name == "hooks")
        modules = (self.repository and name in _FOLDERS_OF_MODULES) or (
            self.modules and not hooks and name not in _FOLDERS_OF_REFERENCES
        )
        path = f"{self.first}/{name}"
        zone = Zone(
            first=path if path in _LEADING_PARTS else name if name in _FIRST_PARTS else "",
            inside=self.inside or hooks or name in _FOLDERS or path in _FOLDERS,
            repository=name == ".git" or modules,
            hooks=hooks,
            operation=name if self.repository and name in _FILES_OF_OPERATIONS else "",
            modules=modules,
            bytecode=name == _BYTECODE_FOLDER,
        )
        return ROOT_ZONE if zone == ROOT_ZONE else zone

    def as_repository(self) -> Zone:
        """Return the zone of a folder that is a repository by what it holds."""
        return replace(self, repository=True)

    def holds_candidate(self, name: str) -> bool:
        """Return whether an entry `name` that is no folder may have to be protected."""
        name = name.lower()
        if (
            name in _EXACT_NAMES
            or name in _FIRST_PARTS
            or name.endswith(".ipynb")
            or name == _BYTECODE_FOLDER
        ):
            return True
        if self.is_compiled(name):
            return True
        path = f"{self.first}/{name}"
        if self is not ROOT_ZONE and (
            self.inside
            or (self.repository and name in _FILES_OF_GIT)
            or (self.operation and name in _FILES_OF_OPERATIONS[self.operation])
            or path in _FOLDERS
            or path in _PATHS
            or path in _LEADING_PARTS
        ):
            return True
        return _matches_glob(name) is not None

    def is_git_settings(self, name: str) -> bool:
        """Return whether the entry `name` holds settings of git."""
        return self.repository and name.lower() in _SETTINGS_OF_GIT

    def is_rebase_todo(self, name: str) -> bool:
        """Return whether the entry `name` is what a rebase does next."""
        return self.operation == "rebase-merge" and name.lower() == _TODO

    def is_merge_strategy(self, name: str) -> bool:
        """Return whether the entry `name` holds the strategy with which a rebase merges."""
        return self.operation.startswith("rebase-") and name.lower() == _STRATEGY

    def is_strategy_options(self, name: str) -> bool:
        """Return whether the entry `name` holds the options of the strategy with which a rebase merges."""
        return self.operation.startswith("rebase-") and name.lower() == _STRATEGY_OPTIONS

    def is_sequencer_options(self, name: str) -> bool:
        """Return whether the entry `name` holds the options of a series of commits that git picks."""
        return self.operation == "sequencer" and name.lower() == "opts"

    def is_compiled(self, name: str) -> bool:
        """Return whether Python may load the entry `name` in place of a protected module.

        Any file of the module in a folder of bytecode counts, as test runners add their own endings.
        """
        name = name.lower()
        return (self.bytecode or name.endswith(_COMPILED)) and name.partition(".")[0] in _MODULES


ROOT_ZONE = Zone()
"""The zone of every ordinary folder."""


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
    zone, name = zone_of(path), path.rpartition("/")[2].lower()
    return (
        zone.inside
        or name in _EXACT_NAMES
        or f"{zone.first}/{name}" in _PATHS
        or zone.is_compiled(name)
        or _matches_glob(name) is not None
    )


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
                f"allow_protected: {text!r} is no protected name. Give a name such as 'conftest.py', a "
                "folder such as '.vscode', or the path of such a file in the workspace."
            )
        if text.lower().rpartition("/")[2] == ALWAYS_PROTECTED:
            raise UsageError(
                f"allow_protected: {ALWAYS_PROTECTED} cannot be allowed, because it narrows what may run. "
                "Edit it yourself."
            )

    def covers(self, path: str) -> bool:
        """Return whether this names `path`, relative to the workspace, or a folder above it."""
        path, text = path.lower(), self.text.lower()
        if text in PROTECTED_FOLDERS:
            return f"/{path}".endswith(f"/{text}") or self.below(path) is not None
        if "/" in text:
            return path == text
        name = path.rpartition("/")[2]
        return name == text or (text in PROTECTED_NAMES and fnmatch.fnmatchcase(name, text))

    def below(self, path: str) -> str | None:
        """Return what of `path` is below the folder that this allows; None if it allows no folder above."""
        folder = f"/{self.text.lower()}/"
        _, found, rest = f"/{path.lower()}".partition(folder)
        return rest if found and self.text.lower() in PROTECTED_FOLDERS else None


def _can_be_allowed(text: str) -> bool:
    lowered = text.lower()
    if lowered in PROTECTED_FOLDERS or lowered in PROTECTED_NAMES:
        return True
    parts = lowered.split("/")
    if not all(parts) or {".", ".."} & set(parts) or "*" in lowered or lowered.endswith(".ipynb"):
        return False
    return is_candidate(lowered)


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
            UsageError: If one of them is no protected name, or must stay protected.
        """
        if isinstance(names, str):
            raise UsageError(f"allow_protected={names!r}: give a list of names, such as [{names!r}].")
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
    name = path if zone.inside or f"{zone.first}/{last.lower()}" in _PATHS else last
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
    return not _FILES_OF_GIT.isdisjoint(path.split("/"))
