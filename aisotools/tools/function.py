"""`@tool`: any function as a tool.

A function tool runs in the sandbox unless it says otherwise. It travels there by value, as it is when it is
called, or by import path when it is one of ours.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import CodeType
from typing import Any, Generic, ParamSpec, TypeVar, overload

from aisotools.core.exceptions import SignatureError, ToolError
from aisotools.core.protocols import Concurrency, ToolContext, ToolPayload
from aisotools.core.types import Effect, Facts, Json, RunsIn, ToolResult
from aisotools.tools.results import to_result
from aisotools.tools.schema import FunctionSchema, function_schema
from aisotools.tools.serialization import pickle_by_value, stands_alone
from aisotools.tools.validation import brief
from aisotools.workspace.read_tracker import FileTouch

P = ParamSpec("P")
R = TypeVar("R")

Example = tuple[Mapping[str, Json], str]
"""Arguments, and what a person would say to get them."""

Classify = Callable[[Mapping[str, Json]], Effect]
"""What a call with these arguments may do."""

ExtractUndoPath = Callable[[Mapping[str, Json]], "Path | None"]
"""The one path a call with these arguments changes."""

GatherFacts = Callable[[Mapping[str, Json]], Facts]
"""What a policy should know about a call with these arguments."""

Touches = Callable[[Mapping[str, Json]], Sequence[FileTouch]]
"""What a call with these arguments changes in files that must have been read before."""

Deadline = float | Callable[[Mapping[str, Json]], float | None]
"""Seconds a call may take, or a function from its arguments to that; None means the session's default."""


class FunctionTool(Generic[P, R]):
    """A function that is also a `Tool`. Calling it calls the function.

    Made by `@tool`; registers nothing by itself.
    """

    def __init__(
        self,
        function: Callable[P, R],
        *,
        name: str | None = None,
        effect: Effect | None = None,
        runs_in: RunsIn = "sandbox",
        timeout_s: Deadline | None = None,
        examples: Sequence[Example] = (),
        classify: Classify | None = None,
        extract_undo_path: ExtractUndoPath | None = None,
        gather_facts: GatherFacts | None = None,
        touches: Touches | None = None,
        import_path: str = "",
        concurrency: Concurrency | None = None,
        signature: inspect.Signature | None = None,
    ) -> None:
        """Read the signature; see `tool` for the arguments and errors.

        A function that was sent somewhere to run brings its `signature` along.
        """
        self.function = function
        self.schema: FunctionSchema = function_schema(function, name, signature)
        self.examples = _checked_examples(self.schema, examples)
        self.effect = _checked_effect(self.schema.name, effect)
        self.runs_in: RunsIn = _checked_place(self.schema.name, runs_in)
        self.timeout_s = _checked_timeout(self.schema.name, timeout_s)
        self.source, self.cell = ("built-in", None) if import_path else _source_of(function)
        self._classify = classify
        self._extract_undo_path = extract_undo_path
        self._gather_facts = gather_facts
        self._touches = touches
        self._import_path = import_path
        self._packed: tuple[object, ToolPayload] | None = None
        self._concurrency = concurrency
        self.__name__ = self.schema.name
        self.__doc__ = function.__doc__
        self.__wrapped__ = function

    def __repr__(self) -> str:
        return f"<tool {self.name} ({self.runs_in}) from {self.source}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself, here and now, past any gate: it is the caller's own code."""
        return self.function(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        # The schema is rebuilt where it arrives; deciding, and what it needs, stays on the host.
        return _rebuild, (self.function, self.name, self.schema.signature)

    @property
    def name(self) -> str:
        """The tool's name."""
        return self.schema.name

    @property
    def description(self) -> str:
        """The docstring without its sections."""
        return self.schema.description

    @cached_property
    def version(self) -> str:
        """Changes whenever the function or what a model is told about it changes."""
        told = [self.name, self.description, repr(self.schema.parameters), self.runs_in, repr(self.effect)]
        code = getattr(inspect.unwrap(self.function), "__code__", None)
        return _digest("\0".join([*told, *_fingerprint(code)]).encode("utf-8", "surrogatepass"))

    def parameters_schema(self) -> Mapping[str, Json]:
        """JSON Schema of the arguments."""
        return self.schema.parameters

    def classify(self, arguments: Mapping[str, Json]) -> Effect:
        """What a call may do: as declared, else `LOCAL_MUTATION`."""
        if self._classify is not None:
            return self._classify(arguments)
        return self.effect or Effect.LOCAL_MUTATION

    def extract_undo_path(self, arguments: Mapping[str, Json]) -> Path | None:
        """The one path a call changes, or None."""
        return self._extract_undo_path(arguments) if self._extract_undo_path else None

    def gather_facts(self, arguments: Mapping[str, Json]) -> Facts:
        """What a policy should know."""
        if self._gather_facts is not None:
            return self._gather_facts(arguments)
        return Facts(effect=self.classify(arguments))

    def touches(self, arguments: Mapping[str, Json]) -> Sequence[FileTouch]:
        """What a call changes in files that must have been read before; nothing when it was not told."""
        return self._touches(arguments) if self._touches is not None else ()

    def validate_arguments(self, arguments: Mapping[str, Any]) -> dict[str, Json]:
        """The arguments as JSON, coerced.

        Raises:
            ArgumentError: Naming every argument that does not fit.
        """
        return self.schema.validate(arguments)

    def validate_value(self, value: Json) -> None:
        """Check what came back from a sandbox against the declared return type.

        Raises:
            ToolError: If it does not fit.
        """
        if self.schema.returns is not None:
            self.schema.returns.check(value)

    def shipment(self) -> ToolPayload | None:
        """How to run it in a sandbox; None when it runs on the host.

        Packed anew each time, so that what it refers to is as it is now, unless it refers to nothing. A
        worker that has the same already is not sent it again.

        Raises:
            SignatureError: If the function refers to something that cannot be sent.
        """
        if self.runs_in == "host":
            return None
        shared: Concurrency = "overlap" if inspect.iscoroutinefunction(self.function) else "main"
        concurrency = self._concurrency or shared
        if self._import_path:
            return ToolPayload(key=self._import_path, import_path=self._import_path, concurrency=concurrency)
        code = getattr(self.function, "__code__", None)
        if self._packed is not None and self._packed[0] is code and stands_alone(self.function):
            return self._packed[1]
        payload = pickle_by_value(self.name, self)
        shipment = ToolPayload(key=_digest(payload), payload=payload, concurrency=concurrency)
        self._packed = (code, shipment)
        return shipment

    async def execute(self, arguments: Mapping[str, Json], context: ToolContext) -> ToolResult:
        """Call the function with coerced arguments and make a result of what it returns."""
        bound = self.schema.bind(arguments)
        if self.schema.context_parameter is not None:
            bound[self.schema.context_parameter] = context
        function: Callable[..., Any] = self.function
        if self.runs_in == "host" and not inspect.iscoroutinefunction(function):
            # The host's loop must stay free: it delivers clicks and the Stop button.
            value = await asyncio.to_thread(function, **bound)
        else:
            value = function(**bound)
        if inspect.isawaitable(value):
            value = await value
        return to_result(value, self.schema.returns, context)


@overload
def tool(function: Callable[P, R], /) -> FunctionTool[P, R]: ...
@overload
def tool(
    *,
    name: str | None = None,
    effect: Effect | None = None,
    runs_in: RunsIn = "sandbox",
    timeout_s: Deadline | None = None,
    examples: Sequence[Example] = (),
    classify: Classify | None = None,
    extract_undo_path: ExtractUndoPath | None = None,
    gather_facts: GatherFacts | None = None,
    touches: Touches | None = None,
    import_path: str = "",
    concurrency: Concurrency | None = None,
) -> Callable[[Callable[P, R]], FunctionTool[P, R]]: ...
def tool(function: Callable[P, R] | None = None, /, **options: Any) -> Any:
    """Make a tool of a function. Registers nothing.

    Works bare (`@tool`) or with options. The schema comes from the annotations, the description from the
    docstring (Google style), and `Annotated[..., Field(description=...)]` beats the docstring. A parameter
    annotated `ToolContext` is filled in and hidden from the schema.

    Args:
        function: A function with annotated parameters; `async def` too.
        name: The tool's name; the function's own without it.
        effect: What every call may do; `LOCAL_MUTATION` without it, so what forgets to say is asked about.
        runs_in: `sandbox`, or `host` for what needs the user's own process.
        timeout_s: Deadline of a call in seconds, or a function from its arguments to that; the session's
            without it.
        examples: Pairs of arguments and what a person would say to get them.
        classify: What a call with these arguments may do, when it depends on them.
        extract_undo_path: The one path a call with these arguments changes.
        gather_facts: What a policy should know about a call with these arguments.
        touches: What a call with these arguments changes in files that must have been read before.
        import_path: `module:attribute` by which the worker imports the tool instead of receiving it.
        concurrency: How it shares the worker; by default async functions overlap, others take turns.
        **options: The same, as the overloads spell them out.

    Returns:
        A callable `FunctionTool`.

    Raises:
        SignatureError: At decoration, naming the parameter and the fix.
    """
    if function is not None:
        return FunctionTool(function, **options)
    return lambda f: FunctionTool(f, **options)


def _rebuild(function: Callable[..., Any], name: str, signature: inspect.Signature) -> FunctionTool[..., Any]:
    return FunctionTool(function, name=name, signature=signature)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]


def _fingerprint(code: CodeType | None) -> Iterator[str]:
    """What a function does, functions inside it included; the same for the same source."""
    if code is not None:
        yield from (code.co_code.hex(), repr(code.co_names), repr(code.co_freevars))
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                yield from _fingerprint(constant)
            else:
                yield repr(constant)


def _source_of(function: Callable[..., Any]) -> tuple[str, str | None]:
    """Where a function was defined, in words, and its notebook cell: its id, `""` when unknown, or None."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    names = getattr(function, "__globals__", {})
    if code is None:
        return str(getattr(function, "__module__", "?")), None
    cells, get_ipython = names.get("In"), names.get("get_ipython")
    if not isinstance(cells, list) or not callable(get_ipython):
        return f"{code.co_filename}:{code.co_firstlineno}", None
    # Asked through the function's own globals: this module must not import IPython.
    get_parent = getattr(get_ipython(), "get_parent", None)
    parent = get_parent() if callable(get_parent) else {}
    return f"cell [{len(cells) - 1}]", str(parent.get("metadata", {}).get("cellId", ""))


def _checked_effect(name: str, effect: str | None) -> Effect | None:
    if effect is None or isinstance(effect, Effect):
        return effect
    try:
        return Effect(effect)
    except ValueError:
        known = ", ".join(e.name for e in Effect)
        raise SignatureError(f"Tool {name}: effect={effect!r} is no Effect. Use one of {known}.") from None


def _checked_place(name: str, runs_in: str) -> RunsIn:
    if runs_in == "sandbox":
        return "sandbox"
    if runs_in == "host":
        return "host"
    raise SignatureError(f"Tool {name}: runs_in={runs_in!r}; use 'sandbox' or 'host'.")


def _checked_timeout(name: str, timeout_s: Any) -> Deadline | None:
    if timeout_s is None or callable(timeout_s):
        told: Deadline | None = timeout_s
        return told
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not timeout_s > 0:
        raise SignatureError(f"Tool {name}: timeout_s={timeout_s!r}; use a number of seconds above 0.")
    return float(timeout_s)


def _checked_examples(schema: FunctionSchema, examples: Sequence[Example]) -> tuple[Example, ...]:
    checked = []
    for example in examples:
        try:
            arguments, said = example
            checked.append((schema.validate(arguments), str(said)))
        except (TypeError, ValueError, ToolError) as error:
            raise SignatureError(
                f"Tool {schema.name}: example {brief(example)} does not fit: {error} "
                "An example is a pair of arguments and what a person would say.",
            ) from None
    return tuple(checked)
