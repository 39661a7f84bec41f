"""How much the processes of a sandbox have run."""

from __future__ import annotations

import os
import re

from aisotools.sandbox import processes

_switches = re.compile(rb"ctxt_switches:\s*(\d+)").findall


def switches_below(supervisor: int) -> dict[tuple[int, int], int]:
    """How often each thread below a process was switched to or from: the same again means that none ran.

    Returns:
        Process id and thread id to a count; empty when nothing is there.
    """
    found: dict[tuple[int, int], int] = {}
    if not supervisor:
        return found
    for pid in processes.below(supervisor, processes.table()):
        try:
            threads = os.listdir(f"/proc/{pid}/task")
        except OSError:
            continue  # it ended meanwhile
        for thread in threads:
            try:
                with open(f"/proc/{pid}/task/{thread}/status", "rb") as file:
                    found[pid, int(thread)] = sum(map(int, _switches(file.read())))
            except OSError:
                continue
    return found
