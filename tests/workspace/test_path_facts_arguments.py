"""The ways in which texts of arguments are read as paths."""

from __future__ import annotations

import json
from typing import Any

import pytest

from aisotools.workspace.path_facts import MAX_CHARS, MAX_VALUES, joined, readings_of

KEY = "secrets/key"


@pytest.mark.parametrize(
    "text",
    [
        KEY,
        f" {KEY}",
        f"{KEY}\n",
        f"\t{KEY}\0",
        f'"{KEY}"',
        f"`{KEY}`",
        f"<{KEY}>",
        f"/{KEY}",
        f"file:{KEY}",
        f"file:///{KEY}",
        f"FILE:///{KEY}",
        f"file://localhost/{KEY}#L1",
        f"vscode://file/{KEY}?x",
        "secrets%2Fkey",
        "secrets%252Fkey",
        "%73ecrets/key",
        "secrets\\key",
        "C:\\secrets\\key",
        "{pub,secrets}/key",
        "\uff53ecrets/key",
    ],
)
def test_a_text_as_a_whole(text: str) -> None:
    for arguments in (
        {"x": text},
        {"x": ["a", {"b": [text]}]},
        {"x": {text: 1}},
        {text: 1},
        {"x": json.dumps({"path": text})},
        {"x": json.dumps([{text: 1}])},
    ):
        readings = readings_of(arguments)
        assert KEY in readings.wholes
        assert readings.is_complete


@pytest.mark.parametrize(
    "text",
    [
        f"cat {KEY}",
        f"path={KEY}",
        f"{KEY},pub/p",
        f"{KEY}:1",
        f"{KEY}#L1",
        f"@{KEY}",
        f"HEAD:{KEY}",
        f"?{KEY}",
        f"first line\nthen {KEY} is read\nand so on",
        f"please%20read%20{KEY}",
        " ".join(["word"] * 1_000 + [KEY]),
    ],
)
def test_words_of_a_text(text: str) -> None:
    readings = readings_of({"x": text})
    assert KEY in readings.words
    assert KEY not in readings.wholes


@pytest.mark.parametrize(
    "arguments", [{"x": f"https://example.com/{KEY}"}, {"x": f"s3://bucket/{KEY}"}, {"data": 1, "secrets": 2}]
)
def test_paths_of_other_machines_and_names_of_parameters_are_no_wholes(arguments: dict[str, Any]) -> None:
    readings = readings_of(arguments)
    assert KEY not in readings.wholes
    assert KEY not in readings.words
    assert "secrets" not in readings.wholes


def test_prose_is_no_list_of_names() -> None:
    assert "secrets" in readings_of({"x": "ls secrets"}).words
    assert "secrets" not in readings_of({"x": "word " * 100 + "secrets"}).words


def test_home_and_variables_of_this_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/srv/homes")
    monkeypatch.setenv("PLACE", "/srv/place")
    wholes = readings_of({"a": "~/x", "b": "$PLACE/y", "c": "${PLACE}/z", "d": "$UNKNOWN_PLACE/q"}).wholes
    assert {"/srv/homes/x", "/srv/place/y", "/srv/place/z", "$UNKNOWN_PLACE/q"} <= set(wholes)


@pytest.mark.parametrize(
    "arguments",
    [
        {"x": [f"n{number}" for number in range(MAX_VALUES + 1)]},
        {"x": {f"n{number}": number for number in range(MAX_VALUES + 1)}},
        {"x": "a" * (MAX_CHARS + 1)},
        {"x": " ".join(f"a/{number}" for number in range(5_000))},
    ],
)
def test_more_than_is_looked_at_is_said(arguments: dict[str, Any]) -> None:
    assert not readings_of(arguments).is_complete


@pytest.mark.parametrize(
    "arguments",
    [
        {"x": list(range(100_000))},
        {"x": ["same"] * 4_000},
        {"x": "word " * 40_000},
        {"x": "[" * 10_000},
        {"x": None, "y": True, "z": b"bytes"},
    ],
)
def test_numbers_and_long_prose_are_looked_through(arguments: dict[str, Any]) -> None:
    assert readings_of(arguments).is_complete


def test_folders_and_names_are_joined() -> None:
    assert joined(["secrets", ".", "/top/"], ["key", "/a", ".", ""]) == (
        ["secrets/key", "secrets/a", "./key", "./a", "/top/key", "/top/a"],
        True,
    )
    names = list(map(str, range(200)))
    assert not joined(names, names)[1]
