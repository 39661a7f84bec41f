"""Tab in our magics: names of tools, and of the arguments of the tool that stands there."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from aisotools.notebook.current import current_session

_LINE = re.compile(
    r"(?:^|\n)[ \t]*(?:[\w.\[\]'\", ]+=[ \t]*)?%(?P<magic>call|tools|policy[ \t]+why)[ \t]+(?P<rest>[^\n]*)\Z"
)
_FORMATS = ("--format",)
_CALL = ("--json", "--ask", "--timeout")


def candidates(text: str, schemas: Mapping[str, Mapping[str, Any]]) -> list[str] | None:
    """What the last word of `text` may become; None where none of our magics is being typed.

    Args:
        text: The cell up to the cursor.
        schemas: Of every known tool, by name.
    """
    match = _LINE.search(text)
    if match is None:
        return None
    words = re.split(r"[ \t]+", match["rest"])
    *before, last = words
    if not before:
        return [name for name in schemas if name.startswith(last)]
    if match["magic"] == "tools":
        return [flag for flag in _FORMATS if last and flag.startswith(last)]
    properties = schemas.get(before[0], {}).get("properties", {})
    name, equals, value = last.partition("=")
    if equals:
        return [f"{name}={v}" for v in _values(properties.get(name, {})) if v.startswith(value)]
    given = {word.partition("=")[0] for word in before}
    flags = [flag for flag in _CALL if last.startswith("-") and flag.startswith(last)]
    return [f"{name}=" for name in properties if name.startswith(last) and name not in given] + flags


def _values(schema: Any) -> list[str]:
    """The few values that an argument can have, as they are typed."""
    if not isinstance(schema, Mapping):
        return []
    if schema.get("type") == "boolean":
        return ["true", "false"]
    values = [v for v in schema.get("enum", ()) if isinstance(v, str) and v and " " not in v]
    return values + [v for option in schema.get("anyOf", ()) for v in _values(option)]


def matcher() -> Callable[[Any], Any]:
    """A matcher for IPython's completer, which then shows nothing else."""
    from IPython.core.completer import SimpleCompletion, context_matcher

    @context_matcher()  # type: ignore[untyped-decorator]  # IPython's decorators are untyped
    def aisotools_matcher(context: Any) -> Any:
        before = context.text_until_cursor
        lines = context.full_text.split("\n")[: context.cursor_line]
        typed = "\n".join([*lines, before])
        known = {tool.name: tool.parameters_schema() for tool in current_session().registry.list()}
        found = candidates(typed, known)
        if found is None:
            return {"completions": [], "suppress": False}
        token, word = context.token, re.split(r"[ \t]", before)[-1]
        # IPython replaces its own idea of a word, which may begin behind `=` or `-`.
        cut = len(word) - len(token) if word.endswith(token) else 0
        shown = [SimpleCompletion(text=one[cut:], type="tool") for one in found if one.startswith(word[:cut])]
        return {"completions": shown, "suppress": True, "matched_fragment": token}

    made: Callable[[Any], Any] = aisotools_matcher
    return made
