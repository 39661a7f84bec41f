"""The verdict on a command: its effect, what it reads, writes and contacts, and why it is uncertain."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from aisotools.core.types import AbsentNames, Effect, GitPrograms, MadeName, PatchFile
from aisotools.policy.shell.expansion import Word
from aisotools.policy.shell.folders import START

UNKNOWN_WORDS = "…"
"""Displayed for arguments that another program adds at run time."""

_DISCARDED = frozenset(("/dev/null", "/dev/stdout", "/dev/stderr", "/dev/zero", "/dev/full"))
_OUTPUT_DESCRIPTOR = re.compile(r"/dev/fd/[12]")
_DISK = re.compile(r"/dev/(?:sd|hd|vd|xvd|nvme|mmcblk|disk|rdisk|loop|dm-|md|mapper/|mem|kmem|port).*")
_SOCKET = re.compile(r"/dev/(?:tcp|udp)/([^/]*)/.*")
_URL = re.compile(r"[a-z][a-z0-9+.-]*://(?:[^/?#]*@)?(\[[^\]]*\]|[^/:?#]*)", re.IGNORECASE)
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+-]+):")
_SERVER_URL = re.compile(r"((?!file:)[A-Za-z][A-Za-z0-9+-]+)://", re.IGNORECASE)
_PLAIN_HOST = re.compile(r"[\w.:%\[\]-]+")
_REMOTE_PATH = re.compile(r"(?:[^/@:]*@)?(\[[^\]]*\]|[^/:@\[\]]+):.*", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandVerdict:
    """The static verdict on a command.

    Attributes:
        effect: The most severe effect of the command itself.
        certain: Whether everything it does is listed here.
        reads: Paths it reads.
        writes: Paths it writes.
        unresolved: Of the reads, those of which the text does not say which path they are.
        recorded: Paths of which it reads, or spreads, what a repository of git has recorded; `.` for any.
        named: What its words may name, if not everything it does is listed here.
        made: Names that it makes, and what they lead to.
        patches: Patches that it applies.
        git_programs: Hooks, and programs named by settings, that git may start.
        keeps_environment: Whether the commands that it runs get the environment that it has itself.
        absent: What must not be in the folder in which it runs, or it may do anything.
        hosts: Hosts it contacts.
        reasons: Why the effect is not read only, or why the verdict is not certain.
        commands: Words of the commands that it runs.
        scripts: Shell texts that it runs.
        folder: Where the commands that it runs start, from where it runs itself; None if that is not known.
        spellings: The same command without what may stand between a program and its subcommand, for rules.
        unknown: Commands of which it is not known what they do, if that is the only doubt and all else reads;
            empty otherwise. Of a program that is known, whose options are not, the program alone.
    """

    effect: Effect = Effect.READ_ONLY
    certain: bool = True
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    unresolved: tuple[str, ...] = ()
    recorded: tuple[str, ...] = ()
    named: tuple[str, ...] = ()
    made: tuple[MadeName, ...] = ()
    patches: tuple[PatchFile, ...] = ()
    git_programs: tuple[GitPrograms, ...] = ()
    keeps_environment: bool = True
    absent: tuple[AbsentNames, ...] = ()
    hosts: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    commands: tuple[tuple[Word, ...], ...] = ()
    scripts: tuple[str, ...] = ()
    folder: str | None = START
    spellings: tuple[str, ...] = ()
    unknown: tuple[tuple[str, ...], ...] = ()

    @property
    def only_reads(self) -> bool:
        """True if all that it does is known, and it changes nothing."""
        return self.certain and self.effect is Effect.READ_ONLY


NO_EFFECT = CommandVerdict()
"""The verdict on a command that only computes and prints."""


def merge(verdicts: Iterable[CommandVerdict]) -> CommandVerdict:
    """Return one verdict for all of them: `NO_EFFECT` for none.

    Its effect is the most severe, it is certain only if all are, and it lists in order what they list; of the
    reasons, those why it is not certain come first, since a card shows the first few.
    """
    relevant = [verdict for verdict in verdicts if verdict is not NO_EFFECT]
    if len(relevant) < 2:
        return relevant[0] if relevant else NO_EFFECT
    certain = all(verdict.certain for verdict in relevant)
    by_doubt = relevant if certain else sorted(relevant, key=lambda verdict: verdict.certain)
    return CommandVerdict(
        effect=max([verdict.effect for verdict in relevant]),
        certain=certain,
        reads=tuple([path for verdict in relevant for path in verdict.reads]),
        writes=tuple([path for verdict in relevant for path in verdict.writes]),
        unresolved=tuple([path for verdict in relevant for path in verdict.unresolved]),
        recorded=tuple([path for verdict in relevant for path in verdict.recorded]),
        named=tuple([path for verdict in relevant for path in verdict.named]),
        made=tuple([name for verdict in relevant for name in verdict.made]),
        patches=tuple([patch for verdict in relevant for patch in verdict.patches]),
        git_programs=tuple([one for verdict in relevant for one in verdict.git_programs]),
        keeps_environment=all(verdict.keeps_environment for verdict in relevant),
        absent=tuple([names for verdict in relevant for names in verdict.absent]),
        hosts=tuple([host for verdict in relevant for host in verdict.hosts]),
        reasons=tuple([reason for verdict in by_doubt for reason in verdict.reasons]),
        commands=tuple([words for verdict in relevant for words in verdict.commands]),
        scripts=tuple([script for verdict in relevant for script in verdict.scripts]),
        folder=_merge_folders({verdict.folder for verdict in relevant} - {START}),
        spellings=tuple([spelling for verdict in relevant for spelling in verdict.spellings]),
        unknown=_merge_unknown(relevant),
    )


def _merge_folders(folders: set[str | None]) -> str | None:
    return folders.pop() if len(folders) == 1 else None if folders else START


def _merge_unknown(verdicts: Sequence[CommandVerdict]) -> tuple[tuple[str, ...], ...]:
    if any(not (verdict.unknown or verdict.only_reads) for verdict in verdicts):
        return ()
    return tuple(command for verdict in verdicts for command in verdict.unknown)


def uncertain(
    reason: str, effect: Effect = Effect.LOCAL_MUTATION, *, unknown: Sequence[str] = ()
) -> CommandVerdict:
    """Return the verdict that a command has at least `effect`, and possibly any other.

    Args:
        reason: Why nothing more is known, as a clause about the command.
        effect: The least effect.
        unknown: The words of the command, if the doubt is only what it does; see `CommandVerdict`.
    """
    commands = (tuple(unknown),) if unknown else ()
    return CommandVerdict(effect=effect, certain=False, reasons=(reason,), unknown=commands)


def has_effect(effect: Effect, reason: str) -> CommandVerdict:
    """Return the certain verdict that a command has `effect`; `reason` is a clause about the command."""
    return CommandVerdict(effect=effect, reasons=(reason,))


def reads(word: Word) -> CommandVerdict:
    """Return the verdict on reading the path `word`: no effect; standard input (`-`) is not a path.

    A URL counts as one, though most programs would take it for the name of a file: many take both.
    """
    if word.text == "-":
        return NO_EFFECT
    if url := _SERVER_URL.match(word.display):
        return contacts(host_of(word.display) or url[1], f"it contacts {word.display}")
    if word.display == UNKNOWN_WORDS:
        return CommandVerdict(unresolved=(UNKNOWN_WORDS,))
    if word.text is None and not word.is_located:
        return CommandVerdict(reads=(word.display,), unresolved=(word.display,))
    return CommandVerdict(reads=(word.path,))


def reads_or_contacts(word: Word) -> CommandVerdict:
    """Return the verdict on an operand of a program that reads files, and takes URLs in their place."""
    if url := _SCHEME.match(word.display):
        return contacts(host_of(word.display) or url[1], f"it contacts {word.display}")
    if _may_be_url(word):
        return uncertain(f"it cannot be determined whether {word.display} is a file here")
    return reads(word)


def _may_be_url(word: Word) -> bool:
    """Return whether a word that is only known at run time may begin with `scheme:`.

    What is before the first expansion says no with a slash or a dot in it; so do patterns, which become names
    of files, and variables of which it is known that they hold such names.
    """
    if word.text is not None or word.is_located or word.is_file:
        return False
    return re.fullmatch(r"[A-Za-z0-9+-]*", word.prefix) is not None


def opens(word: Word) -> CommandVerdict:
    """Return the verdict on a path that bash itself opens for reading.

    `/dev/tcp/host/port` and `/dev/udp/host/port` are connections to that host; a word that may become one of
    them is uncertain.
    """
    if socket := _SOCKET.fullmatch(word.display):
        return contacts(socket[1], "it opens a connection")
    # An unknown path could be /dev/tcp/...; a known beginning outside of /dev rules that out.
    if word.text is None and not word.is_located and not _is_outside_dev(word.prefix):
        return uncertain(f"it cannot be determined what {word.display} opens")
    return reads(word)


def _is_outside_dev(prefix: str) -> bool:
    return bool(prefix) and not prefix.startswith("/dev/") and not "/dev/".startswith(prefix)


def writes(word: Word, reason: str = "", effect: Effect = Effect.LOCAL_MUTATION) -> CommandVerdict:
    """Return the verdict on writing a path; uncertain if the word does not say which path.

    Args:
        word: The path.
        reason: A clause about the command; by default that it writes the path.
        effect: The effect of writing it; a disk device is always destructive.
    """
    path = word.path
    if word.text is not None and (path in _DISCARDED or _OUTPUT_DESCRIPTOR.fullmatch(path)):
        return NO_EFFECT
    if word.text is None and word.is_located and word.prefix == "/dev/fd/":
        return NO_EFFECT  # a process substitution; the command in it is judged on its own
    if socket := _SOCKET.fullmatch(path):
        return contacts(socket[1], "it opens a connection")
    reason = reason or f"it writes {path}"
    if not word.is_located or word.may_split:
        doubt = "whatever that is" if word.is_located else "wherever that is"
        return CommandVerdict(effect=effect, certain=False, writes=(path,), reasons=(f"{reason}, {doubt}",))
    if _DISK.fullmatch(path):
        reason = f"it writes to the device {path}"
        return CommandVerdict(effect=Effect.DESTRUCTIVE, writes=(path,), reasons=(reason,))
    return CommandVerdict(effect=effect, writes=(path,), reasons=(reason,))


def contacts(host: str, reason: str) -> CommandVerdict:
    """Return the verdict on contacting a host; uncertain if `host` is empty or no plain host name."""
    return CommandVerdict(
        effect=Effect.REMOTE_ACTION,
        certain=_PLAIN_HOST.fullmatch(host) is not None,
        hosts=(host or "an unknown host",),
        reasons=(reason,),
    )


def host_from_operand(text: str) -> str:
    """Return the host in an operand that names one: a URL, or `user@host:port/path`."""
    return host_of(text) or text.partition("/")[0].rpartition("@")[2]


def host_of(text: str) -> str:
    """Return the host in a URL or in `user@host:path`; empty if there is none."""
    found = _URL.match(text) or _REMOTE_PATH.fullmatch(text)
    return found[1] if found else ""
