"""What libraries log of an MCP server: short, and a few records a minute.

Threat
    The libraries for MCP and HTTP log what a server sends, whole, and a traceback for each message that is
    malformed. A server that sends thousands writes megabytes to the notebook's standard error.
Mechanism
    A filter on the loggers of these libraries. It concerns only records that come from a task of one of our
    connections, which `LogBudget.apply` marks by a context variable. It lets through `MAX_RECORDS` of each
    server in `PERIOD_S`, each cut to `MAX_CHARS` and without its traceback. How many were left out is said
    with the next that is let through, or at the end of the connection. Records of other programs that use the
    libraries in the same process pass as they are.
Race window
    None for one connection: all its tasks run in one thread.
When it fails
    A record that cannot be formatted is replaced by a sentence that names its logger.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

MAX_RECORDS = 20
"""How many records of one server are let through in `PERIOD_S`."""

PERIOD_S = 60.0
MAX_CHARS = 1_000
"""The longest record of these libraries; the rest is cut off."""

_log = logging.getLogger(__name__)

_LIBRARIES = frozenset({"mcp", "client", "httpx2", "httpcore2", "httpcore", "anyio"})
"""First parts of the names of their loggers. `client` is how the library names that of its sessions."""

_current: ContextVar[LogBudget | None] = ContextVar("aisotools_mcp_log_budget", default=None)


class LogBudget:
    """What may still be logged of one server.

    Attributes:
        name: Its name, for records.
        left_out: How many records were left out since the last one that was let through.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.left_out = 0
        self._count = 0
        self._since_s = -math.inf

    @contextmanager
    def apply(self) -> Iterator[None]:
        """Bound what the libraries log in the `with` block, and in tasks that are started in it."""
        # A filter is asked only by the logger that it was added to, not by those below that in the tree.
        for name, logger in list(logging.root.manager.loggerDict.items()):
            if isinstance(logger, logging.Logger) and name.partition(".")[0] in _LIBRARIES:
                logger.addFilter(_filter)
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def admit(self, record: logging.LogRecord) -> bool:
        """Return whether a record is let through, which is then short."""
        now_s = time.monotonic()
        if now_s - self._since_s >= PERIOD_S:
            self._since_s, self._count = now_s, 0
        if self._count >= MAX_RECORDS:
            self.left_out += 1
            return False
        self._count += 1
        _shorten(record)
        if self.left_out:
            record.msg += f" [{self.left_out:,} more records about the MCP server {self.name} were left out]"
            self.left_out = 0
        return True

    def report(self) -> None:
        """Say how many records were left out, if that was not said yet."""
        if self.left_out:
            _log.warning("%d log records about the MCP server %s were left out.", self.left_out, self.name)
            self.left_out = 0


def _shorten(record: logging.LogRecord) -> None:
    try:
        text = record.getMessage()
    except (TypeError, ValueError):
        text = f"(a record of {record.name} that cannot be formatted)"
    # The traceback of a library says where it looks at what came; the error says what is wrong with that.
    error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
    if error is not None:
        text = f"{text[:MAX_CHARS]}: {type(error).__name__}: {str(error)[:MAX_CHARS]}"
    record.exc_info = record.exc_text = record.stack_info = None
    record.msg, record.args = (text if len(text) <= MAX_CHARS else f"{text[:MAX_CHARS]}..."), ()


def _filter(record: logging.LogRecord) -> bool:
    budget = _current.get()
    return budget is None or budget.admit(record)
