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
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import anywidget

_HERE = files("aisotools.notebook.cards")


def joined(*names: str) -> str:
    """Files of `page/` as one module that imports nothing, in this order."""
    return "\n".join((_HERE / "page" / name).read_text("utf-8") for name in names)


class ApprovalCard(anywidget.AnyWidget):
    """The page's side of one question."""

    _esm = joined(
        "dom.js", "fields.js", "preview.js", "frame.js", "one.js", "batch.js", "inquiry.js", "card.js"
    )
    _css = joined("card.css")

    def bundle(self) -> dict[str, Any]:
        """The MIME bundle that makes a page render the card."""
        made = self._repr_mimebundle_()
        return dict(made[0]) if made is not None else {}
