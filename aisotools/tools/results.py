"""What a function returns, as a result with three faces; checked against its declared type on both sides."""

from __future__ import annotations

import gc
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, get_args

from aisotools.core.exceptions import ToolError
from aisotools.core.protocols import ToolContext
from aisotools.core.types import Json, MimeBundle, ToolResult
from aisotools.tools.validation import brief, fits

if TYPE_CHECKING:
    from pydantic import TypeAdapter


PRESENT = "present"
"""Key in a context's metadata: a callable that turns an object into the MIME bundle people see."""


class Returns:
    """A declared return type that has a JSON form."""

    def __init__(
        self, tool: str, annotation: Any, adapter: TypeAdapter[Any], *, in_one_go: bool = False
    ) -> None:
        """Belong to the tool of that name; `in_one_go` if the adapter writes JSON as we do."""
        self._tool = tool
        self._told = inspect.formatannotation(annotation)
        self._adapter = adapter
        self._in_one_go = in_one_go

    def __repr__(self) -> str:
        return f"<Returns {self._told}>"

    @cached_property
    def _schema(self) -> Mapping[str, Json]:
        return self._adapter.json_schema(mode="serialization")

    def plain(self, value: Any) -> Json:
        """A returned value as JSON.

        Raises:
            ToolError: If it does not fit the declared type; not recoverable.
        """
        from pydantic import ValidationError
        from pydantic_core import from_json, to_json

        with suppress(ValueError, TypeError, RecursionError), collector_at_rest():
            # Serialising with the declared type keeps aliases and enums as the model was promised.
            if self._in_one_go and not isinstance(value, float):
                return from_json(self._adapter.dump_json(value, by_alias=True, warnings="error"))
            return plain_json(self._adapter.dump_python(value, mode="json", by_alias=True, warnings="error"))
        try:  # of another type, it may still be the same as JSON, as a number of numpy is
            same = self._adapter.validate_json(to_json(plain_json(value)), strict=True)
        except (ValidationError, ValueError, TypeError, RecursionError):
            raise self._forbidden(value) from None
        return plain_json(self._adapter.dump_python(same, mode="json", by_alias=True))

    def check(self, value: Json) -> None:
        """Check what came back from a sandbox.

        Raises:
            ToolError: If the declared type forbids it; not recoverable.
        """
        from pydantic import ValidationError

        try:
            with collector_at_rest():
                self._adapter.validate_python(value)
        except ValidationError:
            # What a type writes is not always what it reads: computed fields, other aliases.
            if not fits(self._schema, value):
                raise self._forbidden(value) from None

    def _forbidden(self, value: Any) -> ToolError:
        return ToolError(
            f"{self._tool} returned {brief(value)}, which its declared return type {self._told} forbids. "
            "The function must return what it declares, or declare what it returns.",
            recoverable=False,
        )


def declared(tool: str, annotation: Any) -> Returns | None:
    """The declared return type, or None when it says nothing about JSON: no type, any, a figure, bytes."""
    says_nothing = (inspect.Signature.empty, Any, bytes, ToolResult)
    if any(one is other for one in (annotation, *get_args(annotation)) for other in says_nothing):
        return None
    from pydantic import PydanticUserError, TypeAdapter

    adapter: TypeAdapter[Any]
    in_one_go = True
    try:
        try:
            adapter = TypeAdapter(annotation, config={"ser_json_inf_nan": "strings"})
        except PydanticUserError:  # a type with settings of its own, which may write infinity as null
            adapter, in_one_go = TypeAdapter(annotation), False
        adapter.json_schema(mode="serialization")
    except (PydanticUserError, TypeError):
        return None  # shown to people, not typed for programs
    return Returns(tool, annotation, adapter, in_one_go=in_one_go)


@contextmanager
def collector_at_rest() -> Iterator[None]:
    """Have no garbage collected: a large value holds none, and looking there takes longer than the work."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def plain_json(value: Any) -> Json:
    """Any value as JSON, numbers and arrays of numpy too.

    Raises:
        ValueError: If it has no JSON form.
    """
    from pydantic_core import to_jsonable_python

    return to_jsonable_python(value, inf_nan_mode="strings", fallback=_numbers)


def _numbers(value: Any) -> Any:
    if type(value).__module__.partition(".")[0] == "numpy" and hasattr(value, "tolist"):
        return value.tolist()
    raise ValueError(f"{type(value).__name__} has no JSON form")


def to_result(value: Any, returns: Returns | None, context: ToolContext) -> ToolResult:
    """A function's return value as a result.

    Raises:
        ToolError: If the value does not fit the declared return type.
    """
    from pydantic_core import to_json

    if isinstance(value, ToolResult):
        return value
    if isinstance(value, bytes) and returns is None:
        return ToolResult.binary(value)
    if returns is not None:
        plain = returns.plain(value)
    else:
        try:
            plain = plain_json(value)
        except (ValueError, TypeError, RecursionError):
            return _shown_object(value, context)
    if plain is None:
        return ToolResult(content="")
    if isinstance(plain, str):
        return ToolResult.text(plain)
    with collector_at_rest():
        return ToolResult.json(plain, to_json(plain, inf_nan_mode="strings").decode())


def _shown_object(value: Any, context: ToolContext) -> ToolResult:
    """A figure, a table, any object: text for the model, a MIME bundle for people."""
    present: Callable[[Any], MimeBundle] | None = context.metadata_get(PRESENT)
    bundle = dict(present(value)) if present is not None else {"text/plain": repr(value)}
    text = bundle.get("text/plain")
    return ToolResult(content=text if isinstance(text, str) else repr(value), data=bundle)
