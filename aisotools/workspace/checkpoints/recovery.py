"""What a timeline has lost when it is opened, and in which words that is said.

Threat
    The host or the power failed, or somebody deleted or changed what is stored. An undo could then lead to a
    state that nobody ever had.
Mechanism
    Steps whose contents are not there are dropped, with all that undo would have to pass them for. Every cut
    and everything that was completed is a sentence, which the next session shows.
Race window
    None: one process has the store at a time.
When it fails
    Of steps that have ended, only the listings are looked at here; other contents are compared with their
    digests when they are needed, before anything is changed.
"""

from __future__ import annotations

from collections.abc import Sequence

from aisotools.core.truncation import summarize_names
from aisotools.workspace.checkpoints.moves import UndoResult
from aisotools.workspace.checkpoints.steps import Checkpoint, Timeline
from aisotools.workspace.checkpoints.store import Store
from aisotools.workspace.checkpoints.tree import is_whole

UNCERTAIN = (
    "that nothing was changed cannot be recorded; if this process ends before that is possible, the next "
    "session completes it"
)
"""What is said of an undo or redo that was given up on a disk that takes no record of that."""


def drop_lost(timeline: Timeline, store: Store) -> list[str]:
    """Drop the steps whose contents are not stored. Return what was dropped, in sentences."""
    notes = []
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


def describe_completed(moved: UndoResult) -> str:
    """Return what became of an undo or redo that was cut short, in a sentence."""
    start = f"The {moved.direction} of {_names(moved.steps)}, which was cut short,"
    if not moved.failed:
        return f"{start} was completed."
    names = summarize_names([f"{path or 'the workspace'} ({why})" for path, why in moved.failed])
    return f"{start} cannot be completed at: {names}. No call may change files until that is possible."


def describe_ended(step: Checkpoint) -> str:
    """Return what became of a call that the end of its program cut short, in a sentence."""
    changed = "what it has changed can be undone" if step.changed else "it has changed no file"
    return f"{name_step(step)} was cut short when the program ended; {changed}."


def name_step(step: Checkpoint) -> str:
    """Return the name of a step for a person."""
    return f"{step.name} ({step.call_id})"


def _names(steps: Sequence[Checkpoint]) -> str:
    return summarize_names([name_step(step) for step in steps])
