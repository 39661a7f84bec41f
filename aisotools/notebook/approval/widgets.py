"""The widgets of the page: prompts and the live trace. They hold no state, everything travels as messages.

So a page cannot change what was asked, and nothing of a prompt is saved in a notebook's widget state.

Prompts:

    page    {type: "hello", page}                              on rendering, repeated until shown
    kernel  {type: "show", id, nonce, first, cell, attention, view, remaining_s}
                                                               `first` is the page that ran the cell
    kernel  {type: "who"}                                      another page came: which ones still render it?
    page    {type: "here", page}
    page    {type: "decision", id, nonce, outcome, reason, edits, whole, remember}    one call
            {type: "decision", id, nonce, outcome, reason, selected}                  several calls
            {type: "decision", id, nonce, outcome, answer}                            a model's question
            {type: "decision", id, nonce, action, pick, edits, whole, text}           a form
    kernel  {type: "accepted", id, words}                      the decision is taken; nothing else says so
    kernel  {type: "invalid", id, message}                     it is malformed, or of another card; ask again
    kernel  {type: "typed", id, message}                       an input box asks instead
    kernel  {type: "done", id, modelId, bundle, words, lines}  decided, perhaps on another page
    page    {type: "stored"}                                   the page's document has the record

Trace:

    page    {type: "hello"}                     on rendering, repeated until shown
    kernel  {type: "show", title, ops}          everything so far
    kernel  {type: "more", ops}                 see `aisotools.notebook.trace.model.Op`
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import anywidget

_NOTEBOOK = files("aisotools.notebook")


def load_page_files(*names: str) -> str:
    """Return page files, each given as `folder/name`, joined into one JavaScript module or style sheet."""
    sources = []
    for name in names:
        folder, _, file = name.partition("/")
        sources.append((_NOTEBOOK / folder / "page" / file).read_text("utf-8"))
    return "\n".join(sources)


class ApprovalCard(anywidget.AnyWidget):
    """The card of an approval request or a model's question."""

    _esm = load_page_files(
        "approval/dom.js",
        "approval/document.js",
        "approval/waiting.js",
        "approval/fields.js",
        "approval/preview.js",
        "approval/frame.js",
        "approval/single.js",
        "approval/batch.js",
        "approval/question.js",
        "approval/card.js",
    )
    _css = load_page_files("approval/card.css")

    def bundle(self) -> dict[str, Any]:
        """Return the MIME bundle that makes a page render the card."""
        return _view_bundle(self)


class FormCard(ApprovalCard):
    """The card of a form."""

    _esm = load_page_files(
        "approval/dom.js",
        "approval/document.js",
        "approval/waiting.js",
        "approval/fields.js",
        "approval/frame.js",
        "approval/prompt.js",
        "approval/card.js",
    )
    _css = load_page_files("approval/card.css", "approval/prompt.css")


class TraceCard(anywidget.AnyWidget):
    """The live trace of a run."""

    _esm = load_page_files("approval/dom.js", "approval/copy.js", "trace/trace.js")
    _css = load_page_files("trace/trace.css")

    def bundle(self) -> dict[str, Any]:
        """Return the MIME bundle that makes a page render the trace."""
        return _view_bundle(self)


def _view_bundle(widget: anywidget.AnyWidget) -> dict[str, Any]:
    # ipywidgets returns a pair of data and metadata; None in a process without widget support.
    bundle = widget._repr_mimebundle_()
    return dict(bundle[0]) if bundle is not None else {}
