"""Read settings of git, and find the programs that they name for commands which otherwise only read.

Threat: `git status`, `git diff` and `git log -p` change nothing by themselves, but run what settings name:
`core.fsmonitor`, `diff.external`, a `textconv`, a filter. A command that runs a program is not one that is
known to read, wherever that program comes from: mode `plan` promises that nobody's program runs.

Mechanism: `find_programs` reads the settings that git in a sandbox sees from a folder: those of the
repository and of each further one that git may take for it, all that they include, whatever the condition,
and those of its submodules, which git finds by their entries in the index. The person's own settings and the
system's are out of reach there. Each setting counts in its group, whether or not another one revokes it.
Race: a setting can change after the look. The gate looks once more at dispatch; calls cannot write settings
that name a program (`aisotools.workspace.protected`).
Cost: the settings of one repository take about 0.1 ms, and nothing for a command that is not git's.
Failure: what cannot be read, leads to where a sandbox may write, or is more than is looked at, counts as a
program, and the command is asked about. Settings in the environment and in the sandbox's own home, which a
call that was allowed to change things can prepare, are not seen, nor those that a later git will have.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from aisotools.workspace.dirfd import read_to_end

MAX_SETTINGS_BYTES = 1 << 20
"""Size of the largest file of settings that is read."""

MAX_SETTINGS_FILES = 100
"""Files of settings that are read in all."""

MAX_INDEX_BYTES = 64 << 20
"""Size of the largest index of a repository in which submodules are looked for."""

_HEADER = re.compile(r'\[([A-Za-z0-9.-]+)(?:[ \t\r]+"((?:[^"\\\n]|\\.)*)")?\]')
_KEY = re.compile(r"([A-Za-z][A-Za-z0-9-]*)[ \t\r]*(=|(?=\n)|\Z)")
_MAX_SHOWN_CHARS = 100
_BLANKS = " \t\r"
_ESCAPES = {"n": "\n", "t": "\t", "b": "\b"}


@dataclass(frozen=True, slots=True)
class GitSetting:
    """One setting: section and key in lower case, and the value as git understands it."""

    section: str
    name: str
    key: str
    value: str

    def __str__(self) -> str:
        value = self.value if len(self.value) <= _MAX_SHOWN_CHARS else f"{self.value[:_MAX_SHOWN_CHARS]}..."
        return f"{'.'.join(filter(None, (self.section, self.name, self.key)))} = {value!r}"


def parse_settings(data: bytes) -> Iterator[GitSetting]:
    """Yield the settings of a file. What is malformed is passed over, as git refuses the whole file."""
    text = data.decode("utf-8", "surrogateescape").removeprefix("\ufeff").replace("\r\n", "\n")
    section, name = "", ""
    place = 0
    while place < len(text):
        if text[place] in "\n \t\r":
            place += 1
        elif header := _HEADER.match(text, place):
            section, _, old_name = header[1].lower().partition(".")
            name = re.sub(r"\\(.)", r"\1", header[2]) if header[2] is not None else old_name
            place = header.end()
        # git takes a setting on the line of its header, too: so no end of a line is needed between them.
        elif (key := _KEY.match(text, place)) and section:
            value, place = _parse_value(text, key.end()) if key[2] else ("", _end_of_line(text, key.end()))
            yield GitSetting(section, name, key[1].lower(), value)
        else:
            place = _end_of_line(text, place)  # a comment, whatever its last character, or nonsense


def _end_of_line(text: str, place: int) -> int:
    end = text.find("\n", place)
    return len(text) if end < 0 else end


def _parse_value(text: str, place: int) -> tuple[str, int]:
    """Return a value without quotes, escapes and comment, and where its last line ends."""
    chars: list[str] = []
    quoted = False
    end = 0  # of the value without blanks at its end
    while place < len(text) and text[place] != "\n":
        char = text[place]
        place += 1
        if char in "#;" and not quoted:
            place = _end_of_line(text, place)
            break
        if not chars and char in _BLANKS and not quoted:
            continue
        if char == '"':
            quoted = not quoted
        elif char == "\\":
            escaped = text[place : place + 1]
            place += 1
            # A backslash at the end of a line joins it with the next one, within quotes and outside.
            chars.append("" if escaped == "\n" else _ESCAPES.get(escaped, escaped))
            if escaped == "\n":
                continue
        else:
            chars.append(char)
        if quoted or char not in _BLANKS:
            end = len(chars)
    return "".join(chars[:end]), min(place, len(text))


def settings_of_person(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return where a person's settings and those of the system are; they need not exist."""
    home = environ.get("HOME")
    if "GIT_CONFIG_GLOBAL" in environ:
        own = [environ["GIT_CONFIG_GLOBAL"]]
    elif home:
        base = environ.get("XDG_CONFIG_HOME") or f"{home}/.config"
        own = [f"{base}/git/config", f"{home}/.gitconfig"]
    else:
        own = []
    if home and "GIT_CONFIG_NOSYSTEM" not in environ:
        own.append(environ.get("GIT_CONFIG_SYSTEM", "/etc/gitconfig"))
    return tuple(path for path in own if path)


def stamp_of(path: str) -> tuple[int, int, int] | None:
    """Return inode, device and change time of a file, or of what a link leads to; None if there is none."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_ino, status.st_dev, status.st_ctime_ns


def read_small(path: str) -> bytes:
    """Return the content of a regular file, or nothing."""
    try:
        # Hostile: a FIFO in its place would block the open for ever, and a device never end.
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return b""
    try:
        # A folder, too, can be opened so; only then is it seen what was opened.
        if not stat.S_ISREG(os.fstat(file).st_mode):
            return b""
        return read_to_end(file, MAX_SETTINGS_BYTES - 1, MAX_SETTINGS_BYTES)
    except OSError:
        return b""
    finally:
        os.close(file)
