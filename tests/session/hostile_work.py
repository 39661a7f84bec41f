"""Growth and longest stall of the host in hostile scenarios, each in an interpreter of its own.

`python -m tests.session.hostile_work` runs all of them and prints a table; with names, only those.
`python -m tests.session.hostile_work --one NAME FOLDER [BUDGET]` runs one here (with `unlimited`, without the
limits on what the host takes and retains) and prints a JSON object:
resident memory before, after and at most meanwhile in bytes, what the session says that it retains, how many
events it has dropped, and for how long the event loop stood still at most, in seconds (see `tests.stalls`).
"""

from __future__ import annotations

import asyncio
import datetime as dt
import decimal
import gc
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from aisotools.core.concurrency import with_ticks
from aisotools.core.events import ProtectedFilesRestored
from aisotools.core.exceptions import ToolError, UsageError
from aisotools.core.types import Effect
from aisotools.policy.approvers import AllowAll
from aisotools.sandbox import frames
from aisotools.sandbox.frames import keep_all
from aisotools.sandbox.host.calls import CallTable, _EmitLimits
from aisotools.sandbox.limits import Limits
from aisotools.session.session import Session
from aisotools.tools.function import tool
from tests import stalls
from tests.policy.test_config_toml import HOSTILE
from tests.sandbox.host.test_open_files import ATTACKS, CALL
from tests.sandbox.rig import rss_bytes
from tests.sandbox.test_hostile import FIND_CHANNEL
from tests.waiting import eventually

EMIT = """
for n in range({count}):
    send(frame({{'op': 'emit', 'id': NUMBER, 'name': 'progress', 'payload': {payload}}}))
"""
PRINT = """
for n in range(20_000):
    send(frame({'op': 'out', 'id': 'NUMBER', 'stream': ('stdout', 'stderr')[n % 2], 'text': 'ab'}))
"""
SPAWN = """
import subprocess
started = [subprocess.Popen(['sh', '-c', {command!r}]{options}) for n in range({count})]
len(started)
"""
BEGINS_PROGRAMS = """
import subprocess, sys
AGAIN = '''
import mmap, os, sys
held = mmap.mmap(-1, 300 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for at in range(0, 300 << 20, 4096): held[at] = 1
left = int(sys.argv[1])
if left: os.execv(sys.executable, [sys.executable, '-I', '-S', 'again.py', str(left - 1)])
'''
open('again.py', 'w').write(AGAIN)
subprocess.run([sys.executable, '-I', '-S', 'again.py', '20'])
"""
"""While a process begins another program, its memory is freed, and whoever looks at it has to wait."""
FORKS = """
import os, time
shared = bytearray(b'x') * (1 << 30)
for n in range(60):
    if os.fork() == 0:
        time.sleep(1000)
        os._exit(0)
"""
HEAD = "json.dumps({{'content': 'forged', 'kind': 'json'}}).encode()"
TEXT_HEAD = "json.dumps({{'content': '', 'value_is_text': True, 'content_key': ''}}).encode()"
FORGED = {
    "RESULT": HEAD + ", json.dumps({value}).encode(), b'', b''",
    "DATA": HEAD + ", b'', json.dumps({{'text/plain': {value}}}).encode(), b''",
    "TYPES": HEAD + ", b'', json.dumps({value}).encode(), b''",
    "METADATA": HEAD + ", b'', b'', json.dumps({{'m': {value}}}).encode()",
    "CONTENT": TEXT_HEAD + ", ({value}).encode(), b'', b''",
}
"""The four pieces of a forged result, one of them `value`."""
NESTED = """
r = []
for n in range({depth}): r = [r, r]
send(frame({{'op': 'done', 'id': NUMBER}}, json.dumps({{'content': 'forged', 'kind': 'json'}}).encode(), \
    json.dumps(r).encode(), b'', b''))
"""
"""Two lists in each of two lists, and so on."""
PARTS = """
for n in range({count}):
    send(frame({header}, b'x' * (64 << 20)))
"""
"""Frames of the largest size."""
FILES = """
import os, shutil
shutil.rmtree('many', ignore_errors=True)
os.makedirs('many')
for n in range({count}):
    os.close(os.open('many/f%d' % n, os.O_CREAT | os.O_WRONLY))
"""
LINKS = """
import os
for n in range({count}):
    os.symlink({target}, {name})
"""
NAMES = """
import os
for n in range({count}):
    os.close(os.open({name}, os.O_CREAT | os.O_WRONLY))
"""
MARKS = "\\u0345" * 20 + "\\u0315" * 20 + "\\u0301" * 40 + "\\u0327" * 20 + "\\u0334" * 24
"""Marks in the order that takes longest to put into another one."""
PLANTING = """
import subprocess, sys
PLANT = '''
import os
for n in range({folders}):
    os.makedirs('p/%d-%s' % (n, 'x' * {chars}), exist_ok=True)
open('planted', 'w').close()
while True:
    for n in range({folders}):
        open('p/%d-%s/conftest.py' % (n, 'x' * {chars}), 'w').close()
'''
{files}
planting = subprocess.Popen([sys.executable, '-c', PLANT])
"""
"""Something that is left running plants protected files for ever."""
PLANTED = """
import os
for n in range(20_000):
    os.makedirs('p/%d-%s' % (n, 'x' * 200))
    open('p/%d-%s/conftest.py' % (n, 'x' * 200), 'w').close()
"""
PLANTED_LARGE = """
import os
for n in range(20):
    os.makedirs('large%d' % n, exist_ok=True)
    with open('large%d/conftest.py' % n, 'wb') as file:
        file.truncate(1 << 30)
"""
ODD_FRAMES = """
import struct
data = b'{"op": "show", "id": NUMBER, "what": "display", "after": ' + b'[' * 9_000 + b']' * 9_000 + b'}'
for n in range(1_000): send(struct.pack('!II', len(data), 0) + data)
import time; time.sleep(1000)
"""
MAPPED = """
import ctypes, os, time
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
start = libc.mmap(None, ctypes.c_size_t(60_000 * 4096), 1, 0x22, -1, ctypes.c_long(0))
for page in range(0, 60_000, 2):
    libc.mprotect(ctypes.c_void_p(start + page * 4096), ctypes.c_size_t(4096), 0)
for _ in range(100):
    if os.fork() == 0: time.sleep(1000)
time.sleep(1000)
"""
SPINNING = "while :; do :; done"


@dataclass(frozen=True)
class Scenario:
    """What is done to a session.

    Attributes:
        code: Python that is run in it, each time in a call of its own. A forged result begins with the name
            of one of its parts.
        times: How often.
        prepare: Fills the workspace before the session is opened.
        visit: Fills the workspace of the open session, as a person may; checkouts of git are refused before.
        follow_up: What is done then.
        is_variant: Whether it differs only in its values from another one, which runs by default.
        files: How many files are in the workspace, if they are many.
        peak_bytes: How much more memory the host may take while it lasts, if none of it is wanted.
        memory_bytes: The limit on the memory of the sandbox.
    """

    code: str = "1 + 1"
    times: int = 1
    prepare: Callable[[Path], None] | None = None
    visit: Callable[[Path], None] | None = None
    follow_up: Callable[[Session], Awaitable[None]] | None = None
    is_variant: bool = False
    files: int = 0
    peak_bytes: int | None = None
    memory_bytes: int | None = None

    @property
    def is_slow(self) -> bool:
        """Whether it runs with the slow tests: it takes many seconds, or another one is like it."""
        return self.follow_up is not None or self.is_variant


# ---- what is in a workspace


def many_files(folder: Path) -> None:
    for number in range(100):
        below = folder / f"d{number}"
        below.mkdir()
        for index in range(1000):
            (below / f"f{index}").touch()


def deep_folders(folder: Path) -> None:
    for _ in range(230):
        folder /= "d"
        folder.mkdir()
    (folder / "conftest.py").write_text("x = 1\n")


def large_config(folder: Path) -> None:
    (folder / "r" / ".git").mkdir(parents=True)
    (folder / "r" / ".git" / "config").write_text("[core]\n" + "\tbare = false\n" * (16 << 16))


def many_repositories(folder: Path) -> None:
    for number in range(300):
        (folder / f"r{number}" / ".git").mkdir(parents=True)
        (folder / f"r{number}" / ".git" / "config").write_text("[core]\n" + "\tbare = false\n" * 4600)


_SIGNS = {'"': 1, "\n": 1, "\\": 1, "\x01": 3, "\x7f": 1, "\u00fc": 1, "\u20ac": 2, "\U0001f600": 2, "'\"": 2}
"""Texts that take long to write as JSON or UTF-8, to read, or to search; and into how many parts 2 million of
them are divided, so that they are just taken."""

_LARGE: list[dict[str, Any]] = []
"""Arguments that are larger than a call takes, and the largest that it takes, once they are built."""


def large_arguments(_folder: Path) -> None:
    _LARGE[:] = [
        {f"name{n}": n for n in range(200_000)},
        {"code": [[n] for n in range(21_000)]},
        {"code": {f"k{n}": {"b": n} for n in range(21_000)}},
        {"code": "x = 1\n" * 4_000_000},
        {f"name{n}": n for n in range(1_000)},
        {f"name{n}": list(range(18)) for n in range(1_000)},
        {"code": [str(n) for n in range(19_000)]},
        {"code": "#" * ((4 << 20) - 100)},
    ]


GET = """
import aisotools.sandbox.data as data, aisotools.session.transfer as transfer
transfer.pack = lambda name, value: data.Payload(
    kind={kind!r}, data=value, form='frame' if {kind!r} == 'arrow' else ''
)
"""
"""Lets a worker send whatever bytes a variable has when its value is fetched."""

_GOT = {
    "b'[' + b','.join(b'%d' % (n + 1000) for n in range(4_190_000)) + b']'": "list",
    "b'[' + b'0,' * 20_000_000 + b'0]'": "refused",
    "b'{' + b','.join(b'\"%d\":%d' % (n, n) for n in range(680_000)) + b'}'": "dict",
    "b'{' + b','.join(b'\"%d\":%d' % (n, n) for n in range(1_000_000)) + b'}'": "refused",
    "b'[' + b'[],' * 260_000 + b'0]'": "list",
    "b'[' + b','.join([b'[' * 90 + b']' * 90] * 360) + b']'": "list",
    "b'[' + b','.join([b'[' * 90 + b']' * 90] * 5_000) + b']'": "refused",
    "b'\"' + b'\\\\n' * 20_000_000 + b'\"'": "str",
    "b'[' * 40_000_000": "refused",
}
_GOT_TEXTS = {
    "'\\U0001f600'.encode() * 10_000_000": "str",
    "b'x' * (44 << 20)": "str",
    "b'x' * (40 << 20) + '\\U0001f600'.encode()": "refused",
}


_FRAMES = """
import io, json, numpy as np, pandas as pd, pyarrow as pa

def stream(table):
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()

def described(kind):
    column = {'name': 's', 'field_name': 's', 'pandas_type': 'x', 'numpy_type': kind, 'metadata': None}
    return {b'pandas': json.dumps({'index_columns': [], 'column_indexes': [], 'columns': [column]}).encode()}

def texts(count):
    return pa.array(np.arange(count)).cast(pa.string())

number = pa.table({'a': [1]})
numbers = pd.DataFrame({'a': np.arange(1_000_000)})
levels = pd.MultiIndex.from_product([range(1_000)] * 2)
"""
_GOT_FRAMES = {
    "pa.table({'a': np.arange(5_500_000)})": "DataFrame",
    "pa.table({f'c{n}': [1.5, 2] for n in range(8_000)})": "DataFrame",
    "pa.table({f'c{n}': np.zeros(5_000, 'u1') for n in range(8_000)})": "DataFrame",
    "pa.table({f'c{n}': ['a', 'b'] if n % 2 else [1, 2] for n in range(16_384)})": "DataFrame",
    "pa.table({f'c{n}': [1] for n in range(50_000)})": "refused",
    "pa.table({'s': texts(3_000_000)})": "DataFrame",
    "pa.table({'s': pa.array([''] * 10_000_000)})": "DataFrame",
    "pa.table({'s': texts(60_000).dictionary_encode()})": "DataFrame",
    "pa.table({'s': texts(2_000_000).dictionary_encode()})": "refused",
    "pa.table({'s': pa.array(np.random.permutation(3_500_000)).dictionary_encode()})": "DataFrame",
    "pa.table({'s': pa.array([b'x'] * 2_000_000)})": "DataFrame",
    "pa.table({'s': pa.array([b'x'] * 8_000_000)})": "refused",
    "pa.table({'s': pa.array([True, None] * 1_000_000)})": "DataFrame",
    "pa.table({'s': pa.array([True, None] * 20_000_000)})": "refused",
    "pa.table({'s': pa.nulls(60_000_000)})": "refused",
    "pa.table({'s': pa.array(np.arange(2_000_000)).cast(pa.decimal128(24, 2))})": "DataFrame",
    "pa.table({'s': pa.array(np.arange(10_000_000, dtype='i4')).cast(pa.date32())})": "refused",
    "pa.table({'s': pa.array(np.arange(86_000, dtype='i4').repeat(24)).cast(pa.time32('s'))})": "DataFrame",
    "pa.table({'s': texts(2_000_000)}).replace_schema_metadata(described('string[python]'))": "refused",
    "pa.table({'s': texts(2_000_000)}).replace_schema_metadata(described('datetime64[ns, UTC]'))": "refused",
    "pa.Table.from_pandas(numbers.set_index(numbers.a.astype(str)))": "DataFrame",
    "pa.Table.from_pandas(numbers.set_index(levels))": "refused",
    "number.replace_schema_metadata({b'pandas': b'{\"a\":[' + b'0,' * 20_000_000 + b'0]}'})": "refused",
    "number.replace_schema_metadata({b'pandas': b'{\"a\":[' + b'[],' * 1_300_000 + b'0]}'})": "refused",
    "pa.table({'a' * 40_000_000: [1]})": "refused",
    "pa.Table.from_batches([pa.record_batch({'a': [1]})] * 150_000)": "refused",
    "pa.Table.from_batches([pa.record_batch({'a': [1]})] * 4_000)": "DataFrame",
    "pa.table({'a': [[[1]]] * 100_000})": "refused",
}
"""Tables that a worker may send as frames: long, wide, of texts, of objects, of categories, with an index."""


_SENT: dict[str, Any] = {}
"""Values that a program may send, once they are built."""


def values_to_send(_folder: Path) -> None:
    import numpy as np
    import pandas as pd
    import pyarrow as pa

    many = 5_500_000
    dates, decimals = [dt.date(2026, 1, 1)], [decimal.Decimal("1.25")]
    _SENT.update(
        {
            "an array": np.arange(many),
            "an array by columns": np.asfortranarray(np.arange(many).reshape(5_500, 1_000)),
            "a frame": pd.DataFrame({"a": np.arange(many)}),
            "a frame that is wide": pd.DataFrame(np.zeros((600, 8_000))).rename(columns=str),
            "a frame of many columns": pd.DataFrame(
                {f"c{n}": ["a", "b"] if n % 2 else [1, 2] for n in range(16_384)}
            ),
            "a table of many columns": pa.table({f"c{n}": [1] for n in range(50_000)}),
            "texts": pd.DataFrame({"s": [str(n) for n in range(3_000_000)]}),
            "objects": pd.DataFrame({"s": pd.Series([b"x"] * 2_000_000, dtype=object)}),
            "dates": pd.DataFrame({"d": dates * 2_000_000}),
            "decimals": pd.DataFrame({"d": decimals * 2_000_000}),
            "categories": pd.DataFrame({"k": pd.Categorical([f"{n % 60_000}" for n in range(many)])}),
            "numbers": [n + 1_000 for n in range(4_190_000)],
            "keys": {str(n): n for n in range(680_000)},
            "rows": [{"n": n, "s": str(n), "l": [n / 7]} for n in range(32_000)],
            "deep": [_nested(90)] * 360,
            "long texts in lists": [["\x01" * 6_000_000], "\u00fc" * 3_000_000],
            "a long text": "x" * (44 << 20),
            "a wide text": "\U0001f600" * 11_000_000,
            "bytes": bytes(44 << 20),
        }
    )


def _nested(depth: int) -> list[Any]:
    return [_nested(depth - 1)] if depth else []


_SHAPES = [
    "display(HTML('<b>x</b>' * 1_000_000))",
    "for n in range(5): display(HTML('<div>' * 100_000))",
    "display(JSON({'a': [[[]]] * 300_000}))",
    "for n in range(500): display({f'x/{n}{m}': 'a' for m in range(100)}, raw=True)",
    "for n in range(5): display(Markdown('[' * 200_000 + '*' * 200_000))",
    "import sys\nfor n in range(500): sys.stdout.write('z' * 100_000)",
    "print('\\x1b[' + '1;' * 400_000 + 'm')",
    "print('password=' * 100_000)",
    "raise ValueError('q' * 1_000_000)",
    "list(range(1_000_000))",
    "'\\ud800' * 1_000_000 + '\\U0001f600' * 1_000_000",
    "{str(n): [n] for n in range(200_000)}",
]
"""Outputs of every shape, one call each."""


_PATCHES = [
    f"--- a/f\n+++ b/f\n{body}"
    for body in (
        "@@ -1,4990 +1,4990 @@\n" + "-a\n+b\n" * 4_990,
        "@@ -1,9000 +1,9000 @@\n" + " a\n" * 9_000,
        "@@\n" + "-a\n+b\n" * 4_990,
        "@@ -1 +1 @@\n-a\n+b\n" * 1_000,
        "@@ -1 +1 @@\n-a\n+b\n" * 100_000,
        "@@ -1,400000 +1,400000 @@\n" + "-a\n" * 400_000,
    )
] + ["".join(f"--- a/f{n}\n+++ b/f{n}\n@@ -1 +1 @@\n-a\n+b\n" for n in range(40_000))]
"""The largest patches that are parsed, and larger ones."""


# ---- what is done with it


async def use_files(session: Session) -> None:
    """Use everything that looks at the whole workspace."""
    await write_files(session)
    await _done(session, "python", {"code": "open('new-1.txt', 'a').write('more')"})
    await _done(session, "sandbox_bash", {"command": "echo more >> new-2.txt"})
    await session.changes()
    for moved in (await session.undo(), await session.redo()):
        assert not moved.is_error, moved.content


async def undo_and_redo(session: Session) -> None:
    """Take all files away and bring them back."""
    for move in (session.undo, session.redo):
        moved = await move()
        assert not moved.is_error, moved.content
        del moved


async def look_and_undo(session: Session) -> None:
    """Compare the states before and after, and go back and forth between them."""
    await session.changes()
    await undo_and_redo(session)


async def write_files(session: Session) -> None:
    """Go on where nothing can be undone."""
    for number in range(3):
        await _done(session, "sandbox_write", {"path": f"new-{number}.txt", "content": f"{number}\n"})
    await _done(session, "sandbox_read", {"path": "new-0.txt"})
    await _done(session, "python", {"code": "1 + 1"})


async def await_looks(session: Session) -> None:
    """Let the session look at the files by itself until it has put something back twice; then go on."""
    await eventually(
        lambda: sum(isinstance(event, ProtectedFilesRestored) for event in session.events) == 2, hang_s=500
    )
    await session.restart()
    await session.call("python", {"code": "1"}, origin="person", timeout_s=600)  # which may be refused


async def use_tasks(session: Session) -> None:
    """Go on while the processes run."""
    for _ in range(3):
        await _done(session, "sandbox_write", {"path": "new.txt", "content": "text\n"})
        await _done(session, "sandbox_read", {"path": "new.txt"})
        await _done(session, "python", {"code": "1 + 1"})
    await session.undo()


async def use_odd_texts(session: Session) -> None:
    """Call with long texts of one of `_SIGNS`."""
    session.registry.register(take)
    for sign, size in _SIGNS.items():
        text = sign * (2_000_000 // size)
        result = await session.call("take", {"code": text}, origin="model")
        assert result.content == f"{len(text)}"
        await session.call("sandbox_write", {"path": "odd.txt", "content": text}, origin="model")


def many_sources(workspace: Path) -> None:
    """Put files into the workspace that commands may run, as many and as large as are compared."""
    (workspace / "big").mkdir()
    for number in range(190):
        (workspace / "big" / f"m{number}.py").write_text("import os, json, m1, m2\n" * 5_000)
    for number in range(20_000):
        (workspace / "big" / f"d{number}.txt").touch()


async def use_commands(session: Session) -> None:
    """Call with commands that may run or change many files, and that are asked about."""
    for command in (
        "strange big/*.py",
        "for f in big/*; do strange $f; done",
        "cp -r big other",
        "rm -r other",
    ):
        await session.call("sandbox_bash", {"command": command}, origin="model")
    await session.call("python", {"code": "import m1; open('big/m1.py').read(1)"}, origin="model")


def long_links(workspace: Path) -> None:
    """Put links into the workspace that take as long to follow as any, and some that nobody follows."""
    (workspace / "x").mkdir()
    for chain, last, count, target in (
        ("p", "file", 35, "x/../" * 800),
        ("d", "nothing", 35, "x/../" * 800),
        ("c", "file", 1_500, ""),
    ):
        (workspace / "file").touch()
        (workspace / f"{chain}0").symlink_to(f"{target}{last}")
        for number in range(count):
            (workspace / f"{chain}{number + 1}").symlink_to(f"{target}{chain}{number}")


async def use_links(session: Session) -> None:
    """Call with commands and code that such links are beside, or that name them; then go on working."""
    for command in ("rm -f p1*", "cp d* x", "cat p35", "strange c*", "rm -rf c900 c1200"):
        await session.call("sandbox_bash", {"command": command}, origin="model")
    for name in ("p20", "d20", "c1000"):
        await session.call("sandbox_write", {"path": name, "content": "x"}, origin="model")
        await session.call("python", {"code": f"open('{name}')"}, origin="model")
    await session.undo()
    await session.restart()
    await use_files(session)


@tool
def take(code: Any) -> str:
    """Take anything."""
    return str(len(code))


@tool(effect=Effect.READ_ONLY)
def flood_reading() -> list[list[int]]:
    """Print, start processes and return a lot, in what may only read."""
    import subprocess  # it is sent to the sandbox

    for _ in range(50):
        subprocess.Popen(["sh", "-c", "while :; do echo yyyyyyyyyyyyyyyyyyyy; done"], start_new_session=True)
    for _ in range(40):
        print("x" * 1_000_000)
    return [[n] for n in range(300_000)]


async def use_readers(session: Session) -> None:
    """Call a tool that floods from a reader."""
    session.registry.register(flood_reading)
    for _ in range(3):
        await session.call("flood_reading", {}, origin="model")


async def time_out(session: Session) -> None:
    """Have calls end at their deadline, beside what was left running."""
    for _ in range(3):
        for code in ("while True: pass", "import time; time.sleep(1000)"):
            result = await session.call("python", {"code": code}, origin="person", timeout_s=1)
            assert result.is_error
    await use_tasks(session)


async def open_with_hostile_settings(session: Session) -> None:
    """Open sessions in folders whose settings are hostile; each is refused."""
    assert session.workspace is not None
    for number, text in enumerate(HOSTILE.values()):
        folder = session.workspace.parent / f"settings{number}"
        folder.mkdir()
        (folder / ".aisotools.toml").write_text(text)
        try:
            async with open_session(folder, session.workspace.parent, 64 << 20):
                raise AssertionError(f"{text[:40]!r} was accepted")
        except UsageError:
            await asyncio.sleep(0)


async def use_large_arguments(session: Session) -> None:
    """Call with all of `_LARGE`."""
    for arguments in _LARGE:
        for name in ("python", "sandbox_read", "no such tool"):
            result = await session.call(name, arguments, origin="model")
            assert len(result.content) < 2_000
            await asyncio.sleep(0)  # a call that is refused at once does not wait for anything


async def get_values(session: Session) -> None:
    """Fetch variables from a worker that lies about them."""
    for kind, values in (("json", _GOT), ("text", _GOT_TEXTS), ("arrow", _GOT_FRAMES)):
        await session.run_cell(GET.format(kind=kind), origin="person")
        if kind == "arrow":
            await session.run_cell(_FRAMES, origin="person", timeout_s=600)
        for code, expected in values.items():
            sent = f"stream({code})" if kind == "arrow" else code
            made = await session.run_cell(f"x = {sent}", origin="person", timeout_s=600)
            assert not made.is_error, made.content
            try:
                found = type(await session.get("x")).__name__
            except ToolError:
                found = "refused"
            assert found == expected, f"{code}: {found}"


async def put_values(session: Session) -> None:
    """Assign large values to variables."""
    for name, value in _SENT.items():
        await session.put("x", value)
        found = await session.run_cell("len(x) > 0", origin="person")
        assert found.content == "True", f"{name}: {found.content}"


async def use_long_commands(session: Session) -> None:
    """Call with more commands in one than are read."""
    await session.run_cell("open('l0', 'w').close()", origin="person")
    for command in ("mv", "cp -r"):
        text = ";".join(f"{command} l{number} l{number + 1}" for number in range(1_500))
        await session.call("sandbox_bash", {"command": text}, origin="model", timeout_s=600)
        await session.run_cell("import os; os.rename('l1500', 'l0')", origin="person")


async def use_every_shape(session: Session) -> None:
    """Make all of `_SHAPES`, again and again."""
    await session.run_cell("from IPython.display import HTML, JSON, Markdown, display", origin="person")
    for _ in range(3):
        for code in _SHAPES:
            await session.run_cell(code, origin="person")


async def use_large_patches(session: Session) -> None:
    """Call with all of `_PATCHES`. The file is not there, so each of them is refused in the end."""
    for patch in _PATCHES:
        result = await session.call("apply_patch", {"patch": patch}, origin="model")
        assert result.is_error
        await asyncio.sleep(0)


async def _done(session: Session, name: str, arguments: dict[str, Any]) -> None:
    result = await session.call(name, arguments, origin="person", timeout_s=600)
    assert not result.is_error, result.content


def _spawn(command: str, *, options: str = "", count: int = 200) -> Scenario:
    """Return a scenario with so many processes; with a few more, the sandbox is ended."""
    return Scenario(SPAWN.format(command=command, options=options, count=count), follow_up=use_tasks)


SCENARIOS: dict[str, Scenario] = {
    "emit of many lists": Scenario(EMIT.format(count=300, payload="{'a': [[]] * 40_000}")),
    "emit of many objects": Scenario(
        EMIT.format(count=300, payload="{'a': [{'b': 1.5}] * 12_000}"), is_variant=True
    ),
    "emit of wide text": Scenario(
        EMIT.format(count=300, payload="{'a': '\\U0001f600x' * 25_000}"), is_variant=True
    ),
    "emits that are small": Scenario(EMIT.format(count=2_000, payload="{'n': n, 'text': 'x' * 3_000}"), 6),
    "reports with large parts": Scenario(
        PARTS.format(count=4, header="{'op': 'emit', 'id': NUMBER, 'name': 'x', 'payload': {}}"),
        peak_bytes=8 << 20,
    ),
    "large results that nobody waits for": Scenario(
        PARTS.format(count=4, header="{'op': 'done', 'id': 999}"), peak_bytes=8 << 20
    ),
    "large displays that nobody watches": Scenario(
        PARTS.format(count=4, header="{'op': 'show', 'id': NUMBER, 'what': 'display'}"), peak_bytes=8 << 20
    ),
    "result of many lists": Scenario("RESULT[[]] * 1_000_000", 2),
    "result of nested lists": Scenario("NESTED16", 4),
    "result of the most nested lists that are taken": Scenario("NESTED14", 4),
    "result of many objects": Scenario(
        "RESULT[{'a': n, 'b': 'x%d' % n} for n in range(500_000)]", 2, is_variant=True
    ),
    "result of many floats": Scenario("RESULT[n + 0.5 for n in range(1_200_000)]", 2, is_variant=True),
    "result of many texts": Scenario("RESULT['x%d' % n for n in range(2_000_000)]", 2, is_variant=True),
    "result of many equal texts": Scenario("RESULT['x'] * 1_900_000", 2),
    "result of many equal numbers": Scenario("RESULT[1] * 1_900_000", 2),
    "result of lists of equal texts": Scenario(
        "RESULT[['x'] * 100_000 for n in range(15)]", 2, is_variant=True
    ),
    "result of many objects with long keys": Scenario(
        "RESULT[{'the key %d %d' % (n, m): 1 for n in range(9_900)} for m in range(16)]", 2, is_variant=True
    ),
    "result of long text": Scenario("RESULT'x' * 15_000_000", 2, is_variant=True),
    "result that is a long text": Scenario("CONTENT'\\x1b[1mx' * 1_500_000", 2),
    "result that is too large": Scenario("RESULT'x' * 60_000_000", 2, peak_bytes=8 << 20),
    "result of many keys": Scenario("RESULT{'key %d' % n: n for n in range(250_000)}", 2, is_variant=True),
    "result of too many keys": Scenario("RESULT{'%x' % n: 0 for n in range(1_200_000)}", 2),
    "data of escaped text": Scenario("DATA'\\n' * 7_000_000", 2, is_variant=True),
    "data of many types": Scenario("TYPES{'text/x-%d' % n: 'x' for n in range(200_000)}", 2),
    "display of many types": Scenario(
        "from IPython.display import display\n"
        "for n in range(3): display({'text/x-%d' % n: 'x' for n in range(60_000)}, raw=True)",
        2,
    ),
    "metadata of many lists": Scenario("METADATA[[]] * 1_000_000", 2, is_variant=True),
    "displays": Scenario(
        "from IPython.display import display, HTML\nfor n in range(14): display(HTML('x' * 1_000_000))", 5
    ),
    "printed in tiny pieces": Scenario(PRINT, 3),
    "printed text": Scenario("print('x' * 1_000_000)", 40),
    "long results": Scenario("'\\n'.join('y' * 40 for n in range(100_000))", 10),
    "99,000 files in one folder": Scenario(FILES.format(count=99_000), follow_up=use_files, files=99_000),
    "more files than are kept": Scenario(FILES.format(count=100_001), follow_up=write_files, files=100_001),
    "protected files that are planted": Scenario(PLANTED),
    "protected files that are planted all the time": Scenario(
        PLANTING.format(folders=2_000, chars=200, files=""), follow_up=await_looks
    ),
    "99,000 files, and some that are planted all the time": Scenario(
        PLANTING.format(folders=100, chars=10, files=FILES.format(count=99_000)),
        follow_up=await_looks,
        files=99_000,
    ),
    "1,000 files in one call": Scenario(FILES.format(count=1_000), 2),
    "links with long targets": Scenario(
        LINKS.format(count=30_000, target="'x' * 4_000", name="'s%d' % n"), files=30_000
    ),
    "links with long targets and names": Scenario(
        LINKS.format(
            count=10_000, target="b'%05d' % n + b'\\xff' * 4_000", name="b'%05d' % n + b'\\xfe' * 250"
        ),
        follow_up=use_files,
        files=10_000,
    ),
    "names that are long to compare": Scenario(
        NAMES.format(count=20_000, name=f"'%05d{MARKS}' % n"), files=20_000
    ),
    "long names that are not UTF-8": Scenario(
        NAMES.format(count=20_000, name="b'\\xff%05d' % n + b'\\xfe' * 200"), is_variant=True, files=20_000
    ),
    "99,000 names that are alike up to their ends": Scenario(
        NAMES.format(count=99_000, name="b'\\xff' * 249 + b'%06d' % (n * 7919 % 1_000_003)"),
        follow_up=look_and_undo,
        files=99_000,
    ),
    "99,000 names of 255 bytes": Scenario(
        NAMES.format(count=99_000, name="'%06d' % n + 'x' * 249"), follow_up=undo_and_redo, files=99_000
    ),
    "100,000 files": Scenario(prepare=many_files, follow_up=use_files, files=100_000),
    "230 nested folders": Scenario(prepare=deep_folders, follow_up=use_files),
    "16 MiB of settings of git": Scenario(visit=large_config, follow_up=use_files),
    "300 repositories": Scenario(visit=many_repositories, follow_up=use_files),
    "a process that begins other programs": Scenario(
        BEGINS_PROGRAMS, follow_up=use_tasks, memory_bytes=1 << 30
    ),
    "60 forks that share 1 GiB": Scenario(FORKS, follow_up=use_tasks),
    "200 processes that compute": _spawn(SPINNING),
    "50 processes that compute, and files": Scenario(
        SPAWN.format(command=SPINNING, options="", count=50), follow_up=write_files
    ),
    "200 processes in sessions of their own": _spawn(SPINNING, options=", start_new_session=True"),
    "200 processes that print": _spawn("while :; do echo yyyyyyyyyyyyyyyyyyyyyyyy; done"),
    "100 processes that fork": _spawn("while :; do /bin/true; done", count=100),
    "200 detached processes, and calls that time out": Scenario(
        SPAWN.format(command=SPINNING, options=", start_new_session=True", count=200), follow_up=time_out
    ),
    "protected files that are large": Scenario(PLANTED_LARGE, 2, peak_bytes=64 << 20),
    "settings that are hostile": Scenario(follow_up=open_with_hostile_settings),
    "frames of an odd form": Scenario(ODD_FRAMES, 10),
    "descriptors on their way": Scenario(ATTACKS["in flight"] + CALL, follow_up=use_tasks),
    "very many mappings": Scenario(MAPPED, follow_up=use_tasks, memory_bytes=1 << 30),
    "a reader that floods": Scenario(follow_up=use_readers),
    "arguments that are too large": Scenario(prepare=large_arguments, follow_up=use_large_arguments),
    "arguments that take long to write": Scenario(follow_up=use_odd_texts),
    "links that take long to follow": Scenario(prepare=long_links, follow_up=use_links),
    "commands about many files": Scenario(prepare=many_sources, follow_up=use_commands),
    "commands of hundreds of others": Scenario(follow_up=use_long_commands),
    "patches that are large": Scenario(follow_up=use_large_patches),
    "outputs of every shape": Scenario(follow_up=use_every_shape),
    "values that are fetched": Scenario(follow_up=get_values),
    "values that are assigned": Scenario(prepare=values_to_send, follow_up=put_values),
    "honest work": Scenario("total = sum(range(1000))\nprint('done', total)\n{'total': total}", 50),
}


def program(code: str, number: int) -> str:
    """Return the code of one call; a forged result goes out under the call's own number."""
    for word, template in FORGED.items():
        if code.startswith(word):
            value = code.removeprefix(word)
            code = f"send(frame({{'op': 'done', 'id': NUMBER}}, {template.format(value=value)}))"
    if code.startswith("NESTED"):
        code = NESTED.format(depth=code.removeprefix("NESTED"))
    return code.replace("NUMBER", str(number))


def open_session(
    workspace: Path, folder: Path, retained_bytes: int, memory_bytes: int | None = None
) -> Session:
    return Session(
        workspace,
        environ={**os.environ, "XDG_STATE_HOME": str(folder / "state")},
        approver=AllowAll(),
        level="confined",
        limits=Limits(memory_bytes=memory_bytes),
        retained_bytes=retained_bytes,
    )


async def measure(name: str, folder: Path, retained_bytes: int, stalled: stalls.Stalls) -> dict[str, Any]:
    """Run a scenario and return what it did to this process."""
    scenario = SCENARIOS[name]
    ticking = asyncio.ensure_future(_tick())
    # The first session of a program imports what it needs, which is another matter.
    async with open_session(folder / "warm", folder, retained_bytes) as session:
        await use_tasks(session)
        await use_files(session)
    workspace = folder / "workspace"
    workspace.mkdir()
    if scenario.prepare is not None:
        scenario.prepare(workspace)
    stalled.is_paused = True
    await asyncio.sleep(0)
    stalled.longest_s = stalled.longest_wall_s = 0.0
    stalled.where.clear()
    async with open_session(workspace, folder, retained_bytes, scenario.memory_bytes) as session:
        await session.run_cell(FIND_CHANNEL, origin="person")
        await session.run_cell("1 + 1", origin="person")
        if scenario.visit is not None:
            stalled.is_paused = True
            scenario.visit(workspace)
        before = await _resident_bytes(stalled)
        _forget_peak()
        contents = []
        for number in range(scenario.times):
            # The calls of a worker are numbered from 1, and two were made above.
            result = await session.run_cell(program(scenario.code, number + 3), origin="person")
            contents.append(result.content[:200])
            del result
        if scenario.follow_up is not None:
            await scenario.follow_up(session)
        works = (await session.run_cell("1 + 1", origin="person")).content
        if "2" in works.splitlines():  # processes of the scenario may print meanwhile
            works = "2"
        retained = session.status().retained  # measures what was not measured yet
        assert retained is not None
        found = {
            "before": before,
            "peak": _peak_bytes(),
            "after": await _resident_bytes(stalled),
            "events": len(session.events),
            "works": works,
            "last": contents[-1],
            "charged": retained.used_bytes,
            "dropped": retained.dropped_events,
        }
    ticking.cancel()
    found |= {"stall_s": stalled.longest_s, "wall_s": stalled.longest_wall_s}
    return found | {"where": stalled.where[-4:]}


_TICK_S = 0.005


async def _tick() -> None:
    """Give the loop something to do: one that waits for a thread does not stand still."""
    await with_ticks(asyncio.Event().wait(), _TICK_S, lambda: None)


async def _resident_bytes(stalled: stalls.Stalls) -> int:
    await asyncio.sleep(0)
    stalled.is_paused = True  # a whole collection takes its time, and is not part of any call
    gc.collect()
    resident = rss_bytes()
    await asyncio.sleep(0)
    return resident


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _peak_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))


UNLIMITED_BYTES = 1 << 40


def lift_limits() -> None:
    """Have this process take and retain whatever a worker sends, for good."""
    frames._MAX_CONTAINERS = frames._MAX_KEYS = UNLIMITED_BYTES
    _EmitLimits.take = lambda _limits, _payload: True  # type: ignore[method-assign, assignment]  # on purpose
    CallTable.keep_parts = lambda _table, op, header, sizes: keep_all(  # type: ignore[method-assign, assignment]  # on purpose
        op, header, sizes
    )


def run_alone(
    name: str,
    folder: Path,
    budget: int = 64 << 20,
    *,
    with_stacks: bool = False,
    is_unlimited: bool = False,
    trims: bool = False,
) -> dict[str, Any]:
    """Run a scenario in an interpreter of its own and return what it found.

    With `trims`, the allocator gives back what is free at the end of its heap. By default it keeps twice the
    largest block that was ever free, up to 64 MiB, which hides what the program keeps.
    """
    if is_unlimited:
        budget = UNLIMITED_BYTES
    arguments = [sys.executable, "-m", "tests.session.hostile_work", "--one", name, str(folder), str(budget)]
    arguments += ["stacks"] * with_stacks + ["unlimited"] * is_unlimited
    root = Path(__file__).resolve().parents[2]
    environ = {**os.environ, "MALLOC_TRIM_THRESHOLD_": str(128 << 10)} if trims else None
    done = subprocess.run(arguments, stdout=subprocess.PIPE, text=True, cwd=root, check=True, env=environ)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def report(name: str, found: dict[str, Any]) -> str:
    """Return the figures of a scenario in a line."""
    grown_mib = (found["after"] - found["before"]) / (1 << 20)
    peak_mib = (found["peak"] - found["before"]) / (1 << 20)
    return (
        f"{name:40} {found['stall_s'] * 1000:7.1f} {found['wall_s'] * 1000:7.1f} {grown_mib:+8.1f} "
        f"{peak_mib:+8.1f} {found['charged'] / (1 << 20):8.1f} {found['dropped']:8}"
    )


def main(arguments: list[str]) -> None:
    """Do what the command line says."""
    if arguments[:1] == ["--one"]:
        name, folder, budget, *more = arguments[1:]
        work = partial(measure, name, Path(folder), int(budget))
        if "unlimited" in more:
            lift_limits()
        print(json.dumps(stalls.run(work, with_stacks="stacks" in more)))
        return
    print(f"{'':40} stall ms wall ms    grown     peak  charged MiB, dropped")
    for name in arguments or SCENARIOS:
        with tempfile.TemporaryDirectory() as folder:
            found = run_alone(name, Path(folder), with_stacks=True)
        print(report(name, found), flush=True)
        for stall_s, stack in found["where"]:
            if stall_s > 0.02:
                print(f"    {stall_s * 1000:.0f} ms: {stack}")


if __name__ == "__main__":
    main(sys.argv[1:])
