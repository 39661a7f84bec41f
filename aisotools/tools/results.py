"""Turn what a tool returns or raises into a `ToolResult`, and check values against the declared return type.

A result has three forms: text for the model, a JSON value for programs, and a MIME bundle for people.

A tool on the host sees the person's files, keys and other people's data, so the source lines, the paths and
the values in the traceback of its exception are not for a model: `host_failure` leaves them to the person. A
tool that wants to say more raises `ToolError`.
"""

from __future__ import annotations

import inspect
import linecache
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, get_args

from pydantic_core import ValidationError, from_json, to_json, to_jsonable_python

from aisotools.core.concurrency import gc_paused
from aisotools.core.exceptions import ToolError
from aisotools.core.protocols import ToolContext
from aisotools.core.types import Json, MimeBundle, ToolResult
from aisotools.tools.validation import conforms, short_repr

if TYPE_CHECKING:
    from pydantic import TypeAdapter

PRESENTER_KEY = "present"
"""Key in a context's metadata: a callable that turns an object into the MIME bundle people see."""

_UNTYPED = (inspect.Signature.empty, Any, bytes, ToolResult)
"""Annotations that promise no JSON value."""

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


def to_result(value: Any, return_type: ReturnType | None, context: ToolContext) -> ToolResult:
    """Convert a function's return value to a result.

    Raises:
        ToolError: If the value does not fit the declared return type; not recoverable.
    """
    if isinstance(value, ToolResult):
        return value
    if isinstance(value, bytes) and return_type is None:
        return ToolResult.binary(value)
    if return_type is not None:
        plain = return_type.to_plain_json(value)
    else:
        try:
            plain = to_plain_json(value)
        except (ValueError, TypeError, RecursionError):
            return _display_result(value, context)
    if plain is None:
        return ToolResult(content="")
    if isinstance(plain, str):
        return ToolResult.text(plain)
    with gc_paused():
        return ToolResult.json(plain, to_json(plain, inf_nan_mode="strings").decode())


def declared_return_type(tool: str, annotation: Any) -> ReturnType | None:
    """Return the type that values of `annotation` are checked against, or None if it has no JSON form.

    None stands for: no annotation, `Any`, `bytes`, `ToolResult`, or an object that only people look at, such
    as a figure.

    Args:
        tool: The tool's name, for error messages.
        annotation: The return annotation of its function.
    """
    if any(part is untyped for part in (annotation, *get_args(annotation)) for untyped in _UNTYPED):
        return None
    from pydantic import PydanticUserError, TypeAdapter

    adapter: TypeAdapter[Any]
    dumps_directly = True
    try:
        try:
            adapter = TypeAdapter(annotation, config={"ser_json_inf_nan": "strings"})
        except PydanticUserError:
            # A model or dataclass has a configuration of its own and accepts no other. It may write infinity
            # as null, so its values take the slower way through Python objects.
            adapter = TypeAdapter(annotation)
            dumps_directly = False
        adapter.json_schema(mode="serialization")
    except (PydanticUserError, TypeError):
        return None
    return ReturnType(tool, annotation, adapter, dumps_directly=dumps_directly)


class ReturnType:
    """A declared return type that has a JSON form."""

    def __init__(
        self, tool: str, annotation: Any, adapter: TypeAdapter[Any], *, dumps_directly: bool = False
    ) -> None:
        """Wrap `adapter`.

        Args:
            tool: The tool's name, for error messages.
            annotation: The declared type.
            adapter: Validates and serializes values of that type.
            dumps_directly: Whether the adapter itself writes infinity and NaN as strings.
        """
        self._tool = tool
        self._type_name = inspect.formatannotation(annotation)
        self._adapter = adapter
        self._dumps_directly = dumps_directly

    def __repr__(self) -> str:
        return f"<ReturnType {self._type_name}>"

    @cached_property
    def _schema(self) -> Mapping[str, Json]:
        return self._adapter.json_schema(mode="serialization")

    def to_plain_json(self, value: Any) -> Json:
        """Serialize a returned value.

        Raises:
            ToolError: If it does not fit the declared type; not recoverable.
        """
        with suppress(ValueError, TypeError, RecursionError), gc_paused():
            # Serializing with the declared type keeps aliases and enums as its schema describes them.
            if self._dumps_directly and not isinstance(value, float):
                return from_json(self._adapter.dump_json(value, by_alias=True, warnings="error"))
            python = self._adapter.dump_python(value, mode="json", by_alias=True, warnings="error")
            return to_plain_json(python)
        # A value of another type may still have the right JSON form: a NumPy number declared as `float`.
        try:
            converted = self._adapter.validate_json(to_json(to_plain_json(value)), strict=True)
        except (ValidationError, ValueError, TypeError, RecursionError):
            raise self._mismatch(value) from None
        return to_plain_json(self._adapter.dump_python(converted, mode="json", by_alias=True))

    def check(self, value: Json) -> None:
        """Check a JSON value that a sandbox returned.

        Raises:
            ToolError: If it does not fit the declared type; not recoverable.
        """
        try:
            with gc_paused():
                self._adapter.validate_python(value)
        except ValidationError:
            # A type may write what it does not read back: computed fields, serialization aliases. The schema
            # of its output decides.
            if not conforms(self._schema, value):
                raise self._mismatch(value) from None

    def _mismatch(self, value: Any) -> ToolError:
        return ToolError(
            f"{self._tool} returned {short_repr(value)}, which does not fit its declared return type "
            f"{self._type_name}. Return a value of that type, or change the annotation.",
            recoverable=False,
        )


def to_plain_json(value: Any) -> Json:
    """Convert any value to plain JSON types; NumPy numbers and arrays too.

    Raises:
        ValueError: If it has no JSON form.
    """
    return to_jsonable_python(value, inf_nan_mode="strings", fallback=_numpy_to_python)


def _numpy_to_python(value: Any) -> Any:
    if type(value).__module__.partition(".")[0] == "numpy" and hasattr(value, "tolist"):
        return value.tolist()
    raise ValueError(f"{type(value).__name__} has no JSON form")


def _display_result(value: Any, context: ToolContext) -> ToolResult:
    """Represent an object without a JSON form: text for the model, a MIME bundle for people."""
    present: Callable[[Any], MimeBundle] | None = context.metadata_get(PRESENTER_KEY)
    bundle = dict(present(value)) if present is not None else {"text/plain": repr(value)}
    text = bundle.get("text/plain")
    return ToolResult(content=text if isinstance(text, str) else repr(value), data=bundle)


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
