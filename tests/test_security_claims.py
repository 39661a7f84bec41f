"""What README and CONTRIBUTING promise about security: each claim names its tests, and has an attack.

`data/security_claims.toml` lists the claims. Those that no other module tests are tested here.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import os
import re
import secrets
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest

from aisotools.builtin.web import web_fetch
from aisotools.core.protocols import Tool, ToolContext
from aisotools.core.retention import RetentionBudget
from aisotools.core.types import Decision, Effect, Json, ToolCall, ToolResult
from aisotools.policy.approvers import AllowAll, ScriptedApprover
from aisotools.policy.prepared import prepare_call
from aisotools.policy.rules import Policy
from aisotools.sandbox.confinement import landlock, levels
from aisotools.sandbox.confinement.detect import ENABLED_BY, PROTECTS
from aisotools.sandbox.host import monitor
from aisotools.sandbox.limits import Limits
from aisotools.sandbox.process import spawn
from aisotools.session.session import Session
from aisotools.tools.function import tool
from aisotools.workspace.protected_names import is_protected
from tests.conftest import OpenSession
from tests.sandbox.escape_table import PROBES, Stage, may_succeed
from tests.sandbox.rig import UNHURRIED, Rig, rig
from tests.waiting import eventually

TESTS = Path(__file__).parent
ROOT = TESTS.parent


# ---------------------------------------------------------------- the table of claims


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One claim; `security_claims.toml` says what each field holds."""

    section: str
    text: str
    levels: Sequence[str] = ()
    tests: Sequence[str] = ()
    attempts: Sequence[str] = ()
    open: Sequence[str] = ()
    untested: str = ""


CLAIMS = [
    Claim(**row)
    for row in tomllib.loads((TESTS / "data" / "security_claims.toml").read_text("utf-8"))["claim"]
]
SECTIONS = sorted({claim.section for claim in CLAIMS})


def passages(text: str, heading: str) -> list[str]:
    """Return the paragraphs, items and rows of a section, without code, headings and heads of tables."""
    (section,) = re.findall(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    section = re.sub(r"^```.*?^```$", "", section, flags=re.MULTILINE | re.DOTALL)
    lines = [line.strip() for line in section.splitlines() if line.strip()]
    return [
        line
        for position, line in enumerate(lines)
        if not line.startswith(("| ---", "### "))
        and not (lines[position + 1 :] or [""])[0].startswith("| ---")
    ]


def level_of(passage: str) -> str:
    """Return the level that a row of a table is about; an empty text for other passages."""
    found = re.match(r"\| `(\w+)` \|", passage)
    return found[1] if found else ""


def unclaimed(passage: str, claims: Sequence[Claim]) -> str:
    """Return what is left of a passage without the claims: nothing but what joins them, if all is claimed."""
    level = level_of(passage)
    texts = [claim.text for claim in claims if (level in claim.levels if level else not claim.levels)]
    for text in sorted(texts, key=len, reverse=True):
        passage = passage.replace(text, " ")
    words = re.findall(r"\w+", passage)
    return "" if {*words} <= {"and", "N", "n"} else passage


def missing(claim: Claim, passages: Sequence[str]) -> bool:
    """Return whether a claim's text is not in its section, or not in the rows of its levels."""
    holding = [level_of(passage) for passage in passages if claim.text in passage]
    return not (holding and {*claim.levels} <= {*holding})


def passages_of(section: str) -> list[str]:
    page, _, heading = section.partition(": ")
    return passages((ROOT / page).read_text("utf-8"), heading)


@pytest.mark.parametrize("section", SECTIONS)
def test_every_sentence_is_a_claim_of_the_table(section: str) -> None:
    claims = [claim for claim in CLAIMS if claim.section == section]
    left = [text for passage in passages_of(section) if (text := unclaimed(passage, claims))]
    assert not left, "add what README says there to tests/data/security_claims.toml, with its tests"


@pytest.mark.parametrize("section", SECTIONS)
def test_every_claim_of_the_table_is_still_made(section: str) -> None:
    found = passages_of(section)
    gone = [claim.text for claim in CLAIMS if claim.section == section and missing(claim, found)]
    assert not gone, "README no longer says that: change tests/data/security_claims.toml"


@cache
def names_in(path: Path) -> frozenset[str]:
    """Return the tests that a file defines, those of a class as `Class::test`."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    found = set()
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, functions):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            found.update(f"{node.name}::{one.name}" for one in node.body if isinstance(one, functions))
    return frozenset(name for name in found if name.rpartition("::")[2].startswith("test_"))


def exists(test: str) -> bool:
    path, _, name = test.partition("::")
    return (TESTS / path).is_file() and name in names_in(TESTS / path)


def test_every_claim_names_tests_that_exist_or_says_why_it_has_none() -> None:
    assert not [claim.text for claim in CLAIMS if bool(claim.tests) is bool(claim.untested)]
    assert not [test for claim in CLAIMS for test in claim.tests if not exists(test)]


def stages_of(claim: Claim) -> list[Stage]:
    """Return the rows of the table of attempts that a claim is about."""
    stages: tuple[Stage, ...] = get_args(Stage)
    return [stage for stage in stages if not claim.levels or stage.split()[0] in claim.levels]


def test_attempts_are_refused_where_a_claim_says_so() -> None:
    """`test_nothing_gets_out` makes them all, at each level, and holds them to the table of attempts."""
    claims = [claim for claim in CLAIMS if claim.attempts or claim.open]
    assert len(claims) > 10
    for claim in claims:
        assert "sandbox/test_escape.py::test_nothing_gets_out" in claim.tests
        assert {*claim.attempts, *claim.open} <= {*PROBES}
        for stage in stages_of(claim):
            assert not [name for name in claim.attempts if may_succeed(name, stage)], (claim.text, stage)
            assert not [name for name in claim.open if not may_succeed(name, stage)], (claim.text, stage)


def without_attempts(claims: Sequence[Claim]) -> list[str]:
    """Return what the table of levels promises, or leaves open, that names no attempt.

    `limited` is no sandbox: the table of attempts has no column for it, and its promises have other tests.
    """
    lacking = []
    for claim in claims:
        for level in claim.levels:
            protects, leaves_open = PROTECTS[level]
            if level == "limited" or claim.untested:
                continue
            if (claim.text in protects and not claim.attempts) or (
                claim.text in leaves_open and not claim.open
            ):
                lacking.append(f"{level}: {claim.text}")
    return lacking


def test_each_promise_of_a_level_has_an_attack() -> None:
    assert not without_attempts(CLAIMS)
    promised = Claim(section="", text="has no network", levels=("guarded",))
    left_open = Claim(section="", text="Your other programs can be ended", levels=("guarded",))
    assert without_attempts([promised, left_open]) == [
        "guarded: has no network",
        "guarded: Your other programs can be ended",
    ]


@pytest.mark.parametrize("level", ["confined", "guarded"])
def test_attempts_that_may_succeed_outside_are_named_by_their_level(level: Stage) -> None:
    """By a claim of the level, or of all levels. At `isolated` what may succeed concerns only itself."""
    named = {name for claim in CLAIMS if not claim.levels or level in claim.levels for name in claim.open}
    outside = {name for name in PROBES if not name.startswith(("protected: ", "new: "))}  # in the workspace
    outside -= {"signal to everybody"}  # which the kernel reports as sent, though it reaches nobody outside
    assert {name for name in outside if may_succeed(name, level)} <= named


def test_rows_that_are_missing_gone_or_misspelled_are_seen() -> None:
    text = (
        "# A\n## B\nOne holds; two holds.\n\n| level | x |\n| --- | --- |\n| `confined` | Three. |\n"
        "```\nnothing\n```\n## C\nFour.\n"
    )
    found = passages(text, "B")
    assert found == ["One holds; two holds.", "| `confined` | Three. |"]
    one, two = (Claim(section="B", text=f"{word} holds") for word in ("One", "two"))
    three = Claim(section="B", text="`confined` | Three.", levels=("confined",))
    assert [unclaimed(passage, [one, two, three]) for passage in found] == ["", ""]
    assert unclaimed(found[0], [one])
    assert unclaimed(found[1], [Claim(section="B", text="`confined` | Three.")]), "of another level"
    assert [missing(claim, found) for claim in (one, two, three)] == [False] * 3
    assert missing(Claim(section="B", text="Four"), found)
    assert missing(Claim(section="B", text="Three", levels=("confined", "guarded")), found)
    assert exists("test_security_claims.py::test_rows_that_are_missing_gone_or_misspelled_are_seen")
    assert exists("policy/test_config_toml.py::test_bounds")
    assert not exists("test_security_claims.py::test_nothing")
    assert not exists("test_security_claims.py::exists")
    assert not exists("nowhere/test_nothing.py::test_nothing")


# ---------------------------------------------------------------- claims about words and numbers


def test_needs_of_a_level_are_those_of_the_code() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    needs = dict(re.findall(r"^\| `(\w+)` \| ([^|]*) \|", readme, re.MULTILINE))
    assert {*needs} == {*ENABLED_BY} == {*levels.LEVELS}
    for level in ("isolated", "confined", "guarded"):
        (version,) = re.findall(r"Linux \d\.\d+", needs[level])
        assert ENABLED_BY[level].startswith(f"{version} ")
        for word in ("Landlock", "user namespaces"):
            assert (word in needs[level]) is (word in ENABLED_BY[level])
    assert landlock.READER_SINCE == 6, "which came with the Linux 6.12 of `confined`"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    systems = [one for one in project["classifiers"] if one.startswith("Operating System")]
    assert needs["limited"].startswith("any Linux;")
    assert systems == ["Operating System :: POSIX :: Linux"]


def test_the_budget_of_what_is_retained_is_the_one_in_readme() -> None:
    default = inspect.signature(Session).parameters["retained_bytes"].default
    assert default == RetentionBudget().limit_bytes == 64 << 20


@pytest.mark.parametrize(
    "path",
    [
        *("conftest.py", "deep/er/conftest.py", "pyproject.toml", "Makefile", ".envrc", ".vscode/tasks.json"),
        *(".git/hooks/pre-commit", "module/.git/hooks/post-checkout"),
    ],
)
def test_the_files_that_readme_names_are_protected(path: str) -> None:
    assert is_protected(path)
    assert not is_protected(f"{path}.txt" if "/" not in path else "ordinary/file.txt")


def test_web_fetch_is_a_tool_of_the_host_and_asked_about() -> None:
    assert web_fetch.shipment() is None, "it is not sent to a sandbox"
    call = ToolCall("c", "web_fetch", {"url": "https://example.org"})
    for mode in ("safe", "auto"):
        prepared = prepare_call(web_fetch, call, Policy(mode=mode), "isolated", has_readers=True)
        assert (prepared.effect, prepared.evaluation.decision) == (Effect.REMOTE_ACTION, Decision.ASK)


def test_ipykernel_is_the_one_that_cards_need() -> None:
    (version,) = re.findall(
        r"Cards need ipykernel ([\d.]+) or newer", (ROOT / "README.md").read_text("utf-8")
    )
    assert f'"ipykernel>={version}"' in (ROOT / "pyproject.toml").read_text("utf-8")


def test_looks_at_the_memory_are_as_often_as_contributing_says() -> None:
    assert monitor._BUSY_INTERVAL_S == 1 / 10
    assert monitor._IDLE_INTERVAL_S > monitor._BUSY_INTERVAL_S


# ---------------------------------------------------------------- claims about what code can do

LEVELS = levels.LEVELS


def skip_unless_held(level: str) -> None:
    if not any(probe.name == level and probe.ok for probe in spawn.detection().probes):
        pytest.skip(f"this machine cannot hold the level {level}")


OUTSIDE = """
import os, signal

def attempt(action):
    try:
        action()
    except OSError:
        return False
    return True

[
    attempt(lambda: open({secret!r}).read()),
    attempt(lambda: open({secret!r}, 'a').write('changed')),
    attempt(lambda: open({new!r}, 'x')),
    attempt(lambda: os.write(os.open({door!r}, os.O_WRONLY), b'echo done > obeyed; exit\\n')),
    attempt(lambda: os.kill({pid}, signal.SIGTERM)),
]
"""


@pytest.fixture
def program() -> Iterator[subprocess.Popen[bytes]]:
    """Another program of this user."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another program of this user, which obeys what anybody writes into the named pipe `door`."""
    os.mkfifo(tmp_path / "door", 0o600)
    process = subprocess.Popen(["sh", "door"], cwd=tmp_path)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("level", LEVELS)
async def test_limited_leaves_files_and_programs_open(
    level: str, program: subprocess.Popen[bytes], shell: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    """The same code at each level: at `limited` it does what we can, at the others what they leave open."""
    skip_unless_held(level)
    secret, new = tmp_path / "secret", tmp_path / "new"
    secret.write_text("kept")
    paths = {"secret": str(secret), "new": str(new), "door": str(tmp_path / "door")}
    async with rig(tmp_path, level=level) as r:
        done = await r.value(OUTSIDE.format(**paths, pid=program.pid))
    *files, obeyed, signalled = done
    assert obeyed is (level == "limited")
    if obeyed:
        await eventually(lambda: shell.poll() is not None)
    assert (tmp_path / "obeyed").exists() is obeyed
    # At `isolated` the folder exists in a file system of its own, where it may make what it likes.
    assert files == [level == "limited", *[level in {"limited", "isolated"}] * 2]
    found = (secret.read_text(), new.exists())
    assert found == (("keptchanged", True) if level == "limited" else ("kept", False))
    if level == "limited":
        assert signalled
        assert program.wait() == -signal.SIGTERM
    elif level != "guarded":  # which leaves signals to other programs open where Landlock is old
        assert (signalled, program.poll()) == (False, None)


INSTALLED = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store"),
    *(
        "/etc/fonts",
        "/var/cache/fontconfig",
        "/etc/ssl/certs",
        "/etc/ca-certificates",
        "/etc/crypto-policies",
    ),
    *("/etc/pki/tls/certs", "/etc/pki/ca-trust/extracted", "/etc/ssl/cert.pem", "/etc/ssl/openssl.cnf"),
    *(
        "/etc/pki/tls/openssl.cnf",
        "/etc/ld.so.cache",
        "/etc/ld.so.preload",
        "/etc/localtime",
        "/etc/timezone",
    ),
    *("/etc/mime.types", "/sys/devices/system/cpu", "/sys/devices/system/node"),
    *("/etc/alternatives", *map(str, Path("/etc").glob("python3*"))),
)
"""What README means with what is installed for all users: programs, libraries and settings that they need."""

OF_ITS_OWN = ("/tmp", "/dev/shm", "/etc/hosts", "/etc/nsswitch.conf")
"""What a file system of the sandbox's own holds in place of the host's; the first two may be written."""

DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")

REACHED = """
import os
def opens(path, flags):
    try:
        if os.path.isdir(path):
            if flags == os.O_RDONLY:
                return os.listdir(path) is not None
            path, flags = path + '/planted', os.O_WRONLY | os.O_CREAT | os.O_EXCL
        os.close(os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY, 0o600))
    except OSError:
        return False
    return True
[[path for path in paths if opens(path, flags)] for flags in (os.O_RDONLY, os.O_WRONLY)]
"""


def entries_of_the_system(*roots: Path) -> list[str]:
    """Return the real paths of what lies in the topmost folders, two levels deep, and in `roots`."""
    found = {"/", *map(str, roots)}
    for folder in (Path("/"), *roots, *(path for path in Path("/").iterdir() if path.is_dir())):
        with contextlib.suppress(OSError):
            found.update(map(os.path.realpath, sorted(folder.iterdir())[:500]))
    # What lies there is the reader's own, and differs with it.
    return sorted(path for path in found if not re.match(r"/(proc|dev/(fd|std|pts|tty))", path))


@pytest.mark.parametrize("level", LEVELS)
async def test_code_reads_and_writes_nothing_but_what_readme_names(level: str, tmp_path: Path) -> None:
    """Tried with all that lies in the topmost folders. At `limited`, as a control, other files open."""
    skip_unless_held(level)
    named, other = tmp_path / "named", tmp_path / "other"
    for folder in (named, other):
        folder.mkdir()
        (folder / "file").touch()
    async with rig(tmp_path, level=level, readable=(str(named),)) as r:
        own = await r.value("import os; os.path.dirname(os.path.realpath(os.environ['HOME']))")
        paths = entries_of_the_system(named, other, r.workspace, Path(own))
        if level == "limited":  # which would leave its marks everywhere
            paths = [path for path in paths if path.startswith(str(tmp_path))]
        read, written = await r.value(f"paths = {paths!r}\n{REACHED}", timeout_s=50)
    interpreter = {
        sys.prefix,
        sys.base_prefix,
        str(ROOT / "aisotools"),
        *map(os.path.realpath, [sys.executable]),
    }
    may_write = (str(r.workspace), own, *DEVICES, *OF_ITS_OWN[: 2 * (level == "isolated")])
    may_read = (*may_write, str(named), *INSTALLED, *map(os.path.realpath, INSTALLED), *interpreter)
    if level == "isolated":
        may_read += OF_ITS_OWN
        read = [path for path in read if path != "/"]  # which is its own as well
    found = (
        [path for path in read if not levels.is_path_below(path, may_read)],
        [path for path in written if not levels.is_path_below(path, may_write)],
    )
    if level == "limited":
        assert all(str(other) in paths for paths in found)
    else:
        assert found == ([], [])
        assert {str(named), str(named / "file"), str(r.workspace)} <= {*read}
        assert {str(r.workspace), own} <= {*written}
        assert not [path for path in (*read, *written) if levels.is_path_below(path, (str(other),))]


@pytest.mark.parametrize("level", ["limited", "guarded", "confined", "isolated"])
async def test_a_session_reaches_no_file_of_another(level: str, tmp_path: Path) -> None:
    """In its workspace or in its temporary folder; where nothing confines, as a control, it does."""
    skip_unless_held(level)
    async with rig(tmp_path, level=level, name="one") as one, rig(tmp_path, level=level, name="two") as two:
        await two.python("import os; x = open('secret', 'w').write('2')")
        files = [str(two.workspace / "secret"), str(two.workspace)]
        if level != "isolated":  # there it has names of its own, which mean something else elsewhere
            files.append(
                await two.value(
                    "open(os.path.expanduser('~/secret'), 'w').write('2') and os.path.expanduser('~/secret')"
                )
            )
        opened = await one.value(
            f"import os\ndone = []\nfor path in {files!r}:\n"
            "    try: done.append(os.close(os.open(path, os.O_RDONLY)) is None)\n"
            "    except OSError: done.append(False)\ndone"
        )
        assert opened == [level == "limited"] * len(files)


WITH_A_KEY = """
import asyncio, os, sys
from pathlib import Path
from tests.sandbox.rig import rig

async def main():
    async with rig(Path(sys.argv[1]), level=sys.argv[2]) as r:
        python = await r.value("import os; dict(os.environ)")
        shell = (await r.bash("env")).value["stdout"]
    print([os.environ["API_KEY"] in str(found) for found in (dict(os.environ), python, shell)])

asyncio.run(main())
"""


@pytest.mark.sample(2)
@pytest.mark.parametrize("level", LEVELS)
def test_no_key_of_the_environment_enters_a_worker(level: str, tmp_path: Path) -> None:
    """The host is a process of its own, so that its fork server starts with the key around it."""
    skip_unless_held(level)
    done = subprocess.run(
        [sys.executable, "-c", WITH_A_KEY, str(tmp_path), level],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        cwd=ROOT,
        env=os.environ | {"API_KEY": secrets.token_hex(20)},
    )
    assert done.stdout == "[True, False, False]\n", done.stderr


@pytest.mark.sample(6)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("limits", "code", "limit"),
    [
        ({"memory_bytes": 256 << 20}, "x = bytearray(512 << 20)", "memory_bytes"),
        ({"file_bytes": 1 << 20}, "x = open('big', 'wb').write(bytes(2 << 20))", "file_bytes"),
        ({"cpu_s": 0.5}, "import time\nwhile time.process_time() < 1.5: pass", "cpu_s"),
    ],
    ids=["memory", "file", "time"],
)
async def test_memory_time_and_file_sizes_are_bounded_at_each_level(
    level: str, limits: Mapping[str, Any], code: str, limit: str, tmp_path: Path
) -> None:
    """With the limit the call fails and names it; without it the same code does its work."""
    skip_unless_held(level)
    async with rig(tmp_path, Limits(**limits), level=level, stop_timeouts=UNHURRIED) as r:
        result = await r.python(code, timeout_s=50)
        assert result.is_error
        assert result.metadata["limit"] == limit, result.content
        assert await r.value("1 + 1") == 2
    async with rig(tmp_path, Limits(), level=level, name="control") as r:
        result = await r.python(code, timeout_s=50)
        assert not result.is_error, result.content


@tool(effect=Effect.READ_ONLY)
def says_it_reads() -> str:
    """Change a file all the same."""
    Path("a").write_text("changed")
    return "done"


@pytest.mark.parametrize("level", ["guarded", "limited"])
async def test_reading_that_cannot_be_enforced_is_asked_about_and_undone(
    level: str, tmp_path: Path, real_session: OpenSession
) -> None:
    skip_unless_held(level)
    approver = ScriptedApprover(["deny", "approve"])
    session = real_session(says_it_reads, level=level, approver=approver)
    await session.start()
    file = tmp_path / "workspace" / "a"
    file.write_text("before")
    denied = await session.call("says_it_reads", origin="model")
    assert (denied.error_kind, file.read_text()) == ("denied", "before")
    allowed = await session.call("says_it_reads", origin="model")
    assert not allowed.is_error, allowed.content
    assert file.read_text() == "changed"
    assert not (await session.undo()).is_error
    assert file.read_text() == "before"


@tool
async def wait(number: int) -> str:
    """Wait until somebody ends it."""
    print("began", flush=True)
    await asyncio.sleep(1000)
    return f"{number}"


def began(r: Rig) -> int:
    return "".join(text for _, _, text in r.reported.outputs).count("began")


async def test_stop_ends_every_call_in_progress(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await r.python("kept = 1")
        calls = [asyncio.create_task(r.tool(wait, {"number": n}, timeout_s=1000)) for n in range(3)]
        calls.append(asyncio.create_task(r.bash("echo began; sleep 1000", timeout=1_000_000, timeout_s=1000)))
        await eventually(lambda: began(r) == len(calls))
        await r.kernel.interrupt()
        results = await asyncio.gather(*calls)
        assert [result.is_error for result in results] == [True] * len(calls)
        assert await r.value("kept") == 1


class Believed:
    """A tool of the host that says that it only reads, and does not."""

    name = "believed"
    description = "Write a file all the same."

    def parameters_schema(self) -> dict[str, Json]:
        return {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}

    def classify(self, arguments: Mapping[str, Json]) -> Effect:
        return Effect.READ_ONLY

    async def execute(self, arguments: Mapping[str, Json], context: ToolContext) -> ToolResult:
        Path(str(arguments["path"])).write_text(str(os.getpid()))  # noqa: ASYNC240 - it is small
        return ToolResult(content="done")


@tool(name="believed", effect=Effect.READ_ONLY, runs_in="host")
def believed_function(path: str) -> str:
    """Write a file all the same."""
    Path(path).write_text(str(os.getpid()))
    return "done"


@pytest.mark.parametrize("believed", [Believed(), believed_function], ids=["class", "function"])
async def test_a_class_runs_on_the_host_and_is_believed(
    believed: Tool, tmp_path: Path, real_session: OpenSession
) -> None:
    session = real_session(believed, policy=Policy(mode="plan"), approver=None)
    written = tmp_path / "elsewhere.txt"
    result = await session.call("believed", {"path": str(written)}, origin="model")
    assert not result.is_error, result.content
    assert written.read_text() == str(os.getpid())


HOOK = """#!/bin/sh
cat {secret} > found 2> problem
echo ran > hooked
"""


@pytest.mark.parametrize("level", ["isolated", "confined", "guarded"])
async def test_hooks_of_a_person_run_in_the_sandbox_as_git_runs_them(
    level: str, tmp_path: Path, real_session: OpenSession
) -> None:
    """In a repository that ordinary commands have made, and outside of it, as a control, with more rights."""
    skip_unless_held(level)
    workspace, secret = tmp_path / "workspace", tmp_path / "secret"
    secret.write_text("kept")
    options: dict[str, Any] = {"policy": Policy(mode="auto"), "approver": AllowAll(), "level": level}
    make = (
        "git init -q . && git config user.name me && git config user.email me@example.org && echo 1 > a"
        " && git add a && git commit -qm one && git checkout -q -b other && git log --format=%s && cat a"
    )
    async with real_session(**options) as session:
        made = await session.call("sandbox_bash", {"command": make})
        assert not made.is_error, made.content
        assert made.value["stdout"].split() == ["one", "1"]
        assert "protected" not in made.metadata
    hook = workspace / ".git/hooks/pre-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(HOOK.format(secret=secret))
    hook.chmod(0o755)
    commit = "echo 2 >> a && git commit -qam two && git log --format=%s"
    async with real_session(**options) as session:
        done = await session.call("sandbox_bash", {"command": commit})
        assert not done.is_error, done.content
        assert done.value["stdout"].split() == ["two", "one"]
    assert ((workspace / "hooked").read_text(), (workspace / "found").read_text()) == ("ran\n", "")
    assert "secret" in (workspace / "problem").read_text()
    outside = await asyncio.create_subprocess_shell(commit, cwd=workspace, stdout=subprocess.DEVNULL)
    assert await outside.wait() == 0
    assert (workspace / "found").read_text() == "kept"
