from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, strategies as st

from aisotools.core.types import Decision, Effect, Facts, GitPrograms, Remember, ToolCall
from aisotools.policy.grants import Grant, Grants, Shape, names_to_allow, remember_scopes, shape_of
from aisotools.policy.prepared import PreparedCall, call_digest, prepare_call
from aisotools.policy.rules import Policy, Rule
from aisotools.policy.shell.classify import shell_facts
from aisotools.testing.fakes import MockTool
from aisotools.workspace.path_facts import PathResolver
from aisotools.workspace.scripts import FOLDER, MISSING
from aisotools.workspace.stamps import ABSENT, UNKNOWN


def prepare(facts: Facts, name: str = "mock", **arguments: object) -> PreparedCall:
    tool = MockTool(name, facts=facts)
    return prepare_call(tool, ToolCall("1", name, arguments, origin="model"), Policy(), "confined")


WRITES = Facts(effect=Effect.LOCAL_MUTATION, writes=("out/a.txt",), commands=("git commit -m x",))


def test_this_call_covers_only_this_call() -> None:
    grants = Grants()
    grants.add("call", prepare(WRITES, x=1))
    assert grants.find(prepare(WRITES, x=1)) is not None
    assert grants.find(prepare(WRITES, x=2)) is None
    assert grants.find(prepare(WRITES, "other", x=1)) is None


@pytest.mark.parametrize(
    ("facts", "covered"),
    [
        (Facts(writes=("out/b.txt",), commands=("git commit -q -m two",)), True),
        (Facts(writes=("out/b.txt",), commands=("git commit --amend",)), False),
        (Facts(writes=("out/b.txt",)), True),
        (Facts(writes=("out/sub/b.txt",)), False),
        (Facts(writes=("b.txt",)), False),
        (Facts(writes=("out/../b.txt",)), False),
        (Facts(writes=("out/b.txt",), commands=("git push",)), False),
        (Facts(writes=("out/b.txt",), commands=("git -C x commit",)), False),
        (Facts(writes=("out/b.txt",), commands=("git",)), False),
        (Facts(writes=("out/b.txt",), commands=("git commit", "rm x")), False),
        (Facts(writes=("out/b.txt",), hosts=("example.org",)), False),
        (Facts(writes=("out/b.txt",), effect=Effect.DESTRUCTIVE), False),
        (Facts(writes=("out/b.txt",), certain=False), False),
        (Facts(writes=("out/b.txt",), outside=True), False),
        (Facts(), False),
    ],
)
def test_a_shape_covers_nothing_that_was_not_shown(facts: Facts, covered: bool) -> None:
    grants = Grants()
    grants.add("shape", prepare(WRITES))
    assert (grants.find(prepare(facts)) is not None) is covered


@pytest.mark.parametrize(
    ("facts", "covered"),
    [
        (Facts(writes=("anywhere/b.txt",)), True),
        (Facts(), True),
        (Facts(effect=Effect.DESTRUCTIVE), False),
        (Facts(effect=Effect.REMOTE_ACTION), False),
        (Facts(hosts=("example.org",)), False),
        (Facts(outside=True), False),
        (Facts(certain=False), False),
    ],
)
def test_a_tool_is_covered_up_to_the_effect_that_was_shown(facts: Facts, covered: bool) -> None:
    grants = Grants()
    grants.add("tool", prepare(WRITES))
    assert (grants.find(prepare(facts)) is not None) is covered


def test_the_words_say_exactly_what_would_be_allowed() -> None:
    assert remember_scopes(prepare(WRITES, x=1)) == {
        "call": "mock with exactly these arguments",
        "shape": "mock running only git commit, writing only to out, up to local change",
        "tool": "mock with any arguments, up to local change, on the host",
    }
    held = prepare_call(
        MockTool(facts=WRITES, runs_in="sandbox"), ToolCall("1", "mock", {}), Policy(), "confined"
    )
    assert remember_scopes(held)["tool"] == "mock with any arguments, up to local change, in the workspace"
    assert list(remember_scopes(prepare(Facts(certain=False)))) == ["call"]
    assert list(remember_scopes(prepare(Facts(effect=Effect.DESTRUCTIVE, writes=("a",))))) == [
        "call",
        "shape",
    ]
    assert "talking only to example.org" in remember_scopes(prepare(Facts(hosts=("Example.org",))))["shape"]


NAMES = [f"{letter}.py" for letter in "abcd"]
SCRIPTS = tuple((name, "1f") for name in NAMES)


@pytest.mark.parametrize(
    ("known", "condition"),
    [
        ({}, ""),
        ({"code": "1f"}, ", while no code in the workspace is changed"),
        ({"scripts": SCRIPTS[:1]}, ", while a.py has the present content"),
        (
            {"scripts": SCRIPTS[:1], "code": "1f"},
            ", while a.py has the present content, and no other code in the workspace is changed",
        ),
        ({"scripts": SCRIPTS[:3]}, ", while a.py, b.py, c.py have the present content"),
        ({"scripts": SCRIPTS}, ", while a.py, b.py, c.py and 1 more have the present content"),
        ({"scripts": (("a.py", MISSING), ("b", FOLDER))}, ""),
        ({"losses": (("a.txt", "1f"),)}, ""),
        (
            {"losses": (("a.txt", "1f"),), "effect": Effect.DESTRUCTIVE},
            ", while what it would remove is as it is now",
        ),
        (
            {"losses": (("a.txt", "1f"),), "effect": Effect.DESTRUCTIVE, "code": "1f"},
            ", while what it would remove is as it is now, and no other code in the workspace is changed",
        ),
    ],
)
def test_a_remembered_call_says_what_must_stay_as_it_is(known: dict[str, Any], condition: str) -> None:
    facts = dataclasses.replace(WRITES, certain=False, **known)
    prepared = dataclasses.replace(prepare(WRITES), facts=facts)
    assert remember_scopes(prepared) == {"call": f"mock with exactly these arguments{condition}"}


@pytest.mark.parametrize(
    ("count", "condition"),
    [
        (0, ""),
        (1, ", while a.py is unchanged"),
        (3, ", while a.py, b.py, c.py are unchanged"),
        (4, ", while a.py, b.py, c.py and 1 more are unchanged"),
    ],
)
def test_a_remembered_shape_says_which_files_must_stay_as_they_are(count: int, condition: str) -> None:
    facts = dataclasses.replace(WRITES, scripts=SCRIPTS[:count])
    shape = remember_scopes(dataclasses.replace(prepare(WRITES), facts=facts))["shape"]
    assert shape == f"mock running only git commit, writing only to out, up to local change{condition}"


def test_folders_as_a_whole_are_told_from_files_in_them() -> None:
    sorts = Facts(writes=("out/a",), reads=("data/x",), commands=("sort data/x",))
    removes = Facts(effect=Effect.DESTRUCTIVE, writes=("out",), folders=("out",), commands=("rm -r out",))
    assert remember_scopes(prepare(sorts))["shape"] == (
        "mock running only sort, reading only data, writing only to out, up to local change"
    )
    assert "writing only to all of out" in remember_scopes(prepare(removes))["shape"]
    for shown, other in itertools.permutations(
        [
            dataclasses.replace(removes, commands=()),
            dataclasses.replace(removes, commands=(), folders=(), writes=("out/a",)),
            dataclasses.replace(removes, commands=(), folders=("data",), writes=("data",)),
            dataclasses.replace(removes, commands=(), folders=(".",), writes=(".",)),
        ],
        2,
    ):
        grants = Grants()
        assert grants.add("shape", prepare(shown)) is not None
        assert grants.find(prepare(shown)) is not None
        assert grants.find(prepare(other)) is None


def test_a_grant_for_one_folder_does_not_reach_what_another_reads() -> None:
    grants = Grants()
    grants.add("shape", prepare(Facts(writes=("out/a",), reads=("data/x",))))
    assert grants.find(prepare(Facts(writes=("out/b",), reads=("data/y",)))) is not None
    assert grants.find(prepare(Facts(writes=("out/b",), reads=("secrets/key",)))) is None
    assert grants.find(prepare(Facts(writes=("out/b",), unresolved=("$x",)))) is None


def test_destroying_without_a_name_has_no_shape() -> None:
    nameless = Facts(effect=Effect.DESTRUCTIVE, commands=("git clean -f",))
    assert list(remember_scopes(prepare(nameless))) == ["call"]
    assert list(remember_scopes(prepare(Facts(writes=("a",), unresolved=("$x",))))) == ["call"]


@pytest.mark.parametrize("scope", ["shape", "tool"])
def test_a_grant_is_for_the_tool_that_was_shown_where_it_runs(scope: Any) -> None:
    grants = Grants()
    shown = prepare(WRITES)
    assert grants.add(scope, shown) is not None
    assert grants.find(prepare(WRITES)) is not None
    elsewhere = dataclasses.replace(shown, facts=dataclasses.replace(shown.facts, runs_in="sandbox"))
    assert grants.find(elsewhere) is None
    later = dataclasses.replace(shown, facts=dataclasses.replace(shown.facts, background=True))
    assert grants.find(later) is None
    another = dataclasses.replace(shown, tool=MockTool("mock", description="Another tool of that name."))
    assert grants.find(another) is None


def test_a_grant_for_the_background_covers_the_foreground() -> None:
    grants = Grants()
    shown = prepare(dataclasses.replace(WRITES, background=True))
    assert grants.add("shape", shown) is not None
    assert grants.find(prepare(WRITES)) is not None


@pytest.mark.parametrize(
    ("shown", "other"),
    [
        ("git branch n", "git branch -C x n"),
        ("git branch n", "git branch -f n"),
        ("git tag n", "git tag -f n"),
        ("git commit -m x", "git commit --amend -m x"),
        ("git push origin x", "git push --mirror origin"),
    ],
)
def test_options_of_git_are_part_of_the_shape(shown: str, other: str) -> None:
    grants = granted("shape", Facts(commands=(shown,)))
    assert grants.find(prepare(Facts(commands=(shown,)))) is not None
    assert grants.find(prepare(Facts(commands=(other,)))) is None


def test_a_scope_that_was_not_offered_is_not_remembered() -> None:
    grants = Grants()
    assert grants.add("tool", prepare(Facts(certain=False))) is None
    assert grants.add("shape", prepare(Facts())) is None
    assert len(grants) == 0


def test_grants_are_listed_and_taken_back() -> None:
    grants = Grants()
    one, two = grants.add("call", prepare(WRITES, x=1)), grants.add("tool", prepare(WRITES))
    assert one is not None
    assert two is not None
    assert [grant.id for grant in grants.list()] == [one.id, two.id]
    assert grants.revoke(two.id) == two
    assert grants.revoke(two.id) is None
    assert grants.find(prepare(WRITES, x=2)) is None
    grants.clear()
    assert grants.find(prepare(WRITES, x=1)) is None


FACTS = st.builds(
    Facts,
    effect=st.sampled_from(Effect),
    reads=st.lists(st.sampled_from(["a/x", "b/x", "a"]), max_size=2).map(tuple),
    writes=st.lists(st.sampled_from(["a/x", "a/y", "b/x", "c"]), max_size=2).map(tuple),
    folders=st.sampled_from([(), ("a",), ("c",)]),
    unresolved=st.sampled_from([(), ("$x",)]),
    commands=st.lists(st.sampled_from(["git add", "git push", "ls"]), max_size=2).map(tuple),
    hosts=st.lists(st.sampled_from(["one", "two"]), max_size=1).map(tuple),
    certain=st.booleans(),
    outside=st.booleans(),
)


@given(FACTS, FACTS, st.sampled_from(["call", "shape", "tool"]))
def test_no_grant_is_wider_than_what_was_shown(shown: Facts, other: Facts, scope: Remember) -> None:
    grants = Grants()
    grants.add(scope, prepare(shown))
    if grants.find(prepare(other, y=1)) is not None:
        assert scope != "call"
        assert prepare(other).effect <= prepare(shown).effect
        assert other.certain
        assert not other.outside
        assert set(other.hosts) <= set(shown.hosts)
        if scope == "shape":
            granted, asked = shape_of(shown), shape_of(other)
            assert granted is not None
            assert asked is not None
            assert asked.commands <= granted.commands
            assert asked.reads <= granted.reads
            assert asked.writes <= granted.writes
            assert not other.unresolved


# ---- what a grant covers, decision by decision


SCOPES: tuple[Remember, ...] = ("call", "shape", "tool")


def granted(scope: Remember, facts: Facts, **arguments: Any) -> Grants:
    grants = Grants()
    assert grants.add(scope, prepare(facts, **arguments)) is not None
    return grants


EFFECTS = list(Effect)


@pytest.mark.parametrize("shown", EFFECTS)
@pytest.mark.parametrize("effect", EFFECTS)
def test_a_shape_covers_up_to_the_effect_that_was_shown(shown: Effect, effect: Effect) -> None:
    # What destroys has to name it to have a shape at all.
    named = ("a",) if shown is Effect.DESTRUCTIVE else ()
    grants = granted("shape", Facts(effect=shown, commands=("ls",), writes=named))
    writes = named if effect is not Effect.READ_ONLY else ()
    covered = grants.find(prepare(Facts(effect=effect, commands=("ls",), writes=writes))) is not None
    reaches_out = effect is Effect.REMOTE_ACTION
    assert covered is (effect <= shown and (not reaches_out or shown is Effect.REMOTE_ACTION))


def test_a_grant_for_a_remote_action_covers_remote_actions() -> None:
    facts = Facts(effect=Effect.REMOTE_ACTION, hosts=("x.example",))
    grants = granted("shape", facts)
    assert grants.find(prepare(facts)) is not None
    assert grants.find(prepare(Facts(effect=Effect.REMOTE_ACTION, hosts=("y.example",)))) is None
    local = granted("shape", Facts(effect=Effect.LOCAL_MUTATION, hosts=("x.example",)))
    assert local.find(prepare(facts)) is None


def test_an_exact_call_is_covered_even_if_it_is_uncertain_or_outside() -> None:
    facts = Facts(certain=False, outside=True, hosts=("x.example",))
    grants = granted("call", facts, x=1)
    assert grants.find(prepare(facts, x=1)) is not None
    assert grants.find(prepare(facts, x=2)) is None


def test_an_exact_call_that_has_become_worse_is_not_covered() -> None:
    grants = granted("call", Facts(), x=1)
    assert grants.find(prepare(Facts(effect=Effect.DESTRUCTIVE), x=1)) is None


@pytest.mark.parametrize("scope", ["shape", "tool"])
@pytest.mark.parametrize("change", [{"certain": False}, {"outside": True}])
def test_wider_scopes_cover_nothing_uncertain_or_outside(scope: Remember, change: dict[str, Any]) -> None:
    grants = granted(scope, WRITES)
    assert grants.find(prepare(WRITES)) is not None
    assert grants.find(prepare(dataclasses.replace(WRITES, **change))) is None


def test_a_grant_is_for_its_tool() -> None:
    for scope in SCOPES:
        grants = granted(scope, WRITES, x=1)
        assert grants.find(prepare(WRITES, "mock", x=1)) is not None
        assert grants.find(prepare(WRITES, "other", x=1)) is None


@pytest.mark.parametrize(
    ("other", "covered"),
    [
        (Shape(), True),
        (Shape(commands=frozenset(["git add"])), True),
        (Shape(writes=frozenset(["out"])), True),
        (Shape(hosts=frozenset(["one"])), True),
        (Shape(commands=frozenset(["git add", "ls"])), False),
        (Shape(writes=frozenset(["out", "in"])), False),
        (Shape(hosts=frozenset(["one", "two"])), False),
    ],
)
def test_a_shape_covers_its_parts_only(other: Shape, covered: bool) -> None:
    shape = Shape(commands=frozenset(["git add"]), writes=frozenset(["out"]), hosts=frozenset(["one"]))
    assert shape.covers(other) is covered
    assert shape.covers(shape)


# ---- shapes


@pytest.mark.parametrize(
    ("command", "prefix"),
    [
        ("git push origin main", "git push"),
        ("git push", "git push"),
        ("git", "git"),
        ("git -C x push", "git -C x push"),
        ("git  ", "git"),
        ("git remote add x y", "git remote add"),
        ("git remote -v update", "git remote -v update"),
        ("git stash", "git stash"),
        ("git stash pop", "git stash pop"),
        ("sort -u a", "sort"),
        ("sort", "sort"),
        ("pip install x", "pip install"),
        ("./git push", "./git"),
    ],
)
def test_a_command_is_remembered_with_its_subcommand(command: str, prefix: str) -> None:
    shape = shape_of(Facts(commands=(command,), writes=("a",)))
    assert shape == Shape(commands=frozenset([prefix]), writes=frozenset(["."]))


@pytest.mark.parametrize(
    ("path", "folder"),
    [
        ("a", "."),
        ("out/a", "out"),
        ("./out//a", "out"),
        ("out/../a", "."),
        ("out/sub/a", "out/sub"),
        ("../a", ".."),
    ],
)
def test_a_file_is_remembered_by_its_folder(path: str, folder: str) -> None:
    assert shape_of(Facts(writes=(path,))) == Shape(writes=frozenset([folder]))


def test_a_shape_needs_something_certain_to_name() -> None:
    assert shape_of(Facts(reads=("a",))) is None
    assert shape_of(Facts(commands=("ls",), certain=False)) is None
    assert shape_of(Facts(commands=("ls",))) == Shape(commands=frozenset(["ls"]))
    assert shape_of(Facts(writes=("a",))) == Shape(writes=frozenset(["."]))
    assert shape_of(Facts(hosts=("X.Example",))) == Shape(hosts=frozenset(["x.example"]))


# ---- what is offered


@pytest.mark.parametrize(
    ("facts", "scopes"),
    [
        (Facts(), ["call", "tool"]),
        (WRITES, ["call", "shape", "tool"]),
        (Facts(outside=True, writes=("a",)), ["call"]),
        (Facts(certain=False, writes=("a",)), ["call"]),
        (Facts(hosts=("x.example",)), ["call", "shape"]),
        (Facts(effect=Effect.DESTRUCTIVE, writes=("a",)), ["call", "shape"]),
        (Facts(effect=Effect.DESTRUCTIVE), ["call"]),
        (Facts(effect=Effect.REMOTE_ACTION), ["call", "tool"]),
    ],
)
def test_only_grants_that_can_be_described_exactly_are_offered(facts: Facts, scopes: list[str]) -> None:
    prepared = prepare(facts)
    assert list(remember_scopes(prepared)) == scopes
    for scope in SCOPES:
        assert (Grants().add(scope, prepared) is not None) is (scope in scopes)


def test_a_grant_says_what_it_allows() -> None:
    grant = Grants().add("shape", prepare(WRITES))
    assert grant is not None
    assert (grant.id, grant.scope, grant.tool, grant.effect) == (1, "shape", "mock", Effect.LOCAL_MUTATION)
    assert grant.description == "mock running only git commit, writing only to out, up to local change"
    assert grant.digest == prepare(WRITES).digest
    assert grant.shape == shape_of(WRITES)
    other = Grants().add("tool", prepare(WRITES))
    assert other is not None
    assert other.shape is None
    assert other.granted_s >= grant.granted_s > 0


def test_a_description_lists_everything_in_order() -> None:
    facts = Facts(commands=("ls", "cat a"), writes=("b/x", "a/x"), hosts=("two", "one"))
    assert remember_scopes(prepare(facts))["shape"] == (
        "mock running only cat, ls, writing only to a, b, talking only to one, two, up to local change"
    )


# ---- revoking


def test_each_revoked_grant_is_reported_once() -> None:
    revoked: list[Grant] = []
    grants = Grants(revoked.append)
    one, two = grants.add("call", prepare(WRITES)), grants.add("tool", prepare(WRITES))
    assert one is not None
    assert two is not None
    assert (one.id, two.id, len(grants)) == (1, 2, 2)
    assert grants.revoke(3) is None
    assert grants.revoke(1) is one
    assert grants.revoke(1) is None
    assert revoked == [one]
    grants.clear()
    assert revoked == [one, two]
    assert len(grants) == 0
    again = grants.add("call", prepare(WRITES))
    assert again is not None
    assert again.id == 3


def test_the_oldest_grant_answers() -> None:
    grants = Grants()
    one, two = grants.add("call", prepare(WRITES)), grants.add("tool", prepare(WRITES))
    assert one is not None
    assert grants.find(prepare(WRITES)) is one
    grants.revoke(one.id)
    assert grants.find(prepare(WRITES)) is two


# ---- protected names


def protected_ticket(*writes: str, policy: Policy | None = None) -> PreparedCall:
    tool = MockTool("mock", facts=Facts(writes=writes))
    return prepare_call(tool, ToolCall("1", "mock", {}, origin="model"), policy or Policy(), "confined")


def test_names_are_offered_once_each_and_only_if_all_of_them_can_be_allowed() -> None:
    assert names_to_allow(()) == ()
    assert names_to_allow(("conftest.py", "a/../b/conftest.py", "setup.py")) == ("conftest.py", "setup.py")
    assert names_to_allow(("conftest.py", "d/.aisotools.toml")) == ()


def test_a_call_that_writes_protected_files_is_remembered_by_their_names_alone() -> None:
    prepared = protected_ticket("conftest.py", "setup.py", "a.txt")
    assert remember_scopes(prepared) == {
        "protected": "conftest.py, setup.py may be written in this workspace"
    }
    grants = Grants()
    for scope in SCOPES:
        assert grants.add(scope, prepared) is None
    grant = grants.add("protected", prepared)
    assert grant is not None
    assert (grant.names, grant.shape) == (("conftest.py", "setup.py"), None)
    assert not grant.covers(prepared), "the names are allowed, not the call"
    assert grants.find(prepared) is None
    other = grants.add("call", prepare(WRITES))
    assert other is not None
    assert other.names == ()


def test_names_that_can_never_be_allowed_are_not_offered() -> None:
    prepared = protected_ticket("conftest.py", ".aisotools.toml")
    assert remember_scopes(prepared) == {}
    assert Grants().add("protected", prepared) is None
    assert Grants().add("protected", prepare(WRITES)) is None, "nothing protected is written"
    denied = protected_ticket("conftest.py", policy=Policy(rules=[Rule(decision=Decision.DENY)]))
    assert "protected" not in remember_scopes(denied)


@pytest.mark.parametrize("scripts", [(("run.py", ""),), (("a.py", "1f"), ("run.py", ""), ("z.py", "2f"))])
def test_a_call_whose_script_nobody_can_compare_is_not_remembered(
    scripts: tuple[tuple[str, str], ...],
) -> None:
    """What it runs may be another thing next time; with every digest known it is offered."""
    prepared = prepare(WRITES)
    known = tuple((path, digest or "3f") for path, digest in scripts)
    unknown_call, known_call = (
        dataclasses.replace(prepared, facts=dataclasses.replace(prepared.facts, scripts=found))
        for found in (scripts, known)
    )
    assert list(remember_scopes(known_call)) == ["call", "shape", "tool"]
    assert remember_scopes(unknown_call) == {}
    grants = Grants()
    assert all(grants.add(scope, unknown_call) is None for scope in get_args(Remember))
    assert grants.find(unknown_call) is None
    assert grants.add("call", known_call) is not None


@pytest.mark.parametrize(
    "command",
    [
        "tar xf x.tar",
        "tar -xzf x.tgz -C out",
        "unzip -o x.zip",
        "7z x x.7z",
        "for f in *.csv; do rm $f; done",
        "for f in *.csv; do sort $f > $f.sorted; done",
        "while read f; do mv $f old; done < list",
        "find . -exec rm {} +",
        "ls | xargs rm",
        "git apply x.patch",
        "git stash",
        "git stash pop",
        "git switch main",
        "git clean -fd",
        "git reset --hard",
        "git remote remove origin",
        "cpio -i < x.cpio",
        "patch -p1 < x.patch",
    ],
)
def test_a_command_that_does_not_name_its_losses_has_no_shape(command: str) -> None:
    assert shape_of(shell_facts(command)) is None


@pytest.mark.parametrize("command", ["rm out/a", "cp a b", "sort a > b", "git add a", "git commit -m x"])
def test_a_command_that_names_them_has_one(command: str) -> None:
    assert shape_of(shell_facts(command)) is not None


@pytest.mark.parametrize(
    ("shown", "asked", "covered"),
    [
        ("chmod 644 out/a", "chmod 644 out/b", True),
        ("chmod 644 out/a", "chmod 777 out/b", False),
        ("chmod 644 out/a", "chmod u+s out/b", False),
        ("chmod 644 out/a", "chmod -R 644 out/b", False),
        ("chmod u+x out/a", "chmod --reference=out/c out/b", False),
        ("install out/x out/a", "install out/x out/b", True),
        ("install out/x out/a", "install -m 4755 out/x out/b", False),
        ("install -m 644 out/x out/a", "install -m 4755 out/x out/b", False),
        ("install -m 644 out/x out/a", "install -D -m644 out/x out/b", False),
        ("install out/x out/a", "install --mo=4755 out/x out/b", False),
        ("mkdir -p out/a", "mkdir out/b", True),
        ("mkdir -m 755 out/a", "mkdir -m 777 out/b", False),
        ("mkdir out/a", "mkdir --mode=777 out/b", False),
        ("gzip -k out/a", "gzip -k out/b", True),
        ("gzip -k out/a", "gzip out/b", False),
        ("gzip out/a", "gzip -d out/b.gz", False),
        ("xz -k out/a", "xz --keep out/b", False),  # the same, spelled in another way: it is asked
        ("tar -cf out/a.tar out/x", "tar -xf out/a.tar", False),
        ("curl -s https://a.example/x", "curl -s https://a.example/y", True),
        ("curl https://a.example/x", "curl -X DELETE https://a.example/y", False),
        ("curl https://a.example/x", "curl -sXDELETE https://a.example/y", False),
        ("curl https://a.example/x", "curl --req DELETE https://a.example/y", False),
        ("curl https://a.example/x", "curl --request=DELETE https://a.example/y", False),
        ("curl -X POST https://a.example/x", "curl -X DELETE https://a.example/x", False),
        ("curl https://a.example/x", "curl -d a=1 https://a.example/y", False),
        ("curl https://a.example/x", "curl --data-raw a=1 https://a.example/y", False),
        ("curl https://a.example/x", "curl -F a=1 https://a.example/y", False),
        ("curl https://a.example/x", "curl --json '{}' https://a.example/y", False),
        ("curl https://a.example/x", "curl -H 'X-HTTP-Method-Override: DELETE' https://a.example/y", False),
        ("wget https://a.example/x", "wget https://a.example/y", True),
        ("wget https://a.example/x", "wget --method=DELETE https://a.example/y", False),
        ("wget https://a.example/x", "wget --post-data=a https://a.example/y", False),
        ("wget https://a.example/x", "wget -r https://a.example/y", False),
        ("curl https://a.example/x", "curl -sS https://a.example/y?z=1", True),
        ("curl https://a.example/x", "curl http://a.example/x", False),
        ("curl https://a.example/x", "curl ftp://a.example/x -Q 'DELE x'", False),
        ("curl ftp://a.example/x", "curl ftp://a.example/x -Q 'DELE x'", False),
        ("curl ftp://a.example/x", "curl ftp://a.example/x --quote 'DELE x'", False),
        ("curl https://a.example/x", "curl gopher://a.example/x", False),
        ("curl https://a.example/x", "curl telnet://a.example/x", False),
        ("curl https://a.example/x", "curl https://a.example:99/x", False),
        ("curl https://a.example/x", "curl https://ann@a.example/x", False),
        ("curl https://a.example/x", "curl -L https://a.example/x", False),
        ("curl https://a.example/x", "curl -k https://a.example/x", False),
        ("curl https://a.example/x", "curl --insecure https://a.example/x", False),
        ("curl https://a.example/x", "curl -A x https://a.example/x", False),
        ("curl https://a.example/x", "curl -e x https://a.example/x", False),
        ("curl https://a.example/x", "curl -b a=b https://a.example/x", False),
        ("curl https://a.example/x", "curl -r 0-1 https://a.example/x", False),
        ("curl https://a.example/x", "curl --resolve a.example:443:1.2.3.4 https://a.example/x", False),
        ("curl a.example/x", "curl a.example/y", True),
        ("curl a.example/x", "curl a.example:8080/y", False),
        ("wget -P out https://a.example/x", "wget -q -P out https://a.example/y", True),
        ("wget -P out https://a.example/x", "wget -P out --header 'X: y' https://a.example/x", False),
        ("wget -P out https://a.example/x", "wget -P out --no-check-certificate https://a.example/x", False),
        ("wget -P out https://a.example/x", "wget -P out -U x https://a.example/x", False),
        ("scp a h.example:d/x", "scp a h.example:d/y", True),
        ("scp a h.example:d/x", "scp b h.example:d/x", True),
        ("scp a h.example:d/x", "scp a h.example:/etc/x", False),
        ("scp a h.example:d/x", "scp a root@h.example:d/x", False),
        ("scp a h.example:d/x", "scp -P 99 a h.example:d/x", False),
        ("scp a h.example:d/x", "scp -p a h.example:d/x", False),
        ("rsync a h.example:d/x", "rsync b h.example:d/x", True),
        ("rsync a h.example:d/x", "rsync a h.example::m/x", False),
        ("rsync a h.example:d/x", "rsync --chmod=777 a h.example:d/x", False),
        ("ncat h.example 9 < a", "ncat h.example 9 < b", True),
        ("ncat h.example 9 < a", "ncat h.example 10 < a", False),
        ("ncat h.example 9 < a", "ncat h.example 9 -o out < a", False),
        ("ncat h.example 9 < a", "ncat h.example 9 --ssl < a", False),
        ("ncat h.example 9 < a", "ncat -l 9 < a", False),
    ],
)
def test_grant_by_shape_covers_no_other_method_rights_or_removal(
    shown: str, asked: str, covered: bool
) -> None:
    grants = Grants()
    if grants.add("shape", prepare(shell_facts(shown))) is None:
        assert not covered, "a shape is offered"
        return
    assert (grants.find(prepare(shell_facts(asked))) is not None) is covered


@pytest.mark.parametrize(
    ("command", "prefix"),
    [
        ("curl --silent https://example.org", "curl"),
        ("curl -- https://example.org", "curl"),
        ("curl --silent --upload-file a https://example.org", "curl --upload-file a"),
        ("curl --upload a https://example.org", "curl --upload a"),
        ("rsync --archive --delete-after a b", "rsync --delete-after"),
    ],
)
def test_long_options_count_if_they_tell_what_a_program_does(command: str, prefix: str) -> None:
    shape = shape_of(dataclasses.replace(WRITES, commands=(command,)))
    assert shape is not None
    assert shape.commands == {prefix}


LOSES = dataclasses.replace(WRITES, losses=(("out/old", "1f"), ("out/new", ABSENT)))
LOSES_NOTHING = dataclasses.replace(WRITES, losses=(("out/new", ABSENT),))


def test_a_shape_covers_no_loss_where_none_was_shown() -> None:
    lost, nothing = shape_of(LOSES), shape_of(LOSES_NOTHING)
    assert lost is not None
    assert nothing is not None
    assert lost.losses == {"out"}
    assert lost.covers(nothing)
    assert not nothing.covers(lost)
    unknown = shape_of(dataclasses.replace(WRITES, losses=(("out/x", UNKNOWN),)))
    assert unknown is not None
    assert not nothing.covers(unknown), "what cannot be looked at may be there"


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (LOSES, "writing only to out, replacing only what is in out, up to"),
        (LOSES_NOTHING, "writing only to out, replacing nothing, up to"),
        (WRITES, "writing only to out, up to"),
    ],
)
def test_a_shape_says_what_may_be_replaced(facts: Facts, words: str) -> None:
    prepared = dataclasses.replace(prepare(WRITES), facts=facts)
    assert words in remember_scopes(prepared)["shape"]


def test_a_call_whose_sources_cannot_be_compared_is_not_remembered() -> None:
    facts = dataclasses.replace(WRITES, certain=False, sources=(("a", "1f"), ("b", MISSING)))
    prepared = dataclasses.replace(prepare(WRITES), facts=facts)
    assert remember_scopes(prepared) == {
        "call": "mock with exactly these arguments, while a has the present content"
    }
    unknown = dataclasses.replace(facts, sources=(("a", f"{UNKNOWN} 1f"),))
    assert remember_scopes(dataclasses.replace(prepared, facts=unknown)) == {}
    certain = dataclasses.replace(unknown, certain=True)
    assert "call" in remember_scopes(dataclasses.replace(prepared, facts=certain))


def test_a_shape_covers_the_loss_of_what_a_call_of_the_session_has_left() -> None:
    grants = Grants()
    prepared = dataclasses.replace(prepare(WRITES), facts=LOSES_NOTHING)
    grants.add("call", prepared)
    goes = [grants.goes_by_losses]
    grants.clear()
    grants.add("shape", prepared)
    assert [*goes, grants.goes_by_losses] == [False, True]
    again = dataclasses.replace(prepared, facts=LOSES)
    assert grants.find(again) is None
    made = [("out/old", ABSENT)]
    grants.note_left(made, [("out/old", "2f")])
    assert grants.find(again) is None, "somebody has changed it since"
    grants.note_left(made, [("out/old", "1f")])
    assert grants.find(again) is not None
    grants.note_left([("out/old", "1f")], [("out/old", UNKNOWN)])
    assert grants.find(again) is None
    unknown = dataclasses.replace(prepared, facts=dataclasses.replace(WRITES, losses=(("out/old", UNKNOWN),)))
    assert grants.find(unknown) is None, "nobody can tell whether it is as it was left"
    grants.note_left(made, [("out/old", "1f"), *((str(number), "1f") for number in range(999))])
    assert grants.find(again) is not None, "a thousand are kept"
    grants.note_left([], [(str(number), ABSENT) for number in range(1_000, 2_000)])
    assert grants.find(again) is not None, "what is gone takes no room"
    grants.note_left([], [("out/old", "1f"), *((str(number), "1f") for number in range(1_000))])
    assert grants.find(again) is None, "only the latest are kept"


@pytest.mark.parametrize(
    ("before", "after", "is_own"),
    [
        ([("out/old", ABSENT)], [("out/old", "1f")], True),
        ([("out/old", "1f")], [("out/old", "1f")], False),  # `touch -c` of a person's file
        ([("out/old", "7f")], [("out/old", "1f")], False),  # `chmod`, `>>` of one
        ([("out/old", UNKNOWN)], [("out/old", "1f")], False),
        ([("out/old", ABSENT), ("data/b", "1f")], [("out/old", "1f"), ("data/b", ABSENT)], False),  # `mv`
        ([("out/old", ABSENT), ("data/b", "1f")], [("out/old", "1f"), ("data/b", "1f")], True),
    ],
)
def test_only_what_a_call_makes_is_of_the_session(
    before: list[tuple[str, str]], after: list[tuple[str, str]], is_own: bool
) -> None:
    grants = Grants()
    prepared = dataclasses.replace(prepare(WRITES), facts=LOSES_NOTHING)
    grants.add("shape", prepared)
    again = dataclasses.replace(prepared, facts=LOSES)
    grants.note_left(before, after)
    assert (grants.find(again) is not None) is is_own
    grants.note_left([("out/old", "2f")], [("out/old", "1f")])  # somebody's change, which a call keeps
    assert grants.find(again) is None
    grants.note_left([("out/old", ABSENT)], [("out/old", "2f")])
    grants.note_left([("out/old", "2f")], [("out/old", "1f")])  # its own, changed once more
    assert grants.find(again) is not None


@pytest.mark.parametrize("scope", ["call", "shape"])
def test_a_grant_ends_when_a_hook_of_git_changes(tmp_path: Path, scope: Remember) -> None:
    hook = tmp_path / ".git/hooks/pre-commit"
    hook.parent.mkdir(parents=True)
    hook.write_text("#!/bin/sh\nexit 0\n")
    hook.chmod(0o755)

    def commit() -> PreparedCall:
        facts = PathResolver(tmp_path).resolve(shell_facts("git commit -m x > log.txt"))
        tool = MockTool("mock")
        prepared = prepare(facts)
        return dataclasses.replace(prepared, facts=facts, digest=call_digest(tool, b"{}", "confined", facts))

    prepared = commit()
    assert dict(prepared.facts.scripts)[".git/hooks/pre-commit"]
    assert "tool" not in remember_scopes(prepared), "a grant for any call would outlive the hook"
    assert ".git/hooks/pre-commit" in remember_scopes(prepared)[scope]
    grants = Grants()
    assert grants.add(scope, prepared) is not None
    assert grants.find(commit()) is not None
    hook.write_text("#!/bin/sh\nexit 1\n")
    assert grants.find(commit()) is None
    hook.write_text("#!/bin/sh\nexit 0\n")
    assert grants.find(commit()) is not None
    (hook.parent / "post-commit").write_text("#!/bin/sh\n")
    (hook.parent / "post-commit").chmod(0o755)
    assert grants.find(commit()) is None, "another hook"


def test_a_grant_for_a_tool_covers_no_call_that_runs_hooks() -> None:
    grants = Grants()
    grants.add("tool", prepare(WRITES))
    hooks = (GitPrograms(".git/hooks", ("pre-commit",)),)
    with_hooks = dataclasses.replace(prepare(WRITES), facts=dataclasses.replace(WRITES, git_programs=hooks))
    assert grants.find(prepare(WRITES)) is not None
    assert grants.find(with_hooks) is None
