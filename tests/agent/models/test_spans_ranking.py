"""Words of requests, their stems and synonyms, and the ranking of documents."""

from __future__ import annotations

import pytest

from aisotools.agent.models.spans import Bm25, stem, terms, words


def test_words_come_apart_at_underscores_and_capitals() -> None:
    assert words("read_file readFile it's 3") == ["read", "file", "read", "file", "it's", "3"]


@pytest.mark.parametrize(
    ("word", "expected"),
    [("files", "fil"), ("copies", "copy"), ("adding", "add"), ("red", "red"), ("is", "is")],
)
def test_stem(word: str, expected: str) -> None:
    assert stem(word) == expected


def test_terms_leave_out_stop_words_and_join_synonyms() -> None:
    assert terms("please erase the folder") == terms("delete a directory")
    assert terms("the of and") == []
    assert terms("how much") == terms("compute")


def test_bm25_scores_only_what_matches_and_rare_terms_higher() -> None:
    ranking = Bm25([["file", "read"], ["file", "write"], ["dice"]])
    assert ranking.scores(["nothing"]) == [0.0, 0.0, 0.0]
    read, write, dice = ranking.scores(["file", "read"])
    assert read > write > dice == 0.0
    assert ranking.scores(["dice"])[2] > ranking.scores(["file"])[0]


def test_bm25_counts_a_repeated_term_of_the_request_once() -> None:
    ranking = Bm25([["file"], ["dice"]])
    assert ranking.scores(["file", "file"]) == ranking.scores(["file"])


def test_bm25_of_no_documents_has_no_scores() -> None:
    assert Bm25([]).scores(["file"]) == []
