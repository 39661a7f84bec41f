"""A remembered approval does not outlive a change of the code that its command would run.

Measured by `Session.explain`: nothing is run. `changed_code` makes the cases.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from aisotools.core.types import Approval, ApprovalRequest, Decision, Remember, ToolCall
from aisotools.policy.grants import remember_scopes
from aisotools.policy.rules import Policy
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


# ---- programs that git starts

GIT_FILES = {
    ".git/HEAD": "ref: refs/heads/main\n",
    ".git/config": "[core]\n\tbare = false\n",
    ".git/objects/x.md": "",
    "bare/HEAD": "ref: refs/heads/main\n",
    "bare/config": "[core]\n\tbare = true\n",
    "tools/c.sh": "#!/bin/sh\ncat\n",
    "f": "a\n",
}
FILTER = '[filter "t"]\n\tclean = tools/c.sh\n'
HOOK = "#!/bin/sh\necho other\n"
CHANGES = {
    "a filter arrives": ("git add f", {}, {".git/config": FILTER}),
    "a filter changes": ("git add f", {".git/config": FILTER}, {".git/config": FILTER + "\tprocess = x\n"}),
    "a script of a filter changes": ("git add f", {".git/config": FILTER}, {"tools/c.sh": HOOK}),
    "a script that it sources changes": (
        "git add f",
        {".git/config": FILTER, "tools/c.sh": "#!/bin/sh\n. tools/l.sh\n", "tools/l.sh": ""},
        {"tools/l.sh": "echo other\n"},
    ),
    "attributes arrive": ("git add f", {".git/config": FILTER}, {".gitattributes": "f filter=t\n"}),
    "attributes below arrive": ("git add f", {".git/config": FILTER}, {"tools/.gitattributes": "* filter=t"}),
    "attributes of the repository": (
        "git commit -m x",
        {".git/config": FILTER},
        {".git/info/attributes": "f filter=t\n"},
    ),
    "attributes in a file that a setting names": (
        "git add f",
        {".git/config": FILTER + "[core]\n\tattributesFile = own\n", "own": ""},
        {"own": "f filter=t\n"},
    ),
    "an editor": ("git commit", {}, {".git/config": "[core]\n\teditor = tools/c.sh\n"}),
    "an editor of a list": ("git rebase -i x", {}, {".git/config": "[sequence]\n\teditor = tools/c.sh\n"}),
    "a watcher": ("git checkout main", {}, {".git/config": "[core]\n\tfsmonitor = tools/c.sh\n"}),
    "a trailer": (
        "git commit -m x --trailer a=b",
        {},
        {".git/config": '[trailer "a"]\n\tcmd = tools/c.sh\n'},
    ),
    "a driver of merges": ("git merge side", {}, {".git/config": '[merge "t"]\n\tdriver = tools/c.sh %A\n'}),
    "a program that signs": ("git tag -m x t", {}, {".git/config": "[gpg]\n\tprogram = tools/c.sh\n"}),
    "a way to another machine": ("git fetch", {}, {".git/config": "[core]\n\tsshCommand = tools/c.sh\n"}),
    "a helper": ("git pull", {}, {".git/config": "[credential]\n\thelper = !tools/c.sh\n"}),
    "an alias": ("git zz", {}, {".git/config": "[alias]\n\tzz = !tools/c.sh\n"}),
    "an alias changes": (
        "git zz",
        {".git/config": "[alias]\n\tzz = commit\n"},
        {".git/config": "[alias]\n\tzz = !tools/c.sh\n"},
    ),
    "settings that are included": (
        "git stash",
        {".git/config": "[include]\n\tpath = ../own\n", "own": ""},
        {"own": FILTER},
    ),
    "a hook": ("git commit -m x", {}, {".git/hooks/pre-commit": HOOK}),
    "a folder of hooks": (
        "git commit -m x",
        {"h/pre-commit": HOOK},
        {".git/config": "[core]\nhooksPath=h\n"},
    ),
    "a hook of this repository, which receives": ("git push . HEAD", {}, {".git/hooks/update": HOOK}),
    "a hook of a receiver": ("git push bare HEAD", {}, {"bare/hooks/post-receive": HOOK}),
    "a hook of a receiver by its address": (
        'git push "file://$PWD/bare"',
        {},
        {"bare/hooks/update": HOOK},
    ),
    "a hook of a receiver by its name": (
        "git push o HEAD",
        {".git/config": '[remote "o"]\n\turl = bare\n'},
        {"bare/hooks/post-receive": HOOK},
    ),
    "a hook of a receiver that nothing names": (
        "git push",
        {".git/config": '[remote "o"]\n\turl = bare\n'},
        {"bare/hooks/pre-receive": HOOK},
    ),
    "a hook of a receiver by a shorter address": (
        "git push x:y HEAD",
        {".git/config": '[url "bare"]\n\tinsteadOf = x:y\n'},
        {"bare/hooks/pre-receive": HOOK},
    ),
    "a setting of a receiver": (
        "git push o HEAD",
        {".git/config": '[remote "o"]\n\turl = ./bare\n'},
        {"bare/config": FILTER},
    ),
    "git in a variable": ("G=git; $G commit -m x", {}, {".git/hooks/pre-commit": HOOK}),
    "git in a program": (
        "python3 -c 'import os; os.system(\"git commit\")'",
        {".git/hooks/pre-commit": "#!/bin/sh\n"},
        {".git/hooks/pre-commit": HOOK},
    ),
    "git in a script": ("bash x.sh", {"x.sh": "git add f\n"}, {".git/config": FILTER}),
    "git in rules": ("make", {"Makefile": "a:\n\tgit commit\n"}, {".git/hooks/pre-commit": HOOK}),
    "git in a folder below": (
        "make -C sub",
        {"sub/Makefile": "a:\n\tgit commit\n", "sub/.git/HEAD": "x", "sub/.git/config": ""},
        {"sub/.git/hooks/pre-commit": HOOK},
    ),
}
"""By name: the command, the files that there are beside `GIT_FILES`, and what is written then."""


class Approving:
    """Approves, with a scope that is remembered, and writes files before its first answer."""

    def __init__(self, change: Mapping[str, str], root: list[Path], remember: Remember | None = None) -> None:
        self.requests: list[ApprovalRequest] = []
        self._change, self._root, self._remember = change, root, remember

    async def ask(self, request: ApprovalRequest) -> Approval:
        self.requests.append(request)
        if len(self.requests) == 1:
            put(self._root[0], self._change)
        return Approval("approve", remember=self._remember)


@pytest.mark.sample(11)
@pytest.mark.parametrize("name", CHANGES)
async def test_programs_of_git_that_change_before_the_run_are_asked_about_again(
    open_session: OpenSession, name: str
) -> None:
    """Between the card and the run: the second question says what is different."""
    command, files, change = CHANGES[name]
    root: list[Path] = []
    approver = Approving(change, root)
    session = open_session(approver=approver)
    await session.start()
    assert session.workspace is not None
    root.append(session.workspace)
    put(session.workspace, {**GIT_FILES, **files})
    await session.call("sandbox_bash", {"command": command})
    assert len(approver.requests) == 2
    reasons = "; ".join(approver.requests[1].reasons)
    assert "has changed since it was shown" in reasons or "is there now" in reasons or "git" in reasons


async def test_code_that_starts_git_is_asked_about_again_when_a_hook_changes(
    open_session: OpenSession,
) -> None:
    root: list[Path] = []
    approver = Approving({".git/hooks/pre-commit": HOOK}, root)
    session = open_session(approver=approver)
    await session.start()
    assert session.workspace is not None
    root.append(session.workspace)
    put(session.workspace, GIT_FILES)
    await session.call("python", {"code": "import os; os.system('git commit -m x')"})
    assert len(approver.requests) == 2
    assert ".git/hooks/pre-commit is there now" in "; ".join(approver.requests[1].reasons)


@pytest.mark.sample(22)
@pytest.mark.parametrize("scope", ["call", "shape"])
@pytest.mark.parametrize("name", CHANGES)
async def test_no_approval_outlives_a_change_of_what_git_would_start(
    open_session: OpenSession, name: str, scope: Remember
) -> None:
    command, files, change = CHANGES[name]
    session = open_session(approver=Approving({}, [Path("/nowhere")], scope))
    await session.start()
    assert session.workspace is not None
    put(session.workspace, {**GIT_FILES, **files})
    call = ToolCall("one", "sandbox_bash", {"command": command}, origin="model")
    before = session.explain(call)
    grant = session.grants.add(scope, before)
    if grant is None:
        return  # nothing of this kind was offered
    assert session.grants.find(session.explain(call)) is not None, "the control"
    put(session.workspace, change)
    assert session.grants.find(session.explain(call)) is None


@pytest.mark.sample(10)
@pytest.mark.parametrize("name", [name for name in CHANGES if "git in" not in name])
async def test_mode_auto_asks_before_git_starts_a_program_of_the_repository(
    open_session: OpenSession, name: str
) -> None:
    command, files, change = CHANGES[name]
    session = open_session(policy=Policy(mode="auto"))
    await session.start()
    assert session.workspace is not None
    put(session.workspace, {**GIT_FILES, **files, **change})
    call = ToolCall("one", "sandbox_bash", {"command": command}, origin="model")
    assert session.explain(call).evaluation.decision is Decision.ASK


@pytest.mark.parametrize(
    "command", ["git add f", "git add .", "git commit -m x", "git stash", "git checkout f.py"]
)
async def test_git_in_a_plain_repository_is_asked_about_no_more_than_before(
    open_session: OpenSession, command: str
) -> None:
    session = open_session(policy=Policy(mode="auto"))
    await session.start()
    assert session.workspace is not None
    plain = (
        '[core]\n\tfilemode = true\n[remote "origin"]\n\turl = git@h.example:a/b.git\n[user]\n\tname = a\n'
    )
    plain += '[branch "main"]\n\tremote = origin\n\tmerge = refs/heads/main\n[color]\n\tpager = true\n'
    put(session.workspace, {**GIT_FILES, ".git/config": plain, ".git/hooks/pre-commit.sample": HOOK})
    facts = session.explain(ToolCall("one", "sandbox_bash", {"command": command}, origin="model")).facts
    assert facts.certain
    assert facts.git_programs == ()
    assert facts.scripts == ()
