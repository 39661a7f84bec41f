from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import pytest

from aisotools.core.exceptions import LevelUnavailable, SandboxError
from aisotools.sandbox.confinement import detect, landlock, levels
from aisotools.sandbox.confinement.detect import (
    ENABLED_BY,
    PROTECTS,
    Detection,
    Probe,
    choose_level,
    detect_in_subprocess,
    detection_from_json,
)
from tests.sandbox import inside
from tests.sandbox.conftest import Places
from tests.sandbox.inside import Who

PROBES = (
    Probe("landlock", False, "ABI 4 (level confined needs 6)"),
    Probe("seccomp", True, "a filter loads"),
)


def found(level: str | None) -> Detection:
    return Detection(level, PROBES)


# ---------------------------------------------------------------- choosing


@pytest.mark.parametrize(
    ("level", "min_level", "environ", "holds", "chosen"),
    [
        (None, None, {}, "confined", "confined"),
        (None, None, {}, "guarded", "guarded"),
        (None, None, {}, "isolated", "isolated"),
        ("confined", None, {}, "confined", "confined"),
        ("guarded", None, {}, "confined", "guarded"),
        ("limited", None, {}, "confined", "limited"),  # exactly that, though more would hold
        ("confined", None, {}, "isolated", "confined"),
        (None, "limited", {}, "confined", "confined"),
        (None, "limited", {}, "limited", "limited"),
        (None, "guarded", {}, "confined", "confined"),
        (None, None, {"AISOTOOLS_MIN_LEVEL": "limited"}, "limited", "limited"),
        (None, None, {"AISOTOOLS_MIN_LEVEL": "limited"}, "confined", "confined"),
        (None, None, {"AISOTOOLS_MIN_LEVEL": ""}, "confined", "confined"),
        (None, "limited", {"AISOTOOLS_MIN_LEVEL": "confined"}, "limited", "limited"),
        ("limited", None, {"AISOTOOLS_MIN_LEVEL": "confined"}, "confined", "limited"),
        ("confined", "limited", {}, "confined", "confined"),
    ],
)
def test_choice(
    level: str | None, min_level: str | None, environ: Mapping[str, str], holds: str, chosen: str
) -> None:
    assert choose_level(level, min_level, environ, found(holds)) == chosen


@pytest.mark.parametrize(
    ("level", "min_level", "environ", "holds"),
    [
        (None, None, {}, "limited"),  # not a sandbox, and nobody asked for less
        (None, None, {}, None),
        ("confined", None, {}, "limited"),
        ("confined", None, {}, "guarded"),
        ("limited", None, {}, None),
        (None, "confined", {}, "guarded"),
        (None, "isolated", {}, "confined"),
        (None, None, {"AISOTOOLS_MIN_LEVEL": "confined"}, "limited"),
        (None, "confined", {"AISOTOOLS_MIN_LEVEL": "limited"}, "limited"),
    ],
)
def test_refusal(
    level: str | None, min_level: str | None, environ: Mapping[str, str], holds: str | None
) -> None:
    with pytest.raises(LevelUnavailable) as error:
        choose_level(level, min_level, environ, found(holds))
    story = str(error.value)
    assert "landlock: ABI 4" in story
    assert 'choose level="limited" knowingly' in story
    assert "aisotools doctor" in story


@pytest.mark.parametrize(
    ("level", "min_level", "environ", "named"),
    [
        ("paranoid", None, {}, "level is 'paranoid'"),
        (None, "LIMITED", {}, "min_level is 'LIMITED'"),
        (None, None, {"AISOTOOLS_MIN_LEVEL": "none"}, "AISOTOOLS_MIN_LEVEL is 'none'"),
    ],
)
def test_unknown_names(
    level: str | None, min_level: str | None, environ: Mapping[str, str], named: str
) -> None:
    with pytest.raises(ValueError, match=f"{named}.*limited, guarded, confined, isolated"):
        choose_level(level, min_level, environ, found("confined"))


def test_contradiction() -> None:
    with pytest.raises(ValueError, match="level='limited' is weaker than min_level='confined'"):
        choose_level("limited", "confined", {}, found("confined"))


def test_every_level_says_what_it_protects_and_what_not() -> None:
    assert tuple(PROTECTS) == levels.LEVELS
    for sentences in PROTECTS.values():
        assert all(s[0].isupper() and s.endswith(".") and s.count(".") == 1 for s in sentences)
    assert set(ENABLED_BY) == set(levels.LEVELS)


def test_a_level_that_failed_cannot_be_had_though_a_stronger_one_holds() -> None:
    """Namespaces without Landlock: `isolated` holds, `confined` does not."""
    probes = (Probe("isolated", True, "holds"), Probe("confined", False, "no Landlock"))
    detection = Detection("isolated", probes)
    assert choose_level("isolated", None, {}, detection) == "isolated"
    assert choose_level(None, "confined", {}, detection) == "isolated"
    with pytest.raises(LevelUnavailable, match="exactly 'confined'"):
        choose_level("confined", None, {}, detection)


# ---------------------------------------------------------------- JSON


def test_json_comes_back() -> None:
    detection = found("confined")
    assert detection_from_json(json.loads(json.dumps(asdict(detection)))) == detection


@pytest.mark.parametrize(
    "value", [None, [], {}, {"level": "x", "probes": []}, {"level": None, "probes": [{}]}]
)
def test_other_json_is_an_error(value: object) -> None:
    with pytest.raises(SandboxError, match="no sensible answer"):
        detection_from_json(value)


# ---------------------------------------------------------------- trying


def best(probes: Mapping[str, Probe]) -> str:
    """The level that should hold, by what was found of the means."""
    if probes["user namespaces"].ok:
        return "isolated"
    abi = landlock.abi()
    return "confined" if abi >= 6 else "guarded" if abi else "limited"


def test_detection_from_a_process_with_threads() -> None:
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        detection = detect_in_subprocess()
    finally:
        done.set()
        thread.join()
    probes = {probe.name: probe for probe in detection.probes}
    assert set(probes) == {
        *("landlock", "seccomp", "isolated", "confined", "guarded", "limited"),
        *("user namespaces", "not root", "cgroup v2"),
    }
    can_confine = landlock.abi() >= levels.LANDLOCK_NEEDED["confined"]
    assert probes["landlock"].ok is can_confine
    assert detection.level == best(probes), probes
    assert probes["not root"].ok is (os.getuid() != 0)
    assert all(probe.detail for probe in detection.probes)


@pytest.mark.parametrize("who", ["plain", "binder"])
def test_detection_as_others(place: Places, who: Who) -> None:
    source = """
from dataclasses import asdict
from aisotools.sandbox.confinement import detect
answer = asdict(detect.detect())
"""
    detection = detection_from_json(inside.run(source, who=who, workspace=str(place(who)), level=None).answer)
    probes = {probe.name: probe for probe in detection.probes}
    assert detection.level == best(probes), probes
    assert probes["not root"].ok
    if who == "binder":
        assert not probes["user namespaces"].ok
        assert "Namespaces of its own could not be made" in probes["isolated"].detail


@pytest.mark.skipif(landlock.abi() < 6, reason="this kernel cannot confine: Landlock is too old")
def test_detection_inside_a_confinement(place: Places) -> None:
    """Where everything is refused already, it says so instead of failing."""
    source = """
from dataclasses import asdict
from aisotools.sandbox.confinement import detect
answer = asdict(detect.detect())
"""
    detection = detection_from_json(inside.run(source, who="plain", workspace=str(place("plain"))).answer)
    assert detection.level in {None, "limited", "confined"}


def answer_on_an_unknown_machine(place: Places, code: str) -> Any:
    """Return what `code` prints as JSON. A process may ask to be told that it runs on an older machine."""
    source = """
import ctypes, json, subprocess, sys
possible = ctypes.CDLL(None).personality(8) >= 0  # Linux on 32 bits, of which we have no table
done = subprocess.run([sys.executable, "-P", "-c", config["code"]], capture_output=True, text=True)
answer = [json.loads(done.stdout or "{}") or done.stderr] if possible else None
"""
    done = inside.run(source, who="plain", workspace=str(place("plain")), level=None, config={"code": code})
    if done.answer is None:
        pytest.skip("a container's filter refuses personality()")
    return done.answer[0]


def test_a_machine_we_do_not_know(place: Places) -> None:
    code = """
import json
from aisotools.core.exceptions import LevelUnavailable
from aisotools.sandbox.confinement import detect, levels, syscalls
from dataclasses import asdict
assert syscalls.architecture() is None
plan = levels.Confinement(level="limited", writable=())
levels.confine(plan)
assert levels.verify_confinement(plan) == ()
plan = levels.Confinement(level="confined", writable=("/tmp",))
assert levels.verify_confinement(plan) != ()
try:
    levels.confine(plan)
except LevelUnavailable:
    print(json.dumps(asdict(detect.detect())))
"""
    detection = detection_from_json(answer_on_an_unknown_machine(place, code))
    assert detection.level == "limited"
    assert [probe.name for probe in detection.probes] == ["machine"]


def test_resource_limits_are_all_there_is_on_a_machine_we_do_not_know(place: Places) -> None:
    code = """
import json, socket
from aisotools.sandbox.confinement import levels, syscalls
from aisotools.sandbox.limits import Limits, apply_rlimits
assert syscalls.architecture() is None
apply_rlimits(Limits(file_bytes=1 << 20))
levels.confine(levels.Confinement(level="limited", writable=()))
def attempt(action):
    try:
        action()
    except OSError:
        return False
    return True
print(json.dumps([
    attempt(lambda: open("small", "wb").write(bytes(1 << 19))),
    attempt(lambda: open("large", "wb").write(bytes(2 << 20))),
    attempt(lambda: socket.socket().close()),
]))
"""
    assert answer_on_an_unknown_machine(place, code) == [True, False, True]


def test_detection_runs_as_a_program() -> None:
    argv = [sys.executable, "-P", "-m", "aisotools.sandbox.confinement.detect"]
    done = subprocess.run(argv, capture_output=True, check=True)
    assert detection_from_json(json.loads(done.stdout)).probes


def test_no_answer_in_time() -> None:
    with pytest.raises(SandboxError, match="could not be tried"):
        detect_in_subprocess(timeout_s=0.001)


ATTEMPTS = """
from aisotools.sandbox.confinement import detect
import os
answer = {}
with detect.probe_paths() as place:
    for name, action in (*detect._PROCESS_ATTEMPTS, *detect._FILE_ATTEMPTS, *detect._PRETENDED_ATTEMPTS):
        child = os.fork()
        if child == 0:
            before = detect.fingerprint(place)
            try:
                action(place)
            except OSError:
                os._exit(1)
            changes = name in {name for name, _ in detect._PRETENDED_ATTEMPTS}
            os._exit(1 if changes and detect.fingerprint(place) == before else 0)
        answer[name] = os.waitpid(child, 0)[1] == 0
        if not place.secret.exists():
            place.secret.write_text("secret")
"""


def test_the_self_test_attempts_succeed_where_nothing_confines(place: Places) -> None:
    answer = inside.run(ATTEMPTS, who="plain", workspace=str(place("plain")), level=None).answer
    # mounting and raw sockets are refused to every user; the machine may fence off namespaces and memory
    uncertain = {
        "mount",
        "make a raw socket",
        "write /proc/sys",
        "make a namespace",
        "read another process's memory",
    }
    assert {name for name, succeeded in answer.items() if not succeeded} <= uncertain


def test_the_self_test_leaves_nothing_behind(place: Places) -> None:
    folder = place("plain")
    inside.run(ATTEMPTS, who="plain", workspace=str(folder), level=None)
    assert list(folder.iterdir()) == []


def test_probe_paths_have_victims() -> None:
    with detect.probe_paths() as place:
        before = detect.fingerprint(place)
        place.secret.chmod(0o640)
        assert detect.fingerprint(place) != before
        root = place.workspace.parent
    assert not root.exists()
