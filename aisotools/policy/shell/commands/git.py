"""git: what each of its commands reads, changes and destroys."""

from __future__ import annotations

from collections.abc import Callable

from aisotools.core.types import Effect
from aisotools.policy.shell.expansion import Word, names
from aisotools.policy.shell.options import (
    NOTHING,
    CommandVerdict,
    Parsed,
    Row,
    Words,
    contacts,
    does,
    host_of,
    merged,
    parse,
    said_by,
    unsure,
)

_LOCAL, _GONE, _REMOTE = Effect.LOCAL_MUTATION, Effect.DESTRUCTIVE, Effect.REMOTE_ACTION

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
_LOG_ONLY = (
    "-giEFPx -n: -L: -# --oneline --graph --all --decorate? --no-decorate --source --follow --author: "
    "--committer: --grep: --all-match --invert-grep --regexp-ignore-case --since: --after: --until: "
    "--before: --max-count: --skip: --merges --no-merges --first-parent --reverse --topo-order --date-order "
    "--author-date-order --date: --relative-date --format: --pretty? --abbrev-commit --no-abbrev-commit "
    "--branches? --tags? --remotes? --glob: --exclude: --not --left-right --left-only --right-only --cherry "
    "--cherry-pick --cherry-mark --boundary --simplify-by-decoration --full-history --ancestry-path? "
    "--walk-reflogs --notes? --no-notes --parents --children --no-walk? --count --objects --use-mailmap "
    "--full-diff --diff-merges: --extended-regexp --fixed-strings --perl-regexp --no-expand-tabs --encoding:"
)
_LOG = f"{_DIFF} {_LOG_ONLY}"
_LISTING = (
    "--list --contains? --no-contains? --merged? --no-merged? --points-at: --sort: --format: --color? "
    "--no-color --column? --no-column --ignore-case"
)
_READS = {
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
    "--ignore-submodules? --ignored? --column? --no-column --ahead-behind --no-ahead-behind --renames "
    "--no-renames",
    "version": "--build-options",
    "whatchanged": _LOG,
}
_READS["blame"] = _READS["annotate"]
_CHANGES = names(
    "add am apply cherry-pick commit commit-tree fast-import gc hash-object merge merge-file merge-index mv "
    "pack-objects pack-refs read-tree rebase repack replace rerere revert sparse-checkout stage switch "
    "unpack-objects update-index update-ref write-tree"
)
_CHANGES_ANYWHERE = names("archive bundle format-patch init init-db maintenance quiltimport")
_DESTROYS = names("clean filter-branch filter-repo prune prune-packed restore rm reset")
_ELSEWHERE = names("clone fetch fetch-pack ls-remote pull push remote-http request-pull send-email svn")
_HARMLESS_SETTINGS = ("color.", "core.quotepath=", "core.quotePath=", "log.showSignature=false")


def _git(words: Words) -> CommandVerdict:
    """Global options first, then the command."""
    doubts: list[CommandVerdict] = []
    rest = list(words[1:])
    while rest and rest[0].prefix.startswith("-"):
        option = rest.pop(0)
        if option.text in {
            "--no-pager",
            "-P",
            "--no-optional-locks",
            "--literal-pathspecs",
            "--no-replace-objects",
        }:
            continue
        if option.text in {"--version", "-v"}:
            return merged(doubts)
        value = rest.pop(0) if option.text in {"-c", "-C", "--git-dir", "--work-tree"} and rest else None
        folder = option.text == "-C" and value is not None and value.placed and not value.many
        if not folder and not (
            option.text == "-c" and value and (value.text or "").startswith(_HARMLESS_SETTINGS)
        ):
            doubts.append(unsure(f"git {option.shown} can make git run programs"))
    command = rest[0].text if rest else "help"
    if command is None:
        return merged([*doubts, unsure("it cannot be told which git command this is")])
    return merged([*doubts, _command(command, rest)])


def _command(command: str, words: list[Word]) -> CommandVerdict:
    if options := _READS.get(command):
        parsed = parse(words, options)
        signed = any("%G" in word.shown for word in words)
        return merged(
            [said_by(parsed), unsure("git calls a program to check signatures") if signed else NOTHING]
        )
    if judge := _JUDGES.get(command):
        return judge(words)
    if command in _DESTROYS:
        return does(_GONE, f"git {command} discards changes")
    if command in _ELSEWHERE:
        return _elsewhere(command, words)
    if command in _CHANGES:
        runs = [word for word in words if word.prefix.startswith(("--exec", "-x", "--ex", "--upload-pack"))]
        return merged(
            [
                does(_LOCAL, f"git {command} changes the repository"),
                *(unsure("it runs a program") for _ in runs),
            ]
        )
    if command in _CHANGES_ANYWHERE:
        return unsure(f"git {command} writes files, perhaps elsewhere")
    if command == "help" and len(words) < 2:
        return NOTHING
    return unsure(f"git {command} is not known, or an alias that runs anything")


def _elsewhere(command: str, words: list[Word]) -> CommandVerdict:
    named = [word for word in words[1:] if not word.prefix.startswith("-")]
    runs = [
        word
        for word in words[1:]
        if word.prefix.startswith(("--upl", "--exec", "--ex", "--rec", "-u", "-c", "--config"))
    ]
    forces = command == "push" and any(
        word.prefix.startswith(("--f", "--del", "--mir", "--pru", "+", ":"))
        or "f" in _letters(word)
        or "d" in _letters(word)
        for word in words[1:]
    )
    place = named[0].shown if named else ""
    effect = _GONE if forces else _REMOTE if command in {"push", "ls-remote"} else _LOCAL
    reason = (
        f"git {command} overwrites what is there" if forces else f"git {command} talks to another machine"
    )
    verdicts = [contacts(host_of(place) or place, reason), does(effect, reason)]
    if command != "push":  # -u of push is harmless, that of fetch is --update-head-ok
        verdicts += [unsure(f"git {command} {word.shown} runs a program") for word in runs]
    elif any(word.prefix.startswith(("--exec", "--ex", "--rec")) for word in runs) or "::" in place:
        verdicts.append(unsure("git push runs a program"))
    return merged(verdicts)


def _letters(word: Word) -> str:
    return word.prefix[1:] if word.prefix[:1] == "-" and word.prefix[:2] != "--" else ""


def _lists(parsed: Parsed, what: str) -> CommandVerdict:
    """Branches and tags: a name makes one, unless a list is asked for."""
    asked = parsed.has(
        "--list", "--contains", "--no-contains", "--merged", "--no-merged", "--points-at", "-l", "-n"
    )
    made = NOTHING if asked or not parsed.operands else does(_LOCAL, f"git {what} makes a {what}")
    return merged([said_by(parsed), made])


def _branch(words: Words) -> CommandVerdict:
    options = (
        "-arvqi --all --remotes --verbose --show-current --abbrev? --no-abbrev -d!d -D!d --delete!d -m!c "
        "--move!c -M!d -c!c -C!c --copy!c -f!d --force!d -u:c --set-upstream-to:c --unset-upstream!c "
        "--edit-description!x -t!c --track?c --no-track!c --create-reflog!c"
    )
    return _lists(parse(words, f"{options} {_LISTING}"), "branch")


def _tag(words: Words) -> CommandVerdict:
    options = (
        "-li -n? -d!d --delete!d -a!c --annotate!c -s!x --sign!x -u:x -f!d --force!d -m:c -F:c -e!x -v!x "
        "--verify!x"
    )
    return _lists(parse(words, f"{options} {_LISTING}"), "tag")


def _remote(words: Words) -> CommandVerdict:
    parsed = parse(words, "-v --verbose -n --all --push")
    asked = parsed.operands[0].text if parsed.operands else ""
    if asked in {"", "get-url"} or (asked == "show" and (len(parsed.operands) == 1 or parsed.has("-n"))):
        return said_by(parsed)
    if asked in {"show", "update", "prune"}:
        return contacts("", "git asks the remote")
    return does(_LOCAL, "git remote changes where the repository comes from")


def _config(words: Words) -> CommandVerdict:
    parsed = parse(
        words,
        "-lz -f:r --list --get --get-all --get-regexp --get-urlmatch --global --local --system --worktree "
        "--show-origin --show-scope --name-only --null --type: --bool --int --path --file:r --default: "
        "--includes --no-includes --all --regexp --show-names -e!x --edit!x --unset!s --unset-all!s "
        "--replace-all!s --add!s",
    )
    asks = parsed.has("-l", "--list", "--get", "--get-all", "--get-regexp", "--get-urlmatch")
    first = parsed.operands[0].text if parsed.operands else None
    reads = (
        asks or first in {"get", "list"} or (len(parsed.operands) == 1 and first is not None and "." in first)
    )
    return merged([said_by(parsed), NOTHING if reads else unsure("git settings can make git run programs")])


def _parts(
    reads: dict[str, str], destroys: tuple[str, ...], otherwise: str
) -> Callable[[Words], CommandVerdict]:
    """For commands with commands of their own; the options of those that read are told."""

    def judge(words: Words) -> CommandVerdict:
        part = words[1].text if len(words) > 1 else ""
        if part is not None and part.startswith("-"):
            part = ""
        if part is not None and part in reads:
            return said_by(parse(words[1:] if part else words, reads[part]))
        if part in destroys:
            return does(_GONE, f"git {words[0].shown} {part} discards what cannot be brought back")
        why = f"git {words[0].shown} {part or ''} changes the repository".replace("  ", " ")
        return unsure(why) if otherwise == "unsure" else does(_LOCAL, why)

    return judge


def _checkout(words: Words) -> CommandVerdict:
    discards = any(word.text in {"--", ".", "-f", "--force", "-p", "--ours", "--theirs"} for word in words)
    return does(_GONE if discards else _LOCAL, "git checkout replaces files")


def _reset(words: Words) -> CommandVerdict:
    discards = any(word.prefix.startswith(("--h", "--k", "--m")) and word.text != "--mixed" for word in words)
    return does(_GONE if discards else _LOCAL, "git reset moves the branch")


def _clean(words: Words) -> CommandVerdict:
    parsed = parse(words, "-ndxXq -e: --dry-run --exclude:")
    shows = parsed.has("-n", "--dry-run") and not parsed.doubts
    return NOTHING if shows else does(_GONE, "git clean removes files")


def _reference(words: Words) -> CommandVerdict:
    parsed = parse(words, "-q --short --quiet --no-recurse")
    return said_by(parsed) if len(parsed.operands) < 2 else does(_LOCAL, "git symbolic-ref moves HEAD")


_JUDGES: dict[str, Callable[[Words], CommandVerdict]] = {
    "branch": _branch,
    "tag": _tag,
    "remote": _remote,
    "config": _config,
    "checkout": _checkout,
    "reset": _reset,
    "clean": _clean,
    "symbolic-ref": _reference,
    "stash": _parts({"list": _LOG, "show": _DIFF}, ("drop", "clear"), "changes"),
    "reflog": _parts({"": _LOG, "show": _LOG, "exists": ""}, ("expire", "delete"), "unsure"),
    "worktree": _parts({"list": "-vz --porcelain --verbose"}, ("remove", "prune"), "unsure"),
    "submodule": _parts(
        {"": "-q --quiet", "status": "--recursive --cached", "summary": "--cached"}, ("deinit",), "unsure"
    ),
    "notes": _parts({"list": "", "show": ""}, ("remove", "prune"), "changes"),
    "bisect": _parts({"log": ""}, (), "unsure"),
}

ROWS = (
    Row(
        names="git",
        judge=_git,
        harmless=(
            "git status",
            "git log --oneline -n 5",
            "git diff HEAD~1 -- a.py",
            "git show HEAD:a.py",
            "git branch -a",
            "git -C sub log -3",
            "git remote -v",
            "git config --get user.name",
            "git stash list",
            "git tag -l 'v*'",
            "git --no-pager diff --stat",
            "git log -p -S 'x' --since=yesterday",
            "git branch --contains HEAD",
            "git config user.email",
            "git blame -L 1,5 a.py",
            "git clean -n",
            "git reflog",
            "git rev-parse HEAD",
            "git grep -n TODO",
            "git ls-files",
            "git symbolic-ref --short HEAD",
            "git worktree list",
        ),
        harmful=(
            "git push",
            "git push origin +main",
            "git push --force",
            "git branch -D x",
            "git branch x",
            "git tag v1",
            "git -c core.pager=./x log",
            "git -ccore.pager=x log",
            "git log --output=x",
            "git diff --outp=x",
            "git diff --ext-diff",
            "git grep -O./x y",
            "git grep --open=./x y",
            "git config user.name x",
            "git config alias.x '!rm y'",
            "git x",
            "git ls-remote --upload-pack=./x .",
            "git fetch --upload-pack ./x",
            "git clone --upload-pa=./x a",
            "git reset --hard",
            "git checkout -- x",
            "git clean -fd",
            "git stash",
            "git stash drop",
            "git --exec-path=. status",
            "git --git-dir=x log",
            "git submodule foreach rm x",
            "git rebase -x ./x HEAD~1",
            "git log --format=%G?",
            "git remote set-url origin x",
            "git remote show origin",
            "git branch --edit-description",
            "git difftool",
            "git help log",
            "git log $x",
            "git bisect run ./x",
            "git -p log",
            "git --paginate log",
            "git reflog expire --all",
            "git symbolic-ref HEAD x",
            "git cat-file --textconv HEAD:x",
            "git archive --exec=./x --remote=. HEAD",
            "git commit -m x",
            "git checkout -b x",
            "git branch -v x",
        ),
    ),
)
