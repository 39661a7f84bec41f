"""What a timeline has lost when it is opened, and in which words that is said.

Threat
    The host or the power failed, or somebody deleted or changed what is stored. An undo could then lead to a
    state that nobody ever had.
Mechanism
    Steps whose contents are not there are dropped, with all that undo would have to pass them for. Every cut
    and everything that was completed is a sentence, which the next session shows. A partial file is removed
    only if it is certain that a call that was cut short has left it; see `remove_partial`.
Race window
    One process has the store at a time. A worker that outlives its host for a moment may still finish a file
    that is about to be removed: one that it has open stays, and to rename one that is gone is its error, with
    the file at the old name as it was.
When it fails
    Of steps that have ended, only the listings are looked at here; other contents are compared with their
    digests when they are needed, before anything is changed. A partial file that stays is named.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence

from aisotools.core.truncation import summarize_names
from aisotools.workspace.checkpoints.moves import UndoResult
from aisotools.workspace.checkpoints.plan import Reasons
from aisotools.workspace.checkpoints.steps import Checkpoint, Timeline
from aisotools.workspace.checkpoints.store import Store
from aisotools.workspace.checkpoints.tree import Node, TreeReader, is_whole, open_below
from aisotools.workspace.checkpoints.trees import WORKSPACE_KEY, TrackedTree
from aisotools.workspace.dirfd import READ_FLAGS, has_writer
from aisotools.workspace.workspace import is_partial_file

UNCERTAIN = (
    "that nothing was changed cannot be recorded; if this process ends before that is possible, the next "
    "session completes it"
)
"""What is said of an undo or redo that was given up on a disk that takes no record of that."""


def drop_lost(timeline: Timeline, store: Store) -> list[str]:
    """Drop the steps whose contents are not stored. Return what was dropped, in sentences."""
    notes = []
    if store.is_journal_lost:
        notes.append(
            "The record of earlier calls is gone, though contents of theirs are stored: they can be neither "
            "undone nor redone."
        )
    if store.damage:
        notes.append(
            f"The record of earlier calls is damaged: {store.damage}, cannot be read. The calls in them can "
            "be neither undone nor redone."
        )
    usable = {step.call_id for step in timeline.all_steps() if all(root in store for root in step.roots)}
    for step in timeline.running.values():
        # The power may have failed. What a step names is written through to the disk only when it has ended.
        if not all(is_whole(store, root) for root in step.roots):
            usable.discard(step.call_id)
    lost = [number for number, step in enumerate(timeline.done) if step.call_id not in usable]
    if lost:
        # Undo would have to pass these steps, so all older ones go with them.
        count = lost[-1] + 1
        last = name_step(timeline.done[lost[-1]])
        which = f"{last} and the {count - 1:,} before it" if count > 1 else last
        notes.append(f"No longer to be undone: {which}. What that needs was deleted or damaged.")
        timeline.dropped += count
        del timeline.done[:count]
    gone = [step for step in timeline.undone if step.call_id not in usable]
    if gone:
        notes.append(f"No longer to be redone: {_names(gone)}. What that needs was deleted or damaged.")
        timeline.undone = [step for step in timeline.undone if step.call_id in usable]
    for step in [step for step in timeline.running.values() if step.call_id not in usable]:
        del timeline.running[step.call_id]
        notes.append(
            f"{name_step(step)} was cut short, and the state before it was not stored whole: what it has "
            "changed cannot be undone."
        )
    return notes


def remove_partial(store: Store, tree: TrackedTree, step: Checkpoint) -> list[str]:
    """Remove what a call that was cut short has left of files that it was writing.

    Such a file has the name that nothing but our writers gives, is in the workspace now and was not before
    the call, has no other name, and no process has it open for writing. Whatever is not certain stays.

    Args:
        store: Holds the state before the call.
        tree: The workspace.
        step: The call. The process that ran it has ended.

    Returns:
        What was removed, and what looks like a partial file and was not, in sentences.

    Raises:
        WorkspaceError: If the workspace cannot be read.
    """
    removed, exceptions = [], []
    for path, (before, after) in (
        TreeReader(store).differences(step.before[WORKSPACE_KEY], tree.scan().root).items()
    ):
        if before is None and after is not None and is_partial_file(path[-1]):
            try:
                with tree.opened() as root:
                    folder = open_below(root, path[:-1])
                try:
                    reason = _remove_partial(folder, path[-1], after)
                finally:
                    os.close(folder)
            except OSError as error:
                reason = error.strerror or str(error)
            if reason:
                exceptions.append(f"{tree.display_path(path)} ({reason})")
            else:
                removed.append(tree.display_path(path))
    notes = []
    if removed:
        notes.append(f"Removed what {name_step(step)} has left half written: {summarize_names(removed)}.")
    if exceptions:
        names = summarize_names(exceptions)
        notes.append(
            f"{name_step(step)} may have left these half written: {names}. Remove them if nobody needs them."
        )
    return notes


def _remove_partial(folder: int, name: str, node: Node) -> str:
    """Remove a partial file from an open folder. Return why it stays; empty if it is gone.

    Raises:
        OSError: If the system refuses it.
    """
    status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if stat.S_ISREG(status.st_mode):
        if status.st_nlink > 1:
            return "it has another name"
        file = os.open(name, READ_FLAGS, dir_fd=folder)
        try:
            if has_writer(file):
                return "a process may still be writing it"
        finally:
            os.close(file)
    elif not stat.S_ISLNK(status.st_mode):
        return "it is not a file"
    if status.st_mtime_ns != node.mtime_ns:
        return "it was changed a moment ago"
    # Race: a worker that outlives its host may give the file its name before this line, which then fails, or
    # after it: then its own rename fails, and the file at that name is as before the call.
    os.unlink(name, dir_fd=folder)
    return ""


def describe_completed(moved: UndoResult) -> str:
    """Return what became of an undo or redo that was cut short, in a sentence."""
    start = f"The {moved.direction} of {_names(moved.steps)}, which was cut short,"
    if moved.failed:
        names = name_reasons(moved.failed)
        if not moved.is_unfinished:
            return f"{start} was completed, but for: {names}."
        return f"{start} cannot be completed at: {names}. No call may change files until that is possible."
    spared = f"what somebody else has changed: {name_reasons(moved.conflicts)}"
    if not moved.done:
        why = f", since this cannot be changed: {name_reasons(moved.missing)}" if moved.missing else ""
        exceptions = [spared] if moved.conflicts else []
        exceptions += [name_reasons(moved.stuck)] if moved.stuck else []
        but = f", but for {', and for '.join(exceptions)}" if exceptions else ""
        return f"{start} was given up{why}. What it had changed was taken back{but}."
    if moved.conflicts:
        return f"{start} was completed, but for {spared}."
    if moved.missing:
        return f"{start} was completed, but for: {name_reasons(moved.missing)}."
    return f"{start} was completed."


def name_reasons(paths: Reasons) -> str:
    """Return some paths, each with its reason, for a person."""
    return summarize_names([f"{path or 'the workspace'} ({why})" for path, why in paths])


def describe_ended(step: Checkpoint) -> str:
    """Return what became of a call that the end of its program cut short, in a sentence."""
    changed = "what it has changed can be undone" if step.changed else "it has changed no file"
    return f"{name_step(step)} was cut short when the program or its event loop ended; {changed}."


def name_step(step: Checkpoint) -> str:
    """Return the name of a step for a person."""
    return f"{step.name} ({step.call_id})"


def _names(steps: Sequence[Checkpoint]) -> str:
    return summarize_names([name_step(step) for step in steps])
