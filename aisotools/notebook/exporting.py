"""`%trace export FILE`: the whole session as a notebook, or as one HTML page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aisotools.events import ToolResult
from aisotools.exceptions import UsageError, WorkspaceError
from aisotools.notebook.render import render_result
from aisotools.notebook.session_page import session_page
from aisotools.session import Session
from aisotools.session_events import CallRequested
from aisotools.transcript import to_notebook, write_notebook, write_whole
from aisotools.transcript_files import StartFiles, start_files
from aisotools.transcript_keeping import Cleaner


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What was written.

    Attributes:
        path: The file.
        calls: How many calls are in it.
        embedded: How many files of the workspace are in it.
        missing: What is not, in words.
    """

    path: Path
    calls: int
    embedded: int = 0
    missing: tuple[str, ...] = ()

    def __str__(self) -> str:
        told = f"{self.path}: {self.calls} call{'' if self.calls == 1 else 's'}"
        if self.embedded:
            told += f", and {self.embedded} file{'' if self.embedded == 1 else 's'} of the workspace"
        return "\n".join([told + ".", *(f"Not in it: {one}" for one in self.missing)])


def export_session(session: Session, path: str | Path, *, title: str = "") -> Exported:
    """Write what happened in a session so far to a file.

    Args:
        session: The session; open or closed.
        path: Ends with `.ipynb` for a notebook that makes the calls again, with `.html` for a page.
        title: Its heading; the file's name without it.

    Raises:
        UsageError: If the ending is another one, or the file cannot be written.
    """
    target = Path(path).expanduser()
    title = title or target.stem
    calls = sum(isinstance(event, CallRequested) for event in session.events)
    cleaner = Cleaner(session.registry, str(session.workspace or ""))
    render = _rendering(session, cleaner)
    if target.suffix == ".html":
        page = session_page(session.events, cleaner=cleaner, render=render, title=title)
        return Exported(path=write_whole(target, page), calls=calls)
    if target.suffix != ".ipynb":
        raise UsageError(
            f"{str(target)!r}: the name must end with .ipynb for a notebook, or .html for a page."
        )
    try:
        files = start_files(session)
    except (WorkspaceError, OSError) as error:
        files = StartFiles(texts={}, missing=(f"the files of the workspace: {error}",))
    notebook = to_notebook(
        session.events,
        registry=session.registry,
        workspace=session.workspace,
        files=files.texts,
        missing=files.missing,
        render=render,
        title=title,
    )
    write_notebook(notebook, target)
    return Exported(path=target, calls=calls, embedded=len(files.texts), missing=files.missing)


def _rendering(session: Session, cleaner: Cleaner) -> Callable[[ToolResult, str], Mapping[str, Any]]:
    """Shows a result as `%call` does, the whole of a cut text included while it is kept."""

    def render(result: ToolResult, tool_name: str) -> Mapping[str, Any]:
        ref = result.truncation.ref if result.truncation is not None else None
        stored = session.results.get(ref) if ref is not None else None
        if stored is not None and stored.call_id != result.metadata.get("call_id"):
            stored = None
        return render_result(result, tool_name, None if stored is None else cleaner.clean(stored.text))

    return render
