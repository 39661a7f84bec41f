"""Globs of rules are compared as paths relative to the workspace, however they are written."""

from __future__ import annotations

import pytest

from aisotools.core.types import Decision, Effect, Facts, ToolCall
from aisotools.policy.enforcement import glob_below, relative_glob, rewrite_globs
from aisotools.policy.rules import Policy, Rule

CALL = ToolCall("1", "sandbox_bash", {}, origin="model")


@pytest.mark.parametrize(
    ("glob", "relative"),
    [
        ("secrets/*", "secrets/*"),
        ("*.pem", "*.pem"),
        ("**/key", "**/key"),
        ("/workspace/secrets/*", "secrets/*"),
        ("/workspace//secrets/./*", "secrets/*"),
        ("/workspace/*", "*"),
        ("/workspace/", "*"),
        ("/workspace", "."),
        ("$WORKSPACE/a", "a"),
        ("${WORKSPACE}/a/**", "a/**"),
        ("$WORKSPACES/a", "$WORKSPACES/a"),
        ("/home/someone/project/secrets/*", "secrets/*"),
        ("/home/someone/project/", "*"),
        ("/home/someone/projects/x", "/home/someone/projects/x"),
        ("~/project/secrets/*", "secrets/*"),
        ("~/project/./secrets/", "secrets/*"),
        ("~/other/*", "~/other/*"),
        ("~other/x", "~other/x"),
        ("/etc/*", "/etc/*"),
        ("./x", "x"),
        ("././x//y", "x/y"),
        ("x/", "x/*"),
        ("x/.", "x/*"),
        ("./", "*"),
        (".", "."),
        ("", ""),
    ],
)
def test_each_spelling_of_a_path_in_the_workspace_becomes_the_relative_one(glob: str, relative: str) -> None:
    assert relative_glob(glob, ("/home/someone/project",), "/home/someone") == relative


def deny(**when: object) -> Rule:
    return Rule(when=when, decision=Decision.DENY)


def test_rules_and_bounds_are_rewritten_and_what_stays_is_the_same_object() -> None:
    plain = Policy(rules=[deny(paths="a"), deny(commands="/workspace/x")])
    assert rewrite_globs(plain, lambda _rule, glob: (relative_glob(glob, (), ""),)) is plain
    policy = Policy(mode="auto", rules=[deny(paths=["/workspace/a", "b/"], origin="model")]).narrowed(
        Policy(mode="auto", rules=[deny(reads="./c")])
    )
    rewritten = rewrite_globs(policy, lambda _rule, glob: (relative_glob(glob, (), ""),))
    for path in ("a", "b/x", "c"):
        facts = Facts(effect=Effect.READ_ONLY, reads=(path,))
        assert rewritten.check(CALL, facts).decision is Decision.DENY, path
        assert policy.check(CALL, facts).decision is Decision.ALLOW, "the control"


@pytest.mark.parametrize("glob", ["../x", "a/../b", "/workspace/..", "..", "~/../x/*"])
@pytest.mark.parametrize("key", ["paths", "reads", "writes"])
def test_a_part_that_no_path_has_is_refused_with_what_would_do(glob: str, key: str) -> None:
    with pytest.raises(ValueError, match=r"relative to the workspace, such as 'secrets/\*'") as refused:
        deny(**{key: ["fine", glob]})
    assert repr(glob) in str(refused.value)
    assert f"when.{key}" in str(refused.value)
    deny(paths="..data/x..y")


def test_a_glob_is_moved_to_what_its_path_leads_to() -> None:
    assert glob_below("link/*", "link", "secrets") == "secrets/*"
    assert glob_below("link", "link", "secrets/key") == "secrets/key"
