"""Mutants of the modules that decide: `python -m tests.mutation [MODULE ...]`.

For each module, seeded random changes of one decision each (a comparison, a condition, a constant, a
statement that is left out) are tried one after another, and the module's own tests are run against each. A
mutant that no own test notices is a survivor. The command prints the rate for each module and every survivor
with its line, and exits with 1 when a module's rate is below the required one.

A mutant can do anything, such as remove files that are not its own. So the tests run where only the folder
for their temporary files can be changed, which takes Linux with Landlock.

A survivor that behaves as the original does is listed in `tests/data/mutants.toml` with the reason, and not
counted. The checkout is not touched: mutants are written into a temporary copy.

A mutant that never ends is killed by its time limit, a multiple of what the tests take without a change. The
tests are timed again before a limit counts, so that a busy machine is not taken for a test that notices.
"""

from __future__ import annotations

import argparse
import ast
import concurrent.futures
import functools
import itertools
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from aisotools.sandbox.confinement import landlock

PROJECT = Path(__file__).resolve().parent.parent
REASONS = PROJECT / "tests" / "data" / "mutants.toml"
REQUIRED = 0.85

_UNUSED_PLUGINS = ("anyio", "langsmith_plugin", "nbval", "xdist", "xdist.looponfail")
"""Plugins that no own test of these modules needs, and whose import takes longer than most of the tests."""

_CHECKPOINTS = sorted(
    f"workspace/checkpoints/{path.stem}"
    for path in (PROJECT / "aisotools" / "workspace" / "checkpoints").glob("*.py")
    if path.stem != "__init__"
)

MODULES = (
    "policy/rules",
    "policy/grants",
    "policy/approvers",
    "policy/prepared",
    "session/gate",
    "session/approvals",
    "session/guards",
    "session/protection",
    "sandbox/host/scheduler",
    *_CHECKPOINTS,
    "agent/loop",
)
"""The modules that decide; each is tried against `tests/<folder>/test_<module>*.py`."""

LEFT_OUT = (
    "tests/session/test_guards_mode.py",
    "tests/workspace/checkpoints/test_timeline_faults.py",
    "tests/workspace/checkpoints/test_timeline_power.py",
)
"""Tests that cannot run here, as other users, who may not write to the one folder that remains; and those
that take minutes for each mutant, since they try one thing at each of hundreds of system calls."""

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_DECISIONS = {"ALLOW": "DENY", "DENY": "ALLOW", "ASK": "ALLOW", "READ_ONLY": "DESTRUCTIVE"}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of a source text.

    Attributes:
        line: Where, from 1.
        function: The function or class it lies in, with dots; empty at the top of the module.
        before: The changed code.
        after: What it becomes.
        place: The line, for a change of no more than one word in it, which alone says little; else empty.
        source: The whole changed text.
    """

    line: int
    function: str
    before: str
    after: str
    place: str
    source: str

    @property
    def key(self) -> str:
        """Name the change without its line, so that it survives edits elsewhere in the module."""
        place = f" in {self.place}" if self.place else ""
        return f"{self.function}: {self.before} -> {self.after}{place}"


def mutants(source: str) -> Iterator[Mutant]:
    """Yield every change of `source` that is tried, in the order of the text."""
    tree = ast.parse(source)
    offsets = [0]
    for text in source.encode().splitlines(keepends=True):
        offsets.append(offsets[-1] + len(text))
    data, lines = source.encode(), source.splitlines()
    for node, function in _nodes(tree, ""):
        for after in _changes(node):
            start = offsets[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]  # they have places
            end = offsets[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]  # the same
            before = " ".join(data[start:end].decode().split())
            changed = (data[:start] + after.encode() + data[end:]).decode()
            line: int = node.lineno  # type: ignore[attr-defined]  # the same
            place = lines[line - 1].strip() if isinstance(node, ast.Constant | ast.Attribute) else ""
            yield Mutant(line, function, before[:120], after[:120], place, changed)


def _nodes(node: ast.AST, function: str) -> Iterator[tuple[ast.AST, str]]:
    """Yield the nodes whose change could matter: no annotations, docstrings or `__repr__`."""
    for name, value in ast.iter_fields(node):
        if name in {"annotation", "returns", "decorator_list", "bases", "type_params"}:
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST):
                continue
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            inner = function
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                if child.name in {"__repr__", "__str__"}:
                    continue
                inner = f"{function}.{child.name}".lstrip(".")
            elif isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
                continue
            yield child, inner
            yield from _nodes(child, inner)


def _changes(node: ast.AST) -> Iterator[str]:
    """Yield what the code of one node may become."""
    match node:
        case ast.Compare(left=left, ops=[operator], comparators=[right]) if type(operator) in _COMPARISONS:
            yield ast.unparse(ast.Compare(left, [_COMPARISONS[type(operator)]()], [right]))
        case ast.BoolOp(op=operator, values=values):
            other = ast.Or() if isinstance(operator, ast.And) else ast.And()
            yield f"({ast.unparse(ast.BoolOp(other, values))})"
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield f"bool({ast.unparse(operand)})"
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            yield f"({ast.unparse(ast.BinOp(left, ast.Sub(), right))})"
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            yield f"({ast.unparse(ast.BinOp(left, ast.Add(), right))})"
        case ast.Constant(value=bool() as value):
            yield repr(not value)
        case ast.Constant(value=int() as value):
            yield repr(value + 1)
        case ast.Attribute(value=value, attr=name) if name in _DECISIONS:
            yield f"{ast.unparse(value)}.{_DECISIONS[name]}"
        case ast.Return(value=ast.AST() as value) if not _is_falsy(value):
            yield "return None"
        case ast.Raise() | ast.Continue() | ast.Break():
            yield "pass"
        case ast.Expr(value=ast.Call() | ast.Await()):
            yield "pass"
        case ast.IfExp(test=test, body=body, orelse=orelse):
            yield f"({ast.unparse(ast.IfExp(test, orelse, body))})"


def _is_falsy(node: ast.AST) -> bool:
    """Return whether None instead of this constant would make no difference to a condition."""
    return isinstance(node, ast.Constant) and not node.value


def chosen(module: str, source: str, count: int, seed: int) -> list[Mutant]:
    """Return `count` of the module's mutants, the same ones for the same text and seed."""
    everything = list(mutants(source))
    random.Random(f"{module}:{seed}").shuffle(everything)
    picked = itertools.islice(filter(_is_code, everything), count)
    return sorted(picked, key=lambda mutant: mutant.line)


def _is_code(mutant: Mutant) -> bool:
    try:
        ast.parse(mutant.source)
    except SyntaxError:
        return False
    return True


def confine(folder: Path) -> None:
    """Let this process, and all that it starts, create, write, rename and remove files below `folder` alone.

    Modes and times of files are not covered.

    Raises:
        OSError: The kernel offers no Landlock.
    """
    version = min(landlock.abi(), landlock.KNOWN_ABI)
    changes = landlock.all_rights(version) & ~landlock.READ & ~landlock.Right.IOCTL_DEV
    paths = (str(folder), *landlock.WRITABLE_DEVICES)
    rules = landlock.Ruleset(files=changes, grants=tuple((path, changes) for path in paths))
    landlock.enforce(rules, version)


class Copy:
    """A copy of the checkout in which one module at a time is changed."""

    def __init__(self, top: Path, module: str) -> None:
        """Copy the checkout into a folder below `top`."""
        folder = self.folder = top / "copy"
        # All that the tests can change. The names are short: sockets lie below.
        self._writable = top / "w"
        self._scratch, self._cache = self._writable / "t", self._writable / "c"
        self._cache.mkdir(parents=True)
        self.output = ""
        names = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=PROJECT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split("\0")
        for name in filter(None, names):
            if (PROJECT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(PROJECT / name, folder / name)
        self.target = folder / "aisotools" / f"{module}.py"
        tests = (folder / "tests" / module).parent
        found = set(tests.glob(f"test_{self.target.stem}*.py")) - {folder / name for name in LEFT_OUT}
        self.tests = sorted(map(str, found))
        if not self.tests:
            raise SystemExit(f"{module} has no test of its own.")

    def passes(self, source: str, timeout_s: float) -> bool | None:
        """Return whether the module's own tests pass with `source` as its text; None at the time limit."""
        self.target.write_text(source, "utf-8")
        for path in self._cache.rglob(f"{self.target.stem}.*.pyc"):
            path.unlink()  # a mutant of the same size in the same second would count as unchanged
        plugins = itertools.chain.from_iterable(("-p", f"no:{name}") for name in _UNUSED_PLUGINS)
        command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider"]
        self._scratch.mkdir()
        env = {
            **os.environ,
            # The installed plugin imports the package before pytest reads its configuration.
            "PYTHONPATH": str(self.folder),
            "PYTHONPYCACHEPREFIX": str(self._cache),
            "HYPOTHESIS_PROFILE": "mutants",
            "TMPDIR": str(self._scratch),
        }
        try:
            run = subprocess.run(
                [*command, *plugins, *self.tests],
                cwd=self.folder,
                env=env,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=timeout_s,
                preexec_fn=functools.partial(confine, self._writable),
                check=False,
            )
        except subprocess.TimeoutExpired:
            return None
        finally:
            # A mutant may leave what Python cannot remove: trees too deep, folders without rights.
            subprocess.run(["chmod", "-R", "u+rwX", self._scratch], capture_output=True, check=False)
            subprocess.run(["rm", "-rf", self._scratch], check=True)
        self.output = run.stdout.decode(errors="replace")
        return run.returncode == 0

    def time_limit(self, source: str) -> float:
        """Return how many seconds a mutant gets now, by how long the tests of the original `source` take."""
        started = time.monotonic()
        if not self.passes(source, 600):
            output = "\n".join(self.output.splitlines()[-30:])
            raise SystemExit(f"The own tests of {self.target.stem} fail without any change:\n{output}")
        return 10 + 5 * (time.monotonic() - started)


def judge(module: str, count: int, seed: int) -> tuple[int, list[Mutant]]:
    """Return how many mutants were tried, and those that survived."""
    source = (PROJECT / "aisotools" / f"{module}.py").read_text("utf-8")
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Copy(Path(folder), module)
        limit_s = copy.time_limit(source)
        picked = chosen(module, source, count, seed)
        survivors = []
        for mutant in picked:
            passes = copy.passes(mutant.source, limit_s)
            if passes is None and (now_s := copy.time_limit(source)) > limit_s:
                limit_s = now_s  # the machine has become slower
                passes = copy.passes(mutant.source, limit_s)
            if passes:
                survivors.append(mutant)
        return len(picked), survivors


def reasons() -> dict[str, dict[str, str]]:
    """Return, by module and key, why a mutant behaves as the original does."""
    return tomllib.loads(REASONS.read_text("utf-8")) if REASONS.exists() else {}


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the mutants; return 1 when a module's own tests notice too few."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutation", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("modules", nargs="*", metavar="MODULE", help="such as policy/rules; all without it")
    parser.add_argument("--count", type=int, default=40, help="mutants of each module (default: 40)")
    parser.add_argument("--seed", type=int, default=1, help="which ones (default: 1)")
    parser.add_argument("--jobs", type=int, default=1, help="modules tried side by side (default: 1)")
    options = parser.parse_args(arguments)
    explained, status = reasons(), 0
    names = options.modules or list(MODULES)
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        started = {pool.submit(judge, name, options.count, options.seed): name for name in names}
        for ended in concurrent.futures.as_completed(started):
            name, (tried, survivors) = started[ended], ended.result()
            known = [mutant for mutant in survivors if mutant.key in explained.get(name, {})]
            unknown = [mutant for mutant in survivors if mutant not in known]
            counted = tried - len(known)
            rate = 1 - len(unknown) / counted if counted else 1.0
            status |= rate < REQUIRED
            print(f"{name}: {counted - len(unknown)} of {counted} killed ({rate:.0%})", flush=True)
            for mutant in unknown:
                print(f"  survived  {name}.py:{mutant.line} {mutant.key}", flush=True)
            for mutant in known:
                print(
                    f"  the same  {name}.py:{mutant.line} {mutant.key}: {explained[name][mutant.key]}",
                    flush=True,
                )
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
