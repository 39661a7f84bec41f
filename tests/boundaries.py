"""Boundaries, and what their modules say about them: `python -m tests.boundaries` lists them.

A boundary is what hostile code or a hostile workspace meets on its way to the host. The docstring of its
module says in about ten lines what it is for, so that somebody who has not built it can attack it: the
threat, the mechanism, the race window, and what happens when it fails. Every module of the folders of
`FOLDERS` is one, and those of `MODULES`; what is none stands in `NO_BOUNDARY`, with the reason.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping

from tests.shape import Finding, Package, read
from tests.sites import PACKAGE

FOLDERS = ("sandbox.confinement.", "sandbox.process.", "sandbox.host.", "sandbox.worker.")
MODULES = frozenset(
    {
        "integrations.mcp.heads",
        "integrations.mcp.messages",
        "sandbox.arrow",
        "sandbox.data",
        "sandbox.frames",
        "sandbox.limits",
        "sandbox.parsing",
        "sandbox.results",
        "session.protection",
        "session.trials",
        "workspace.candidates",
        "workspace.command_loads",
        "workspace.command_paths",
        "workspace.dirfd",
        "workspace.git_config",
        "workspace.git_named_files",
        "workspace.git_settings",
        "workspace.host_files",
        "workspace.import_roots",
        "workspace.importable",
        "workspace.loaded_names",
        "workspace.lock",
        "workspace.made_names",
        "workspace.path_facts",
        "workspace.paths",
        "workspace.protected",
        "workspace.protected_names",
        "workspace.quarantine",
        "workspace.scripts",
        "workspace.stamps",
        "workspace.workspace",
    }
)
NO_BOUNDARY: Mapping[str, str] = {
    "sandbox.confinement.syscalls": "numbers of system calls, and a function that makes one",
    "sandbox.host.failures": "words about what happened",
    "sandbox.host.programs": "the host's part of the boundary in sandbox.process.ownership",
    "sandbox.host.sandbox": "puts the boundaries of its package together",
    "sandbox.host.scheduler": "an order among calls of one session, which harms only itself",
    "sandbox.host.snapshot_store": "which snapshots are retained; sandbox.host.snapshots is the boundary",
    "sandbox.process.preload": "imports what a person has named, before there is any session",
    "sandbox.process.tree": "reads and ends processes for those who decide which",
    "sandbox.worker.children": "inside: what `os.wait` answers to honest code",
    "sandbox.worker.event_loop": "inside: keeps honest code working, and promises nothing of hostile code",
    "sandbox.worker.ipython": "inside, likewise",
    "sandbox.worker.worker": "inside, likewise; what it sends meets sandbox.frames and sandbox.host.calls",
}
HEADINGS = {
    "threat": r"Threat",
    "mechanism": r"Mechanism",
    "race window": r"Race(?: window)?",
    "what happens when it fails": r"(?:A )?[Ff]ailure(?: to look)?|When (?:it|a look) fails",
}
"""What has to be said, and how the line begins that says it: as an item, as a heading, or as a paragraph."""


def is_boundary(name: str) -> bool:
    """Return whether a module, named without the package, is to say what it defends."""
    return (name.startswith(FOLDERS) or name in MODULES) and name not in NO_BOUNDARY


def missing_headings(docstring: str) -> list[str]:
    """Return what a docstring does not say, of what a boundary has to say."""
    return [
        what
        for what, heading in HEADINGS.items()
        if not re.search(rf"^(?:- )?(?:{heading})(?:[:,]| is |$)", docstring, re.MULTILINE)
    ]


def incomplete(package: Package) -> list[Finding]:
    """Return a finding for each boundary whose module leaves something out."""
    found = []
    for name, module in package.items():
        if is_boundary(name) and (missing := missing_headings(ast.get_docstring(module.tree) or "")):
            message = f"the docstring of a boundary does not say: {', '.join(missing)}"
            found.append(Finding(module.path, 1, message))
    return found


def main() -> None:
    """Print each boundary with the first sentence of its docstring."""
    for name, module in read(PACKAGE).items():
        if is_boundary(name):
            print(f"{name}: {(ast.get_docstring(module.tree) or '').partition(chr(10))[0]}")


if __name__ == "__main__":
    main()
