"""Formatters, checkers and preprocessors: they print, or change files, or run code."""

from __future__ import annotations

from aisotools.policy.shell.classify import classify_shell, shell_facts
from aisotools.policy.shell.commands.checkers import COMMANDS
from tests.policy.shell.commands.verdicts import verdict, wrong_effects

EFFECTS = [
    ("clang-format -n a.cc", "read_only"),
    ("clang-format -i a.cc", "local_mutation"),
    ("clang-format -ni a.cc", "local_mutation?"),
    ("gofmt -l .", "read_only"),
    ("gofmt -l -w .", "local_mutation"),
    ("gofmt -l a.go -w", "read_only"),  # behind a file, it is the name of another
    ("shfmt -d .", "read_only"),
    ("shfmt -w .", "local_mutation"),
    ("rustfmt --check a.rs", "read_only"),
    ("rustfmt a.rs", "local_mutation?"),
    ("autopep8 -d a.py", "read_only"),
    ("autopep8 a.py", "local_mutation?"),
    ("gcc -dumpversion", "read_only"),
    ("gcc -E -", "read_only"),
    ("gcc -dM -", "local_mutation?"),
    ("gcc -E a.c -o b", "local_mutation?"),
    ("gcc -E -B. a.c", "local_mutation?"),
    ("gcc -E -I", "local_mutation?"),
    ("gcc -E $x", "local_mutation?"),
    ("gcc -E -D$x a.c", "local_mutation?"),
    ("gcc -E -x c++ -", "read_only"),
    ("gcc -E -x ada -", "local_mutation?"),
    ("php -l a.php", "read_only"),
    ("php -l a.php b.php", "local_mutation?"),
    ("luac -p a.lua", "read_only"),
    ("luac a.lua", "local_mutation?"),
]


def test_effect_and_certainty() -> None:
    assert wrong_effects(COMMANDS, EFFECTS) == {}


def test_files_that_are_read() -> None:
    assert verdict(COMMANDS, "clang-format --style=file:a.yaml b.cc").reads == ("b.cc", "a.yaml")
    assert verdict(COMMANDS, "gcc -MM a.c").reads == ("a.c",)
    # What a source includes may be any other file.
    assert verdict(COMMANDS, "gcc -MM a.c").unresolved
    assert classify_shell("gcc -E - < a").reads == ("a",)


def test_settings_that_name_a_program_are_looked_for() -> None:
    for command in (
        "rustfmt --check a.rs",
        "codespell a",
        "rustfmt --version",
        "go version",
        "go env GOPATH",
    ):
        facts = shell_facts(command)
        assert facts.absent
        assert not facts.certain
