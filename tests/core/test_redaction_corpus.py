"""Which secrets stay readable, and which innocent texts are touched, of those in `secret_shapes.toml`."""

from __future__ import annotations

import base64
import json
import random
import re
import string
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aisotools.core.redaction import _redact, redact, redact_text

FILE = Path(__file__).parents[1] / "data" / "secret_shapes.toml"
CORPUS: dict[str, dict[str, dict[str, list[str]]]] = tomllib.loads(FILE.read_text("utf-8"))

ALPHABETS = {
    "a": string.ascii_letters + string.digits,
    "A": string.ascii_uppercase + string.digits,
    "l": string.ascii_lowercase,
    "h": "0123456789abcdef",
    "d": string.digits,
    "b": string.ascii_letters + string.digits + "+/",
    "u": string.ascii_letters + string.digits + "-_",
    "w": "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz",
}
READABLE_CHARS = 8
"""So many characters of a secret in a row are readable."""


def expand(template: str) -> str:
    """Return a text with made-up values, always the same."""
    chance = random.Random(template)

    def some(kind: str, length: int) -> str:
        return "".join(chance.choices(ALPHABETS[kind], k=length))

    def value(match: re.Match[str]) -> str:
        kind, _, length = match[1].partition(" ")
        if kind == "basic":
            return base64.b64encode(f"admin:{some('a', 14)}".encode()).decode()
        if kind == "encoded":
            return base64.b64encode(f"user=me\npassword={some('a', int(length))}\n".encode()).decode()
        if kind == "jwt":
            head = base64.urlsafe_b64encode(b'{"alg":"HS256","typ":"JWT"}').decode().rstrip("=")
            return f"{head}.{some('u', 80)}.{some('u', 43)}"
        if kind == "pem":
            return "\n".join(some("b", 64) for _ in range(4))
        return some(kind, int(length))

    return re.sub(r"⟨([^⟩]+)⟩", value, template)


def texts_of(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from texts_of(item)
    elif isinstance(value, list):
        for item in value:
            yield from texts_of(item)


def redacted(text: str) -> str:
    if text.startswith("json:"):
        return json.dumps(redact(json.loads(text[5:])), ensure_ascii=False)
    return redact_text(text)


def secrets_of(marked: str) -> list[str]:
    return [part for secret in re.findall("«([^»]+)»", marked) for part in secret.split("\n")]


def readable_secrets(template: str) -> list[str]:
    """Return the secrets of a template of which a part is still readable."""
    marked = expand(template)
    result = re.sub(r"\[redacted[^]]*\]", "", redacted(re.sub("[«»]", "", marked)))
    readable = []
    for secret in secrets_of(marked):
        size = min(READABLE_CHARS, len(secret))
        if any(secret[i : i + size] in result for i in range(len(secret) - size + 1)):
            readable.append(f"{secret} in {result}")
    return readable


def touched(template: str) -> str:
    """Return what became of an innocent text that was changed; else an empty text."""
    text = expand(template)
    if text.startswith("json:"):
        value = json.loads(text[5:])
        return "" if redact(value) == value else str(redact(value))
    result = redact_text(text)
    return "" if result == text else result


READABLE_RATE = TOUCHED_RATE = 0.02


@pytest.mark.parametrize("half", ["tuned", "held_out"])
def test_rates_of_readable_secrets_and_touched_texts(half: str, capsys: pytest.CaptureFixture[str]) -> None:
    templates = [one for family in CORPUS["secret"][half].values() for one in family]
    innocent = [one for family in CORPUS["innocent"][half].values() for one in family]
    readable = [found for template in templates for found in readable_secrets(template)]
    changed = [found for template in innocent if (found := touched(template))]
    secrets = sum(len(secrets_of(expand(template))) for template in templates)
    with capsys.disabled():
        print(
            f"\n{half}: {len(readable)} of {secrets} secrets in {len(templates)} texts readable, "
            f"{len(changed)} of {len(innocent)} innocent texts touched"
        )
    assert len(templates) >= 100
    assert len(innocent) >= 100
    is_tuned = half == "tuned"
    assert len(readable) <= (0 if is_tuned else READABLE_RATE * secrets), readable
    assert len(changed) <= (0 if is_tuned else TOUCHED_RATE * len(innocent)), changed


def test_a_text_that_is_not_redacted_is_found_readable_and_one_that_is_is_found_touched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    template = CORPUS["secret"]["tuned"]["aws"][0]
    assert not readable_secrets(template)
    monkeypatch.setitem(globals(), "redact_text", lambda text: text)
    assert readable_secrets(template)
    monkeypatch.setitem(globals(), "redact_text", lambda _: "[redacted: password]")
    assert touched("an innocent text")


def test_shapes_that_are_known_to_stay_readable_still_do() -> None:
    for template in CORPUS["secret"]["known"]["readable"]:
        assert readable_secrets(template), f"{template} is redacted now: move it to the tuned half"


def test_redacting_twice_is_redacting_once() -> None:
    for kind in ("secret", "innocent"):
        for half in ("tuned", "held_out"):
            for template in (one for family in CORPUS[kind][half].values() for one in family):
                text = re.sub("[«»]", "", expand(template))
                once = redact(json.loads(text[5:])) if text.startswith("json:") else redact_text(text)
                assert redact(once) == once, template


def test_texts_around_secrets_stay() -> None:
    """A mark takes the place of the secret alone, so that what was done is still told."""
    text = expand("mysql -u root -p«Winter2024!» shop < dump.sql").replace("«", "").replace("»", "")
    assert redact_text(text) == "mysql -u root -p[redacted: password] shop < dump.sql"
    text = "curl -u me:S3cret99 https://x.example && ls"
    assert redact_text(text) == "curl -u me:[redacted: password] https://x.example && ls"


def test_secrets_are_redacted_next_to_each_other() -> None:
    templates = [one for family in CORPUS["secret"]["tuned"].values() for one in family]
    plain = [one for one in templates if not one.startswith("json:") and "PRIVATE KEY" not in one]
    joined = "\n\n".join(map(expand, plain))  # with the values that each of them has alone
    assert len(readable_secrets(joined)) <= 2  # a line may end what the next begins


def test_no_example_is_left_out_because_it_is_short() -> None:
    """A short text without any sign of a secret is not looked at."""
    for text in texts_of(CORPUS):
        whole = expand(text)
        for part in {whole, *whole.splitlines(), *whole.split()}:
            if len(part) >= 4:
                assert redact_text(part) == _redact(part)
