"""Steps, and the undo and redo stacks as records tell of them."""

from __future__ import annotations

from dataclasses import replace

from aisotools.workspace.checkpoints.steps import (
    Checkpoint,
    Return,
    Timeline,
    change_of_group,
    group_overlapping,
    returns_of,
)


def checkpoint(call_id: str, before: str = "a", after: str | None = "b") -> Checkpoint:
    return Checkpoint(
        call_id=call_id,
        name="tool",
        session="s",
        time_s=1.5,
        before={"": before},
        after={} if after is None else {"": after},
    )


def test_step_has_changed_unless_the_opposite_is_certain() -> None:
    assert checkpoint("c").changed
    assert not checkpoint("c", "a", "a").changed
    assert checkpoint("c", "a", None).changed
    assert checkpoint("c", "", "").changed


def test_step_leads_there_and_back() -> None:
    step = checkpoint("c")
    assert change_of_group([step], "undo", "") == ("b", "a")
    assert change_of_group([step], "redo", "") == ("a", "b")
    assert change_of_group([checkpoint("c", after=None)], "undo", "") == ("", "a")
    assert step.roots == ["a", "b"]
    assert checkpoint("c", "", None).roots == []


def test_state_that_is_not_kept_stays_so_with_its_reason() -> None:
    full = replace(checkpoint("c", after=None), unkept="the disk is full")
    timeline = Timeline.read([full.begin_record(), full.end_record()])
    assert timeline.done == [full]
    assert Timeline.read(list(timeline.records())) == timeline
    earlier = {"op": "end", "id": "c", "after": {}}
    (read,) = Timeline.read([full.begin_record(), earlier]).done
    assert read.unkept == "it could not be stored"
    assert checkpoint("c").end_record().keys() == {"op", "id", "after"}


def at(call_id: str, began: int, ended: int) -> Checkpoint:
    return replace(checkpoint(call_id, f"before {call_id}", f"after {call_id}"), began=began, ended=ended)


def test_steps_that_overlap_lead_from_the_last_end_to_the_first_begin() -> None:
    long, inner, chained = at("long", 1, 6), at("inner", 2, 3), at("chained", 5, 8)
    for order in ([inner, long, chained], [chained, long, inner]):
        assert group_overlapping(order) == [order]
        assert change_of_group(order, "undo", "") == ("after chained", "before long")
        assert change_of_group(order, "redo", "") == ("before long", "after chained")
    # Without the one that joins them they do not overlap.
    assert group_overlapping([chained, inner]) == [[chained], [inner]]
    assert group_overlapping([inner, chained]) == [[inner], [chained]]
    assert group_overlapping([]) == []


def test_steps_that_follow_each_other_do_not_overlap() -> None:
    steps = [at("1", 1, 2), at("2", 3, 4), at("3", 5, 8), at("4", 6, 7), at("5", 9, 10)]
    groups = [["1"], ["2"], ["3", "4"], ["5"]]
    assert [[step.call_id for step in group] for group in group_overlapping(steps)] == groups
    undo = [[step.call_id for step in group] for group in group_overlapping(steps[::-1])]
    assert undo == [["5"], ["4", "3"], ["2"], ["1"]]


def test_steps_of_earlier_versions_have_no_numbers_and_overlap_with_none() -> None:
    earlier = [checkpoint("1"), checkpoint("2"), replace(checkpoint("running"), ended=1)]
    later = [at("3", 2, 4), at("4", 3, 5)]
    assert group_overlapping([*earlier, *later]) == [*([one] for one in earlier), later]
    records = [record for step in earlier[:2] for record in (step.begin_record(), step.end_record())]
    timeline = Timeline.read(records)
    assert [(step.began, step.ended) for step in timeline.done] == [(0, 0), (0, 0)]
    assert timeline.next_number() == 1


def test_numbers_go_on_after_those_of_the_records() -> None:
    timeline = Timeline(done=[at("1", 1, 7)], running={"2": replace(at("2", 3, 0), after={})}, count=7)
    read = Timeline.read(list(timeline.records()))
    assert read == timeline
    assert (read.next_number(), read.next_number()) == (8, 9)


def test_timeline_comes_back_from_its_records() -> None:
    """The format of the records is that of earlier versions."""
    timeline = Timeline(
        done=[checkpoint("1"), checkpoint("2")],
        undone=[checkpoint("4"), checkpoint("3")],
        running={"5": checkpoint("5", after=None)},
    )
    records = list(timeline.records())
    assert Timeline.read(records) == timeline
    assert records[0] == {
        "op": "begin",
        "id": "1",
        "name": "tool",
        "session": "s",
        "time_s": 1.5,
        "before": {"": "a"},
        "beyond": "",
    }
    assert records[1] == {"op": "end", "id": "1", "after": {"": "b"}}
    assert records[-3:-1] == [
        {"op": "move", "way": "undo", "ids": ["4", "3"], "token": "kept"},
        {"op": "moved", "token": "kept"},
    ]
    assert list(Timeline().records()) == []


def test_change_times_that_moves_have_given_are_replayed() -> None:
    timeline = Timeline(done=[checkpoint("1")])
    timeline.apply({"op": "move", "way": "undo", "ids": [], "token": "t"})
    timeline.apply({"op": "moved", "token": "t", "restamped": [[7, 10], [7, 20], [8, 10]]})
    assert timeline.restamped == {7: {10, 20}, 8: {10}}
    assert Timeline.read(list(timeline.records())) == timeline
    assert list(Timeline(restamped={7: {10}}).records()) == [], "no step is left that they matter to"
    many = Timeline(done=[checkpoint("1")], restamped={inode: {1} for inode in range(20_000)})
    assert 0 < len(Timeline.read(list(many.records())).restamped) < 20_000


def test_variables_nesting_and_dropped_steps_are_recorded() -> None:
    step = replace(checkpoint("1"), changes_variables=True, inside="0")
    timeline = Timeline(done=[step], dropped=7)
    records = list(timeline.records())
    assert records[0] == {"op": "dropped", "count": 7}
    assert (records[1]["changes_variables"], records[1]["inside"]) == (True, "0")
    assert Timeline.read(records) == timeline
    earlier = [replace(checkpoint(name), name=name).begin_record() for name in ("python", "file")]
    running = Timeline.read(earlier).running
    assert [running[name].changes_variables for name in ("python", "file")] == [True, False]


def test_records_of_earlier_versions_need_no_beyond() -> None:
    record = checkpoint("1").begin_record()
    del record["beyond"]
    assert Timeline.read([record]).running["1"].beyond == ""


def test_records_that_do_not_fit_are_ignored() -> None:
    timeline = Timeline.read(
        [
            {"op": "end", "id": "unknown", "after": {}},
            {"op": "moved", "token": "t"},
            {"op": "something new"},
            checkpoint("1").begin_record(),
            {"op": "end", "id": "1", "after": {"": "b"}},
            {"op": "move", "way": "undo", "ids": ["gone", "1"], "token": "t"},
            {"op": "moved", "token": "t"},
            {"op": "moved", "token": "t"},
        ]
    )
    assert (timeline.done, timeline.undone, timeline.moving) == ([], [checkpoint("1")], None)
    timeline.shift("redo", ["1"])
    assert (timeline.done, timeline.undone) == ([checkpoint("1")], [])


def test_step_that_may_have_changed_something_leaves_nothing_to_redo() -> None:
    undone, same = checkpoint("0"), checkpoint("1", "a", "a")
    for step, still_undone in (
        (same, [undone]),
        (replace(same, changes_variables=True), []),
        (checkpoint("1"), []),
        (checkpoint("1", "a", None), []),
    ):
        timeline = Timeline(undone=[undone], running={"1": same})
        timeline.end(step)
        assert (timeline.done, timeline.undone, timeline.running) == ([step], still_undone, {})
        assert timeline.superseded_by == ("" if still_undone else f"{step.name} (1)")
        timeline.shift("undo", ["1"])
        timeline.shift("redo", ["1"])
        assert timeline.superseded_by == "", "what was undone last has been redone"


def test_last_step_of_an_id_is_the_one_that_moves() -> None:
    timeline = Timeline(done=[checkpoint("1", "a", "b"), checkpoint("1", "b", "c")])
    timeline.shift("undo", ["1"])
    assert timeline.done == [checkpoint("1", "a", "b")]
    assert timeline.undone == [checkpoint("1", "b", "c")]
    assert timeline.all_steps() == [checkpoint("1", "a", "b"), checkpoint("1", "b", "c")]


def test_move_that_failed_half_way_is_still_recorded_as_such() -> None:
    move = {"op": "move", "way": "redo", "ids": ["1"], "token": "t", "force": True, "must_succeed": True}
    timeline = Timeline(done=[checkpoint("1")], moving=move)
    records = list(timeline.records())
    assert records[-1] == move
    assert Timeline.read(records) == timeline
    back = [*records[:-1], {"op": "move", "way": "undo", "ids": ["1"], "token": "t"}, move, {"op": "moved"}]
    assert Timeline.read(back) == Timeline(done=[checkpoint("1")]), "a move that was taken back was none"


def test_move_that_was_given_up_and_files_that_it_left_are_replayed() -> None:
    move = {"op": "move", "way": "undo", "ids": ["a"], "token": "t"}
    timeline = Timeline.read([move, {"op": "stayed", "token": "t", "left": ["", "/x"]}])
    assert (timeline.moving, timeline.unswept) == (None, {"t": ["", "/x"]})
    again = Timeline.read(list(timeline.records()))
    assert (again.moving, again.unswept) == (None, timeline.unswept)
    again.apply({"op": "swept", "token": "t"})
    assert again.unswept == {}
    done = Timeline.read([move, {"op": "moved", "token": "t", "left": [""]}])
    assert (done.moving, done.unswept) == (None, {"t": [""]})


def test_redo_of_a_forced_undo_leads_to_what_that_has_found() -> None:
    steps = [at("1", 1, 2), at("2", 3, 5), at("3", 4, 6)]
    last, first = Return("found", "found", "left"), Return("before 2", "found", "left")
    expected = {"3": {"": last}, "1": {"": first}}
    assert returns_of(steps[::-1], {"": "found"}, {"": "left"}) == expected
    assert returns_of(steps[::-1], {"": "found"}, {}) == {}, "what it has left is not known"
    assert returns_of(steps[::-1], {"elsewhere": "found"}, {"elsewhere": "left"}) == {}

    timeline = Timeline(done=[*steps], count=6)
    timeline.apply(
        {"op": "move", "way": "undo", "ids": ["3", "2", "1"], "token": "t", "found": {"": "found"}}
    )
    timeline.apply({"op": "moved", "token": "t", "result": {"": "left"}})
    assert {step.call_id: step.returns for step in timeline.undone if step.returns} == expected
    assert Timeline.read(list(timeline.records())) == timeline
    roots = [root for step in timeline.undone for root in step.roots]
    assert {"found", "left"} <= {*roots}
    timeline.shift("redo", ["1", "2", "3"])
    assert not any(step.returns for step in timeline.done)
