"""Reading docstrings: what a model is told, and what is said of each parameter.

The door to griffe, which knows the styles of Google, NumPy and Sphinx; imported on first use.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import griffe

Style = Literal["google", "numpy", "sphinx"]

_GOOGLE_PARAMETERS = "(?:Keyword |Other )?(?:Args|Arguments|Params|Parameters)"
_GOOGLE_SECTION = re.compile(
    rf"^(?:{_GOOGLE_PARAMETERS}|Returns?|Yields?|Receives|Raises|Warns|Attributes)[ \t]*:[ \t]*\n"
    r"(?:[ \t].*\n|\n)*",
    re.MULTILINE,
)
_NUMPY_SECTION = re.compile(
    r"^(?:(?:Other |Keyword )?Parameters|Returns?|Yields?|Receives|Raises|Warns|Warnings|Attributes|Methods"
    r"|See Also|References)[ \t]*\n[ \t]*-{3,}[ \t]*\n(?:(?!.*\n[ \t]*-{3,}[ \t]*\n).*\n)*",
    re.MULTILINE,
)
_SPHINX_FIELD = re.compile(
    r"^:(?:param|parameter|arg|argument|key|keyword|type|returns?|rtype|raises?|except|exception|var|ivar|cvar"
    r"|vartype|meta)\b[^:\n]*:.*\n(?:[ \t]+.*\n)*",
    re.MULTILINE,
)
_DOCUMENTS: tuple[tuple[Style, re.Pattern[str], re.Pattern[str]], ...] = (
    (
        "google",
        re.compile(rf"^{_GOOGLE_PARAMETERS}[ \t]*:[ \t]*$", re.MULTILINE),
        _GOOGLE_SECTION,
    ),
    (
        "numpy",
        re.compile(r"^(?:Other |Keyword )?Parameters[ \t]*\n[ \t]*-{3,}[ \t]*$", re.MULTILINE),
        _NUMPY_SECTION,
    ),
    (
        "sphinx",
        re.compile(r"^:(?:param|parameter|arg|argument|key|keyword)\b[^:\n]*:", re.MULTILINE),
        _SPHINX_FIELD,
    ),
)


@lru_cache(maxsize=256)
def read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """The description, which is all but the sections for programmers, and what is said of each parameter.

    Args:
        text: A docstring without indentation, in the style of Google, NumPy or Sphinx.
    """
    whole = f"{text}\n"
    description = whole
    for _, _, sections in _DOCUMENTS:
        description = sections.sub("", description)
    for style, documents, _ in _DOCUMENTS:
        if documents.search(whole):
            return description.strip(), _parameters(text, style)
    return description.strip(), {}


def _parameters(text: str, style: Style) -> dict[str, str]:
    import griffe

    wanted = {griffe.DocstringSectionKind.parameters, griffe.DocstringSectionKind.other_parameters}
    found: dict[str, str] = {}
    for section in griffe.Docstring(text).parse(style, warnings=False):
        if section.kind in wanted:
            found.update(_described(section))
    return found


def _described(section: griffe.DocstringSection) -> dict[str, str]:
    # NumPy's style documents several parameters at once: "x, y : float".
    return {
        name.strip().lstrip("*"): " ".join(one.description.split())
        for one in section.value
        for name in one.name.split(",")
    }
