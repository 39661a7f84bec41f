"""The grammar of jq."""

from __future__ import annotations

import pytest

from aisotools.policy.shell.languages.jq import read_jq


@pytest.mark.parametrize(
    "program",
    [
        ".",
        ".a.b[0]?",
        '.[] | select(.x > 1) | {a, "b": .c, (.d): 1}',
        '"\\(.a | length) \\("x")"',
        "def f($x): . + $x; map(f(1))",
        "reduce .[] as $i (0; . + $i)",
        "if . then 1 elif 2 then 3 else 4 end",
        '@base64 "x\\(.)"',
        "label $out | foreach .[] as $x (0; . + 1; if . > 3 then ., break $out else . end)",
        ".a //= 1 # c",
        "$ENV.HOME",
        "[limit(3; .[])]",
    ],
)
def test_plain_programs_are_read_whole(program: str) -> None:
    assert read_jq(program).doubt == ""


@pytest.mark.parametrize(
    "program",
    [
        'import "m" as m; .',
        'include "m"; f',
        'load("x")',
        'system("x")',
        "frob",
        "(",
        "[",
        '"\\("',
        '"x',
        ".a]",
        "`x`",
        "f(1)",
    ],
)
def test_a_program_that_may_do_more_is_doubted(program: str) -> None:
    assert read_jq(program).doubt
