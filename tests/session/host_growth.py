"""Growth of the host in one hostile scenario, in an interpreter of its own.

`python -m tests.session.host_growth NAME FOLDER [BUDGET]`
prints a JSON object: resident memory before and after in bytes, what the session says that it retains, and
how many events it has dropped.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
from pathlib import Path
from typing import Any

from aisotools.policy.approvers import AllowAll
from aisotools.session.session import Session
from tests.sandbox.rig import rss_bytes
from tests.sandbox.test_hostile import FIND_CHANNEL

EMIT = """
for n in range({count}):
    send(frame({{'op': 'emit', 'id': NUMBER, 'name': 'progress', 'payload': {payload}}}))
"""
PRINT = """
for n in range(20_000):
    send(frame({'op': 'out', 'id': 'NUMBER', 'stream': ('stdout', 'stderr')[n % 2], 'text': 'ab'}))
"""

# Each is run this often, after the channel was found.
SCENARIOS: dict[str, tuple[int, str]] = {
    "emit of many lists": (1, EMIT.format(count=300, payload="{'a': [[]] * 40_000}")),
    "emit of many objects": (1, EMIT.format(count=300, payload="{'a': [{'b': 1.5}] * 12_000}")),
    "emit of wide text": (1, EMIT.format(count=300, payload="{'a': '\\U0001f600x' * 25_000}")),
    "emits that are small": (6, EMIT.format(count=2_000, payload="{'n': n, 'text': 'x' * 3_000}")),
    "result of many lists": (2, "RESULT[[]] * 1_000_000"),
    "result of many objects": (2, "RESULT[{'a': n, 'b': 'x%d' % n} for n in range(500_000)]"),
    "result of many floats": (2, "RESULT[n + 0.5 for n in range(1_200_000)]"),
    "metadata of many lists": (2, "METADATA[[]] * 1_000_000"),
    "displays": (
        5,
        "from IPython.display import display, HTML\nfor n in range(14): display(HTML('x' * 1_000_000))",
    ),
    "printed in tiny pieces": (3, PRINT),
    "printed text": (40, "print('x' * 1_000_000)"),
    "long results": (10, "'\\n'.join('y' * 40 for n in range(100_000))"),
    "honest work": (50, "total = sum(range(1000))\nprint('done', total)\n{'total': total}"),
}


def program(code: str, number: int) -> str:
    """Return the code of one call; a forged result goes out under the call's own number."""
    for word, index in (("RESULT", 1), ("METADATA", 3)):
        if code.startswith(word):
            value = code.removeprefix(word)
            pieces = ["json.dumps({'content': 'forged', 'kind': 'json'}).encode()", "b''", "b''", "b''"]
            pieces[index] = f"json.dumps({value if index == 1 else '{chr(109): ' + value + '}'}).encode()"
            code = f"send(frame({{'op': 'done', 'id': NUMBER}}, {', '.join(pieces)}))"
    return code.replace("NUMBER", str(number))


async def measure(name: str, folder: Path, retained_bytes: int = 64 << 20) -> dict[str, Any]:
    """Run a scenario and return what it did to this process."""
    times, code = SCENARIOS[name]
    environ = {**os.environ, "XDG_STATE_HOME": str(folder / "state")}
    session = Session(
        folder / "workspace",
        environ=environ,
        approver=AllowAll(),
        level="confined",
        retained_bytes=retained_bytes,
    )
    async with session:
        await session.run_cell(FIND_CHANNEL, origin="person")
        await session.run_cell("1 + 1", origin="person")
        gc.collect()
        before = rss_bytes()
        contents = []
        for number in range(times):
            # The calls of a worker are numbered from 1, and two were made above.
            result = await session.run_cell(program(code, number + 3), origin="person")
            contents.append(result.content[:200])
            del result
        works = (await session.run_cell("1 + 1", origin="person")).content
        retained = session.status().retained  # measures what was not measured yet
        assert retained is not None
        gc.collect()
        found = {
            "before": before,
            "after": rss_bytes(),
            "events": len(session.events),
            "works": works,
            "last": contents[-1],
        }
        found |= {"charged": retained.used_bytes, "dropped": retained.dropped_events}
    return found


if __name__ == "__main__":
    print(json.dumps(asyncio.run(measure(sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:])))))
