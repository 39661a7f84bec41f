"""The live trace as a widget: it follows a run by operations that come in bundles, and holds no state.

page    {type: "hello"}                     sent when it renders, and again until shown
kernel  {type: "show", title, ops}          everything so far
kernel  {type: "more", ops}                 see `aisotools.notebook.trace_items.Op`
"""

from __future__ import annotations

from typing import Any

import anywidget

from aisotools.notebook.cards.approval import joined


class TraceCard(anywidget.AnyWidget):
    """The page's side of one run."""

    _esm = joined("dom.js", "trace.js")
    _css = joined("trace.css")

    def bundle(self) -> dict[str, Any]:
        """The MIME bundle that makes a page render the trace."""
        made = self._repr_mimebundle_()
        return dict(made[0]) if made is not None else {}
