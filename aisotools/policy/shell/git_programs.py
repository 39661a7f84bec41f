"""Which programs, named by settings of git, a git command that only reads may run.

`git status` runs what `core.fsmonitor` and the filters of `.gitattributes` name, `git diff` what
`diff.external` or a `textconv` names, and so on; where it writes the index afterwards, it also runs the hook
`post-index-change`. Whether there are such settings only who sees the files can
tell; this module says which groups of them must be empty for a command to be reading alone. What git 2.39 ran
in an experiment, with each setting of `aisotools.workspace.git_settings` and each subcommand that is known to
read, is in `tests/workspace/test_git_settings.py`. A subcommand, or an option, that is in no table here may
run all of them.
"""

from __future__ import annotations

from collections.abc import Collection

from aisotools.policy.shell.expansion import name_set
from aisotools.policy.shell.options import Words

WATCHER = "fsmonitor"
"""A program that git asks which files have changed, whenever it reads the index."""

FILTERS = "filter"
"""Programs through which git reads files of the work tree."""

PATCHES = "patch"
"""Programs that show a difference, or turn what is compared into text."""

SIGNATURES = "signature"
"""Programs that check signatures, where settings ask for that."""

MISSING_OBJECTS = "fetch"
"""Programs by which git fetches what a partial clone lacks."""

OTHER_REPOSITORIES = "alternates"
"""A program that lists references of the repositories from which this one borrows."""

HOOKS = "hook"
"""The hook that git runs when it writes the index, as after a look at which files have changed."""

HELP = "help"
"""Programs that show a page of the manual."""

# Where there are submodules, git looks into the index for nearly everything.
_OBJECTS = (WATCHER, MISSING_OBJECTS, OTHER_REPOSITORIES)
_COMMITS = (SIGNATURES, *_OBJECTS)
_FILES = (FILTERS, HOOKS, *_OBJECTS)
_ALL = (FILTERS, HOOKS, PATCHES, *_COMMITS)

_RUNS_NOTHING = name_set(
    "archive bisect check-mailmap config count-objects get-tar-commit-id patch-id remote sparse-checkout "
    "stripspace var version worktree"
)
"""Subcommands that read settings, names and standard input, and no object of the repository."""

_READS_OBJECTS = name_set(
    "branch bundle cat-file cherry for-each-ref ls-tree merge-base name-rev notes rev-list rev-parse "
    "show-branch show-ref symbolic-ref tag verify-pack"
)
"""Subcommands that read what is recorded, and no files; they show no patch."""

_READS_FILES = name_set(
    "add check-attr check-ignore clean describe diff-files diff-index diff-tree fsck grep ls-files"
)
"""Subcommands that read the index or files, and run nothing to show a difference without being asked to."""

_SHOWS_COMMITS = name_set("log reflog shortlog show")
_WITHOUT_PATCH = name_set(
    "--stat --numstat --shortstat --name-only --name-status --summary --dirstat --raw --compact-summary "
    "--no-patch -s --quiet"
)
_NO_PROGRAMS = frozenset(("--no-ext-diff", "--no-textconv"))
_HARMLESS_BESIDE = name_set("--cached --staged -- --color --no-color --no-renames")


def programs_run_by(subcommand: str, words: Words, *, shows_no_content: bool) -> tuple[str, ...]:
    """Return the groups of programs that a git command which only reads may run.

    Args:
        subcommand: Such as `log`.
        words: The subcommand and its arguments.
        shows_no_content: Whether `git log` and its kind, or `git status`, show nothing of what is in files.
    """
    texts = [word.text for word in words[1:]]
    options = [text for text in texts if text is None or text.startswith("-")]
    if texts[:1] == ["--help"]:
        return (HELP,)
    if subcommand == "help":
        return (HELP,) if any(text is None or not text.startswith("-") for text in texts) else ()
    if subcommand in _RUNS_NOTHING or texts == ["-h"]:
        return ()
    if (subcommand, *texts) == ("stash", "list"):
        return _COMMITS
    if subcommand in _READS_OBJECTS or (subcommand == "describe" and not options):
        return _OBJECTS
    if subcommand in _READS_FILES:
        return _FILES
    if subcommand == "status":
        return _FILES if shows_no_content else _ALL
    if subcommand == "diff" and None not in options and _asks_for_no_patch(options):
        return _FILES
    if subcommand in _SHOWS_COMMITS and None not in options:
        is_bare = subcommand == "show" and _asks_for_no_patch(options)
        return _COMMITS if (shows_no_content and subcommand != "show") or is_bare else _ALL
    return _ALL


def _asks_for_no_patch(options: Collection[str | None]) -> bool:
    """Return whether options ask for a list of what differs alone, or for a patch that no program makes."""
    names = {(option or "").partition("=")[0] for option in options}
    lists = not names.isdisjoint(_WITHOUT_PATCH)
    return names <= _WITHOUT_PATCH | _NO_PROGRAMS | _HARMLESS_BESIDE and (lists or names >= _NO_PROGRAMS)
