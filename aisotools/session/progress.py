"""Progress bars in what a call prints, such as those of tqdm, as numbers.

Threat
    What is printed comes out of a sandbox: it may be made to be slow to read, or draw bars without end.
Mechanism
    Lines and streams are bounded, and so is how often a stream reports. No text matches the pattern in two
    ways.
Race window
    None.
When it fails
    A line that cannot be read is not a bar.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from aisotools.core.types import Json
from aisotools.policy.prompts import visible

_MAX_LINE_CHARS = 500
"""Longer lines are not read as bars."""

_MAX_STREAMS = 32
"""Streams watched at once; the one watched for longest is dropped."""

_MIN_INTERVAL_S = 0.1
"""Time between two reports of one stream; a bar that is complete is reported at once."""

_NUMBER = r"\d{1,15}(?:\.\d{1,6})?[kMGTPE]?"
# Every repetition is bounded and no text can match in two ways, so hostile output cannot make this slow.
_BAR = re.compile(
    rf"(?:(?P<label>[^|\r\n]{{0,100}}?):\s{{1,4}})?\s{{0,4}}(?P<percent>\d{{1,3}})%\|[^|]{{0,300}}\|\s{{0,4}}"
    rf"(?P<done>{_NUMBER})[A-Za-z]{{0,12}}/(?P<total>{_NUMBER})[A-Za-z]{{0,12}}"
    r"\s\[(?P<times>[^\],]{0,40})(?:,\s{0,12}(?P<rate>[^\],]{1,40}))?[^\]]{0,100}\]"
)
_RATE = re.compile(rf"(?P<number>{_NUMBER})\s?(?P<over>[A-Za-z ]{{1,20}})/(?P<under>[A-Za-z ]{{1,20}})")
_FACTORS = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}

Progress = dict[str, Json]
"""`done` and `total`; where the bar shows them, `label`, `unit` and `rate` in units per second."""


def parse_bar(line: str) -> Progress | None:
    """Return the numbers of the progress bar that `line` draws, or None if it draws none."""
    if "%|" not in line or len(line) > _MAX_LINE_CHARS:
        return None
    match = _BAR.fullmatch(line.strip())
    if match is None:
        return None
    progress: Progress = {"done": _parse_number(match["done"]), "total": _parse_number(match["total"])}
    if match["label"]:
        progress["label"] = visible(match["label"], "")
    rate = _RATE.fullmatch((match["rate"] or "").strip())
    if rate is not None:
        number = _parse_number(rate["number"])
        inverse = rate["over"] == "s"  # seconds per item, which tqdm shows for slow loops
        progress["unit"] = (rate["under"] if inverse else rate["over"]).strip()
        if not inverse:
            progress["rate"] = number
        elif number:
            progress["rate"] = round(1 / number, 6)
    return progress


def _parse_number(text: str) -> float | int:
    factor = _FACTORS.get(text[-1])
    if factor is not None:
        return float(text[:-1]) * factor
    return float(text) if "." in text else int(text)


class BarReader:
    """Reads the progress bars of one stream of one call."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Start at the beginning of a line. `clock` returns the time in seconds."""
        self._clock = clock
        self._line = ""
        self._reported: Progress | None = None
        self._reported_s = float("-inf")

    def feed(self, text: str) -> Progress | None:
        """Read printed text. Return the progress of the newest bar if a report of it is due."""
        if not self._line and "\r" not in text and "%|" not in text:
            return None
        lines = re.split(r"[\r\n]+", (self._line + text)[-4 * _MAX_LINE_CHARS :])
        self._line = "" if text.endswith("\n") else lines[-1][-_MAX_LINE_CHARS:]
        progress = next((parsed for line in reversed(lines) if (parsed := parse_bar(line))), None)
        if progress is None or progress == self._reported:
            return None
        complete = progress["done"] == progress["total"]
        if not complete and self._clock() - self._reported_s < _MIN_INTERVAL_S:
            return None
        self._reported, self._reported_s = progress, self._clock()
        return progress


class ProgressTracker:
    """Reads the progress bars of all calls of a session, as numbers.

    tqdm and similar libraries draw one line again and again behind a carriage return, in the worker's
    interpreter or in a program that it started. The host reads the bars from the printed text, which is
    hostile input like all output: patterns, line lengths and the number of watched streams are bounded.
    """

    def __init__(self) -> None:
        """Start without streams."""
        self._readers: dict[tuple[str, str], BarReader] = {}

    def __len__(self) -> int:
        return len(self._readers)

    def feed(self, call_id: str, stream: str, text: str) -> Progress | None:
        """Read what a call printed to one of its streams. Return its progress if a report of it is due."""
        reader = self._readers.get((call_id, stream))
        if reader is None:
            if "%|" not in text:
                return None
            while len(self._readers) >= _MAX_STREAMS:
                del self._readers[next(iter(self._readers))]
            reader = self._readers[call_id, stream] = BarReader()
        return reader.feed(text)
