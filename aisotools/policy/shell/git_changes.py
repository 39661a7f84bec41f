"""Which files of the work tree a git command changes, as far as its words say.

Rules about what is written, the files that an approval binds and the grants that it leaves all go by these
paths. Where the words do not say it, it is the whole workspace: a repository may lie anywhere in it, also
above the folder that the command runs in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from aisotools.policy.shell.expansion import Word, literal, name_set
from aisotools.policy.shell.options import Words, parse_options
from aisotools.policy.shell.verdicts import NO_EFFECT, CommandVerdict, merge, writes

ANY_FILE = literal("/workspace")
"""The whole workspace, from whichever folder in it."""

_PATTERN = frozenset("*?[:")
_MAY_CHANGE_ALL = name_set(
    "am checkout-index cherry-pick filter-branch filter-repo merge pull rebase rerere revert submodule switch"
)
_FROM_FILE = "--pathspec-from-file"
STASH_OPTIONS = (
    "-pukaqS -m: --patch --keep-index --no-keep-index --include-untracked --all --quiet --staged --message: "
    "--pathspec-from-file:r"
)
"""Options of `git stash push`; written as for `shell.options`."""
_RESTORE_OPTIONS = (
    "-s: -SWpqm2# --source: --staged --worktree --patch --quiet --progress --no-progress --ours --theirs "
    "--merge --conflict: --ignore-unmerged --ignore-skip-worktree-bits --recurse-submodules "
    "--no-recurse-submodules --overlay --no-overlay --pathspec-from-file: --pathspec-file-nul"
)


def changed_files(subcommand: str, words: Words) -> CommandVerdict:
    """Return the files of the work tree that a git command changes or removes; none if it keeps them all.

    Args:
        subcommand: The subcommand.
        words: It and its arguments.
    """
    if is_new_branch(subcommand, words):
        return NO_EFFECT
    if subcommand in _MAY_CHANGE_ALL:
        return writes(ANY_FILE)
    changes = _CHANGES.get(subcommand)
    return changes(words) if changes is not None else NO_EFFECT


def is_new_branch(subcommand: str, words: Words) -> bool:
    """Return whether a command does no more than make a branch where the work tree stands."""
    return len(words) == 3 and (subcommand, words[1].text) in {("checkout", "-b"), ("switch", "-c")}


def _operands(words: Iterable[Word]) -> list[Word]:
    return [word for word in words if not word.prefix.startswith("-")]


def _paths(operands: Iterable[Word]) -> CommandVerdict:
    """Return the verdict on paths as git takes them; a pattern of git's own may be any file."""
    paths = list(operands)
    is_any = any(path.text is None or not _PATTERN.isdisjoint(path.text) for path in paths)
    return merge([*map(writes, paths), writes(ANY_FILE) if is_any else NO_EFFECT])


def _split(words: Words) -> tuple[list[Word], list[Word] | None]:
    """Return the arguments before `--`, and those after it; None if there is no `--`."""
    rest = list(words[1:])
    at = next((number for number, word in enumerate(rest) if word.text == "--"), None)
    return (rest, None) if at is None else (rest[:at], rest[at + 1 :])


def _has(words: Iterable[Word], short: str, *names: str) -> bool:
    """Return whether an option may be among words: a letter among others, or the beginning of a long one."""
    for word in words:
        text = word.text
        if text is None:
            return True
        if text.startswith("--"):
            if len(text) > 2 and any(name.startswith(text.partition("=")[0]) for name in names):
                return True
        elif text.startswith("-") and not set(short).isdisjoint(text):
            return True
    return False


def _of_checkout(words: Words) -> CommandVerdict:
    before, after = _split(words)
    if after:
        return _paths(after) if not _has(before, "", _FROM_FILE) else writes(ANY_FILE)
    operands = _operands(before)
    has_options = len(operands) < len(before)
    # Several operands without options are a revision and paths, or paths; anything else may be a branch.
    named = _paths(operands)
    return named if len(operands) > 1 and not has_options else merge([named, writes(ANY_FILE)])


def _of_restore(words: Words) -> CommandVerdict:
    before, after = _split(words)
    parsed = parse_options([words[0], *before], _RESTORE_OPTIONS)
    if parsed.doubts or parsed.has(_FROM_FILE):
        return writes(ANY_FILE)
    if parsed.has("-S", "--staged") and not parsed.has("-W", "--worktree"):
        return NO_EFFECT
    return _paths([*parsed.operands, *(after or ())])


def _of_rm(words: Words) -> CommandVerdict:
    before, after = _split(words)
    if any(word.text == "--cached" for word in before):
        return NO_EFFECT
    if _has(before, "", _FROM_FILE):
        return writes(ANY_FILE)
    return _paths([*_operands(before), *(after or ())])


def _of_mv(words: Words) -> CommandVerdict:
    before, after = _split(words)
    return _paths([*_operands(before), *(after or ())])


def _of_clean(words: Words) -> CommandVerdict:
    before, after = _split(words)
    parsed = parse_options([words[0], *before], "-fdxXqi -e: --force --interactive --quiet --exclude:")
    paths = [*parsed.operands, *(after or ())]
    return _paths(paths) if paths else writes(literal("."))


def _of_reset(words: Words) -> CommandVerdict:
    before, _ = _split(words)
    return writes(ANY_FILE) if _has(before, "", "--hard", "--keep", "--merge") else NO_EFFECT


def _of_stash(words: Words) -> CommandVerdict:
    before, after = _split(words)
    operands = _operands(before)
    action = operands[0].text if operands else "push"
    if action in {"list", "show", "drop", "clear", "create", "store"}:
        return NO_EFFECT
    if action == "push" and not _has(before, "", _FROM_FILE):
        parsed = parse_options([words[0], *(word for word in before if word.text != "push")], STASH_OPTIONS)
        paths = [*parsed.operands, *(after or ())]
        if paths and not parsed.doubts:
            return _paths(paths)
    return writes(ANY_FILE)


def _of_worktree(words: Words) -> CommandVerdict:
    operands = _operands(words[1:])
    removes = bool(operands) and operands[0].text in {"remove", "move"}
    return _paths(operands[1:]) if removes else NO_EFFECT


def _of_read_tree(words: Words) -> CommandVerdict:
    return writes(ANY_FILE) if _has(words[1:], "um", "--reset") else NO_EFFECT


def _of_merge_file(words: Words) -> CommandVerdict:
    return NO_EFFECT if _has(words[1:], "p", "--stdout") else _paths(_operands(words[1:]))


def _of_clone(words: Words) -> CommandVerdict:
    """Return the folder that a clone goes to: the last operand, or one in this folder named as the source."""
    operands = _operands(words[1:])
    return merge([writes(operands[-1]) if len(operands) > 1 else NO_EFFECT, writes(literal("."))])


_CHANGES: Mapping[str, Callable[[Words], CommandVerdict]] = {
    "checkout": _of_checkout,
    "clean": _of_clean,
    "clone": _of_clone,
    "merge-file": _of_merge_file,
    "mv": _of_mv,
    "read-tree": _of_read_tree,
    "reset": _of_reset,
    "restore": _of_restore,
    "rm": _of_rm,
    "stash": _of_stash,
    "worktree": _of_worktree,
}
