"""A grant for a script is for its content: what is changed afterwards is asked about again."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aisotools.core.sandboxes import SupportsHome
from aisotools.core.types import Approval, ApprovalRequest, Remember, ToolCall, ToolResult
from aisotools.policy.grants import remember_scopes
from aisotools.policy.rules import Policy
from aisotools.session.session import Session
from aisotools.workspace.scripts import MAX_STAMPED
from tests.conftest import OpenSession

pytestmark = pytest.mark.timeout(120)


class Remembers:
    """Approves and remembers the exact call, and keeps the questions."""

    def __init__(self) -> None:
        self.requests: list[ApprovalRequest] = []

    async def ask(self, request: ApprovalRequest) -> Approval:
        self.requests.append(request)
        offered = request.preview["remember"]
        return Approval("approve", remember="call" if "call" in offered else None)


async def ready(open_one: OpenSession, **options: Any) -> tuple[Session, Remembers, Path]:
    approver = Remembers()
    session = open_one(approver=approver, **options)
    await session.start()
    assert session.workspace is not None
    return session, approver, session.workspace


async def bash(session: Session, command: str, **more: Any) -> ToolResult:
    return await session.call("sandbox_bash", {"command": command, **more}, origin="model")


def put(workspace: Path, name: str, content: str) -> None:
    file = workspace / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(content)
    file.chmod(0o755)


ONE, OTHER = "#!/bin/sh\necho one\n", "#!/bin/sh\necho other\n"
SCRIPTS = {
    "./run.sh": "run.sh",
    "bash run.sh": "run.sh",
    "sh -e run.sh first second": "run.sh",
    "source run.sh": "run.sh",
    ". ./run.sh": "run.sh",
    "bash < run.sh": "run.sh",
    "cat run.sh | bash": "run.sh",
    "bin/run.sh": "bin/run.sh",
    "cd bin && ./run.sh": "bin/run.sh",
    '"$WORKSPACE/run.sh"': "run.sh",
    "python run.py": "run.py",
    "python -W ignore run.py --epochs 3": "run.py",
    "time ./run.sh": "run.sh",
    "env ./run.sh": "run.sh",
}


@pytest.mark.sample(5)
@pytest.mark.parametrize("command", SCRIPTS)
async def test_a_grant_ends_when_the_script_is_another(real_session: OpenSession, command: str) -> None:
    session, approver, workspace = await ready(real_session)
    script = SCRIPTS[command]
    one, other = ("print('one')", "print('other')") if script.endswith(".py") else (ONE, OTHER)
    put(workspace, script, one)
    assert "one" in (await bash(session, command)).content
    assert len(approver.requests) == 1
    assert f"{script} has the present content" in approver.requests[0].preview["remember"]["call"]
    await bash(session, command)
    assert len(approver.requests) == 1, "the control: the grant covers the same content"
    put(workspace, script, other)
    assert "other" in (await bash(session, command)).content
    assert len(approver.requests) == 2
    put(workspace, script, one)
    await bash(session, command)
    assert len(approver.requests) == 2, "the first grant is for the first content"


async def test_a_script_in_the_folder_of_the_call(real_session: OpenSession) -> None:
    session, approver, workspace = await ready(real_session)
    put(workspace, "sub/run.sh", ONE)
    await bash(session, "./run.sh", workdir="sub")
    await bash(session, "./run.sh", workdir="sub")
    assert len(approver.requests) == 1
    put(workspace, "sub/run.sh", OTHER)
    await bash(session, "./run.sh", workdir="sub")
    assert len(approver.requests) == 2


async def test_files_that_a_script_loads_by_name_count_as_well(real_session: OpenSession) -> None:
    session, approver, workspace = await ready(real_session)
    put(workspace, "run.sh", "source ./lib.sh\n")
    put(workspace, "lib.sh", "echo one\n")
    await bash(session, "bash run.sh")
    await bash(session, "bash run.sh")
    assert len(approver.requests) == 1
    put(workspace, "lib.sh", "echo other\n")
    await bash(session, "bash run.sh")
    assert len(approver.requests) == 2


async def test_a_script_that_was_missing_is_another_once_it_is_there(real_session: OpenSession) -> None:
    session, approver, workspace = await ready(real_session)
    await bash(session, "bash run.sh")
    put(workspace, "run.sh", OTHER)
    assert "other" in (await bash(session, "bash run.sh")).content
    assert len(approver.requests) == 2


async def test_a_link_that_leads_to_another_script(real_session: OpenSession) -> None:
    session, approver, workspace = await ready(real_session)
    put(workspace, "one.sh", ONE)
    put(workspace, "other.sh", OTHER)
    (workspace / "run.sh").symlink_to("one.sh")
    await bash(session, "bash run.sh")
    (workspace / "run.sh").unlink()
    (workspace / "run.sh").symlink_to("other.sh")
    await bash(session, "bash run.sh")
    assert len(approver.requests) == 2


@pytest.mark.parametrize("command", ["bash $TMPDIR/x.sh", "bash ~/x.sh", "python ../x.py"])
async def test_no_grant_for_a_script_that_cannot_be_compared(real_session: OpenSession, command: str) -> None:
    session, approver, _ = await ready(real_session)
    await bash(session, command)
    assert "call" not in approver.requests[0].preview["remember"]
    await bash(session, command)
    assert len(approver.requests) == 2


class ChangesIt(Remembers):
    """Approves, and something changes the script meanwhile, as often as there are contents."""

    def __init__(self, script: Path, *contents: str) -> None:
        super().__init__()
        self.script, self.contents = script, list(contents)

    async def ask(self, request: ApprovalRequest) -> Approval:
        if self.contents:
            self.script.write_text(self.contents.pop(0))
        return await super().ask(request)


async def test_a_script_that_changes_while_a_person_thinks_is_asked_about_again(
    real_session: OpenSession,
) -> None:
    session, _, workspace = await ready(real_session)
    put(workspace, "run.sh", ONE)
    session.approver = approver = ChangesIt(workspace / "run.sh", OTHER)
    assert "other" in (await bash(session, "bash run.sh")).content
    assert "run.sh has changed since it was shown" in approver.requests[1].reasons


async def test_a_script_that_an_approved_call_of_the_batch_writes_is_asked_about_once(
    real_session: OpenSession,
) -> None:
    session, approver, workspace = await ready(real_session)
    put(workspace, "run.sh", ONE)
    write = {"path": "run.sh", "content": OTHER}
    await session.call("sandbox_read", {"path": "run.sh"}, origin="model")
    results = await session.call_many(
        [
            ToolCall("write", "sandbox_write", write, origin="model"),
            ToolCall("run", "sandbox_bash", {"command": "bash run.sh"}, origin="model"),
        ]
    )
    assert "other" in results[1].content
    assert len(approver.requests) == 2, "one question for each call"


LOADED: dict[str, tuple[str, str, dict[str, str]]] = {
    "awk -f p.awk a.txt": ("p.awk", "{print 1}", {}),
    "awk -f prog a.txt": ("prog", "{print 1}", {}),
    "sed -f p.sed a.txt": ("p.sed", "p", {}),
    "jq -f p.jq x.json": ("p.jq", ".", {}),
    "python3 -m pkg": ("pkg/__main__.py", "1", {}),
    "python3 -m pkg.sub": ("pkg/__init__.py", "1", {"pkg/sub.py": "1"}),
    'python3 -c "import mod"': ("mod.py", "1", {}),
    "python3 -c \"exec(open('mod.py').read())\"": ("mod.py", "1", {}),
    "python3 -c \"import sys; sys.path.insert(0, 'lib'); import mod\"": ("lib/mod.py", "1", {}),
    "python3 s.py": ("mod.py", "1", {"s.py": "import mod"}),
    "python3 d/s.py": ("d/mod.py", "1", {"d/s.py": "from mod import x"}),
    "python3 <<E\nimport mod\nE": ("mod.py", "1", {}),
    "perl x.pl": ("x.pl", "1;", {}),
    "perl -Ilib -MFoo -e 1": ("lib/Foo.pm", "1;", {}),
    "node r.js": ("m.js", "1", {"r.js": "require('./m')"}),
    "bash one.sh": ("two.sh", "echo", {"one.sh": ". ./lib.sh", "lib.sh": "source ./two.sh"}),
    'sqlite3 :memory: ".read q.sql"': ("q.sql", "select 1;", {}),
    "make -f mk": ("mk", "all:\n", {}),
    "make": ("Makefile", "all:\n", {}),
    "env bash -c ./run.sh": ("run.sh", "echo", {}),
}
CELLS: dict[str, tuple[str, str, dict[str, str]]] = {
    "import mod": ("mod.py", "1", {}),
    "exec(open('mod.py').read())": ("mod.py", "1", {}),
    "import runpy; runpy.run_path('s.py')": ("s.py", "1", {}),
    "%run s.py": ("s.py", "1", {}),
    "import subprocess; subprocess.run(['bash', 'run.sh'])": ("run.sh", "echo", {}),
    "import pkg.sub": ("pkg/other.py", "1", {"pkg/sub.py": "from . import other"}),
}


@pytest.mark.sample(10)
@pytest.mark.parametrize(
    ("tool", "source"), [*(("sandbox_bash", one) for one in LOADED), *(("python", one) for one in CELLS)]
)
async def test_a_grant_ends_when_code_that_is_loaded_is_another(
    open_session: OpenSession, tool: str, source: str
) -> None:
    session, approver, workspace = await ready(open_session)
    script, content, others = (LOADED | CELLS)[source]
    for name, text in {"a.txt": "a", "x.json": "{}", script: content, **others}.items():
        (workspace / name).parent.mkdir(exist_ok=True)
        (workspace / name).write_text(text)
    call = {"command" if tool == "sandbox_bash" else "code": source}
    await session.call(tool, call, origin="model")
    assert "call" in approver.requests[0].preview["remember"]
    await session.call(tool, call, origin="model")
    assert len(approver.requests) == 1, "the control: the grant covers the same content"
    (workspace / script).write_text(content + "\n")
    await session.call(tool, call, origin="model")
    assert len(approver.requests) == 2
    if tool == "sandbox_bash":
        (workspace / script).write_text(content + "\n\n\n")
        session.approver = changing = ChangesIt(workspace / script, content + "\n\n")
        await session.call(tool, call, origin="model")
        assert f"{script} has changed since it was shown" in changing.requests[1].reasons


async def test_a_module_that_comes_to_stand_before_another_ends_a_grant(open_session: OpenSession) -> None:
    session, approver, workspace = await ready(open_session)
    (workspace / "s.py").write_text("import json\n")
    for tool, call in (("sandbox_bash", {"command": "python3 s.py"}), ("python", {"code": "import json"})):
        (workspace / "json.py").unlink(missing_ok=True)
        approver.requests.clear()
        await session.call(tool, call, origin="model")
        await session.call(tool, call, origin="model")
        assert len(approver.requests) == 1
        (workspace / "json.py").write_text("")
        await session.call(tool, call, origin="model")
        assert len(approver.requests) == 2


async def test_results_that_code_names_do_not_end_a_grant(open_session: OpenSession) -> None:
    session, approver, workspace = await ready(open_session)
    for number in range(3):
        (workspace / "out.csv").write_text(str(number))
        await session.call("python", {"code": "df.to_csv('out.csv')"}, origin="model")
    assert len(approver.requests) == 1


async def test_code_that_appears_while_a_person_thinks_is_asked_about_again(
    open_session: OpenSession,
) -> None:
    session, _, workspace = await ready(open_session)
    session.approver = changing = ChangesIt(workspace / "p.awk", "{print 1}")
    await bash(session, "awk -f p.awk a.txt")
    assert "p.awk is there now, and would be run" in changing.requests[1].reasons


LOSSES: dict[str, tuple[str, dict[str, Any], bool]] = {
    "rm": ("sandbox_bash", {"command": "rm out/y"}, True),
    "rm -r": ("sandbox_bash", {"command": "rm -r out"}, True),
    "find": ("sandbox_bash", {"command": "find out -name y -delete"}, True),
    "mv": ("sandbox_bash", {"command": "mv out/y zz"}, False),
    "mv over": ("sandbox_bash", {"command": "mv a.txt out/y"}, False),
    "cp over": ("sandbox_bash", {"command": "cp a.txt out/y"}, False),
    ">": ("sandbox_bash", {"command": "echo hi > out/y"}, False),
    "sed -i": ("sandbox_bash", {"command": "sed -i s/y/z/ out/y"}, False),
    "delete": ("file", {"operation": "delete", "path": "out/y"}, True),
    "delete -r": ("file", {"operation": "delete", "path": "out", "recursive": True}, True),
    "move": ("file", {"operation": "move", "path": "out/y", "destination": "zz"}, False),
    "copy over": ("file", {"operation": "copy", "path": "a.txt", "destination": "out/y"}, False),
    "append": ("file", {"operation": "append", "path": "out/y", "content": "n"}, False),
}


@pytest.mark.parametrize("name", LOSSES)
async def test_losses_are_compared_before_the_call(open_session: OpenSession, name: str) -> None:
    tool, arguments, destroys = LOSSES[name]
    session, approver, workspace = await ready(open_session)
    for path in ("out/y", "a.txt"):
        (workspace / path).parent.mkdir(exist_ok=True)
        (workspace / path).write_text(path)
    one = session.explain(ToolCall("one", tool, arguments, origin="model"))
    assert session.explain(ToolCall("two", tool, arguments, origin="model")).digest == one.digest
    await session.call(tool, arguments, origin="model")
    assert len(approver.requests) == 1
    (workspace / "out").mkdir(exist_ok=True)
    (workspace / "out/y").write_text("precious")
    await session.call(tool, arguments, origin="model")
    assert len(approver.requests) == 1 + destroys, "the control: other changes are covered"
    (workspace / "out").mkdir(exist_ok=True)
    (workspace / "a.txt").write_text("a.txt")
    (workspace / "out/y").write_text("precious")
    session.grants.clear()
    session.approver = changing = ChangesIt(workspace / "out/y", "more precious")
    await session.call(tool, arguments, origin="model")
    word = "has changed since it was shown" if name == "append" else "lost"  # an append loses nothing
    lost = [reason for request in changing.requests[1:] for reason in request.reasons if word in reason]
    assert len(changing.requests) == 2
    assert lost[0].startswith("out")


async def test_calls_of_one_question_expect_what_those_before_change(real_session: OpenSession) -> None:
    session, approver, workspace = await ready(real_session)
    (workspace / "out").mkdir()
    commands = ("echo 1 > out/x", "echo 2 > out/x", "rm -r out")
    calls = [
        ToolCall(str(number), "sandbox_bash", {"command": command}, origin="model")
        for number, command in enumerate(commands)
    ]
    assert not any(result.is_error for result in await session.call_many(calls))
    assert len(approver.requests) == 3


LESSKEY = "#env\nLESSOPEN = |/bin/sh x.sh %s\n"
SETTINGS = (
    (".lesskey", LESSKEY, "less data/a.txt > out/o.txt"),
    (".sqliterc", ".shell sh x.sh\n", "sqlite3 d.db .tables > out/o.txt"),
    (".config/pip/pip.conf", "[global]\npython = x.sh\n", "pip list > out/o.txt"),
    (".local/lib/python3/site-packages/usercustomize.py", "1", "python3 -m json.tool a.json > out/o.txt"),
    (".local/lib/python3/site-packages/a.pth", "import os", "less data/a.txt > out/o.txt"),
    (".unheard-of", "run x.sh\n", "less data/a.txt > out/o.txt"),
)


async def with_home(
    real_session: OpenSession, remember: Remember | None = None, on_ask: Callable[[], object] = tuple
) -> tuple[Session, Path, Path, list[str]]:
    """Return a session, its workspace, its home folder as the host sees it, and what it is asked about."""
    asked: list[str] = []

    async def approve(request: ApprovalRequest) -> Approval:
        asked.append(str(request.call.arguments.get("command", "")))
        on_ask()
        offered = request.preview["remember"]
        return Approval("approve", remember=remember if remember in offered else None)

    class Approves:
        ask = staticmethod(approve)

    session = real_session(approver=Approves(), policy=Policy(mode="safe"))
    await session.start()
    assert session.workspace is not None
    for name, text in {"data/a.txt": "1", "x.sh": "echo 1", "a.json": "{}", "out/o.txt": ""}.items():
        put(session.workspace, name, text)
    (session.workspace / "out/o.txt").chmod(0o644)  # what can be executed counts as code
    sandbox: object = session.sandbox
    assert isinstance(sandbox, SupportsHome)
    assert not (await bash(session, "true")).is_error  # the worker has started
    return session, session.workspace, Path(sandbox.home), asked


def put_setting(home: Path, name: str, text: str) -> None:
    (home / name).parent.mkdir(parents=True, exist_ok=True)
    (home / name).write_text(text)


@pytest.mark.sample(6)
@pytest.mark.parametrize(("name", "text", "command"), SETTINGS)
@pytest.mark.parametrize("remember", ["call", "shape", "tool"])
async def test_a_setting_in_the_home_folder_ends_an_approval(
    real_session: OpenSession, remember: Remember, name: str, text: str, command: str
) -> None:
    session, _, home, asked = await with_home(real_session, remember)
    await bash(session, command)
    await bash(session, command)
    before = len(asked)
    assert before == 1 or command.startswith("python3")  # the control: it is remembered
    put_setting(home, name, text)
    await bash(session, command)
    assert len(asked) > before


async def test_a_setting_in_the_home_folder_ends_an_approval_of_code(real_session: OpenSession) -> None:
    session, _, home, asked = await with_home(real_session, "call")
    code = {"code": "import subprocess; subprocess.run(['sqlite3', 'd.db', '.tables'])"}
    for _ in range(3):
        await session.call("python", code)
    before = len(asked)
    await session.call("python", code)
    assert len(asked) == before  # the control: it is remembered
    put_setting(home, ".sqliterc", ".shell sh x.sh\n")
    await session.call("python", code)
    assert len(asked) == before + 1


async def test_code_that_a_setting_names_ends_an_approval(real_session: OpenSession) -> None:
    session, workspace, home, asked = await with_home(real_session, "shape")
    command = "less data/a.txt > out/o.txt"
    put_setting(home, ".lesskey", LESSKEY.replace("x.sh", "x.txt"))
    put(workspace, "x.txt", "echo 1")
    await bash(session, command)
    await bash(session, command)
    assert asked == [command]
    put(workspace, "x.txt", "echo 2")
    await bash(session, command)
    assert asked == [command] * 2


@pytest.mark.parametrize("place", ["", "{}/", "~/y; sh "])
@pytest.mark.parametrize("changed", ["setting", "script"])
async def test_settings_are_compared_between_card_and_run(
    real_session: OpenSession, changed: str, place: str
) -> None:
    def change() -> None:
        if changed == "setting":
            put_setting(home, ".sqliterc", f".shell sh x.sh {len(asked)}")
        elif len(asked) == 1:
            put(workspace, "x.sh", "echo 2")

    asked: list[str] = []
    session, workspace, home, asked = await with_home(real_session, on_ask=change)
    put_setting(home, ".sqliterc", f".shell sh {place.format(workspace)}x.sh")
    await bash(session, "less data/a.txt > out/o.txt")
    assert len(asked) > 1


@pytest.mark.parametrize("kind", ["fifo", "link", "link to a folder", "elsewhere", "many", "no folder"])
async def test_settings_that_cannot_be_compared_are_not_remembered(
    real_session: OpenSession, kind: str
) -> None:
    session, workspace, home, asked = await with_home(real_session, "call")
    if kind == "fifo":
        os.mkfifo(home / ".unheard-of")  # of no program here, which would wait for it
    elif kind == "link":
        (home / ".lesskey").symlink_to(workspace / "x.sh")
    elif kind == "link to a folder":
        (home / ".config").symlink_to(workspace / "data")
    elif kind == "elsewhere":
        put_setting(home, ".lesskey", "LESSOPEN = |sh $HOME/x.sh")
    elif kind == "many":
        for number in range(MAX_STAMPED + 2):
            put_setting(home, f".config/{number}", "")
    else:
        (home / ".config").symlink_to("/dev/shm")
    call = ToolCall("one", "sandbox_bash", {"command": "less data/a.txt > out/o.txt"}, origin="model")
    prepared = session.explain(call)
    assert not remember_scopes(prepared)
    assert any("cannot be remembered" in reason for reason in prepared.evaluation.reasons)
    await bash(session, "less data/a.txt > out/o.txt")
    await bash(session, "less data/a.txt > out/o.txt")
    assert len(asked) == 2


async def test_records_of_programs_and_plain_commands_keep_an_approval(real_session: OpenSession) -> None:
    """The control: a history is not a setting, and `echo` obeys none."""
    session, _, home, asked = await with_home(real_session, "shape")
    for command in ("less data/a.txt > out/o.txt", "echo 1 > out/e.txt"):
        await bash(session, command)
    put_setting(home, ".lesshst", "1")
    put_setting(home, ".cache/matplotlib/fonts.json", "1")
    before = len(asked)
    await bash(session, "less data/a.txt > out/o.txt")
    put_setting(home, ".lesskey", LESSKEY)
    await bash(session, "echo 1 > out/e.txt")
    assert len(asked) == before


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("echo x >> out/a.txt", "echo y > out/b.txt"),
        ("truncate -s +1 out/a.txt", "truncate -s 0 out/b.txt"),
    ],
)
async def test_an_approval_for_appending_says_that_it_covers_replacing(
    open_session: OpenSession, first: str, second: str
) -> None:
    session, _, workspace = await ready(open_session)
    for name in ("out/a.txt", "out/b.txt"):
        put(workspace, name, "1")
    shown, other = (
        session.explain(ToolCall("one", "sandbox_bash", {"command": command}, origin="model"))
        for command in (first, second)
    )
    assert "replacing only what is in out" in remember_scopes(shown)["shape"]
    grant = session.grants.add("shape", shown)
    assert grant is not None
    assert grant.covers(other)


@pytest.mark.parametrize(
    ("command", "target"),
    [
        ("chmod 644 out/{}.txt", "out/b.txt"),
        ("touch -c out/{}.txt", "out/b.txt"),
        ("truncate -s +0 out/{}.txt", "out/b.txt"),
        ("true >> out/{}.txt", "out/b.txt"),
        ("sed -i s/zzz/y/ out/{}.txt", "out/b.txt"),
        ("ln out/{0}.txt out/{0}2", "out/b2"),
        ("mv out/{0}.txt out/m; mv out/m out/{0}.txt", "out/b.txt"),
        ("mv data/{0}.txt out/{0}2", "out/b2"),
    ],
)
async def test_a_file_that_a_covered_call_keeps_stays_a_persons(
    real_session: OpenSession, command: str, target: str
) -> None:
    """Two approvals together: one for what keeps a file, and one that replaces only what such calls made."""
    session, _, _, asked = await with_home(real_session, "shape")
    workspace = session.workspace
    assert workspace is not None
    for name in ("out/a.txt", "out/b.txt", "data/a.txt", "data/b.txt"):
        put(workspace, name, "precious")
    await bash(session, command.format("a"))
    await bash(session, "echo x > out/new")
    before = len(asked)
    await bash(session, "echo y > out/new")
    assert len(asked) == before, "its own may be replaced"
    await bash(session, command.format("b"))
    before = len(asked)
    await bash(session, f"echo x > {target}")
    assert len(asked) == before + 1
