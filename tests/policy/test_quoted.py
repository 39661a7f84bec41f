"""Tests for `aisotools.policy.quoted`."""

from __future__ import annotations

import time

import pytest

from aisotools.policy.quoted import MAX_TEXTS, quoted_texts


@pytest.mark.parametrize(
    "code",
    [
        "open('secrets/key')",
        'x = 1\nprint(open("secrets/key").read())',
        "File.read(`secrets/key`)",
        "f(b'a', r'secrets/key')",
        "f('it', \"secrets/key\")",
        "open('a'); open('secrets/key')",
        "f(\"don't\", 'secrets/key')",
    ],
)
def test_a_name_in_quotes_is_found(code: str) -> None:
    assert "secrets/key" in quoted_texts(code)


@pytest.mark.parametrize("code", ["", "secrets/key", "'secrets/key\n'", "'secrets/key", "''"])
def test_a_name_without_quotes_is_not_found(code: str) -> None:
    assert "secrets/key" not in list(quoted_texts(code))


def test_no_more_than_the_limit_is_looked_at_and_long_texts_are_no_names() -> None:
    assert len(list(quoted_texts("'a';" * 10_000))) == MAX_TEXTS
    assert list(quoted_texts(f"'{'a' * 1_000}'")) == []
    assert "late" not in list(quoted_texts("x" * (1 << 19) + "'late'"))


@pytest.mark.parametrize("part", ["'", "'a", "' ", "\"'", "a'b", "'" + "a" * 299])
def test_any_code_takes_little_time(part: str) -> None:
    started_s = time.thread_time()
    list(quoted_texts(part * (1 << 20)))
    assert time.thread_time() - started_s < 1
