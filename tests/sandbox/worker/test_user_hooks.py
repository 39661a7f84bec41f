"""Hooks of user code around forks of ours, each in a process of its own: hooks of forks stay for good."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from aisotools.sandbox.worker import user_hooks
from tests.sandbox.worker.interpreter import run_alone

HEAD = f"""
import gc, json, os, posix, sys, threading
from {user_hooks.__name__} import UserHooks

hooks, ran = UserHooks(), []
hooks.install()

def report(value):
    print(json.dumps(value), flush=True)
    os._exit(0)

def note(name):
    return lambda *_: ran.append(name)

def all_that_ran():
    return ran

def in_fork(act, ours=True):
    # Return what `act` returns in a fork.
    reading, writing = os.pipe()
    if ours:
        hooks.begin_fork()
    pid = os.fork()
    if ours:
        hooks.end_fork(is_child=pid == 0)
    if pid == 0:
        os.write(writing, json.dumps(act()).encode())
        os._exit(0)
    os.close(writing)
    with open(reading) as file:
        found = json.load(file)
    os.waitpid(pid, 0)
    return found

def register(module=os):
    module.register_at_fork(
        before=note('before'), after_in_parent=note('parent'), after_in_child=note('child')
    )
"""


def run(code: str, folder: Path) -> Any:
    return run_alone(HEAD + code, folder)


@pytest.mark.parametrize("module", ["os", "posix"])
def test_a_fork_of_user_code_runs_all_hooks(tmp_path: Path, module: str) -> None:
    code = f"""
register({module})
found = in_fork(all_that_ran, ours=False)
report([found, ran])
"""
    assert run(code, tmp_path) == [["before", "child"], ["before", "parent"]]


def test_a_snapshot_runs_no_hook_for_children(tmp_path: Path) -> None:
    code = """
register()
found = in_fork(all_that_ran)
report([found, ran, hooks.state])
"""
    assert run(code, tmp_path) == [["before"], ["before", "parent"], "running"]


def test_a_fork_of_a_snapshot_runs_no_hook_at_all(tmp_path: Path) -> None:
    code = """
register()
report(in_fork(lambda: [in_fork(all_that_ran), ran, hooks.state]))
"""
    assert run(code, tmp_path) == [["before"], ["before"], "waiting"]


def test_missed_hooks_run_once_when_the_fork_goes_on(tmp_path: Path) -> None:
    code = """
register()
os.register_at_fork(after_in_child=note('second'))

def go_on():
    hooks.release()
    ran.clear()
    hooks.go_on()
    hooks.go_on()
    return ran

report(in_fork(lambda: in_fork(go_on)))
"""
    assert run(code, tmp_path) == ["child", "second"]


def test_missed_hooks_run_once_too_in_a_fork_of_a_released_one(tmp_path: Path) -> None:
    code = """
register()

def go_on():
    hooks.release()
    ran.clear()
    hooks.go_on()
    return ran

def released():
    hooks.release()
    return in_fork(go_on)

report(in_fork(released))
"""
    assert run(code, tmp_path) == ["child"]


def test_user_code_that_forks_in_a_released_fork_goes_on_before(tmp_path: Path) -> None:
    code = """
register()

def fork_again():
    hooks.release()
    ran.clear()
    found = in_fork(all_that_ran, ours=False)
    return [found, ran, hooks.state]

report(in_fork(fork_again))
"""
    assert run(code, tmp_path) == [
        ["child", "before", "child"],
        ["child", "before", "parent"],
        "running",
    ]


def test_a_missed_hook_that_raises_keeps_no_other_from_running(tmp_path: Path) -> None:
    code = """
def fail():
    raise RuntimeError('the hook failed')

os.register_at_fork(after_in_child=fail)
os.register_at_fork(after_in_child=note('second'))

def go_on():
    hooks.release()
    hooks.go_on()
    return [ran, hooks.state]

report(in_fork(go_on))
"""
    assert run(code, tmp_path) == [["second"], "running"]


def test_an_interrupt_leaves_the_other_missed_hooks_for_the_next_time(tmp_path: Path) -> None:
    code = """
def interrupt():
    raise KeyboardInterrupt

os.register_at_fork(after_in_child=interrupt)
os.register_at_fork(after_in_child=note('second'))

def go_on():
    hooks.release()
    try:
        hooks.go_on()
    except KeyboardInterrupt:
        ran.append('interrupt')
    hooks.go_on()
    return [ran, hooks.state, gc.isenabled()]

report(in_fork(go_on))
"""
    assert run(code, tmp_path) == [["interrupt", "second"], "running", True]


def test_a_fork_of_another_thread_of_user_code_runs_its_hooks(tmp_path: Path) -> None:
    code = """
register()
hooks.begin_fork()
found = []
thread = threading.Thread(target=lambda: found.append(in_fork(all_that_ran, ours=False)))
thread.start()
thread.join()
hooks.end_fork(is_child=False)
report(found)
"""
    # The first of them is for the fork of ours that has begun.
    assert run(code, tmp_path) == [["before", "before", "child"]]


@pytest.mark.parametrize(
    "arguments", ["", "before=3", "after_in_child='x'", "other=print", "before=None, after_in_parent=None"]
)
def test_wrong_arguments_are_refused_as_by_python(tmp_path: Path, arguments: str) -> None:
    code = f"""
from aisotools.sandbox.worker import user_hooks
problems = []
for register in (user_hooks._register_at_fork, os.register_at_fork):
    try:
        register({arguments})
    except TypeError as error:
        problems.append(str(error))
report(problems)
"""
    python, ours = run(code, tmp_path)
    assert python == ours


def test_audit_hooks_hear_nothing_until_the_fork_goes_on(tmp_path: Path) -> None:
    code = """
sys.addaudithook(lambda event, arguments: ran.append(event) if event == 'mine' else None)
sys.audit('mine')

def waiting():
    sys.audit('mine')
    found = [len(ran)]
    hooks.release()
    sys.audit('mine')
    found.append(len(ran))
    hooks.go_on()
    sys.audit('mine')
    return [*found, len(ran)]

report([len(ran), in_fork(waiting)])
"""
    assert run(code, tmp_path) == [1, [1, 1, 2]]


def test_nothing_is_collected_until_the_fork_goes_on(tmp_path: Path) -> None:
    code = """
gc.callbacks.append(lambda phase, info: ran.append(phase))
gc.set_threshold(1)
gc.collect()

def waiting():
    ran.clear()
    made = [[] for _ in range(1000)]
    found = [len(ran)]
    hooks.release()
    made += [[] for _ in range(1000)]
    found.append(len(ran))
    hooks.go_on()
    made += [[] for _ in range(1000)]
    return [*found, len(ran) > 0]

report([in_fork(waiting), gc.isenabled()])
"""
    assert run(code, tmp_path) == [[0, 0, True], True]


def test_a_collector_that_was_off_stays_off(tmp_path: Path) -> None:
    code = """
gc.disable()

def go_on():
    hooks.release()
    hooks.go_on()
    return gc.isenabled()

report([in_fork(go_on), gc.isenabled()])
"""
    assert run(code, tmp_path) == [False, False]


def test_a_fork_is_made_and_goes_on_whatever_user_code_has_replaced(tmp_path: Path) -> None:
    code = """
register()
really = gc.isenabled
gc.disable = gc.enable = gc.isenabled = sys.gettrace = sys.settrace = sys.getprofile = sys.setprofile = None
os.register_at_fork = posix.register_at_fork = sys.addaudithook = None
del sys.unraisablehook

def go_on():
    hooks.release()
    ran.clear()
    hooks.go_on()
    return [ran, really()]

report([in_fork(lambda: in_fork(go_on)), really()])
"""
    assert run(code, tmp_path) == [[["child"], True], True]


@pytest.mark.parametrize("kind", ["trace", "profile"])
def test_tracers_are_called_again_when_the_fork_goes_on(tmp_path: Path, kind: str) -> None:
    code = f"""
def called():
    return None

def tracer(frame, event, argument):
    if frame.f_code is called.__code__:
        ran.append(event)

def waiting():
    ran.clear()
    called()
    found = [len(ran)]
    hooks.release()
    called()
    found.append(len(ran))
    hooks.go_on()
    called()
    return [*found, len(ran) > 0]

sys.set{kind}(tracer)
found = in_fork(waiting)
ran.clear()
called()
sys.set{kind}(None)
report([found, len(ran) > 0])
"""
    assert run(code, tmp_path) == [[0, 0, True], True]


def test_a_profiler_in_c_goes_on(tmp_path: Path) -> None:
    code = """
import cProfile
profile = cProfile.Profile()

def called():
    return None

def counted():
    profile.disable()
    return [entry.callcount for entry in profile.getstats() if entry.code is called.__code__]

def go_on():
    hooks.release()
    hooks.go_on()
    called()
    return counted()

profile.enable()
called()
found = in_fork(go_on)
called()
report([found, counted()])
"""
    assert run(code, tmp_path) == [[2], [2]]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python 3.12 is the first that has it")
def test_monitoring_goes_on_with_the_fork(tmp_path: Path) -> None:
    code = """
watch = sys.monitoring
watch.use_tool_id(3, 'mine')
watch.register_callback(3, watch.events.PY_START, lambda code, _: ran.append(code.co_name))
watch.set_events(3, watch.events.PY_START)

def called():
    return None

def waiting():
    ran.clear()
    called()
    found = ['called' in ran]
    hooks.release()
    hooks.go_on()
    called()
    return [*found, 'called' in ran]

report([in_fork(waiting), watch.get_events(3) == watch.events.PY_START])
"""
    assert run(code, tmp_path) == [[False, True], True]


def test_locks_that_hooks_take_and_give_back_are_free_in_each_generation(tmp_path: Path) -> None:
    code = """
lock = threading.RLock()
os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)

def is_free():
    found = []

    def take():
        found.append(lock.acquire(blocking=False) and not lock.release())

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    return found

def go_on():
    hooks.release()
    hooks.go_on()
    return is_free()

def released():
    hooks.release()
    below = in_fork(go_on)
    hooks.go_on()
    return [*below, *is_free(), *in_fork(go_on)]

report([*in_fork(lambda: in_fork(released)), *is_free()])
"""
    assert run(code, tmp_path) == [True] * 4


def test_a_missed_hook_that_exits_ends_nothing(tmp_path: Path) -> None:
    code = """
os.register_at_fork(after_in_child=lambda: sys.exit(3))
os.register_at_fork(after_in_child=note('second'))

def go_on():
    hooks.release()
    hooks.go_on()
    return ran

report(in_fork(go_on))
"""
    assert run(code, tmp_path) == ["second"]


def test_nothing_compares_hooks_with_each_other(tmp_path: Path) -> None:
    code = """
class Hook:
    def __call__(self): ran.append('called')
    def __eq__(self, other): ran.append('compared'); return False
    __hash__ = None

os.register_at_fork(after_in_child=Hook())
os.register_at_fork(after_in_child=Hook())

def go_on():
    hooks.release()
    hooks.go_on()
    return ran

report(in_fork(lambda: [list(ran), in_fork(go_on)]))
"""
    assert run(code, tmp_path) == [[], ["called", "called"]]


FAILING = """
from aisotools.sandbox.worker import user_hooks

def fail():
    raise RuntimeError('no')

sys.unraisablehook = note('reported')
user_hooks._register_at_fork(after_in_child=fail, after_in_parent=fail)
"""


def test_exception_of_a_hook_of_python_is_reported_in_the_parent_alone(tmp_path: Path) -> None:
    code = """
def go_on():
    hooks.release()
    hooks.go_on()
    return [*ran, sys.unraisablehook is reported]

reported = sys.unraisablehook
found = in_fork(lambda: [list(ran), in_fork(go_on)])
report([found, ran, sys.unraisablehook is reported])
"""
    assert run(FAILING + code, tmp_path) == [[[], [True]], ["reported"], True]


def test_handlers_of_logging_are_mended_when_the_fork_goes_on(tmp_path: Path) -> None:
    code = """
import logging

class Handler(logging.Handler):
    def _at_fork_reinit(self):
        ran.append('mended')
        super()._at_fork_reinit()

handler = Handler()

def go_on():
    hooks.release()
    found = [list(ran)]
    hooks.go_on()
    logging.getLogger().warning('it is not a dead end')
    return [*found, ran]

logging.getLogger().addHandler(handler)
handler.emit = lambda record: None
handler.acquire()
report([in_fork(lambda: in_fork(go_on)), ran, handler in vars(logging)[user_hooks._HANDLERS]])
"""
    head = "from aisotools.sandbox.worker import user_hooks\n"
    assert run(head + code, tmp_path) == [[[], ["mended"]], [], True]


def test_a_stream_of_user_code_is_flushed_by_what_is_wrapped_in_the_worker_alone(tmp_path: Path) -> None:
    code = """
from aisotools.sandbox.worker import user_hooks
user_hooks._register_at_fork(before=hooks.wrap('before', note('flushed')))
report([in_fork(lambda: [list(ran), in_fork(all_that_ran)]), ran])
"""
    assert run(code, tmp_path) == [[["flushed"], ["flushed"]], ["flushed"]]


def test_tracer_that_a_hook_before_a_fork_sets_is_off_in_the_fork(tmp_path: Path) -> None:
    code = """
def switch_on():
    gc.enable()
    sys.settrace(note('traced'))
    sys.setprofile(note('profiled'))

gc.disable()
os.register_at_fork(before=switch_on)
in_child = in_fork(lambda: [gc.isenabled(), sys.gettrace() is None, sys.getprofile() is None])
found = [in_child, gc.isenabled(), sys.gettrace() is not None, sys.getprofile() is not None]
sys.settrace(None)
sys.setprofile(None)
report(found)
"""
    assert run(code, tmp_path) == [[False, True, True], True, True, True]


def test_a_hook_that_raises_before_a_fork_keeps_neither_the_others_nor_the_fork_from_running(
    tmp_path: Path,
) -> None:
    code = """
os.register_at_fork(before=note('first'))
os.register_at_fork(before=lambda: 1 / 0)
os.register_at_fork(before=note('last'))
found = in_fork(all_that_ran)
report([found, ran])
"""
    assert run(code, tmp_path) == [["last", "first"], ["last", "first"]]


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="Python 3.12 profiles by way of sys.monitoring")
def test_the_clock_of_a_profiler_in_c_is_not_asked_in_a_fork(tmp_path: Path) -> None:
    code = """
import cProfile
asked = []
def clock():
    asked.append(os.getpid())
    return float(len(asked))

profile = cProfile.Profile(clock)
profile.enable()
in_child = in_fork(lambda: [pid == os.getpid() for pid in asked].count(True))
before = len(asked)
len('goes on in the parent')
goes_on = len(asked) > before
profile.disable()
report([in_child, goes_on])
"""
    assert run(code, tmp_path) == [0, True]
