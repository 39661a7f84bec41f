"""The page's files: complete, free of imports and of markup from text; and no state in the widgets."""

from __future__ import annotations

import re
from pathlib import Path

import anywidget
import pytest

import aisotools.notebook
from aisotools.notebook.approval.widgets import ApprovalCard, FormCard, TraceCard, load_page_files

CARDS = [ApprovalCard, FormCard, TraceCard]
PAGES = [
    path
    for folder in ("approval", "trace")
    for path in (Path(aisotools.notebook.__file__).parent / folder / "page").iterdir()
]


def source(card: type[anywidget.AnyWidget]) -> str:
    return str(vars(card)["_esm"])


def test_files_are_joined_in_order() -> None:
    joined = load_page_files("approval/dom.js", "trace/trace.js")
    first, second = load_page_files("approval/dom.js"), load_page_files("trace/trace.js")
    assert joined == f"{first}\n{second}"
    with pytest.raises(FileNotFoundError):
        load_page_files("approval/nosuch.js")


@pytest.mark.parametrize("card", CARDS)
def test_every_function_that_a_module_calls_is_in_it(card: type[anywidget.AnyWidget]) -> None:
    script = source(card)
    called = set(re.findall(r"\b(make[A-Z]\w*)\(", script))
    defined = set(re.findall(r"(?:function|const) (make[A-Z]\w*)\b", script))
    assert called <= defined
    assert script.count("export default") == 1


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_page_file_is_used_and_sets_text_as_text(path: Path) -> None:
    text = path.read_text("utf-8")
    assert any(text in source(card) or text in str(vars(card)["_css"]) for card in CARDS)
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\(|^import ", text, re.MULTILINE
    )


@pytest.mark.parametrize("card", CARDS)
def test_a_widget_holds_no_state_of_a_prompt(card: type[ApprovalCard | TraceCard]) -> None:
    widget = card()
    try:
        names = {name for name in widget.get_state() if not name.startswith("_")}
        assert names <= {"layout", "tabbable", "tooltip"}
        assert "application/vnd.jupyter.widget-view+json" in widget.bundle()
    finally:
        widget.close()
