"""Calls that overlap are undone to before the first of them, in whatever order they began and ended."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest

from aisotools.workspace.checkpoints.authorship import NO_EVIDENCE, Authorship, Evidence
from aisotools.workspace.checkpoints.timeline import Checkpoints

Files = dict[str, tuple[str, int]]
"""Content and time of each file."""

NAMES = ("a", "b", "d/c", "d/e/f")


def read(root: Path) -> Files:
    return {
        str(path.relative_to(root)): (path.read_text(), path.stat().st_mtime_ns)
        for path in root.rglob("*")
        if path.is_file()
    }


def read_texts(root: Path) -> dict[str, str]:
    return {name: text for name, (text, _) in read(root).items()}


@dataclass
class Overlap:
    """A workspace with a reference: what was in it at each begin and end of a call."""

    top: Path
    states: list[Files] = field(default_factory=list)
    began: dict[str, int] = field(default_factory=dict)
    ended: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.root = self.top / "workspace"
        self.root.mkdir(parents=True)
        self.chain = Checkpoints(self.root, self.top / "store")

    def close(self) -> None:
        self.chain.close()

    def write(self, name: str, content: str | None) -> None:
        path = self.root / name
        if content is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        else:
            path.unlink(missing_ok=True)

    def begin(self, call_id: str) -> None:
        self.began[call_id] = len(self.states)
        self.states.append(read(self.root))
        self.chain.begin(call_id, "tool", "s")

    def end(self, call_id: str, evidence: Evidence = NO_EVIDENCE) -> None:
        self.ended[call_id] = len(self.states)
        self.states.append(read(self.root))
        self.chain.end(call_id, find_evidence=lambda: evidence)

    def again(self) -> None:
        """Close the timeline, write its journal anew, and open it again."""
        self.chain.drop_old()
        self.chain.close()
        self.chain = Checkpoints(self.root, self.top / "store")

    def expected(self, count: int) -> Files:
        """Return what is there when the last calls are undone: of each time with one of them, the begin.

        What changed while none of them ran is nobody's of them, and stays.
        """
        calls = sorted(self.ended, key=self.ended.__getitem__)[-count:]
        runs = {moment for call in calls for moment in range(self.began[call], self.ended[call])}
        files = read(self.root)
        for start in sorted(runs, reverse=True):
            if start - 1 in runs:
                continue
            end = next(moment for moment in range(start, len(self.states)) if moment not in runs)
            before, after = self.states[start], self.states[end]
            for name in {*before, *after}:
                if before.get(name) != after.get(name):
                    files.pop(name, None)
                    files |= {name: before[name]} if name in before else {}
        return files


@pytest.fixture
def overlap(tmp_path: Path) -> Iterator[Overlap]:
    overlap = Overlap(tmp_path)
    yield overlap
    overlap.close()


@pytest.mark.parametrize("first", ["A", "B"], ids=["A ends first", "B ends first"])
@pytest.mark.parametrize("is_opened_again", [False, True])
def test_forced_undo_of_two_calls_leads_to_before_the_first(
    overlap: Overlap, first: str, *, is_opened_again: bool
) -> None:
    """The second one begins when the first has written a file, which somebody saves before both end."""
    overlap.write("a", "before")
    overlap.begin("A")
    overlap.write("a", "by the call")
    overlap.begin("B")
    overlap.write("a", "by a person")
    for call in (first, "AB".replace(first, "")):
        overlap.end(call)
    if is_opened_again:
        overlap.again()
    moved = overlap.chain.move("undo", overlap.chain.steps[::-1], force=True)
    assert moved.done
    assert read_texts(overlap.root) == {"a": "before"}
    assert not overlap.chain.move("redo", overlap.chain.undone[::-1], force=True).missing
    assert read_texts(overlap.root) == {"a": "by a person"}


@pytest.mark.parametrize("last", ["A", "B"])
def test_file_that_was_another_when_the_second_call_began_is_undone_with_both(
    overlap: Overlap, last: str
) -> None:
    """Either may have changed it twice, since neither says what it changes."""
    overlap.write("d/e/f", "before")
    overlap.begin("A")
    for name in ("a", "b", "d/e/f"):
        overlap.write(name, "1")
    overlap.begin("B")
    for name in ("a", "d/e/f"):
        overlap.write(name, "2")
    overlap.write("d/c", "2")
    for call in ("AB".replace(last, ""), last):
        overlap.end(call)
    moved = overlap.chain.move("undo", overlap.chain.steps[::-1])
    assert (moved.done, moved.conflicts) == (True, ())
    assert read_texts(overlap.root) == {"d/e/f": "before"}


def test_file_that_is_as_before_again_stays(overlap: Overlap) -> None:
    """In the tree in which the inner call began it is another one."""
    overlap.write("a", "before")
    overlap.begin("A")
    overlap.write("a", "1")
    overlap.begin("B")
    overlap.write("a", "2")
    overlap.end("B")
    overlap.write("a", "before")
    overlap.end("A")
    assert overlap.chain.move("undo", overlap.chain.steps[::-1]).conflicts == ()
    assert read_texts(overlap.root) == {"a": "before"}


@pytest.mark.parametrize("who", ["A", "B"])
def test_evidence_of_one_of_the_calls_is_a_conflict_of_both(overlap: Overlap, who: str) -> None:
    overlap.begin("A")
    overlap.begin("B")
    overlap.write("a", "by a person")
    seen = Evidence(contents={("a",): {"what the call has written"}})
    for call in "AB":
        overlap.end(call, seen if call == who else NO_EVIDENCE)
    moved = overlap.chain.move("undo", overlap.chain.steps[::-1])
    assert [path for path, _ in moved.conflicts] == ["a"]
    assert read_texts(overlap.root) == {"a": "by a person"}
    assert overlap.chain.move("undo", overlap.chain.steps[::-1], force=True).done
    assert read_texts(overlap.root) == {}


def test_change_that_neither_call_names_stays(overlap: Overlap) -> None:
    overlap.begin("A")
    overlap.begin("B")
    overlap.write("a", "by the call")
    overlap.write("b", "by a person")
    named = Evidence(authorship=Authorship(named=frozenset({("a",)}), is_certain=True))
    overlap.end("A", named)
    overlap.end("B", named)
    moved = overlap.chain.move("undo", overlap.chain.steps[::-1])
    assert ([path for path, _ in moved.others], moved.conflicts) == (["b"], ())
    assert read_texts(overlap.root) == {"b": "by a person"}


def test_call_that_ran_alone_is_a_step_of_its_own(overlap: Overlap) -> None:
    """What changed between two calls is somebody else's, as ever."""
    overlap.begin("A")
    overlap.write("a", "1")
    overlap.end("A")
    overlap.write("a", "by a person")
    overlap.begin("B")
    overlap.write("b", "2")
    overlap.end("B")
    moved = overlap.chain.move("undo", overlap.chain.steps[::-1])
    assert [path for path, _ in moved.conflicts] == ["a"]


def play(overlap: Overlap, draw: Random) -> tuple[bool, bool]:
    """Have two to four calls begin, write, and end in any order.

    Returns:
        Whether somebody saved a file, and whether that was while no call ran.
    """
    for name in NAMES:
        if draw.random() < 0.5:
            overlap.write(name, f"{name} before")
    waiting = [f"call-{number}" for number in range(draw.randint(2, 4))]
    running: list[str] = []
    has_saved = has_saved_between = False
    number = 0
    while waiting or running:
        number += 1
        match draw.choice(["begin", "end", "write", "write", "save"]):
            case "begin" if waiting:
                running.append(waiting.pop())
                overlap.begin(running[-1])
            case "end" if running:
                overlap.end(running.pop(draw.randrange(len(running))))
            case "write" if running:
                overlap.write(draw.choice(NAMES), draw.choice([None, str(number), "same"]))
            case "save":
                has_saved = True
                has_saved_between = has_saved_between or not running
                overlap.write(draw.choice(NAMES), draw.choice([f"saved {number}", f"{NAMES[0]} before"]))
    return has_saved, has_saved_between


@pytest.mark.parametrize("count", [60, pytest.param(1_000, marks=pytest.mark.slow)])
def test_random_overlaps_are_undone_as_in_the_reference(tmp_path: Path, count: int) -> None:
    """Forced undo of the last calls, redo, and undo of all without force."""
    draw = Random(17)
    overlapped = done = 0
    for number in range(count):
        overlap = Overlap(tmp_path / str(number))
        has_saved, has_saved_between = play(overlap, draw)
        if draw.random() < 0.2:
            overlap.again()
        chain, now = overlap.chain, read(overlap.root)
        overlapped += any(
            overlap.began[one] < overlap.began[other] < overlap.ended[one]
            for one in overlap.ended
            for other in overlap.ended
        )
        if not has_saved:
            expected = overlap.expected(len(chain.steps))
            moved = chain.move("undo", chain.steps[::-1])
            assert read(overlap.root) == (expected if moved.done else now), number
            assert moved.done == (not moved.conflicts)
            if moved.done:
                done += 1
                chain.move("redo", chain.undone[::-1])
                assert read(overlap.root) == now, number
        counts = range(1, len(overlap.ended) + 1)
        # Force has replaced what was saved between calls, and no redo of a call brings that back.
        for taken in [draw.choice(counts)] if has_saved_between else counts:
            expected = overlap.expected(taken)
            moved = chain.move("undo", chain.steps[::-1][:taken], force=True)
            # A folder that a call has made stays if it holds what was put there after the call.
            assert moved.done
            assert has_saved_between or not moved.missing
            assert read(overlap.root) == expected, (number, taken)
            if not has_saved_between:
                assert not chain.move("redo", chain.undone[::-1], force=True).missing
                assert read(overlap.root) == now, (number, taken)
        overlap.close()
        shutil.rmtree(overlap.top)
    assert overlapped > count / 2
    assert done >= count / 20


def call_around_another(overlap: Overlap) -> None:
    """One call writes to `a` before and after another one, which writes `b`."""
    overlap.write("a", "before")
    overlap.begin("A")
    overlap.write("a", "1")
    overlap.begin("B")
    overlap.write("b", "of B")
    overlap.end("B")
    overlap.write("a", "2")
    overlap.write("d/c", "alone")
    overlap.end("A")


def test_calls_that_overlapped_on_one_file_are_undone_together(overlap: Overlap) -> None:
    """Nobody else has written, as far as is known."""
    call_around_another(overlap)
    moved = overlap.chain.move("undo", overlap.chain.steps[::-1])
    assert (moved.done, moved.conflicts) == (True, ())
    assert read_texts(overlap.root) == {"a": "before"}
    assert overlap.chain.move("redo", overlap.chain.undone[::-1]).done
    assert read_texts(overlap.root) == {"a": "2", "b": "of B", "d/c": "alone"}


def test_overlapping_calls_are_listed_while_they_run_and_after_they_have_changed_something(
    overlap: Overlap,
) -> None:
    for call_id in ("before", "A", "A/inside", "idle", "runs"):
        overlap.begin(call_id)
        if call_id == "before":
            overlap.end(call_id)
    overlap.end("A/inside")
    overlap.end("idle")
    overlap.write("a", "of A")
    overlap.end("A")
    overlap.begin("after")
    (step,) = [one for one in overlap.chain.steps if one.call_id == "A"]
    assert overlap.chain.list_overlapping(step) == ["tool (runs)"]


def test_one_of_calls_that_overlapped_is_not_undone_or_redone_without_the_other(overlap: Overlap) -> None:
    call_around_another(overlap)
    texts = read_texts(overlap.root)
    moved = overlap.chain.move("undo", overlap.chain.steps[-1:])
    assert moved.conflicts == (
        ("b", "it may also have been changed by tool (B), which ran at the same time"),
    )
    assert (moved.done, set(moved.together), read_texts(overlap.root)) == (False, {"A", "B"}, texts)
    assert overlap.chain.move("undo", overlap.chain.steps[::-1]).done
    moved = overlap.chain.move("redo", overlap.chain.undone[-1:])
    assert moved.conflicts == (
        ("b", "it may also have been changed by tool (A), which ran at the same time"),
    )
    assert read_texts(overlap.root) == {"a": "before"}
    assert overlap.chain.move("redo", overlap.chain.undone[::-1]).done
    assert read_texts(overlap.root) == texts
    assert overlap.chain.move("undo", overlap.chain.steps[-1:], force=True).done
