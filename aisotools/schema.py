"""From a function's signature and docstring to JSON Schema, and the validation of arguments against it.

The door to pydantic's model machinery, to griffe (docstrings) and to jsonschema (tools that bring a schema of
their own); all three are imported on first use.
"""

from __future__ import annotations

import difflib
import inspect
import re
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Union, cast, get_args, get_origin

from aisotools.contracts import ToolContext
from aisotools.events import Json, ToolResult
from aisotools.exceptions import ArgumentError, SignatureError, ToolError

if TYPE_CHECKING:
    from pydantic import BaseModel, TypeAdapter
    from pydantic.fields import FieldInfo

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}\Z")
_SECTIONS = re.compile(r"^\s*(Args|Arguments|Parameters|Params)\s*:\s*$", re.MULTILINE)


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
        returns: Checks and serialises the return value, or None when its type is not for JSON.
    """

    name: str
    description: str
    parameters: Mapping[str, Json]
    context_parameter: str | None
    model: type[BaseModel]
    returns: TypeAdapter[Any] | None

    def validate(self, arguments: Mapping[str, Any]) -> dict[str, Json]:
        """The arguments as JSON, coerced; only those that were given.

        Raises:
            ArgumentError: Naming every argument that does not fit, and what would.
        """
        valid = self._model_of(arguments)
        return valid.model_dump(mode="json", by_alias=True, exclude_unset=True)

    def bind(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments as Python values to call the function with.

        Raises:
            ArgumentError: As `validate` does.
        """
        valid = self._model_of(arguments)
        fields = type(valid).model_fields
        return {str(fields[f].alias): getattr(valid, f) for f in valid.model_fields_set}

    def _model_of(self, arguments: Mapping[str, Any]) -> BaseModel:
        from pydantic import ValidationError

        if not isinstance(arguments, Mapping):
            raise ArgumentError(
                f"The arguments of {self.name} must be an object with named values, "
                f"not {type(arguments).__name__}. {signature_hint(self.parameters)}",
            )
        try:
            return self.model.model_validate(dict(arguments))
        except ValidationError as error:
            problems = [
                _problem(tuple(e["loc"]), e["type"], e["msg"], e.get("input"), self.parameters)
                for e in error.errors(include_url=False, include_context=False)
            ]
            raise ArgumentError(argument_message(self.name, problems, self.parameters)) from None


def function_schema(function: Callable[..., Any], name: str | None = None) -> FunctionSchema:
    """Read a function's signature and docstring.

    Args:
        function: Any function with annotated parameters; `async def` too.
        name: The tool's name; the function's own without it.

    Raises:
        SignatureError: Naming the parameter and the fix, when this cannot become a tool.
    """
    name = check_name(name or getattr(function, "__name__", ""))
    try:
        signature = inspect.signature(function, eval_str=True)
    except NameError as error:
        raise SignatureError(
            f"Tool {name}: an annotation cannot be resolved ({error}). Import or define that name first.",
        ) from None
    except (TypeError, ValueError) as error:
        raise SignatureError(f"Tool {name}: {function!r} has no readable signature ({error}).") from None
    description, documented = _read_docstring(inspect.getdoc(function) or "")
    context_parameter = None
    fields: dict[str, Any] = {}
    for number, parameter in enumerate(signature.parameters.values()):
        if _is_context(parameter.annotation):
            context_parameter = parameter.name
            continue
        fields[f"argument_{number}"] = _field(name, parameter, documented.get(parameter.name))
    model = _build_model(name, fields)
    return FunctionSchema(
        name=name,
        description=description,
        parameters=_json_schema(name, model),
        context_parameter=context_parameter,
        model=model,
        returns=_return_adapter(signature.return_annotation),
    )


def _is_context(annotation: Any) -> bool:
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if get_origin(annotation) in {Union, types.UnionType}:
        return any(a is ToolContext for a in get_args(annotation))
    return annotation is ToolContext


def _field(tool: str, parameter: inspect.Parameter, documented: str | None) -> tuple[Any, FieldInfo]:
    """One parameter as pydantic's (type, field); refuses what a JSON object cannot carry."""
    from pydantic import Field
    from pydantic.fields import FieldInfo

    where = f"Tool {tool}, parameter {parameter.name!r}"
    if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
        fix = f"a list parameter such as `{parameter.name}: list[str]`"
        raise SignatureError(f"{where}: *args cannot be described to a model. Use {fix}.")
    if parameter.kind is inspect.Parameter.VAR_KEYWORD:
        fix = f"a dict parameter such as `{parameter.name}: dict[str, str]`"
        raise SignatureError(f"{where}: **kwargs cannot be described to a model. Use {fix}.")
    if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
        raise SignatureError(f"{where} is positional-only, so a model cannot name it. Remove the `/`.")
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
        return Annotated[annotation, parameter.default], Field(**extra)
    _check_default(where, annotation, parameter)
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


def _check_default(where: str, annotation: Any, parameter: inspect.Parameter) -> None:
    from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter, ValidationError

    if type(parameter.default) is annotation:
        return
    try:
        TypeAdapter(annotation).validate_python(parameter.default)
    except ValidationError:
        name = parameter.name
        told = inspect.formatannotation(annotation)
        fix = f"`{name}: {told} | None = None`" if parameter.default is None else f"a default of type {told}"
        raise SignatureError(
            f"{where}: the default {parameter.default!r} does not fit its type {told}. Use {fix}.",
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
        raise SignatureError(
            f"Tool {tool}: {told}, which has no JSON form. "
            "Take plain values (numbers, text, lists, dicts, models); build the object inside the function.",
        ) from None


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
    _drop_titles(schema)
    schema.setdefault("properties", {})
    return schema


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


def _return_adapter(annotation: Any) -> TypeAdapter[Any] | None:
    if annotation is inspect.Signature.empty or annotation is ToolResult or annotation is Any:
        return None
    from pydantic import PydanticUserError, TypeAdapter

    try:
        adapter: TypeAdapter[Any] = TypeAdapter(annotation)
        adapter.json_schema(mode="serialization")
    except (PydanticUserError, TypeError):
        return None  # a figure or a table: shown to people, not typed for programs
    return adapter


@lru_cache(maxsize=256)
def _read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """The description, and what the docstring says of each parameter."""
    if not _SECTIONS.search(text):
        return text.strip(), {}
    import logging

    import griffe

    logging.getLogger("griffe").setLevel(logging.CRITICAL)  # it logs about docstrings that are not perfect
    described: list[str] = []
    parameters: dict[str, str] = {}
    for section in griffe.Docstring(text).parse("google", warnings=False):
        if section.kind is griffe.DocstringSectionKind.text:
            described.append(section.value)
        elif section.kind is griffe.DocstringSectionKind.parameters:
            parameters.update({p.name: " ".join(p.description.split()) for p in section.value})
    return "\n\n".join(described).strip(), parameters


# ---- messages that a model can act on


def signature_hint(parameters: Mapping[str, Json]) -> str:
    """The arguments in one line, as `Expected: width (number, required), unit (string)`."""
    properties = parameters.get("properties", {})
    required = set(parameters.get("required", ()))
    if not properties:
        return "It takes no arguments."
    told = []
    for name, schema in list(properties.items())[:20]:
        kind = _kind(schema)
        told.append(f"{name} ({kind}, required)" if name in required else f"{name} ({kind})")
    return "Expected: " + ", ".join(told) + "."


def _kind(schema: Json) -> str:
    if not isinstance(schema, Mapping):
        return "any"
    if "enum" in schema:
        return "one of " + ", ".join(repr(v) for v in schema["enum"][:12])
    if "const" in schema:
        return repr(schema["const"])
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_kind(s) for s in schema["anyOf"]))
    if "$ref" in schema:
        return str(schema["$ref"]).rsplit("/", 1)[-1]
    return str(schema.get("type", "any"))


def argument_message(tool: str, problems: Sequence[str], parameters: Mapping[str, Json]) -> str:
    """All problems with the arguments of one call, and what would fit."""
    listed = "; ".join(dict.fromkeys(problems))
    return f"The arguments of {tool} do not fit: {listed}. {signature_hint(parameters)}"


def _problem(loc: tuple[Any, ...], kind: str, message: str, value: Any, schema: Mapping[str, Json]) -> str:
    path = ".".join(str(part) for part in loc) or "arguments"
    known = list(schema.get("properties", {}))
    if kind == "missing":
        return f"{path} is missing"
    if kind == "extra_forbidden":
        near = difflib.get_close_matches(str(loc[-1]), known, n=1) if len(loc) == 1 else []
        return f"{path} is not an argument" + (f" (did you mean {near[0]}?)" if near else "")
    shown = repr(value)
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    return f"{path}: {message[0].lower() + message[1:]}, got {shown}"


# ---- tools that bring a schema and nothing else


def validate_against(schema: Mapping[str, Json], arguments: Mapping[str, Any], tool: str) -> dict[str, Json]:
    """The arguments as plain JSON, checked against a JSON Schema; nothing is coerced.

    Raises:
        ArgumentError: Naming every argument that does not fit.
        ToolError: If the schema itself is broken; not recoverable.
    """
    import jsonschema
    from pydantic_core import PydanticSerializationError, from_json, to_json

    if not isinstance(arguments, Mapping):
        raise ArgumentError(
            f"The arguments of {tool} must be an object, not {type(arguments).__name__}. "
            f"{signature_hint(schema)}",
        )
    try:
        plain: dict[str, Json] = from_json(to_json(dict(arguments)))
    except (PydanticSerializationError, ValueError) as error:
        raise ArgumentError(f"The arguments of {tool} are not JSON: {error}.") from None
    try:
        validator = jsonschema.Draft202012Validator(dict(schema))
        errors = sorted(validator.iter_errors(plain), key=lambda e: [str(p) for p in e.absolute_path])
    except (jsonschema.SchemaError, jsonschema.exceptions.UnknownType, re.error, TypeError) as error:
        raise ToolError(f"The schema of {tool} is broken: {error}", recoverable=False) from None
    if errors:
        problems = [_schema_problem(e, schema) for e in errors[:8]]
        raise ArgumentError(argument_message(tool, problems, schema))
    return plain


def _schema_problem(error: Any, schema: Mapping[str, Json]) -> str:
    loc = tuple(error.absolute_path)
    if error.validator == "required":
        missing = [n for n in error.validator_value if n not in error.instance]
        return "; ".join(_problem((*loc, n), "missing", "", None, schema) for n in missing)
    if error.validator == "additionalProperties" and isinstance(error.instance, Mapping):
        known = set(error.schema.get("properties", {}))
        extra = [n for n in error.instance if n not in known]
        return "; ".join(_problem((*loc, n), "extra_forbidden", "", None, schema) for n in extra)
    return f"{'.'.join(str(p) for p in loc) or 'arguments'}: {error.message}"
