"""What a notebook asks about the worker's variables: completions, what an object is, whether code is whole.

These run in the worker as tools of our own, so that whatever they meet there (a property that never returns)
is stopped like any other call. The host asks through `aisotools.sandbox.enquiry`, which checks the answers.
"""

from __future__ import annotations

import base64
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import comm
from IPython.core.completer import provisionalcompleter, rectify_completions
from IPython.utils.tokenutil import token_at_cursor

from aisotools.contracts import ToolContext
from aisotools.events import Json, ToolResult
from aisotools.exceptions import ToolError
from aisotools.sandbox.shell import ZMQInteractiveShell
from aisotools.sandbox.streams import json_bundle, sendable

MOST_MATCHES = 1_000
"""How many completions are told."""

_Answer = Callable[[ZMQInteractiveShell, Mapping[str, Json]], Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class Enquiry:
    """A `Tool` of the worker's own: asks its shell something."""

    name: str
    description: str
    answer: _Answer

    def parameters_schema(self) -> Mapping[str, Json]:
        """Anything: the host makes the arguments itself."""
        return {"type": "object"}

    async def execute(self, arguments: Mapping[str, Json], context: ToolContext) -> ToolResult:
        """Ask."""
        shell = context.metadata_get("shell")
        if not isinstance(shell, ZMQInteractiveShell):
            raise ToolError(f"{self.name} runs only in a sandbox worker, and this is none.")
        return ToolResult.json(self.answer(shell, arguments), content="")


def _complete(shell: ZMQInteractiveShell, arguments: Mapping[str, Json]) -> Json:
    # The objects are here, so that looking at them is better than jedi's reading of their source files, which
    # takes five seconds for a data frame and starts anew in every sandbox.
    shell.Completer.use_jedi = False
    code, cursor = arguments["code"], arguments["cursor"]
    with provisionalcompleter():
        found = shell.Completer.completions(code, cursor)
        matches = list(itertools.islice(rectify_completions(code, found), MOST_MATCHES))
    return {
        "start": matches[0].start if matches else cursor,
        "end": matches[0].end if matches else cursor,
        "matches": [
            {
                "text": sendable(m.text),
                "type": sendable(m.type or ""),
                "signature": sendable(m.signature or ""),
            }
            for m in matches
        ],
    }


def _inspect(shell: ZMQInteractiveShell, arguments: Mapping[str, Json]) -> Json:
    name = token_at_cursor(arguments["code"], arguments["cursor"])
    shell.colors = "neutral"
    try:
        bundle = shell.object_inspect_mime(name, detail_level=arguments["detail"])  # type: ignore[no-untyped-call]  # IPython's
    except KeyError:
        return None
    text = bundle.get("text/plain", "")
    return json_bundle({"text/plain": text})


def _is_complete(shell: ZMQInteractiveShell, arguments: Mapping[str, Json]) -> Json:
    status, indent = shell.input_transformer_manager.check_complete(arguments["code"])
    return {"status": status, "indent": indent or 0}


def _take_message(_shell: ZMQInteractiveShell, arguments: Mapping[str, Json]) -> Json:
    message = {
        "content": arguments["content"],
        "metadata": {},
        "buffers": [memoryview(base64.b64decode(buffer)) for buffer in arguments["buffers"]],
    }
    getattr(comm.get_comm_manager(), arguments["kind"])(None, None, message)
    return None


complete = Enquiry(name="complete", description="What may stand at the cursor.", answer=_complete)
inspect = Enquiry(name="inspect", description="What the object at the cursor is.", answer=_inspect)
is_complete = Enquiry(name="is_complete", description="Whether code is whole.", answer=_is_complete)
take_message = Enquiry(name="take_message", description="A message to a widget.", answer=_take_message)
