"""What user code finds in a worker: a notebook much like any other, and nothing of the host's."""

from __future__ import annotations

import ast
import asyncio
import os
import secrets
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.sandbox.rig import Rig, rig
from tests.waiting import HANG_S, eventually

HOME_VARIABLES = {"HOME", "TMPDIR", "IPYTHONDIR", "MPLCONFIGDIR", "XDG_CACHE_HOME"}
VARIABLES = HOME_VARIABLES | {
    *("PATH", "LANG", "USER", "LOGNAME", "PYTHONDONTWRITEBYTECODE", "WORKSPACE"),
    *("MPLBACKEND", "GIT_CONFIG_NOSYSTEM", "TERM", "PAGER"),
}
PASSED_ON = {
    *("TZ", "LD_LIBRARY_PATH", "OMP_NUM_THREADS", "MKL_NUM_THREADS"),
    *("OPENBLAS_NUM_THREADS", "OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"),
}
"""What may come from the environment of whoever runs these tests."""


@pytest.fixture
async def r(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path) as made:
        yield made


async def stdout(r: Rig, code: str) -> str:
    result = await r.python(code)
    assert not result.is_error, result.content
    assert isinstance(result.value["stdout"], str)
    return result.value["stdout"]


# ---- the environment


async def test_the_environment_is_the_allow_list(r: Rig) -> None:
    found = await r.value("import os; dict(os.environ)")
    assert set(found) - PASSED_ON == VARIABLES
    assert found["WORKSPACE"] == str(r.workspace)
    assert found["PATH"].split(":")[0] == str(Path(sys.executable).parent)
    inherited = await r.bash("env -0")
    names = {line.partition("=")[0] for line in inherited.value["stdout"].split("\0") if line}
    assert names - PASSED_ON == VARIABLES | {"GIT_OPTIONAL_LOCKS", "PWD", "SHLVL", "_"}


async def test_home_and_its_like_are_private_and_writable(r: Rig) -> None:
    code = """
import os, pathlib, tempfile
places = {name: os.environ[name] for name in %r}
for place in places.values():
    os.makedirs(place, exist_ok=True)
    (pathlib.Path(place) / 'file').write_text('x')
places['~'] = os.path.expanduser('~')
places['tempfile'] = tempfile.gettempdir()
with tempfile.NamedTemporaryFile() as file:
    places['named'] = file.name
places
""" % sorted(HOME_VARIABLES)  # noqa: UP031 - braces are the code's own
    places = await r.value(code)
    scratch = str(Path(places["HOME"]).parent)
    assert all(place.startswith(scratch) for place in places.values()), places
    assert not str(r.workspace).startswith(scratch)


SEARCH = """
import ctypes, gc, os

libc = ctypes.CDLL(None)
libc.write.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]
libc.sbrk.restype = ctypes.c_void_p
libc.getauxval.restype = ctypes.c_ulong

def readable(start, end):
    # The kernel refuses to write from pages that are not there, which is how they are told apart.
    reading, writing = os.pipe()
    found = bytearray()
    for page in range(start & ~4095, end, 4096):
        if libc.write(writing, page, 4096) == 4096:
            found += os.read(reading, 4096)
    os.close(reading), os.close(writing)
    return bytes(found)

program_name = libc.getauxval(31)  # lies at the very end of the stack
stack = readable(program_name - (256 << 10), program_name + 8192)
heap = readable(libc.sbrk(0) - (64 << 20), libc.sbrk(0))
arenas = b''.join(readable(a, a + (1 << 18)) for a in sorted({id(o) >> 18 << 18 for o in gc.get_objects()}))
memory = stack + heap + arenas
"""

HOST = """
import asyncio, os, sys
from pathlib import Path
from tests.sandbox.rig import Rig

async def main():
    secret = os.environ['API_KEY']
    again = secret.encode().hex()  # so that it is not brought in by the question itself
    r = Rig(Path(sys.argv[1]))
    await r.python("canary = 'can' + 'ary' + str(6 * 7)")
    await r.python(sys.stdin.read())
    print(await r.value(f"len(stack) > 1e5, len(heap) > 1e6, len(arenas) > 1e6, "
        "b'LOGNAME=sandbox' in stack, b'can' + b'ary42' in arenas, "
        f"bytes.fromhex('{again}') in memory, 'API_KEY'.encode() + b'=' in memory"))
    await r.kernel.close()

asyncio.run(main())
"""


def test_no_secret_of_the_host_is_anywhere_in_memory(tmp_path: Path) -> None:
    """The host is a process of its own here, started with a secret in its environment."""
    (tmp_path / "workspace").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", HOST, str(tmp_path / "workspace")],
        input=SEARCH,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
        cwd=Path(__file__).parents[2],
        env=os.environ | {"API_KEY": secrets.token_hex(20)},
    )
    assert done.returncode == 0, done.stderr
    *searched, secret_found, name_found = ast.literal_eval(done.stdout)
    assert searched == [True] * 5
    assert (secret_found, name_found) == (False, False)


async def test_proc_is_out_of_reach(r: Rig) -> None:
    for path in (
        "self/environ",
        "1/environ",
        "self/maps",
        f"{os.getpid()}/environ",
        "self/root",
        "self/cwd/",
    ):
        if r.level != "isolated" or "self" not in path:
            assert (await r.python(f"open('/proc/{path}').read()")).is_error
    listed = await r.python("import os; [name for name in os.listdir('/proc') if name.isdigit()]")
    # At isolated: its own init, itself, and its own kept states.
    assert listed.is_error or {"1", "2"} <= set(eval(listed.value["result"])) <= set(map(str, range(1, 30)))


async def test_nothing_of_the_host_is_inherited(r: Rig) -> None:
    code = """
import os, stat
def what(fd):
    kind = stat.S_IFMT(os.fstat(fd).st_mode)
    return {stat.S_IFSOCK: 'socket', stat.S_IFIFO: 'pipe', stat.S_IFCHR: 'device'}.get(kind, 'file')
found = {}
for fd in range(256):
    try: found[fd] = what(fd)
    except OSError: pass
found
"""
    found = await r.value(code)
    assert [found.pop(fd) for fd in range(4)] == ["device", "pipe", "pipe", "socket"]
    # What is left are the loop's own wake-up sockets, the pipe for interrupts and the children's watcher.
    assert len(found) <= 5
    assert "file" not in found.values()
    inherited = await stdout(
        r,
        "!for fd in /dev/fd/*; do :; done; for n in 3 4 5 6 7 8 9; do (: <&$n) 2>/dev/null && echo $n; done",
    )
    assert inherited == ""


async def test_standard_input_is_empty(r: Rig) -> None:
    assert await stdout(r, "!cat; echo done") == "done\n"
    for code in ("input('name? ')", "import getpass; getpass.getpass()"):
        result = await r.python(code)
        assert "cannot ask anybody from inside the sandbox" in result.content
        assert "shell.py" not in result.content
    assert (await r.python("import sys; sys.stdin.read()")).value["result"] == "''"


@pytest.mark.parametrize(
    "name", ["with space", "quote ' and \"", "$HOME `id` ;", "ünï ☃", "-dash", "new\nline"]
)
async def test_workspaces_with_odd_names(tmp_path: Path, name: str) -> None:
    async with rig(tmp_path, name=name) as r:
        code = "import os, subprocess; (os.getcwd(), os.environ['WORKSPACE'])"
        assert await r.value(code) == (str(tmp_path / name), str(tmp_path / name))
        assert (await r.bash('echo x > file; cat "$WORKSPACE/file"; pwd')).value[
            "stdout"
        ] == f"x\n{tmp_path / name}\n"


# ---- programs


async def test_programs(r: Rig) -> None:
    assert (
        await stdout(
            r,
            "import subprocess; print(subprocess.run(['echo', 'a'], capture_output=True, text=True).stdout)",
        )
        == "a\n\n"
    )
    assert (
        await stdout(r, "import subprocess; _ = subprocess.run('echo b; echo oops >&2', shell=True)") == "b\n"
    )
    assert await stdout(r, "!echo c") == "c\n"
    assert (await r.python("lines = !echo d; echo e\nlist(lines)")).content == "['d', 'e']"
    assert await stdout(r, "%%bash\necho f\necho g") == "f\ng\n"
    assert await stdout(r, "%%sh\necho h") == "h\n"
    code = """
import asyncio
process = await asyncio.create_subprocess_exec('echo', 'i', stdout=asyncio.subprocess.PIPE)
print((await process.communicate())[0].decode(), process.returncode)
"""
    assert await stdout(r, code) == "i\n 0\n"
    assert await stdout(r, "import os; _ = os.system('echo j')") == "j\n"


async def test_a_script_that_fails_is_an_error(r: Rig) -> None:
    result = await r.python("%%bash\necho before\nexit 3")
    assert result.is_error
    assert "before" in result.content
    assert "CalledProcessError" in result.content
    result = await r.python("%%bash --out captured\necho into a variable")
    assert not result.is_error
    assert await r.value("captured") == "into a variable\n"
    assert (await r.python("!exit 3\n_exit_code")).content == "3"


async def test_two_hundred_kilobytes_uncaptured_do_not_hang(r: Rig) -> None:
    result = await r.python("import subprocess; _ = subprocess.run(['seq', '40000'])")
    assert not result.is_error
    assert result.value["stdout"].split() == [str(n) for n in range(1, 40_001)]


async def test_processes_by_fork(r: Rig) -> None:
    code = """
import multiprocessing
def work(pipe):
    print('from the child', flush=True)
    pipe.send(6 * 7)
context = multiprocessing.get_context('fork')
ours, theirs = context.Pipe()
process = context.Process(target=work, args=(theirs,))
process.start()
answer = ours.recv()
process.join()
print(answer, process.exitcode)
"""
    result = await r.python(code)
    assert result.value["stdout"] == "from the child\n42 0\n"


@pytest.mark.parametrize(
    ("body", "printed"),
    [
        ("print('child')", "child\n"),
        ("raise RuntimeError('in the child')", ""),
        ("import sys; sys.exit(3)", ""),
        ("import os; os._exit(0)", ""),
        ("import asyncio; await asyncio.sleep(0.01)", ""),  # no loop runs in a fork: an error there
        ("import sys; sys.stdout.write('x' * 100_000)", "x" * 100_000),
    ],
)
async def test_a_fork_has_no_voice_on_the_channel(r: Rig, body: str, printed: str) -> None:
    """Whatever becomes of it, the call has one result, and the next call is not confused."""
    code = f"""
import os
print('parent first')
pid = os.fork()
if pid == 0:
    {body}
else:
    _, status = os.waitpid(pid, 0)
    print('parent', os.getpid() != pid)
"""
    result = await r.python(code)
    assert not result.is_error, result.content
    assert result.value["stdout"] == f"parent first\n{printed}parent True\n"
    assert await r.value("1 + 1") == 2
    assert r.reported.losses == []


async def test_threads(r: Rig) -> None:
    code = """
import concurrent.futures, threading
with concurrent.futures.ThreadPoolExecutor(4) as pool:
    print(sum(pool.map(lambda n: n * n, range(10))))
"""
    assert await stdout(r, code) == "285\n"


async def test_git(r: Rig) -> None:
    script = """
set -e
git init -q .
git config user.email a@b.c; git config user.name n
echo text > file; git add file; git commit -qm "first"
git log --oneline | wc -l; git status --short
"""
    result = await r.bash(script)
    assert result.value["exitCode"] == 0, result.content
    assert result.value["stdout"].strip() == "1"


# ---- the notebook


async def test_modules_of_the_workspace_can_be_imported(r: Rig) -> None:
    (r.workspace / "helpers.py").write_text("answer = 42\n")
    assert await r.value("import helpers; helpers.answer") == 42
    assert not (r.workspace / "__pycache__").exists()


async def test_values_errors_and_top_level_await(r: Rig) -> None:
    assert (await r.python("[1, 2]")).value["result"] == "[1, 2]"
    assert (await r.python("x = 1;")).value["result"] is None
    assert (await r.python("import asyncio\nawait asyncio.sleep(0, 'slept')")).value["result"] == "'slept'"
    result = await r.python("def f():\n    return 1 / 0\nf()")
    assert result.is_error
    assert result.value["error"]["ename"] == "ZeroDivisionError"
    assert "----> 2     return 1 / 0" in result.content
    assert "\x1b" not in result.content
    assert (await r.python("1 +")).value["error"]["ename"] == "SyntaxError"
    assert (await r.python("")).content == ""


@pytest.mark.parametrize("code", ["exit()", "quit()", "import sys; sys.exit(3)", "raise SystemExit"])
async def test_leaving_does_not_end_the_worker(r: Rig, code: str) -> None:
    await r.python("x = 1")
    assert (await r.python(code)).is_error
    assert await r.value("x") == 1


async def test_displays_are_in_order_and_can_be_replaced(r: Rig) -> None:
    code = """
from IPython.display import HTML, Markdown, clear_output, display, update_display
print('gone'); display('gone')
clear_output()
print('kept')
display(HTML('<b>1</b>'))
handle = display('old', display_id='d')
update_display('new', display_id='d')
handle.update('newest')
display(Markdown('*3*'), metadata={'a': 1})
'value'
"""
    result = await r.python(code)
    shown = [
        bundle.get("text/html") or bundle.get("text/markdown") or bundle["text/plain"]
        for bundle in result.metadata["displays"]
    ]
    assert shown == ["<b>1</b>", "'newest'", "*3*", "'value'"]
    assert result.value["stdout"] == "kept\n"


async def test_figures(r: Rig) -> None:
    pytest.importorskip("matplotlib")
    code = """
import matplotlib.pyplot as plt
plt.plot([1, 2, 3])
print('drawn')
"""
    result = await r.python(code, timeout_s=40)
    assert not result.is_error, result.content
    assert result.data["image/png"].startswith("iVBOR")
    assert result.value["stdout"] == "drawn\n"
    result = await r.python("%matplotlib inline\nplt.figure(); plt.plot([1]); plt.show()")
    assert "image/png" in result.data
    assert not result.is_error


async def test_tables_think_they_are_in_a_notebook(r: Rig) -> None:
    pytest.importorskip("pandas")
    result = await r.python("import pandas as pd; pd.DataFrame({'a': [1, 2]})", timeout_s=40)
    assert "<table" in result.data["text/html"]
    assert "a" in result.content


async def test_warnings_and_logging_go_to_stderr(r: Rig) -> None:
    result = await r.python("import warnings, logging; warnings.warn('careful'); logging.warning('logged')")
    assert not result.is_error
    assert "UserWarning: careful" in result.value["stderr"]
    assert "WARNING:root:logged" in result.value["stderr"]


async def test_magics(r: Rig) -> None:
    assert "Wall time" in await stdout(r, "%time x = 1")
    await r.python("%%capture captured\nprint('inside')")
    assert await r.value("captured.stdout") == "inside\n"
    (r.workspace / "script.py").write_text("print('ran', __name__)\n")
    assert await stdout(r, "%run script.py") == "ran __main__\n"
    assert await r.value("%pwd") == str(r.workspace)
    assert await stdout(r, "%%script bash\necho 1") == "1\n"
    assert await stdout(r, "%%python\nprint(2)") == "2\n"
    assert "Docstring" in (await r.python("len?")).content


HELD = "while not os.path.exists('go'):"


async def test_progress_shows_while_the_cell_runs(r: Rig) -> None:
    call = asyncio.create_task(
        r.python(f"import os, time\nprint('step 1')\n{HELD} time.sleep(0.01)\nprint('step 2')", call_id="c")
    )
    await eventually(lambda: r.reported.text("c") == "step 1\n")
    assert not call.done()
    (r.workspace / "go").touch()
    await call
    (r.workspace / "go").unlink()
    awaiting = asyncio.create_task(
        r.python(
            f"import asyncio\nprint('no newline', end='')\n{HELD} await asyncio.sleep(0.01)", call_id="d"
        )
    )
    await eventually(lambda: r.reported.text("d") == "no newline")
    assert not awaiting.done()
    (r.workspace / "go").touch()
    await awaiting


async def test_random_numbers_differ_between_workers(r: Rig) -> None:
    code = "import random, secrets; (random.random(), secrets.token_hex())"
    first = await r.value(code)
    await r.kernel.restart()
    second = await r.value(code)
    assert all(a != b for a, b in zip(first, second, strict=True))


async def test_sqlite_and_numpy(r: Rig) -> None:
    pytest.importorskip("numpy")
    code = """
import sqlite3, numpy as np
db = sqlite3.connect('data.db')
db.execute('create table t (a)')
db.execute('insert into t values (1)')
db.commit()
np.save('a.npy', np.arange(10))
int(np.load('a.npy').sum()) + db.execute('select a from t').fetchone()[0]
"""
    assert await r.value(code, timeout_s=40) == 46
