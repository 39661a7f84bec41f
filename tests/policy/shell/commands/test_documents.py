"""Viewers, pictures and sound."""

from __future__ import annotations

from aisotools.policy.shell.commands.documents import COMMANDS
from tests.policy.shell.commands.verdicts import verdict, wrong_effects

EFFECTS = [
    ("less a", "read_only"),
    ("less +G a", "read_only"),
    ("less '+!x' a", "local_mutation?"),
    ("less -o x a", "local_mutation"),
    ("more a", "read_only"),
    ("bat -p a", "read_only"),
    ("bat cache --build", "local_mutation?"),
    ("man ls", "read_only"),
    ("man -P ./x ls", "local_mutation?"),
    ("pdftotext a -", "read_only"),
    ("pdftotext a", "local_mutation?"),
    ("pdftotext a b", "local_mutation"),
    ("pandoc a -t plain", "read_only"),
    ("pandoc a -o b", "local_mutation?"),
    ("pandoc -t ./x.lua a", "local_mutation?"),
    ("exiftool -s a", "read_only"),
    ("exiftool -Artist=me a", "local_mutation?"),
    ("exiftool -if x a", "local_mutation?"),
    ("identify a.png", "read_only"),
    ("identify 'msl:x'", "local_mutation?"),
    ("ffprobe a.mp4", "read_only"),
    ("ffprobe http://h/a", "remote_action"),
    ("gdaltransform -s_srs EPSG:4326 -t_srs EPSG:3857", "read_only"),
    ("ffmpeg -version", "read_only"),
    ("ffmpeg -i a b", "local_mutation?"),
]


def test_effect_and_certainty() -> None:
    assert wrong_effects(COMMANDS, EFFECTS) == {}


def test_a_system_of_coordinates_by_its_code_is_no_file() -> None:
    text = "gdaltransform -s_srs EPSG:4326 -t_srs a.prj"
    assert verdict(COMMANDS, text).reads == ("a.prj",)
