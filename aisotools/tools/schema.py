"""From a function's signature and docstring to JSON Schema, and the validation of arguments against it.

pydantic's model machinery is imported on first use.

Reading docstrings: what a model is told, and what is said of each parameter.

The door to griffe, which knows the styles of Google, NumPy and Sphinx; imported on first use.
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
from aisotools.tools.results import Returns, declared
from aisotools.tools.validation import brief, not_fitting, not_json, not_named, problem

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
_DOCUMENTS: tuple[tuple[Style, re.Pattern[str], re.Pattern[str]], ...] = (
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
def read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """The description, which is all but the sections for programmers, and what is said of each parameter.

    Args:
        text: A docstring without indentation, in the style of Google, NumPy or Sphinx.
    """
    whole = f"{text}\n"
    description = whole
    for _, _, sections in _DOCUMENTS:
        description = sections.sub("", description)
    for style, documents, _ in _DOCUMENTS:
        if documents.search(whole):
            return description.strip(), _parameters(text, style)
    return description.strip(), {}


def _parameters(text: str, style: Style) -> dict[str, str]:
    import griffe

    wanted = {griffe.DocstringSectionKind.parameters, griffe.DocstringSectionKind.other_parameters}
    found: dict[str, str] = {}
    for section in griffe.Docstring(text).parse(style, warnings=False):
        if section.kind in wanted:
            found.update(_parameter_texts(section))
    return found


def _parameter_texts(section: griffe.DocstringSection) -> dict[str, str]:
    # NumPy's style documents several parameters at once: "x, y : float".
    return {
        name.strip().lstrip("*"): " ".join(one.description.split())
        for one in section.value
        for name in one.name.split(",")
    }


_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}\Z")


def check_name(name: object) -> str:
    """The name, if a tool may bear it.

    Raises:
        SignatureError: If it is no text of 1 to 64 letters, digits, `_`, `-`, `.`.
    """
    if not isinstance(name, str) or not _NAME.match(name):
        raise SignatureError(
            f"{name!r} cannot be the name of a tool: use 1 to 64 letters, digits, '_', '-' or '.'.",
        )
    return name


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionSchema:
    """What a signature says, ready to validate with.

    Attributes:
        name: The tool's name, for messages.
        description: The docstring without its sections.
        parameters: JSON Schema of the arguments.
        context_parameter: The parameter that takes the `ToolContext`, or None.
        model: The pydantic model behind `parameters`; its fields carry the arguments as aliases.
        signature: The signature it was read from, with annotations resolved.
        secret: Whether any argument is, or holds, a `SecretStr` or the like.
        returns: Checks and serialises the return value, or None when its type is not for JSON.
    """

    name: str
    description: str
    parameters: Mapping[str, Json]
    context_parameter: str | None
    model: type[BaseModel]
    signature: inspect.Signature
    secret: bool
    returns: Returns | None

    def validate(self, arguments: Mapping[str, Any]) -> dict[str, Json]:
        """The arguments as JSON, coerced; only those that were given.

        Raises:
            ArgumentError: Naming every argument that does not fit, and what would.
            ToolError: If validating what came out would change it again; then what is shown would not be
                what runs.
        """
        first = self._model_of(arguments)
        plain = self._dumped(first)
        second = self._model_of(plain)
        if first != second and (again := self._dumped(second)) != plain and repr(again) != repr(plain):
            raise ToolError(
                f"{self.name} cannot be called: validating its arguments twice gives {brief(plain)}, then "
                f"{brief(again)}. Make the validators of its types leave alone what they have made.",
                recoverable=False,
            )
        return plain

    def bind(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments as Python values to call the function with, defaults included.

        Raises:
            ArgumentError: As `validate` does.
        """
        valid = self._model_of(arguments)
        return {str(field.alias): getattr(valid, name) for name, field in type(valid).model_fields.items()}

    def _model_of(self, arguments: Mapping[str, Any]) -> BaseModel:
        from pydantic import ValidationError

        if not isinstance(arguments, Mapping):
            raise not_named(self.name, arguments, self.parameters)
        try:
            return self.model.model_validate(dict(arguments))
        except ValidationError as error:
            problems = [
                problem(e["loc"], e["type"], e["msg"], e.get("input"), self.parameters)
                for e in error.errors(include_url=False, include_context=False)
            ]
            raise not_fitting(self.name, problems, self.parameters) from None

    def _dumped(self, valid: BaseModel) -> dict[str, Json]:
        try:
            plain = valid.model_dump(mode="json", by_alias=True, exclude_unset=True)
            if self.secret:
                # pydantic writes asterisks; the function needs the value, and records leave it out by name.
                plain = _revealed(plain, valid.model_dump(by_alias=True, exclude_unset=True))
            return plain
        except (ValueError, TypeError, RecursionError) as error:
            raise not_json(self.name, error) from None


def function_schema(
    function: Callable[..., Any], name: str | None = None, signature: inspect.Signature | None = None
) -> FunctionSchema:
    """Read a function's signature and docstring.

    Args:
        function: Any function with annotated parameters; `async def` too.
        name: The tool's name; the function's own without it.
        signature: The resolved signature of a function that was sent here to run: what its annotations name
            may not be here, and nobody reads its docstring.

    Raises:
        SignatureError: Naming the parameter and the fix, when this cannot become a tool.
    """
    if not callable(function):
        raise SignatureError(f"{brief(function)} is no function. Name a tool with @tool(name=...).")
    own_name = getattr(function, "__name__", "")
    if name is None and own_name == "<lambda>":
        raise SignatureError("A lambda has no name to call it by. Name it with tool(name=...), or use def.")
    name = check_name(own_name if name is None else name)
    text = "" if signature is not None else inspect.getdoc(function) or ""
    signature = signature or _signature(function, name)
    description, documented = read_docstring(text)
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
        secret=_hides(parameters),
        context_parameter=context_parameter,
        model=model,
        signature=signature,
        returns=declared(name, signature.return_annotation),
    )


def _signature(function: Callable[..., Any], name: str) -> inspect.Signature:
    try:
        return inspect.signature(function, eval_str=True)
    except ValueError as error:
        raise SignatureError(f"Tool {name}: {brief(function)} has no readable signature ({error}).") from None
    except Exception as error:  # an annotation is any expression
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
    """One parameter as pydantic's (type, field); refuses what a JSON object cannot carry."""
    from pydantic import Field
    from pydantic.fields import FieldInfo
    from pydantic_core import PydanticUndefined

    where = f"Tool {tool}, parameter {parameter.name!r}"
    if parameter.annotation is inspect.Parameter.empty:
        raise SignatureError(
            f"{where} has no type. Annotate it, for example `{parameter.name}: str`.",
        )
    annotation, text = _plain_annotation(parameter.annotation)
    extra: dict[str, Any] = {"alias": parameter.name}
    described = parameter.default.description if isinstance(parameter.default, FieldInfo) else None
    if text is None and documented and not described and not _described(annotation):
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


def _plain_annotation(annotation: Any) -> tuple[Any, str | None]:
    """The annotation without bare texts, and the first of those: `Annotated[str, "what it is"]`."""
    if get_origin(annotation) is not Annotated:
        return annotation, None
    inner, *marks = get_args(annotation)
    texts = [m for m in marks if isinstance(m, str)]
    rest = tuple(m for m in marks if not isinstance(m, str))
    plain = Annotated[(inner, *rest)] if rest else inner
    return plain, texts[0] if texts else None


def _described(annotation: Any) -> bool:
    from pydantic.fields import FieldInfo

    return any(isinstance(m, FieldInfo) and m.description for m in getattr(annotation, "__metadata__", ()))


def _check_default(where: str, annotation: Any, name: str, default: object) -> None:
    from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter, ValidationError

    if type(default) is annotation:
        return
    try:
        TypeAdapter(annotation).validate_python(default, strict=True)
    except ValidationError:
        told = inspect.formatannotation(annotation)
        fix = f"`{name}: {told} | None = None`" if default is None else f"a default of type {told}"
        raise SignatureError(
            f"{where}: the default {brief(default)} does not fit its type {told}. Use {fix}.",
        ) from None
    except (PydanticSchemaGenerationError, PydanticUserError):
        return  # the type itself is the problem; building the model says so


def _build_model(tool: str, fields: dict[str, Any]) -> type[BaseModel]:
    from pydantic import ConfigDict, PydanticSchemaGenerationError, PydanticUserError, create_model

    config = ConfigDict(extra="forbid", populate_by_name=False, protected_namespaces=(), defer_build=False)
    try:
        return cast("type[BaseModel]", create_model(f"{tool}_arguments", __config__=config, **fields))
    except (PydanticSchemaGenerationError, PydanticUserError) as error:
        culprit = _first_unusable(fields)
        told = f"parameter {culprit[0]!r} has type {culprit[1]}" if culprit else str(error).splitlines()[0]
        fix = "Take plain values (numbers, text, lists, dicts, models); build the object inside the function."
        if getattr(error, "code", None) == "typed-dict-version":
            fix = "Import TypedDict from typing_extensions: that of typing cannot be read before Python 3.12."
        raise SignatureError(f"Tool {tool}: {told}, which has no JSON form. {fix}") from None


def _first_unusable(fields: Mapping[str, Any]) -> tuple[str, str] | None:
    from pydantic import PydanticUserError, TypeAdapter

    for annotation, info in fields.values():
        try:
            TypeAdapter(annotation).json_schema()
        except (PydanticUserError, TypeError):
            return info.alias, inspect.formatannotation(annotation)
    return None


def _json_schema(tool: str, model: type[BaseModel]) -> dict[str, Json]:
    from pydantic.errors import PydanticInvalidForJsonSchema

    try:
        schema = model.model_json_schema(by_alias=True)
    except PydanticInvalidForJsonSchema as error:
        fields = {n: (f.rebuild_annotation(), f) for n, f in model.model_fields.items()}
        culprit = _first_unusable(fields)
        told = f"parameter {culprit[0]!r} has type {culprit[1]}" if culprit else str(error).splitlines()[0]
        raise SignatureError(
            f"Tool {tool}: {told}, which a model cannot be told about. Use a type that JSON Schema knows.",
        ) from None
    schema.setdefault("properties", {})
    _drop_titles(schema)
    return schema


def _revealed(shown: Any, real: Any) -> Any:
    """JSON with the values of secrets in place of asterisks; `real` is the same before it became JSON."""
    reveal = getattr(real, "get_secret_value", None)
    if callable(reveal):
        value = reveal()
        return value.decode() if isinstance(value, bytes) else value
    if isinstance(shown, dict) and isinstance(real, Mapping):
        return {k: _revealed(s, r) for (k, s), r in zip(shown.items(), real.values(), strict=True)}
    if isinstance(shown, list) and isinstance(real, list | tuple | set | frozenset):
        return [_revealed(s, r) for s, r in zip(shown, real, strict=True)]
    return shown


def _hides(node: Any) -> bool:
    if isinstance(node, list):
        return any(map(_hides, node))
    return isinstance(node, dict) and (node.get("writeOnly") is True or any(map(_hides, node.values())))


def _drop_titles(node: Any, *, names: bool = False) -> None:
    """Remove pydantic's made-up titles; `names` says that the keys of this node are not keywords."""
    if isinstance(node, list):
        for item in node:
            _drop_titles(item)
    elif isinstance(node, dict):
        if not names and isinstance(node.get("title"), str):
            del node["title"]
        for key, item in node.items():
            if names or key not in {"default", "const", "enum", "examples"}:
                _drop_titles(item, names=not names and key in {"properties", "$defs", "patternProperties"})
