from __future__ import annotations

import pytest

from aisotools.core.path_texts import is_within, with_folders


@pytest.mark.parametrize(
    ("path", "folder", "within"),
    [
        ("a", "a", True),
        ("a/b", "a", True),
        ("a/b/c", "a/b", True),
        ("/a/b", "/a", True),
        ("ab", "a", False),
        ("a", "a/b", False),
        ("b/a", "a", False),
        ("a.b/c", "a", False),
        ("", "a", False),
    ],
)
def test_paths_within_a_folder(path: str, folder: str, within: bool) -> None:
    assert is_within(path, folder) is within


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("a", ["a"]),
        ("a/b/c", ["a/b/c", "a/b", "a"]),
        ("/etc/x", ["/etc/x", "/etc"]),
        ("", [""]),
        (".", ["."]),
    ],
)
def test_folders_around_a_path(path: str, expected: list[str]) -> None:
    assert list(with_folders(path)) == expected
