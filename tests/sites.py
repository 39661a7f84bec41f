"""Places whose correctness depends on what happens at the same moment: forks, signals, crashes, confinement.

Code cannot show why such a place is right: the case it guards against happens between its lines, in another
process or in the kernel. So each has a comment that names the case. `uncommented` finds those that have none;
`python -m tests.structure --sites` lists them.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator

from tests.shape import Finding, Module, Package

COMMENT_LINES = 6
"""A comment counts that begins at most so many lines above a place, or stands within it."""

_COMMENT_WORDS = 4  # fewer name no case

CALLS = frozenset(
    # processes begin and end
    {
        "fork",
        "_exit",
        "kill",
        "killpg",
        "pidfd_open",
        "pidfd_send_signal",
        "waitpid",
        "waitid",
        "wait3",
        "wait4",
    }
    | {"setsid", "setpgid", "prctl", "_prctl", "unshare", "setns", "execv", "execve", "execvpe"}
    # signals
    | {"signal", "set_wakeup_fd", "setitimer", "siginterrupt", "pthread_sigmask", "add_signal_handler"}
    # a file is put in the place of another, or locked
    | {"rename", "replace", "link", "flock", "lockf"}
    # tasks that must not be cancelled half-way
    | {"shield", "uncancel"}
)
"""Names of functions that begin, end, signal or confine processes, swap files, or hold off cancellation."""

OWNERS = {
    "signal": {"signal"},
    "replace": {"os", "pathlib"},
    "rename": {"os"},
    "link": {"os"},
    "wait": {"os"},
}
"""Of functions with common names: the modules they are functions of."""

SYSTEM_CALLS = re.compile(
    r"seccomp|landlock_\w+|unshare|setns|pivot_root|clone3?|capset|umount2|move_mount|pidfd_\w+"
)
"""System calls that confine; made with `syscalls.call`."""

CANCELLED = "CancelledError"


def uncommented(package: Package) -> Iterator[Finding]:
    """Yield each such place without a comment that could name its case."""
    for module in package.values():
        comments = _comment_lines(module)
        for node, what, first in _sites(module):
            end = node.end_lineno or node.lineno
            if isinstance(node, ast.ExceptHandler):
                end = node.body[0].end_lineno or node.lineno
            if not any(line in comments for line in range(max(first, node.lineno - COMMENT_LINES), end + 1)):
                message = f'{what} without a comment; name the case it guards against ("Race: ...")'
                yield Finding(module.path, node.lineno, message)


def _comment_lines(module: Module) -> set[int]:
    """Return the lines with a comment of several words. An exemption from a check is none."""
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(module.source).readline):
        if token.type == tokenize.COMMENT:
            text = re.sub(r"#\s*(noqa|type|pragma|fmt|nosec)\b.*", "", token.string)
            if len(re.findall(r"\w{2,}", text)) >= _COMMENT_WORDS:
                lines.add(token.start[0])
    return lines


def _sites(module: Module) -> Iterator[tuple[ast.expr | ast.ExceptHandler, str, int]]:
    """Yield each place, what it is, and the first line of the function it stands in."""
    left: list[tuple[ast.AST, int]] = [(module.tree, 1)]
    while left:
        node, first = left.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.lineno
        if isinstance(node, ast.Call) and (called := _risky(node)):
            yield node, called, first
        elif isinstance(node, ast.ExceptHandler) and node.type and CANCELLED in ast.unparse(node.type):
            yield node, f"a handler of {CANCELLED}", first
        left += [(child, first) for child in ast.iter_child_nodes(node)]


def _risky(call: ast.Call) -> str:
    """Return what a call does that depends on the moment, or an empty text."""
    owner = ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else ""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    first = call.args[0] if call.args else None
    if (
        isinstance(first, ast.Constant)
        and isinstance(first.value, str)
        and SYSTEM_CALLS.fullmatch(first.value)
    ):
        return f"the system call {first.value}"
    if name in CALLS and owner in OWNERS.get(name, {owner}):
        return f"{owner}.{name}" if owner else name
    return ""
