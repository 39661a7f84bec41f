"""What keeps every cell from running: the worker says so, and the session goes on from before it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from aisotools.core.exceptions import WorkerBroken
from aisotools.core.types import ToolResult
from aisotools.policy.approvers import AllowAll
from aisotools.policy.rules import Policy
from aisotools.sandbox.worker.output import InputChannel
from aisotools.sandbox.worker.self_check import CHECK_ID, make_check_record, run_in_fork
from aisotools.session.session import Session
from tests.conftest import OpenSession
from tests.waiting import HANG_S

MODULES = [
    "IPython.core.compilerop",
    "IPython.core.displayhook",
    "IPython.core.interactiveshell",
    "aisotools.builtin.python",
    "aisotools.core.types",
    "aisotools.sandbox.frames",
    "aisotools.sandbox.results",
    "aisotools.sandbox.worker.ipython",
    "aisotools.sandbox.worker.output",
    "aisotools.sandbox.worker.worker",
    "aisotools.tools.function",
    "aisotools.tools.schema",
    "ast",
    "asyncio.tasks",
    "codeop",
    "contextlib",
    "linecache",
    "tokenize",
    "traceback",
]
"""What a worker uses at each call."""

SHELL = [
    "builtin_trap",
    "compile",
    "display_formatter",
    "events",
    "recorder",
    "run_ast_nodes",
    "run_cell_async",
    "transform_cell",
]
"""What it uses of IPython's shell."""

NOTHING_LEFT = "for name in list(vars(m)):\n  if not name.startswith('__'): setattr(m, name, None)"
RAISING = """
def bad(*_, **__): raise ValueError('sabotage')
for name in list(vars(m)):
  if not name.startswith('__') and callable(getattr(m, name)): setattr(m, name, bad)
"""
WORKER = "import gc\nfor o in gc.get_objects():\n  if type(o).__name__ == 'Worker': "
OTHERS = {
    "sys.stdout": "import sys; sys.stdout = None",
    "compile": "import builtins; builtins.compile = None",
    "import": "import builtins; builtins.__import__ = None",
    "its tools": f"{WORKER} o._tools = None",
    "its calls": f"{WORKER} type(o)._run = None",
    "its answer": f"{WORKER} type(o)._answer = None",
}
VARIANTS = {
    "sys.modules[...] = None": "import sys; sys.modules['aisotools.sandbox.worker.ipython'] = None",
    **{f"{m}: None": f"import {m} as m\n{NOTHING_LEFT}" for m in MODULES},
    **{f"{m}: raises": f"import {m} as m\n{RAISING}" for m in MODULES[::2]},
    **{f"shell.{name}": f"get_ipython().__dict__[{name!r}] = None" for name in SHELL},
    **OTHERS,
}


SABOTAGE = "get_ipython().compile = None"


async def python(session: Session, code: str) -> ToolResult:
    return await session.call("python", {"code": code}, origin="person", timeout_s=HANG_S)


@pytest.fixture(params=[None, pytest.param("confined", marks=pytest.mark.slow)], ids=["best", "confined"])
def session(real_session: OpenSession, request: pytest.FixtureRequest) -> Session:
    """At the best level of this machine, and at `confined`, where processes and files are others."""
    level: str | None = request.param
    return real_session(policy=Policy(mode="auto"), approver=AllowAll(), level=level)


@pytest.mark.parametrize("code", [SABOTAGE, "import IPython.core.interactiveshell as m; m.ast = None"])
def test_control_a_plain_shell_runs_no_cell_any_more(code: str) -> None:
    program = (
        "from IPython.core.interactiveshell import InteractiveShell\n"
        "shell = InteractiveShell.instance()\n"
        f"assert shell.run_cell({code!r}).success\n"
        "try: ran = shell.run_cell('7').success\n"
        "except Exception: ran = False\n"
        "print('ran', ran)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "ran False" in done.stdout


@pytest.mark.sample(12)
@pytest.mark.parametrize("code", VARIANTS.values(), ids=VARIANTS)
async def test_second_call_after_sabotage_works(session: Session, code: str) -> None:
    await python(session, "v = 41")
    culprit = await python(session, code)
    first = await python(session, "print(7)\n8")
    second = await python(session, "print(v)\n9")
    assert (second.is_error, second.content) == (False, "41\n9")
    for result in (culprit, first):
        if result.is_error:
            assert result.error_kind == "environment"
            assert "variables were restored to what they were before" in result.content


async def test_a_broken_worker_is_said_in_one_line_and_leaves_nothing_to_undo(session: Session) -> None:
    await python(session, "v = 41")
    await python(session, f"v = 42; {SABOTAGE}")
    failed = await python(session, "v = 43")
    assert failed.metadata["worker_broken"] is True
    assert "\n" not in failed.content
    assert "keeps calls from running" in failed.content
    assert "later changes are lost" in failed.content
    assert "Make the call again" in failed.content
    assert (await python(session, "v")).content == "41"
    undone = await session.undo(4)
    assert "Undid 4 calls" in undone.content, "the failed one is a call like any other"
    assert "NameError" in (await python(session, "v")).content


async def test_sabotage_again_and_again_is_survived(session: Session) -> None:
    for _ in range(4):
        await python(session, SABOTAGE)
        await python(session, "1")
    assert (await python(session, "7")).content == "7"


async def test_a_cell_that_fails_costs_nothing(session: Session) -> None:
    """The check that follows it is not seen: not in the history, and not by callbacks."""
    before = await python(session, "import os; seen = []; os.getpid()")
    await python(
        session, "get_ipython().events.register('post_run_cell', lambda *_: seen.append(1)); seen.clear()"
    )
    await python(session, "5")
    assert (await python(session, "1/0")).error_kind == "failed"
    count = "get_ipython().execution_count"
    state = await python(session, f"(_, sorted(Out)[-1], {count}, len(seen), len(In), os.getpid())")
    assert state.content == f"(5, 3, 6, 3, 6, {before.content})"


@pytest.mark.parametrize("code", ["x = (", "'", "1/0", "%no_such_magic", "raise SystemExit", "5;\n)"])
async def test_a_cell_that_is_wrong_keeps_the_worker(session: Session, code: str) -> None:
    await python(session, "v = 1;")
    assert (await python(session, code)).error_kind == "failed"
    assert (await python(session, "v")).content == "1"


async def test_a_formatter_that_raises_is_the_users_own(session: Session) -> None:
    await python(
        session,
        "v = 1\ndef bad(*_): raise ValueError\n"
        "get_ipython().display_formatter.formatters['text/plain'].for_type(int, bad)",
    )
    await python(session, "v")
    await python(session, "1/0")
    assert (await python(session, "print(v)")).content == "1"


def test_record_of_a_check_reaches_nobody() -> None:
    record = make_check_record(InputChannel(lambda *_: None, -1, lambda: None))
    assert record.call_id == CHECK_ID
    assert record.listener is not None
    record.listener.show("error", {"text/plain": "x"})
    assert not record.listener.options.store_history


def test_check_in_a_fork_raises_what_it_finds() -> None:
    async def broken() -> None:
        raise WorkerBroken("why")

    async def sound() -> None:
        return

    with pytest.raises(WorkerBroken, match="why"):
        run_in_fork(broken)
    run_in_fork(sound)
