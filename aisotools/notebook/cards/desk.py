"""A card on which a person stands in for a model, steps through a run, or picks what is meant.

It speaks as the approval card does; its decision is {type, id, action, pick, edits, whole, text}.
"""

from __future__ import annotations

from aisotools.notebook.cards.approval import ApprovalCard, joined


class DeskCard(ApprovalCard):
    """The page's side of one such question."""

    _esm = joined("dom.js", "fields.js", "frame.js", "desk.js", "card.js")
    _css = joined("card.css", "desk.css")
