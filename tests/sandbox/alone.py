"""Running something where there is one thread, as the code under test demands, whatever runs these tests."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any


def in_one_thread(action: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What `action` finds in a fork, which has no other threads, whatever runs these tests."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.write(writing, json.dumps(action()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        found: dict[str, Any] = json.load(file)
    os.waitpid(pid, 0)
    return found
