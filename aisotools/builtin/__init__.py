"""The built-in tools, as a table of `module:attribute`, and the sets they belong to."""

from __future__ import annotations

from importlib import import_module

from aisotools.core.exceptions import UsageError
from aisotools.core.protocols import Tool
from aisotools.workspace.search_path import find_odd_entry

BUILTINS = (
    "files:file",
    "shell:sandbox_bash",
    "files:sandbox_read",
    "files:sandbox_write",
    "python:python",
    "edit:edit",
    "patch:apply_patch",
    "tasks:task_list",
    "tasks:task_output",
    "tasks:task_input",
    "tasks:task_stop",
    "python:variables",
    "web:web_fetch",
    "conversation:todo",
    "conversation:ask_user",
    "conversation:read_result",
    "conversation:display",
)

WORKER_MODULES = ("aisotools.builtin.files", "aisotools.builtin.shell", "aisotools.builtin.python")
"""Modules of the tools that nearly every session calls in its sandbox: imported once, for all workers."""

TOOLSETS: dict[str, tuple[str, ...]] = {
    "core": (
        "file",
        "sandbox_bash",
        "sandbox_read",
        "sandbox_write",
        "python",
        "edit",
        "variables",
        "read_result",
    ),
    "files": ("file", "edit", "apply_patch", "sandbox_read", "sandbox_write", "read_result"),
    "shell": (
        "sandbox_bash",
        "python",
        "variables",
        "task_list",
        "task_output",
        "task_input",
        "task_stop",
        "read_result",
    ),
    "web": ("web_fetch", "read_result"),
    "tasks": ("todo", "ask_user", "display", "read_result"),
    "all": tuple(row.partition(":")[2] for row in BUILTINS),
}
"""Names of the tools of each set."""


def builtin_tools(set: str = "all") -> list[Tool]:  # noqa: A002 - part of the public interface
    """Return the built-in tools of a set, in the order of the table.

    Args:
        set: `core`, `files`, `shell`, `web`, `tasks`, or `all`, which is the default registry.

    Raises:
        UsageError: If there is no such set, or this process has a search path that Python cannot use.
    """
    if set not in TOOLSETS:
        raise UsageError(f"There is no toolset {set!r}. Sets: {', '.join(TOOLSETS)}.")
    if odd := find_odd_entry():  # pydantic looks for plugins, and fails there
        raise UsageError(f"The built-in tools cannot be loaded: {odd}")
    tools: list[Tool] = []
    for row in BUILTINS:
        module, _, attribute = row.partition(":")
        if attribute in TOOLSETS[set]:
            tools.append(getattr(import_module(f"aisotools.builtin.{module}"), attribute))
    return tools
