"""`@tool`: make a tool of a Python function.

A function tool runs in the sandbox unless it is declared with `runs_in="host"`. It is pickled by value at
each call, so that it has the current state of what it refers to; built-in tools are sent by import path.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import CodeType
from typing import Any, Generic, ParamSpec, TypeVar, cast, overload

from aisotools.core.exceptions import SignatureError, ToolError
from aisotools.core.protocols import Concurrency, Declaration, Programs, ToolContext, ToolPayload
from aisotools.core.threads import start_tool_function
from aisotools.core.types import Effect, Facts, Json, RunsIn, ToolResult
from aisotools.tools.results import to_result
from aisotools.tools.schema import FunctionSchema, function_schema
from aisotools.tools.serialization import is_self_contained, pickle_by_value
from aisotools.tools.validation import short_repr
from aisotools.workspace.read_tracker import FileTouch

P = ParamSpec("P")
R = TypeVar("R")

Example = tuple[Mapping[str, Json], str]
"""Arguments, and a request they answer."""

Classify = Callable[[Mapping[str, Json]], Effect]
"""Returns the effect of a call with these arguments."""

ExtractUndoPath = Callable[[Mapping[str, Json]], "Path | None"]
"""Returns the one path that a call with these arguments changes, or None."""

GatherFacts = Callable[[Mapping[str, Json]], Facts]
"""Returns the facts of a call with these arguments that a policy decides on."""

Touches = Callable[[Mapping[str, Json]], Sequence[FileTouch]]
"""Returns the changes of a call with these arguments to files that must have been read before."""

Deadline = float | Callable[[Mapping[str, Json]], float | None]
"""Seconds a call may take, or a function from its arguments to that. None means the session's default."""

READ_ONLY_NOTE = (
    "It only reads: a sandbox that can enforce this runs it without write rights, and what it changes of the "
    "variables does not reach the worker."
)
"""Ends the description of a tool in the sandbox that is declared read only."""


class FunctionTool(Generic[P, R]):
    """A function that is also a `Tool`. Calling it calls the function.

    `@tool` makes them. They are not registered anywhere by that.
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
        programs: Programs = "any",
        signature: inspect.Signature | None = None,
    ) -> None:
        """Read the signature; see `tool` for the arguments and errors.

        A function that was unpickled in a worker brings its resolved `signature` along: the names in its
        annotations may not exist there.
        """
        self.function = function
        self.schema: FunctionSchema = function_schema(function, name, signature)
        self.name = self.schema.name
        self.examples = _check_examples(self.schema, examples)
        self.effect = _check_effect(self.schema.name, effect)
        self.runs_in: RunsIn = _check_runs_in(self.schema.name, runs_in)
        self.description = self.schema.description
        if self.effect is Effect.READ_ONLY and self.runs_in == "sandbox" and not import_path:
            self.description = f"{self.description}\n\n{READ_ONLY_NOTE}".lstrip()
        self.timeout_s = _check_timeout(self.schema.name, timeout_s)
        self.source, self.cell = ("built-in", None) if import_path else _source_of(function)
        self._classify = classify
        self._extract_undo_path = extract_undo_path
        self._gather_facts = gather_facts
        self._touches = touches
        default: Concurrency = "overlap" if inspect.iscoroutinefunction(function) else "main"
        self._concurrency: Concurrency = concurrency or default
        self._programs = programs
        self._imported: ToolPayload | None = None  # what runs if the worker imports it
        if import_path:
            self._imported = ToolPayload(
                key=import_path,
                import_path=import_path,
                concurrency=self._concurrency,
                programs=programs,
            )
        self._cached_payload: tuple[object, ToolPayload] | None = None  # with the code it was made of
        self.__name__ = self.schema.name
        self.__doc__ = function.__doc__
        self.__wrapped__ = function

    def __repr__(self) -> str:
        return f"<tool {self.name} ({self.runs_in}) from {self.source}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function directly, in this process and without any policy: it is the caller's own code."""
        return self.function(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        # A worker only runs the function. What decides about calls stays on the host and is not sent.
        return _rebuild, (self.function, self.name, self.schema.signature)

    @cached_property
    def version(self) -> str:
        """A digest of the function's code and of the definition that a model reads."""
        definition = [
            self.name,
            self.description,
            repr(self.schema.parameters),
            self.runs_in,
            repr(self.effect),
        ]
        code = getattr(inspect.unwrap(self.function), "__code__", None)
        return _digest("\0".join([*definition, *_fingerprint(code)]).encode("utf-8", "surrogatepass"))

    def parameters_schema(self) -> Mapping[str, Json]:
        """Return the JSON Schema of the arguments."""
        return self.schema.parameters

    def classify(self, arguments: Mapping[str, Json]) -> Effect:
        """Return the effect of a call: as declared, else `LOCAL_MUTATION`."""
        if self._classify is not None:
            return self._classify(arguments)
        return self.effect or Effect.LOCAL_MUTATION

    @property
    def declaration(self) -> Declaration:
        """`computed` by `classify` or `gather_facts`, `constant` by `effect`, or `none`."""
        if self._gather_facts is not None or self._classify is not None:
            return "computed"
        return "none" if self.effect is None else "constant"

    def extract_undo_path(self, arguments: Mapping[str, Json]) -> Path | None:
        """Return the one path a call changes, or None."""
        return self._extract_undo_path(arguments) if self._extract_undo_path else None

    def gather_facts(self, arguments: Mapping[str, Json]) -> Facts:
        """Return the facts of a call that a policy decides on."""
        if self._gather_facts is not None:
            return self._gather_facts(arguments)
        return Facts(effect=self.classify(arguments))

    def touches(self, arguments: Mapping[str, Json]) -> Sequence[FileTouch]:
        """Return the changes of a call to files that must have been read before. Default: none."""
        return self._touches(arguments) if self._touches is not None else ()

    def validate_arguments(self, arguments: Mapping[str, Any]) -> dict[str, Json]:
        """Return the arguments as JSON, coerced to the annotated types.

        Raises:
            ArgumentError: Naming every argument that does not fit.
        """
        return self.schema.validate(arguments)

    def validate_value(self, value: Json) -> None:
        """Check a value that a sandbox returned against the declared return type.

        Raises:
            ToolError: If it does not fit.
        """
        if self.schema.returns is not None:
            self.schema.returns.check(value)

    def shipment(self) -> ToolPayload | None:
        """Return how to run it in a sandbox, or None if it runs on the host.

        The function is pickled anew at each call, since what it refers to may have changed. The key is a
        digest of the pickle, so a worker that has the same one already does not receive it again.

        Raises:
            SignatureError: If the function refers to something that cannot be sent.
        """
        if self.runs_in == "host":
            return None
        if self._imported is not None:
            return self._imported
        code = getattr(self.function, "__code__", None)
        if self._cached_payload is not None:
            cached_code, cached = self._cached_payload
            if cached_code is code and is_self_contained(self.function):
                return cached
        pickled = pickle_by_value(self.name, self)
        payload = ToolPayload(
            key=_digest(pickled), payload=pickled, concurrency=self._concurrency, programs=self._programs
        )
        self._cached_payload = (code, payload)
        return payload

    async def execute(self, arguments: Mapping[str, Json], context: ToolContext) -> ToolResult:
        """Call the function with coerced arguments and convert its return value to a result."""
        bound = self.schema.bind(arguments)
        if self.schema.context_parameter is not None:
            bound[self.schema.context_parameter] = context
        function: Callable[..., Any] = self.function
        if self.runs_in == "host" and not inspect.iscoroutinefunction(function):
            # A blocking function would stop the event loop, which delivers clicks and the Stop button.
            value = await start_tool_function(function, **bound)
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
    programs: Programs = "any",
) -> Callable[[Callable[P, R]], FunctionTool[P, R]]: ...
def tool(function: Callable[P, R] | None = None, /, **options: Any) -> Any:
    """Make a tool of a function. It is not registered anywhere by that.

    Works bare (`@tool`) or with options. The schema comes from the annotations. The descriptions come from
    the docstring, in the style of Google, NumPy or Sphinx; `Annotated[..., Field(description=...)]` takes
    precedence. A parameter annotated `ToolContext` is filled in and hidden from the schema.

    Args:
        function: A function with annotated parameters; `async def` too.
        name: The tool's name. Default: the function's.
        effect: The effect of every call. Default: `LOCAL_MUTATION`, which the policy asks about. A call in
            the sandbox that is `READ_ONLY` sees the present variables in a copy of the worker that can change
            nothing; what it changes of the variables stays in that copy, and the description says so. Where
            no level holds it to that, it counts as `LOCAL_MUTATION`.
        runs_in: `sandbox`, or `host` for a function that needs the user's own process. Nothing holds such a
            function to its effect: `READ_ONLY` is believed, a change is asked about also in mode `auto`
            unless its facts name files in the workspace, and without any declaration every call is asked
            about in every mode but `plan`, which denies it.
        timeout_s: Deadline of a call in seconds, or a function from its arguments to that. Default: the
            session's.
        examples: Pairs of arguments and a request that they answer.
        classify: Returns the effect of a call, where it depends on the arguments.
        extract_undo_path: Returns the one path that a call changes, or None.
        gather_facts: Returns the facts of a call that the policy decides on. Like `classify` it is called
            twice for each call, must answer the same both times, and has two seconds.
        touches: Returns the changes of a call to files that must have been read before.
        import_path: `module:attribute` by which the worker imports the tool instead of receiving it.
        concurrency: How it shares the worker. Default: async functions overlap, others take turns.
        programs: Which programs it starts; only `"any"` spares those of yours when another call is stopped.
        **options: The same, as the overloads list them.

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
    """Yield the code of a function and of those inside it, without line numbers and file names."""
    if code is not None:
        yield from (code.co_code.hex(), repr(code.co_names), repr(code.co_freevars))
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                yield from _fingerprint(constant)
            else:
                yield repr(constant)


def _source_of(function: Callable[..., Any]) -> tuple[str, str | None]:
    """Return where a function was defined, for people, and its cell: an id, `""` if unknown, or None."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    names = getattr(function, "__globals__", {})
    if code is None:
        return str(getattr(function, "__module__", "?")), None
    cells, get_ipython = names.get("In"), names.get("get_ipython")
    if not isinstance(cells, list) or not callable(get_ipython):
        return f"{code.co_filename}:{code.co_firstlineno}", None
    # IPython is found through the function's own globals: this module must not import it.
    get_parent = getattr(get_ipython(), "get_parent", None)
    parent = get_parent() if callable(get_parent) else {}
    return f"cell [{len(cells) - 1}]", str(parent.get("metadata", {}).get("cellId", ""))


def _check_effect(name: str, effect: str | None) -> Effect | None:
    if effect is None or isinstance(effect, Effect):
        return effect
    try:
        return Effect(effect)
    except ValueError:
        known = ", ".join(e.name for e in Effect)
        raise SignatureError(
            f"Tool {name}: effect={effect!r} is not an effect. Use one of {known}."
        ) from None


def _check_runs_in(name: str, runs_in: str) -> RunsIn:
    if runs_in == "sandbox":
        return "sandbox"
    if runs_in == "host":
        return "host"
    raise SignatureError(f"Tool {name}: runs_in={runs_in!r}; use 'sandbox' or 'host'.")


def _check_timeout(name: str, timeout_s: Any) -> Deadline | None:
    if timeout_s is None or callable(timeout_s):
        return cast("Deadline | None", timeout_s)
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not timeout_s > 0:
        raise SignatureError(f"Tool {name}: timeout_s={timeout_s!r}; use a number of seconds above 0.")
    return float(timeout_s)


def _check_examples(schema: FunctionSchema, examples: Sequence[Example]) -> tuple[Example, ...]:
    valid = []
    for example in examples:
        try:
            arguments, request = example
            valid.append((schema.validate(arguments), str(request)))
        except (TypeError, ValueError, ToolError) as error:
            raise SignatureError(
                f"Tool {schema.name}: example {short_repr(example)} does not fit: {error} "
                "An example is a pair: arguments, and a request that they answer.",
            ) from None
    return tuple(valid)
