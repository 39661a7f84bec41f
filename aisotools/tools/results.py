"""Turn a function's return value into a `ToolResult`, and check values against the declared return type.

A result has three forms: text for the model, a JSON value for programs, and a MIME bundle for people.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property
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
