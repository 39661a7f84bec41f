"""Whole workers at level isolated, and what they can do to each other and to what watches over them."""

from __future__ import annotations

import os
import secrets
import signal
from pathlib import Path

import pytest

from aisotools.core.exceptions import SandboxError
from aisotools.sandbox.confinement import isolated
from aisotools.sandbox.host.sandbox import LocalSandbox
from aisotools.sandbox.limits import Limits
from aisotools.sandbox.process import spawn, tree
from tests.sandbox.rig import ReportLog, Rig, rig
from tests.waiting import eventually

isolates = pytest.mark.parametrize("level", ["isolated"])
each_level = pytest.mark.parametrize("level", ["isolated", "confined", "guarded"])


@pytest.fixture(autouse=True)
def _held(level: str) -> None:
    if level not in {probe.name for probe in spawn.detection().probes if probe.ok}:
        pytest.skip(f"this machine does not hold level {level}")


# ---------------------------------------------------------------- the workspace


@isolates
async def test_the_workspace_has_two_names_and_belongs_to_its_owner(tmp_path: Path, level: str) -> None:
    async with rig(tmp_path, level=level) as r:
        if os.getuid() == 0:
            os.chown(r.workspace, 2001, 2001)
        owner = r.workspace.stat().st_uid
        (r.workspace / "given").write_text("from the host")
        os.chown(r.workspace / "given", owner, owner)
        code = f"""
import os
from pathlib import Path
Path({str(r.workspace)!r}, 'made').write_text('x')
os.symlink({str(r.workspace)!r} + '/given', 'link')
os.chmod('made', 0o755)
[os.getcwd(), Path('/workspace/made').read_text(), Path('link').read_text(),
 os.stat('given').st_uid == os.getuid(), os.access('made', os.X_OK), os.getpid(), os.uname().nodename,
 os.environ['WORKSPACE']]
"""
        assert await r.value(code) == [
            *(str(r.workspace), "x", "from the host", True),
            *(True, 2, "sandbox", str(r.workspace)),
        ]
        made = (r.workspace / "made").stat()
        assert (made.st_uid, made.st_mode & 0o7777) == (owner, 0o755)


@isolates
async def test_a_checkout_can_be_the_workspace_and_its_hooks_stay(tmp_path: Path, level: str) -> None:
    hook = tmp_path / "workspace/.git/hooks/pre-commit"
    hook.parent.mkdir(parents=True)
    hook.write_text("kept")
    async with rig(tmp_path, level=level) as r:
        result = await r.bash(
            "echo bad > .git/hooks/pre-commit; "
            "[ /workspace -ef . ] && echo bad > /workspace/.git/hooks/new; mv .git away; "
            "rm -rf .git/hooks; mkdir -p .git/objects && touch .git/objects/fine && ls .git/objects"
        )
        assert result.value["stdout"] == "fine\n"
        for message in ("Read-only file system", "Device or resource busy"):
            assert message in result.value["stderr"]
    assert hook.read_text() == "kept"
    assert [path.name for path in hook.parent.iterdir()] == ["pre-commit"]


@isolates
async def test_folders_to_be_read_are_seen_at_their_own_path(tmp_path: Path, level: str) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "private.csv").write_text("numbers")
    (data / "private.csv").chmod(0o600)
    (tmp_path / "workspace").mkdir()
    spec = spawn.WorkerSpec(
        level=level, workspace=str(tmp_path / "workspace"), readable=(str(data),), limits=Limits()
    )
    kernel = LocalSandbox(spec, ReportLog())
    r = Rig(tmp_path / "workspace", level=level)
    r.kernel = kernel
    try:
        assert await r.value(f"open({str(data / 'private.csv')!r}).read()") == "numbers"
        for attempt in ("open({!r}, 'w')", "import os; os.unlink({!r})", "import os; os.chmod({!r}, 0o666)"):
            result = await r.python(attempt.format(str(data / "private.csv")))
            assert "Read-only file system" in result.content or "PermissionError" in result.content
    finally:
        await kernel.close()
    assert (data / "private.csv").read_text() == "numbers"


@isolates
async def test_memory_folders_are_bounded_and_new_for_each_worker(tmp_path: Path, level: str) -> None:
    name = f"left-{secrets.token_hex(8)}"
    places = [Path("/tmp", name), Path("/dev/shm", name), Path("/dev/shm", f"big-{name}")]
    try:
        await fill_memory_folders(tmp_path, level, name)
        assert not [place for place in places if place.exists()], "these are the host's own folders"
    finally:
        for place in places:
            place.unlink(missing_ok=True)


async def fill_memory_folders(folder: Path, level: str, name: str) -> None:
    async with rig(folder, level=level) as r:
        await r.python(f"open('/tmp/{name}', 'w').write('x'); open('/dev/shm/{name}', 'w').write('x')")
        code = f"""
try:
    with open('/dev/shm/big-{name}', 'wb') as file:
        for _ in range({isolated.MEMORY_FOLDER_BYTES >> 20} + 1):
            file.write(bytes(1 << 20))
except OSError as error:
    print(error.strerror)
"""
        assert "No space left on device" in (await r.python(code)).content
        await r.kernel.restart()
        assert (
            await r.value(
                f"import os; os.listdir('/dev/shm') + [n for n in os.listdir('/tmp') if n == {name!r}]"
            )
            == []
        )


@isolates
async def test_shared_memory_and_locks_of_programs_work(tmp_path: Path, level: str) -> None:
    code = """
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context('fork')) as pool:
    found = list(pool.map(abs, [-1, -2]))
found
"""
    async with rig(tmp_path, level=level) as r:
        assert await r.value(code) == [1, 2]


# ---------------------------------------------------------------- what watches over it


@isolates
async def test_init_cannot_be_ended_from_inside(tmp_path: Path, level: str) -> None:
    async with rig(tmp_path, level=level) as r:
        await r.python(
            "import os, signal\nfor n in (9, 15, 19, 11):\n  try: os.kill(1, n)\n  except OSError: pass"
        )
        assert await r.value("1 + 1") == 2
        assert r.reported.losses == []


@isolates
async def test_orphans_do_not_pile_up(tmp_path: Path, level: str) -> None:
    async with rig(tmp_path, level=level) as r:
        await r.bash("for n in 1 2 3 4 5; do (sh -c 'sleep 0.05 &') ; done; sleep 0.3")
        states = "from glob import glob; [open(path).read().split()[2] for path in glob('/proc/[0-9]*/stat')]"
        assert "Z" not in await r.value(states)


@isolates
async def test_the_end_of_init_ends_everything(tmp_path: Path, level: str) -> None:
    async with rig(tmp_path, level=level) as r:
        await r.bash("(setsid sleep 1000 >/dev/null 2>&1 &)")
        link = r.kernel._connection
        assert link is not None
        pids = tree.below(link.supervisor, tree.table())
        init = min(pids - {link.pid})
        os.kill(init, signal.SIGKILL)
        await eventually(lambda: not pids & tree.table().keys())
        await eventually(lambda: link.lost_reason is not None)
        assert (await r.python("1")).content.startswith("[Before this call the sandbox's worker ended: ")


@each_level
async def test_sessions_cannot_reach_each_other_nor_what_watches(tmp_path: Path, level: str) -> None:
    async with rig(tmp_path, level=level, name="one") as one, rig(tmp_path, level=level, name="two") as two:
        await two.python("secret = 'of two'; open('file', 'w').write(secret)")
        home = await two.value("import os; os.environ['HOME']")
        await one.kernel.start()
        assert one.kernel._connection is not None
        assert two.kernel._connection is not None
        around = [
            two.kernel._connection.pid,
            two.kernel._connection.supervisor,
            one.kernel._connection.supervisor,
        ]
        around += [spawn.server().pid, os.getpid()]
        code = f"""
import ctypes, os, struct
open_ways = []
def attempt(what, action):
    try: action()
    except OSError: return
    open_ways.append(what)
for path in ({str(two.workspace)!r} + '/file', {home!r}):
    attempt('read ' + path, lambda: open(path).read())
    attempt('list', lambda: os.listdir(os.path.dirname(path)))
    attempt('write', lambda: open(path + '-new', 'w'))
for pid in {around}:
    for name in ('mem', 'environ', 'fd', 'root', 'cwd/', 'maps', 'ns/user'):
        attempt(f'{{name}} of {{pid}}', lambda: os.open(f'/proc/{{pid}}/{{name}}', os.O_RDONLY))
    for limit in (7, 0):
        attempt(f'limit of {{pid}}', lambda: __import__('resource').prlimit(pid, limit))
    if {level!r} != 'guarded':
        attempt(f'signal {{pid}}', lambda: os.kill(pid, 0))
open_ways
"""
        assert await one.value(code) == []
        assert await two.value("secret") == "of two"


@each_level
async def test_a_worker_holds_its_own_descriptors_alone(tmp_path: Path, level: str) -> None:
    code = """
import os, stat
kinds = {}
for d in range(1024):
    try: mode = os.fstat(d).st_mode
    except OSError: continue
    kinds[d] = stat.S_IFMT(mode)
bad = [d for d, kind in kinds.items() if kind in (stat.S_IFDIR, stat.S_IFBLK)]
sockets = [d for d, kind in kinds.items() if kind == stat.S_IFSOCK]
import subprocess
inherited = subprocess.run(['sh', '-c', 'for n in 3 4 5 6 7 8 9; do (: >&$n) 2>/dev/null && echo $n; done'],
                           capture_output=True, text=True, close_fds=False).stdout
[bad, inherited, 3 in sockets]
"""
    async with rig(tmp_path, level=level) as r:
        assert await r.value(code) == [[], "", True]


@each_level
async def test_nothing_planted_runs_in_the_next_worker(tmp_path: Path, level: str) -> None:
    code = """
import os
home, plant = os.environ['HOME'], "open('/dev/null'); import builtins; builtins.planted = True"
places = ['sitecustomize.py', 'usercustomize.py', 'IPython.py', 'asyncio.py', 'startup.pth', '.pythonstartup',
          home + '/.ipython/profile_default/startup/00.py', home + '/.local/lib/python3/site-packages/x.pth',
          os.environ['TMPDIR'] + '/sitecustomize.py']
for place in places:
    os.makedirs(os.path.dirname(os.path.abspath(place)), exist_ok=True)
    open(place, 'w').write(plant)
os.environ['PYTHONSTARTUP'] = os.path.abspath('.pythonstartup')
"""
    async with rig(tmp_path, level=level) as r:
        first = await r.value("import os; os.environ['HOME']")
        await r.python(code)
        await r.kernel.restart()
        await r.python("import builtins, os; home = os.environ['HOME']")
        assert await r.value("[hasattr(builtins, 'planted'), 'PYTHONSTARTUP' in os.environ]") == [
            False,
            False,
        ]
        assert await r.value("home") != first
        assert not await r.value("os.path.exists(home + '/.ipython/profile_default/startup/00.py')")


# ---------------------------------------------------------------- where it cannot be had


@isolates
async def test_a_workspace_reached_through_a_link_is_refused(tmp_path: Path, level: str) -> None:
    """Another worker may have swapped a folder on the way for a link to something of the user's."""
    (tmp_path / "private/work").mkdir(parents=True)
    (tmp_path / "shared").symlink_to("private")
    spec = spawn.WorkerSpec(level=level, workspace=str(tmp_path / "shared/work"), limits=Limits())
    kernel = LocalSandbox(spec, ReportLog())
    try:
        with pytest.raises(SandboxError, match="cannot be shown in a private root"):
            await kernel.start()
    finally:
        await kernel.close()


@pytest.mark.skipif(os.getuid() != 0, reason="only the workers of root are other users")
@isolates
async def test_a_file_system_without_idmapped_mounts(tmp_path: Path, level: str) -> None:
    """To be read it may still be; as a workspace it is refused, with what to do instead."""
    shown = "/sys/kernel"
    (tmp_path / "workspace").mkdir()
    for workspace, readable in ((str(tmp_path / "workspace"), (shown,)), (shown, ())):
        spec = spawn.WorkerSpec(level=level, workspace=workspace, readable=readable, limits=Limits())
        kernel = LocalSandbox(spec, ReportLog())
        try:
            if readable:
                assert (await kernel.start()).alive
            else:
                with pytest.raises(SandboxError, match=r'no idmapped mounts.*use level="confined"'):
                    await kernel.start()
        finally:
            await kernel.close()
