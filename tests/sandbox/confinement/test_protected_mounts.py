"""Which files of a workspace are mounted read only, and in which order."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from aisotools.sandbox.confinement import protected_mounts
from aisotools.sandbox.confinement.protected_mounts import DeniedPaths, without_links

NAMES = protected_mounts.ProtectedNames(files=("conftest.py", "*.pth"), folders=(".git/hooks",))


def test_names_cover_whatever_the_case() -> None:
    assert NAMES.cover("a/Conftest.PY", folder=False)
    assert NAMES.cover("x.pth", folder=False)
    assert NAMES.cover("a/.git/hooks", folder=True)
    assert not NAMES.cover("a.git/hooks", folder=True)
    assert not NAMES.cover("conftest.py", folder=True)
    assert not NAMES.cover(".git/hooks", folder=False)


def test_folders_above_are_held_in_place_and_what_lies_below_is_covered() -> None:
    mounts = protected_mounts.plan_protection(
        ["a/b/conftest.py", ".git/hooks", ".git/hooks/x.pth", "conftest.py"]
    )
    assert [(mount.path, mount.kind) for mount in mounts] == [
        ("a", "writable"),
        (".git", "writable"),
        ("conftest.py", "read_only"),
        ("a/b", "writable"),
        (".git/hooks", "read_only"),
        ("a/b/conftest.py", "read_only"),
    ]


def test_paths_of_rules_are_hidden_or_read_only() -> None:
    mounts = protected_mounts.plan_protection(
        ["data/conftest.py", "secrets/conftest.py"],
        unwritable=["data", "out/fixed"],
        unreadable=["data/private/key", "secrets"],
    )
    assert [(mount.path, mount.kind) for mount in mounts] == [
        ("data", "read_only"),
        ("secrets", "hidden"),
        ("out", "writable"),
        ("data/private", "read_only"),
        ("out/fixed", "read_only"),
        ("data/private/key", "hidden"),
    ]


def test_protected_files_are_found_and_links_are_not_followed(tmp_path: Path) -> None:
    for name in (".git/hooks/pre-commit", "a/conftest.py", "x.pth", "plain.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "outside").symlink_to("/")
    (tmp_path / "linked.pth").symlink_to("plain.py")
    assert sorted(protected_mounts.find_protected(str(tmp_path), NAMES)) == [
        ".git/hooks",
        "a/conftest.py",
        "x.pth",
    ]


def test_the_search_is_bounded(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["d"] * (protected_mounts.SEARCH_DEPTH + 1))
    deep.mkdir(parents=True)
    (deep / "conftest.py").write_text("")
    assert protected_mounts.find_protected(str(tmp_path), NAMES) == []


def test_a_repository_behind_very_many_files_is_found(tmp_path: Path) -> None:
    for number in range(5_100):
        (tmp_path / f"{number:04}").touch()
    (tmp_path / "z" / ".git" / "hooks").mkdir(parents=True)
    assert protected_mounts.find_protected(str(tmp_path), NAMES) == ["z/.git/hooks"]


def test_an_allowed_name_is_not_mounted(tmp_path: Path) -> None:
    for name in ("conftest.py", "a/conftest.py", "x.pth"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    allowed = dataclasses.replace(NAMES, allowed=("a/conftest.py", "*.pth"))
    assert protected_mounts.find_protected(str(tmp_path), allowed) == ["conftest.py"]


def test_there_are_no_more_mounts_than_start_up_may_cost() -> None:
    found = [f"{number}.pth" for number in range(20_000)]
    assert len(protected_mounts.plan_protection(found)) == protected_mounts.MOST_PROTECTED


def test_a_link_on_the_way_takes_the_place_of_a_path_unless_it_leads_to_a_denied_one(tmp_path: Path) -> None:
    (tmp_path / "secrets").mkdir()
    links = {
        "one": "secrets/key",
        "two": "way/key",
        "way": "secrets",
        "elsewhere": "notes",
        "out": "/usr",
        "round": "round",
        "up": "../outside",
    }
    for name, target in links.items():
        (tmp_path / name).symlink_to(target)
    denied = DeniedPaths(
        unreadable=("secrets", "one", "two", "plain", "missing/x", "out/bin/sh", "round/x", "up"),
        unwritable=("fixed", "elsewhere/y", "way/z"),
    )
    places, found = without_links(str(tmp_path), denied)
    assert places == DeniedPaths(
        unreadable=("secrets", "plain", "missing/x", "out", "round", "up", "elsewhere"), unwritable=("fixed",)
    )
    assert found.keys() == links.keys()
    assert found["way"] == {"two", "way/z"}
    assert found["one"] == {"one"}
