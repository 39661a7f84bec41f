"""The source of tools that were made in a notebook or a script, with what they need, as code of its own."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from aisotools.contracts import Tool
from aisotools.redact import redact_text

_MOST_CONSTANT_CHARS = 1_000
_REGISTER = "current_session().registry.register"


def sources_of(tools: Iterable[Tool]) -> str:
    """Code that defines and registers those of `tools` whose source is known; empty if there are none.

    What a function names is brought along: imports, constants, and functions and classes that lie beside it.
    Secrets of a known shape are left out.
    """
    gathering = _Gathering()
    names = [name for tool in tools if (name := gathering.add_tool(tool))]
    if not names:
        return ""
    registered = f"for made in ({', '.join(names)},):\n    {_REGISTER}(made)"
    imports = "\n".join(sorted({*gathering.imports, "from aisotools import current_session"}))
    return redact_text("\n\n".join([imports, *gathering.definitions, registered]))


def has_source(tool: Tool | None) -> bool:
    """Whether code can be had that defines this tool."""
    return tool is not None and bool(_source(_function_of(tool)))


def _function_of(tool: object) -> Any:
    """The function behind a tool; None for one that is built in, or no function."""
    function = getattr(tool, "function", None)
    return None if getattr(tool, "source", "") == "built-in" else function


def _source(thing: Any) -> str:
    if thing is None:
        return ""
    try:
        return textwrap.dedent(inspect.getsource(thing)).strip()
    except (OSError, TypeError):
        return ""


class _Gathering:
    """Collects definitions, each after what it needs."""

    def __init__(self) -> None:
        self.imports: set[str] = set()
        self.definitions: list[str] = []
        self._seen: set[str] = set()

    def add_tool(self, tool: Tool) -> str:
        """Take a tool's function in; the name that the code gives it, empty if its source is not known."""
        function = _function_of(tool)
        source = _source(function)
        parsed = _parsed(source)
        if not parsed or not isinstance(parsed[0], ast.FunctionDef | ast.AsyncFunctionDef):
            return ""
        definition = parsed[0]
        if not any(_is_tool(decorator) for decorator in definition.decorator_list):
            source = f"{self._decorator(tool)}\n{source}"
        self._define(definition.name, source, function)
        return definition.name

    def _decorator(self, tool: Tool) -> str:
        self.imports |= {"from aisotools import tool"}
        options = [f"name={tool.name!r}", f"runs_in={getattr(tool, 'runs_in', 'sandbox')!r}"]
        effect = getattr(tool, "effect", None)
        if effect is not None:
            options.append(f"effect={str(effect)!r}")
        return f"@tool({', '.join(options)})"

    def _define(self, name: str, source: str, thing: Any) -> None:
        if name in self._seen:
            return
        self._seen.add(name)
        names = getattr(inspect.unwrap(thing), "__globals__", None) or vars(sys.modules[thing.__module__])
        for used in _names_in(source):
            if used in names and used != name:
                self._bring(used, names[used], thing.__module__)
        self.definitions.append(source)

    def _bring(self, name: str, value: Any, home: str) -> None:
        """Have `name` stand for `value`, if that can be written down."""
        function = _function_of(value)
        value = value if function is None else function
        if isinstance(value, types.ModuleType):
            self.imports.add(f"import {value.__name__}" + ("" if value.__name__ == name else f" as {name}"))
        elif isinstance(value, types.FunctionType | type) and value.__module__ == home:
            source = _source(value)
            if source:
                self._define(name, source, value)
        elif (module := _importable(name, value)) is not None:
            self.imports.add(f"from {module} import {name}")
        elif name not in self._seen and (written := _constant(value)):
            self._seen.add(name)
            self.definitions.append(f"{name} = {written}")


def _parsed(source: str) -> list[ast.stmt]:
    try:
        return ast.parse(source).body
    except SyntaxError:
        return []


def _names_in(source: str) -> Iterator[str]:
    found = (node for statement in _parsed(source) for node in ast.walk(statement))
    yield from dict.fromkeys(node.id for node in found if isinstance(node, ast.Name))


def _is_tool(decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return (called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")) == "tool"


def _importable(name: str, value: Any) -> str | None:
    """The module that gives `value` under this name."""
    module = getattr(value, "__module__", None)
    if not isinstance(module, str) or module == "__main__":
        return None
    return module if getattr(sys.modules.get(module), name, None) is value else None


def _constant(value: Any) -> str:
    written = repr(value)
    reads_back: Callable[[str], Any] = ast.literal_eval
    try:
        same = len(written) <= _MOST_CONSTANT_CHARS and reads_back(written) == value
    except (ValueError, SyntaxError, TypeError):
        return ""
    return written if same else ""
