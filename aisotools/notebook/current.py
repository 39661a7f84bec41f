"""The notebook's own session, which the magics use, and its settings.

::

    %config AisoTools.mode = "plan"           # in a cell
    c.AisoTools.min_level = "confined"        # in ipython_config.py

    [settings]                                # in aisotools.toml, in the Jupyter config folder
    call_timeout_s = 30

A cell overrides `ipython_config.py`, which overrides the file. The settings apply to the session of
`current_session()` only; a program configures its own `Session` by arguments.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from traitlets import Bool, Enum, Float, Int, List, TraitError, TraitType, Unicode
from traitlets.config import Configurable

from aisotools.builtin import TOOLSETS, builtin_tools
from aisotools.core.exceptions import UsageError
from aisotools.core.types import ToolResult
from aisotools.policy.config import user_file, user_policy, user_settings
from aisotools.sandbox.confinement import levels
from aisotools.sandbox.limits import Limits
from aisotools.tools.adapter import source_of
from aisotools.tools.registry import ToolRegistry

if TYPE_CHECKING:
    from aisotools.session.session import Session

_MODES = ("plan", "safe", "auto")
_LIMIT_NAMES = tuple(field.name for field in dataclasses.fields(Limits))
_DEFAULT: Final = Limits()


class AisoTools(Configurable):
    """The settings of the notebook's own session."""

    mode: Any = Enum(
        _MODES,
        default_value=None,
        allow_none=True,
        help="What runs unasked: plan, safe or auto. None takes the mode of aisotools.toml, else safe. "
        "A change counts at once.",
    ).tag(config=True)
    level: Any = Enum(
        levels.LEVELS,
        default_value=None,
        allow_none=True,
        help="Exactly this confinement level. None takes the strongest that holds.",
    ).tag(config=True)
    min_level: Any = Enum(
        levels.LEVELS,
        default_value=None,
        allow_none=True,
        help="At least this confinement level. None takes AISOTOOLS_MIN_LEVEL, else guarded.",
    ).tag(config=True)
    workspace: Any = Unicode(
        help="The only folder that tools may change. Empty takes ./workspace/ and the notebook's name.",
    ).tag(config=True)
    read_only: Any = List(Unicode(), help="Further files and folders that tools may read.").tag(config=True)
    toolset: Any = Enum(
        tuple(TOOLSETS),
        default_value=None,
        allow_none=True,
        help=f"The built-in tools to begin with: {', '.join(TOOLSETS)}. None takes the usual ones.",
    ).tag(config=True)
    model: Any = Unicode(
        help="The model of %%agent where -m does not name one, such as openai:NAME or human.",
    ).tag(config=True)
    approval_timeout_s: Any = Float(
        300.0,
        allow_none=True,
        help="Seconds that a person has to answer; silence denies. None waits for ever.",
    ).tag(config=True)
    card_timeout_s: Any = Float(
        2.0,
        help="Seconds that a page has to show a card, before a plain input box asks instead.",
    ).tag(config=True)
    notify: Any = List(
        Enum(("desktop", "sound")),
        help="How a question that waits draws attention besides the title of the page: `desktop` shows a "
        "notification while you look at something else, once your browser permits it (it asks at your first "
        "decision), `sound` plays a short tone. A change counts for the next question.",
    ).tag(config=True)
    try_unknown_commands: Any = Bool(
        True,
        help="Whether a shell command that nobody knows is tried without the right to change anything, and "
        "asked about only if that fails. Levels `confined` and `isolated` can do so, on Linux 6.12 or "
        "newer; elsewhere it is asked about at once. So it is with False.",
    ).tag(config=True)
    trust_output: Any = Bool(
        False,
        help="Whether a client of %sandbox attach gets all output as it is. What the sandbox prints may "
        "then act on the page: only for code that you trust.",
    ).tag(config=True)
    call_timeout_s: Any = Float(
        _DEFAULT.call_timeout_s,
        help="Seconds that a call may take when neither it nor its tool says otherwise.",
    ).tag(config=True)
    memory_bytes: Any = Int(
        _DEFAULT.memory_bytes, allow_none=True, help="Memory of the sandbox. None for no limit."
    ).tag(config=True)
    disk_bytes: Any = Int(
        _DEFAULT.disk_bytes, allow_none=True, help="Disk space that it writes. None for no limit."
    ).tag(config=True)
    file_bytes: Any = Int(_DEFAULT.file_bytes, help="Size of any file that it writes.").tag(config=True)
    processes: Any = Int(_DEFAULT.processes, help="Processes and threads.").tag(config=True)
    open_files: Any = Int(_DEFAULT.open_files, help="Open files of each process.").tag(config=True)
    open_files_total: Any = Int(_DEFAULT.open_files_total, help="Open files of all processes together.").tag(
        config=True
    )
    cpu_s: Any = Float(
        _DEFAULT.cpu_s, allow_none=True, help="Processor time of each process. None for no limit."
    ).tag(config=True)
    stream_bytes: Any = Int(_DEFAULT.stream_bytes, help="Printed bytes kept of one call.").tag(config=True)

    def session_options(self, environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
        """Return the keyword arguments for `Session`.

        Raises:
            UsageError: If a setting is invalid; the message names it.
        """
        try:
            limits = Limits(**{name: getattr(self, name) for name in _LIMIT_NAMES})
        except (TypeError, ValueError) as error:
            raise UsageError(f"AisoTools: {error}. Change it by %config AisoTools.") from None
        policy = None if self.mode is None else dataclasses.replace(user_policy(environ), mode=self.mode)
        return {
            "workspace": self.workspace or None,
            "policy": policy,
            "limits": limits,
            "level": self.level,
            "min_level": self.min_level,
            "read_only": list(self.read_only),
            "approval_timeout_s": self.approval_timeout_s,
            "try_unknown_commands": self.try_unknown_commands,
        }


def settings_for(shell: Any, environ: Mapping[str, str] = os.environ) -> AisoTools:
    """Return the settings of an IPython shell: its own configuration over the user's file.

    Raises:
        UsageError: If the file is invalid. A broken file must not loosen anything, so no default replaces it.
    """
    configured = shell.config.get("AisoTools", {})
    file_settings = user_settings(environ)
    path = user_file(environ)
    unknown = sorted(set(file_settings) - set(AisoTools.class_trait_names(config=True)))
    if unknown:
        known = ", ".join(name for name, _ in setting_traits())
        raise UsageError(f"{path}, [settings]: unknown: {', '.join(unknown)}. Known: {known}.")
    source = "The configuration of IPython"
    try:
        settings = AisoTools(parent=shell)
        source = f"{path}, [settings]"
        for name in file_settings.keys() - configured.keys():
            setattr(settings, name, file_settings[name])
    except TraitError as error:
        raise UsageError(f"{source}: {error}") from None
    return settings


def setting_traits() -> Iterator[tuple[str, TraitType[Any, Any]]]:
    """Yield name and trait of each setting, in the order of the class."""
    traits = AisoTools.class_traits(config=True)
    for name in vars(AisoTools):
        if name in traits:
            yield name, traits[name]


def settings_table() -> str:
    """Return a Markdown table of all settings: name, accepted values, default, meaning."""
    lines = ["| setting | takes | default | meaning |", "|---|---|---|---|"]
    for name, trait in setting_traits():
        default = trait.default()
        lines.append(f"| `{name}` | {_accepted_values(trait)} | `{default!r}` | {trait.help} |")
    return "\n".join(lines) + "\n"


def _accepted_values(trait: TraitType[Any, Any]) -> str:
    if isinstance(trait, Enum):
        words = [f"`{value}`" for value in trait.values or ()]
    else:
        words = [_TYPE_WORDS.get(type(trait).__name__, "`True` or `False`")]
    if trait.allow_none:
        words.append("`None`")
    return ", ".join(words)


_TYPE_WORDS = {"Unicode": "text", "List": "a list of texts", "Float": "seconds", "Int": "a whole number"}


_session: Session | None = None
_settings: AisoTools | None = None
_closing: set[asyncio.Task[None]] = set()


def current_session() -> Session:
    """Return the notebook's own session, created on first use and again after it was closed.

    Its sandbox starts with the first call. Replace the session with `use_session`.
    """
    global _session  # noqa: PLW0603 - one per notebook is the point
    if _session is None or _session.closed:
        # Most of the package: it comes with the first use, not with `%load_ext`.
        from aisotools.session.session import Session

        settings = current_settings()
        _session = Session(**settings.session_options())
        if settings.toolset is not None:
            select_toolset(_session.registry, settings.toolset)
    return _session


def current_settings() -> AisoTools:
    """Return the settings that `%config AisoTools` shows; the defaults before `%load_ext aisotools`."""
    global _settings  # noqa: PLW0603 - one per notebook is the point
    if _settings is None:
        _settings = AisoTools()
    return _settings


def use_settings(settings: AisoTools | None) -> None:
    """Use these settings from now on and apply their changes by `%config`; None for the defaults."""
    global _settings  # noqa: PLW0603 - one per notebook is the point
    _settings = settings
    if settings is not None:
        settings.observe(_on_change, names=settings.trait_names(config=True))


def _on_change(change: Any) -> None:
    """Apply a changed setting to the existing session, or print when it takes effect."""
    if _session is None or _session.closed or change.name in _DYNAMIC:
        return
    if change.name != "mode":
        print(
            f"{change.name} applies to the next session; the notebook's session exists already. "
            "Run `await aisotools.current_session().close()` to end this one."
        )
        return
    policy = _session.policy if _session.level else user_policy(os.environ)
    _session.policy = dataclasses.replace(policy, mode=change.new or user_policy(os.environ).mode)


# Settings that are read each time they are needed.
_DYNAMIC = {"model", "trust_output", "card_timeout_s", "notify"}


def select_toolset(registry: ToolRegistry, name: str) -> str:
    """Register exactly the built-in tools of a set; all other tools stay registered.

    Returns:
        A sentence that lists the registered tools.

    Raises:
        UsageError: If there is no such set.
    """
    tools = builtin_tools(name)
    names = {tool.name for tool in tools}
    for tool in registry.list():
        if source_of(tool) == "built-in" and tool.name in TOOLSETS["all"] and tool.name not in names:
            registry.unregister(tool.name)
    for tool in tools:
        if tool.name not in registry:
            registry.register(tool)
    return f"{len(registry)} tools: {', '.join(tool.name for tool in registry.list())}."


def full_text(result: ToolResult) -> str | None:
    """Return the complete text of a result that was cut, if the notebook's session still stores it."""
    ref = result.truncation.ref if result.truncation is not None else None
    if _session is None or ref is None:
        return None
    stored = _session.results.get(ref)
    return stored.text if stored is not None and stored.call_id == result.metadata.get("call_id") else None


def use_session(session: Session) -> Session:
    """Make `session` the notebook's own and return it. The former one stays open."""
    global _session  # noqa: PLW0603 - one per notebook is the point
    _session = session
    return session


def close_current() -> asyncio.Task[None] | None:
    """Close the notebook's session, if any. Return a task when a running loop closes it in the background."""
    global _session
    session, _session = _session, None
    if session is None or session.closed:
        return None
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(session.close())
        return None
    task = loop.create_task(session.close())
    # The event loop holds tasks weakly; nobody awaits this one.
    _closing.add(task)
    task.add_done_callback(_closing.discard)
    return task
