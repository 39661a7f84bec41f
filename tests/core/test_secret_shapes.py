"""That hostile text is looked at in time that grows with its length, and other properties of the shapes."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

from aisotools.core import secret_commands, secret_names, secret_shapes
from aisotools.core.redaction import redact_text
from aisotools.core.secret_shapes import is_placeholder, looks_random

HOSTILE = [
    *["a", "-", " ", "key", "key ", "token:", "token: '", 'token:"a', "token=`", "password", "password="],
    *["password=a1 ", "password:'", "--password ", "eyJ", "eyJ-", "eyJaaaaaaaaaa.", "sk-", "-sk-", "\\nsk-"],
    *["://", "://a:", "://a:b", "://a:b@", "-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----"],
    *["-----BEGIN A PRIVATE KEY-----\n", "AAAA\n", "mysql ", "mysql -p", "curl -u ", "curl -u a:", "echo a|"],
    *["Authorization: ", 'Authorization: Digest a="', "Authorization: Digest a=b,", "Cookie: a=b; "],
    *[
        "cookie: a=$x ",
        "login a password ",
        "machine a login b password ",
        "value=",
        "token\nvalue",
        "login ",
    ],
    *['\\"', 'token\\\\\\"', "[redacted: ", "[redacted", 'key("', "password (", "access key [", "İ"],
    *["password|", "54:5432:", "a:5432:b:c:", "$2b$12$", "$argon2", "ghp_", "hooks.slack.com/services/"],
    *["AKIA", "1//0", "a.b.", "key.key", "sig=a&", "apiToken string =", "token           ", "bearer "],
    *[
        'auth=("a","',
        "\\u0022sk-",
        "password:\n",
        "token a:",
        "a=password:",
        "set password to ",
        "<password>a",
        *("'a:", "'a:bbbb@", "'a:bbbb@c.", "password=\r", "\x1b[3", "\x1b[31m", "port 'aaaa", "base 10: '"),
        *("\x00", "=\\r", "--password\x00"),
    ],
]


@pytest.mark.parametrize(
    ("text", "is_secret"),
    [
        ("netloc='bob:S3cr3tPwd99@host.example'", True),
        ('("https", "bob:S3cr3tPwd99@host.example:443", "/x")', True),
        ("InvalidURL: nonnumeric port: 'S3cr3tPwd99@host.example'", True),
        ("ValueError: invalid literal for int() with base 10: 'S3cr3tPwd99@host.example'", True),
        ("Port could not be cast to integer value as 'S3cr3tPwd99@host.example'", True),
        ("'mailto:S3cr3tPwd99@host.example'", False),
        ("write to 'S3cr3tPwd99@host.example'", False),
        ("'git:latest@sha256'", False),
        ("'a:b@c'", False),
        ("'bob:$PASSWORD@host.example'", False),
        ("'bob:[redacted: password]@host.example'", False),
        ("'to:everybody@host.example'", False),
    ],
)
def test_passwords_of_an_address_without_its_scheme(text: str, is_secret: bool) -> None:
    assert ("S3cr3tPwd99" not in redact_text(text)) is (is_secret or "S3cr3tPwd99" not in text)
    assert (redact_text(text) != text) is is_secret


def work(text: str) -> float:
    """Seconds of the processor, the least of three."""
    taken = []
    for _ in range(3):
        began_s = time.thread_time()
        redact_text(text)
        taken.append(time.thread_time() - began_s)
    return min(taken)


@pytest.mark.sample(12)
@pytest.mark.parametrize("unit", HOSTILE)
def test_hostile_text_takes_time_in_proportion_to_its_length(unit: str) -> None:
    """The same text sixteen times: quadratic work would be 256 times as much."""
    short, long = (unit * (chars // len(unit)) for chars in (4_000, 64_000))
    assert work(long) < 80 * max(work(short), 0.0002)


def patterns_of(value: object) -> list[re.Pattern[str]]:
    if isinstance(value, re.Pattern):
        return [value]
    if isinstance(value, dict):
        return patterns_of(tuple(value.values()))
    if isinstance(value, tuple):
        return [pattern for item in value for pattern in patterns_of(item)]
    return []


def loops_of(node: Any) -> Iterator[tuple[str, int]]:
    """The repetitions in a parsed pattern that may be tried again, with how often they repeat at most."""
    if isinstance(node, tuple) and node and str(node[0]) in {"MAX_REPEAT", "MIN_REPEAT"}:
        yield str(node[0]), int(node[1][1])
    if isinstance(node, tuple | list) or hasattr(node, "data"):
        for item in getattr(node, "data", node):
            yield from loops_of(item)


def test_nothing_that_repeats_without_limit_is_ever_tried_again() -> None:
    """By construction: such repetitions are possessive, and all others have a small limit."""
    modules = (secret_shapes, secret_names, secret_commands)
    patterns = [
        pattern for module in modules for value in vars(module).values() for pattern in patterns_of(value)
    ]
    # Those that are made when a text needs them.
    patterns += [secret_shapes._compile(beginning, rest) for _, beginning, rest in secret_shapes._TOKENS]
    patterns += [secret_commands._compile(behind) for _, _, behind in secret_commands._PROGRAMS]
    assert len(patterns) > 100
    for pattern in patterns:
        tree = re._parser.parse(pattern.pattern, pattern.flags)  # type: ignore[attr-defined]  # only the parser knows
        assert all(most <= 300 for _, most in loops_of(tree)), pattern.pattern
    # The check can fail.
    assert max(most for _, most in loops_of(re._parser.parse("a(b|c+)"))) > 300  # type: ignore[attr-defined]  # only the parser knows


@pytest.mark.parametrize(
    "text",
    [
        "your-api-key",
        "<token>",
        "$TOKEN",
        "${TOKEN:-x}",
        "********",
        "xxxx",
        "API_KEY",
        "None",
        "changeme",
        "...",
    ],
)
def test_a_placeholder_is_no_secret(text: str) -> None:
    assert is_placeholder(text)


def test_words_do_not_look_random() -> None:
    assert looks_random("a8Fk29sLq0Zx71Pw")
    assert not looks_random("transformers-and-more")
    assert not looks_random("/home/jovyan/tokens/2024-01-01/keys.parquet")


def test_a_wallet_key_is_a_word_of_its_own() -> None:
    key = "KwDiBf89QgGbjEhKnhXJuH7LrciVrZi3qYjgd9M7rFU73sVHnoWn"
    for first in ("K", "L", "5"):
        word = first + (key[1:] if first != "5" else key[1:-1])
        for before, is_found in (
            ("", True),
            (" ", True),
            ("=", True),
            ("a", False),
            ("5", False),
            ("_", False),
        ):
            text = f"{before}{word} end"
            found = [one for one in secret_shapes.find_tokens(text) if one.kind == "wallet-key"]
            assert bool(found) is is_found, text
            if found:
                assert text[found[0].start : found[0].end] == word


def test_the_rarest_character_of_a_word_is_in_it() -> None:
    assert [secret_shapes.rarest(word) for word in ("sk-", "key", "docker login", "_pat")] == [
        "-",
        "k",
        "k",
        "_",
    ]
