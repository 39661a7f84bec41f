"""What is put back before a call, each in a process of its own: pytest's must keep its own state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from aisotools.sandbox.worker import process_state
from tests.sandbox.worker.interpreter import run_alone

HEAD = f"""
import json, os, signal, sys, threading
from {process_state.__name__} import ProcessState

def report(value):
    print(json.dumps(value), flush=True)
"""


def run(code: str, folder: Path) -> Any:
    return run_alone(HEAD + code, folder)


def test_blocked_signals_and_an_ignored_sigchld_are_put_back_and_handlers_stay(tmp_path: Path) -> None:
    code = """
state = ProcessState()
handler = lambda *_: None
signal.signal(signal.SIGUSR1, handler)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
signal.pthread_sigmask = None
state.put_back()
report([
    signal.getsignal(signal.SIGUSR1) is handler,
    signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL,
    'SigBlk:\\t0000000000000000' in open('/proc/self/status').read(),
])
"""
    assert run(code, tmp_path) == [True, True, True]


MASKS = {0o077: 0o077, 0o022: 0o022, 0o700: 0o027, 0o777: 0o027, 0o100: 0o027}
"""What user code sets, and what is there afterwards if it was 0o027 at first."""


@pytest.mark.parametrize("mask", MASKS, ids=oct)
def test_a_umask_stays_unless_it_takes_rights_from_the_owner(tmp_path: Path, mask: int) -> None:
    code = f"""
os.umask(0o027)
state = ProcessState()
os.umask({mask})
state.put_back()
report(os.umask(0))
"""
    assert run(code, tmp_path) == MASKS[mask]


def test_an_ignored_interrupt_is_taken_again(tmp_path: Path) -> None:
    code = """
state, taken = ProcessState(), []
signal.signal(signal.SIGINT, signal.SIG_IGN)
state.take_interrupts(lambda *_: taken.append('taken'))
os.kill(os.getpid(), signal.SIGINT)
report(taken)
"""
    assert run(code, tmp_path) == ["taken"]


def test_tracing_and_profiling_end(tmp_path: Path) -> None:
    code = """
state = ProcessState()
sys.settrace(lambda *_: None)
sys.setprofile(lambda *_: None)
threading.settrace(lambda *_: None)
threading.setprofile(lambda *_: None)
state.put_back()
report([sys.gettrace(), sys.getprofile(), threading.gettrace(), threading.getprofile()])
"""
    assert run(code, tmp_path) == [None] * 4


def test_a_current_folder_that_was_made_anew_is_entered_again(tmp_path: Path) -> None:
    code = """
os.mkdir('d')
os.chdir('d')
state = ProcessState()
os.rmdir('../d')
state.put_back()
try:
    found = [os.getcwd()]
except FileNotFoundError:
    found = ['it is gone']
os.mkdir(PLACE)
state.put_back()
report([*found, os.getcwd()])
""".replace("PLACE", repr(str(tmp_path / "d")))
    assert run(code, tmp_path) == ["it is gone", str(tmp_path / "d")]


def test_the_current_folder_is_the_one_of_the_last_call(tmp_path: Path) -> None:
    code = f"""
state = ProcessState()
os.mkdir('d')
os.chdir('d')
state.put_back()
os.rmdir('../d')
os.mkdir({str(tmp_path / "d")!r})
state.put_back()
report(os.getcwd())
"""
    assert run(code, tmp_path) == str(tmp_path / "d")
