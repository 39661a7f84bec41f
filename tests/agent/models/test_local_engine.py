"""What of the local engine needs no weights: tokens of words, and which files are models."""

from __future__ import annotations

from pathlib import Path

import pytest

from aisotools.agent.models import local_engine
from aisotools.agent.models.local_engine import ABSENT, has_chat_template, terms_due
from aisotools.core.exceptions import ModelError


def test_word_counts_by_the_longest_token_that_begins_it() -> None:
    logprobs = {" f": -1.0, " fi": -2.0, "file": -3.0}
    assert local_engine._likeliest(" file", logprobs) == -2.0
    assert local_engine._likeliest(" price", logprobs) == ABSENT


def test_grammar_literals_are_escaped() -> None:
    assert local_engine._literal('a"\\\n') == '"a\\"\\\\\\n"'


@pytest.mark.parametrize(("content", "found"), [(b"tokenizer.chat_template", True), (b"other", False)])
def test_chat_template_is_looked_for(tmp_path: Path, content: bytes, found: bool) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF" + content)
    assert has_chat_template(path) is found


def test_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"text")
    with pytest.raises(ModelError, match="is not a GGUF file"):
        has_chat_template(path)
    with pytest.raises(ModelError, match="cannot be read"):
        has_chat_template(tmp_path / "missing.gguf")


def test_terms_are_due_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert terms_due()
    assert not terms_due()
