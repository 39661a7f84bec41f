"""Places whose correctness depends on what happens at the same moment: `python -m tests.sites` lists them.

These are forks, signals, threads, crashes and confinement. Code cannot show why such a place is right: the
case it guards against happens between its lines, in another process, another thread or the kernel. So each
has a comment that names the case. `uncommented` finds those that have none; `main` prints all, each with its
kind and the nearest line of its comment. Whether the comment is about the case is for readers to judge.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.shape import Finding, Module, Package, read

PACKAGE = Path(__file__).resolve().parent.parent / "aisotools"

LINES_ABOVE = 6
LINES_BELOW = 5  # where the handlers of an error say why
MIN_WORDS = 4  # fewer name no case

KINDS = {
    # processes begin, end, and are waited for
    "process": frozenset(
        {"fork", "register_at_fork", "_exit", "execv", "execve", "execvpe", "posix_spawn", "Popen", "setsid"}
        | {"kill", "killpg", "setpgid", "prctl", "_prctl"}
        | {"waitpid", "waitid", "wait3", "wait4", "pidfd_open", "pidfd_send_signal"}
    ),
    "signal": frozenset(
        {"signal", "raise_signal", "set_wakeup_fd", "setitimer", "siginterrupt", "pthread_sigmask"}
        | {"add_signal_handler"}
    ),
    # another thread hands something to the event loop, which may be closed meanwhile
    "thread": frozenset({"call_soon_threadsafe", "Thread"}),
    # descriptors change hands
    "descriptor": frozenset({"dup2", "send_fds", "recv_fds"}),
    # layers of confinement; also system calls by name
    "confinement": frozenset({"load_filter", "_load_filter", "unshare", "setns"}),
    # a file takes the place of another, loses its end, is locked or written back; a whole folder is removed
    "file": frozenset(
        {"rename", "replace", "link", "truncate", "ftruncate", "flock", "lockf"}
        | {"rmtree", "fsync", "syncfs", "unlink", "fchmod"}
    ),
    # a task is not cancelled half-way, or the cancellation of another is awaited
    "cancellation": frozenset({"shield", "uncancel"}),
}
"""Functions whose effect depends on the moment, by kind. Handlers of `CancelledError` count as well."""

OWNERS = {
    "fork": {"os"},
    "signal": {"signal"},
    "replace": {"os"},
    "rename": {"os"},
    "link": {"os"},
    "truncate": {"os"},
    "unlink": {"os"},
    "Thread": {"threading"},
}
"""Of functions with common names: the modules whose functions they are."""

SYSTEM_CALLS = re.compile(
    r"seccomp|prctl|landlock_\w+|unshare|setns|pivot_root|clone3?|capset|umount2|move_mount|pidfd_\w+"
)
CALLERS_OF_SYSTEM_CALLS = frozenset({"call", "_call_refused", "partial"})


@dataclass(frozen=True, slots=True)
class Site:
    """Such a place.

    Attributes:
        line: Its first line.
        end: Its last line.
        kind: What it is about, a key of `KINDS`.
        what: The call, or the error that it handles.
        first: First line of the function it stands in.
        last: Last line of that function.
    """

    line: int
    end: int
    kind: str
    what: str
    first: int
    last: int


def uncommented(package: Package) -> Iterator[Finding]:
    """Yield each place without a comment close by, in the same function, that could name its case."""
    for module, site, comment in commented_sites(package):
        if not comment:
            advice = 'name the case that it guards against ("Race: ...")'
            yield Finding(module.path, site.line, f"{site.what} without a comment; {advice}")


def commented_sites(package: Package) -> Iterator[tuple[Module, Site, str]]:
    """Yield each place with the nearest comment in its function; empty if there is none close by."""
    for module in package.values():
        found = sorted(sites(module), key=lambda site: site.line)
        comments = _comments(module) if found else {}
        for site in found:
            above = max(site.line - LINES_ABOVE, site.first)
            below = min(max(site.end, site.line + LINES_BELOW), site.last)
            near = [line for line in range(above, below + 1) if line in comments]
            nearest = min(near, key=lambda line: abs(line - site.line), default=None)
            yield module, site, "" if nearest is None else _whole_comment(module, nearest)


def _comments(module: Module) -> dict[int, str]:
    """Return the comments of several words by line. An exemption from a check is none."""
    lines = {}
    for token in tokenize.generate_tokens(io.StringIO(module.source).readline):
        if token.type == tokenize.COMMENT:
            text = re.sub(r"#\s*(noqa|type|pragma|fmt|nosec)\b.*", "", token.string)
            if len(re.findall(r"\w+", text)) >= MIN_WORDS:
                lines[token.start[0]] = text.lstrip("# ")
    return lines


def _whole_comment(module: Module, line: int) -> str:
    """Return the comment that a line is part of, with all its lines."""
    texts = module.source.splitlines()
    if not texts[line - 1].lstrip().startswith("#"):
        return texts[line - 1].partition("# ")[2]
    first = last = line
    while first > 1 and texts[first - 2].lstrip().startswith("#"):
        first -= 1
    while last < len(texts) and texts[last].lstrip().startswith("#"):
        last += 1
    return " ".join(text.lstrip("# ").rstrip() for text in texts[first - 1 : last])


def sites(module: Module) -> Iterator[Site]:
    """Yield each place in a module, in no particular order."""
    left: list[tuple[ast.AST, int, int]] = [(module.tree, 1, len(module.source.splitlines()))]
    while left:
        node, first, last = left.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first, last = node.lineno, node.end_lineno or last
        if isinstance(node, ast.Call) and (found := _risky(node)):
            kind, called = found
            yield Site(node.lineno, node.end_lineno or node.lineno, kind, called, first, last)
        elif isinstance(node, ast.ExceptHandler) and node.type and _is_cancellation(node.type):
            what = f"`except {ast.unparse(node.type)}`"
            yield Site(node.lineno, node.lineno, "cancellation", what, first, last)
        left += [(child, first, last) for child in ast.iter_child_nodes(node)]


def _is_cancellation(error: ast.expr) -> bool:
    return "CancelledError" in ast.unparse(error)


def _risky(call: ast.Call) -> tuple[str, str] | None:
    """Return the kind of a call that depends on the moment, and what it does."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name in CALLERS_OF_SYSTEM_CALLS:
        texts = [
            one.value for one in call.args if isinstance(one, ast.Constant) and isinstance(one.value, str)
        ]
        system_call = next((text for text in texts if SYSTEM_CALLS.fullmatch(text)), None)
        return None if system_call is None else ("confinement", f"the system call {system_call}")
    if name == "suppress" and any(_is_cancellation(error) for error in call.args):
        return "cancellation", f"`{ast.unparse(call)}`"
    kind = next((kind for kind, names in KINDS.items() if name in names), None)
    if kind is None:
        return None  # before anything is written out, which takes long
    owner = ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else ""
    called = f"{owner}.{name}" if owner else name
    to_path = len(call.args) == 1 and not isinstance(call.args[0], ast.Constant) and not call.keywords
    if name in {"replace", "rename"} and to_path:
        return "file", called  # of a path; of a text it takes two arguments
    return (kind, called) if owner in OWNERS.get(name, {owner}) else None


def print_sites(package: Package) -> None:
    """Print each place: its file and line, its kind, what it does, and its comment."""
    for module, site, comment in commented_sites(package):
        print(f"{module.path}:{site.line}: {site.kind}: {site.what}: {comment or 'no comment'}")


def main() -> None:
    """Print each place of the package."""
    print_sites(read(PACKAGE))


if __name__ == "__main__":
    main()
