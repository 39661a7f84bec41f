"""The sed scripts that certainly do nothing but edit what passes through, or read files that they name.

A script is read whole, command by command. Accepted is only what GNU sed, busybox and the BSDs take apart
alike: in a bracket expression some of them see the end of a pattern and others do not, and labels and texts
end in different places, so none of these may hold anything that could be a command.
"""

from __future__ import annotations

import re

from aisotools.policy.shell.languages.reading import MAX_PROGRAM_CHARS, NotPlain, ProgramReading

_SEPARATORS = re.compile(r"(?:[\s;]|#[^\n\\]*(?=\n|$))+")
_BLANKS = re.compile(r"[ \t]*")
_NUMBER_ADDRESS = re.compile(r"[0-9]+(?:~[0-9]+)?|\$")
_SECOND_NUMBER = re.compile(r"[0-9]+|[+~][0-9]+|\$")
_REGEX_FLAGS = re.compile(r"[IM]*")
_PLAIN = re.compile(r"[=dDgGhHnNpPxzF]|[qQlL][ \t]*[0-9]*|[btT][ \t]*[A-Za-z_0-9]*|:[ \t]*[A-Za-z_0-9]+")
_READS = re.compile(r"[rR][ \t]+([\w./-]+)[ \t]*(?=\n|$)", re.ASCII)
_TEXT = re.compile(r"[aic](?:[ \t]*\\\n[^\\\n]*|[ \t]*\\?[ \t]*[^\\\s][^\\\n]*)(?=\n|$)")
_FLAGS = re.compile(r"[gpiImM0-9]*")
_ENDS = re.compile(r"[ \t]*(?=[;\n}#]|$)")
_DELIMITER = re.compile(r"[^\w\s\\;{}\[\]]", re.ASCII)
_ACTS = frozenset("wWeErR")
"""Letters of commands and flags that write, run or read something."""
_BRACKET = re.compile(r"\[\^?\]?(?:\[:[a-z]+:\]|\\[^\]\[\n]|[^\[\]\\\n])*\]")


def read_sed(script: str) -> ProgramReading:
    """Return what a sed script does. Raises nothing."""
    if len(script) > MAX_PROGRAM_CHARS:
        return ProgramReading("a script that is too long to read")
    reader = _SedReader(script)
    try:
        reader.read()
    except NotPlain as reason:
        return ProgramReading(str(reason))
    return ProgramReading("", (), tuple(reader.reads))


class _SedReader:
    """One pass over a script.

    Attributes:
        reads: Files whose contents it inserts.
    """

    def __init__(self, text: str) -> None:
        self.reads: list[str] = []
        self._text = text
        self._position = 0

    def read(self) -> None:
        """Read the whole script.

        Raises:
            NotPlain: It is not of the grammar, or may write or run something.
        """
        depth = 0
        while self._position < len(self._text):
            if self._skip(_SEPARATORS):
                continue
            self._skip_addresses()
            character = self._text[self._position : self._position + 1]
            if character == "{":
                depth += 1
                self._position += 1
            elif character == "}":
                depth -= 1
                self._position += 1
                self._end_command()
            else:
                self._skip_command(character)
            if depth < 0:
                raise NotPlain("a brace that closes nothing")
        if depth:
            raise NotPlain("a brace that is never closed")

    def _skip(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self._text, self._position)
        if match is None:
            return ""
        self._position = match.end()
        return match[0]

    def _end_command(self) -> None:
        match = _ENDS.match(self._text, self._position)
        if match is None:
            raise self._not_plain()
        self._position = match.end()

    def _not_plain(self) -> NotPlain:
        return NotPlain(
            f"{self._text[self._position : self._position + 10]!r}, which may write or run something"
        )

    # ---- addresses

    def _skip_addresses(self) -> None:
        has_address = self._skip_address(_NUMBER_ADDRESS)
        self._skip(_BLANKS)
        if has_address and self._text.startswith(",", self._position):
            self._position += 1
            self._skip(_BLANKS)
            if not self._skip_address(_SECOND_NUMBER):
                raise self._not_plain()
            self._skip(_BLANKS)
        if self._text.startswith("!", self._position):
            self._position += 1
            self._skip(_BLANKS)

    def _skip_address(self, number: re.Pattern[str]) -> bool:
        if self._skip(number):
            return True
        if self._text.startswith("/", self._position):
            self._position += 1
        elif self._text.startswith("\\", self._position):
            self._position += 1
            if not self._is_delimiter():
                raise self._not_plain()
            self._position += 1
        else:
            return False
        self._skip_delimited(self._text[self._position - 1])
        self._skip(_REGEX_FLAGS)
        return True

    # ---- commands

    def _skip_command(self, character: str) -> None:
        if character and character in "sy":
            self._position += 1
            if not self._is_delimiter():
                raise self._not_plain()
            delimiter = self._text[self._position]
            self._position += 1
            self._skip_delimited(delimiter)
            self._skip_delimited(delimiter, is_pattern=False)
            if character == "s":
                self._skip(_FLAGS)
            self._end_command()
        elif file := _READS.match(self._text, self._position):
            self.reads.append(file[1])
            self._position = file.end()
        elif text := _TEXT.match(self._text, self._position):
            self._position = text.end()
        elif self._skip(_PLAIN):
            self._end_command()
        else:
            raise self._not_plain()

    def _is_delimiter(self) -> bool:
        return (
            _DELIMITER.match(self._text, self._position) is not None and self._text[self._position].isascii()
        )

    def _skip_delimited(self, delimiter: str, *, is_pattern: bool = True) -> None:
        """Skip to behind the next `delimiter`, which must end a pattern, or a replacement, for every sed."""
        text, position = self._text, self._position
        while position < len(text) and text[position] != delimiter:
            if text[position] == "\n":
                raise self._not_plain()
            if text[position] == "[" and is_pattern:
                bracket = _BRACKET.match(text, position)
                may_end = bracket is None or delimiter in re.sub(r"\\.", "", bracket[0])
                # Without one of these letters a script does nothing, wherever the pattern ends.
                if bracket is None or (may_end and not _ACTS.isdisjoint(text)):
                    raise NotPlain("brackets in which a pattern may end")
                position = bracket.end()
            else:
                position += 2 if text[position] == "\\" else 1
        if position >= len(text):
            raise NotPlain("a pattern that is never closed")
        self._position = position + 1
