from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from aisotools.sandbox.confinement import landlock
from aisotools.sandbox.confinement.landlock import Right
from tests.sandbox import inside
from tests.sandbox.conftest import Places

pytestmark = pytest.mark.skipif(landlock.abi() == 0, reason="this kernel offers no Landlock")
ABIS = range(1, landlock.KNOWN_ABI + 1)
NEVER = Right.MAKE_CHAR | Right.MAKE_BLOCK | Right.MAKE_SOCK | Right.IOCTL_DEV | Right.RESOLVE_UNIX


def test_rights_grow_with_the_version() -> None:
    assert int(landlock.all_rights(1)) == 0x1FFF
    assert int(landlock.all_rights(2)) == 0x3FFF
    assert int(landlock.all_rights(3)) == int(landlock.all_rights(4)) == 0x7FFF
    assert int(landlock.all_rights(5)) == int(landlock.all_rights(8)) == 0xFFFF
    assert int(landlock.all_rights(9)) == 0x1FFFF


@given(abi=st.sampled_from(ABIS))
def test_ruleset_handles_everything_and_grants_little(abi: int) -> None:
    rules = landlock.ruleset(["/usr"], ["/workspace"], abi)
    granted = dict(rules.grants)
    assert rules.files == landlock.all_rights(abi)
    assert granted["/usr"] == Right.EXECUTE | Right.READ_FILE | Right.READ_DIR
    assert granted["/workspace"] == landlock.all_rights(abi) & ~NEVER
    assert not any(rights & NEVER for rights in granted.values())
    assert {path for path, rights in rules.grants if rights & Right.WRITE_FILE} == {
        *("/workspace", "/dev/null", "/dev/zero")
    }
    assert rules.required == {"/workspace"}


@pytest.mark.parametrize(
    ("abi", "network", "scopes"), [(3, 0, 0), (4, 3, 0), (6, 3, 3), (9, 3, 3), (10, 15, 3)]
)
def test_ruleset_refuses_network_and_signals_where_it_can(abi: int, network: int, scopes: int) -> None:
    rules = landlock.ruleset([], [], abi)
    assert (rules.network, rules.scopes) == (network, scopes)


@pytest.mark.parametrize("inside_it", ["/w/data", "/w/./data/", "/w//a/../data"])
def test_a_readable_path_below_a_writable_folder_gets_no_rule(inside_it: str) -> None:
    """A worker could have put a link to anywhere in its place before the next one starts."""
    assert inside_it not in dict(landlock.ruleset([inside_it], ["/w"], 7).grants)
    assert "/world" in dict(landlock.ruleset(["/world"], ["/w"], 7).grants)


@given(abi=st.sampled_from(ABIS))
def test_read_only_takes_every_way_to_change_and_no_way_to_read(abi: int) -> None:
    rules = landlock.read_only_ruleset(abi)
    reading = Right.EXECUTE | Right.READ_FILE | Right.READ_DIR
    assert rules.files & reading == 0
    assert rules.files | reading | Right.IOCTL_DEV | Right.RESOLVE_UNIX >= landlock.all_rights(abi)
    assert {path for path, _ in rules.grants} == {"/dev/null", "/dev/zero"}
    assert bool(rules.scopes) is (abi >= 6)  # signals to the worker and its tasks


def test_enforcing_without_landlock_is_an_error() -> None:
    with pytest.raises(OSError, match="no Landlock"):
        landlock.enforce(landlock.ruleset([], [], 1), 0)


ATTEMPTS = """
import os, socket
from pathlib import Path
from aisotools.sandbox.confinement import landlock

work, outside, shown = (Path(config["place"]) / name for name in ("work", "outside", "shown"))
for folder in (work, outside, shown):
    folder.mkdir()
    (folder / "file").write_text("secret")
(work / "sub").mkdir()
readable = ["/usr", "/lib", "/lib64", "/bin", str(shown), "/no/such/path"]
landlock.restrict(readable, [str(work)], version=config["abi"])
answer = {}
def attempt(name, action):
    try:
        action()
        answer[name] = "done"
    except OSError as error:
        answer[name] = type(error).__name__
attempt("read outside", (outside / "file").read_text)
attempt("list outside", lambda: os.listdir(outside))
attempt("write outside", lambda: (outside / "new").write_text(""))
attempt("read shown", (shown / "file").read_text)
attempt("list shown", lambda: os.listdir(shown))
attempt("write shown", lambda: (shown / "file").write_text(""))
attempt("truncate shown", lambda: os.truncate(shown / "file", 0))
attempt("write work", lambda: (work / "new").write_text("x"))
attempt("rename within", lambda: (work / "new").rename(work / "newer"))
attempt("rename across", lambda: (work / "newer").rename(work / "sub/newest"))
attempt("symlink", lambda: (work / "link").symlink_to(outside))
attempt("fifo", lambda: os.mkfifo(work / "fifo"))
attempt("through the symlink", lambda: (work / "link/file").read_text())
attempt("socket node", lambda: socket.socket(socket.AF_UNIX).bind(str(work / "socket")))
attempt("run", lambda: os.posix_spawn("/usr/bin/true", ["true"], {}))
attempt("null", lambda: Path("/dev/null").write_text("x"))
attempt("zero", lambda: Path("/dev/zero").open("r+b", buffering=0).write(b"x"))
attempt("urandom", lambda: Path("/dev/urandom").open("rb").read(1))
attempt("urandom written", lambda: Path("/dev/urandom").open("wb"))
attempt("full", lambda: Path("/dev/full").open("rb").read(1))
attempt("full written", lambda: Path("/dev/full").open("wb"))
attempt("tcp", lambda: socket.create_server(("127.0.0.1", 0)))
attempt("signal", lambda: os.kill(os.getppid(), 0))
"""


@pytest.mark.parametrize("abi", [1, 2, 3, 4, 5, 6, landlock.KNOWN_ABI])
def test_restrict(place: Places, abi: int) -> None:
    if abi > landlock.abi() and abi != landlock.KNOWN_ABI:
        pytest.skip(f"this kernel offers Landlock ABI {landlock.abi()}")
    folder = place("plain")
    config = {"place": str(folder), "abi": abi}
    done = inside.run(ATTEMPTS, who="plain", workspace=str(folder), level=None, config=config)
    allowed = {name for name, result in done.answer.items() if result == "done"}
    expected = {
        *("read shown", "list shown", "write work", "rename within", "symlink", "fifo", "run"),
        *("null", "zero", "urandom", "full"),
    }
    expected |= {"rename across"} if abi >= 2 else set()
    expected |= {"truncate shown"} if abi < 3 else set()
    expected |= {"tcp"} if abi < 4 else set()
    if "signal" in allowed:  # the parent is another user where the test runs as root
        expected |= {"signal"}
        assert abi < 6
    assert allowed == expected


def test_errata_are_numbers() -> None:
    assert all(number > 0 for number in landlock.errata())


def test_a_missing_writable_folder_is_an_error(place: Places) -> None:
    folder = place("plain")
    source = """
from aisotools.sandbox.confinement import landlock
answer = []
open("file", "w").close()
for path in ("missing", "file"):
    try:
        landlock.restrict([], [path])
    except NotADirectoryError as error:
        answer.append(str(error))
"""
    answer = inside.run(source, who="plain", workspace=str(folder), level=None).answer
    assert ["missing" in answer[0], "file" in answer[1]] == [True, True]


def test_read_only_is_stacked_on_a_child(place: Places) -> None:
    """Below a confined worker: the child can read all the worker can, and change nothing."""
    folder = place("plain")
    source = """
import os, subprocess, time
from aisotools.sandbox.confinement import landlock
open("kept", "w").write("kept")
def run(command):
    argv = ["/bin/sh", "-c", command]
    done = subprocess.run(argv, preexec_fn=landlock.restrict_read_only, capture_output=True)
    return [done.returncode == 0, done.stdout.decode()]
answer = {command: run(command) for command in (
    "cat kept", "ls", "echo x > kept", "echo x > new", "rm kept", "mkdir d", "ln -s a b", "mv kept moved",
    ": > kept", "echo gone > /dev/null", "python3 -c 'open(\\"kept\\", \\"r+\\")'", "echo a | cat",
)}
open("kept", "a").write(" and writable again")
answer["after"] = open("kept").read()
"""
    answer = inside.run(source, who="plain", workspace=str(folder)).answer
    assert answer.pop("after") == "kept and writable again"
    assert answer["cat kept"] == [True, "kept"]
    assert answer["ls"] == [True, "kept\n"]
    assert {command for command, (ok, _) in answer.items() if ok} == {
        *("cat kept", "ls", "echo gone > /dev/null", "echo a | cat")
    }
