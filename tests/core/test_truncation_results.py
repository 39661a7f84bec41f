"""Texts that were too long for a model, kept and read back."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from aisotools.core.protocols import OutputCaps, StoredText
from aisotools.core.retention import RetentionBudget
from aisotools.core.truncation import CAP, ResultStore, truncate_result
from aisotools.core.types import ToolResult, Truncation


def test_small_texts_stay_in_memory_and_large_ones_are_spilled() -> None:
    store = ResultStore(memory_bytes=10)
    small, large = store.add("small", tool="t", call_id="c"), store.add("large \u00fc \ud800" * 100)
    assert (small, large, list(store), len(store)) == ("r1", "r2", ["r1", "r2"], 2)
    assert store["r1"].text == "small"
    assert (store["r1"].tool, store["r1"].call_id) == ("t", "c")
    assert store["r2"].text == "large \u00fc \ud800" * 100
    assert store.get("r9") is None
    store.close()
    assert len(store) == 0


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_many_spilled_texts_do_not_use_up_descriptors() -> None:
    before = descriptors()
    store = ResultStore(memory_bytes=0)
    refs = [store.add(f"text {n}") for n in range(300)]
    assert descriptors() - before <= 1
    assert store[refs[0]].text == "text 0"
    assert store[refs[-1]].text == "text 299"
    store.close()
    assert descriptors() == before


def test_content_within_its_cap_is_left_alone() -> None:
    result = ToolResult.text("short")
    assert truncate_result(result, OutputCaps(), ResultStore()) is result


def test_cut_result_is_stored_whole_and_its_reference_shown() -> None:
    store, text = ResultStore(), "".join(f"{n:05}\n" for n in range(5000))
    result = truncate_result(ToolResult.text(text), OutputCaps(), store, tool="t", call_id="c")
    assert len(result.content) <= 10_000
    assert result.content.startswith("00000\n")
    assert result.content.endswith("04999\n")
    assert "; read them with read_result, ref 'r1']" in result.content
    assert result.value == text
    assert result.truncation is not None
    assert result.truncation.ref == "r1"
    assert result.truncation.total_chars == len(text)
    assert store["r1"].text == text
    quiet = truncate_result(ToolResult.text(text), OutputCaps(), store, tools=())
    assert "read_result" not in quiet.content


@pytest.mark.parametrize(("cap", "lines"), [("shell", 256), ("search", 100), ("list", 200)])
def test_each_kind_has_a_cap_of_lines_of_its_own(cap: str, lines: int) -> None:
    text = "x\n" * 1000
    result = truncate_result(ToolResult(content=text, metadata={CAP: cap}), OutputCaps(), ResultStore())
    assert result.content.count("x\n") == lines
    assert truncate_result(ToolResult(content=text), OutputCaps(), ResultStore()).content == text


def test_the_web_may_be_longer_and_forged_kinds_change_nothing() -> None:
    text = "x" * 20_000
    for cap, chars in (("web", 15_000), ("no such", 10_000), (["shell"], 10_000), (None, 10_000)):
        result = truncate_result(ToolResult(content=text, metadata={CAP: cap}), OutputCaps(), ResultStore())
        assert chars - 200 < len(result.content) <= chars


def test_caps_grow_with_the_model_one_to_four_times() -> None:
    assert OutputCaps.for_context(8_000) == OutputCaps.for_context(32_000) == OutputCaps()
    assert OutputCaps.for_context(64_000).content_chars == 20_000
    huge = OutputCaps.for_context(2_000_000)
    assert (huge.content_chars, huge.shell_lines, huge.search_lines, huge.list_lines, huge.web_chars) == (
        40_000,
        1024,
        400,
        800,
        60_000,
    )


def test_text_truncated_at_its_source_is_counted() -> None:
    before = Truncation(total_chars=1_000_000, shown_chars=50_000, note="[cut at the source]")
    result = truncate_result(ToolResult(content="x" * 50_000, truncation=before), OutputCaps(), ResultStore())
    assert result.truncation is not None
    assert result.truncation.total_chars == 1_000_000
    assert "[cut at the source]" in result.truncation.note


def test_control_characters_do_not_reach_the_model_and_stay_in_the_value() -> None:
    result = truncate_result(ToolResult.text("\x1b[31mred\0"), OutputCaps(), ResultStore())
    assert (result.content, result.value) == ("red", "\x1b[31mred\0")


def test_beyond_the_budget_texts_move_to_files_in_the_folder_and_stay_readable(tmp_path: Path) -> None:
    budget = RetentionBudget(100_000)
    store = ResultStore(budget=budget)
    store.write_files_to(tmp_path)
    refs = [store.add(f"{n}" + "x" * 20_000) for n in range(4)]
    assert 80_000 < budget.used_bytes <= 100_000
    refs.append(store.add("last" + "y" * 20_000))
    assert budget.used_bytes <= 100_000
    assert [store[ref].text[:4] for ref in refs] == ["0xxx", "1xxx", "2xxx", "3xxx", "last"]
    assert "1 in files" in repr(store)
    assert list(tmp_path.iterdir()) == [], "files without a name"
    wide = store.add("\U0001f600" * 3_000)
    assert budget.used_bytes <= 100_000
    assert store[wide].text == "\U0001f600" * 3_000
    store.close()
    assert budget.used_bytes == 0


LONG = "\U0001f600x\n" * 400_000


async def test_long_text_that_may_wait_is_written_in_a_thread_and_readable_all_the_time(
    tmp_path: Path,
) -> None:
    budget = RetentionBudget(100_000)
    store = ResultStore(budget=budget)
    store.write_files_to(tmp_path)
    result = truncate_result(ToolResult.text(LONG), OutputCaps(), store, tool="t", call_id="c", may_wait=True)
    assert result.truncation is not None
    ref = result.truncation.ref
    assert ref is not None
    assert store[ref].text == LONG
    writing = asyncio.ensure_future(store.write_waiting("c"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not writing.done(), "the loop goes on"
    assert store[ref].text == LONG
    await writing
    assert store[ref] == StoredText(ref=ref, tool="t", call_id="c", text=LONG)
    assert f"{len(LONG.encode()):,} bytes, 1 in files" in repr(store)
    store.close()
    assert "0 bytes, 0 in files" in repr(store)
    assert budget.used_bytes == 0


async def test_only_the_long_text_of_the_call_is_written() -> None:
    store = ResultStore(memory_bytes=1 << 30)
    refs = [store.add(text, call_id=call_id, may_wait=True) for text, call_id in ((LONG, "a"), ("b", "b"))]
    await store.write_waiting("b")
    await store.write_waiting("no such call")
    assert [store[ref].text for ref in refs] == [LONG, "b"]
    assert "1 in files" in repr(store)
    await asyncio.gather(store.write_waiting("a"), store.write_waiting("a"))
    assert store[refs[0]].text == LONG


async def test_text_that_is_dropped_while_it_is_written_leaves_nothing(tmp_path: Path) -> None:
    store = ResultStore()
    store.write_files_to(tmp_path)
    store.add(LONG, call_id="c", may_wait=True)
    writing = asyncio.ensure_future(store.write_waiting("c"))
    await asyncio.sleep(0)
    store.close()
    await writing
    assert "0 texts, 0 bytes, 0 in files" in repr(store)
    assert store.add("next") == "r2"


async def test_text_that_cannot_be_written_in_a_thread_is_dropped(tmp_path: Path) -> None:
    store = ResultStore()
    store.write_files_to(tmp_path / "gone")
    store.add(LONG, call_id="c", may_wait=True)
    with pytest.raises(OSError, match="gone"):
        await store.write_waiting("c")
    assert "0 texts, 0 bytes, 0 in files" in repr(store)
