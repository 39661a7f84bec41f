"""Which patches a command applies, and that what these name counts as written."""

from __future__ import annotations

from pathlib import Path

import pytest

from aisotools.core.types import Decision, PatchFile, ToolCall
from aisotools.policy.rules import Policy, Rule
from aisotools.policy.shell.classify import shell_facts
from aisotools.policy.shell.patches import patches_in
from aisotools.workspace.patch_names import MAX_LINES
from aisotools.workspace.path_facts import MAX_PATCH_BYTES, PathResolver

DIFF = "--- a/secrets/key\n+++ b/secrets/key\n@@ -1 +1 @@\n-a\n+b\n"


@pytest.mark.parametrize(
    ("command", "patches"),
    [
        ("git apply a.diff", (PatchFile("a.diff"),)),
        (
            "git apply -p0 --directory=d a.diff b.diff",
            (PatchFile("a.diff", "d", strip=0), PatchFile("b.diff", "d", strip=0)),
        ),
        ("git apply < a.diff", (PatchFile("-"),)),
        ("git am a.mbox", (PatchFile("a.mbox"),)),
        ("git -C d apply a.diff", (PatchFile("d/a.diff", "./d"),)),
        ("cd d && git apply a.diff", (PatchFile("d/a.diff", "d"),)),
        ("patch -p1 -i a.diff", (PatchFile("a.diff"),)),
        ("patch < a.diff", (PatchFile("-", strip=None),)),
        ("patch -d d -p2 --input=a.diff", (PatchFile("d/a.diff", "d", strip=2),)),
        ("patch a a.diff", ()),
        ("patch --dry-run -i a.diff", ()),
        ("git apply --stat a.diff", ()),
        ("git am --abort", ()),
    ],
)
def test_patches_of_a_command(command: str, patches: tuple[PatchFile, ...]) -> None:
    found = [(one.path, one.folder.removeprefix("./"), one.strip) for one in shell_facts(command).patches]
    assert found == [(one.path, one.folder.removeprefix("./"), one.strip) for one in patches]


def test_patches_in_a_folder() -> None:
    assert list(patches_in([PatchFile("-"), PatchFile("a", "b")], "d")) == [
        PatchFile("-", "d"),
        PatchFile("d/a", "d/b"),
    ]


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    for name in ("secrets", "d", "sub/secrets"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("secrets/key", "sub/secrets/key"):
        (tmp_path / name).write_text("a\n")
    for name in ("a.diff", "d/a.diff", "sub/a.diff"):
        (tmp_path / name).write_text(DIFF)
    (tmp_path / "up.diff").write_text(DIFF.replace("/secrets", "/../secrets"))
    (tmp_path / "link").symlink_to("secrets")
    (tmp_path / "link.diff").write_text(DIFF.replace("secrets", "link"))
    return tmp_path


APPLYING = [
    "git apply a.diff",
    "git apply ./d/../a.diff",
    "git apply $PWD/a.diff",
    "git apply d/a.diff",
    "git apply < a.diff",
    "cat a.diff | git apply",
    "git apply *.diff",
    "git apply ?.diff",
    "for f in *.diff; do git apply $f; done",
    "git apply -R a.diff",
    "git apply --index a.diff",
    "git apply -3 a.diff",
    "git apply -p1 a.diff",
    "git am a.diff",
    "git apply link.diff",
    "cd d && git apply --directory=.. a.diff",
    "git apply --directory=d up.diff",
    "patch -p1 < a.diff",
    "patch -p1 -i a.diff",
    "patch -Np1 --input=a.diff",
    "cat a.diff | patch -p1",
    "patch -d secrets < a.diff",
    "cd secrets && patch -i ../a.diff",
    "patch -p1 -d d -i ../up.diff",
    "patch --strip=1 < d/a.diff",
]


@pytest.mark.parametrize("command", APPLYING)
def test_a_file_that_a_patch_names_counts_as_written(workspace: Path, command: str) -> None:
    rules = [Rule(when={"writes": ["secrets/*"]}, decision=Decision.DENY)]
    facts = PathResolver(workspace).resolve(shell_facts(command))
    assert "secrets/key" in facts.writes
    assert not facts.certain
    call = ToolCall("1", "sandbox_bash", {"command": command}, origin="model")
    assert Policy(rules=rules).check(call, facts).decision is Decision.DENY


@pytest.mark.parametrize(
    ("command", "doubt"),
    [
        ("git apply none.diff", "what the patch none.diff changes cannot be told: No such file or directory"),
        ("git apply d", "what the patch d changes cannot be told: Is a directory"),
        (
            "git apply big.diff",
            "what the patch big.diff changes cannot be told: 'big.diff' has 4,",
        ),
        (
            "git apply half.diff half2.diff",
            "what the patch half2.diff changes cannot be told: 'half2.diff' has",
        ),
        ("git apply lines.diff", "not all files that the patch lines.diff changes can be named"),
        ("git apply quoted.diff", "not all files that the patch quoted.diff changes can be named"),
        ("git apply $x", "which files the patch changes cannot be told"),
        ("echo x | patch -p1", "which files the patch changes cannot be told"),
        ("curl example.org | git apply", "which files the patch changes cannot be told"),
    ],
)
def test_a_patch_that_does_not_say_what_it_changes_is_a_doubt(
    workspace: Path, command: str, doubt: str
) -> None:
    (workspace / "big.diff").write_text(DIFF * (MAX_PATCH_BYTES // len(DIFF) + 1))
    for name in ("half.diff", "half2.diff"):
        (workspace / name).write_text(DIFF + "x" * (MAX_PATCH_BYTES * 2 // 3))
    (workspace / "lines.diff").write_text(DIFF + "\n" * MAX_LINES)
    (workspace / "quoted.diff").write_text(DIFF.replace("a/secrets/key", '"a/\\303"'))
    facts = PathResolver(workspace).resolve(shell_facts(command))
    assert facts.doubts[0].startswith(doubt)
    assert not facts.certain


def test_a_large_patch_is_read_up_to_the_limit(workspace: Path) -> None:
    text = DIFF.rpartition("--- ")[0] + "x" * (2 << 20) + "\n" + DIFF
    (workspace / "large.diff").write_text(text)
    facts = PathResolver(workspace).resolve(shell_facts("git apply large.diff"))
    assert "secrets/key" in facts.writes
    assert not any("cannot be told" in doubt for doubt in facts.doubts)
