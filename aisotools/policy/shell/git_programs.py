"""Which programs, named by settings of git, a git command that only reads may run.

`git status` runs what `core.fsmonitor` and the filters of `.gitattributes` name, `git diff` what
`diff.external` or a `textconv` names, and so on. Whether there are such settings only who sees the files can
tell; this module says which groups of them must be empty for a command to be reading alone. What git 2.39 ran
in an experiment, with each setting of `aisotools.workspace.git_settings` and each subcommand that is known to
read, is in `tests/workspace/test_git_settings.py`. A subcommand, or an option, that is in no table here may
run all of them.

Where git writes the index, it also runs the hook `post-index-change`. `git status` does so to note what it
has looked at, unless `GIT_OPTIONAL_LOCKS=0`, as in every command of the sandbox (`aisotools.builtin.shell`);
`git diff` and `git describe --dirty` do it all the same.

A command that changes something runs hooks that a person has chosen, and no call can write. So it stays
certain; where a setting names a program, it does not: what that does is not known, and attributes, which a
call may write, have it run. `programs_started_by` says which hooks and settings these may be, for the card to
name them, and for a grant to end when one of them changes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from aisotools.core.types import GitPrograms
from aisotools.policy.shell.expansion import name_set
from aisotools.policy.shell.folders import join
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
"""The hook that git runs when it writes the index, as `git diff` does after a look at what has changed."""

HELP = "help"
"""Programs that show a page of the manual."""

EDITORS_AND_MORE = "change"
"""Whatever else a command that changes something may run: editors, drivers of merges, trailers, gpg."""

TRANSPORT = "transport"
"""Programs by which git reaches another repository."""

ALIASES = "alias"
"""Commands of the repository's own, which may be those of a shell."""

REMOTES = "remotes"
"""Not a group: what is meant are the repositories on this machine that settings in the folder name."""

RECEIVER = "receiver"
"""Not a group: the folder is that of such a repository, and not one in it."""

# Where there are submodules, git looks into the index for nearly everything.
_OBJECTS = (WATCHER, MISSING_OBJECTS, OTHER_REPOSITORIES)
_COMMITS = (SIGNATURES, *_OBJECTS)
_FILES = (FILTERS, *_OBJECTS)
_INDEX = (HOOKS, *_FILES)
_SHOWN = (FILTERS, PATCHES, *_COMMITS)
_ALL = (HOOKS, *_SHOWN)

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
    "add check-attr check-ignore clean diff-files diff-index diff-tree fsck grep ls-files"
)
"""Subcommands that read the index or files, and run nothing to show a difference without being asked to."""

_SHOWS_COMMITS = name_set("log reflog shortlog show")
_SHOWS_CONTENT = name_set("annotate blame range-diff whatchanged")
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
    if subcommand == "describe":
        return _INDEX
    if subcommand == "status":
        return _FILES if shows_no_content else _SHOWN
    if subcommand == "diff" and None not in options and _asks_for_no_patch(options):
        return _INDEX
    if subcommand in _SHOWS_COMMITS and None not in options:
        is_bare = subcommand == "show" and _asks_for_no_patch(options)
        return _COMMITS if (shows_no_content and subcommand != "show") or is_bare else _SHOWN
    if subcommand in _SHOWS_CONTENT:
        return _SHOWN
    return _ALL if subcommand in _OF_GIT else (*_ALL, ALIASES)


def _asks_for_no_patch(options: Collection[str | None]) -> bool:
    """Return whether options ask for a list of what differs alone, or for a patch that no program makes."""
    names = {(option or "").partition("=")[0] for option in options}
    lists = not names.isdisjoint(_WITHOUT_PATCH)
    return names <= _WITHOUT_PATCH | _NO_PROGRAMS | _HARMLESS_BESIDE and (lists or names >= _NO_PROGRAMS)


# ---- hooks of commands that change something

_ON_INDEX = ("post-index-change",)
_ON_REFERENCES = ("reference-transaction",)
_ON_CHECKOUT = ("post-checkout", *_ON_INDEX, *_ON_REFERENCES)
_ON_COMMIT = (
    *("pre-commit", "prepare-commit-msg", "commit-msg", "post-commit", "post-rewrite", "pre-auto-gc"),
    *(*_ON_INDEX, *_ON_REFERENCES),
)
_ON_MERGE = ("pre-merge-commit", "post-merge", *_ON_COMMIT)
_LOCAL_HOOKS = (
    *("applypatch-msg", "pre-applypatch", "post-applypatch", "pre-rebase", "post-checkout", "pre-push"),
    *("sendemail-validate", "push-to-checkout", *_ON_MERGE),
)
"""All hooks that git runs but for those of a repository that receives a push."""
_HOOKS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(name_set("add apply checkout-index mv read-tree rm stage update-index"), _ON_INDEX),
    **dict.fromkeys(
        name_set("branch notes pack-refs reflog remote replace symbolic-ref tag update-ref"), _ON_REFERENCES
    ),
    **dict.fromkeys(name_set("checkout restore switch worktree"), _ON_CHECKOUT),
    **dict.fromkeys(name_set("reset stash"), (*_ON_INDEX, *_ON_REFERENCES)),
    **dict.fromkeys(name_set("fetch gc maintenance prune repack"), ("pre-auto-gc", *_ON_REFERENCES)),
    **dict.fromkeys(
        name_set(
            "archive bundle clean clone commit-tree config fast-import format-patch hash-object init init-db "
            "ls-remote merge-file mktag mktree pack-objects prune-packed unpack-objects write-tree"
        ),
        (),
    ),
    "commit": _ON_COMMIT,
    "merge": _ON_MERGE,
    "push": ("pre-push", *_ON_REFERENCES),
}


_ON_RECEIVING = (
    *("pre-receive", "update", "proc-receive", "post-receive", "post-update", "push-to-checkout"),
    *("pre-auto-gc", *_ON_CHECKOUT),
)
"""Hooks of a repository that receives a push."""

_OF_GIT = name_set(
    "add am apply archive bisect blame branch bundle cat-file check-attr check-ignore check-mailmap checkout "
    "checkout-index cherry-pick clean clone commit commit-tree config count-objects diff diff-files "
    "diff-index diff-tree fast-import fetch fsck gc grep hash-object init log ls-files ls-remote ls-tree "
    "maintenance merge merge-base merge-file mktag mktree mv notes pack-objects pack-refs prune "
    "prune-packed pull push read-tree rebase reflog remote repack replace rerere reset restore rev-list "
    "revert rm show show-ref stage stash status submodule switch symbolic-ref tag unpack-objects "
    "update-index update-ref verify-pack worktree write-tree"
)
"""Subcommands that every git has: no alias takes their place."""

_STARTS_NO_PROGRAM = name_set("config init init-db mktag mktree pack-refs symbolic-ref unpack-objects")
"""Subcommands that change something without a look at files, and have nothing to show or to sign."""

_CHANGES_NAMES = name_set("branch notes reflog replace tag update-ref")
"""Subcommands that change names and notes alone: they read no files, and show no patch."""

_CONTACTS = name_set("clone fetch ls-remote maintenance pull push remote submodule")
_CHANGING = (WATCHER, FILTERS, PATCHES, MISSING_OBJECTS, OTHER_REPOSITORIES, EDITORS_AND_MORE)
_CONTACTING = (*_CHANGING, TRANSPORT)
_UNKNOWN = (*_CONTACTING, ALIASES, HELP)


def programs_started_by(subcommand: str, words: Words, folder: str) -> tuple[GitPrograms, ...]:
    """Return what a git command that changes something may start; everything if it is not known.

    What `git clone` takes from a template is not among it, nor what runs on another machine.

    Args:
        subcommand: Such as `commit`.
        words: The subcommand and its arguments.
        folder: Where git is started.
    """
    hooks = _HOOKS.get(subcommand, _LOCAL_HOOKS)
    if subcommand in _STARTS_NO_PROGRAM:
        groups: tuple[str, ...] = ()
    elif subcommand not in _OF_GIT:
        groups = _UNKNOWN
    elif subcommand in _CHANGES_NAMES:
        groups = (*_OBJECTS, EDITORS_AND_MORE)
    else:
        groups = _CONTACTING if subcommand in _CONTACTS else _CHANGING
    started = [GitPrograms(folder, hooks, groups)] if hooks or groups else []
    if subcommand == "push" or subcommand not in _OF_GIT:
        # The other side of a push is a program of this machine where it is named by a path.
        operands = [word for word in words[1:] if not word.prefix.startswith("-")]
        # Case: an option such as `-o` stands before the remote, with its value in the next word.
        places = [word.path for word in operands[:1]] + [word.path for word in operands[1:] if word.text]
        places = [place.removeprefix("file://") for place in places]
        started.append(GitPrograms(folder, _ON_RECEIVING, (*_CONTACTING, REMOTES)))
        started += [
            GitPrograms(join(folder, place), _ON_RECEIVING, (*_CONTACTING, RECEIVER))
            for place in dict.fromkeys(places)
            if ":" not in place and not place.startswith("+")
        ]
    return tuple(started)
