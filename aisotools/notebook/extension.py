"""`%load_ext aisotools` and `%unload_ext aisotools`."""

from __future__ import annotations

import os
import types
from pathlib import Path
from typing import Any

from aisotools.agent.models.human import HumanAsker, set_default_asker_factory
from aisotools.core.exceptions import AisotoolsError
from aisotools.core.protocols import Approver
from aisotools.core.types import ToolResult
from aisotools.notebook.current import AisoTools, settings_for
from aisotools.notebook.magics.arguments import make_matcher
from aisotools.notebook.magics.mcp import McpMagics
from aisotools.notebook.magics.policy import PolicyMagics
from aisotools.notebook.magics.session import AisotoolsMagics, ToolMagics
from aisotools.notebook.magics.transform import rewrite
from aisotools.notebook.magics.undo import UndoMagics, changes_bundle
from aisotools.session.approvers import set_default_approver_factory
from aisotools.workspace.diff import Changes

_PACKAGE = str(Path(__file__).parents[1]) + os.sep
_MAGICS = {
    "line": ("tools", "sandbox", "call", "policy", "approvals", "trace", "undo", "redo", "changes", "mcp"),
    "cell": ("agent", "sandbox", "tool"),
}

# By its name: importing it takes what runs an agent, which most notebooks load later or never.
_RUN_RESULT = ("aisotools.agent.run", "RunResult")

_MATCHER = make_matcher()


def load(shell: Any) -> None:
    """Register magics, settings, input transformer, formatters and approver. Loading twice is harmless.

    Raises:
        UsageError: If the user's settings file is invalid; IPython's error, shown in one line.
    """
    _load_settings(shell)
    shell.register_magics(AisotoolsMagics(shell))
    shell.register_magics(PolicyMagics(shell))
    shell.register_magics(ToolMagics(shell))
    shell.register_magics(UndoMagics(shell))
    shell.register_magics(McpMagics(shell))
    if _MATCHER not in shell.Completer.custom_matchers:
        shell.Completer.custom_matchers.append(_MATCHER)
    if rewrite not in shell.input_transformers_cleanup:
        shell.input_transformers_cleanup.append(rewrite)
    formatter = shell.display_formatter.mimebundle_formatter
    formatter.for_type(ToolResult, _format_result)
    formatter.for_type_by_name(*_RUN_RESULT, _format_run)
    formatter.for_type(Changes, lambda changes, **_: changes_bundle(changes))
    shell.display_formatter.formatters["text/plain"].for_type(types.CoroutineType, _format_coroutine)
    set_default_approver_factory(_notebook_approver)
    set_default_asker_factory(_notebook_asker)


def unload(shell: Any) -> None:
    """Undo `load` and close the notebook's session."""
    from aisotools.notebook.current import close_current, use_settings

    shell.configurables[:] = [one for one in shell.configurables if not isinstance(one, AisoTools)]
    use_settings(None)
    for kind, names in _MAGICS.items():
        for name in names:
            shell.magics_manager.magics[kind].pop(name, None)
    if _MATCHER in shell.Completer.custom_matchers:
        shell.Completer.custom_matchers.remove(_MATCHER)
    for magics in (AisotoolsMagics, McpMagics, PolicyMagics, ToolMagics, UndoMagics):
        shell.magics_manager.registry.pop(magics.__name__, None)
    if rewrite in shell.input_transformers_cleanup:
        shell.input_transformers_cleanup.remove(rewrite)
    shell.display_formatter.mimebundle_formatter.pop(ToolResult, None)
    shell.display_formatter.mimebundle_formatter.pop(".".join(_RUN_RESULT), None)
    shell.display_formatter.mimebundle_formatter.pop(Changes, None)
    shell.display_formatter.formatters["text/plain"].pop(types.CoroutineType, None)
    set_default_approver_factory(None)
    set_default_asker_factory(None)
    close_current()


def _notebook_asker() -> HumanAsker | None:
    from aisotools.notebook.approval.steering import notebook_asker

    return notebook_asker()


def _load_settings(shell: Any) -> None:
    from IPython.core.error import UsageError

    from aisotools.notebook.current import use_settings

    if any(isinstance(one, AisoTools) for one in shell.configurables):
        return
    try:
        settings = settings_for(shell)
    except AisotoolsError as error:
        raise UsageError(str(error)) from None
    shell.configurables.append(settings)
    use_settings(settings)


def _notebook_approver() -> Approver | None:
    from IPython import get_ipython

    from aisotools.notebook.approval.approver import NotebookApprover, can_ask
    from aisotools.notebook.current import current_settings

    settings = current_settings()
    approver = NotebookApprover(hello_s=settings.card_timeout_s, notify=settings.notify)
    return approver if can_ask(get_ipython()) else None


def _format_result(result: ToolResult, **_: Any) -> dict[str, Any]:
    from aisotools.notebook.current import full_text
    from aisotools.notebook.render.results import render_result

    return render_result(result, str(result.metadata.get("tool", "tool")), full_text(result))


def _format_run(result: Any, **_: Any) -> dict[str, Any]:
    from aisotools.notebook.magics.agent import run_bundle

    return run_bundle(result)


def _format_coroutine(coroutine: types.CoroutineType[Any, Any, Any], printer: Any, _cycle: bool) -> None:
    """Explain a forgotten `await` instead of showing the coroutine."""
    code = coroutine.cr_code
    if code.co_filename.startswith(_PACKAGE):
        printer.text(
            f"Nothing has run yet: put `await` before it, as in `await {code.co_qualname.lower()}(...)`."
        )
    else:
        printer.text(repr(coroutine))
