"""`%tools`, `%sandbox`, and the plain forms of the magics that must be awaited."""

from __future__ import annotations

import json
from typing import Any, NoReturn, cast

from IPython.core.error import UsageError
from IPython.core.magic import Magics, cell_magic, line_magic, magics_class, no_var_expand
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring

from aisotools.call_line import CALL_USAGE
from aisotools.dialects import PROVIDERS, Provider
from aisotools.exceptions import AisotoolsError, UnknownTool
from aisotools.notebook.attaching import attach_soon
from aisotools.notebook.current import current_session, current_settings
from aisotools.notebook.listing import show_status, show_tool, show_tools
from aisotools.notebook.toolsets import choose_set
from aisotools.registry import ToolRegistry
from aisotools.sandbox.detect import PROTECTS

_FORMATS = ("json", *PROVIDERS)


@magics_class
class AisotoolsMagics(Magics):
    """The magics of aisotools."""

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
                print(choose_set(registry, options.set))
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
            _display(show_tools(tools))
        else:
            _display(show_tool(tools[0]))

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
            _display(show_status(session.status(), session.policy.mode, PROTECTS))
        elif action == "interrupt":
            self._soon(session.interrupt())
        elif action == "attach":
            attach_soon(session, trust_output=current_settings().trust_output)
        elif action == "restart":
            _must_await("%sandbox restart", "await current_session().restart()")
        elif action == "vars":
            _must_await("%sandbox vars", "await current_session().call('variables')")
        else:
            raise UsageError(f"%sandbox takes status, restart, interrupt, vars or attach, not {action!r}.")

    @no_var_expand
    @cell_magic("sandbox")  # type: ignore[arg-type]  # IPython types it for functions only
    def sandbox_cell(self, line: str, cell: str) -> None:  # noqa: ARG002 - called by IPython with both
        """Run the cell in the sandbox."""
        _must_await("%%sandbox", "await current_session().run_cell(code)")

    @no_var_expand
    @cell_magic
    def agent(self, line: str, cell: str) -> None:  # noqa: ARG002 - called by IPython with both
        """Have a model work on the task in the cell.

        `-m MODEL` names the model, `-t TOOL,...` what it may call, `-o VAR` keeps the result,
        `--approve ask|auto|deny` decides about its calls, `--step` pauses before each of them, `--continue`
        goes on with what was said before, `--background` ends the cell at once, `--vars` fills `{name}` in.
        """
        _must_await("%%agent", "await Agent(model, current_session()).run(task)")

    @no_var_expand
    @line_magic
    def call(self, line: str) -> None:
        """Call a tool: `%call NAME key=value ...` or `%call NAME --json '{...}'`.

        `--ask` asks even if the policy would allow the call; `--timeout SECONDS` sets a deadline. The result
        can be kept: `x = %call NAME key=value`.
        """
        if not line.strip():
            raise UsageError(f"Which tool? {CALL_USAGE}")
        _must_await("%call", f"await current_session().call({line.split(maxsplit=1)[0]!r}, {{...}})")

    def _soon(self, coroutine: Any) -> None:
        import asyncio

        task = asyncio.ensure_future(coroutine)
        _KEPT.add(task)
        task.add_done_callback(_KEPT.discard)


_KEPT: set[Any] = set()


def _must_await(magic: str, instead: str) -> NoReturn:
    raise UsageError(
        f"{magic} works at the top level of a cell after the one with %load_ext, not inside a function or "
        "another cell magic. "
        f"There, write: {instead}",
    )


def _print_definitions(registry: ToolRegistry, form: str, names: list[str]) -> None:
    """Print tools as a client takes them, and below what had to be changed for it."""
    chosen = registry.filtered(names)
    if form == "json":
        print(json.dumps(chosen.definitions(), indent=2, ensure_ascii=False))
        return
    exports = chosen.exports(cast("Provider", form))
    print(json.dumps(exports, indent=2, ensure_ascii=False))
    lines = [
        line
        for name, changes in exports.changes.items()
        for line in (f"What {form} is told differently of {name}:", *(f"  {one}" for one in changes))
    ]
    if lines:
        _display({"text/plain": "\n".join(lines)})


def _display(bundle: dict[str, str]) -> None:
    from IPython.display import display

    display(bundle, raw=True)
