"""The names in a patch are those that `git apply` and `patch` take from it."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

import pytest

from aisotools.workspace.patch_names import MAX_LINES, MAX_NAMES, names_in_patch
from tests.work import lines_run

PLAIN = "--- a/d/x\t2024-01-01 00:00:00\n+++ b/d/x\t2024-01-01 00:00:00\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n"
MADE = "--- /dev/null\n+++ b/new\n@@ -0,0 +1 @@\n+a\n"
REMOVED = "--- a/old\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n"
RENAMED = "diff --git a/f1 b/f2\nsimilarity index 100%\nrename from f1\nrename to f2\n"
MODE = "diff --git a/m m/m b/m m/m\nold mode 100644\nnew mode 100755\n"
CONTEXT = "*** a/c1\t2024\n--- b/c1\t2024\n***************\n*** 1,2 ****\n! a\n  b\n--- 1,2 ----\n! c\n  b\n"


@pytest.mark.parametrize(
    ("text", "strip", "names"),
    [
        (PLAIN, 1, ("d/x",)),
        (PLAIN, 0, ("a/d/x", "b/d/x")),
        (PLAIN, 2, ("x",)),
        (PLAIN, None, ("x",)),
        (MADE, 1, ("new",)),
        (REMOVED, 1, ("old",)),
        (RENAMED, 1, ("f1", "f2")),
        (MODE, 1, ("m m/m",)),
        (CONTEXT, 1, ("c1",)),
        (f"From me\n\nabout\n---\n d/x | 2 +-\n\n{PLAIN}-- \n2.39\n", 1, ("d/x",)),
        (PLAIN + MADE + REMOVED, 1, ("d/x", "new", "old")),
        (PLAIN.replace("\n", "\r\n"), 1, ("d/x",)),
        ("Index: d/y\n====\n--- d/y (revision 1)\n+++ d/y\n", 0, ("d/y", "d/y (revision 1)")),
        ("--- a//d///x\n+++ b//d///x\n@@ -1 +1 @@\n-a\n+b\n", 1, ("d/x",)),
    ],
)
def test_names(text: str, strip: int | None, names: tuple[str, ...]) -> None:
    assert names_in_patch(text, strip) == (names, True)


def test_lines_of_a_hunk_are_no_headers() -> None:
    hunk = "@@ -1,3 +1,3 @@\n a\n--- a/secret\n+++ b/secret\n b\n"
    assert names_in_patch(f"--- a/x\n+++ b/x\n{hunk}", 1).names == ("x",)
    # One that ends early does not hide the next file.
    ends_early = "@@ -1,900 +1,900 @@\n a\ndiff --git a/y b/y\n--- a/y\n+++ b/y\n@@ -1 +1 @@\n-a\n+b\n"
    assert "y" in names_in_patch(f"--- a/x\n+++ b/x\n{ends_early}", 1).names


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no patch",
        '--- "a/\\303\\244"\n+++ "b/\\303\\244"\n@@ -1 +1 @@\n-a\n+b\n',
        "--- x\n+++ x\n@@ -1 +1 @@\n-a\n+b\n",
        "".join(PLAIN.replace("d/x", f"f{number}") for number in range(MAX_NAMES + 1)),
        PLAIN + "\n" * MAX_LINES,
    ],
)
def test_a_patch_whose_names_cannot_all_be_told_is_not_complete(text: str) -> None:
    assert not names_in_patch(text, 1).is_complete


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
@pytest.mark.parametrize("seed", range(20))
def test_names_are_those_that_git_takes(tmp_path: Path, seed: int) -> None:
    """Patches that git makes of random changes, with lines that look like headers."""
    choose = random.Random(seed)
    lines = [
        "-- a/no",
        "++ b/no",
        "@@ -1 +1 @@",
        "diff --git a/no b/no",
        "",
        "rename from no",
        "x",
        "-",
        "+ y",
    ]
    for side in ("a", "b"):
        for name in ("one", "d/two", "three x.txt", "d/e/four"):
            if choose.random() < 0.8:
                file = tmp_path / side / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text("\n".join(choose.choices(lines, k=choose.randrange(1, 30))) + "\n")
    (tmp_path / "a").mkdir(exist_ok=True)
    (tmp_path / "b").mkdir(exist_ok=True)
    made = subprocess.run(
        ["git", "diff", "--no-index", "--no-renames", "--no-prefix", "a", "b"],
        cwd=tmp_path,
        capture_output=True,
        check=False,
    ).stdout
    counted = subprocess.run(
        ["git", "apply", "--numstat", "-p1", "-"], cwd=tmp_path, input=made, capture_output=True, check=True
    ).stdout.decode()
    taken = {line.split("\t", 2)[2] for line in counted.splitlines()}
    found = names_in_patch(made.decode(), 1)
    assert set(found.names) == taken
    assert found.is_complete or not taken


@pytest.mark.parametrize(
    "unit", ["--- a/x\n", "@@ -1,9 +1,9 @@\n", "diff --git a b\n", "--- " + "a/" * 50 + "\n"]
)
def test_reading_takes_time_in_proportion_to_the_size(unit: str) -> None:
    below = names_in_patch.__code__.co_filename

    def work(count: int) -> int:
        return lines_run(lambda: names_in_patch(unit * count, 1), below=below)

    assert work(2_000) < 2.5 * work(1_000)
