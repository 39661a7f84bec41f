"""Programs that take passwords in ways of their own."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from aisotools.core import secret_commands
from aisotools.core.secret_commands import find_in_commands, find_in_lists, find_in_words


@pytest.mark.parametrize(
    ("command", "secret"),
    [
        ("mysql -u root -pS3cret99 db", "S3cret99"),
        ("curl -s -u me:S3cret99 https://x.example", "S3cret99"),
        ("machine x login me password S3cret99", "S3cret99"),
        ("db:5432:app:me:S3cret99", "S3cret99"),
        ("echo S3cret99 | sudo -S ls", "S3cret99"),
        ("docker run -p 80:80 nginx", ""),
        ("mysql -u root -p", ""),
        ("cp -p a b", ""),
    ],
)
def test_passwords_in_commands(command: str, secret: str) -> None:
    assert [command[one.start : one.end] for one in find_in_commands(command)] == ([secret] if secret else [])


@given(st.data())
def test_the_sign_that_is_looked_for_first_is_in_what_follows_a_command(data: st.DataObject) -> None:
    """A text without the sign is not searched for the command."""
    (first, sign), names, behind = data.draw(st.sampled_from(secret_commands._PROGRAMS))
    assert sign in data.draw(st.from_regex(behind, fullmatch=True))
    assert first in sign
    for rare, name in names:
        assert rare in name


@pytest.mark.parametrize("blank", [" ", "\t"])
def test_every_program_is_found_with_any_blank_before_its_flag(blank: str) -> None:
    for command in (
        "curl -s{}-u me:S3cret99",
        "mysql x{}-pS3cret99",
        "openssl x{}pass:S3cret99",
        "zip x{}-P S3cret99",
    ):
        text = command.format(blank) + " key: none"
        assert [text[one.start : one.end] for one in find_in_commands(text)] == ["S3cret99"], text


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["mysql", "-px1y2z3", "shop"], [(1, 2, 8)]),
        (["mysql", "-p", "x1y2z3"], [(2, 0, 6)]),
        (["mysql", "-p", "shop"], []),  # the name of a database
        (["/usr/bin/curl", "-u", "bob:x1y2z3", "https://h"], [(2, 4, 10)]),
        (["sh", "-c", "redis-cli -a x1y2z3"], []),  # a text of its own, which is looked at as such
        (["mkdir", "-p", "x1y2z3"], []),
        (["mysql"], []),
        ([], []),
    ],
)
def test_passwords_in_lists_of_words(words: list[str], expected: list[tuple[int, int, int]]) -> None:
    assert list(find_in_words(words)) == expected
    for quote in ("'", '"', '\\"'):
        text = f"run([{', '.join(f'{quote}{word}{quote}' for word in words)}])"
        found = [text[secret.start : secret.end] for secret in find_in_lists(text)]
        assert found == [words[place][start:end] for place, start, end in expected]
