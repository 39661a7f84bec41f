"""What waits for missing threads and processes, each in a process of its own: it is made to fail for good."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from aisotools.sandbox.worker import owners
from tests.sandbox.worker.interpreter import run_alone

HEAD = f"""
import concurrent.futures, json, multiprocessing.pool, os, subprocess, threading
from {owners.__name__} import Owners, find_owners

def report(value):
    print(json.dumps(value), flush=True)
    os._exit(0)

def problem(action):
    try:
        action()
    except BaseException as error:
        return type(error).__name__

def busy(kind=concurrent.futures.ThreadPoolExecutor):
    release = threading.Event()
    pool = kind(1)
    running, queued = pool.submit(release.wait), pool.submit(int)
    while not running.running():
        pass
    return pool, running, queued
"""


def run(code: str, folder: Path) -> Any:
    return run_alone(HEAD + code, folder)


def test_waiting_for_missing_threads_and_children_fails_at_once(tmp_path: Path) -> None:
    code = """
child = subprocess.Popen(['sleep', '1000'])
ended = subprocess.Popen(['true'])
ended.wait()
pool, running, queued = busy()
owners = find_owners()
found = [owners.describe(), owners.are_left]
owners.break_all()
found += [problem(child.wait), problem(child.poll), ended.returncode]
found += [problem(running.result), problem(queued.result), problem(lambda: pool.submit(int))]
os.kill(child.pid, 9)
report([*found, owners.are_left])
"""
    assert run(code, tmp_path) == [
        ["1 child process", "1 pool of threads or processes"],
        True,
        *["ChildProcessError"] * 2,
        0,
        *["BrokenThreadPool"] * 3,
        False,
    ]


def test_pools_of_multiprocessing_are_found_and_take_no_more_work(tmp_path: Path) -> None:
    code = """
pool = multiprocessing.pool.ThreadPool(1)
owners = find_owners()
found = [owners.describe()]
owners.break_all()
report([*found, problem(lambda: pool.apply(int))])
"""
    assert run(code, tmp_path) == [["1 pool of threads or processes"], "ValueError"]


def test_none_is_found_where_there_is_none(tmp_path: Path) -> None:
    code = """
ended = subprocess.Popen(['true'])
ended.wait()
pool = concurrent.futures.ThreadPoolExecutor(1)
done = concurrent.futures.Future()
done.set_result(1)
owners = find_owners()
report([owners.describe(), owners.are_left, Owners().are_left])
"""
    assert run(code, tmp_path) == [[], False, False]


CLASSES = """
ran = []
def noted(name):
    def get(self):
        ran.append(name)
        return None
    return property(get, lambda self, value: ran.append(name))

class Meta(type):
    def __getattribute__(cls, name):
        ran.append('metaclass')
        return super().__getattribute__(name)
    def __subclasscheck__(cls, other):
        ran.append('subclasscheck')
        return super().__subclasscheck__(other)

class Program(subprocess.Popen):
    returncode = noted('returncode')
    __dict__ = noted('dict')
    def __getattribute__(self, name):
        ran.append('getattribute')
        return super().__getattribute__(name)

class Work(concurrent.futures.Future):
    def __getattribute__(self, name):
        ran.append('getattribute')
        return super().__getattribute__(name)

class Pool(concurrent.futures.ThreadPoolExecutor):
    def __getattribute__(self, name):
        ran.append('getattribute')
        return super().__getattribute__(name)

class Text(str):
    def __eq__(self, other):
        ran.append('eq')
        return True
    __hash__ = str.__hash__

class Anything(metaclass=Meta):
    @property
    def __class__(self):
        ran.append('class')
        return subprocess.Popen

program, work, odd, anything = Program.__new__(Program), Work(), concurrent.futures.Future(), Anything()
work.set_running_or_notify_cancel()
odd._state = Text('RUNNING')
pool, running, queued = busy(Pool)
running.add_done_callback(lambda _: ran.append('callback'))
queued.add_done_callback(lambda _: ran.append('callback'))
"""


def test_no_code_of_theirs_runs_while_they_are_looked_for(tmp_path: Path) -> None:
    code = """
ran.clear()
owners = find_owners()
found = [owners.describe(), list(ran)]
owners.break_all()
report([*found, ran.count('callback')])
"""
    assert run(CLASSES + code, tmp_path) == [["1 pool of threads or processes"], [], 2]


def test_one_that_raises_does_not_keep_the_others_from_failing(tmp_path: Path) -> None:
    code = """
class Failing(concurrent.futures.Future):
    def set_exception(self, error):
        raise RuntimeError('no')

pool, running, queued = busy()
failing = [Failing() for _ in range(3)]
for one in failing:
    one.set_running_or_notify_cancel()
owners = find_owners()
owners.break_all()
report([problem(running.result), problem(queued.result), owners.are_left])
"""
    assert run(code, tmp_path) == ["BrokenThreadPool", "BrokenThreadPool", False]


def test_an_interrupt_leaves_the_others_for_the_next_time(tmp_path: Path) -> None:
    code = """
class Interrupting(concurrent.futures.Future):
    def set_exception(self, error):
        raise KeyboardInterrupt

many = [Interrupting() for _ in range(3)]
for one in many:
    one.set_running_or_notify_cancel()
owners = find_owners()
found = [problem(owners.break_all), len(owners.futures)]
report([*found, problem(owners.break_all), len(owners.futures)])
"""
    assert run(code, tmp_path) == ["KeyboardInterrupt", 2, "KeyboardInterrupt", 1]


def test_work_of_a_process_pool_fails_at_once(tmp_path: Path) -> None:
    code = """
import time
pool = concurrent.futures.ProcessPoolExecutor(1)
running, queued = pool.submit(time.sleep, 1000), pool.submit(int)
while not running.running():
    pass
children = list(pool._processes)
owners = find_owners()
found = [owners.describe()]
owners.break_all()
found += [problem(running.result), problem(queued.result), problem(lambda: pool.submit(int))]
for child in children:
    os.kill(child, 9)
report(found)
"""
    assert run(code, tmp_path) == [["1 pool of threads or processes"], *["BrokenProcessPool"] * 3]


def test_results_of_a_multiprocessing_pool_fail_at_once_and_it_can_be_joined(tmp_path: Path) -> None:
    code = """
import time
pool = multiprocessing.pool.ThreadPool(1)
waiting = [pool.apply_async(time.sleep, (1000,)), pool.map_async(abs, [1, 2])]
steps = [pool.imap(abs, [1]), pool.imap_unordered(abs, [1])]
owners = find_owners()
owners.break_all()
found = [problem(one.get) for one in waiting]
found += [problem(lambda: one.next()) for one in steps]
report([*found, *(problem(lambda: one.next()) for one in steps), pool._pool])
"""
    assert run(code, tmp_path) == [*["BrokenThreadPool"] * 4, *["StopIteration"] * 2, []]


def test_a_queue_of_multiprocessing_sends_again(tmp_path: Path) -> None:
    code = """
queue = multiprocessing.Queue()
queue.put(1)
first, thread = queue.get(), queue._thread
owners = find_owners()
found = [len(owners.queues), owners.describe()]
owners.break_all()
queue.put(2)
report([*found, first, queue.get(), queue._thread is thread])
"""
    assert run(code, tmp_path) == [1, [], 1, 2, False]


def test_frozen_objects_are_found_and_stay_frozen(tmp_path: Path) -> None:
    code = """
import gc
pool, running, queued = busy()
gc.freeze()
owners = find_owners()
report([owners.describe(), gc.get_freeze_count() > 0])
"""
    assert run(code, tmp_path) == [["1 pool of threads or processes"], True]


def test_work_behind_a_cancelled_one_fails_too(tmp_path: Path) -> None:
    code = """
pool, running, queued = busy()
behind = [pool.submit(int) for _ in range(3)]
behind[1].cancel()
owners = find_owners()
owners.break_all()
report([problem(one.result) for one in [queued, *behind]])
"""
    assert run(code, tmp_path) == [
        "BrokenThreadPool",
        "BrokenThreadPool",
        "CancelledError",
        "BrokenThreadPool",
    ]


REPLACED = """
class Program(subprocess.Popen):
    pass

subprocess.Popen = {program}
concurrent.futures.ThreadPoolExecutor = concurrent.futures.Future = concurrent.futures.Executor = print
multiprocessing.pool.Pool = multiprocessing.queues.Queue = {program}
"""


@pytest.mark.parametrize("program", ["Program", "lambda *_: None"])
def test_classes_that_user_code_has_replaced_are_known_as_they_were(tmp_path: Path, program: str) -> None:
    """As a library does that watches what others start, and a test that stands in for it."""
    code = """
import multiprocessing.queues
child = subprocess.Popen(['sleep', '1000'])
pool, running, queued = busy()
"""
    find = """
owners = find_owners()
os.kill(child.pid, 9)
report(owners.describe())
"""
    assert run(code + REPLACED.format(program=program) + find, tmp_path) == [
        "1 child process",
        "1 pool of threads or processes",
    ]


def test_failures_that_cannot_be_reported_keep_nothing_from_failing(tmp_path: Path) -> None:
    code = """
import sys

class Failing(concurrent.futures.Future):
    def set_exception(self, error):
        raise RuntimeError('no')

class Closed:
    def write(self, text):
        raise BrokenPipeError

pool, running, queued = busy()
failing = Failing()
failing.set_running_or_notify_cancel()
owners = find_owners()
sys.stderr = Closed()
owners.break_all()
report([problem(running.result), owners.are_left])
"""
    assert run(code, tmp_path) == ["BrokenThreadPool", False]
