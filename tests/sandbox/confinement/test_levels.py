from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import threading
from pathlib import Path
from typing import Any

import pytest

import aisotools
from aisotools.core.exceptions import SandboxError
from aisotools.sandbox.confinement import landlock, levels
from aisotools.sandbox.confinement.levels import Confinement
from tests.sandbox import inside
from tests.sandbox.alone import in_one_thread
from tests.sandbox.conftest import Places
from tests.sandbox.inside import Who

WHO = ["root", "plain", "binder"]
can_confine = pytest.mark.skipif(
    landlock.abi() < levels.LANDLOCK_NEEDED["confined"],
    reason="this kernel cannot confine: Landlock is too old",
)


# ---------------------------------------------------------------- levels and plans


def test_levels_are_ordered() -> None:
    assert levels.LEVELS == ("limited", "guarded", "confined", "isolated")
    for weaker, stronger in zip(levels.LEVELS, levels.LEVELS[1:], strict=False):
        assert levels.at_least(stronger, weaker)
        assert not levels.at_least(weaker, stronger)
        assert levels.at_least(weaker, weaker)


@pytest.mark.parametrize("pair", [("tight", "limited"), ("limited", "Confined")])
def test_unknown_levels(pair: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match=r"there is no level .*limited, guarded, confined, isolated"):
        levels.at_least(*pair)


@pytest.mark.parametrize("path", ["/", "//", "/.", "/./", "/a/..", "relative", "", "~/x"])
def test_a_plan_takes_no_root_folder_and_no_relative_path(path: str) -> None:
    for writable, readable in (((path,), ()), (("/w",), (path,))):
        with pytest.raises(ValueError, match="absolute paths below the root folder"):
            Confinement(level="confined", writable=writable, readable=readable)


# ---------------------------------------------------------------- what an interpreter needs


def test_interpreter_paths_hold_the_interpreter_and_nobody_elses_data() -> None:
    paths = levels.interpreter_paths()

    def covered(path: str) -> bool:
        return any(path == folder or path.startswith(f"{folder}/") for folder in paths)

    package = str(Path(aisotools.__file__).parent)
    for needed in (
        sys.prefix,
        os.path.realpath(sys.executable),
        os.__file__,
        sysconfig.get_path("purelib"),
        package,
    ):
        assert covered(os.path.realpath(needed)), needed
    for forbidden in (
        *(
            "/",
            "/home",
            "/root",
            "/proc",
            "/proc/self",
            "/etc",
            "/etc/passwd",
            "/etc/shadow",
            "/etc/group",
            "/dev/shm",
        ),
        *(
            "/etc/ssl",
            "/etc/ssl/private",
            "/etc/pki/tls/private",
            "/etc/hosts",
            "/run",
            "/tmp",
            "/var",
            "/sys",
        ),
        *(str(Path.home()), str(Path.home() / ".ssh"), str(Path(package).parent / ".git")),
    ):
        assert not covered(forbidden), forbidden


def test_interpreter_paths_leave_out_plain_entries_of_the_path(place: Places) -> None:
    """An editable install puts the root of a repository on the path, with its .git and .env."""
    folder = place("plain")
    for name in ("repository", "env/lib/site-packages"):
        (folder / name).mkdir(parents=True)
    source = """
import sys
sys.path += ["", config + "/repository", config + "/env/lib/site-packages", config + "/missing/site-packages"]
from aisotools.sandbox.confinement import levels
answer = [path for path in levels.interpreter_paths() if path.startswith(config)]
"""
    done = inside.run(source, who="plain", workspace=str(folder), level=None, config=str(folder))  # type: ignore[arg-type] # any JSON will do
    assert done.answer == [f"{folder}/env/lib/site-packages"]


def test_interpreter_paths_refuse_a_prefix_that_holds_a_home() -> None:
    if sys.prefix.startswith("/usr"):
        pytest.skip("this interpreter is the system's, which is always readable")
    code = "from aisotools.sandbox.confinement import levels; levels.interpreter_paths()"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env={"HOME": f"{sys.prefix}/someone"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "which holds a home folder" in done.stderr
    assert "Use a Python in a virtual environment" in done.stderr


# ---------------------------------------------------------------- confining


def test_isolated_is_refused_in_the_namespaces_of_the_host() -> None:
    """Before anything is given up."""
    plan = Confinement(level="isolated", writable=("/tmp/x",))

    def refused() -> dict[str, Any]:
        try:
            levels.confine(plan)
        except SandboxError as error:
            return {"error": str(error), "flaws": list(levels.verify_confinement(plan))}
        return {}

    found = in_one_thread(refused)
    assert "step 'namespaces': the process is in the host's" in found["error"]
    assert "there is no system call filter" in found["flaws"]


@pytest.mark.parametrize(
    ("level", "at_most", "got"),
    [("limited", 7, 0), ("guarded", 1, 1), ("guarded", 5, 5), ("isolated", 0, 0), ("confined", 99, None)],
)
def test_an_older_landlock_can_be_pretended(level: str, at_most: int, got: int | None) -> None:
    expected = landlock.abi() if got is None else min(got, landlock.abi())
    assert levels.landlock_abi(level, at_most) == expected


@pytest.mark.parametrize(
    ("level", "at_most", "expected"),
    [
        ("isolated", 6, True),
        ("isolated", 5, False),
        ("confined", 6, True),
        ("confined", 5, False),
        ("confined", 0, False),
        ("guarded", 6, False),
        ("limited", 6, False),
    ],
)
def test_readers_take_level_confined_and_version_6_of_landlock(
    level: str, at_most: int, expected: bool
) -> None:
    offered = levels.landlock_abi("confined") >= 6
    assert levels.has_readers(level, at_most) is (expected and offered)


def test_a_process_with_threads_is_refused() -> None:
    """Landlock would hold for one of them only. This happens before anything is given up."""
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        with pytest.raises(SandboxError, match=r"step 'one thread': the process has \d+ threads"):
            levels.confine(Confinement(level="confined", writable=("/tmp/x",)))
    finally:
        done.set()
        thread.join()
    assert levels.verify_confinement(Confinement(level="limited", writable=()))


@can_confine
def test_a_missing_workspace_is_named(place: Places) -> None:
    folder = place("plain")
    source = """
from aisotools.core.exceptions import SandboxError
from aisotools.sandbox.confinement import levels
try:
    levels.confine(levels.Confinement(level="confined", writable=(config["missing"],)))
except SandboxError as error:
    answer = str(error)
"""
    missing = f"{folder}/missing"
    done = inside.run(source, who="plain", workspace=str(folder), level=None, config={"missing": missing})
    assert "step 'Landlock'" in done.answer
    assert missing in done.answer


@can_confine
@pytest.mark.parametrize(("level", "needed"), [("confined", 6), ("guarded", 1)])
def test_a_level_is_refused_below_the_landlock_that_it_takes(place: Places, level: str, needed: int) -> None:
    """Version 1 came with Linux 5.13 and version 6 with 6.12: the versions that README names."""
    source = """
from aisotools.core.exceptions import SandboxError
from aisotools.sandbox.confinement import levels
plan = levels.Confinement(
    level=config["level"],
    writable=(config["folder"],),
    readable=levels.interpreter_paths(),
    landlock_abi=config["abi"],
)
try:
    levels.confine(plan)
    answer = "confined"
except SandboxError as error:
    answer = str(error)
"""
    folder = str(place("plain"))

    def confine(abi: int) -> str:
        config = {"level": level, "folder": folder, "abi": abi}
        return str(inside.run(source, who="plain", workspace=folder, level=None, config=config).answer)

    assert confine(needed) == "confined"
    assert f"Landlock ABI {needed - 1}, and this level needs {needed}" in confine(needed - 1)


def test_verify_names_everything_that_does_not_hold(place: Places) -> None:
    source = """
from aisotools.sandbox.confinement import levels
answer = levels.verify_confinement(levels.Confinement(level="confined", writable=(config["workspace"],)))
"""
    folder = place("plain")
    (folder / "workspace").mkdir()
    config = {"workspace": f"{folder}/workspace"}
    failures = inside.run(source, who="plain", workspace=str(folder), level=None, config=config).answer
    assert set(failures) >= {
        "sockets can still be made",
        "the root folder can still be listed",
        "/proc can still be read",
        "what may be read can still be written",
        f"files can still be made in {str(folder)!r}",
    }
    in_a_container = re.search(r"^Seccomp:\s*2", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert in_a_container or set(failures) >= {
        "new privileges can still be gained",
        "there is no system call filter",
        "namespaces can still be made",
    }
    assert sorted(path.name for path in folder.iterdir()) == ["workspace"]


CAPABILITIES = """
import ctypes
from aisotools.sandbox.confinement import levels
libc = ctypes.CDLL(None)
answer = {
    "sets": levels._capabilities(),
    "bounding": [n for n in range(41) if libc.prctl(23, n, 0, 0, 0) == 1],
    "ambient": [n for n in range(41) if libc.prctl(47, 1, n, 0, 0) == 1],
    "securebits": libc.prctl(27, 0, 0, 0, 0),
}
"""


@can_confine
@pytest.mark.parametrize("level", ["limited", "confined"])
@pytest.mark.parametrize("who", WHO)
def test_no_capability_is_left(place: Places, who: Who, level: str) -> None:
    left = inside.run(CAPABILITIES, who=who, workspace=str(place(who)), level=level).answer
    assert left["sets"] == [0] * 6
    assert left["ambient"] == []
    if who == "root":
        assert left["bounding"] == []
        assert left["securebits"] == 0xEF  # root is nobody, and that is locked


@can_confine
def test_root_without_setpcap_gives_up_what_it_has(place: Places) -> None:
    """As in a container that took that one away: the bounding set cannot be emptied, the others can."""
    source = """
import struct
from aisotools.sandbox.confinement import levels, syscalls
sets = list(levels._capabilities())
without = [word & ~(1 << 8) for word in sets]
syscalls.call("capset", levels._CAPABILITY_HEADER, struct.pack("=6I", *without))
paths = levels.interpreter_paths()
plan = levels.Confinement(level="confined", writable=(config["workspace"],), readable=paths)
levels.confine(plan)
answer = [list(levels.verify_confinement(plan)), list(levels._capabilities())]
"""
    folder = str(place("root"))
    done = inside.run(source, who="root", workspace=folder, level=None, config={"workspace": folder})
    assert done.answer == [[], [0] * 6]


@can_confine
def test_confinement_is_inherited(place: Places) -> None:
    source = """
import subprocess, sys
code = "import os; print([os.path.exists('/etc/passwd')], end=''); open('/etc/passwd')"
done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
answer = [done.stdout, done.stderr.splitlines()[-1], done.returncode]
"""
    done = inside.run(source, who="plain", workspace=str(place("plain")))
    assert done.answer == ["[True]", "PermissionError: [Errno 13] Permission denied: '/etc/passwd'", 1]


@can_confine
def test_confining_again_only_narrows(place: Places) -> None:
    source = """
import os
from aisotools.sandbox.confinement import levels
os.mkdir("inner")
inner = os.path.abspath("inner")
paths = (*levels.interpreter_paths(), "/etc")
plan = levels.Confinement(level="confined", writable=(inner,), readable=paths)
levels.confine(plan)
answer = list(levels.verify_confinement(plan))
for path in ("/etc/passwd", "outer"):
    try:
        open(path, "w" if path == "outer" else "r").close()
        answer.append(path)
    except PermissionError:
        pass
"""
    assert inside.run(source, who="plain", workspace=str(place("plain"))).answer == []
