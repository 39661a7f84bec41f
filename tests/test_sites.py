"""Each place that depends on the moment has a comment that names its case; the search is seen to fail."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests import shape, sites

PACKAGE = Path(__file__).resolve().parent.parent / "aisotools"


def test_sites_of_the_package_are_found() -> None:
    """That each has a comment is a rule of `tests/test_shape.py`."""
    modules = {name for name, module in shape.read(PACKAGE).items() if any(True for _ in sites.sites(module))}
    assert modules >= {"sandbox.worker.fork", "sandbox.process.forkserver", "sandbox.confinement.levels"}


def found(source: str) -> list[str]:
    package = shape.parse({"aisotools/__init__.py": "", "aisotools/core.py": textwrap.dedent(source)})
    return [finding.message.partition(" without")[0] for finding in sites.uncommented(package)]


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("os.fork()", "os.fork"),
        ("os._exit(0)", "os._exit"),
        ("os.waitpid(pid, 0)", "os.waitpid"),
        ("os.kill(pid, 9)", "os.kill"),
        ("self._process.kill()", "self._process.kill"),
        ("signal.pidfd_send_signal(pidfd, 9)", "signal.pidfd_send_signal"),
        ("os.pidfd_open(pid)", "os.pidfd_open"),
        ("signal.signal(signal.SIGINT, handler)", "signal.signal"),
        ("loop.add_signal_handler(2, stop)", "loop.add_signal_handler"),
        ("libc.prctl(1, 9, 0, 0, 0)", "libc.prctl"),
        ("syscalls.call('landlock_restrict_self', handle, 0)", "the system call landlock_restrict_self"),
        ("partial(_call_refused, 'unshare', 0)", "the system call unshare"),
        ("call('seccomp', 1)", "the system call seccomp"),
        ("os.replace(new, old)", "os.replace"),
        ("os.rename(new, old)", "os.rename"),
        ("path.replace(place)", "path.replace"),
        ("fcntl.flock(lock, 2)", "fcntl.flock"),
        ("await asyncio.shield(task)", "asyncio.shield"),
        ("try:\n    x()\nexcept asyncio.CancelledError:\n    raise", "`except asyncio.CancelledError`"),
        ("try:\n    x()\nexcept (OSError, CancelledError):\n    raise", "`except (OSError, CancelledError)`"),
        ("os.register_at_fork(before=stop)", "os.register_at_fork"),
        ("loop.call_soon_threadsafe(wake)", "loop.call_soon_threadsafe"),
        ("os.truncate(path, 0)", "os.truncate"),
        ("os.ftruncate(file, 0)", "os.ftruncate"),
        ("with suppress(CancelledError):\n    x()", "`suppress(CancelledError)`"),
        (
            "with contextlib.suppress(OSError, asyncio.CancelledError):\n    x()",
            "`contextlib.suppress(OSError, asyncio.CancelledError)`",
        ),
        ("with contextlib.suppress(OSError):\n    x()", ""),
        ("series.truncate(before=1)", ""),
        ("text.replace('a', 'b')", ""),
        ("dataclasses.replace(row, a=1)", ""),
        ("series.rename(None)", ""),
        ("module.signal(x)", ""),
        ("syscalls.call('getpid')", ""),
        ("Probe('seccomp', True)", ""),
        ("try:\n    x()\nexcept OSError:\n    raise", ""),
    ],
)
def test_sites(statement: str, what: str) -> None:
    body = textwrap.indent(statement, "    ")
    assert found(f"async def f():\n{body}") == [what] * bool(what)
    assert found(f"async def f():\n    # Race: the child may have ended by itself.\n{body}") == []


FORK = "os.fork()"


@pytest.mark.parametrize(
    ("source", "fine"),
    [
        (f"def f():\n    # Race: the parent may have ended.\n    {FORK}", True),
        (f"def f():\n    {FORK}  # the parent may have ended", True),
        (
            f"def f():\n    try:\n        {FORK}\n    except OSError:\n        return  # none is left here",
            True,
        ),
        (f"def f():\n    # Race: the parent may have ended.{chr(10) * 5}    {FORK}", True),
        (f"def f():\n    # Race: the parent may have ended.{chr(10) * 7}    {FORK}", False),
        (f"def f():\n    {FORK}{chr(10) * 6}    # Race: the parent may have ended.", False),
        (f"def g():\n    x()  # the parent may have ended\n\ndef f():\n    {FORK}", False),
        (f"def f():\n    {FORK}\n\ndef g():\n    x()  # the parent may have ended", False),
        (
            f"def f():\n    {FORK}  # noqa: S999 - the parent may have ended",
            False,
        ),  # an exemption is not a comment
        (f"def f():\n    {FORK}  # fork", False),
        (f'def f():\n    """Fork when the parent has ended."""\n    {FORK}', False),
        (f"x = 1\n{FORK}", False),
        (f"# Race: the parent may have ended.\n{FORK}", True),
    ],
)
def test_comments_count_close_by_in_the_same_function(source: str, fine: bool) -> None:
    assert found(source) == [] if fine else found(source) == ["os.fork"]


def test_the_listing_shows_place_kind_and_comment(capsys: pytest.CaptureFixture[str]) -> None:
    source = (
        f"def f():\n    # Race: the parent may have\n    # ended.\n    {FORK}\n\n"
        "def g():\n    os.truncate(p, 0)\n"
    )
    sites.print_sites(shape.parse({"aisotools/__init__.py": "", "aisotools/core.py": source}))
    assert capsys.readouterr().out.splitlines() == [
        "aisotools/core.py:4: process: os.fork: Race: the parent may have ended.",
        "aisotools/core.py:7: file: os.truncate: no comment",
    ]


def test_the_command_lists_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    sites.main()
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("aisotools/sandbox/process/forkserver.py:") for line in lines)
    assert {line.split(": ")[1] for line in lines} == set(sites.KINDS)
