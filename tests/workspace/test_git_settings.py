"""Settings of git: read as git reads them, and the programs that they name for commands which only read."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from aisotools.workspace.git_settings import GitSetting, parse_settings
from tests.workspace.test_protected_attacks import git_needed

SETTINGS = [
    ("[core]\n\thooksPath = tools\n", [("core", "", "hookspath", "tools")]),
    ("[core] hooksPath=a b # comment\n", [("core", "", "hookspath", "a b")]),
    ('[includeIf "gitdir:~/x"]\npath="a;b"c  \n', [("includeif", "gitdir:~/x", "path", "a;bc")]),
    ('[a "b\\"c"]\n\tk = "x\\\\y\\n" \\\n z\n', [("a", 'b"c', "k", "x\\y\n  z")]),
    ("\ufeff[Core]\r\nBare\r\n", [("core", "", "bare", "")]),
    ("[a.B]\nk=1\nnonsense here\n[", [("a", "b", "k", "1")]),
    ("k = 1\n", []),
    ("[core]\n# x \\\nk = 1\n", [("core", "", "k", "1")]),
    ("[core]\nj = 2 ; x \\\nk = 1\n", [("core", "", "j", "2"), ("core", "", "k", "1")]),
    ('[core] # "\\\nk = 1 # "\n', [("core", "", "k", "1")]),
    ('[core]\nk = "a;\\\nb" \\\n c\n[d]l\n', [("core", "", "k", "a;b  c"), ("d", "", "l", "")]),
]


@pytest.mark.parametrize(("text", "expected"), SETTINGS)
def test_settings_are_read_as_git_reads_them(text: str, expected: list[tuple[str, ...]]) -> None:
    assert list(parse_settings(text.encode())) == [GitSetting(*one) for one in expected]


@git_needed
@pytest.mark.parametrize("text", [text for text, _ in SETTINGS if "nonsense" not in text and "[" in text])
def test_the_settings_are_those_that_git_lists(tmp_path: Path, text: str) -> None:
    file = tmp_path / "config"
    file.write_text(text)
    listed = subprocess.run(
        ["git", "config", "-f", str(file), "--list", "-z"], check=True, capture_output=True, text=True
    ).stdout
    ours = ""
    for one in parse_settings(text.encode()):
        names = filter(None, (one.section, one.name, one.key))
        ours += ".".join(names) + (f"\n{one.value}\0" if one.value else "\0")
    assert ours == listed


@git_needed
@pytest.mark.parametrize("value", ["tools", "a b", ' "a" ', "a;b", "a#b", "x\\y", "\ttab\t", "ä/b", 'a"b\\n'])
def test_values_that_git_writes_are_read_back(tmp_path: Path, value: str) -> None:
    file = tmp_path / "config"
    subprocess.run(["git", "config", "-f", str(file), "core.hooksPath", value], check=True)
    assert [setting.value for setting in parse_settings(file.read_bytes())] == [value]
