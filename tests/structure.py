"""Figures of the package's shape: `python -m tests.structure`.

Prints what `tests/test_shape.py` holds the package to, and what only a figure can say: the entries of its
root, modules and their sizes, class names with two meanings, members looked up without a declaration, words
that name nothing, and how much of the code is comments and docstrings. `--list` adds each finding's line,
`--sites` what `python -m tests.sites` prints: places of forks, signals, crashes and confinement.
"""

from __future__ import annotations

import ast
import io
import statistics
import sys
import tokenize
from collections import Counter
from pathlib import Path

from tests import shape, sites

PACKAGE = Path(__file__).resolve().parent.parent / "aisotools"


def main() -> None:
    """Print the figures."""
    package = shape.read(PACKAGE)
    tests = shape.read(PACKAGE.parent / "tests")
    modules = {name: module for name, module in package.items() if not module.is_root and name != "__main__"}
    lines = {name: len(module.source.splitlines()) for name, module in modules.items()}
    entries = [path.name for path in PACKAGE.iterdir() if path.name != "__pycache__"]
    print(f"entries of the package root: {len(entries)}")
    print(
        f"modules: {len(modules)}, lines: {sum(lines.values())}, median {statistics.median(lines.values()):g}"
    )
    print(f"modules over {shape.MODULE_LINES} lines: {sum(n > shape.MODULE_LINES for n in lines.values())}")
    print(f"small modules with one importer, too large modules: {len(list(shape.sizes(package)))}")
    print(f"classes, aliases, public functions defined twice: {len(list(shape.meanings(package)))}")
    print(f"lookups of undeclared members: {len(list(shape.undeclared(package)))}")
    banned = ", ".join(f"`{word}`" for word in sorted(shape.BANNED_WORDS))
    print(f"{banned} as names: {len(list(shape.words(package)))}; in tests: {len(list(shape.words(tests)))}")
    print(f"modules without a test of their own: {len(list(shape.untested(package, tests)))}")
    print(
        f"imports that run up: {len(list(shape.layers(package)))}; cycles: {len(list(shape.cycles(package)))}"
    )
    comments: Counter[str] = Counter()
    docstrings = total = 0
    for module in package.values():
        total += len(module.source.splitlines())
        folder = module.name.partition(".")[0] or "root"
        for token in tokenize.generate_tokens(io.StringIO(module.source).readline):
            comments[folder] += token.type == tokenize.COMMENT and not token.line[: token.start[1]].strip()
        for node in shape.nodes_of(module.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
                text = ast.get_docstring(node)
                docstrings += text is not None and len(text.splitlines())
    share = sum(comments.values()) / total
    print(f"comment lines: {sum(comments.values())} of {total} ({share:.1%}); docstring lines: {docstrings}")
    print("comment lines by package: " + ", ".join(f"{name} {n}" for name, n in sorted(comments.items())))
    print(f"docstrings that state no contract: {len(list(shape.contracts(package)))}")
    uncommented = list(sites.uncommented(package))
    count = sum(1 for module in package.values() for _ in sites.sites(module))
    print(
        f"places of forks, signals, crashes and confinement: {count}, without a comment: {len(uncommented)}"
    )
    if "--sites" in sys.argv[1:]:
        sites.print_sites(package)
    if "--list" in sys.argv[1:]:
        rules: tuple[shape.Rule, ...]
        rules = (shape.sizes, shape.meanings, shape.undeclared, shape.words, shape.layers, shape.cycles)
        rules += (shape.contracts, shape.constants, shape.imports_by_name)
        for finding in (*(one for rule in rules for one in rule(package)), *shape.untested(package, tests)):
            print(finding)


if __name__ == "__main__":
    main()
