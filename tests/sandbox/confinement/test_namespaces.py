"""Who a worker is, and the processes of its namespaces: who their parent is, and with whom they end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aisotools.core.exceptions import SandboxError
from aisotools.sandbox.confinement import namespaces, rootfs
from aisotools.sandbox.confinement.namespaces import Identity, UserNamespaces
from aisotools.sandbox.process import spawn
from tests.sandbox import inside
from tests.sandbox.conftest import Places
from tests.sandbox.inside import Who

# ---------------------------------------------------------------- who the worker is

ALL_IDS = "         0          0 4294967295\n"


def test_a_root_user_has_ids_to_spare() -> None:
    first, second = namespaces.spare_id(ALL_IDS, 1), namespaces.spare_id(ALL_IDS, 2)
    assert first is not None
    assert second is not None
    assert first != second
    assert 1 << 29 < first < 1 << 31  # above what accounts and containers have, and still a positive number


def test_in_a_container_of_few_ids_one_of_the_last_is_taken() -> None:
    for seed in (0, 1, 4095, 4096, 123456):
        found = namespaces.spare_id("0 100000 65536\n", seed)
        assert found is not None
        assert 60000 < found < 65534, "65534 is `nobody`, who owns files, and 65535 is not an id"


@pytest.mark.parametrize(("last", "found"), [(1001, None), (1002, 1000)])
def test_a_system_account_is_never_taken(last: int, found: int | None) -> None:
    assert namespaces.spare_id(f"0 100000 {last + 1}\n", 7) == found


@pytest.mark.parametrize("table", ["0 1000 1\n", "", "0 100000 500\n"])
def test_without_ids_to_spare_there_is_none(table: str) -> None:
    assert namespaces.spare_id(table, 7) is None


def test_an_ordinary_user_stays_who_it_is() -> None:
    found = namespaces.identity(5)
    if os.geteuid() == 0:
        assert not found.is_ours
        assert 0 not in found.outer
        assert 0 not in found.inner
    else:
        assert found.is_ours
        assert found.inner == found.outer


# ---------------------------------------------------------------- whose files are whose


@pytest.fixture
def users() -> Iterator[UserNamespaces]:
    made = UserNamespaces(Identity(outer=(1 << 30, 1 << 30), inner=(1000, 1000)))
    yield made
    made.close()


def test_the_worker_s_own_files_need_no_namespace(tmp_path: Path) -> None:
    status = tmp_path.stat()
    own = UserNamespaces(Identity(outer=(status.st_uid, status.st_gid), inner=(1000, 1000)))
    assert own.for_owner(status) is None
    assert own.descriptors == frozenset()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a worker another user")
def test_there_is_one_namespace_for_each_owner(tmp_path: Path, users: UserNamespaces) -> None:
    for name, owner in (("one", 2001), ("two", 2001), ("three", 2002)):
        (tmp_path / name).mkdir()
        os.chown(tmp_path / name, owner, owner)
    found = [users.for_owner((tmp_path / name).stat()) for name in ("one", "two", "three")]
    assert found[0] == found[1] != found[2]
    assert users.descriptors == {found[0], found[2]}
    assert isinstance(found[0], int)
    assert Path(f"/proc/self/fd/{found[0]}").readlink().name.startswith("user:")
    users.close()
    assert users.descriptors == frozenset()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(found[0])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a worker another user")
def test_prepared_user_namespaces_are_used(tmp_path: Path, users: UserNamespaces) -> None:
    assert users.descriptors == frozenset()
    status = tmp_path.stat()
    users.prepare((status.st_uid, status.st_gid))
    assert users.descriptors == {users.for_owner(tmp_path.stat())}


def test_a_worker_who_is_ourselves_prepares_nothing(tmp_path: Path) -> None:
    ours = UserNamespaces(Identity(outer=(os.geteuid(), os.getegid()), inner=(1000, 1000)))
    ours.prepare((tmp_path.stat().st_uid, tmp_path.stat().st_gid))
    ours.prepare((0, 0))
    assert ours.descriptors == frozenset()


# ---------------------------------------------------------------- the processes inside


def held_or_skip() -> None:
    if "isolated" not in {probe.name for probe in spawn.detection().probes if probe.ok}:
        pytest.skip("this machine does not hold level isolated")


START = """
import json, os, signal, time
from aisotools.core.exceptions import SandboxError
from aisotools.sandbox.confinement import namespaces, rootfs
from aisotools.sandbox.process import tree

plan = rootfs.plan_root(
    interpreter={},
    readable={},
    workspace=config["workspace"],
    scratch=config["scratch"],
    memory_bytes=1 << 20,
)
users = namespaces.UserNamespaces(namespaces.identity(os.getpid()))
reading, writing = os.pipe()

def child(entry):
    try:
        entry.bind_to_supervisor()
        facts = {
            "pid": os.getpid(),
            "parent": os.getppid(),
            "host": os.uname().nodename,
            "trees": sorted(entry.trees),
            "is root": os.getuid() == 0,
        }
        os.write(writing, json.dumps(facts).encode())
        while True:
            signal.pause()
    finally:
        os._exit(1)

tree.become_subreaper()
"""


def run(source: str, who: Who, place: Places, workspace: str = "") -> Any:
    held_or_skip()
    folder = place(who)
    config = {"workspace": workspace or str(folder), "scratch": str(folder)}
    return inside.run(START + source, who=who, workspace=str(folder), level=None, config=config).answer


@pytest.mark.parametrize("who", ["root", "plain"])
def test_both_are_children_of_the_supervisor_and_end_with_init(place: Places, who: Who) -> None:
    source = """
started = namespaces.start_in_namespaces(users, plan, child)
answer = json.loads(os.read(reading, 10_000))
me = os.getpid()
answer["children"] = [tree.parent_of(pid) == me for pid in (started.worker, started.init)]
with open(f"/proc/{started.init}/status") as file:
    answer["init"] = file.read().partition("NSpid:")[2].split("\\n")[0].split()[-1]
os.kill(started.init, signal.SIGKILL)
answer["status"] = os.waitpid(started.worker, 0)[1]
answer["expected trees"] = sorted({config["workspace"], config["scratch"]})
"""
    found = run(source, who, place)
    assert found.pop("trees") == found.pop("expected trees")
    assert found == {
        "pid": 2,
        "parent": 0,
        "host": "sandbox",
        "is root": False,
        "children": [True, True],
        "init": "1",
        "status": 9,
    }


def test_both_end_with_the_supervisor(place: Places) -> None:
    source = """
report, reporting = os.pipe()
supervisor = os.fork()
if supervisor == 0:
    tree.become_subreaper()
    started = namespaces.start_in_namespaces(users, plan, child)
    os.read(reading, 10_000)
    os.write(reporting, json.dumps([started.worker, started.init]).encode())
    signal.pause()
pids = json.loads(os.read(report, 1000))
os.kill(supervisor, signal.SIGKILL)
while any(map(tree.parent_of, pids)):
    tree.reap()  # init cannot end before the worker is reaped
    time.sleep(0.001)
answer = "gone"
"""
    assert run(source, "plain", place) == "gone"


def test_a_folder_that_cannot_be_mounted_is_named(place: Places) -> None:
    source = """
try:
    namespaces.start_in_namespaces(users, plan, child)
except SandboxError as error:
    answer = str(error)
"""
    found = run(source, "plain", place, workspace="/no/such/folder")
    assert "Namespaces of its own could not be made for the worker" in found
    assert "'/no/such/folder' cannot be shown in a private root" in found


@pytest.mark.parametrize(
    ("released", "supervisor", "status"), [(b"", "gone", 1), (b"12", "gone", 1), (b"12", "there", 0)]
)
def test_a_worker_that_waits_for_a_dead_supervisor_exits(
    released: bytes, supervisor: str, status: int
) -> None:
    """Also where it was killed just after it released those who wait."""
    adopted, releasing = os.pipe()
    os.write(releasing, released)
    if supervisor == "gone":
        os.close(releasing)
    pid = os.fork()
    if pid == 0:
        try:
            if supervisor == "there":
                os.close(releasing)
            empty = rootfs.RootPlan(binds=(), links=(), memory=(), workspace="/", alias=False)
            network = os.open(os.devnull, os.O_RDONLY)  # at its end: the loopback is on
            namespaces.NamespaceEntry(empty, {}, adopted, network).bind_to_supervisor()
        finally:
            os._exit(0)
    _, ended = os.waitpid(pid, 0)
    os.close(adopted)
    if supervisor == "there":
        os.close(releasing)
    assert os.waitstatus_to_exitcode(ended) == status


def test_a_root_without_ids_to_spare_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(namespaces, "spare_id", lambda _table, _seed: None)
    with pytest.raises(SandboxError, match="no ids to spare"):
        namespaces.identity(5)


LOOPBACK = """
import json, os, socket, sys
from aisotools.sandbox.confinement import namespaces, syscalls

syscalls.call("unshare", namespaces._CLONE_NEWUSER | namespaces._CLONE_NEWNET)
namespaces.prepare_loopback()
with open("/proc/sys/net/ipv4/tcp_rmem") as file:
    buffers = file.read().split()
os.chroot(sys.argv[1])
namespaces.switch_on_loopback()
usable = []
for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.bind((address, 0))
        probe.connect(probe.getsockname())
        usable.append(address)
print(json.dumps([buffers, usable]))
"""


@pytest.mark.skipif(not Path("/proc/sys/net/ipv6").exists(), reason="this kernel has no IPv6")
@pytest.mark.skipif(
    not any(probe.name == "isolated" and probe.ok for probe in spawn.detection().probes),
    reason="network namespaces take what level isolated takes",
)
def test_a_loopback_is_switched_on_where_there_are_no_files(tmp_path: Path) -> None:
    """The worker builds its root meanwhile: at times there is no /proc, later one without settings."""
    done = subprocess.run(
        [sys.executable, "-c", LOOPBACK, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == [["4096", "65536", "262144"], ["127.0.0.1", "::1"]]
