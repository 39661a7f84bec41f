"""Words of English requests, and how well documents match them: stems, a few synonyms, BM25. Pure."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

STOP_WORDS = frozenset(
    [
        "a",
        "an",
        "the",
        "of",
        "to",
        "in",
        "into",
        "on",
        "at",
        "for",
        "from",
        "by",
        "with",
        "and",
        "or",
        "is",
        "are",
        "was",
        "were",
        "be",
        "been",
        "do",
        "does",
        "did",
        "has",
        "have",
        "had",
        "can",
        "could",
        "would",
        "will",
        "shall",
        "should",
        "may",
        "might",
        "i",
        "me",
        "my",
        "you",
        "your",
        "it",
        "its",
        "this",
        "that",
        "these",
        "those",
        "there",
        "here",
        "please",
        "just",
        "what",
        "which",
        "who",
        "how",
        "many",
        "much",
        "some",
        "any",
        "all",
        "each",
        "than",
        "then",
        "as",
        "if",
        "so",
        "not",
        "no",
        "want",
        "need",
        "like",
        "us",
        "we",
        "our",
        "let",
    ]
)
"""Words that say little about which tool is meant."""

_SYNONYMS = {
    "folder": "directory dir folders directories",
    "delete": "remove erase rid deleting removing",
    "move": "rename moving renaming relocate",
    "copy": "duplicate backup back copies copying",
    "write": "save store put create make creating writing",
    "append": "add adding appending",
    "run": "execute launch executing running",
    "search": "find locate grep where occur mention mentions contain contains look searching",
    "size": "big large bytes modified changed permissions last",
    "read": "show display print open view see cat contents say reads say says shows content",
    "calculate": "compute evaluate calculation much",
    "shell": "bash terminal",
    "listing": "list ls listed",
    "wide": "width",
    "high": "height tall",
    "long": "length",
    "price": "cost costs expensive",
    "average": "mean",
    "temperature": "warm hot cold degrees",
}
_SYNONYM_HEADS = {word: head for head, words in _SYNONYMS.items() for word in words.split()}
_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)?")
_ENDINGS = ("ies", "ing", "ed", "es", "s")
_BM25_K1 = 1.2
_BM25_B = 0.6


def words(text: str) -> list[str]:
    """Return the words of `text` in lower case; `snake_case` and `camelCase` are taken apart."""
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text.replace("_", " "))
    return [word.lower() for word in _WORD.findall(apart)]


def stem(word: str) -> str:
    """Return the word without a common ending. Crude, but the same for requests and examples."""
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word[: -len(ending)] + ("y" if ending == "ies" else "")
    return word


def terms(text: str) -> list[str]:
    """Return the terms that are compared: stems of significant words, with synonyms as one."""
    significant = [word for word in words(text) if word not in STOP_WORDS or word in _SYNONYM_HEADS]
    return [stem(_SYNONYM_HEADS.get(word, word)) for word in significant]


class Bm25:
    """Ranks documents, each a list of terms, by how well they match a request."""

    def __init__(self, documents: Sequence[Sequence[str]]) -> None:
        """Count the terms of the documents."""
        self._counts = [Counter(document) for document in documents]
        self._lengths = [len(document) for document in documents]
        self._mean = sum(self._lengths) / max(len(documents), 1) or 1.0
        holding = Counter(term for counts in self._counts for term in counts)
        total = len(documents)
        self._weights = {t: math.log(1 + (total - n + 0.5) / (n + 0.5)) for t, n in holding.items()}

    def scores(self, request: Sequence[str]) -> list[float]:
        """Return one score for each document, 0 where nothing matches."""
        return [
            self._score(counts, length, request)
            for counts, length in zip(self._counts, self._lengths, strict=True)
        ]

    def _score(self, counts: Counter[str], length: int, request: Sequence[str]) -> float:
        saturation = _BM25_K1 * (1 - _BM25_B + _BM25_B * length / self._mean)
        return sum(
            self._weights[term] * counts[term] * (_BM25_K1 + 1) / (counts[term] + saturation)
            for term in dict.fromkeys(request)
            if counts[term]
        )
