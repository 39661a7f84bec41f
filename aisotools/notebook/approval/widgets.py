"""The approval card as a widget. It holds no state: what it shows and what is answered travel as messages.

So a page cannot change what was asked, and nothing of a question is saved in a notebook's widget state.

    page    {type: "hello", page}                              sent when it renders, and again until shown
    kernel  {type: "show", id, view, remaining_s}
    kernel  {type: "who"}                                      another page came: which are still there?
    page    {type: "here", page}
    page    {type: "decision", id, outcome, reason, edits, whole, remember}    about one call
            {type: "decision", id, outcome, reason, selected}                  about several
            {type: "decision", id, outcome, answer}                            to a model's own question
    kernel  {type: "invalid", id, message}                     the decision could not be taken; ask again
    kernel  {type: "done", id, words, lines}                   it was decided, perhaps on another page

A card on which a person stands in for a model, steps through a run, or picks what is meant.

It speaks as the approval card does; its decision is {type, id, action, pick, edits, whole, text}.

The live trace as a widget: it follows a run by operations that come in bundles, and holds no state.

page    {type: "hello"}                     sent when it renders, and again until shown
kernel  {type: "show", title, ops}          everything so far
kernel  {type: "more", ops}                 see `aisotools.notebook.trace.model.Op`
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import anywidget

_NOTEBOOK = files("aisotools.notebook")


def load_page_files(*names: str) -> str:
    """Return page files, each given as `folder/name`, as one JavaScript module without imports."""
    sources = []
    for name in names:
        folder, _, file = name.partition("/")
        sources.append((_NOTEBOOK / folder / "page" / file).read_text("utf-8"))
    return "\n".join(sources)


class ApprovalCard(anywidget.AnyWidget):
    """The page's side of one question."""

    _esm = load_page_files(
        "approval/dom.js",
        "approval/fields.js",
        "approval/preview.js",
        "approval/frame.js",
        "approval/one.js",
        "approval/batch.js",
        "approval/inquiry.js",
        "approval/card.js",
    )
    _css = load_page_files("approval/card.css")

    def bundle(self) -> dict[str, Any]:
        """The MIME bundle that makes a page render the card."""
        made = self._repr_mimebundle_()
        return dict(made[0]) if made is not None else {}


class PromptCard(ApprovalCard):
    """The page's side of one such question."""

    _esm = load_page_files(
        "approval/dom.js", "approval/fields.js", "approval/frame.js", "approval/desk.js", "approval/card.js"
    )
    _css = load_page_files("approval/card.css", "approval/desk.css")


class TraceCard(anywidget.AnyWidget):
    """The page's side of one run."""

    _esm = load_page_files("approval/dom.js", "trace/trace.js")
    _css = load_page_files("trace/trace.css")

    def bundle(self) -> dict[str, Any]:
        """The MIME bundle that makes a page render the trace."""
        made = self._repr_mimebundle_()
        return dict(made[0]) if made is not None else {}
