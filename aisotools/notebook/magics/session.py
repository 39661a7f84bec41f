"""`%tools`, `%sandbox`, `%%tool`, `%trace`, and the plain forms of magics that must be awaited."""

from __future__ import annotations

import ast
import asyncio
import json
import shlex
from typing import TYPE_CHECKING, Any, NoReturn, cast

from IPython.core.error import UsageError
from IPython.core.magic import Magics, cell_magic, line_magic, magics_class, no_var_expand
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring

from aisotools.core.exceptions import AisotoolsError, UnknownTool
from aisotools.core.protocols import Tool
from aisotools.core.types import Effect
from aisotools.notebook.current import current_session, current_settings, select_toolset
from aisotools.notebook.magics.arguments import CALL_USAGE
from aisotools.notebook.render import html
from aisotools.notebook.render.listing import status_bundle, tool_bundle, tools_bundle
from aisotools.notebook.trace.view import last_trace, trace_bundle
from aisotools.sandbox.confinement.detect import PROTECTS
from aisotools.tools.export import PROVIDERS, Provider
from aisotools.tools.function import FunctionTool, tool
from aisotools.tools.registry import ToolRegistry

if TYPE_CHECKING:
    from aisotools.session.session import Session

# The event loop holds tasks weakly; one that nobody awaits could be collected while it runs.
_background_tasks: set[asyncio.Task[Any]] = set()


def attach_soon(session: Session, *, trust_output: bool = False) -> None:
    """Start a kernel process for `session` in the background, and display its connection file.

    A plain magic cannot await, so a failure to start is reported later, in the same output. With
    `trust_output` all output is passed on unfiltered.
    """
    from IPython.display import display

    from aisotools.notebook.kernel.attach import attach, new_connection_file

    path = new_connection_file()
    command = f"In a terminal: jupyter console --existing {path}"
    handle: Any = display({"text/plain": command}, raw=True, display_id=True)

    async def start_attachment() -> None:
        try:
            await attach(session, path, trust_output=trust_output)
        except (AisotoolsError, OSError) as error:
            handle.update({"text/plain": f"Not attached: {error}"}, raw=True)

    _run_in_background(start_attachment())


_FORMATS = ("json", *PROVIDERS)


@magics_class
class AisotoolsMagics(Magics):
    """Magics for tools, the sandbox and the agent."""

    @magic_arguments()
    @argument("name", nargs="?", help="a tool to show in full")
    @argument(
        "--format",
        help="show as a client takes them: json, openai, openai-responses, anthropic, gemini or mcp",
    )
    @argument("--set", help="have the built-in tools of one set: core, files, shell, web, tasks or all")
    @no_var_expand
    @line_magic
    def tools(self, line: str) -> None:
        """List the tools, show one with its schema, or choose a set of built-in ones."""
        options = parse_argstring(self.tools, line)
        registry = current_session().registry
        if options.set is not None:
            try:
                print(select_toolset(registry, options.set))
            except AisotoolsError as error:
                raise UsageError(str(error)) from None
            return
        if options.format is not None and options.format not in _FORMATS:
            raise UsageError(f"%tools --format takes {' or '.join(_FORMATS)}, not {options.format!r}.")
        if options.name is None:
            tools = registry.list()
        else:
            try:
                tools = [registry[options.name]]
            except UnknownTool as error:
                raise UsageError(str(error)) from None
        if options.format is not None:
            _print_definitions(registry, options.format, [tool.name for tool in tools])
        elif options.name is None:
            _display(tools_bundle(tools))
        else:
            _display(tool_bundle(tools[0]))

    @magic_arguments()
    @argument("action", nargs="?", default="status", help="status, restart, interrupt, vars or attach")
    @no_var_expand
    @line_magic
    def sandbox(self, line: str) -> None:
        """Show the state of the sandbox, restart it, or interrupt what runs in it.

        As a cell magic, `%%sandbox` runs the lines below it as Python in the sandbox.
        """
        action = parse_argstring(self.sandbox, line).action
        session = current_session()
        if action == "status":
            _display(status_bundle(session.status(), session.policy.mode, PROTECTS))
        elif action == "interrupt":
            _run_in_background(session.interrupt())
        elif action == "attach":
            attach_soon(session, trust_output=current_settings().trust_output)
        elif action == "restart":
            _refuse_plain_magic("%sandbox restart", "await current_session().restart()")
        elif action == "vars":
            _refuse_plain_magic("%sandbox vars", "await current_session().call('variables')")
        else:
            raise UsageError(f"%sandbox takes status, restart, interrupt, vars or attach, not {action!r}.")

    @no_var_expand
    @cell_magic("sandbox")  # type: ignore[arg-type]  # IPython types it for functions only
    def sandbox_cell(self, line: str, cell: str) -> None:  # noqa: ARG002 - called by IPython with both
        """Run the cell in the sandbox."""
        _refuse_plain_magic("%%sandbox", "await current_session().run_cell(code)")

    @no_var_expand
    @cell_magic
    def agent(self, line: str, cell: str) -> None:  # noqa: ARG002 - called by IPython with both
        """Have a model work on the task in the cell.

        `-m MODEL` names the model, `-t TOOL,...` what it may call, `-o VAR` keeps the result,
        `--approve ask|auto|deny` decides about its calls, `--step` pauses before each of them, `--continue`
        goes on with what was said before, `--max-steps N` limits the requests to the model, `--background`
        ends the cell at once, `--vars` fills `{name}` in.
        """
        _refuse_plain_magic("%%agent", "await Agent(model, current_session()).run(task)")

    @no_var_expand
    @line_magic
    def call(self, line: str) -> None:
        """Call a tool: `%call NAME key=value ...` or `%call NAME --json '{...}'`.

        `--ask` asks even if the policy would allow the call; `--timeout SECONDS` sets a deadline. The result
        can be kept: `x = %call NAME key=value`.
        """
        if not line.strip():
            raise UsageError(f"Which tool? Usage: {CALL_USAGE}")
        _refuse_plain_magic("%call", f"await current_session().call({line.split(maxsplit=1)[0]!r}, {{...}})")


def _run_in_background(coroutine: Any) -> None:
    task = asyncio.ensure_future(coroutine)
    _background_tasks.add(task)
    task.add_done_callback(_background_tasks.discard)


def _refuse_plain_magic(magic: str, instead: str) -> NoReturn:
    raise UsageError(
        f"{magic} works at the top level of a cell after the one with %load_ext, not inside a function or "
        "another cell magic. "
        f"There, write: {instead}",
    )


def _print_definitions(registry: ToolRegistry, form: str, names: list[str]) -> None:
    """Print tool definitions in a client's format, and what had to be changed for it."""
    chosen = registry.filtered(names)
    if form == "json":
        print(json.dumps(chosen.definitions(), indent=2, ensure_ascii=False))
        return
    exports = chosen.exports(cast("Provider", form))
    print(json.dumps(exports, indent=2, ensure_ascii=False))
    lines = [
        line
        for name, changes in exports.changes.items()
        for line in (f"Changed in {name} for {form}:", *(f"  {one}" for one in changes))
    ]
    if lines:
        _display({"text/plain": "\n".join(lines)})


_NO_TRACE = "No run was followed yet. `%%agent` follows its run, and so does `follow` of a session."


@magics_class
class ToolMagics(Magics):
    """Magics that make tools and show the last run."""

    @magic_arguments("%tool")
    @argument("--name", help="what the tool is called; the function's name without it")
    @argument("--effect", help="what it may do: read_only, remote_action, local_mutation or destructive")
    @argument("--host", action="store_true", help="run it in this process instead of the sandbox")
    @no_var_expand
    @cell_magic("tool")  # type: ignore[arg-type]  # IPython types it for functions only
    def tool_cell(self, line: str, cell: str) -> None:
        """Run the cell, and register the last function that it defines as a tool.

        Running the cell again replaces the tool.
        """
        options = parse_argstring(self.tool_cell, line)
        name = _last_function(cell)
        namespace = self._execute(cell)
        definition = namespace[name]
        try:
            new_tool = definition if isinstance(definition, Tool) else _make_tool(definition, options)
            if definition is new_tool and (options.name or options.effect or options.host):
                raise UsageError(f"{name} is a tool already: say its name and effect in @tool(...).")
            registry = current_session().registry
            old = registry.get(new_tool.name)
            if isinstance(old, FunctionTool) and old.cell is not None:
                registry.unregister(new_tool.name)
            registry.register(new_tool)
        except AisotoolsError as error:
            raise UsageError(str(error)) from None
        namespace[name] = new_tool
        _display(tool_bundle(new_tool))

    @no_var_expand
    @line_magic
    def trace(self, line: str) -> None:
        """Show the last run again; `%trace export FILE.ipynb` or `FILE.html` writes the whole session."""
        if line.strip():
            _export(line)
            return
        trace = last_trace()
        if trace is None:
            _display({"text/html": html.note(_NO_TRACE), "text/plain": _NO_TRACE})
        else:
            _display(trace_bundle(trace))

    def _execute(self, cell: str) -> dict[str, Any]:
        """Run the cell in the user's namespace, cached so that tracebacks and `inspect` find its source."""
        shell: Any = self.shell
        source = shell.transform_cell(cell)
        name = shell.compile.cache(source, shell.execution_count, raw_code=cell)
        namespace: dict[str, Any] = shell.user_ns
        exec(compile(source, name, "exec"), namespace)  # noqa: S102 - running the person's own cell
        return namespace


def _last_function(cell: str) -> str:
    """Return the name of the last function that a cell defines at its top level."""
    try:
        tree = ast.parse(cell)
    except SyntaxError as error:
        raise UsageError(f"%%tool: line {error.lineno} is not valid Python: {error.msg}.") from None
    names = [n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    if not names:
        raise UsageError(
            "%%tool needs a function with type hints in the lines below it: def name(argument: type): ..."
        )
    return names[-1]


def _make_tool(function: Any, options: Any) -> Tool:
    effects = [effect.value for effect in Effect]
    if options.effect is not None and options.effect not in effects:
        raise UsageError(f"%%tool --effect takes {', '.join(effects)}, not {options.effect!r}.")
    more: dict[str, Any] = {"name": options.name} if options.name else {}
    if options.effect:
        more["effect"] = Effect(options.effect)
    runs_in = "host" if options.host else "sandbox"
    return cast("Tool", tool(runs_in=runs_in, **more)(function))  # type: ignore[call-overload]  # options by name


def _export(line: str) -> None:
    from aisotools.notebook.magics.export import export_session  # nbformat is heavy

    try:
        action, *names = shlex.split(line)
    except ValueError as error:
        raise UsageError(f"%trace: {error} in {line.strip()!r}.") from None
    if action != "export" or len(names) != 1:
        raise UsageError(f"%trace does not take {line.strip()!r}. Use %trace export FILE.ipynb or FILE.html.")
    try:
        print(export_session(current_session(), names[0]))
    except AisotoolsError as error:
        raise UsageError(str(error)) from None


def _display(bundle: dict[str, str]) -> None:
    from IPython.display import display

    display(bundle, raw=True)
