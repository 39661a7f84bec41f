"""What a worker finds in the memory that it inherits from the fork server: nothing of any session."""

from __future__ import annotations

from pathlib import Path

import pytest

from aisotools.sandbox.confinement.levels import LEVELS
from aisotools.sandbox.process import spawn
from tests.sandbox.rig import rig

# The needle comes in two halves, so that looking for it does not put it there.
SEARCH = """
def search(first, second):
    needle = first.encode() + second.encode()
    found = []
    own = {id(needle)}
    with open('/proc/self/maps') as maps, open('/proc/self/mem', 'rb', 0) as memory:
        for line in maps:
            span, rights, *_ = line.split()
            if 'r' not in rights or '[v' in line:
                continue
            start, end = (int(number, 16) for number in span.split('-'))
            try:
                memory.seek(start)
                content = memory.read(end - start)
            except (OSError, ValueError):
                continue
            at = content.find(needle)
            while at >= 0:
                if not start + at - id(needle) in range(0, 64):
                    found.append(hex(start + at))
                at = content.find(needle, at + 1)
            del content
    return found
"""

LAYOUT = """
import ctypes
[hash('a text'), id(len), ctypes.cast(ctypes.pythonapi.Py_Initialize, ctypes.c_void_p).value]
"""


@pytest.mark.parametrize("level", LEVELS)
async def test_workers_of_one_host_share_addresses_and_the_seed_of_hashes(tmp_path: Path, level: str) -> None:
    """What is left open, and said: they are forks of one process."""
    if not any(probe.name == level and probe.ok for probe in spawn.detection().probes):
        pytest.skip(f"this machine cannot hold the level {level}")
    async with rig(tmp_path, level=level, name="one") as one, rig(tmp_path, level=level, name="two") as two:
        assert await one.value(LAYOUT) == await two.value(LAYOUT)


isolates = pytest.mark.skipif(
    spawn.detection().level != "isolated", reason="below level isolated a worker cannot read /proc"
)


@isolates
async def test_nothing_of_an_earlier_session_is_there(tmp_path: Path) -> None:
    marker = "of-another-session-" + tmp_path.name[::-1]
    half = len(marker) // 2
    async with rig(tmp_path, level="isolated", name=f"{marker}-1") as first:
        home = (await first.value("import os; os.environ['HOME']")).split("/")[-2]
        # The control: what is in a worker's memory is found.
        assert await first.value(f"{SEARCH}search({marker[:half]!r}, {marker[half:]!r})") != []
        async with rig(tmp_path, level="isolated", name="second") as second:
            for name, at in ((marker, half), (home, len(home) - 6)):
                code = f"{SEARCH}search({name[:at]!r}, {name[at:]!r})"
                assert await second.value(code) == [], name
