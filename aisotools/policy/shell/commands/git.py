"""git: what each of its subcommands reads, changes and discards."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping

from aisotools.core.types import AbsentNames, Effect, MadeName
from aisotools.policy.shell.expansion import Word, name_set
from aisotools.policy.shell.folders import START, join
from aisotools.policy.shell.git_changes import STASH_OPTIONS, changed_files, is_new_branch
from aisotools.policy.shell.git_programs import programs_run_by, programs_started_by
from aisotools.policy.shell.git_records import (
    ANYTHING_RECORDED,
    LOG_OPTIONS,
    MESSAGE,
    TAKES_MESSAGES,
    recorded_paths,
    shows_no_content,
)
from aisotools.policy.shell.options import (
    Classifier,
    CommandSpec,
    ParsedCommand,
    Words,
    join_option_tables,
    option_verdict,
    parse_options,
)
from aisotools.policy.shell.patches import patches_in, patches_of_git
from aisotools.policy.shell.verdicts import (
    NO_EFFECT,
    CommandVerdict,
    contacts,
    has_effect,
    host_of,
    merge,
    reads,
    uncertain,
)

_DIFF = (
    "-pusRabwWztrcmqh -U: -S: -G: -O:r -I: -l: -M? -C? -D? -B? --patch --no-patch --unified: --raw "
    "--minimal --patience --histogram --anchored: --diff-algorithm: --stat? --compact-summary --numstat "
    "--shortstat --dirstat? --cumulative --summary --patch-with-stat --name-only --name-status --submodule? "
    "--color? --no-color --color-moved? --no-color-moved --word-diff? --word-diff-regex: --color-words? "
    "--no-renames --check --full-index --binary --abbrev? --no-abbrev --find-renames? --find-copies? "
    "--find-copies-harder --diff-filter: --pickaxe-all --pickaxe-regex --text --ignore-cr-at-eol "
    "--ignore-space-at-eol --ignore-space-change --ignore-all-space --ignore-blank-lines "
    "--inter-hunk-context: --function-context --exit-code --quiet --no-ext-diff --no-textconv "
    "--ignore-submodules? --src-prefix: --dst-prefix: --no-prefix --line-prefix: --relative? --no-relative "
    "--cached --staged --merge-base --no-index --cc --root --stdin --no-commit-id --always --output:w "
    "--ext-diff!x --textconv!x"
)
_LOG = f"{_DIFF} {LOG_OPTIONS}"
_LISTING = (
    "--list --contains? --no-contains? --merged? --no-merged? --points-at: --sort: --format: --color? "
    "--no-color --column? --no-column --ignore-case"
)
_READ_OPTIONS = {
    "add": "-nvAuf --dry-run --verbose --all --update --force --ignore-errors --ignore-missing --no-all",
    "annotate": "-cbltswepfn -M? -C? -L: -S:r --root --show-stats --porcelain --line-porcelain --incremental "
    "--show-name --show-number --show-email --date: --since: --reverse --first-parent --ignore-rev: "
    "--abbrev:",
    "cat-file": "-tsep --batch? --batch-check? --batch-all-objects --buffer --unordered",
    "check-attr": "-az --all --cached --stdin",
    "check-ignore": "-qvnz --no-index --stdin --verbose --quiet --non-matching",
    "cherry": "-v --abbrev?",
    "count-objects": "-vH --verbose --human-readable",
    "describe": "--all --tags --contains --abbrev? --candidates: --exact-match --long --match: --exclude: "
    "--always --first-parent --dirty? --broken?",
    "diff": _DIFF,
    "diff-files": _DIFF,
    "diff-index": _DIFF,
    "diff-tree": _DIFF,
    "for-each-ref": f"-s --count: --shell {_LISTING}",
    "check-ref-format": "--normalize --allow-onelevel --no-allow-onelevel --refspec-pattern --branch",
    "column": "--mode? --raw-mode: --width: --indent: --nl: --padding: --command:",
    "show-index": "--object-format:",
    "hash-object": "-t: --stdin --path: --no-filters --literally -w!c",
    "grep": "-aiIwvhHEGPFnlLczorpWq -e: -f:r -A: -B: -C: -m: -# --cached --no-index --untracked "
    "--exclude-standard --no-exclude-standard --recurse-submodules --text --ignore-case --word-regexp "
    "--invert-match --full-name --extended-regexp --basic-regexp --perl-regexp --fixed-strings "
    "--line-number --column --files-with-matches --name-only --files-without-match --null --only-matching "
    "--count --color? --no-color --break --heading --show-function --context: --after-context: "
    "--before-context: --function-context --max-count: --max-depth: --and --or --not --all-match --quiet "
    "-O?x --open-files-in-pager?x",
    "log": _LOG,
    "ls-files": "-cdmoisuktvfz -x: -X:r --cached --deleted --modified --others --ignored --stage --unmerged "
    "--killed --directory --exclude: --exclude-from:r --exclude-standard --error-unmatch --full-name "
    "--abbrev? --eol --deduplicate --recurse-submodules --format:",
    "ls-tree": "-drtlz --name-only --name-status --object-only --full-name --full-tree --abbrev? --long "
    "--format:",
    "apply": "-p: -C: -R --stat --numstat --summary --check --verbose -v --reverse --recount "
    "--unidiff-zero --directory: --include: --exclude:",
    "diff-pairs": _DIFF,
    "merge-base": "-a --all --octopus --independent --is-ancestor --fork-point",
    "name-rev": "--tags --all --name-only --always --refs:",
    "range-diff": _LOG,
    "rev-list": _LOG,
    "rev-parse": "*",
    "shortlog": "-snec -# --summary --numbered --email --group: --format: --no-merges --since: --until: "
    "--all --author:",
    "show": _LOG,
    "show-branch": "-ar --all --remotes --current --list --sha1-name --no-name --topics",
    "show-ref": "-qd -s? --head --heads --tags --branches --verify --dereference --hash? --abbrev? --quiet",
    "status": "-sbvz -u? --short --branch --show-stash --porcelain? --long --verbose --untracked-files? "
    "--ignore-submodules? --ignored? --find-renames? --column? --no-column --ahead-behind "
    "--no-ahead-behind --renames --no-renames",
    "var": "-l",
    "version": "--build-options",
    "fsck": "-v --no-dangling --connectivity-only --no-progress --unreachable --full --strict --no-full "
    "--root --tags --cache --no-reflogs --lost-found!c",
    "verify-pack": "-vs --verbose --stat-only",
    "check-mailmap": "--stdin",
    "get-tar-commit-id": "",
    "patch-id": "--stable --unstable --verbatim",
    "stripspace": "-sc",
    "whatchanged": _LOG,
    "format-patch": "-N -k --stdout --numbered --no-numbered --signoff --zero-commit --no-signature "
    f"--thread? {_LOG}",
}
_READ_OPTIONS["blame"] = _READ_OPTIONS["annotate"]
_CHANGES = name_set(
    "add am apply cherry-pick commit commit-tree fast-import gc hash-object merge merge-file merge-index mv "
    "pack-objects pack-refs read-tree rebase repack replace rerere revert stage switch "
    "unpack-objects update-index update-ref write-tree"
)
_LISTS = frozenset(
    (subcommand, option)
    for subcommand, options in (("archive", "-l --list"), ("help", "-a --all -g --guides -c --config"))
    for option in options.split()
)
"""What prints a list of what git itself knows."""
_SHOWS_PATCHES = name_set("apply am")
"""Subcommands whose operands are patches."""
_ENDS_PATCHES = frozenset(("--abort", "--quit"))
_WRITES_ANYWHERE = name_set("archive format-patch init init-db maintenance quiltimport")
_DISCARDS = name_set("clean filter-branch filter-repo prune prune-packed restore rm reset")
_REMOTE = name_set("clone fetch fetch-pack ls-remote pull push remote-http request-pull send-email svn")
_BRANCH = (
    "-arvqi --all --remotes --verbose --show-current --abbrev? --no-abbrev -d!d -D!d --delete!d -m!c "
    "--move!c -M!d -c!c -C!c --copy!c -f!d --force!d -u:c --set-upstream-to:c --unset-upstream!c "
    "--edit-description!x -t!c --track?c --no-track!c --create-reflog!c"
)
_TAG = "-li -n? -d!d --delete!d -a!c --annotate!c -s!x --sign!x -u:x -f!d --force!d -m:c -F:c -e!x -v!x"
_TAG += " --verify!x"
_CONFIG = (
    "-lz -f:r --list --get --get-all --get-regexp --get-urlmatch --global --local --system --worktree "
    "--show-origin --show-scope --name-only --null --type: --bool --int --path --file:r --default: "
    "--includes --no-includes --all --regexp --show-names -e!x --edit!x --unset!s --unset-all!s "
    "--replace-all!s --add!s"
)
_GLOBAL_OPTIONS_WITH_VALUE = frozenset(
    ("-c", "-C", "--git-dir", "--work-tree", "--namespace", "--super-prefix", "--config-env", "--attr-source")
)
_FILE_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "add": ("--pathspec-from-file",),
    "checkout": ("--pathspec-from-file",),
    "commit": ("-F", "--file", "-t", "--template", "--pathspec-from-file"),
    "commit-tree": ("-F",),
    "merge": ("-F", "--file"),
    "notes": ("-F", "--file"),
    "reset": ("--pathspec-from-file",),
    "restore": ("--pathspec-from-file",),
    "rm": ("--pathspec-from-file",),
    "stage": ("--pathspec-from-file",),
    "stash": ("--pathspec-from-file",),
    "tag": ("-F", "--file"),
}
"""Options of which the value is a file that is read."""
_SHORTEST_LONG = 3
_STORES_FILES = name_set("add commit hash-object merge-file stage stash update-index")
"""Subcommands that put what is in the folder into the repository, or print it."""
_TAKES_ALL = frozenset(("--all", "--update", "--patch", "--interactive", "--include", "--keep-index"))
_SHORT_ALL = re.compile(r"-[^-AaumFtCc]*[Aau]")
_GIT_PATTERN = frozenset("*?[:")
_HARMLESS_GLOBAL_OPTIONS = frozenset(
    ("--no-pager", "-P", "--no-optional-locks", "--literal-pathspecs", "--no-replace-objects"),
)
_KEEPS_FILES = name_set(
    "add branch commit commit-graph commit-tree config count-objects fetch gc hash-object init maintenance "
    "mktag mktree notes pack-objects pack-refs prune prune-packed push reflog remote repack "
    "symbolic-ref tag update-index update-ref verify-pack write-tree"
)
"""Subcommands that change what the repository has recorded, and nothing in the folder."""
_PLAIN_NAME = re.compile(r"[a-z][a-z-]*")
_HARMLESS_SETTINGS = ("color.", "core.quotepath=", "core.quotePath=", "log.showSignature=false")


def _classify_git(words: Words) -> CommandVerdict:
    """Return the verdict on a git command: on the options before the subcommand, and on the subcommand."""
    verdicts: list[CommandVerdict] = []
    rest = list(words[1:])
    folder = START
    while rest and rest[0].prefix.startswith("-"):
        option = rest.pop(0)
        if option.text in _HARMLESS_GLOBAL_OPTIONS:
            continue
        if option.text in {"--version", "-v"}:
            return merge(verdicts)
        value = rest.pop(0) if option.text in _GLOBAL_OPTIONS_WITH_VALUE and rest else None
        if option.text == "-C" and value is not None:
            folder = join(folder, value.path)
        if not _is_harmless_global_option(option, value):
            verdicts.append(uncertain(f"git {option.display} can make git run programs"))
            if value is None:  # it may take the next word for its value
                verdicts.append(CommandVerdict(spellings=_spellings_of(rest[1:])))
    if len(rest) < len(words) - 1:
        verdicts.append(CommandVerdict(spellings=_spellings_of(rest)))
    if len(rest) == 2 and rest[1].text in {"--help", "-h"} and _PLAIN_NAME.fullmatch(rest[0].text or ""):
        return merge([*verdicts, _unless_named(_programs_of(rest[0].text or "", rest), folder)])
    subcommand = rest[0].text if rest else "help"
    if subcommand is None:
        return merge([*verdicts, uncertain("it cannot be determined which git command this is")])
    recorded = recorded_paths(subcommand, rest)
    if recorded and len(rest) < len(words) - 1:  # an option such as -C, or a setting
        recorded = (*recorded, *ANYTHING_RECORDED)
    verdict = _classify_subcommand(subcommand, rest)
    changed = NO_EFFECT if verdict.only_reads else changed_files(subcommand, rest)
    verdict = merge([verdict, _file_verdict(subcommand, rest), changed])
    if folder != START:
        verdict = dataclasses.replace(
            verdict,
            reads=tuple(join(folder, path) for path in verdict.reads),
            unresolved=tuple(join(folder, path) for path in verdict.unresolved),
            writes=tuple(join(folder, path) for path in verdict.writes),
            patches=tuple(patches_in(verdict.patches, folder)),
        )
    # What git puts into the folder may be, or have in it, links that were recorded.
    keeps_files = verdict.only_reads or is_new_branch(subcommand, rest) or subcommand in _KEEPS_FILES
    made = () if keeps_files else (MadeName(START),)
    # What only reads does so only where no setting names a program that it would run.
    if verdict.only_reads:
        runs = _unless_named(_programs_of(subcommand, rest), folder)
    else:
        runs = CommandVerdict(git_programs=programs_started_by(subcommand, rest, folder))
    return merge([*verdicts, verdict, CommandVerdict(recorded=recorded, made=made), runs])


def _unless_named(groups: tuple[str, ...], folder: str) -> CommandVerdict:
    return CommandVerdict(absent=(AbsentNames(folder, programs=groups),)) if groups else NO_EFFECT


def _programs_of(subcommand: str, words: Words) -> tuple[str, ...]:
    texts = [word.text for word in words[1:]]
    options = [text for text in texts if text and text.startswith("-")]
    no_content = None not in texts and shows_no_content(subcommand, "", options)
    return programs_run_by(subcommand, words, shows_no_content=no_content)


def _spellings_of(rest: Words) -> tuple[str, ...]:
    return (" ".join(["git", *(word.display for word in rest)]),) if rest else ()


def _file_verdict(subcommand: str, words: Words) -> CommandVerdict:
    """Return the verdict on the files outside of the repository's own that a subcommand reads.

    These are the values of its options that name a file, and what it puts into the repository: from there
    the content can be read by any other name.
    """
    verdicts: list[CommandVerdict] = []
    options = _FILE_OPTIONS.get(subcommand, ())
    rest = list(words[1:])
    operands: list[Word] = []
    takes_all = False
    while rest:
        word = rest.pop(0)
        if word.text == "--":
            operands += rest
            break
        if word.text is not None and not word.text.startswith("-"):
            operands.append(word)
            continue
        name, equals, value = word.display.partition("=")
        is_long = name.startswith("--")
        takes_all |= (name in _TAKES_ALL) if is_long else _SHORT_ALL.match(name) is not None
        for option in options:
            if is_long and len(name) > _SHORTEST_LONG and option.startswith(name):
                if equals:
                    verdicts.append(reads(_value_word(word, value)))
                elif rest:
                    verdicts.append(reads(rest.pop(0)))
                break
            if not is_long and len(option) == 2 and option[1] in name[1:]:
                value = word.display[word.display.index(option[1], 1) + 1 :]
                if value:
                    verdicts.append(reads(_value_word(word, value)))
                elif rest:
                    verdicts.append(reads(rest.pop(0)))
                break
        else:
            if MESSAGE.fullmatch(name) and not equals and rest and subcommand in TAKES_MESSAGES:
                rest.pop(0)
            elif word.text is None and not word.prefix.startswith("-"):
                operands.append(word)
    if subcommand == "bundle":  # behind what is to be done with it
        verdicts += map(reads, operands[1:2])
    if subcommand in _STORES_FILES and (subcommand != "stash" or _saves(operands)):
        is_any = takes_all or (subcommand == "stash" and len(operands) < 2)
        for operand in operands:
            verdicts.append(reads(operand))
            # A pattern or a place of git's own, or what is only known at run time.
            is_any |= operand.text is None or not _GIT_PATTERN.isdisjoint(operand.text)
        if is_any:
            verdicts.append(CommandVerdict(reads=ANYTHING_RECORDED))
    return merge(verdicts)


def _saves(operands: Words) -> bool:
    """Return whether a `git stash` stores what was changed, and does nothing else."""
    return not operands or operands[0].text in {"push", "save", "create"}


def _value_word(word: Word, value: str) -> Word:
    """Return the value that stands at the end of a word, with what is known of the word."""
    text = None if word.text is None else value
    return Word(value, text, text or "", word.may_split, word.is_located)


def _is_harmless_global_option(option: Word, value: Word | None) -> bool:
    if value is None:
        return False
    if option.text == "-C":
        return value.is_located and not value.may_split
    return option.text == "-c" and (value.text or "").startswith(_HARMLESS_SETTINGS)


def _classify_subcommand(subcommand: str, words: Words) -> CommandVerdict:
    if (options := _READ_OPTIONS.get(subcommand)) and not _changes_otherwise(subcommand, words):
        parsed = parse_options(words, options)
        verdicts = [option_verdict(parsed)]
        if subcommand in _SHOWS_PATCHES or subcommand == "verify-pack":
            verdicts += map(reads, parsed.operands)
        if any("%G" in word.display for word in words):
            verdicts.append(uncertain("git calls a program to check signatures"))
        return merge(verdicts)
    if classify := _CLASSIFIERS.get(subcommand):
        return classify(words)
    if subcommand in _SHOWS_PATCHES and not any(word.text in _ENDS_PATCHES for word in words[1:]):
        # What it changes stands in the patch.
        patches = [word for word in words[1:] if not word.prefix.startswith("-")]
        doubt = uncertain(f"git {subcommand} changes the files that the patch names")
        return merge([doubt, *map(reads, patches), patches_of_git(words)])
    if subcommand in _DISCARDS:
        return has_effect(Effect.DESTRUCTIVE, f"git {subcommand} discards changes")
    if subcommand in _REMOTE:
        return _classify_remote_access(subcommand, words)
    if subcommand in _CHANGES:
        verdicts = [has_effect(Effect.LOCAL_MUTATION, f"git {subcommand} changes the repository")]
        if any(word.prefix.startswith(("--exec", "-x", "--ex", "--upload-pack")) for word in words):
            verdicts.append(uncertain("it runs a program"))
        return merge(verdicts)
    if tuple(word.text for word in words) in _LISTS:
        return NO_EFFECT
    if subcommand in _WRITES_ANYWHERE:
        return uncertain(f"git {subcommand} writes files, perhaps elsewhere")
    if subcommand == "help" and all(_PLAIN_NAME.fullmatch(word.text or "") for word in words[1:]):
        return NO_EFFECT
    return uncertain(f"git {subcommand} is unknown, or an alias that runs anything")


def _changes_otherwise(subcommand: str, words: Words) -> bool:
    """Return whether a subcommand that is listed as reading does so only with other arguments."""
    if subcommand == "add":
        return not any(word.text in {"-n", "--dry-run"} for word in words[1:])
    if subcommand == "format-patch":  # without it, it writes a file for each commit
        return not any(word.text == "--stdout" for word in words[1:])
    if subcommand == "hash-object":  # with -w it puts into the repository what it reads
        return any(word.prefix.startswith("-") and "w" in word.prefix.partition("=")[0] for word in words[1:])
    if subcommand == "apply":  # looks at the patch only with one of these, unless --apply follows
        arguments = {word.text for word in words[1:]}
        return arguments.isdisjoint({"--stat", "--numstat", "--summary", "--check"}) or "--apply" in arguments
    return False


def _classify_remote_access(subcommand: str, words: Words) -> CommandVerdict:
    operands = [word for word in words[1:] if not word.prefix.startswith("-")]
    remote = operands[0].display if operands else ""
    effect = Effect.LOCAL_MUTATION
    reason = f"git {subcommand} talks to another machine"
    if subcommand == "push" and any(map(_forces, words[1:])):
        effect = Effect.DESTRUCTIVE
        reason = "git push overwrites what is there"
    elif subcommand in {"push", "ls-remote"}:
        effect = Effect.REMOTE_ACTION
    verdicts = [contacts(host_of(remote) or remote, reason), has_effect(effect, reason)]
    if subcommand == "push":  # its -u sets the upstream branch; that of fetch is --update-head-ok
        if "::" in remote or any(w.prefix.startswith(("--exec", "--ex", "--rec")) for w in words[1:]):
            verdicts.append(uncertain("git push runs a program"))
        return merge(verdicts)
    verdicts += [
        uncertain(f"git {subcommand} {word.display} runs a program")
        for word in words[1:]
        if word.prefix.startswith(("--upl", "--exec", "--ex", "--rec", "-u", "-c", "--config"))
    ]
    return merge(verdicts)


def _forces(word: Word) -> bool:
    """Return whether an argument of `git push` may overwrite or delete what the remote has."""
    if word.prefix.startswith(("--f", "--del", "--mir", "--pru", "+", ":")):
        return True
    is_short = word.prefix.startswith("-") and not word.prefix.startswith("--")
    return is_short and not {"f", "d"}.isdisjoint(word.prefix)


def _list_or_create(parsed: ParsedCommand, noun: str) -> CommandVerdict:
    """Return the verdict on `git branch` and `git tag`, which list, or create what their operands name."""
    lists = parsed.has(
        "--list", "--contains", "--no-contains", "--merged", "--no-merged", "--points-at", "-l", "-n"
    )
    creates = parsed.operands and not lists
    created = has_effect(Effect.LOCAL_MUTATION, f"git {noun} creates a {noun}") if creates else NO_EFFECT
    return merge([option_verdict(parsed), created])


def _classify_branch(words: Words) -> CommandVerdict:
    return _list_or_create(parse_options(words, f"{_BRANCH} {_LISTING}"), "branch")


def _classify_tag(words: Words) -> CommandVerdict:
    return _list_or_create(parse_options(words, f"{_TAG} {_LISTING}"), "tag")


def _classify_remote(words: Words) -> CommandVerdict:
    parsed = parse_options(words, "-v --verbose -n --all --push")
    action = parsed.operands[0].text if parsed.operands else ""
    shows_settings = action == "show" and (len(parsed.operands) == 1 or parsed.has("-n"))
    if action in {"", "get-url"} or shows_settings:
        return option_verdict(parsed)
    if action in {"show", "update", "prune"}:
        return contacts("", "git asks the remote")
    before = option_verdict(parse_options(words, "-v --verbose", posix=True))
    changes = has_effect(Effect.LOCAL_MUTATION, "git remote changes where git pushes to and fetches from")
    if action in {"remove", "rm"}:
        # What was fetched may be reachable from its branches alone.
        changes = has_effect(Effect.DESTRUCTIVE, "git remote removes the remote's branches and settings")
    return merge([before, changes])


def _classify_config(words: Words) -> CommandVerdict:
    parsed = parse_options(words, _CONFIG)
    first = parsed.operands[0].text if parsed.operands else None
    if (
        parsed.has("-l", "--list", "--get", "--get-all", "--get-regexp", "--get-urlmatch")
        or first in {"get", "list"}
        or (len(parsed.operands) == 1 and first is not None and "." in first)
    ):
        return option_verdict(parsed)
    return merge([option_verdict(parsed), uncertain("git settings can make git run programs")])


def _actions(
    reads: Mapping[str, str],
    discards: tuple[str, ...],
    other: Callable[[str], CommandVerdict],
    options: str = "",
) -> Classifier:
    """Return a classifier for subcommands with actions of their own, such as `git stash list`.

    Args:
        reads: The actions that only read, each with its options; '' stands for none.
        discards: The actions that discard what cannot be restored.
        other: The verdict on any other action, from a reason.
        options: The options that may stand before the action, or without one.
    """

    def classify(words: Words) -> CommandVerdict:
        # Options may stand before the action. One that is not known may take the next word for its value.
        parsed = parse_options(words, options, posix=True)
        operands = parsed.operands
        action = operands[0].text if operands else ""
        before = option_verdict(parsed)
        if action is not None and action in reads:
            known = join_option_tables(options, reads[action])
            return merge([before, option_verdict(parse_options(operands or words, known))])
        command = f"git {words[0].display} {action or ''}".rstrip()
        if action in discards:
            return merge(
                [before, has_effect(Effect.DESTRUCTIVE, f"{command} discards what cannot be restored")]
            )
        return merge([before, other(f"{command} changes the repository")])

    return classify


def _changes_repository(reason: str) -> CommandVerdict:
    return has_effect(Effect.LOCAL_MUTATION, reason)


def _classify_checkout(words: Words) -> CommandVerdict:
    discards = any(
        word.text in _CHECKOUT_DISCARDS or _FILE_NAME.search(word.text or "") for word in words[1:]
    )
    operands = [word for word in words[1:] if not word.prefix.startswith("-")]
    if len(operands) > 1 and not any(word.text in _CHECKOUT_CREATES for word in words[1:]):
        discards = True  # what follows a revision is paths
    return has_effect(
        Effect.DESTRUCTIVE if discards else Effect.LOCAL_MUTATION, "git checkout replaces files"
    )


def _discarding(name: str, options: tuple[str, ...], short: str) -> Classifier:
    """Return a classifier of a subcommand that changes the repository, and discards work with some options.

    Args:
        name: The subcommand.
        options: Long options that discard; git takes any unique beginning of them.
        short: Letters of short options that discard, alone or among others.
    """

    def classify(words: Words) -> CommandVerdict:
        texts = [word.text for word in words[1:]]
        discards = any(
            text is None
            or (len(text) > 2 and any(option.startswith(text.partition("=")[0]) for option in options))
            or (text.startswith("-") and not text.startswith("--") and not set(short).isdisjoint(text))
            for text in texts
        )
        effect = Effect.DESTRUCTIVE if discards else Effect.LOCAL_MUTATION
        return has_effect(
            effect, f"git {name} {'discards what is there' if discards else 'moves the branch'}"
        )

    return classify


def _classify_reset(words: Words) -> CommandVerdict:
    discards = any(word.prefix.startswith(("--h", "--k", "--m")) and word.text != "--mixed" for word in words)
    return has_effect(Effect.DESTRUCTIVE if discards else Effect.LOCAL_MUTATION, "git reset moves the branch")


def _classify_clean(words: Words) -> CommandVerdict:
    parsed = parse_options(words, "-ndxXq -e: --dry-run --exclude:")
    if parsed.has("-n", "--dry-run") and not parsed.doubts:
        return NO_EFFECT
    return has_effect(Effect.DESTRUCTIVE, "git clean removes files")


def _classify_symbolic_ref(words: Words) -> CommandVerdict:
    parsed = parse_options(words, "-q --short --quiet --no-recurse")
    if len(parsed.operands) < 2:
        return option_verdict(parsed)
    return has_effect(Effect.LOCAL_MUTATION, "git symbolic-ref moves HEAD")


_CHECKOUT_DISCARDS = frozenset(("--", ".", "-f", "--force", "-p", "--patch", "--ours", "--theirs"))
_CHECKOUT_CREATES = frozenset(("-b", "-B", "--orphan", "-t", "--track", "--detach"))
_FILE_NAME = re.compile(r"(?:^|/)[^/]*\.[A-Za-z]\w*$")  # a branch seldom ends like a file

_CLASSIFIERS: Mapping[str, Classifier] = {
    "switch": _discarding("switch", ("--discard-changes", "--force"), "f"),
    "read-tree": _discarding("read-tree", ("--reset", "-u"), "u"),
    "update-ref": _discarding("update-ref", ("--stdin", "--delete"), "d"),
    "branch": _classify_branch,
    "tag": _classify_tag,
    "remote": _classify_remote,
    "config": _classify_config,
    "checkout": _classify_checkout,
    "reset": _classify_reset,
    "clean": _classify_clean,
    "symbolic-ref": _classify_symbolic_ref,
    "stash": _actions({"list": _LOG, "show": _DIFF}, ("drop", "clear"), _changes_repository, STASH_OPTIONS),
    "reflog": _actions({"": "", "show": _LOG, "exists": ""}, ("expire", "delete"), uncertain, _LOG),
    "worktree": _actions({"list": "-vz --porcelain --verbose"}, ("remove", "prune"), uncertain),
    "submodule": _actions(
        {"": "", "status": "--recursive", "summary": ""}, ("deinit",), uncertain, "-q --quiet --cached"
    ),
    "notes": _actions({"list": "", "show": ""}, ("remove", "prune"), _changes_repository, "--ref:"),
    "bundle": _actions({"verify": "-q --quiet", "list-heads": ""}, (), uncertain),
    "sparse-checkout": _actions({"list": ""}, (), uncertain),
    "lfs": _actions(
        {
            "ls-files": "-lsadIX --long --size --all --name-only",
            "status": "--porcelain --json -p",
            "env": "",
            "version": "",
        },
        (),
        uncertain,
    ),
    "bisect": _actions({"log": "", "terms": ""}, (), uncertain),
}

COMMANDS = (CommandSpec(names="git", classify=_classify_git),)
