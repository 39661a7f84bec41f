"""What is said about one command: its effect, what it touches and what else it runs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from aisotools.events import Effect
from aisotools.shell_words import Word

UNSEEN = "…"
"""Shown for words that are added by another program."""

_NO_FILES = frozenset(("/dev/null", "/dev/stdout", "/dev/stderr", "/dev/zero", "/dev/full"))
_DESCRIPTORS = re.compile(r"/dev/fd/[12]")
_DISKS = re.compile(r"/dev/(?:sd|hd|vd|xvd|nvme|mmcblk|disk|rdisk|loop|dm-|md|mapper/|mem|kmem|port).*")
_SOCKETS = re.compile(r"/dev/(?:tcp|udp)/([^/]*)/.*")
_URL = re.compile(r"[a-z][a-z0-9+.-]*://(?:[^/?#]*@)?(\[[^\]]*\]|[^/:?#]*)", re.IGNORECASE)
_PLAIN_HOST = re.compile(r"[\w.:%\[\]-]+")
_REMOTE_PATH = re.compile(r"(?:[^/@:]*@)?(\[[^\]]*\]|[^/:@\[\]]+):.*", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What is known of a command before it runs.

    Attributes:
        effect: The most severe thing it does itself.
        certain: Whether that is all.
        reads: Paths it reads.
        writes: Paths it writes.
        hosts: Hosts it talks to.
        reasons: Why the effect is what it is, or why it is not certain.
        commands: Words of commands that it runs.
        scripts: Shell texts that it runs.
        moves: Whether it changes the folder to one that may lie outside the workspace.
    """

    effect: Effect = Effect.READ_ONLY
    certain: bool = True
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    commands: tuple[tuple[Word, ...], ...] = ()
    scripts: tuple[str, ...] = ()
    moves: bool = False


NOTHING = Verdict()
"""It does nothing but compute and print."""


def merged(verdicts: Iterable[Verdict]) -> Verdict:
    """All of them together."""
    several = [verdict for verdict in verdicts if verdict is not NOTHING]
    if len(several) < 2:
        return several[0] if several else NOTHING
    return Verdict(
        effect=max(verdict.effect for verdict in several),
        certain=all(verdict.certain for verdict in several),
        reads=tuple(path for verdict in several for path in verdict.reads),
        writes=tuple(path for verdict in several for path in verdict.writes),
        hosts=tuple(host for verdict in several for host in verdict.hosts),
        reasons=tuple(reason for verdict in several for reason in verdict.reasons),
        commands=tuple(words for verdict in several for words in verdict.commands),
        scripts=tuple(script for verdict in several for script in verdict.scripts),
        moves=any(verdict.moves for verdict in several),
    )


def unsure(why: str, effect: Effect = Effect.LOCAL_MUTATION) -> Verdict:
    """It may do anything up to `effect` and beyond."""
    return Verdict(effect=effect, certain=False, reasons=(why,))


def does(effect: Effect, why: str) -> Verdict:
    """It has this effect."""
    return Verdict(effect=effect, reasons=(why,))


def reads(word: Word) -> Verdict:
    """It reads this path."""
    return NOTHING if word.shown in {"-", UNSEEN} else Verdict(reads=(word.shown,))


def opens(word: Word) -> Verdict:
    """The shell opens this path for reading; it can open connections by name."""
    if socket := _SOCKETS.fullmatch(word.shown):
        return contacts(socket[1], "it opens a connection")
    if word.text is None and not word.placed and not _harmless_beginning(word.prefix):
        return unsure(f"it cannot be told what {word.shown} opens")
    return reads(word)


def _harmless_beginning(prefix: str) -> bool:
    return bool(prefix) and not prefix.startswith("/dev/") and not "/dev/".startswith(prefix)


def writes(word: Word, why: str = "", effect: Effect = Effect.LOCAL_MUTATION) -> Verdict:
    """It writes this path."""
    path = word.shown
    if (word.text is not None and (path in _NO_FILES or _DESCRIPTORS.fullmatch(path))) or (
        word.text is None and word.placed and word.prefix == "/dev/fd/"
    ):
        return NOTHING
    if socket := _SOCKETS.fullmatch(path):
        return contacts(socket[1], "it opens a connection")
    reason = why or f"it writes {path}"
    if not word.placed:
        return Verdict(effect=effect, certain=False, writes=(path,), reasons=(f"{reason}, wherever that is",))
    if word.many:
        return Verdict(effect=effect, certain=False, writes=(path,), reasons=(f"{reason}, whatever that is",))
    if _DISKS.fullmatch(path):
        effect, reason = Effect.DESTRUCTIVE, f"it writes to the device {path}"
    return Verdict(effect=effect, writes=(path,), reasons=(reason,))


def contacts(host: str, why: str) -> Verdict:
    """It talks to this host; to an unknown one if it is empty."""
    known = bool(host) and _PLAIN_HOST.fullmatch(host) is not None
    return Verdict(
        effect=Effect.REMOTE_ACTION, certain=known, hosts=(host or "an unknown host",), reasons=(why,)
    )


def host_named(text: str) -> str:
    """The host where one is expected: in a URL, or as `user@host:port/path`."""
    return host_of(text) or text.partition("/")[0].rpartition("@")[2]


def host_of(text: str) -> str:
    """The host in a URL or in `user@host:path`; empty when there is none."""
    found = _URL.match(text) or _REMOTE_PATH.fullmatch(text)
    return found[1] if found else ""
