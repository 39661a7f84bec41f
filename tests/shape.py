"""The rules of the package's shape, as functions from source texts to findings.

A finding names the line and what to do about it. `tests/test_shape.py` applies the rules to the package and
shows, on small made-up packages, that every one of them can fail.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = "aisotools"
MODULE_LINES = 400
FUNCTION_LINES = 60

LAYERS: tuple[tuple[str, ...], ...] = (
    (
        "exceptions",
        "events",
        "session_events",
        "messages",
        "agent_events",
        "contracts",
        "variable_contracts",
        "sandbox.channel",
        "sandbox.confine",
        "sandbox.syscalls",
        "sandbox.seccomp",
        "sandbox.landlock",
    ),
    (
        "agent_core",
        "agent_record",
        "answers",
        "arguments",
        "attic",
        "beat",
        "call_line",
        "budgets",
        "conditions",
        "context_window",
        "claims",
        "dialects",
        "docstrings",
        "gemini_schemas",
        "addresses",
        "excerpt",
        "inquiry",
        "kept_file",
        "parcels",
        "paths",
        "pool_slots",
        "policy",
        "policy_file",
        "protected_files",
        "question",
        "redact",
        "returns",
        "run_clock",
        "schema",
        "schema_forms",
        "shell",
        "shell_builtins",
        "shell_changers",
        "shell_find",
        "shell_git",
        "shell_grammar",
        "shell_nesting",
        "shell_network",
        "shell_options",
        "shell_programs",
        "shell_reader",
        "shell_readers",
        "shell_scripts",
        "shell_services",
        "shell_system",
        "shell_text",
        "shell_variables",
        "shell_verdict",
        "shell_words",
        "shell_wrappers",
        "stepping",
        "strict_schemas",
        "waiting",
        "web",
        "folders",
        "progress",
        "workspace",
        "sandbox.limits",
    ),
    (
        "function_tool",
        "renamed_tool",
        "shipping",
        "tool_members",
        "checkpoint",
        "checkpoint_area",
        "checkpoint_chain",
        "checkpoint_restore",
        "checkpoint_scan",
        "checkpoint_seen",
        "checkpoint_store",
        "checkpoint_tree",
        "changes",
        "models",
        "readcache",
    ),
    (
        "registry",
        "approval",
        "journal",
        "ledger",
        "models.human",
        "ticket",
        "grants",
        "place",
        "previews",
        "protection",
        "recording",
        "result_store",
        "services",
        "transfer",
        "sandbox",
    ),
    ("builtin",),
    (
        "asking",
        "barrier",
        "branching",
        "gate",
        "history",
        "host_calls",
        "lifetime",
        "no_history",
        "opening",
        "read_guard",
        "sandbox.remote",
        "sandbox.remote_calls",
        "undo_words",
        "session",
        "settling",
        "status",
    ),
    (
        "agent",
        "agent_driver",
        "agent_run",
        "delegation",
        "ledger_events",
        "own_loop",
        "pool",
        "recorded_models",
        "replaying",
        "resume",
        "transcript",
        "transcript_entries",
        "transcript_files",
        "transcript_keeping",
        "transcript_record",
        "transcript_sources",
    ),
    (  # what a notebook may show, and how a client reaches a session: for notebooks and fronts alike
        "notebook.frame",
        "notebook.images",
        "notebook.latex",
        "notebook.markup",
        "notebook.mime",
        "notebook.render",
        "notebook.text",
        "sandbox.attach",
        "sandbox.desk",
    ),
    (  # the one bridge that a notebook has a magic for
        "bridges.mcp",
        "bridges.mcp_asking",
        "bridges.mcp_client",
        "bridges.mcp_http",
        "bridges.mcp_results",
        "bridges.mcp_server",
        "bridges.mcp_tools",
        "bridges.mcp_transport",
        "bridges.passing",
    ),
    (
        "notebook",
        "bridges",
        "contract_suites",
        "pytest_plugin",
        "sandbox_suite",
        "testing",
        "sandbox.attached",
        "sandbox.front",
        "sandbox.opened",
        "sandbox.pages",
        "sandbox.passing",
        "sandbox.provisioner",
    ),
    ("cli", "cli_kernelspec", "cli_log", "cli_tools", "cli_replay", "cli_run", "cli_mcp", "__main__"),
)
"""What may import what: lower rows never import higher ones. The longest matching name decides."""

ANYWHERE = ("",)

DOORS: Mapping[str, tuple[str, ...]] = {
    "IPython": ("sandbox.shell", "sandbox.introspect", "notebook"),
    "agents": ("bridges.openai_agents",),
    "anthropic": ("models.provider",),
    "anyio": ("bridges.mcp_transport",),
    "anywidget": ("notebook.cards",),
    "cloudpickle": ("shipping",),
    "comm": ("sandbox.watching", "sandbox.introspect"),
    "google": ("models.provider",),
    "griffe": ("docstrings",),
    "html_to_markdown": ("builtin.web_tool",),
    "httpcore2": ("web",),
    "httpx2": ("web", "bridges.mcp_transport"),
    "ipykernel": ("sandbox.front", "sandbox.provisioner", "notebook.ask"),
    "ipywidgets": ("notebook.cards",),
    "jsonschema": ("arguments",),
    "jupyter_core": ("sandbox.attach",),
    "jupyter_client": ("sandbox.front", "sandbox.provisioner", "notebook.ask"),
    "langchain_core": ("bridges.langchain",),
    "langgraph": ("bridges.langchain",),
    "litellm": ("models.provider",),
    "matplotlib_inline": ("sandbox",),
    "mcp": (
        "bridges.mcp",
        "bridges.mcp_asking",
        "bridges.mcp_client",
        "bridges.mcp_http",
        "bridges.mcp_results",
        "bridges.mcp_server",
        "bridges.mcp_tools",
        "bridges.mcp_transport",
    ),
    "nbclient": ("cli",),
    "nbformat": ("transcript", "cli"),  # cli: what `lab --execute` runs is a notebook file, not an event log
    "nh3": ("notebook",),
    "numpy": ("parcels",),
    "pyarrow": ("parcels",),
    "openai": ("models.provider",),
    "pytest": ("pytest_plugin",),
    "pytest_asyncio": ("pytest_plugin",),
    "pydantic": ANYWHERE,  # values and validation everywhere are its business
    "pydantic_ai": ("models.provider", "models.provider_messages", "bridges.pydantic_ai"),
    "pydantic_core": ANYWHERE,  # JSON on the wire
    "referencing": ("arguments",),
    "traitlets": ("sandbox.shell", "sandbox.front", "sandbox.provisioner", "notebook.settings"),
    "smolagents": ("bridges.smolagents",),
    "tornado": ("sandbox.remote_http",),
    "tree_sitter": ("shell_grammar",),
    "tree_sitter_bash": ("shell_grammar",),
    "uvicorn": ("bridges.mcp_http",),
    "xllamacpp": ("models.local_engine",),
    "zmq": ("sandbox.front",),
}
"""Outside libraries and the only modules or folders that may import each."""

ONE_MODULE = {"nh3"}
"""Libraries that exactly one module may import, wherever in its folder that is."""


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
        lazy: Whether it happens later than the import of the module it stands in.
    """

    line: int
    written: str
    target: str | None
    lazy: bool


@dataclass(frozen=True, slots=True)
class Module:
    """One source file; `name` leaves out the package's own name, whose `__init__` is therefore ''."""

    name: str
    path: str
    source: str
    tree: ast.Module
    imports: tuple[Import, ...]

    @property
    def is_root(self) -> bool:
        return self.path.endswith("/__init__.py")


Package = Mapping[str, Module]
Rule = Callable[[Package], Iterator[Finding]]


def read(folder: Path) -> Package:
    """All Python files below `folder`, keyed by module name."""
    files = sorted(folder.rglob("*.py"))
    return parse({path.relative_to(folder.parent).as_posix(): path.read_text("utf-8") for path in files})


def parse(sources: Mapping[str, str]) -> Package:
    """Modules of the given files; keys are paths like `aisotools/sandbox/channel.py`."""
    names = {path: _dotted(path) for path in sources}
    known = set(names.values())
    modules = {}
    for path, source in sources.items():
        tree = ast.parse(source, path)
        package = names[path] if path.endswith("/__init__.py") else names[path].rpartition(".")[0]
        imports = tuple(_imports(tree, package, known))
        name = names[path].partition(".")[2]
        modules[name] = Module(name, path, source, tree, imports)
    return modules


def _dotted(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _imports(tree: ast.Module, package: str, known: set[str]) -> Iterator[Import]:
    for node, lazy in running(tree):
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


def _absolute(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    return ".".join([*parts[: len(parts) - node.level + 1], *filter(None, [node.module])])


def _is_import_by_name(node: ast.Call) -> bool:
    called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    literal = bool(node.args) and isinstance(node.args[0], ast.Constant)
    return literal and called in {"import_module", "__import__"}


def _defined_in(written: str, known: set[str]) -> str | None:
    """The known module that `written` names or lies in, without the package's own name."""
    if written.partition(".")[0] != ROOT:
        return None
    while written not in known and "." in written:
        written = written.rpartition(".")[0]
    return written.partition(".")[2]


def running(node: ast.AST, lazy: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    """All nodes but those under `if TYPE_CHECKING`, each with whether it runs later than the import."""
    below: Iterable[ast.AST]
    if isinstance(node, ast.If) and is_type_checking(node):
        below = node.orelse
    else:
        yield node, lazy
        below = ast.iter_child_nodes(node)
    lazy = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    for child in below:
        yield from running(child, lazy)


def is_type_checking(node: ast.If) -> bool:
    """Whether this is `if TYPE_CHECKING:`."""
    return ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}


def _within(name: str, home: str) -> bool:
    return not home or name == home or name.startswith(home + ".")


def _home(name: str) -> tuple[int, str] | None:
    """Layer and entry of the longest row entry that `name` is or lies in."""
    homes = [
        (len(home), row, home) for row, homes in enumerate(LAYERS) for home in homes if _within(name, home)
    ]
    return max(homes)[1:] if homes else None


def _layer(name: str) -> int | None:
    home = _home(name)
    return home[0] if home else None


def _folder(name: str, package: Package) -> str:
    first = name.partition(".")[0]
    return first if first in package and package[first].is_root else ""


def _inner(module: Module) -> list[tuple[str, int]]:
    """The package's modules that `module` imports, with the lines; lazy imports too."""
    return list(dict.fromkeys((one.target, one.line) for one in module.imports if one.target))


def layers(package: Package) -> Iterator[Finding]:
    """A module imports from lower layers, its own folder, or other single modules of its layer."""
    for module in package.values():
        if not module.name:
            continue
        mine = _layer(module.name)
        if mine is None:
            message = f"{module.name} has no layer; give it the row in LAYERS of tests/shape.py that fits"
            yield Finding(module.path, 1, message)
            continue
        for target, line in _inner(module):
            for reached in _reach(module.name, target, package):
                if _layer(reached) is None or _may_import(module.name, reached, package):
                    continue
                what = f"{module.name} (layer {mine}) imports {reached} (layer {_layer(reached)})"
                through = "" if reached == target else f" through {target}"
                advice = "move what both need to a lower layer, or pass it in"
                yield Finding(module.path, line, f"{what}{through}; {advice}")


def _may_import(name: str, target: str, package: Package) -> bool:
    mine, theirs = _home(name), _home(target)
    assert mine is not None
    assert theirs is not None
    if _folder(name, package) and _folder(name, package) == _folder(target, package):
        return True
    # Modules with an entry of their own are neighbours in that row; whole folders keep to themselves.
    folders = {mine[1], theirs[1]} & {entry for entry, module in package.items() if module.is_root}
    return theirs[0] < mine[0] or (theirs[0] == mine[0] and not folders)


def _reach(name: str, target: str, package: Package) -> list[str]:
    """What an import brings in as far as layers go.

    A folder's lower part may use its upper part, but not to get at what lies outside the folder.
    """
    if _folder(name, package) != _folder(target, package) or (_layer(target) or 0) <= (_layer(name) or 0):
        return [target]
    seen = [target]
    for one in seen:
        seen.extend(inner for inner, _ in _inner(package[one]) if inner not in seen)
    return seen


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
    """Importing a leaf runs the roots above it, so a root imports only what every leaf below may import.

    The root of all imports lazily, from everywhere; nobody asks it for a name.
    """
    for module in package.values():
        below = [_layer(name) or 0 for name in package if _within(name, module.name) and name != module.name]
        for imported in module.imports:
            if imported.target is None:
                continue
            if module.is_root:
                harmless = (_layer(imported.target) or 0) < min(below, default=0)
                if not (harmless if module.name else imported.lazy):
                    advice = "keep it out, and let callers import the module that defines the name"
                    message = f"a package root imports {imported.written}; {advice}"
                    yield Finding(module.path, imported.line, message)
            elif not imported.target:
                advice = "import it from the module that defines it"
                message = f"{imported.written} is asked of the package root; {advice}"
                yield Finding(module.path, imported.line, message)


def doors(package: Package) -> Iterator[Finding]:
    """Each outside library is imported only where its door is."""
    users: dict[str, list[Module]] = {}
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
            elif library in ONE_MODULE:
                others = users.setdefault(library, [module])
                if module not in others:
                    message = f"{library} is already imported by {others[0].name}; call that module instead"
                    yield Finding(module.path, imported.line, message)


def sizes(package: Package) -> Iterator[Finding]:
    """Modules and functions stay small enough to be read in one go."""
    for module in package.values():
        lines = len(module.source.splitlines())
        if lines > MODULE_LINES:
            message = f"{lines} lines, {MODULE_LINES} are allowed; split it by idea"
            yield Finding(module.path, MODULE_LINES + 1, message)
        for node in ast.walk(module.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = _length(node)
                if length > FUNCTION_LINES:
                    message = (
                        f"{node.name} has {length} lines, {FUNCTION_LINES} are allowed; split it by idea"
                    )
                    yield Finding(module.path, node.lineno, message)


def _length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from `def` to the end, less the docstring."""
    first = node.body[0]
    docstring = 0 if ast.get_docstring(node) is None else (first.end_lineno or 0) - first.lineno + 1
    return (node.end_lineno or 0) - node.lineno + 1 - docstring


def docstrings(package: Package) -> Iterator[Finding]:
    """Every public module, class, function and method says what it is."""
    for module in package.values():
        if any(part.startswith("_") for part in module.name.split(".")):
            continue
        if ast.get_docstring(module.tree) is None:
            yield Finding(module.path, 1, "the module has no docstring; say in one sentence what it is for")
        for node in _public(module.tree):
            if ast.get_docstring(node) is None:
                yield Finding(module.path, node.lineno, f"{node.name} has no docstring; say what it does")


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
        for node in ast.walk(module.tree):
            if _swallowed(node) & broad:
                yield Finding(
                    module.path, getattr(node, "lineno", 1), f"every error is swallowed here; {advice}"
                )


def _swallowed(node: ast.AST) -> set[str]:
    """The names of the errors that `node` drops; '' for a bare `except`."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) in {"suppress", "contextlib.suppress"}:
        return {ast.unparse(argument) for argument in node.args}
    if isinstance(node, ast.ExceptHandler) and all(map(_does_nothing, node.body)):
        caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
        return {ast.unparse(one) if one else "" for one in caught}
    return set()


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
    """The names under `if TYPE_CHECKING` of the package root, each with the module it comes from."""
    names: dict[str, str] = {}
    for node in root.tree.body:
        if isinstance(node, ast.If) and is_type_checking(node):
            for inner in node.body:
                if isinstance(inner, ast.ImportFrom):
                    home = (inner.module or "").removeprefix(ROOT + ".")
                    names |= {alias.asname or alias.name: home for alias in inner.names}
    return names


RULES: tuple[Rule, ...] = (layers, cycles, roots, doors, sizes, docstrings, swallowing, exemptions)
