"""Texts in quotes in code of any language, such as the names of files that it opens."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

MAX_TEXTS = 200
"""Texts that are looked at in one piece of code."""

_MAX_CHARS = 300
_MAX_CODE_CHARS = 1 << 18
# From a quote to the next one of its kind on the same line, whichever language it is. The next text may begin
# with the quote that ends this one: what lies between two texts is tried as well, and costs nothing.
_find_texts = re.compile(rf"""(?=(["'`])([^"'`\n\0]{{1,{_MAX_CHARS}}})\1)""").finditer


def quoted_texts(code: str) -> Iterator[str]:
    """Yield the texts between quotes that may be the names of files, by their length; the first of many."""
    texts = (found[2] for found in _find_texts(code[:_MAX_CODE_CHARS]))
    return islice(texts, MAX_TEXTS)
