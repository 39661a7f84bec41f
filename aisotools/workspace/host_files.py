"""Keep the host from running files of a workspace that it does not find as modules, by their names.

Threat: code in the sandbox plants compiled code where Python keeps that of the standard library
(`sys.pycache_prefix`), rewrites the running program, which `multiprocessing` runs again in each process that
it spawns, or writes a file that Python or a library obeys whenever it starts. It runs outside the sandbox.
Variables of other programs (`PATH`) are in `aisotools.workspace.host_variables`.

Mechanism: a workspace is refused in which such a file could be written. `refuse_host_files` is part of
`aisotools.workspace.import_roots.refuse_import_root`, so it looks whenever that does. Compiled code below
`sys.pycache_prefix` has the path of its source there: a workspace that lies below counts if there is a folder
at that path.

Race window: between two looks, a variable of the environment, the program or a module that is loaded by its
path may change. The folder of the sources may be made. Files that the program opens and runs by itself, and
settings of other programs, are not known here.

When a look fails, the call or the worker that needed it does not start. Files that are there stay.
"""

from __future__ import annotations

import importlib.machinery
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from aisotools.core.exceptions import WorkspaceRefused
from aisotools.workspace.host_variables import why_variables_refuse
from aisotools.workspace.real_paths import RealPaths, leads_into, lies_to

_ENDINGS = tuple(
    start + suffix for start in ("", "/__init__") for suffix in importlib.machinery.all_suffixes()
)
_PYCACHE = "__pycache__"


def refuse_host_files(
    workspace: Path,
    environ: Mapping[str, str],
    *,
    loaded: Mapping[str, Mapping[str, Sequence[str]]],
    roots: Collection[str],
    paths: RealPaths | None = None,
    refusal: str = "",
) -> None:
    """Raise if this process or the next one of the person would run a file of `workspace` by itself.

    Args:
        workspace: An existing folder.
        environ: Where the variables are looked up that name such files.
        loaded: Modules of this process: by the absolute path of their folder and the name of their file.
        roots: Real paths of folders in which modules are looked up by name, and in which the workspace lies.
        paths: Has real paths that were found just now.
        refusal: How the message begins, if it does not name the workspace alone.

    Raises:
        WorkspaceRefused: Saying why, and what would do.
    """
    real = os.path.realpath(workspace)
    refusal = refusal or f"{str(workspace)!r} cannot be the workspace: "
    advice = "Use a folder made for this, such as ./workspace/mine."
    if _PYCACHE in real.split("/"):
        raise WorkspaceRefused(
            f"{refusal}it is or lies in a folder {_PYCACHE!r}, where Python takes compiled code from instead "
            f"of the source. {advice}"
        )
    if reason := why_variables_refuse(real, environ):
        raise WorkspaceRefused(f"{refusal}{reason}")
    for prefix, description in _pycache_prefixes(environ):
        relation = _lies_to_bytecode(real, prefix)
        if relation:
            raise WorkspaceRefused(
                f"{refusal}it {relation} {description} ({prefix}), where Python takes compiled code from "
                f"instead of the source. {_name_other_folder(prefix)}"
            )
    for file, description in _startup_files(environ):
        if leads_into(file, {real}):
            raise WorkspaceRefused(f"{refusal}it contains {description} ({file}). {advice}")
    for name, file, path in _modules_within(real, loaded, paths or RealPaths()):
        stems = [f"{root.rstrip('/')}/{name.replace('.', '/')}" for root in roots]
        if not any(path == stem + ending for stem in stems for ending in _ENDINGS):
            raise WorkspaceRefused(
                f"{refusal}it contains the module {name} ({file}), which this process has loaded by its "
                f"path. {advice}"
            )


def _modules_within(
    workspace: str, loaded: Mapping[str, Mapping[str, Sequence[str]]], paths: RealPaths
) -> Iterator[tuple[str, str, str]]:
    """Yield the name, path and real path of each module whose path or real path lies in the workspace.

    Args:
        workspace: Its real path.
        loaded: See `refuse_host_files`.
        paths: Finds real paths.
    """
    inside = f"{workspace}/"
    for folder, files in loaded.items():
        found: Iterable[str] = files
        # A module lies where its folder does, unless it is a link: hundreds share the folders of a few dozen.
        if not f"{folder}/".startswith(inside):
            real = paths.resolve(folder or "/")
            if not f"{real}/".startswith(inside):
                links = paths.list_links(real)
                if links is not None:
                    found = links & files.keys() if links else ()
        for file in found:
            written = f"{folder}/{file}"
            path = paths.resolve(written)
            if path.startswith(inside) or written.startswith(inside):
                yield from ((name, written, path) for name in files[file])


def _pycache_prefixes(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the real paths of folders that stand for all folders `__pycache__`, each with what names it."""
    candidates = (
        (environ.get("PYTHONPYCACHEPREFIX") or None, "the folder PYTHONPYCACHEPREFIX"),
        (sys.pycache_prefix, "the folder sys.pycache_prefix"),
    )
    for prefix, description in candidates:
        if prefix is not None:
            try:
                yield os.path.realpath(prefix), description
            except (OSError, ValueError):  # the current folder is gone, or the prefix is no path
                continue


def _lies_to_bytecode(workspace: str, prefix: str) -> str:
    """Return how a workspace lies to a folder of compiled code if a file in it could be taken for such code.

    Empty if it could not.
    """
    relation = lies_to(workspace, prefix)
    if relation == "lies in":
        sources = workspace[len(prefix.rstrip("/")) :]
        if sources == workspace or not Path(sources).is_dir():
            return ""
    return relation


def _name_other_folder(prefix: str) -> str:
    """Return advice that names a folder where no compiled code is looked up."""
    for name in ("mine", "notes"):
        try:
            folder = os.path.realpath(f"workspace/{name}")
        except FileNotFoundError:  # the current folder is gone
            break
        if not _lies_to_bytecode(folder, prefix):
            return f"Use a folder made for this, such as {folder!r}."
    return "Use a folder elsewhere, which is made for this."


def _startup_files(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield files that are run or obeyed by themselves, each with what it is. They need not exist."""
    program = getattr(sys.modules.get("__main__"), "__file__", None)
    if isinstance(program, str):
        yield program, "the running program"
    if sys.executable:
        yield sys.executable, "the interpreter that runs it"
    if startup := environ.get("PYTHONSTARTUP"):
        yield startup, "the file PYTHONSTARTUP, which Python runs when it starts"
    for variable in ("MPLCONFIGDIR", "MATPLOTLIBRC"):
        if value := environ.get(variable):
            # matplotlib starts the programs that its settings name, such as those that make films.
            yield f"{value}/matplotlibrc", f"the settings of matplotlib, by {variable}"
            yield value, f"the settings of matplotlib, by {variable}"
