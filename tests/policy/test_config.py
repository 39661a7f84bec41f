from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, strategies as st

from aisotools.core.exceptions import UsageError
from aisotools.core.types import Decision, Effect, Facts, Origin, ToolCall
from aisotools.policy.config import (
    FILE_NAME,
    WORKSPACE_FILE_NAME,
    policy_from_toml,
    user_policy,
    workspace_policy,
)
from aisotools.policy.rules import Mode, Policy, Rule
from aisotools.testing.fakes import MockTool
from tests.conftest import OpenSession

DATA_IS_FREE = """
[[rule]]
tool = "file"
when = { writes = ["data/*"] }
decision = "allow"
reason = "data is scratch"
match = [{ writes = ["data/a.txt"] }]
not_match = [{ writes = ["data/../b.txt"] }, { writes = ["data/a.txt", "c.txt"] }]
"""


def call(name: str = "file", origin: Any = "model") -> ToolCall:
    return ToolCall("1", name, {}, origin=origin)


def test_rules_of_a_file_decide() -> None:
    policy = policy_from_toml(DATA_IS_FREE)
    allowed = policy.check(call(), Facts(writes=("data/x",)))
    assert (allowed.decision, allowed.reasons) == (Decision.ALLOW, ("data is scratch",))
    assert policy.check(call(), Facts(writes=("x",))).decision is Decision.ASK
    assert policy.check(call("other"), Facts(writes=("data/x",))).decision is Decision.ASK


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a", "is not TOML"),
        ("colour = 'red'", r"unknown keys: colour. Known: mode, rule\.$"),
        ("mode = 'wild'", "mode 'wild' is not one of plan, safe, auto"),
        ("rule = 3", r"\[\[rule\]\]"),
        ("[[rule]]\ncolour = 1", "rule 1 has unknown keys: colour"),
        ("[[rule]]\ndecision = 'maybe'", "rule 1: .*'maybe' is not one of allow, ask, deny"),
        ("[[rule]]\nwhen = { pats = 'x' }", "rule 1: .*has unknown keys: pats"),
        (
            "[[rule]]\nwhen = { writes = 'a' }\nmatch = [{ writes = ['b'] }]",
            "does not match its example",
        ),
        ("[[rule]]\nnot_match = [{ writes = ['b'] }]", "which `not_match` excludes"),
    ],
)
def test_a_mistake_names_the_file_the_rule_and_the_key(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        policy_from_toml(text, source="policy.toml")


def test_the_users_file_lies_in_the_jupyter_config_folder(tmp_path: Path) -> None:
    assert user_policy({"HOME": str(tmp_path)}) == Policy()
    (tmp_path / ".jupyter").mkdir()
    (tmp_path / ".jupyter" / FILE_NAME).write_text(DATA_IS_FREE)
    allowed = user_policy({"HOME": str(tmp_path)}).check(call(), Facts(writes=("data/x",)))
    assert allowed.decision is Decision.ALLOW
    elsewhere = {"HOME": str(tmp_path), "JUPYTER_CONFIG_DIR": str(tmp_path / "elsewhere")}
    assert user_policy(elsewhere) == Policy()


def test_a_broken_file_is_an_error_and_not_a_policy(tmp_path: Path) -> None:
    assert workspace_policy(tmp_path) is None
    (tmp_path / WORKSPACE_FILE_NAME).write_text("mode =")
    with pytest.raises(UsageError, match=r"\.aisotools\.toml is not TOML"):
        workspace_policy(tmp_path)
    (tmp_path / WORKSPACE_FILE_NAME).write_bytes(b"\xff")
    with pytest.raises(UsageError, match="cannot be read"):
        workspace_policy(tmp_path)


@pytest.mark.parametrize("plant", ["link", "pipe"])
def test_a_planted_link_or_fifo_is_neither_followed_nor_waited_for(tmp_path: Path, plant: str) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (tmp_path / "secret.toml").write_text("mode = 'auto'")
    if plant == "link":
        (workspace / WORKSPACE_FILE_NAME).symlink_to(tmp_path / "secret.toml")
    else:
        os.mkfifo(workspace / WORKSPACE_FILE_NAME)
    with pytest.raises(UsageError, match="cannot be read"):
        workspace_policy(workspace)


async def test_a_session_goes_by_the_users_file_unless_it_is_given_a_policy(
    open_session: OpenSession, environ: Mapping[str, str]
) -> None:
    config = Path(environ["HOME"]) / ".jupyter"
    config.mkdir()
    (config / FILE_NAME).write_text("[[rule]]\ntool = 'mock'\ndecision = 'allow'")
    assert not (await open_session(MockTool()).call("mock")).is_error
    assert (await open_session(MockTool(), policy=Policy()).call("mock")).error_kind == "denied"


async def test_a_workspaces_file_tightens_every_policy_and_loosens_none(
    open_session: OpenSession, tmp_path: Path
) -> None:
    file = tmp_path / "workspace" / WORKSPACE_FILE_NAME
    file.parent.mkdir()
    file.write_text('mode = "auto"\n[[rule]]\ntool = "frozen"\ndecision = "deny"\nreason = "it is frozen"')
    stays = Facts(writes=("a",))
    frozen, other = MockTool("frozen", facts=stays), MockTool("other", facts=stays)
    session = open_session(frozen, other, policy=Policy(mode="auto"))
    assert "it is frozen" in (await session.call("frozen")).content
    assert not (await session.call("other")).is_error
    session.policy = Policy()
    assert "it is frozen" in (await session.call("frozen")).content
    assert (await session.call("other")).error_kind == "denied"


PROTECTED = (
    "conftest.py a/b/conftest.py x.pth .git/hooks/pre-commit sub/.git/hooks/x ./a/../conftest.py CONFTEST.py "
    ".aisotools.toml sitecustomize.py .vscode/tasks.json"
)


@pytest.mark.parametrize("path", PROTECTED.split())
def test_protected_files_are_protected_whatever_the_mode(path: str) -> None:
    for mode, origin in itertools.product(get_args(Mode), get_args(Origin)):
        policy = Policy(mode=mode, rules=[Rule(decision=Decision.ALLOW)])
        evaluation = policy.check(call(origin=origin), Facts(writes=("fine.txt", path)))
        assert evaluation.decision is Decision.DENY, (mode, origin)
        assert path in evaluation.reasons[0], (mode, origin)


@pytest.mark.parametrize(
    "path", ["a.py", "tests/test_conftest.py", "my.pth.txt", ".github/x", "hooks/pre-commit"]
)
def test_other_files_are_not(path: str) -> None:
    assert Policy(mode="auto").check(call(), Facts(writes=(path,))).decision is Decision.ALLOW


RULES = st.lists(
    st.builds(
        Rule,
        tool=st.sampled_from(["*", "file", "f*", "other"]),
        decision=st.sampled_from(Decision),
        when=st.none() | st.fixed_dictionaries({"writes": st.sampled_from(["*", "data/*", "x"])}),
    ),
    max_size=4,
)
POLICIES = st.builds(Policy, mode=st.sampled_from(["plan", "safe", "auto"]), rules=RULES)
CALLS = st.builds(
    ToolCall,
    st.just("1"),
    st.sampled_from(["file", "other", "python"]),
    st.just({}),
    origin=st.sampled_from(["person", "program", "model"]),
)
FACTS = st.builds(
    Facts,
    effect=st.sampled_from(Effect),
    writes=st.lists(st.sampled_from(["data/a", "x", "conftest.py"]), max_size=2).map(tuple),
    certain=st.booleans(),
    outside=st.booleans(),
    runs_in=st.sampled_from(["sandbox", "host"]),
    level=st.sampled_from(["limited", "confined"]),
)


@given(POLICIES, POLICIES, CALLS, FACTS)
def test_narrowing_never_loosens(policy: Policy, bound: Policy, made: ToolCall, facts: Facts) -> None:
    narrowed = policy.narrowed(bound).check(made, facts).decision
    assert narrowed >= policy.check(made, facts).decision
    assert narrowed >= bound.check(made, facts).decision


@given(POLICIES, RULES, CALLS, FACTS)
def test_another_denying_rule_never_loosens(
    policy: Policy, more: list[Rule], made: ToolCall, facts: Facts
) -> None:
    deny = [Rule(tool=rule.tool, when=rule.when, decision=Decision.DENY) for rule in more]
    stricter = Policy(mode=policy.mode, rules=[*policy.rules, *deny])
    assert stricter.check(made, facts).decision >= policy.check(made, facts).decision


def test_every_key_of_the_own_file_is_named_where_one_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "aisotools.toml").write_text("colour = 'red'\n[settings]\nmode = 'plan'\n")
    with pytest.raises(UsageError, match=r"colour\. Known: mode, rule, settings, allow_protected\.$"):
        user_policy({"JUPYTER_CONFIG_DIR": str(tmp_path)})
    (tmp_path / ".aisotools.toml").write_text("settings = 1\n")
    with pytest.raises(UsageError, match=r"unknown keys: settings\. Known: mode, rule\.$"):
        workspace_policy(tmp_path)


@pytest.mark.parametrize("mode", [0o700, 0])
def test_a_folder_in_place_of_a_workspaces_policy_holds_no_rules(tmp_path: Path, mode: int) -> None:
    (tmp_path / WORKSPACE_FILE_NAME).mkdir(mode=mode)
    assert workspace_policy(tmp_path) is None


@pytest.mark.parametrize("kind", ["fifo", "link to itself", "link to a folder"])
def test_anything_else_in_its_place_is_refused(tmp_path: Path, kind: str) -> None:
    place = tmp_path / WORKSPACE_FILE_NAME
    if kind == "fifo":
        os.mkfifo(place)
    else:
        place.symlink_to(place if kind == "link to itself" else ".")
    with pytest.raises(UsageError, match=r"The policy .* cannot be read: "):
        workspace_policy(tmp_path)
