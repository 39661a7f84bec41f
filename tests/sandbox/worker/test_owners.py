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
called = []
pool, running, queued = busy()
behind = [pool.submit(int) for _ in range(3)]
for one in behind:
    one.add_done_callback(lambda _: 1 / 0)
    one.add_done_callback(called.append)
behind[1].set_exception = None
owners = find_owners()
owners.break_all()
report([*(problem(one.result) for one in (running, queued, *behind)), len(called), owners.are_left])
"""
    assert run(code, tmp_path) == [*["BrokenThreadPool"] * 5, 3, False]


def test_a_callback_finds_that_all_others_have_failed(tmp_path: Path) -> None:
    code = """
found = []
pools = [busy(), busy()]
for (_, running, queued), (other, *_) in zip(pools, reversed(pools)):
    queued.add_done_callback(lambda _, running=running: found.append(problem(running.result)))
    running.add_done_callback(lambda _, other=other: found.append(problem(lambda: other.submit(int))))
owners = find_owners()
owners.break_all()
report(found)
"""
    assert run(code, tmp_path) == ["BrokenThreadPool"] * 4


def test_an_interrupt_leaves_the_others_for_the_next_time(tmp_path: Path) -> None:
    code = """
def interrupt(_):
    raise KeyboardInterrupt

pool, running, queued = busy()
for one in (queued, pool.submit(int), pool.submit(int)):
    one.add_done_callback(interrupt)
owners = find_owners()
found = [problem(owners.break_all), len(owners.callbacks)]
report([*found, problem(owners.break_all), len(owners.callbacks)])
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


def test_a_queue_of_multiprocessing_fails_at_once_and_can_be_closed(tmp_path: Path) -> None:
    code = """
queue, unused = multiprocessing.Queue(), multiprocessing.Queue()
queue.put('x' * 1_000_000)  # more than its pipe takes
owners = find_owners()
found = [owners.describe()]
owners.break_all()
found += [problem(lambda: queue.put(2)), problem(queue.get), problem(queue.empty)]
found += [problem(queue.close), problem(queue.join_thread)]
unused.put(3)
report([*found, unused.get()])
"""
    assert run(code, tmp_path) == [["1 queue between processes"], *["ValueError"] * 3, None, None, 3]


def test_a_program_can_be_started_behind_one_that_was_dropped_while_it_ran(tmp_path: Path) -> None:
    code = """
import gc
child = subprocess.Popen(['sleep', '1000'])
pid = child.pid
del child
gc.collect()
owners = find_owners()
found = [owners.describe()]
owners.break_all()
found += [problem(lambda: subprocess.run(['true'], check=True)) for _ in range(2)]
os.kill(pid, 9)
report(found)
"""
    assert run(code, tmp_path) == [["1 child process"], None, None]


def test_a_future_that_no_pool_runs_is_left_alone(tmp_path: Path) -> None:
    code = """
pool, running, queued = busy()
own = concurrent.futures.Future()
own.set_running_or_notify_cancel()
owners = find_owners()
owners.break_all()
own.set_result(3)
report([problem(running.result), own.result()])
"""
    assert run(code, tmp_path) == ["BrokenThreadPool", 3]


def test_pools_that_were_shut_down_are_not_named(tmp_path: Path) -> None:
    code = """
pool, running, queued = busy()
pool.shutdown(wait=False)
other = multiprocessing.pool.ThreadPool(1)
other.close()
processes = concurrent.futures.ProcessPoolExecutor(1)
processes.submit(int).result()
processes.shutdown()
owners = find_owners()
found = [owners.describe()]
owners.break_all()
report([*found, problem(running.result), problem(queued.result)])
"""
    assert run(code, tmp_path) == [[], "BrokenThreadPool", "BrokenThreadPool"]


HOSTILE = """
ran = []

class Names(dict):
    def get(self, *_):
        ran.append('get')
    __getitem__ = __contains__ = __iter__ = items = keys = get

class Name:
    def __init__(self, name):
        self.number = hash(name)
    def __hash__(self):
        return self.number
    def __eq__(self, other):
        ran.append('eq')
        return False

class Module(types.ModuleType):
    @property
    def __dict__(self):
        ran.append('module')
        return {}

class Claims:
    @property
    def __class__(self):
        ran.append('class')
        return types.ModuleType

class Program(subprocess.Popen):
    def __init__(self):
        self.__dict__ = Names(pid=1, returncode=None)
    def __del__(self):
        pass

class Other(subprocess.Popen):
    def __init__(self):
        self.__dict__[Name('returncode')] = self.__dict__[Name('pid')] = 1
        self.__dict__.update(pid=2, returncode=None)
    def __del__(self):
        pass

import multiprocessing.queues
kept = [Program(), Other()]
sys.modules['loky.process_executor'] = Module('x')
sys.modules['billiard.pool'] = Claims()
vars(multiprocessing.queues)[Name('Queue')] = 3
sys.modules[Name('multiprocess.pool')] = 4
sys.modules = Names()
ran.clear()
"""


def test_no_dictionary_of_theirs_runs_code_while_they_are_looked_for(tmp_path: Path) -> None:
    code = """
owners = find_owners()
report([owners.describe(), ran])
"""
    assert run("import sys, types\n" + HOSTILE + code, tmp_path) == [["2 child processes"], []]


def test_an_executor_of_joblib_is_replaced_when_it_is_asked_for_again(tmp_path: Path) -> None:
    code = """
import time
from joblib.externals.loky import get_reusable_executor

executor = get_reusable_executor(max_workers=1)
running = executor.submit(time.sleep, 1000)
while not running.running():
    pass
children = list(executor._processes)
if fork := os.fork():  # the threads of the executor are missing there, as in a snapshot
    os.waitpid(fork, 0)
    os._exit(0)
for child in children:
    os.kill(child, 9)
owners = find_owners()
found = [owners.describe()]
owners.break_all()
found += [problem(running.result), problem(lambda: executor.submit(int))]
executor = get_reusable_executor(max_workers=1)
found.append(executor.submit(abs, -2).result())
executor.shutdown()
report(found)
"""
    lost = ["1 pool of threads or processes"]
    assert run(code, tmp_path) == [lost, "BrokenProcessPool", "BrokenProcessPool", 2]


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

class Closed:
    def write(self, text):
        raise BrokenPipeError

pool, running, queued = busy()
queued.add_done_callback(lambda _: 1 / 0)
owners = find_owners()
sys.stderr = Closed()
owners.break_all()
report([problem(running.result), owners.are_left])
"""
    assert run(code, tmp_path) == ["BrokenThreadPool", False]
