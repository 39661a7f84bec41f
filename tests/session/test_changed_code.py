"""A remembered approval does not outlive a change of the code that its command would run.

Measured by `Session.explain`: nothing is run. `changed_code` makes the cases.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from aisotools.core.types import Decision, ToolCall
from aisotools.policy.grants import remember_scopes
from aisotools.session.session import Session
from tests.conftest import OpenSession
from tests.session.changed_code import Case, cases

pytestmark = pytest.mark.timeout(300)


def put(workspace: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (workspace / name).parent.mkdir(parents=True, exist_ok=True)
        (workspace / name).write_text(text)
        (workspace / name).chmod(0o755 if text.startswith("#!") or "." not in name else 0o644)


def empty(workspace: Path) -> None:
    for path, folders, names in os.walk(workspace, topdown=False):
        for name in names:
            Path(path, name).unlink()
        for name in folders:
            Path(path, name).rmdir()


def outlives(session: Session, case: Case) -> str:
    """Return how an approval outlives the change of a case; empty if it does not."""
    assert session.workspace is not None
    empty(session.workspace)
    put(session.workspace, case.files)
    call = ToolCall("one", "sandbox_bash", {"command": case.command}, origin="model")
    before = session.explain(call)
    if before.evaluation.decision is not Decision.ASK:
        return ""  # nothing is remembered of what is not asked about
    scopes = remember_scopes(before)
    if not scopes:
        return ""
    (session.workspace / case.target).write_text(case.files[case.target] + "\n\n")
    after = session.explain(call)
    wide = sorted({"shape", "tool"} & set(scopes))
    return f"remembered as {wide}" if wide else "the same digest" if before.digest == after.digest else ""


_PARTS = 16


@pytest.mark.sample(2)
@pytest.mark.parametrize("part", range(_PARTS))
async def test_no_approval_outlives_a_change_of_the_code(open_session: OpenSession, part: int) -> None:
    session = open_session()
    await session.start()
    tried = list(cases())[part::_PARTS]
    outlived = [(case.command, case.target, how) for case in tried if (how := outlives(session, case))]
    assert len(tried) > 300
    assert not outlived


FILES = {
    "x.sh": "python3 l.py",
    "l.py": "import m",
    "m.py": "1",
    "d/tool": "#!/bin/sh",
    "a.csv": "1",
    "list": "x.sh",
}
REMEMBERED = (
    "bash x.sh",
    "python3 l.py --epochs 3",
    'PYTHONPATH=d python3 -c "import m"',
    "PATH=$PWD/d:$PATH tool a.csv",
    "make -j4",
    "pytest -q tests",
    "npm test",
    "Rscript a.R",
    "env A=1 bash x.sh a.csv",
    "cargo test",
)


@pytest.mark.parametrize("command", REMEMBERED)
async def test_results_of_a_run_do_not_end_an_approval(open_session: OpenSession, command: str) -> None:
    """The control: what a run writes is no other code, so it is not asked about again."""
    session = open_session()
    await session.start()
    assert session.workspace is not None
    put(session.workspace, FILES)
    call = ToolCall("one", "sandbox_bash", {"command": command}, origin="model")
    before = session.explain(call)
    assert "call" in remember_scopes(before)
    put(
        session.workspace,
        {"out.csv": "2", "plots/a.png": "3", "run.log": "4", ".pytest_cache/v/lastfailed": "{}"},
    )
    (session.workspace / ".pytest_cache/v/lastfailed").chmod(0o644)
    assert session.explain(call).digest == before.digest
    put(session.workspace, {"d/new.py": "1"})
    assert session.explain(call).digest != before.digest


@pytest.mark.parametrize(
    "command", ["xargs -a list bash", "ls | sh", "F=a.csv; bash $F", "eval $(cat a.csv)"]
)
async def test_a_command_that_may_run_any_file_is_bound_to_all(
    open_session: OpenSession, command: str
) -> None:
    session = open_session()
    await session.start()
    assert session.workspace is not None
    put(session.workspace, FILES)
    call = ToolCall("one", "sandbox_bash", {"command": command}, origin="model")
    before = session.explain(call)
    assert session.explain(call).digest == before.digest
    put(session.workspace, {"b.csv": "echo"})
    assert session.explain(call).digest != before.digest


@pytest.mark.parametrize(
    "command",
    ["PYTHONPATH=$TMPDIR python3 -c 'import l'", "F=$HOME/x; bash $F", "PATH=/tmp/d:$PATH x", "cd ~ && ./x"],
)
async def test_code_beside_the_workspace_cannot_be_remembered(
    open_session: OpenSession, command: str
) -> None:
    session = open_session()
    await session.start()
    prepared = session.explain(ToolCall("one", "sandbox_bash", {"command": command}, origin="model"))
    assert prepared.facts.code == ""
    assert any("cannot be remembered" in reason for reason in prepared.evaluation.reasons)
    assert "call" not in remember_scopes(prepared)


async def test_cells_that_load_by_a_computed_name(open_session: OpenSession) -> None:
    session = open_session()
    await session.start()
    assert session.workspace is not None
    put(session.workspace, FILES)
    code = "import importlib\nimportlib.import_module(name)"
    call = ToolCall("one", "python", {"code": code}, origin="model")
    before = session.explain(call)
    assert before.evaluation.decision is not Decision.ASK or before.facts.code
    put(session.workspace, {"m.py": "2"})
    assert session.explain(call).digest != before.digest


@pytest.mark.parametrize("command", ["git push origin main", "git push -q origin HEAD", "git fetch origin"])
async def test_an_approval_to_push_is_for_the_present_remote(open_session: OpenSession, command: str) -> None:
    """`git remote set-url` makes `origin` another machine."""
    session = open_session()
    await session.start()
    assert session.workspace is not None
    put(session.workspace, {".git/config": '[remote "origin"]\n\turl = https://example.org/a.git\n'})
    call = ToolCall("one", "sandbox_bash", {"command": command}, origin="model")
    before = session.explain(call)
    if "shape" in remember_scopes(before):
        assert ".git/config is unchanged" in remember_scopes(before)["shape"]
    grants = [session.grants.add(scope, before) for scope in remember_scopes(before)]
    assert all(grant is not None and grant.covers(session.explain(call)) for grant in grants)
    put(session.workspace, {".git/config": '[remote "origin"]\n\turl = https://example.com/b.git\n'})
    after = session.explain(call)
    assert not any(grant is not None and grant.covers(after) for grant in grants)


@pytest.mark.parametrize(
    "command", ["tar xf x.tar", "tar -xzf x.tar", "tar --extract --file=x.tar", "unzip x.tar"]
)
async def test_an_approval_to_unpack_is_for_the_present_archive(
    open_session: OpenSession, command: str
) -> None:
    session = open_session()
    await session.start()
    assert session.workspace is not None
    put(session.workspace, {"x.tar": "one"})
    call = ToolCall("one", "sandbox_bash", {"command": command}, origin="model")
    before = session.explain(call)
    assert "call" in remember_scopes(before)
    assert session.explain(call).digest == before.digest
    put(session.workspace, {"x.tar": "other"})
    assert session.explain(call).digest != before.digest
