"""The sandbox_bash tool in a real worker."""

from __future__ import annotations

import asyncio
import itertools
import os
import shlex
from pathlib import Path
from typing import Any

import pytest

from aisotools.builtin import shell
from aisotools.builtin.shell import sandbox_bash
from aisotools.core.types import Effect, ToolResult
from aisotools.policy.approvers import AllowAll
from aisotools.session.session import Session
from aisotools.workspace.path_facts import PathResolver
from tests.conftest import OpenSession
from tests.waiting import eventually


@pytest.fixture
def session(real_session: OpenSession) -> Session:
    return real_session(approver=AllowAll())


async def bash(session: Session, command: str, **options: Any) -> ToolResult:
    return await session.call("sandbox_bash", {"command": command, **options})


_marks = itertools.count(1)


def new_mark() -> str:
    """Return digits that no other test and no other run of them has."""
    return f"{os.getpid()}{next(_marks):04}{int.from_bytes(os.urandom(3), 'big')}"


def running(mark: str) -> list[int]:
    """The processes whose environment or arguments bear `mark`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if mark.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


async def settled(mark: str, count: int) -> bool:
    """Whether there are so many such processes, now or later."""
    try:
        await eventually(lambda: len(running(mark)) == count)
    except AssertionError:
        return False
    return True


async def gone(mark: str) -> bool:
    return await settled(mark, 0)


# ---- what a command may run


@pytest.mark.parametrize(
    ("command", "script"),
    [
        ("cd mk && make", "mk/Makefile"),
        ("cd mk && make", "mk/inc.mk"),
        ("(cd mk; make -s all)", "mk/inc.mk"),
        ("pushd mk >/dev/null; make", "mk/inc.mk"),
        ("env -C mk make", "mk/inc.mk"),
        ("env --chdir=mk make -s", "mk/inc.mk"),
        ("make -C mk", "mk/inc.mk"),
        ("bash -c 'cd mk && make'", "mk/inc.mk"),
        ("sudo -D mk make", "mk/inc.mk"),
        ("cd mk; cd ../out; make -f ../mk/Makefile", "out/inc.mk"),
        ("cd out && python3 -m pk", "out/pk/__main__.py"),
        ("cd out; python3 s.py", "out/m.py"),
        ("env -C out python3 -m pk", "out/pk/__main__.py"),
        ("cd out && perl s.pl", "out/M.pm"),
        ("cd out && bash s.sh", "out/s.sh"),
    ],
)
def test_scripts_are_looked_up_in_the_folder_in_which_the_program_runs(
    tmp_path: Path, command: str, script: str
) -> None:
    for name, text in (
        ("mk/Makefile", "include inc.mk\n"),
        ("mk/inc.mk", "all:\n"),
        ("out/inc.mk", "all:\n"),
        ("out/pk/__main__.py", ""),
        ("out/s.py", "import m\n"),
        ("out/m.py", ""),
        ("out/s.pl", "use lib '.'; use M;\n"),
        ("out/M.pm", "1;\n"),
        ("out/s.sh", ""),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    resolve = PathResolver(tmp_path).resolve
    before = dict(resolve(sandbox_bash.gather_facts({"command": command})).scripts)
    (tmp_path / script).write_text("# changed\n")
    after = dict(resolve(sandbox_bash.gather_facts({"command": command})).scripts)
    assert before[script] != after[script]


# ---- what a command gives


@pytest.mark.sample(10)
@pytest.mark.parametrize(
    ("command", "stdout", "stderr", "code"),
    [
        ("echo hi", "hi\n", "", 0),
        ("echo out; echo err >&2; exit 3", "out\n", "err\n", 3),
        ("printf 'no newline'", "no newline", "", 0),
        ("true", "", "", 0),
        ("   ", "", "", 0),
        ("false", "", "", 1),
        ("nosuchcommand", "", "/bin/bash: line 1: nosuchcommand: command not found\n", 127),
        ("kill -KILL $$", "", "", 137),
        ("kill -SEGV $$", "", "", 139),
        ("cat", "", "", 0),
        ('read line; echo "got $line"', "got \n", "", 0),
        ("echo \"$(echo 'q\"q')\" $'\\t' '$HOME' \\$HOME", 'q"q \t $HOME $HOME\n', "", 0),
        ("cat <<'EOF'\n$HOME `x` $(y)\nEOF", "$HOME `x` $(y)\n", "", 0),
        ("echo \u00fc\u00f1 \u2713; echo a | tr a '\\000'", "\u00fc\u00f1 \u2713\n\x00\n", "", 0),
        ("printf 'a\\xffb\\xe2\\x82'", "a\ufffdb\ufffd", "", 0),
        ("printf 'a\\r\\nb'", "a\r\nb", "", 0),
        ("seq 3 | tac | head -n1", "3\n", "", 0),
        ("x=1; cd /; echo $x", "1\n", "", 0),
        ("exec >&- 2>&-; exit 5", "", "", 5),
    ],
)
async def test_streams_and_exit_code(
    session: Session, command: str, stdout: str, stderr: str, code: int
) -> None:
    result = await bash(session, command)
    took_ms = result.value.pop("executionTime")
    assert result.value == {"stdout": stdout, "stderr": stderr, "exitCode": code}
    assert isinstance(took_ms, int)
    assert took_ms >= 0
    assert result.is_error is (code != 0)
    assert result.error_kind == ("failed" if code else None)
    assert result.recoverable is (code != 0)
    assert result.kind == ("error" if code else "json")
    assert (f"[exit code {code}]" in result.content) is (code != 0)


async def test_each_command_is_a_shell_of_its_own(session: Session) -> None:
    await bash(session, "x=1; export y=2; cd /")
    result = await bash(session, 'echo "$x$y"; pwd')
    assert result.value["stdout"] == f"\n{session.workspace}\n"


async def test_files_persist(session: Session) -> None:
    await bash(session, "mkdir d && echo text > d/a.txt")
    assert session.workspace is not None
    assert (session.workspace / "d" / "a.txt").read_text() == "text\n"
    assert (await bash(session, "cat d/a.txt")).value["stdout"] == "text\n"


async def test_ten_megabytes_are_capped_with_a_note(session: Session) -> None:
    result = await bash(session, "head -c 10000000 /dev/zero | tr '\\0' x; echo end >&2")
    cap = session.limits.stream_bytes
    assert cap - 100 < len(result.value["stdout"]) + len(result.value["stderr"]) <= cap + 100
    assert f"[{10_000_004 - cap:,} bytes of output left out here]" in result.value["stdout"]
    assert result.value["stderr"] == "end\n"
    assert len(result.content) <= 10_000
    note = f"[of 10000004 bytes and 1 lines of output {10_000_004 - cap} bytes were dropped; "
    assert note in result.content
    assert not result.is_error


async def test_output_is_reported_while_the_call_runs(session: Session) -> None:
    outputs: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
    session.subscribe(
        lambda event: outputs.put_nowait((getattr(event, "stream", ""), getattr(event, "text", ""))),
    )
    running = asyncio.ensure_future(bash(session, "echo first; echo other >&2; sleep 1000"))
    seen: set[tuple[str, str]] = set()
    while not {("stdout", "first\n"), ("stderr", "other\n")} <= seen:
        seen.add(await outputs.get())
        assert not running.done()
    await session.interrupt()
    assert (await running).metadata["stopped"] is True


# ---- stopping


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "command",
    [
        "sleep 1000.{mark}",
        "sleep 1000.{mark} & sleep 1000.{mark}",
        "setsid sleep 1000.{mark} & sleep 1000.{mark}",
        "(setsid bash -c 'sleep 1000.{mark} & disown' &); sleep 1000.{mark}",
        "bash -c '(bash -c \"sleep 1000.{mark} &\" &)'; sleep 1000.{mark}",
        "trap '' TERM INT HUP; sleep 1000.{mark}",
        "nohup setsid sleep 1000.{mark} >/dev/null 2>&1 </dev/null & sleep 1000.{mark}",
        "env -i setsid sleep 1000.{mark} & sleep 1000.{mark}",
        "while true; do :; done",
    ],
    ids=[
        "child",
        "children",
        "setsid",
        "setsid of a fork",
        "double fork",
        "traps",
        "nohup",
        "env -i",
        "busy",
    ],
)
async def test_the_timeout_ends_the_command_and_all_it_started(session: Session, command: str) -> None:
    mark = new_mark()
    await session.start()
    result = await bash(session, f"echo begun; {command.format(mark=mark)}", timeout=200)
    assert result.is_error
    assert (result.error_kind, result.recoverable) == ("failed", True)
    assert result.metadata["timed_out"] is True
    assert result.value["stdout"] == "begun\n"
    assert result.value["exitCode"] == 124
    assert result.value["executionTime"] >= 200
    assert "[timed out after 200 ms; the command and all it started was stopped]" in result.content
    assert await gone(mark), running(mark)
    following = await bash(session, "echo next")
    assert following.value["stdout"] == "next\n", following
    assert session.status().generation == 1


async def test_a_process_that_holds_the_pipe_does_not_hold_the_call(session: Session) -> None:
    mark = new_mark()
    await session.start()
    result = await bash(session, f"sleep 1000.{mark} & echo started")
    assert (result.is_error, result.value["stdout"]) == (False, "started\n")
    assert running(mark), "it goes on until the session ends"
    await session.close()
    assert await gone(mark)


async def test_an_interrupt_ends_the_command(session: Session) -> None:
    mark = new_mark()
    calling = asyncio.ensure_future(bash(session, f"setsid sleep 1000.{mark} & sleep 1000.{mark}"))
    assert await settled(mark, 3), "the shell, and two that sleep"
    await session.interrupt()
    assert (await calling).metadata["stopped"] is True
    assert await gone(mark), running(mark)


async def test_cancelling_the_caller_ends_the_command(session: Session) -> None:
    mark = new_mark()
    calling = asyncio.ensure_future(bash(session, f"sleep 1000.{mark}"))
    assert await settled(mark, 1)
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert await gone(mark)


async def test_commands_overlap(session: Session) -> None:
    all_here = "[ -e here0 -a -e here1 -a -e here2 -a -e here3 ]"
    meet = f"touch here{{n}}; until {all_here}; do sleep 0.01; done; echo met"
    results = await asyncio.gather(*(bash(session, meet.format(n=n)) for n in range(4)))
    assert [result.value["stdout"] for result in results] == ["met\n"] * 4


# ---- where


async def test_workdir(session: Session) -> None:
    await bash(session, "mkdir -p 'a b/c'; ln -s 'a b' link; touch file")
    root = session.workspace
    for workdir, expected in [
        (".", root),
        ("a b/c", f"{root}/a b/c"),
        ("a b/../a b", f"{root}/a b"),
        (str(root), root),
        ("link/c", f"{root}/a b/c"),
    ]:
        assert (await bash(session, "pwd", workdir=workdir)).value["stdout"] == f"{expected}\n", workdir


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("workdir", "message"),
    [
        ("..", "The path '..' leads outside the workspace."),
        ("{outside}", "The path '{outside}' leads outside the workspace."),
        ("out", "leads outside the workspace"),
        ("nope", "There is no 'nope' in the workspace."),
        ("file", "workdir 'file' is not a folder. Use a folder of the workspace, or leave it out."),
        ("~", "There is no '~' in the workspace."),
        ("", "empty"),
        ("a\0b", "NUL"),
    ],
)
async def test_wrong_workdir_is_reported_and_nothing_runs(
    session: Session, workdir: str, message: str
) -> None:
    assert session.workspace is not None
    outside = session.workspace.parent / "outside"
    outside.mkdir()
    workdir, message = (text.format(outside=outside) for text in (workdir, message))
    await bash(session, f"touch file; ln -s {shlex.quote(str(outside))} out")
    result = await bash(session, "touch ran", workdir=workdir)
    assert (result.is_error, result.error_kind) == (True, "invalid")
    assert message.lower() in result.content.lower()
    assert "Traceback" not in result.content
    assert not (session.workspace / "ran").exists()
    assert not list(outside.iterdir())


# ---- what cannot be run


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("echo a\0b", "command contains a NUL character"),
        ("echo " + "x" * 200_000, "command is too long for bash (200,005 bytes). Write it to a file"),
        ("", "command: string should have at least 1 character"),
    ],
    ids=["NUL", "long", "empty"],
)
async def test_invalid_command_is_reported(session: Session, command: str, message: str) -> None:
    result = await bash(session, command)
    assert message in result.content
    assert (result.is_error, result.recoverable, result.error_kind) == (True, True, "invalid")


async def test_the_advice_about_a_nul_character_prints_one(session: Session) -> None:
    refused = await bash(session, "printf 'a\0b'")
    advice = refused.content.partition("format: ")[2].removesuffix(".")
    assert advice.startswith("printf ")
    assert (await bash(session, f"{advice} | od -An -tx1")).content.split()[:3] == ["61", "00", "62"]
    # A control: the form for text of bash loses what follows the character.
    assert (await bash(session, "printf $'a\\0b' | od -An -tx1")).content.split() == ["61"]


@pytest.mark.parametrize("wrong", [0, -1, 3_600_001, "soon", None])
async def test_wrong_timeout_is_reported(session: Session, wrong: object) -> None:
    result = await bash(session, "true", timeout=wrong)
    assert "timeout: input should be" in result.content


async def test_the_environment_is_clean(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    await session.restart()
    result = await bash(session, "env; echo; cat /proc/self/environ | tr '\\0' '\\n'")
    assert "sk-secret" not in result.value["stdout"]
    assert f"WORKSPACE={session.workspace}" in result.value["stdout"]


async def test_git_is_told_to_note_nothing_whatever_earlier_calls_have_set(session: Session) -> None:
    code = "import os; os.environ['GIT_OPTIONAL_LOCKS'] = '1'"
    assert not (await session.call("python", {"code": code})).is_error
    result = await bash(session, "echo $GIT_OPTIONAL_LOCKS")
    assert result.value["stdout"] == "0\n"


@pytest.mark.sample(8)
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PATH", "/workspace/b:/usr/bin:/bin"),
        ("LD_PRELOAD", "/workspace/evil.so"),
        ("LESSOPEN", "|sh evil.sh %s"),
        ("HOME", "/workspace/home"),
        ("PYTHONPATH", "/workspace/evil"),
        ("NODE_OPTIONS", "--require /workspace/evil.js"),
        ("PERL5OPT", "-MEvil"),
        ("GIT_EXTERNAL_DIFF", "sh evil.sh"),
        ("TAR_OPTIONS", "--use-compress-program=evil"),
        ("target", "out/other.txt"),  # which `rm $target` names
        ("OMP_NUM_THREADS", "2; touch evil"),
        ("OMP_NUM_THREADS", "EVIL"),
        ("MKL_NUM_THREADS", "two"),
        ("CUDA_VISIBLE_DEVICES", "EVIL"),
        ("CUDA_VISIBLE_DEVICES", "GPU-zz"),
        ("PYTHONHASHSEED", "evil"),
        ("TOKENIZERS_PARALLELISM", "evil"),
        ("NO_COLOR", "evil.sh"),
        ("COLUMNS", "80\n"),
        ("OMP_TOOL_LIBRARIES", "7"),
    ],
)
async def test_commands_are_not_changed_by_what_python_sets(session: Session, name: str, value: str) -> None:
    before = (await bash(session, f"printenv {name}; true")).value["stdout"]
    code = f"import os; os.environ[{name!r}] = {value!r}"
    assert not (await session.call("python", {"code": code})).is_error
    assert (await bash(session, f"printenv {name}; true")).value["stdout"] == before


async def test_threads_of_commands_may_be_limited_in_python(session: Session) -> None:
    chosen = {
        "OMP_NUM_THREADS": "3,2",
        "MKL_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "0,-1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONHASHSEED": "random",
        "COLUMNS": "",
    }
    code = f"import os; os.environ.update({chosen})"
    assert not (await session.call("python", {"code": code})).is_error
    values = " ".join(f'"${name}"' for name in chosen)
    result = await bash(session, f"printf '%s\\n' {values}")
    assert result.value["stdout"] == "".join(f"{value}\n" for value in chosen.values())
    devices = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"
    code = f"os.environ['CUDA_VISIBLE_DEVICES'] = {devices!r}"
    assert not (await session.call("python", {"code": code})).is_error
    assert (await bash(session, "echo $CUDA_VISIBLE_DEVICES")).value["stdout"] == f"{devices}\n"


REPLACING = """
import _posixsubprocess, subprocess
start = _posixsubprocess.fork_exec
def replaced(*arguments):
    changed = [
        [*one, b"BASH_ENV=/proc/self/cwd/startup"]
        if isinstance(one, list) and one and isinstance(one[0], bytes) and b"=" in one[0]
        else one
        for one in arguments
    ]
    return start(*changed)
_posixsubprocess.fork_exec = subprocess._fork_exec = replaced
open("startup", "w").write("echo changed\\n")
"""


async def test_functions_that_python_replaces_change_later_commands_until_a_restart(session: Session) -> None:
    """What README says is not held: the worker's own Python starts the commands."""
    assert (await bash(session, "echo hello")).value["stdout"] == "hello\n"
    assert not (await session.call("python", {"code": REPLACING})).is_error
    assert (await bash(session, "echo hello")).value["stdout"] == "changed\nhello\n"
    await session.restart()
    assert (await bash(session, "echo hello")).value["stdout"] == "hello\n"


# ---- without a worker


@pytest.mark.parametrize(
    ("arguments", "effect"),
    [
        ({"command": "ls"}, Effect.READ_ONLY),
        ({"command": "ls", "background": False}, Effect.READ_ONLY),
        ({"command": "ls", "background": True}, Effect.LOCAL_MUTATION),
        ({"command": 3}, None),
    ],
)
def test_a_command_with_later_input_is_not_read_only(
    arguments: dict[str, Any], effect: Effect | None
) -> None:
    assert sandbox_bash.classify(arguments) is not Effect.READ_ONLY or effect is Effect.READ_ONLY
    assert effect is None or sandbox_bash.classify(arguments) is effect


def test_the_deadline_of_the_gate_lies_behind_the_timeout() -> None:
    deadline = sandbox_bash.timeout_s
    assert callable(deadline)
    assert deadline({"command": "x", "timeout": 2000}) == 2.5
    assert deadline({"command": "x"}) == 30.5
    assert deadline({"command": "x", "timeout": "soon"}) == 30.5


@pytest.mark.parametrize(("status", "code"), [(0, 0), (3, 3), (-9, 137), (None, -1)])
def test_exit_codes_are_those_of_a_shell(status: int | None, code: int) -> None:
    assert shell._exit_code(status) == code


def test_output_split_within_a_character_is_decoded_whole() -> None:
    output = shell._Output(1000)
    encoded = "\u20ac".encode()
    assert output.add("stdout", encoded[:1]) + output.add("stdout", encoded[1:]) == "\u20ac"


def test_results_name_the_exit_code_the_timeout_and_what_was_dropped() -> None:
    output = shell._Output(100)
    output.add("stdout", b"out\n")
    failed = shell._build_result(output, 3, 5, None)
    assert failed.content == "out\n[exit code 3]"
    assert failed.value == {"stdout": "out\n", "stderr": "", "exitCode": 3, "executionTime": 5}
    assert (failed.is_error, failed.recoverable, failed.error_kind) == (True, True, "failed")
    stopped = shell._build_result(output, 124, 5, 1000)
    assert "[timed out after 1000 ms; the command and all it started was stopped]" in stopped.content
    assert not shell._build_result(output, 0, 5, None).is_error
    output.add("stdout", b"x" * 10_000)
    assert (
        "bytes were dropped; write such output to a file]" in shell._build_result(output, 0, 5, None).content
    )


@pytest.mark.parametrize(
    ("used_s", "limit_s", "is_explained"),
    [(1.0, 1, True), (0.95, 1, True), (0.8, 1, False), (0.0, 1, False), (100.0, None, False)],
)
def test_a_kill_is_explained_by_the_processor_time_used(
    used_s: float, limit_s: int | None, is_explained: bool
) -> None:
    killed = ToolResult.error("[exit code 137]")
    explained = shell.explain_kill(killed, used_s, limit_s)
    assert ("CPU time limit exceeded" in explained.content) is is_explained
    assert explained.content.startswith("[exit code 137]")


def test_binary_output_is_left_out_for_the_model() -> None:
    output = shell._Output(1000)
    output.add("stdout", bytes(range(32)) * 4)
    result = shell._build_result(output, 0, 5, None)
    assert result.content.startswith("[binary output, 128 characters")
