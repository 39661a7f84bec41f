"""Names in front of values: which say that a secret follows."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from aisotools.core import secret_names
from aisotools.core.secret_names import (
    Strength,
    find_foreign,
    find_named,
    is_secret_value,
    purpose_of,
    strength_of,
)


@pytest.mark.parametrize(
    ("name", "strength"),
    [
        ("password", Strength.STRONG),
        ("DB_PASSWORD_PROD", Strength.STRONG),
        ("dbPassword", Strength.STRONG),
        ("api-key", Strength.STRONG),
        ("access_token", Strength.MEDIUM),
        ("token", Strength.WEAK),
        ("key", Strength.WEAK),
        ("primary_key", None),
        ("max_tokens", None),
        ("tokenizer", None),
        ("password_file", None),
        ("author", None),
    ],
)
def test_strength_of_a_name(name: str, strength: Strength | None) -> None:
    assert strength_of(name) is strength


def test_a_name_is_told_in_one_word() -> None:
    assert [purpose_of(name) for name in ("DB_PASSWORD", "apiKey", "Set-Cookie")] == [
        "password",
        "key",
        "cookie",
    ]


def test_only_the_value_is_a_secret() -> None:
    text = 'x = {"password": "hunter2", "user": "me"}'
    (secret,) = find_named(text)
    assert text[secret.start : secret.end] == "hunter2"
    assert secret.kind == "password"
    assert is_secret_value("password", "hunter2")
    assert not is_secret_value("password", "<password>")


@given(st.from_regex(secret_names._FOREIGN.pattern, fullmatch=True, alphabet=st.characters(codec="ascii")))
def test_a_foreign_name_in_ascii_has_the_sign_that_is_looked_for_first(text: str) -> None:
    assert any(sign in text.lower() for sign in secret_names.FOREIGN_SIGNS)


def test_values_behind_foreign_names_are_found_in_any_case() -> None:
    for text in ("CONTRASENA: Zq81mmZ", "Mot De Passe : Zq81mmZ", "пароль: Zq81mmZ"):
        assert [text[one.start : one.end] for one in find_foreign(text)] == ["Zq81mmZ"], text
