"""Read a function's signature and docstring: JSON Schema of its arguments, description, and validation.

pydantic validates; griffe parses docstrings in the styles of Google, NumPy and Sphinx. Both take long to
import and are imported on first use.
"""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, cast, get_args, get_origin

from aisotools.core.exceptions import SignatureError, ToolError
from aisotools.core.protocols import ToolContext
from aisotools.core.types import Json
from aisotools.tools.results import ReturnType, declared_return_type
from aisotools.tools.validation import (
    MAX_PROBLEMS,
    describe_problem,
    invalid_arguments_error,
    not_an_object_error,
    not_json_error,
    short_repr,
)

if TYPE_CHECKING:
    import griffe
    from pydantic import BaseModel
    from pydantic.fields import FieldInfo


Style = Literal["google", "numpy", "sphinx"]

_GOOGLE_PARAMETERS = "(?:Keyword |Other )?(?:Args|Arguments|Params|Parameters)"
_GOOGLE_SECTION = re.compile(
    rf"^(?:{_GOOGLE_PARAMETERS}|Returns?|Yields?|Receives|Raises|Warns|Attributes)[ \t]*:[ \t]*\n"
    r"(?:[ \t].*\n|\n)*",
    re.MULTILINE,
)
_NUMPY_SECTION = re.compile(
    r"^(?:(?:Other |Keyword )?Parameters|Returns?|Yields?|Receives|Raises|Warns|Warnings|Attributes|Methods"
    r"|See Also|References)[ \t]*\n[ \t]*-{3,}[ \t]*\n(?:(?!.*\n[ \t]*-{3,}[ \t]*\n).*\n)*",
    re.MULTILINE,
)
_SPHINX_FIELD = re.compile(
    r"^:(?:param|parameter|arg|argument|key|keyword|type|returns?|rtype|raises?|except|exception|var|ivar|cvar"
    r"|vartype|meta)\b[^:\n]*:.*\n(?:[ \t]+.*\n)*",
    re.MULTILINE,
)
# For each style: what shows that a docstring documents parameters in it, and its sections for programmers.
_STYLES: tuple[tuple[Style, re.Pattern[str], re.Pattern[str]], ...] = (
    (
        "google",
        re.compile(rf"^{_GOOGLE_PARAMETERS}[ \t]*:[ \t]*$", re.MULTILINE),
        _GOOGLE_SECTION,
    ),
    (
        "numpy",
        re.compile(r"^(?:Other |Keyword )?Parameters[ \t]*\n[ \t]*-{3,}[ \t]*$", re.MULTILINE),
        _NUMPY_SECTION,
    ),
    (
        "sphinx",
        re.compile(r"^:(?:param|parameter|arg|argument|key|keyword)\b[^:\n]*:", re.MULTILINE),
        _SPHINX_FIELD,
    ),
)


@lru_cache(maxsize=256)
def parse_docstring(text: str) -> tuple[str, dict[str, str]]:
    """Return the description, without the sections for programmers, and the text of each parameter.

    Args:
        text: A docstring without indentation, in the style of Google, NumPy or Sphinx.
    """
    whole = f"{text}\n"
    description = whole
    for _, _, sections in _STYLES:
        description = sections.sub("", description)
    for style, documents, _ in _STYLES:
        if documents.search(whole):
            return description.strip(), _parameters(text, style)
    return description.strip(), {}


def _parameters(text: str, style: Style) -> dict[str, str]:
    import griffe

    kinds = {griffe.DocstringSectionKind.parameters, griffe.DocstringSectionKind.other_parameters}
    texts: dict[str, str] = {}
    for section in griffe.Docstring(text).parse(style, warnings=False):
        if section.kind in kinds:
            texts.update(_parameter_texts(section))
    return texts


def _parameter_texts(section: griffe.DocstringSection) -> dict[str, str]:
    # NumPy's style may document several parameters in one entry: "x, y : float".
    return {
        name.strip().lstrip("*"): " ".join(entry.description.split())
        for entry in section.value
        for name in entry.name.split(",")
    }


_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}\Z")


def check_name(name: object) -> str:
    """Return `name` if it is valid for a tool.

    Raises:
        SignatureError: If it is not a text of 1 to 64 letters, digits, `_`, `-`, `.`.
    """
    if not isinstance(name, str) or not _NAME.match(name):
        raise SignatureError(
            f"{name!r} cannot be the name of a tool: use 1 to 64 letters, digits, '_', '-' or '.'.",
        )
    return name


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionSchema:
    """The schema of a function's arguments, with the validation against it.

    Attributes:
        name: The tool's name, for error messages.
        description: The docstring without its sections.
        parameters: JSON Schema of the arguments.
        context_parameter: The parameter that takes the `ToolContext`, or None.
        model: The pydantic model behind `parameters`. The aliases of its fields are the argument names.
        signature: The signature it was read from, with annotations resolved.
        secret: Whether an argument is or contains a `SecretStr` or `SecretBytes`.
        returns: Checks and serializes the return value; None if its type has no JSON form.
    """

    name: str
    description: str
    parameters: Mapping[str, Json]
    context_parameter: str | None
    model: type[BaseModel]
    signature: inspect.Signature
    secret: bool
    returns: ReturnType | None

    def validate(self, arguments: Mapping[str, Any]) -> dict[str, Json]:
        """Return the arguments as JSON, coerced to the annotated types, without defaults.

        Raises:
            ArgumentError: Naming every argument that does not fit, and the expected ones.
            ToolError: If validating the output changes it again; not recoverable. The call that is shown
                would not be the call that runs.
        """
        first = self._parse(arguments)
        plain = self._dump(first)
        second = self._parse(plain)
        if first == second:
            return plain
        # Unequal models may still be the same call: values such as NaN are not equal to themselves.
        again = self._dump(second)
        if again != plain and repr(again) != repr(plain):
            raise ToolError(
                f"{self.name} cannot be called: validating its arguments twice gives {short_repr(plain)}, "
                f"then {short_repr(again)}. Its validators must return their own output unchanged.",
                recoverable=False,
            )
        return plain

    def bind(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments as Python values to call the function with, defaults included.

        Raises:
            ArgumentError: Naming every argument that does not fit, and the expected ones.
        """
        valid = self._parse(arguments)
        return {str(field.alias): getattr(valid, name) for name, field in type(valid).model_fields.items()}

    def _parse(self, arguments: Mapping[str, Any]) -> BaseModel:
        from pydantic import ValidationError

        if not isinstance(arguments, Mapping):
            raise not_an_object_error(self.name, arguments, self.parameters)
        try:
            return self.model.model_validate(dict(arguments))
        except ValidationError as error:
            errors = error.errors(include_url=False, include_context=False)
            # Twice as many as are listed, since some have the same description.
            described = errors[: 2 * MAX_PROBLEMS]
            problems = [
                describe_problem(e["loc"], e["type"], e["msg"], e.get("input"), self.parameters)
                for e in described
            ]
            more = len(errors) - len(described)
            raise invalid_arguments_error(self.name, problems, self.parameters, more=more) from None

    def _dump(self, valid: BaseModel) -> dict[str, Json]:
        try:
            plain = valid.model_dump(mode="json", by_alias=True, exclude_unset=True)
            if self.secret:
                # pydantic dumps secrets as asterisks, but the function needs the value. Records omit the
                # argument by its name.
                plain = _reveal_secrets(plain, valid.model_dump(by_alias=True, exclude_unset=True))
            return plain
        except (ValueError, TypeError, RecursionError) as error:
            raise not_json_error(self.name, error) from None


def function_schema(
    function: Callable[..., Any], name: str | None = None, signature: inspect.Signature | None = None
) -> FunctionSchema:
    """Read a function's signature and docstring.

    Args:
        function: Any function with annotated parameters; `async def` too.
        name: The tool's name. Default: the function's.
        signature: The resolved signature of a function that was unpickled in a worker. The names in its
            annotations may not exist there, and its docstring is not needed.

    Raises:
        SignatureError: If the function cannot become a tool; the message names the parameter and the fix.
    """
    if not callable(function):
        raise SignatureError(f"{short_repr(function)} is not a function. Name a tool with @tool(name=...).")
    own_name = getattr(function, "__name__", "")
    if name is None and own_name == "<lambda>":
        raise SignatureError("A lambda has no name. Name it with tool(name=...), or use def.")
    name = check_name(own_name if name is None else name)
    text = "" if signature is not None else inspect.getdoc(function) or ""
    signature = signature or _signature(function, name)
    description, documented = parse_docstring(text)
    context_parameter = None
    fields: dict[str, Any] = {}
    for number, parameter in enumerate(signature.parameters.values()):
        _check_kind(name, number, parameter)
        if not _is_context(parameter.annotation):
            fields[f"argument_{number}"] = _field(name, parameter, documented.get(parameter.name))
        elif context_parameter is None:
            context_parameter = parameter.name
        else:
            raise SignatureError(
                f"Tool {name}: {context_parameter!r} and {parameter.name!r} both take the ToolContext. "
                "Keep one.",
            )
    model = _build_model(name, fields)
    parameters = _json_schema(name, model)
    return FunctionSchema(
        name=name,
        description=description,
        parameters=parameters,
        secret=_has_secret(parameters),
        context_parameter=context_parameter,
        model=model,
        signature=signature,
        returns=declared_return_type(name, signature.return_annotation),
    )


def _signature(function: Callable[..., Any], name: str) -> inspect.Signature:
    try:
        return inspect.signature(function, eval_str=True)
    except ValueError as error:
        raise SignatureError(
            f"Tool {name}: {short_repr(function)} has no readable signature ({error})."
        ) from None
    except Exception as error:
        # An annotation may be any expression, so evaluating it may raise anything.
        raise SignatureError(
            f"Tool {name}: an annotation cannot be resolved ({error}). Import or define that name first.",
        ) from None


def _is_context(annotation: Any) -> bool:
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if get_origin(annotation) in {Union, types.UnionType}:
        return any(a is ToolContext for a in get_args(annotation))
    return annotation is ToolContext


def _check_kind(tool: str, number: int, parameter: inspect.Parameter) -> None:
    where = f"Tool {tool}, parameter {parameter.name!r}"
    if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
        fix = f"a list parameter such as `{parameter.name}: list[str]`"
        raise SignatureError(f"{where}: *args cannot be described to a model. Use {fix}.")
    if parameter.kind is inspect.Parameter.VAR_KEYWORD:
        fix = f"a dict parameter such as `{parameter.name}: dict[str, str]`"
        raise SignatureError(f"{where}: **kwargs cannot be described to a model. Use {fix}.")
    if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
        raise SignatureError(f"{where} is positional-only, so a model cannot name it. Remove the `/`.")
    untyped = parameter.annotation is inspect.Parameter.empty
    if untyped and number == 0 and parameter.name in {"self", "cls"}:
        raise SignatureError(
            f"{where}: a method cannot be a tool by itself. Make a tool of the bound one, "
            f"`tool(thing.{tool})`, or of a plain function.",
        )


def _field(tool: str, parameter: inspect.Parameter, documented: str | None) -> tuple[Any, FieldInfo]:
    """Return the parameter as pydantic's (type, field). Refuse what a JSON object cannot carry."""
    from pydantic import Field
    from pydantic.fields import FieldInfo
    from pydantic_core import PydanticUndefined

    where = f"Tool {tool}, parameter {parameter.name!r}"
    if parameter.annotation is inspect.Parameter.empty:
        raise SignatureError(
            f"{where} has no type. Annotate it, for example `{parameter.name}: str`.",
        )
    annotation, text = _split_annotation(parameter.annotation)
    extra: dict[str, Any] = {"alias": parameter.name}
    described = parameter.default.description if isinstance(parameter.default, FieldInfo) else None
    if text is None and documented and not described and not _has_description(annotation):
        text = documented
    if text is not None:
        extra["description"] = text
    if parameter.default is inspect.Parameter.empty:
        return annotation, Field(**extra)
    if isinstance(parameter.default, FieldInfo):
        if parameter.default.default is not PydanticUndefined:
            _check_default(where, annotation, parameter.name, parameter.default.default)
        return Annotated[annotation, parameter.default], Field(**extra)
    _check_default(where, annotation, parameter.name, parameter.default)
    return annotation, Field(default=parameter.default, **extra)


def _split_annotation(annotation: Any) -> tuple[Any, str | None]:
    """Split `Annotated[str, "a description"]` into the annotation without bare texts, and the first text."""
    if get_origin(annotation) is not Annotated:
        return annotation, None
    inner, *marks = get_args(annotation)
    texts = [m for m in marks if isinstance(m, str)]
    rest = tuple(m for m in marks if not isinstance(m, str))
    plain = Annotated[(inner, *rest)] if rest else inner
    return plain, texts[0] if texts else None


def _has_description(annotation: Any) -> bool:
    from pydantic.fields import FieldInfo

    return any(isinstance(m, FieldInfo) and m.description for m in getattr(annotation, "__metadata__", ()))


def _check_default(where: str, annotation: Any, name: str, default: object) -> None:
    from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter, ValidationError

    if type(default) is annotation:
        return
    try:
        TypeAdapter(annotation).validate_python(default, strict=True)
    except ValidationError:
        type_name = inspect.formatannotation(annotation)
        fix = f"a default of type {type_name}"
        if default is None:
            fix = f"`{name}: {type_name} | None = None`"
        raise SignatureError(
            f"{where}: the default {short_repr(default)} does not fit its type {type_name}. Use {fix}.",
        ) from None
    except (PydanticSchemaGenerationError, PydanticUserError):
        # The type itself is the problem. Building the model reports it.
        return


def _build_model(tool: str, fields: dict[str, Any]) -> type[BaseModel]:
    from pydantic import ConfigDict, PydanticSchemaGenerationError, PydanticUserError, create_model

    config = ConfigDict(extra="forbid", populate_by_name=False, protected_namespaces=(), defer_build=False)
    try:
        return cast("type[BaseModel]", create_model(f"{tool}_arguments", __config__=config, **fields))
    except (PydanticSchemaGenerationError, PydanticUserError) as error:
        problem = _describe_unusable(fields, error)
        fix = "Take plain values (numbers, text, lists, dicts, models); build the object inside the function."
        if error.code == "typed-dict-version":
            fix = "Import TypedDict from typing_extensions: before Python 3.12 that of typing cannot be read."
        raise SignatureError(f"Tool {tool}: {problem}, which has no JSON form. {fix}") from None


def _describe_unusable(fields: Mapping[str, Any], error: Exception) -> str:
    """Name the first parameter whose type has no JSON Schema, or else return the first line of `error`."""
    from pydantic import PydanticUserError, TypeAdapter

    for annotation, info in fields.values():
        try:
            TypeAdapter(annotation).json_schema()
        except (PydanticUserError, TypeError):
            return f"parameter {info.alias!r} has type {inspect.formatannotation(annotation)}"
    return str(error).splitlines()[0]


def _json_schema(tool: str, model: type[BaseModel]) -> dict[str, Json]:
    from pydantic.errors import PydanticInvalidForJsonSchema

    try:
        schema = model.model_json_schema(by_alias=True)
    except PydanticInvalidForJsonSchema as error:
        fields = {n: (f.rebuild_annotation(), f) for n, f in model.model_fields.items()}
        problem = _describe_unusable(fields, error)
        raise SignatureError(f"Tool {tool}: {problem}, which JSON Schema cannot express.") from None
    schema.setdefault("properties", {})
    _drop_titles(schema)
    return schema


def _reveal_secrets(dumped: Any, python: Any) -> Any:
    """Return `dumped` with secrets in clear instead of asterisks; `python` is the same before dumping."""
    reveal = getattr(python, "get_secret_value", None)
    if callable(reveal):
        value = reveal()
        return value.decode() if isinstance(value, bytes) else value
    if isinstance(dumped, dict) and isinstance(python, Mapping):
        pairs = zip(dumped.items(), python.values(), strict=True)
        return {key: _reveal_secrets(item, real) for (key, item), real in pairs}
    if isinstance(dumped, list) and isinstance(python, list | tuple | set | frozenset):
        return [_reveal_secrets(item, real) for item, real in zip(dumped, python, strict=True)]
    return dumped


def _has_secret(node: Any) -> bool:
    if isinstance(node, list):
        return any(map(_has_secret, node))
    return isinstance(node, dict) and (node.get("writeOnly") is True or any(map(_has_secret, node.values())))


def _drop_titles(node: Any, *, names: bool = False) -> None:
    """Remove the titles that pydantic generates; `names` is true where keys are names and not keywords."""
    if isinstance(node, list):
        for item in node:
            _drop_titles(item)
    elif isinstance(node, dict):
        if not names and isinstance(node.get("title"), str):
            del node["title"]
        for key, item in node.items():
            if names or key not in {"default", "const", "enum", "examples"}:
                _drop_titles(item, names=not names and key in {"properties", "$defs", "patternProperties"})
