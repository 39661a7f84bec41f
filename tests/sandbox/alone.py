"""Running something in one thread of its own: in a fork that has no other, or beside that of the tests."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


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


def in_own_thread(action: Callable[[], T]) -> T:
    """Return what `action` returns in a thread that ends with it, and that may confine itself for good.

    What it starts is confined, and nothing else is. To confine a fork instead (`preexec_fn`) has the kernel
    copy the page tables of all that the tests hold in memory, which takes tens of milliseconds each time.
    """
    with ThreadPoolExecutor(max_workers=1) as executor:
        return executor.submit(action).result()
