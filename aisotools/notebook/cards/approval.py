"""The approval card as a widget. It holds no state: what it shows and what is answered travel as messages.

So a page cannot change what was asked, and nothing of a question is saved in a notebook's widget state.

    page    {type: "hello", id: null}                          sent when it renders, and again until shown
    kernel  {type: "show", id, view, remaining_s}
    page    {type: "decision", id, outcome, reason, edits, remember}    about one call
            {type: "decision", id, outcome, reason, selected}           about several
    kernel  {type: "invalid", id, message}                     the decision could not be taken; ask again
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import anywidget

_HERE = files("aisotools.notebook.cards")


class ApprovalCard(anywidget.AnyWidget):
    """The page's side of one question."""

    _esm = (_HERE / "approval.js").read_text("utf-8")
    _css = (_HERE / "approval.css").read_text("utf-8")

    def bundle(self) -> dict[str, Any]:
        """The MIME bundle that makes a page render the card."""
        made = self._repr_mimebundle_()
        return dict(made[0]) if made is not None else {}
