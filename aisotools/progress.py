"""Progress bars in what a program prints, as numbers. Pure, but for a clock.

tqdm and its kin draw one line again and again behind a carriage return. Whatever draws it, in the worker's
own interpreter or in a program below it, what is drawn is read here, on the host, like all output: hostile.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from aisotools.events import Json
from aisotools.question import visible

_LONGEST_LINE = 500
_EVERY_S = 0.1
_NUMBER = r"\d{1,15}(?:\.\d{1,6})?[kMGTPE]?"
# Each part is bounded, and none can match in two ways.
_BAR = re.compile(
    rf"(?:(?P<label>[^|\r\n]{{0,100}}?):\s{{1,4}})?\s{{0,4}}(?P<percent>\d{{1,3}})%\|[^|]{{0,300}}\|\s{{0,4}}"
    rf"(?P<done>{_NUMBER})[A-Za-z]{{0,12}}/(?P<total>{_NUMBER})[A-Za-z]{{0,12}}"
    r"\s\[(?P<times>[^\],]{0,40})(?:,\s{0,12}(?P<rate>[^\],]{1,40}))?[^\]]{0,100}\]"
)
_RATE = re.compile(rf"(?P<number>{_NUMBER})\s?(?P<over>[A-Za-z ]{{1,20}})/(?P<under>[A-Za-z ]{{1,20}})")
_POWERS = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}


def bar_numbers(line: str) -> dict[str, Json] | None:
    """What a bar tells: `done`, `total`, and as far as they are there `label`, `unit`, `rate` per second."""
    if "%|" not in line or len(line) > _LONGEST_LINE:
        return None
    match = _BAR.fullmatch(line.strip())
    if match is None:
        return None
    told: dict[str, Json] = {"done": _number(match["done"]), "total": _number(match["total"])}
    if match["label"]:
        told["label"] = visible(match["label"], "")
    rate = _RATE.fullmatch((match["rate"] or "").strip())
    if rate is not None:
        number = _number(rate["number"])
        slow = rate["over"] == "s"  # seconds per item
        told["unit"] = (rate["under"] if slow else rate["over"]).strip()
        if not slow:
            told["rate"] = number
        elif number:
            told["rate"] = round(1 / number, 6)
    return told


class BarWatch:
    """Reads the bars of one stream of one call: the newest one, a few times a second at most."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin with an empty line; `clock` tells the time in seconds."""
        self._clock = clock
        self._line = ""
        self._told_s = float("-inf")
        self._told: dict[str, Json] | None = None

    def feed(self, text: str) -> dict[str, Json] | None:
        """Take in what was printed; the numbers of the bar that stands now, if they are due to be told."""
        if not self._line and "\r" not in text and "%|" not in text:
            return None
        drawn = re.split(r"[\r\n]+", (self._line + text)[-4 * _LONGEST_LINE :])
        self._line = "" if text.endswith("\n") else drawn[-1][-_LONGEST_LINE:]
        numbers = next((told for line in reversed(drawn) if (told := bar_numbers(line))), None)
        if numbers is None or numbers == self._told:
            return None
        ended = numbers["done"] == numbers["total"]
        if not ended and self._clock() - self._told_s < _EVERY_S:
            return None
        self._told, self._told_s = numbers, self._clock()
        return numbers


def _number(text: str) -> float | int:
    power = _POWERS.get(text[-1])
    if power is not None:
        return float(text[:-1]) * power
    return float(text) if "." in text else int(text)
