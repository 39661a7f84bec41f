"""`%%tool`: a function in a cell becomes a tool of the notebook's session; `%trace`: the last run."""

from __future__ import annotations

import ast
import shlex
from typing import Any, cast

from IPython.core.error import UsageError
from IPython.core.magic import Magics, cell_magic, line_magic, magics_class, no_var_expand
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring

from aisotools.contracts import Tool
from aisotools.events import Effect
from aisotools.exceptions import AisotoolsError
from aisotools.function_tool import tool
from aisotools.notebook import frame
from aisotools.notebook.current import current_session
from aisotools.notebook.listing import show_tool
from aisotools.notebook.live_trace import last_trace
from aisotools.notebook.trace_page import trace_bundle

_NOTHING = "No run was followed yet. `%%agent` follows its run, and so does `follow` of a session."


@magics_class
class ToolMagics(Magics):
    """The magics that make tools and look back."""

    @magic_arguments()
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
        namespace = self._define(cell)
        found = namespace[name]
        try:
            made = found if isinstance(found, Tool) else _made(found, options)
            if found is made and (options.name or options.effect or options.host):
                raise UsageError(f"{name} is a tool already: say its name and effect in @tool(...).")
            registry = current_session().registry
            old = registry.get(made.name)
            if old is not None and getattr(old, "cell", None) is not None:
                registry.unregister(made.name)
            registry.register(made)
        except AisotoolsError as error:
            raise UsageError(str(error)) from None
        namespace[name] = made
        _display(show_tool(made))

    @no_var_expand
    @line_magic
    def trace(self, line: str) -> None:
        """Show the last run again; `%trace export FILE.ipynb` or `FILE.html` writes the whole session."""
        if line.strip():
            _export(line)
            return
        trace = last_trace()
        if trace is None:
            _display({"text/html": frame.note(_NOTHING), "text/plain": _NOTHING})
        else:
            _display(trace_bundle(trace))

    def _define(self, cell: str) -> dict[str, Any]:
        """Run the cell in the user's namespace, so that tracebacks and `inspect` find its source."""
        shell: Any = self.shell
        source = shell.transform_cell(cell)
        name = shell.compile.cache(source, shell.execution_count, raw_code=cell)
        namespace: dict[str, Any] = shell.user_ns
        exec(compile(source, name, "exec"), namespace)  # noqa: S102 - running the person's own cell
        return namespace


def _last_function(cell: str) -> str:
    """The name of the last function that a cell defines at its top level."""
    try:
        tree = ast.parse(cell)
    except SyntaxError as error:
        raise UsageError(f"%%tool: line {error.lineno} is no Python: {error.msg}.") from None
    names = [n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    if not names:
        raise UsageError("%%tool wants a function with type hints below it: def name(argument: type): ...")
    return names[-1]


def _made(function: Any, options: Any) -> Tool:
    known = [effect.value for effect in Effect]
    if options.effect is not None and options.effect not in known:
        raise UsageError(f"%%tool --effect takes {', '.join(known)}, not {options.effect!r}.")
    more: dict[str, Any] = {"name": options.name} if options.name else {}
    if options.effect:
        more["effect"] = Effect(options.effect)
    runs_in = "host" if options.host else "sandbox"
    return cast("Tool", tool(runs_in=runs_in, **more)(function))  # type: ignore[call-overload]  # options by name


def _export(line: str) -> None:
    from aisotools.notebook.exporting import export_session  # nbformat is heavy

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
