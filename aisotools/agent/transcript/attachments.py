"""The files that lay in a workspace when its session began, as far as they fit into a notebook.

The source of tools that were made in a notebook or a script, with what they need, as code of its own.
"""

from __future__ import annotations

import ast
import inspect
import os
import stat
import sys
import textwrap
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from aisotools.core.events import CheckpointTaken, EventsDropped
from aisotools.core.exceptions import WorkspaceError
from aisotools.core.protocols import (
    SupportsEffect,
    SupportsFunction,
    SupportsRunsIn,
    SupportsSource,
    Tool,
)
from aisotools.core.redaction import redact_text
from aisotools.session.session import Session
from aisotools.tools.adapter import supports
from aisotools.workspace.checkpoints.store import Store
from aisotools.workspace.checkpoints.tree import Node, TreeReader
from aisotools.workspace.paths import printable

MOST_FILE_BYTES = 64 << 10
"""Size of the largest file that is embedded."""

MOST_BYTES = 1 << 20
"""Size of all embedded files together."""

_MOST_FILES = 10_000
_MOST_NAMED = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class StartFiles:
    """The files of a workspace at the start of a recording.

    Attributes:
        texts: Small text files, by path.
        missing: What else there was, in words: too large, no text, no file, or not kept.
    """

    texts: dict[str, str]
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Found:
    """Something in a workspace: a file that can be read, or why it cannot."""

    path: str
    size: int = 0
    read: Callable[[], bytes] | None = None
    why: str = ""


def start_files(session: Session) -> StartFiles:
    """Return the workspace's files from before the first call that could change them, else those of now.

    Raises:
        WorkspaceError: If the checkpoint of that moment is gone.
    """
    if session.workspace is None or session.history is None:
        return StartFiles(texts={})
    if any(isinstance(event, EventsDropped) and not event.is_output_only for event in session.events[:1]):
        # The first call is not among the events any more: what stands first was changed by calls before it.
        return StartFiles(texts={}, missing=(f"the files: {session.events[0]}",))
    roots = (event.root for event in session.events if isinstance(event, CheckpointTaken))
    root = next(roots, None)
    if root is None:
        return _chosen(_on_disk(session.workspace))
    if not root:
        return StartFiles(texts={}, missing=("the files: there were too many of them to be kept",))
    if root not in session.history.store:
        missing = "the files: what was there before the first call is not kept, to make room for later calls"
        return StartFiles(texts={}, missing=(missing,))
    return _chosen(_in_tree(session.history.store, root))


def _chosen(found: Iterator[_Found]) -> StartFiles:
    texts: dict[str, str] = {}
    missing: list[str] = []
    room, left_out = MOST_BYTES, 0
    for one in found:
        why = one.why
        if one.read is not None:
            if one.size > MOST_FILE_BYTES:
                why = f"{one.size:,} bytes"
            elif one.size > room:
                why = f"the files together are larger than {MOST_BYTES >> 20} MiB"
            else:
                text, why = _text(one.read)
                if not why:
                    texts[one.path] = text
                    room -= one.size
        if why and len(missing) == _MOST_NAMED:
            left_out += 1
        elif why:
            missing.append(f"{printable(one.path)}: {why}")
    if left_out:
        missing.append(f"{left_out:,} more files")
    return StartFiles(texts=texts, missing=tuple(missing))


def _text(read: Callable[[], bytes]) -> tuple[str, str]:
    """Return a file's text and "", or "" and the reason why it has none."""
    try:
        data = read()
        text = data.decode()
    except UnicodeDecodeError:
        return "", "no text"
    except (WorkspaceError, OSError):
        return "", "not kept any more"
    return ("", "no text") if "\0" in text else (text, "")


def _in_tree(store: Store, root: str) -> Iterator[_Found]:
    lists = TreeReader(store)
    todo: list[tuple[str, Node]] = [("", Node("folder", content=root))]
    while todo:
        path, node = todo.pop()
        if node.kind == "folder":
            try:
                inner = lists.of(node)
            except WorkspaceError:
                yield _Found(path or "the files", why="not kept any more")
                continue
            below = [(f"{path}/{name}".lstrip("/"), one) for name, one in inner.items()]
            todo += sorted(below, reverse=True)
        elif node.kind == "file":
            yield _Found(path, node.size, partial(store.get, node.content))
        else:
            why = "a link" if node.is_link else node.why_unkept if node.kind == "unkept" else "no file"
            yield _Found(path, why=why)


def _on_disk(folder: Path) -> Iterator[_Found]:
    """Yield the files that are in the folder now. No link is followed, no large file is read."""
    seen = 0
    for here, folders, names, descriptor in os.fwalk(folder, follow_symlinks=False):
        folders.sort()
        for name in sorted(names):
            seen += 1
            if seen > _MOST_FILES:
                yield _Found("more files", why=f"more than {_MOST_FILES:,} of them")
                return
            path = Path(here, name).relative_to(folder).as_posix()
            about = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            if not stat.S_ISREG(about.st_mode):
                why = "a link" if stat.S_ISLNK(about.st_mode) else "no file"
                yield _Found(path, why=why)
                continue
            yield _Found(path, about.st_size, partial(_read, name, descriptor))


def _read(name: str, folder: int) -> bytes:
    file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    try:
        return os.read(file, MOST_FILE_BYTES)
    finally:
        os.close(file)


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


def is_built_in(tool: object) -> bool:
    """Return whether a tool is one that this package ships."""
    return supports(tool, SupportsSource) and tool.source == "built-in"


def has_source(tool: Tool | None) -> bool:
    """Return whether the source that defines this tool can be found."""
    return tool is not None and bool(_source(_function_of(tool)))


def _function_of(tool: object) -> Any:
    """Return the function behind a tool; None for a built-in tool or one that is not a function."""
    if is_built_in(tool) or not supports(tool, SupportsFunction):
        return None
    return tool.function


def _source(definition: Any) -> str:
    if definition is None:
        return ""
    try:
        return textwrap.dedent(inspect.getsource(definition)).strip()
    except (OSError, TypeError):
        return ""


class _Gathering:
    """Collects definitions, each after what it needs."""

    def __init__(self) -> None:
        self.imports: set[str] = set()
        self.definitions: list[str] = []
        self._defined_names: set[str] = set()

    def add_tool(self, tool: Tool) -> str:
        """Take a tool's function in; the name that the code gives it, empty if its source is not known."""
        function = _function_of(tool)
        source = _source(function)
        parsed = _parse(source)
        if not parsed or not isinstance(parsed[0], ast.FunctionDef | ast.AsyncFunctionDef):
            return ""
        definition = parsed[0]
        if not any(_is_tool(decorator) for decorator in definition.decorator_list):
            source = f"{self._decorator(tool)}\n{source}"
        self._define(definition.name, source, function)
        return definition.name

    def _decorator(self, tool: Tool) -> str:
        self.imports |= {"from aisotools import tool"}
        options = [
            f"name={tool.name!r}",
            f"runs_in={tool.runs_in if supports(tool, SupportsRunsIn) else 'sandbox'!r}",
        ]
        effect = tool.effect if supports(tool, SupportsEffect) else None
        if effect is not None:
            options.append(f"effect={str(effect)!r}")
        return f"@tool({', '.join(options)})"

    def _define(self, name: str, source: str, definition: Any) -> None:
        if name in self._defined_names:
            return
        self._defined_names.add(name)
        names = getattr(inspect.unwrap(definition), "__globals__", None)
        if not names:
            names = vars(sys.modules[definition.__module__])
        for used in _names_in(source):
            if used in names and used != name:
                self._bring(used, names[used], definition.__module__)
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
        elif name not in self._defined_names and (written := _constant(value)):
            self._defined_names.add(name)
            self.definitions.append(f"{name} = {written}")


def _parse(source: str) -> list[ast.stmt]:
    try:
        return ast.parse(source).body
    except SyntaxError:
        return []


def _names_in(source: str) -> Iterator[str]:
    found = (node for statement in _parse(source) for node in ast.walk(statement))
    yield from dict.fromkeys(node.id for node in found if isinstance(node, ast.Name))


def _is_tool(decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    if isinstance(called, ast.Attribute):
        return called.attr == "tool"
    return isinstance(called, ast.Name) and called.id == "tool"


def _importable(name: str, value: Any) -> str | None:
    """Return the module from which `value` can be imported under this name, or None."""
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
