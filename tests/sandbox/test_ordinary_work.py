"""What people do all day goes on working in a confined process."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from aisotools.sandbox.confinement import landlock, levels
from tests.sandbox import inside
from tests.sandbox.conftest import Places
from tests.sandbox.inside import Who
from tests.sandbox.rig import rig

pytestmark = pytest.mark.skipif(
    landlock.abi() < levels.LANDLOCK_NEEDED["confined"],
    reason="this kernel cannot confine: Landlock is too old",
)

WORK = {
    "numpy": """
import numpy as np
np.save("a.npy", np.arange(1_000_000.0).reshape(1000, 1000))
a = np.load("a.npy", mmap_mode="r+")
answer = bool((a @ a)[0, 0] > 0 and np.linalg.norm(a[:2]) > 0)
""",
    "pandas": """
import pandas as pd
when = pd.date_range("2026-01-01", periods=3, tz="Europe/Berlin")
frame = pd.DataFrame({"a": [1, 2, 3], "when": when})
frame.to_csv("frame.csv", index=False)
frame.to_pickle("frame.pkl")
answer = len(pd.read_csv("frame.csv")) == 3 and float(pd.read_pickle("frame.pkl")["a"].mean()) == 2
""",
    "matplotlib": """
from matplotlib import pyplot
pyplot.plot([1, 3, 2])
pyplot.title("Größe")
pyplot.savefig("figure.png")
pyplot.savefig("figure.svg")
answer = open("figure.png", "rb").read(4) == b"\\x89PNG"
""",
    "sqlite": """
import sqlite3
answer = []
for mode in ("delete", "wal"):
    with sqlite3.connect(mode + ".db") as base:
        base.execute(f"pragma journal_mode={mode}")
        base.execute("create table t (a)")
        base.executemany("insert into t values (?)", [(n,) for n in range(100)])
    answer.append(base.execute("select sum(a) from t").fetchone()[0] == 4950)
answer = all(answer)
""",
    "subprocess": """
import subprocess, sys
run = lambda command, **more: subprocess.run(command, capture_output=True, text=True, **more)
answer = [
    run(["bash", "-c", "seq 10 | grep 1 | tail -1"]).stdout == "10\\n",
    run(["bash", "-c", "diff <(echo a) <(echo a) && cat <<< here"]).stdout == "here\\n",
    run([sys.executable, "-c", "import ssl; print(input())"], input="hello").stdout == "hello\\n",
    run(["bash", "-c", "sleep 60 & kill $!; wait $!; echo $?"]).stdout == "143\\n",
    run("exit 3", shell=True).returncode == 3,
    run(["cat"], input="x", close_fds=False).stdout == "x",
]
answer = all(answer)
""",
    "shell tools": """
import os, subprocess
script = '''
set -e
mkdir -p tree/deep && echo text > tree/deep/file && touch tree/new
cp -a tree copy && cp -p tree/deep/file kept && mv copy moved && chmod 600 kept
tar czf tree.tgz tree && mkdir out && tar xzf tree.tgz -C out && test -f out/tree/deep/file
sed -i s/text/other/ kept && grep -q other kept
find . -name file | sort | xargs wc -c > counted
ln -s kept link && readlink link && rm -r moved out
awk "{ print NR }" kept && date > /dev/null && head -c 4 /dev/urandom | od > /dev/null
install -m 755 kept installed && ls -la > listing
'''
done = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
answer = done.returncode == 0 or [done.stdout, done.stderr]
""",
    "threads": """
import concurrent.futures, queue, threading, time
with concurrent.futures.ThreadPoolExecutor(8) as pool:
    answer = sum(pool.map(lambda n: n * n, range(100))) == 328350
timer = threading.Timer(0.01, lambda: None); timer.start(); timer.join()
""",
    "asyncio": """
import asyncio, sys
async def main():
    child = await asyncio.create_subprocess_exec(
        "sh", "-c", "read x; echo got $x; exit 4", stdin=-1, stdout=-1)
    out, _ = await child.communicate(b"it\\n")
    shell = await asyncio.create_subprocess_shell("exec sleep 30")
    shell.kill()
    await shell.wait()
    number = await asyncio.to_thread(lambda: 7)
    return [out, child.returncode, shell.returncode, number]
answer = asyncio.run(main()) == [b"got it\\n", 4, -9, 7]
""",
    "multiprocessing": """
import multiprocessing, os
context = multiprocessing.get_context("fork")
ours, theirs = context.Pipe()
child = context.Process(target=lambda: theirs.send(os.getpid()))
child.start()
answer = ours.recv() == child.pid
child.join()
answer = answer and child.exitcode == 0
pid = os.fork()
if pid == 0:
    os._exit(5)
answer = answer and os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
""",
    "temporary files": """
import shutil, tempfile
from pathlib import Path
with tempfile.NamedTemporaryFile("w+") as file, tempfile.TemporaryDirectory() as folder:
    tempfile.TemporaryFile().write(b"x")
    file.write("x")
    shutil.copy2(file.name, folder + "/copy")
    shutil.copytree(folder, "tree")
    shutil.move("tree", "moved")
    inside = [p.name for p in Path("moved").iterdir()]
Path("touched").touch()
Path("touched").touch()
Path("touched").chmod(0o600)
shutil.make_archive("archive", "zip", "moved")
shutil.unpack_archive("archive.zip", "unpacked")
shutil.rmtree("moved")
answer = inside == ["copy"] and Path("touched").exists() and Path("unpacked/copy").exists()
""",
    "locks": """
import fcntl, os
first, second = open("lock", "w"), open("lock", "w")
fcntl.flock(first, fcntl.LOCK_EX)
try:
    fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
    answer = "both locked it"
except BlockingIOError:
    fcntl.flock(first, fcntl.LOCK_UN)
    fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.lockf(first, fcntl.LOCK_EX)
    answer = True
""",
    "signals and time": """
import signal, time
seen = []
signal.signal(signal.SIGALRM, lambda *_: seen.append("alarm"))
signal.setitimer(signal.ITIMER_REAL, 0.01)
time.sleep(0.1)
signal.raise_signal(signal.SIGALRM)
answer = seen == ["alarm", "alarm"] and time.localtime().tm_year >= 2026
""",
    "facts about the machine": """
import getpass, locale, mimetypes, os, platform, ssl, zoneinfo
answer = [
    os.cpu_count() >= 1, len(os.sched_getaffinity(0)) >= 1, platform.platform() != "",
    zoneinfo.ZoneInfo("Asia/Tokyo").key == "Asia/Tokyo", mimetypes.guess_type("a.csv")[0] == "text/csv",
    ssl.create_default_context() is not None, locale.getpreferredencoding(False).lower() == "utf-8",
    os.isatty(0) is False,
]
answer = all(answer) or answer
""",
    "what is refused says so": """
import socket, urllib.request
answer = []
try:
    urllib.request.urlopen("http://127.0.0.1:9")
except OSError as error:
    answer.append("Address family not supported" in str(error))
try:
    socket.create_connection(("example.org", 80), timeout=5)
except OSError as error:
    answer.append(True)
answer = answer == [True, True]
""",
}


@pytest.mark.sample(16)
@pytest.mark.parametrize(
    ("who", "work"),
    [
        # Large libraries as one user and in the simulation of Binder; as the others with the slow tests.
        pytest.param(who, work, marks=pytest.mark.slow)
        if (who == "plain" and work in {"matplotlib", "pandas"}) or (who == "root" and work == "matplotlib")
        else (who, work)
        for who in ("root", "plain", "binder")
        for work in WORK
    ],
)
def test_work(place: Places, who: Who, work: str) -> None:
    assert inside.run(WORK[work], who=who, workspace=str(place(who))).answer is True


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
@pytest.mark.parametrize("who", ["root", "plain", "binder"])
def test_git(place: Places, who: Who) -> None:
    source = """
import os, subprocess
for who in ("AUTHOR", "COMMITTER"):
    os.environ |= {f"GIT_{who}_NAME": "x", f"GIT_{who}_EMAIL": "x@example.org"}
script = '''
set -e
git init -q repository && cd repository
echo one > file && git add file && git commit -qm first
git checkout -qb branch && echo two >> file && git commit -qam second
git checkout -q - && git merge -q branch && git gc -q && git status --short
git clone -q . ../clone && git -C ../clone log --oneline | wc -l
git stash list && git diff HEAD~1 --stat
'''
done = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
answer = [done.returncode, done.stderr, done.stdout.splitlines()[:1]]
"""
    assert inside.run(source, who=who, workspace=str(place(who))).answer == [0, "", ["2"]]


UNSHARED = (
    "import multiprocessing as m; m.Lock()",
    "import multiprocessing as m; m.get_context('fork').Pool(1)",
    "from concurrent.futures import ProcessPoolExecutor as P; P(1).submit(int)",
    "from multiprocessing.shared_memory import SharedMemory as S; S(create=True, size=10)",
)


async def test_programs_that_need_shared_memory_say_where_they_work(tmp_path: Path) -> None:
    async with rig(tmp_path, level="confined") as r:
        for code in UNSHARED:
            result = await r.python(code)
            assert result.is_error
            assert "[level confined: processes have no shared memory here" in result.content
            assert "Process and Pipe" in result.content
        assert "[level" not in (await r.python("open('/etc/shadow')")).content


FRESH_POOL = """
import multiprocessing
with multiprocessing.get_context("spawn").Pool(2) as pool:
    print(pool.map(abs, [-1, -2]))
"""


async def test_pools_of_fresh_processes_work_also_after_a_reset(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        if r.level != "isolated":
            pytest.skip("multiprocessing has no locks below isolated")
        assert (await r.python(FRESH_POOL)).content == "[1, 2]"
        await r.python("%reset -f")
        assert (await r.python(FRESH_POOL)).content == "[1, 2]"
        assert "__spec__" not in (await r.python("%who")).content
