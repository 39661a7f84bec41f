"""`%mcp add|list|remove`: the tools of MCP servers in the notebook's session."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, NoReturn
from weakref import WeakKeyDictionary

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_magic, magics_class, no_var_expand

from aisotools.core.types import Effect
from aisotools.notebook.current import current_session
from aisotools.policy.prompts import visible

if TYPE_CHECKING:
    from aisotools.integrations.mcp.api import McpServer
    from aisotools.session.session import Session


USAGE = (
    "%mcp add NAME [--env VAR] [--read-only TOOL,...] -- COMMAND ...   |   "
    "%mcp add NAME URL [--token-env VAR] [--read-only TOOL,...]   |   %mcp list   |   %mcp remove NAME"
)

_servers: WeakKeyDictionary[Session, dict[str, McpServer]] = WeakKeyDictionary()


@magics_class
class McpMagics(Magics):
    """The positional form of a magic that must be awaited; see `aisotools.notebook.magics.transform`."""

    @no_var_expand
    @line_magic
    def mcp(self, line: str) -> None:  # noqa: ARG002 - called by IPython with it
        """Bring in the tools of an MCP server: `%mcp add NAME -- COMMAND ...` or `%mcp add NAME URL`.

        `%mcp list` shows the servers, `%mcp remove NAME` takes one away. A program gets the variables that
        `--env VAR` names, a URL the token in the variable that `--token-env` names. `--read-only TOOL,...`
        is your word that these tools change nothing; all others are asked about.
        """
        _must_await()


def _must_await() -> NoReturn:
    raise UsageError(
        "%mcp works at the top level of a cell of its own, not inside a function or another cell magic. "
        "There, write: await add_mcp_server(current_session().registry, NAME, command=[...])",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServerLine:
    """The options of `%mcp add`.

    Attributes:
        name: Name of the server.
        command: Command line of a local server; empty for a URL.
        url: URL of a remote server; empty for a command.
        env: Names of environment variables to pass to the command.
        token_env: Name of the variable with the token; empty for none.
        read_only: Tools that the person declares to change nothing.
    """

    name: str
    command: tuple[str, ...] = ()
    url: str = ""
    env: tuple[str, ...] = ()
    token_env: str = ""
    read_only: tuple[str, ...] = ()


def parse_server_line(words: Sequence[str]) -> McpServerLine:
    """Parse the words behind `%mcp add`.

    Raises:
        UsageError: If they are invalid; the message holds `USAGE`.
    """
    own = list(words)
    command: tuple[str, ...] = ()
    if "--" in own:
        cut = own.index("--")
        own, command = own[:cut], tuple(own[cut + 1 :])
    values: dict[str, list[str]] = {"--env": [], "--token-env": [], "--read-only": []}
    positional: list[str] = []
    while own:
        word = own.pop(0)
        option, equals, value = word.partition("=")
        if option in values:
            if not equals and not own:
                raise UsageError(f"{option} needs a value. {USAGE}")
            values[option].append(value if equals else own.pop(0))
        elif word.startswith("--"):
            raise UsageError(f"%mcp add does not take {word}. {USAGE}")
        else:
            positional.append(word)
    url = "" if command else (positional.pop(1) if len(positional) == 2 else "")
    if len(positional) != 1 or not (command or url):
        raise UsageError(USAGE)
    if (command and values["--token-env"]) or (url and values["--env"]):
        raise UsageError(f"--env goes with a command, --token-env with a URL. {USAGE}")
    return McpServerLine(
        name=positional[0],
        command=command,
        url=url,
        env=tuple(values["--env"]),
        token_env=(values["--token-env"] or [""])[-1],
        read_only=tuple(name for names in values["--read-only"] for name in names.split(",") if name),
    )


async def run_mcp_magic(line: str) -> None:
    """Run `%mcp`.

    Args:
        line: The rest of its line.

    Raises:
        UsageError: For every error that the person can correct; one line.
    """
    if find_spec("mcp") is None:
        raise UsageError('MCP is not installed here. Install it with: pip install "aisotools[mcp]"')
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise UsageError(f"%mcp: {error}. {USAGE}") from None
    session = current_session()
    servers = _servers.setdefault(session, {})
    action, rest = (words[0], words[1:]) if words else ("list", [])
    if action == "add":
        await _add(session, servers, parse_server_line(rest))
    elif action == "list" and not rest:
        print("\n".join(map(_describe_server, servers.values())) or f"There are no MCP servers yet. {USAGE}")
    elif action == "remove" and len(rest) == 1:
        await _remove(servers, rest[0])
    else:
        raise UsageError(USAGE)


async def _add(session: Session, servers: dict[str, McpServer], options: McpServerLine) -> None:
    from aisotools.integrations.mcp.api import add_mcp_server

    if options.name in servers:
        raise UsageError(
            f"There is an MCP server {options.name!r} already. Remove it first: %mcp remove {options.name}"
        )
    server = await add_mcp_server(
        session.registry,
        options.name,
        command=list(options.command) or None,
        url=options.url or None,
        env={name: _variable(name, os.environ) for name in options.env} or None,
        token=_variable(options.token_env, os.environ) if options.token_env else None,
        effects=dict.fromkeys(options.read_only, Effect.READ_ONLY),
        session=session,
    )
    servers[options.name] = server
    print(_describe_server(server))


async def _remove(servers: dict[str, McpServer], name: str) -> None:
    server = servers.pop(name, None)
    if server is None:
        known = ", ".join(servers) or "none"
        raise UsageError(f"There is no MCP server {name!r}. Added: {known}.")
    await server.close()
    print(f"{name} was removed, and its tools with it.")


def _variable(name: str, environ: Mapping[str, str]) -> str:
    try:
        return environ[name]
    except KeyError:
        raise UsageError(
            f"The variable {name} is not set; set it before, with os.environ[{name!r}]."
        ) from None


def _describe_server(server: McpServer) -> str:
    """Describe one server in a few lines. Names and reasons come from the server and are untrusted."""
    lines = [f"{server.name}: {server.endpoint.description} ({server.state}{_revision(server)})"]
    lines.append(f"  tools: {', '.join(server.tools) or 'none'}")
    lines += [
        f"  not taken: {visible(name, '')}: {visible(reason, '')}" for name, reason in server.refused.items()
    ]
    lines += [
        f"  {visible(name, '')} changed since you declared it, and is asked about now"
        for name in sorted(server.undeclared)
    ]
    return "\n".join(lines)


def _revision(server: McpServer) -> str:
    return f", protocol {server.protocol}" if server.protocol else ""
