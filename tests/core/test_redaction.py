from __future__ import annotations

import hashlib
import re
from typing import Any

import pytest
from hypothesis import given, strategies as st
from pydantic import BaseModel, SecretStr

from aisotools.core.redaction import (
    REDACTED,
    LineRedactor,
    _redact,
    has_marks,
    is_plain,
    redact,
    redact_arguments,
    redact_text,
    remembering,
    secret_parameters,
    shortened,
)
from aisotools.tools.schema import function_schema

SECRETS = [
    "sk-proj-abcdefghijklmnopqrstuvwx",
    "ghp_abcdefghijklmnopqrst0123456789",
    "xoxb-1234567890-abcdefghij",
    "AKIAABCDEFGHIJKLMNOP",
    "AIzaSyA1234567890abcdefghijklmnopqrstu",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIE\nabc\n-----END RSA PRIVATE KEY-----",
]


SEPARATORS = [
    *(chr(code) for code in (*range(9), *range(11, 27), *range(28, 32), *range(127, 161))),
    *"\u1680\u2000\u2009\u2028\u2029\u202f\u205f\u3000",
    *("\x1b[0m", "\x1b[1;31m", r"\u001b[0m", r"\x1b[31m", r"\033[0m"),
]


@pytest.mark.parametrize(
    "form",
    [
        "password={}hunter2hunter2XYZ",
        "password{}=hunter2hunter2XYZ",
        "password:{}hunter2hunter2XYZ",
        'password="{}hunter2hunter2XYZ"',
        "tool --password{}hunter2hunter2XYZ",
        "Authorization: Bearer{}hunter2hunter2XYZ",
        "token{}ghp_hunter2hunter2XYZ00000000000000000000",
    ],
)
def test_separators_that_nobody_sees_hide_no_secret(form: str) -> None:
    """Such as the NUL in /proc/self/cmdline, the carriage return of a progress bar, or a colour."""
    readable = [text for text in SEPARATORS if "hunter2hunter2XYZ" in redact_text(form.format(text))]
    assert not readable
    innocent = [text for text in SEPARATORS if has_marks(redact_text(f"one{text}two{text}3"))]
    assert not innocent


@pytest.mark.parametrize("secret", SECRETS)
def test_texts_that_look_like_secrets_are_masked(secret: str) -> None:
    redacted = redact_text(f"before {secret} after")
    assert secret not in redacted
    assert re.fullmatch(r"before \[redacted: [a-z-]+\] after", redacted)


@pytest.mark.parametrize(
    ("text", "gone"),
    [
        ("curl -H 'Authorization: Bearer abcdef123456'", "abcdef123456"),
        ("export API_KEY=abcdef123456", "abcdef123456"),
        ('{"password": "hunter2222"}', "hunter2222"),
        ("git clone https://me:pa55word@host/x", "pa55word"),
        ("DB_PASSWORD=verysecret; ls", "verysecret"),
    ],
)
def test_values_named_as_secrets_are_masked(text: str, gone: str) -> None:
    redacted = redact_text(text)
    assert gone not in redacted
    assert has_marks(redacted)


@pytest.mark.parametrize(
    "text",
    ["ls -la", "the token count is 12", "def secret(): ...", "see https://host/a:b", "skip-this-and-that"],
)
def test_ordinary_text_stays(text: str) -> None:
    assert redact_text(text) == text


def test_short_texts_that_are_remembered_hide_no_secret() -> None:
    for _ in range(2):
        for number in range(1_200):  # more than are remembered
            assert is_plain("path", f"file-{number}.txt")
        for secret in SECRETS:
            assert not is_plain("path", secret) or redact_text(secret) == secret
            assert secret not in redact_text(f"before {secret} after")


def test_every_depth_is_looked_at() -> None:
    value = {"a": [{"b": SECRETS[0]}, 1, None, True], "c": 2.5}
    assert redact(value) == {"a": [{"b": "[redacted: api-key]"}, 1, None, True], "c": 2.5}


class Box(BaseModel):
    inner: Box | None = None
    key: SecretStr


def nested(boxes: list[Box], user: str) -> str:
    return f"{user} {boxes}"


def test_declared_secrets_go_whole() -> None:
    def login(user: str, pin: SecretStr, backup: SecretStr | None = None) -> str:
        return user

    secret = secret_parameters(function_schema(login).parameters)
    assert secret == {"pin", "backup"}
    assert secret_parameters(function_schema(nested).parameters) == {"boxes"}
    assert redact_arguments({"user": "me", "pin": "1234"}, secret) == {"user": "me", "pin": REDACTED}


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda s: st.lists(s) | st.dictionaries(st.text(), s),
    )
)
def test_redacting_is_total_and_settles(value: object) -> None:
    once = redact(value)
    assert redact(once) == once


def test_long_texts_keep_their_beginning_and_what_proves_the_rest() -> None:
    value = {"a": ["x" * 10, "short"], "b": 3}
    short = shortened(value, 5)
    assert short["a"][1] == "short"
    assert short["b"] == 3
    digest = hashlib.sha256(b"x" * 10).hexdigest()
    assert short["a"][0] == {"beginning": "xxxxx", "chars": 10, "sha256": digest}


def test_a_secret_that_is_cut_at_the_end_of_a_beginning_is_masked_whole() -> None:
    for place in range(80, 101):
        text = "x" * place + f" {SECRETS[1]} " + "y" * 5_000
        short = redact({"a": text}, 100)["a"]
        assert SECRETS[1][:8] not in short["beginning"], place
        assert short["chars"] == len(text)
        assert redact(short) == short


def test_of_very_many_texts_the_last_are_left_out() -> None:
    """What one record takes on the event loop is bounded, whatever it holds."""
    shown = redact(["a" * 1_000] * 1_000, 4_000)
    assert shown[0] == "a" * 1_000
    assert shown[-1]["beginning"] == ""
    assert shown[-1]["chars"] == 1_000


@pytest.mark.parametrize("size", [1, 2, 7, 64])
def test_printed_secrets_are_masked_at_every_border_of_chunks(size: int) -> None:
    secret_lines = ["one", f"key {SECRETS[1]}", *SECRETS[6].split("\n"), "password: hunter2x", "two", "MIIE"]
    text = "\n".join(secret_lines) + "\n"
    redactor, line, shown = LineRedactor(), "", []
    for start in range(0, len(text), size):
        line += text[start : start + size]
        *finished, line = line.split("\n")
        shown += [redactor.finish(one) for one in finished]
    assert shown[0] == "one"
    assert shown[-2:] == ["two", "MIIE"]
    assert not [one for one in ("ghp_", "MIIE", "abc", "hunter2x") if one in "\n".join(shown[:-1])]


def test_nesting_without_end_is_no_error() -> None:
    value: object = "x"
    for _ in range(5_000):
        value = [value]
    assert "nested too deeply" in repr(redact(value))


# ---- short cuts

# Parts that secrets, and the names in front of them, are made of.
PARTS = [
    *(
        "githubPat",
        "github_pat",
        "github pat",
        "Pat",
        "PAT",
        "pw",
        "key",
        "KEY",
        "\u212aey",
        "api",
        "passw",
        "ord",
    ),
    *(
        "hunter2",
        "abc1d9x",
        "4kJ8dPq2Lm9xR7",
        "sk-",
        "Q~",
        "login",
        "mysql",
        "-p",
        "echo",
        "chpasswd",
        "machine",
    ),
    *(
        "user:pw@",
        "://",
        ":",
        "=",
        " ",
        "_",
        "-",
        "|",
        "<<<",
        "IDENTIFIED BY '",
        "/p:",
        "auth=('a', '",
        "value",
        "x",
    ),
]
texts_of_parts = st.lists(st.sampled_from(PARTS), min_size=1, max_size=8).map("".join)


@given(texts_of_parts | st.text(max_size=40))
def test_a_text_that_is_not_looked_at_would_not_have_changed(text: str) -> None:
    assert redact_text(text) == (_redact(text) if len(text) >= 4 else text)


@given(
    texts_of_parts | st.from_regex("[a-z_]{1,12}", fullmatch=True),
    texts_of_parts | st.integers() | st.booleans() | st.none() | st.floats() | st.text(max_size=20),
)
def test_a_plain_argument_would_not_have_changed(name: str, value: Any) -> None:
    if is_plain(name, value):
        for max_chars in (None, 300):
            assert redact({name: value}, max_chars) == {name: value}
        for other in ("name", "key"):
            assert redact({other: "x", name: value})[name] == value


@pytest.mark.parametrize(
    ("name", "value"),
    [("path", "a/b.txt"), ("content", "text 7\n"), ("count", 12_345), ("whole", False), ("glob", None)],
)
def test_ordinary_arguments_are_plain(name: str, value: Any) -> None:
    assert is_plain(name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("password", "hunter2"),
        ("PIN_Key", "x"),
        ("githubPat", "x"),
        ("github pat", "x"),
        ("pin\u212aey", "x"),
        ("value", "x"),  # of the `name` beside it
        ("pwd", 123_456),
        ("text", "password=hunter2"),
        ("text", "PASSWORD IS hunter2"),
        ("text", "4kJ8dPq2Lm9xR7"),
        ("text", "mysql -p a"),
        ("text", "Kelvin \u212aey"),
        ("text", "x " * 150),
        ("number", 1 << 64),
        ("number", 1.5),
        ("items", ["x"]),
        ("object", {"a": "x"}),
        ("data", b"x"),
        (7, "x"),
    ],
)
def test_arguments_that_may_hold_a_secret_or_have_another_form_in_json_are_looked_at(
    name: Any, value: Any
) -> None:
    assert not is_plain(name, value)


def test_a_subclass_is_looked_at_whatever_it_says_of_itself() -> None:
    class Text(str):
        __slots__ = ()

    class Number(int):
        pass

    assert not is_plain("path", Text("a"))
    assert not is_plain(Text("path"), "a")
    assert not is_plain("count", Number(1))


def test_within_a_context_each_text_is_looked_at_once() -> None:
    secret = "password=hunter2222"
    known: dict[str, str] = {}
    with remembering(known):
        assert redact_text(secret) == "password=[redacted: password]"
        assert known == {secret: "password=[redacted: password]"}
        known[secret] = "as it is known"
        assert redact({"a": [secret]}) == {"a": ["as it is known"]}
    assert redact_text(secret) == "password=[redacted: password]"


def test_names_that_are_secrets_are_replaced_and_no_entry_is_lost() -> None:
    keys = [f"sk-{letter * 40}" for letter in "ab"]
    arguments = {keys[0]: 1, "path": "a", keys[1]: 2, "hidden": 3}
    redacted = redact_arguments(arguments, ["hidden"])
    assert [*redacted.values()] == [1, "a", 2, REDACTED]
    assert not any(key in str(redacted) for key in keys)
    assert list(redact({"deep": dict.fromkeys(keys, "x")})["deep"].values()) == ["x", "x"]
    mark = next(iter(redact({keys[0]: 1})))
    assert list(redact({mark: 0, keys[0]: 1}).values()) == [0, 1], "also where a name is such a mark already"


_SECRET = "Zq8vTn3LmP0wKd7R"
NAMED_IN_JSON: list[dict[str, object]] = [
    {"name": "ann", "type": "password", "value": _SECRET},
    {"content": _SECRET, "field": "api_token"},
    {"selector": "#user_password", "value": _SECRET},
    {"id": "new-password", "value": _SECRET},
    {"label": "Secret", "value": _SECRET},
    {"placeholder": "Password", "value": _SECRET},
    {"password": {"string": _SECRET}},
    {"clientSecret": {"value": _SECRET}},
    {"secretAccessKey": {"S": _SECRET}},
    {"db_password": {"new": _SECRET, "old": _SECRET}},
    {"passwordHash": _SECRET},
    {"password": {"stringValue": _SECRET}},
    {"tokens": {"ci": {"deploy": _SECRET}}},
    {"credentials": {"ann": {"mail": _SECRET}}},
    {"passwords": {"a": {"b": _SECRET}}},
    {"Authorization": _SECRET},
    {"authorization": [_SECRET]},
    {"proxy-authorization": _SECRET},
    {"passwordConfirm": _SECRET},
    {"password_repeat": _SECRET},
    {"recoveryPhrase": f"apple {_SECRET}"},
    {"contrasena": _SECRET},
    {"motDePasse": _SECRET},
    {"Mot-De-Passe": _SECRET},
    {"otp": _SECRET},
    {"login-otp": _SECRET},
    {"secret": {"pem": _SECRET}},
    {"privateKey": {"pem": _SECRET}},
    {"password": {"": _SECRET}},
    {"key": "DB_PASSWORD", "val": _SECRET},
    {"data": _SECRET, "variable": "AUTH_TOKEN"},
    {"webhookSecret": {"raw": _SECRET}},
    {"admin_password_2": {"default": _SECRET}},
    {"ssh": {"passphrase": {"v": _SECRET}}},
    {"apiKeys": [_SECRET]},
    {"secrets": [{"v": _SECRET}]},
    {"element": "#secret", "text": _SECRET},
    {"name": "refresh_token", "text": _SECRET},
]
INNOCENT_JSON: list[dict[str, object]] = [
    {"type": "text", "value": "Adelie"},
    {"type": "token", "value": "NOUN"},
    {"id": "password", "text": "Choose a password of at least 8 characters."},
    {"label": "Password", "text": "Password"},
    {"name": "mass", "value": "4200"},
    {"text": "primary", "type": "key"},
    {"selector": "#search", "text": "penguins 2024"},
    {"selector": ".token", "text": "Sign in"},
    {"element": "Password field", "text": "Enter password"},
    {"name": "tokens", "value": "12,345"},
    {"id": "key1", "value": "species"},
    {"id": "session", "text": "started", "type": "object"},
    {"placeholder": "Password", "value": ""},
    {"tokens": {"count": {"total": 12}}},
    {"passes": {"a": {"b": "ran 3 tests"}}},
    {"keys": {"a": {"b": "v1.2"}}},
    {"columns": {"a": {"b": "x_1"}}},
    {"authorization": "none"},
    {"authorization": "required"},
    {"otp": "elixir"},
    {"otp": "enabled"},
    {"hash": "sha256"},
    {"new": "v2.1"},
    {"tests": {"password": {"passed": 3}}},
    {"data": "opaque", "name": "db", "type": "secret"},
]


@pytest.mark.parametrize("value", NAMED_IN_JSON, ids=repr)
def test_values_that_json_names_a_secret_are_hidden(value: dict[str, Any]) -> None:
    assert _SECRET not in repr(redact(value))


@pytest.mark.parametrize("value", INNOCENT_JSON, ids=repr)
def test_json_that_only_talks_about_secrets_stays(value: dict[str, Any]) -> None:
    assert redact(value) == value
