"""Which names are protected, and which of them a person may allow."""

from __future__ import annotations

import sys
import unicodedata

import pytest
from hypothesis import given, strategies as st

from aisotools.core.exceptions import UsageError
from aisotools.workspace.protected_names import (
    PROTECTED_FOLDERS,
    PROTECTED_NAMES,
    PROTECTED_PATHS,
    AllowedName,
    AllowedNames,
    allows,
    fold_name,
    is_candidate,
    is_protected,
    is_repository,
)

IGNORABLE = (
    "\u034f \u115f-\u1160 \u17b4-\u17b5 \u180b-\u180f \u3164 \ufe00-\ufe0f \uffa0 \U000e0000-\U000e0fff"
)
"""Of the property Default_Ignorable_Code_Point, what is not in category Cf."""

PROTECTED = """
    conftest.py a/CONFTEST.PY pytest.ini tox.ini setup.cfg setup.py pyproject.toml noxfile.py x.pth .pdbrc
    .envrc .env Makefile a/makefile GNUmakefile package.json .vscode/tasks.json a/.idea/x
    .github/workflows/x.yml
    .git/hooks/pre-commit .claude/settings.json .husky/x/y jupyter_server_config.py x.code-workspace
    .Rprofile pytest.toml tasks.py a/toxfile.py build.rs CMakePresets.json .mocharc.cjs a/x.sublime-project
    .cargo/config.toml a/.Cargo/config .hg/hgrc .jj/repo/config.toml .sl/config .helix/languages.toml
    .github/actions/x/action.yml .circleci/config.yml Jenkinsfile .opencode/x .vscode/x.so .idea/main.pyc
    conftest.pyc conftest.abi3.so __pycache__/conftest.cpython-311-pytest-9.2.0.pyc
    __pycache__/duties.cpython-311.pyc
    a/__PYCACHE__/sitecustomize.cpython-311.pyc a/__pycache__/tasks.cpython-311.opt-1.pyc
"""
ORDINARY = """
    main.py README.md tests/test_x.py Makefile/x requirements.txt .gitignore .gitattributes
    hooks/x git/hooks/x .github/FUNDING.yml .github/x/workflows/y AGENTS.md CLAUDE.md Dockerfile .editorconfig
    data/config a/HEAD setup.cfg.bak package-lock.json .git/config .git/HEAD workflows/x n.ipynb
    __pycache__/main.cpython-311.pyc __pycache__/x/conftest.x conftest.txt main.pyc main.so
    .hg/dirstate .cargo/registry/x .jj/repo/op_store repo/config.toml hgrc .github/x
"""


@pytest.mark.parametrize("path", PROTECTED.split())
def test_protected(path: str) -> None:
    assert is_protected(path)
    assert is_candidate(path)


@pytest.mark.parametrize("path", ORDINARY.split())
def test_ordinary(path: str) -> None:
    assert not is_protected(path)


@pytest.mark.parametrize(
    "path",
    [
        ".git",
        "a/.git",
        ".git/config",
        ".git/commondir",
        ".git/config.worktree",
        ".git/hooks",
        ".vscode",
        ".git/worktrees/x/config.worktree",
        "n.ipynb",
        ".git/rebase-merge/git-rebase-todo",
        ".git/rebase-merge/strategy",
        ".git/rebase-apply/strategy_opts",
        ".git/sequencer/opts",
        ".git/sequencer",
        ".git/rebase-apply",
        ".hg",
        ".jj/repo",
        "a/__pycache__",
    ],
)
def test_files_protected_by_their_content(path: str) -> None:
    assert is_candidate(path)
    assert not is_protected(path)


@pytest.mark.parametrize(
    "path",
    [
        "config",
        "commondir",
        "hooks",
        ".git/refs/heads/config",
        ".git/logs/hooks",
        "git-rebase-todo",
        "a/rebase-merge/git-rebase-todo",
        "a/sequencer/opts",
        ".git/sequencer/strategy",
        "strategy",
    ],
)
def test_names_of_git_elsewhere(path: str) -> None:
    assert not is_candidate(path)


@pytest.mark.parametrize(
    "path",
    [
        "CARGO.TOML",
        "\u017fetup.py",  # the long s
        "Ma\u212aefile",  # the sign for kelvin
        "conf\u200dtest.py",  # a joiner that nobody can see
        ".g\u200cit/hooks/pre-commit",
        ".VS\ufe0fCODE/tasks.json",
        "\u00b7/CONF\u034fTEST.PY",
    ],
)
def test_names_that_file_systems_without_case_take_for_protected_ones(path: str) -> None:
    assert is_protected(path)
    assert is_candidate(path)


def test_names_in_other_letters_are_ordinary() -> None:
    for path in ("m\u00e4in.py", "\u043c.py", "conft\u00e9st.py", "\udcff.py"):
        assert not is_candidate(path)


def test_samples_and_versions_are_no_settings() -> None:
    assert not is_protected(".env.example")
    assert not is_protected(".nvmrc")
    assert is_protected(".env.example.local")


def test_all_names_are_in_lower_case() -> None:
    for name in (*PROTECTED_NAMES, *PROTECTED_FOLDERS, *PROTECTED_PATHS):
        assert name == name.lower()


def test_repositories() -> None:
    assert is_repository({"head", "objects", "refs"})
    assert is_repository({"head", "commondir"})
    assert not is_repository({"objects", "refs"})
    assert not is_repository({"head", "refs"})


@pytest.mark.parametrize(
    ("name", "covered", "not_covered"),
    [
        (
            "conftest.py",
            ["conftest.py", "a/b/conftest.py", "a/Conftest.py"],
            ["xconftest.py", "conftest.py/x"],
        ),
        ("tests/conftest.py", ["tests/conftest.py"], ["conftest.py", "a/tests/conftest.py"]),
        ("*.pth", ["x.pth", "a/y.pth"], ["x.py"]),
        ("x.pth", ["a/x.pth"], ["y.pth"]),
        (".vscode", [".vscode/tasks.json", "a/.vscode/b/c", ".vscode"], [".vscodex/y", "x.vscode/y"]),
        (".git/hooks", ["a/.git/hooks/x"], [".git/config", "hooks/x"]),
        (".git/config", [".git/config"], ["a/.git/config"]),
        (".cargo/config.toml", [".cargo/config.toml"], ["a/.cargo/config.toml", "config.toml"]),
        (".vscode/tasks.json", [".vscode/tasks.json"], [".vscode/settings.json"]),
    ],
)
def test_files_that_an_allowed_name_covers(name: str, covered: list[str], not_covered: list[str]) -> None:
    for path in covered:
        assert AllowedName(name).covers(path), path
    for path in not_covered:
        assert not AllowedName(name).covers(path), path


@pytest.mark.parametrize(
    ("names", "covered", "not_covered"),
    [
        (
            [".vscode"],
            [".vscode/tasks.json", "a/.vscode/b/.vscode/c", ".vscode"],
            [
                *(".vscode/.git/config", ".vscode/a/.git/hooks/x", ".vscode/config", ".vscode/a/b/CONFIG"),
                *(".vscode/hooks/post-checkout", ".vscode/conftest.py", ".vscode/.aisotools.toml"),
                *(".vscode/.idea/x", ".vscode/a/Makefile", ".VSCode/__pycache__/conftest.cpython-311.pyc"),
            ],
        ),
        ([".git/hooks"], [".git/hooks/pre-commit"], [".git/hooks/conftest.py", ".git/config"]),
        (
            [".vscode", "conftest.py", ".idea"],
            [".vscode/conftest.py", ".vscode/.idea/x", ".idea/.vscode/x/conftest.py"],
            [".vscode/.git/config", ".vscode/tox.ini"],
        ),
        ([".vscode", ".vscode/.git/config"], [".vscode/.git/config"], [".vscode/.git/hooks/x"]),
        ([".circleci", ".husky"], [".circleci/config.yml", ".husky/pre-commit"], [".circleci/config"]),
    ],
)
def test_a_folder_allows_nothing_that_is_protected_elsewhere_too(
    names: list[str], covered: list[str], not_covered: list[str]
) -> None:
    """A repository of git in an allowed folder would have programs run that nobody allowed."""
    for path in covered:
        assert allows(names, path), path
        assert AllowedNames(names).cover(path), path
    for path in not_covered:
        assert not allows(names, path), path
        assert not AllowedNames(names).cover(path), path


NOT_TO_BE_ALLOWED = """
    * main.py *.py c* conftest.* /conftest.py a//conftest.py ../conftest.py a/../conftest.py ./conftest.py
    .git a/.git .GIT n.ipynb a/ .aisotools.toml a/.AISOTOOLS.toml
"""


@pytest.mark.parametrize("name", [*NOT_TO_BE_ALLOWED.split(), "", 7, None])
def test_names_that_cannot_be_allowed(name: object) -> None:
    with pytest.raises(UsageError, match="allow_protected"):
        AllowedName(name)  # type: ignore[arg-type]  # what a person may write
    with pytest.raises(UsageError, match="allow_protected"):
        AllowedNames([name])  # type: ignore[list-item]  # likewise


def test_a_text_is_no_list_of_names() -> None:
    with pytest.raises(UsageError, match=r"\['conftest.py'\]"):
        AllowedNames("conftest.py")


def test_names_are_allowed_and_withdrawn() -> None:
    allowed = AllowedNames(["conftest.py"])
    assert allowed.cover("a/conftest.py")
    allowed.allow(["tox.ini"])
    assert allowed.names == ("conftest.py", "tox.ini")
    allowed.withdraw(["conftest.py", "never there"])
    assert not allowed.cover("conftest.py")
    assert allowed.cover("tox.ini")
    assert allows(["*.pth"], "x.pth")


# ---- how names are compared


def test_characters_that_nobody_sees_are_left_out() -> None:
    """Those of this version of Python, and those of later ones that it takes for unassigned."""
    ignorable: set[int] = set()
    for span in IGNORABLE.split():
        ignorable.update(range(ord(span[0]), ord(span[-1]) + 1))
    codes = range(128, sys.maxunicode + 1)
    # Many lines at once take an eighth of the time; no character becomes a line end.
    folded: list[str] = []
    for start in range(0, len(codes), 1 << 12):
        names = "\n".join(f"é{chr(code)}x" for code in codes[start : start + (1 << 12)])
        folded += fold_name(names).split("\n")
    for code, name in zip(codes, folded, strict=True):
        category = unicodedata.category(chr(code))
        left_out = name == "éx"
        if category != "Cn":
            assert left_out == (category == "Cf" or code in ignorable), hex(code)
        elif left_out:
            assert code in ignorable or 0x13430 <= code <= 0x1343F, hex(code)


@given(st.lists(st.text(st.characters(exclude_characters="/")), min_size=2))
def test_path_is_compared_name_by_name(parts: list[str]) -> None:
    assert fold_name("/".join(parts)) == "/".join(map(fold_name, parts))
