from __future__ import annotations

import pytest

from aisotools.notebook.magics.arguments import complete_line
from tests.notebook.client import Notebook
from tests.waiting import HANG_S

SCHEMAS = {
    "file": {
        "properties": {
            "operation": {"enum": ["read", "write"]},
            "path": {"type": "string"},
            "regex": {"type": "boolean"},
            "mode": {"anyOf": [{"enum": ["a b", "x"]}, {"type": "null"}]},
        }
    },
    "fit": {},
}


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("%call f", ["file", "fit"]),
        ("x = %call fi", ["file", "fit"]),
        ("a = 1\n  %call fil", ["file"]),
        ("%call file ", ["operation=", "path=", "regex=", "mode="]),
        ("%call file path=a o", ["operation="]),
        ("%call file path=a pa", []),
        ("%call file operation=", ["operation=read", "operation=write"]),
        ("%call file operation=w", ["operation=write"]),
        ("%call file regex=t", ["regex=true"]),
        ("%call file mode=", ["mode=x"]),
        ("%call file --", ["--json", "--ask", "--timeout"]),
        ("%policy why fi", ["file", "fit"]),
        ("%tools fil", ["file"]),
        ("%tools file --f", ["--format"]),
        ("%call unknown x", []),
        ("%callx f", None),
        ("print('%call f", None),
        ("%call f\nfi", None),
        ("fi", None),
    ],
)
def test_conversions_of_a_word(typed: str, found: list[str] | None) -> None:
    assert complete_line(typed, SCHEMAS) == found


@pytest.mark.parametrize(
    ("cell", "whole"),
    [
        ("%call sandbox_r", "%call sandbox_read"),
        ("x = %call sandbox_w", "x = %call sandbox_write"),
        ("%call file oper", "%call file operation="),
        ("%call file operation=wri", "%call file operation=write"),
    ],
)
def test_in_a_kernel(loaded: Notebook, cell: str, whole: str) -> None:
    reply = loaded.client.complete(cell, reply=True, timeout=HANG_S)["content"]
    made = {cell[: reply["cursor_start"]] + match + cell[reply["cursor_end"] :] for match in reply["matches"]}
    assert made == {whole}
