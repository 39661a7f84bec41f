"""A model's own question in the notebook: an input box below the running cell, and never a hang."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from aisotools.contracts import Inquiry
from aisotools.notebook import ask

INQUIRY = Inquiry(id="i", text="Which <b>one</b>?", choices=("a", "b"))


def shell(line: str | None) -> Any:
    def raw_input(prompt: str) -> str:
        assert line is not None
        return line

    return SimpleNamespace(kernel=SimpleNamespace(raw_input=raw_input, takes=line is not None))


@pytest.mark.parametrize(("line", "answer"), [("2", "b"), ("a", "a"), ("", None), (None, None)])
async def test_the_person_is_asked_below_the_cell(
    monkeypatch: pytest.MonkeyPatch, line: str | None, answer: str | None
) -> None:
    shown: list[Any] = []
    monkeypatch.setattr(ask, "_takes_input", lambda kernel: kernel.takes)
    monkeypatch.setattr(ask, "_display", lambda bundle, *_, **__: shown.append(bundle))
    assert await ask.NotebookApprover(shell=shell(line)).inquire(INQUIRY) == answer
    assert bool(shown) is (line is not None)
    assert all(bundle.keys() == {"text/plain"} for bundle in shown)
