"""What a model may know of an exception that a tool raised on the host, and what stays with the person.

A tool on the host sees the person's files, keys and other people's data, so its source lines, the paths and
the values in its traceback are not for a model. A tool that wants to say more raises `ToolError`.
"""

from __future__ import annotations

import linecache
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from aisotools.core.types import ToolResult

TRACEBACK = "traceback"
"""Key in a result's metadata: the whole traceback, for the person and for programs."""

_MAX_MESSAGE_CHARS = 1_000
_MAX_TRACEBACK_CHARS = 20_000
_MAX_NAMED = 3
_MAX_FRAMES = 50
_MIN_TELLING_CHARS = 3  # shorter values occur in any message by chance
_MAX_VALUES = 1_000

_F_STRING = re.compile(r"""\b[fF][rR]?["']|\b[rR][fF]["']""")
_NAME = re.compile(r"[A-Za-z_]\w*")
_INNER_TRACEBACK = re.compile(
    r'Traceback \(most recent call last\):.*|^ *File "[^\n]*', re.DOTALL | re.MULTILINE
)
_PART = r"[^\s'\"<>:;,()\[\]{}|/\\]+"
_PATHS = re.compile(
    rf"file:/\S+|(?P<quote>['\"])~?/[^'\"\n]*/[^'\"\n]*(?P=quote)|(?<![\w.:/~-])(?:~|/{_PART})(?:/{_PART})+/?"
)


def host_failure(error: BaseException, arguments: Mapping[str, Any] | None = None) -> ToolResult:
    """Return the result of a call whose tool raised `error` on the host.

    The text for the model has the exception's type and message, without paths that are not its own, and says
    which of its own arguments it was about, if that can be told. The traceback is in the metadata.

    Args:
        error: The exception.
        arguments: The call's arguments, if it got as far.
    """
    own = dict(arguments) if isinstance(arguments, Mapping) else {}
    message = _message(error, own)
    headline = f"{type(error).__name__}: {message}" if message else type(error).__name__
    named = list(_named_arguments(error, own))[:_MAX_NAMED]
    if named:
        noun = "argument" if len(named) == 1 else "arguments"
        headline += f"\nIt was about the {noun} {', '.join(named)}."
    metadata = {"exception": type(error).__name__, TRACEBACK: format_whole(error)}
    return ToolResult.error(headline).with_metadata(**metadata)


def format_whole(error: BaseException) -> str:
    """Return the traceback of `error` with its causes; of a very long one, the end."""
    try:
        text = "".join(traceback.format_exception(error)).rstrip()
    except Exception as broken:  # exceptions are written by strangers too
        text = f"{type(error).__name__} (its traceback cannot be formatted: {type(broken).__name__})"
    return text if len(text) <= _MAX_TRACEBACK_CHARS else f"...\n{text[-_MAX_TRACEBACK_CHARS:]}"


def _message(error: BaseException, own: Mapping[str, Any]) -> str:
    texts = list(_texts(own))
    if isinstance(error, OSError) and error.strerror:
        message = f"[Errno {error.errno}] {error.strerror}"
        if isinstance(error.filename, str) and any(error.filename == text for text in texts):
            message += f": {error.filename!r}"
    elif isinstance(error, SyntaxError):
        message = str(error.msg)  # its text has the file and the source line
    else:
        message = _text_of(error)
    message = _INNER_TRACEBACK.sub("(a traceback was left out)", message[: 10 * _MAX_MESSAGE_CHARS])

    def hide(found: re.Match[str]) -> str:
        bare = found[0].strip("'\"")
        return found[0] if any(bare in text for text in texts) else "(a path)"

    message = _PATHS.sub(hide, message).strip()
    return message if len(message) <= _MAX_MESSAGE_CHARS else f"{message[:_MAX_MESSAGE_CHARS]}..."


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # exceptions are written by strangers too
        return "(its message cannot be shown)"


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts in the arguments, of the first so many values."""
    pending, seen = [value], 0
    while pending and seen < _MAX_VALUES:
        item = pending.pop()
        seen += 1
        if isinstance(item, str):
            yield item
        elif isinstance(item, Mapping):
            pending += item.values()
        elif isinstance(item, list):
            pending += item


def _named_arguments(error: BaseException, own: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of the arguments that the message or the failing expression speaks of."""
    message = _text_of(error)[: 10 * _MAX_MESSAGE_CHARS]
    in_message = [
        name
        for name, value in own.items()
        if f"'{name}'" in message
        or any(len(text) >= _MIN_TELLING_CHARS and text in message for text in _texts(value))
    ]
    if in_message:
        yield from in_message
        return
    for expression in _failing_expressions(error.__traceback__):
        words = set(_NAME.findall(expression))
        named = [name for name in own if name in words]
        if named:
            yield from named
            return


def _failing_expressions(trace: TracebackType | None) -> Iterator[str]:
    """Yield what the tool evaluated when the exception arose: the expression of each frame, or its line."""
    ours = (f"{Path(__file__).parents[1]}/", f"{sysconfig.get_path('stdlib')}/")
    for frame in traceback.extract_tb(trace, limit=_MAX_FRAMES):
        if frame.filename.startswith(ours) or frame.lineno is None:
            continue
        line = linecache.getline(frame.filename, frame.lineno)
        has_columns = frame.end_lineno == frame.lineno and frame.end_colno is not None
        if has_columns and (sys.version_info >= (3, 12) or not _F_STRING.search(line)):
            # Columns are counted in bytes. Python 3.11 has wrong ones inside f-strings.
            yield line.encode()[frame.colno : frame.end_colno].decode("utf-8", "replace")
        else:
            yield line
