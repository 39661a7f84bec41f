"""TOML that is hostile is refused before a parser sees it, and in a time that grows with its size alone."""

from __future__ import annotations

import signal
import tomllib

import pytest

from aisotools.core.exceptions import UsageError
from aisotools.policy import config
from aisotools.policy.config import MAX_BYTES, MAX_DEPTH, MAX_PARTS, parse_toml

DOTS = "a." * 30_000 + "a"
HOSTILE = {
    "a key of many parts": f"{DOTS} = 1",
    "a table of many parts": f"[{DOTS}]",
    "many parts in a table in a line": f"a = {{ {DOTS} = 1 }}",
    "many parts behind a string of four quotes": f'a = ["""x"""", {{ {DOTS} = "1" }}]',
    "many parts behind a literal of five quotes": f"a = ['''x''''', {{ {DOTS} = '1' }}]",
    "many parts behind an escaped quote": f'a = {{ b = "\\"", {DOTS} = "1" }}',
    "many parts behind escaped backslashes": f'a = {{ b = """\\\\""", {DOTS} = "1" }}',
    "many parts behind a comment": f"# '''\n{DOTS} = '1'",
    "many parts over lines": f'a = """\n"""\n{DOTS} = 1',
    "arrays": "a = " + "[" * 60_000,
    "arrays that end": "a = " + "[" * 30_000 + "]" * 30_000,
    "tables": "a = " + "{a=" * 20_000,
    "a long number": "a = " + "9" * 60_000,
    "a long text": "a = '" + "x" * MAX_BYTES + "'",
    "a string without an end": 'a = "' + "x" * 60_000,
    "many strings without an end": 'a = "' + '\\"""' * 15_000,
    "many strings of lines without an end": 'a = """' + '\\"""' * 15_000,
    "literals without an end": "a = '''" + "''x" * 20_000,
    "quotes": "a = " + '"' * 60_001,
    "backslashes": 'a = """' + "\\" * 60_000,
    "a date of nonsense": "a = 2020-99-99",
}


PARSED = {"a long number", "a date of nonsense"}
"""Hostile texts that the parser may see: it refuses them at once. For others it takes 5 to 45 s."""


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_is_refused_before_a_parser_sees_it(name: str) -> None:
    with pytest.raises(UsageError, match=r"^the file ") as caught:
        parse_toml(HOSTILE[name], "the file")
    assert ("is not TOML" in str(caught.value)) is (name in PARSED)
    assert len(str(caught.value)) < 400


HARMFUL = [*HOSTILE][: [*HOSTILE].index("a long number")]
"""Texts that hold the parser up or make it fail; the others would do so to other passes before it."""
_CPU_S = 0.1


class _TooLongError(BaseException):
    pass


def _give_up(_signal: int, _frame: object) -> None:
    raise _TooLongError


@pytest.mark.parametrize("name", HARMFUL)
def test_the_parser_alone_is_held_up_or_fails(name: str) -> None:
    """The control: twice as long as a loop may stand still, of processor time, or no error of TOML."""
    former = signal.signal(signal.SIGVTALRM, _give_up)
    signal.setitimer(signal.ITIMER_VIRTUAL, _CPU_S)
    try:
        with pytest.raises((_TooLongError, RecursionError)):
            tomllib.loads(HOSTILE[name])
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, former)


@pytest.mark.sample(4)
@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_the_pass_before_the_parser_ends_on_texts_of_any_size(text: str) -> None:
    """Each is 64 times as large as it may be; in a time that grows with the square it would not end."""
    config._find_excess(text[:7] + text[7:] * 64)


def test_ordinary_text_is_parsed() -> None:
    text = """
    # it's "quoted" [here
    mode = "safe"
    a.b.c = 1.5
    x = [[1, 2.5], ['[', "]\\"["], {y = '''
    '[[[['''}]
    [[rule]]
    when = { paths = ["a.b.c.d.e.f.g.h.i.j.k.l.m.n.o.p.q.r.s.t"] }
    """
    document = parse_toml(text, "the file")
    assert document["a"] == {"b": {"c": 1.5}}
    assert document["x"][1] == ["[", ']"[']
    assert document["x"][2] == {"y": "    '[[[["}
    assert document["rule"][0]["when"]["paths"][0].endswith("t")


def test_bounds() -> None:
    parse_toml(".".join("a" * MAX_PARTS) + " = 1", "the file")
    parse_toml("a = " + "[" * MAX_DEPTH + "]" * MAX_DEPTH, "the file")
    parse_toml("#" * MAX_BYTES, "the file")
    with pytest.raises(UsageError, match="parts"):
        parse_toml(".".join("a" * (MAX_PARTS + 1)) + " = 1", "the file")
    with pytest.raises(UsageError, match="nested"):
        parse_toml("a = " + "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), "the file")
    with pytest.raises(UsageError, match="bytes"):
        parse_toml("#" * (MAX_BYTES + 1), "the file")
