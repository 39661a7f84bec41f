"""Which paths a git command shows, or spreads, of what a repository has recorded.

A rule about `secrets/*` is about what git has recorded under that name as well: `git show HEAD:secrets/key`
prints it although no file is opened.
"""

from __future__ import annotations

import re

from aisotools.policy.shell.expansion import name_set
from aisotools.policy.shell.options import Words

LOG_OPTIONS = (
    "--simplify-merges --show-pulls --no-color-moved-ws --color-moved-ws: --min-parents: --max-parents: "
    "--exclude-first-parent-only "
    "--no-notes --mailmap --no-mailmap --decorate-refs: --decorate-refs-exclude: --show-linear-break? "
    "--graph --no-graph --clear-decorations "
    "--alternate-refs --reflog --indexed-objects --ignore-missing --bisect --do-walk "
    "--in-commit-order --disk-usage? "
    "--show-notes? --log-size --no-min-parents --no-max-parents --dense --sparse --missing: --filter: "
    "--objects-edge --timestamp --header "
    "--left-right --remove-empty --since-as-filter: --grep-reflog: --basic-regexp --since: -giEFPx -n: "
    "-L: -# --oneline --all --decorate? --no-decorate --source --follow --author: "
    "--committer: --grep: --all-match --invert-grep --regexp-ignore-case --after: --until: "
    "--before: --max-count: --skip: --merges --no-merges --first-parent --reverse --topo-order --date-order "
    "--author-date-order --date: --relative-date --format: --pretty? --abbrev-commit --no-abbrev-commit "
    "--branches? --tags? --remotes? --glob: --exclude: --not --left-only --right-only --cherry "
    "--cherry-pick --cherry-mark --boundary --simplify-by-decoration --full-history --ancestry-path? "
    "--walk-reflogs --notes? --parents --children --no-walk? --count --objects --use-mailmap "
    "--full-diff --diff-merges: --extended-regexp --fixed-strings --perl-regexp --no-expand-tabs --encoding:"
)
"""Options of `git log` and its kind, beside those of `git diff`; written as for `shell.options`."""
_SHOWS_NO_CONTENT = name_set(
    "branch check-attr check-ignore check-mailmap cherry commit-tree config count-objects describe "
    "for-each-ref fsck gc get-tar-commit-id help init ls-files ls-remote ls-tree maintenance merge-base "
    "name-rev pack-refs prune prune-packed remote rev-list rev-parse show-branch show-ref stripspace "
    "symbolic-ref tag update-ref var verify-pack version write-tree"
)
"""Subcommands that print nothing of what is in a file, and put nothing of it into another one."""
_TAKES_FILES = name_set("commit-tree config init tag")
_READS_FILES = ("-F", "--fi", "--blob", "--templ")
"""Options with which these take the content of a file all the same, shortened as git allows it."""
_LOGS = name_set("log reflog shortlog status")
_COMMITS = name_set("add commit")
_COMMIT_OPTIONS = re.compile(
    r"-(?:[aqAus]+|[aqAus]*m.*)|--(?:message(?:=.*)?|all|amend|no-edit|quiet|allow-empty|signoff|update)",
    re.DOTALL,
)
TAKES_MESSAGES = name_set("commit merge notes stash tag")
"""Subcommands that take a message, which is not a path."""
MESSAGE = re.compile(r"-[aqAskuf]*m|--message")
"""An option that is followed by a message."""
_OPTIONS_WITHOUT_CONTENT = frozenset(
    option.rstrip(":?")
    for option in f"{LOG_OPTIONS} --stat --shortstat --numstat --name-only --name-status --summary --dirstat "
    "--compact-summary --no-patch --color --no-color --short --branch --porcelain --long --untracked-files "
    "--ignored --ignore-submodules --show-stash --column --no-column --ahead-behind --no-ahead-behind "
    "--no-ext-diff --no-textconv --no-renames --find-renames --diff-filter --abbrev --no-abbrev".split()
    if option.startswith("--")
    and not option.startswith(("--diff-merges", "--follow", "--stdin", "--full-diff"))
)
_SHORT_WITHOUT_CONTENT = re.compile(r"-(?:[0-9]+|n[0-9]*|[sbzigEFP]+)")
_SHORT_WITHIN_PATHS = re.compile(r"-[0-9nilhHwcvEFPoIaqspuztre]+|-[LUABC][0-9,+-]*")
_TYPES_OF_OBJECTS = frozenset(("blob", "tree", "commit", "tag"))
_ACTIONS_WITHOUT_CONTENT = frozenset(
    (
        *(("stash", action) for action in ("drop", "clear")),
        *(("worktree", action) for action in ("list", "remove", "prune")),
        *(("submodule", action) for action in ("status", "deinit")),
        *(("notes", action) for action in ("list", "remove", "prune")),
        *(("bundle", action) for action in ("verify", "list-heads")),
        *(("lfs", action) for action in ("ls-files", "status", "env", "version")),
        *(("bisect", action) for action in ("log", "terms")),
        ("sparse-checkout", "list"),
    )
)
ANYTHING_RECORDED = (".",)
"""The paths of a command that may show anything that is recorded."""
_MAX_RECORDED = 50
_STAGE = re.compile(r"[0-3]:")


def recorded_paths(subcommand: str, words: Words) -> tuple[str, ...]:
    """Return the paths of which a command shows, or spreads, what the repository has recorded.

    Those that it names are among them, and `.` unless it is limited to them.
    """
    texts = [word.text for word in words[1:]]
    known = [text for text in texts if text is not None]
    if len(known) < len(texts) or len(texts) > _MAX_RECORDED:
        return () if subcommand in _SHOWS_NO_CONTENT - _TAKES_FILES else ANYTHING_RECORDED
    end = known.index("--") if "--" in known else len(known)
    before, after = known[:end], known[end + 1 :]
    options = [text for text in before if text.startswith("-")]
    if shows_no_content(subcommand, known[0] if known else "", options):
        return ()
    named = [path for text in before for path in _paths_at_revision(text)]
    messages = _positions_of_messages(before) if subcommand in TAKES_MESSAGES else set()
    operands = [
        text
        for position, text in enumerate(before)
        if not text.startswith("-") and ":" not in text and position not in messages
    ]
    if subcommand == "stash" and known[:1] == ["push"] == operands[:1]:
        del operands[0]
    has_plain_options = all(
        _SHORT_WITHIN_PATHS.fullmatch(option) or option.partition("=")[0] in _OPTIONS_WITHOUT_CONTENT
        for option in options
    )
    is_limited = False
    if subcommand in {"blame", "annotate"}:
        is_limited = bool(operands) and has_plain_options
    elif after and subcommand in {"log", "show", "diff", "grep", "whatchanged"}:
        is_limited = has_plain_options
    elif named and subcommand in {"show", "cat-file"}:
        is_limited = has_plain_options and _TYPES_OF_OBJECTS.issuperset(operands)
    paths = (*named, *operands, *after)
    if any(path.startswith(":") for path in paths):  # a pattern of git's own
        is_limited = False
    return tuple(dict.fromkeys(paths if is_limited else (*paths, *ANYTHING_RECORDED)))


def _positions_of_messages(words: list[str]) -> set[int]:
    """Return where the values of `-m` and `--message` stand that are words of their own."""
    return {position for position, text in enumerate(words, 1) if MESSAGE.fullmatch(text)}


def shows_no_content(subcommand: str, action: str, options: list[str]) -> bool:
    """Return whether a command prints nothing of what is in a file, and puts nothing of it elsewhere."""
    if subcommand in _SHOWS_NO_CONTENT:
        return not any(option.startswith(_READS_FILES) for option in options)
    if subcommand in _LOGS:
        return all(
            _SHORT_WITHOUT_CONTENT.fullmatch(option) or option.partition("=")[0] in _OPTIONS_WITHOUT_CONTENT
            for option in options
        )
    if subcommand in _COMMITS:
        return all(map(_COMMIT_OPTIONS.fullmatch, options))
    if (subcommand, action) == ("stash", "list"):  # a log, with its options
        return shows_no_content("log", "", options)
    return (subcommand, action) in _ACTIONS_WITHOUT_CONTENT


def _paths_at_revision(text: str) -> tuple[str, ...]:
    """Return the path in `REVISION:PATH`, as it is from each folder on it: the repository may lie above."""
    if text.startswith("-") or ":" not in text:
        return ()
    revision, _, path = text.partition(":")
    if not revision:  # of the index, perhaps of a stage; `:/text` looks for a message
        path = path[2:] if _STAGE.match(path) else path
    if "{" in revision or path.startswith(("/", "(", "!", "^")) or not path:
        return ANYTHING_RECORDED
    parts = path.split("/")
    return tuple("/".join(parts[start:]) for start in range(min(len(parts), _MAX_RECORDED)) if parts[start])
