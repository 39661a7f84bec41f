"""Decide whether settings and lists that git reads can make it run a program, and other protected files.

Threat: code in the sandbox writes `.git/config`, and the next `git status` of a person runs what it names.
Git has hundreds of settings that name a program, an address or another file of settings, and new ones come
with each version. Recognizing the bad ones has failed before, so this module knows the harmless ones.

Mechanism: a file counts as harmless only if it has at most 64 KiB and 2,000 lines, every line has one of four
plain forms (a blank or comment, a section alone on its line, `key = value`, or a key alone), and every key is
in the list below with a value that fits. Everything else counts: a key that is not listed, a backslash (git
reads escapes and continued lines), a byte order mark, a control character, text behind a section.
A person's own settings may hold any of these. So a changed file is harmless, too, if it has exactly the same
sensitive settings, in the same order, as the file that was there before.

Cost: one pass over at most 64 KiB, with a match of each line by an expression without nested repeats.
Race: the caller judges the bytes that it has read, and restores the file under a new inode if in doubt; a
process that goes on writing is found by the next comparison.
Failure: what is wrongly called sensitive is restored, and the call fails and says so. Nothing is executed.
"""

from __future__ import annotations

import re

from aisotools.workspace.protected_names import Zone, fold_name

MAX_CONFIG_BYTES = 64 << 10
"""Size of the largest file that is parsed; a larger one counts as sensitive."""

MAX_CONFIG_LINES = 2_000
"""Lines of the longest file that is parsed: about 3 ms."""

_SECTION = re.compile(rb'[ \t]*\[([A-Za-z0-9-]+)(?: "([^"\\\]]*)")?\][ \t]*')
_KEY = re.compile(rb"[ \t]*([A-Za-z][A-Za-z0-9-]*)[ \t]*(?:=(.*))?")
_CONTROL = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f\\]")

_WORD = re.compile(rb"[A-Za-z0-9 .+-]*").fullmatch
_REFS = re.compile(rb"[A-Za-z0-9/.*+:^_-]*").fullmatch
_NETWORK_ADDRESS = re.compile(rb"(?:(?:https?|ssh|git)://[A-Za-z0-9]|file:///)[^\s\"]*").fullmatch
_SSH_ADDRESS = re.compile(rb"(?:[A-Za-z0-9][\w.-]*@)?[A-Za-z0-9][\w.-]*:[^:\s\"-][^\s\"]*").fullmatch
_FOLDER = re.compile(rb"[A-Za-z0-9./_~][^:\"]*").fullmatch

_SWITCHES = {
    b"core": b"""
        abbrev autocrlf bare checkstat compression eol filemode ignorecase logallrefupdates
        precomposeunicode preloadindex quotepath repositoryformatversion safecrlf sharedrepository
        sparsecheckout sparsecheckoutcone splitindex symlinks trustctime untrackedcache
    """,
    b"extensions": b"objectformat refstorage worktreeconfig",
    b"color": b"branch diff interactive status ui",
    b"diff": b"algorithm colormoved mnemonicprefix noprefix renames renamelimit",
    b"merge": b"conflictstyle ff renames stat",
    b"pull": b"ff rebase",
    b"push": b"autosetupremote default followtags",
    b"fetch": b"prune prunetags writecommitgraph",
    b"rebase": b"autosquash autostash updaterefs",
    b"rerere": b"autoupdate enabled",
    b"gc": b"auto autodetach",
    b"maintenance": b"auto",
    b"index": b"threads version",
    b"feature": b"manyfiles",
    b"log": b"abbrevcommit date decorate",
    b"status": b"branch short showuntrackedfiles",
    b"lfs": b"repositoryformatversion",
}
_HARMLESS = {(section, key) for section, keys in _SWITCHES.items() for key in keys.split()}
_TEXTS = {(b"user", b"name"), (b"user", b"email"), (b"init", b"defaultbranch")}
_OF_REMOTE = {b"prune", b"prunetags", b"skipdefaultupdate", b"skipfetchall", b"tagopt"}

_TODO_COMMANDS = frozenset(
    b"p pick r reword e edit s squash f fixup d drop b break".split()
    + b"l label t reset m merge u update-ref noop".split()
)


_STRATEGIES = frozenset(b"octopus ort ours recursive resolve subtree".split())
_STRATEGY_OPTIONS = re.compile(rb"[A-Za-z0-9=%,'\s-]*").fullmatch
_SEQUENCER_OPTIONS = frozenset(
    b"allow-empty allow-empty-message allow-ff allow-rerere-auto default-msg-cleanup edit".split()
    + b"keep-redundant-commits mainline no-commit record-origin signoff".split()
)


class _Malformed(ValueError):
    """The file has a line that is in none of the known forms."""


def is_harmless_config(data: bytes | None, known: bytes | None = None) -> bool:
    """Return whether git runs nothing, and reads no further settings, because of this file.

    Args:
        data: Content of the file; None for one that could not be read whole.
        known: Content that was accepted before: its sensitive settings may stay as they are.
    """
    if data is None:
        return False
    try:
        found = _sensitive_settings(data)
        if not found:
            return True
        return known is not None and found == _sensitive_settings(known)
    except _Malformed:
        return False


def is_harmless_todo(data: bytes | None) -> bool:
    """Return whether a rebase that goes on with this list of things to do runs no program."""
    if data is None or len(data) > MAX_CONFIG_BYTES or b"\\" in data:
        return False
    for line in data.split(b"\n"):
        words = line.split(maxsplit=1)
        if words and not words[0].startswith(b"#") and words[0] not in _TODO_COMMANDS:
            return False
    return True


def is_harmless_strategy(data: bytes | None) -> bool:
    """Return whether this names a strategy of git's own; for any other name it runs a program."""
    return data is not None and data.strip() in _STRATEGIES


def is_harmless_strategy_options(data: bytes | None) -> bool:
    """Return whether these options of a strategy are plain words, such as `'--find-renames=50%'`."""
    return data is not None and len(data) <= MAX_CONFIG_BYTES and _STRATEGY_OPTIONS(data) is not None


def is_harmless_sequencer_options(data: bytes | None) -> bool:
    """Return whether a series of picked commits that goes on with these options runs no program."""
    if data is None:
        return False
    try:
        found = _sensitive_settings(data)
    except _Malformed:
        return False
    return all(section == b"options" and _is_plain_option(key, value) for section, _, key, value in found)


def _is_plain_option(key: bytes, value: bytes) -> bool:
    if key == b"strategy":
        return value in _STRATEGIES
    if key == b"strategy-option":
        return _STRATEGY_OPTIONS(value) is not None
    return key in _SEQUENCER_OPTIONS and _WORD(value) is not None


def _sensitive_settings(data: bytes) -> list[tuple[bytes, bytes, bytes, bytes]]:
    """Return section, subsection, key and value of every setting that is not known to be harmless."""
    if len(data) > MAX_CONFIG_BYTES or data.count(b"\n") > MAX_CONFIG_LINES:
        raise _Malformed
    found = []
    section: tuple[bytes, bytes] | None = None
    for line in data.replace(b"\r\n", b"\n").split(b"\n"):
        text = line.strip(b" \t")
        if text[:1] in {b"", b"#", b";"}:
            continue
        if _CONTROL.search(line):
            raise _Malformed
        if header := _SECTION.fullmatch(line):
            section = header[1].lower(), header[2] or b""
            continue
        setting = _KEY.fullmatch(line)
        if setting is None or section is None:
            raise _Malformed
        key, value = setting[1].lower(), (setting[2] or b"").strip(b" \t")
        if not is_harmless_setting(*section, key, value):
            found.append((*section, key, value))
    return found


def is_harmless_setting(section: bytes, name: bytes, key: bytes, value: bytes) -> bool:
    """Return whether git runs nothing, and reads nothing further, because of this setting.

    Section and key are in lower case; `name` is the subsection.
    """
    if (section, key) in _TEXTS:
        return not name
    if section == b"remote":
        if key in {b"url", b"pushurl"}:
            return is_plain_address(value)
        return key in _OF_REMOTE or (key in {b"fetch", b"push"} and _REFS(value) is not None)
    if section == b"branch":
        if key in {b"remote", b"pushremote"}:
            return is_plain_address(value)
        return (key == b"merge" and _REFS(value) is not None) or key in {b"rebase", b"description"}
    if section == b"submodule":
        return (key == b"url" and is_plain_address(value)) or key == b"active"
    if section == b"advice":
        return True
    return not name and (section, key) in _HARMLESS and _WORD(value) is not None


def is_plain_address(value: bytes) -> bool:
    """Return whether this is the address of a remote that git reaches by itself or by ssh, or a folder.

    Not plain are `ext::command`, what begins with a dash (ssh would take it for an option), and what has
    quotes or spaces.
    """
    if any(part in value for part in (b"::", b'"', b"@-", b"@%")) or value.startswith(b"-"):
        return False
    if b"://" in value:
        return _NETWORK_ADDRESS(value) is not None
    return _SSH_ADDRESS(value) is not None or _FOLDER(value) is not None


# ---- any protected file

_COMMON_FOLDER_OF_WORKTREE = b"../.."
_COMMANDS_OF_PYTHON = frozenset(("[console_scripts]", "[gui_scripts]"))


def is_harmless_name(path: str, zone: Zone) -> bool:
    """Return whether a file of this path makes nothing run, whatever is in it: a sample of a hook."""
    name = fold_name(path).rpartition("/")[2]
    return zone.hooks and name.endswith(".sample") and not zone.is_git_settings(name)


def is_harmless_file(path: str, zone: Zone, data: bytes | None, known: bytes | None = None) -> bool:
    """Return whether a protected file makes nothing run: a sample of a hook, commands, plain settings of git.

    Args:
        path: Its path, relative to the workspace.
        zone: What the folders above it mean.
        data: What was found in it; None if it was not read.
        known: What was there before; None if nothing was.
    """
    *above, name = fold_name(path).split("/")
    if zone.is_git_settings(name):
        return is_harmless_config(data, known)
    if zone.is_rebase_todo(name):
        return is_harmless_todo(data)
    if zone.is_merge_strategy(name):
        return is_harmless_strategy(data)
    if zone.is_strategy_options(name):
        return is_harmless_strategy_options(data)
    if zone.is_sequencer_options(name):
        return is_harmless_sequencer_options(data)
    if zone.is_entry_points(name):
        return _names_only_commands(data)
    if name == "commondir":
        # As `git worktree add` writes it. The folder that it names is a repository, and watched as such.
        in_worktrees = above[-3:-1] == [".git", "worktrees"]
        return in_worktrees and (data or b"").strip() == _COMMON_FOLDER_OF_WORKTREE
    return is_harmless_name(path, zone)


def _names_only_commands(data: bytes | None) -> bool:
    """Return whether these entry points of a distribution are commands, which a person calls by name."""
    if data is None or not data.isascii():
        return False
    lines = [line.strip() for line in data.decode().splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    sections = {line for line in lines if line.startswith("[")}
    return sections <= _COMMANDS_OF_PYTHON and (not lines or lines[0] in sections)
