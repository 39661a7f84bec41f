"""What the libraries log of a server is short and little; what they log for others stays as it is."""

from __future__ import annotations

import asyncio
import logging

import pytest

pytest.importorskip("mcp")

from aisotools.integrations.mcp import logs
from aisotools.integrations.mcp.logs import MAX_CHARS, MAX_RECORDS, LogBudget

LIBRARY = logging.getLogger("mcp.client.streamable_http")


def log_error(text: str) -> None:
    try:
        raise ValueError(text)
    except ValueError:
        LIBRARY.exception("cannot read %s", text)


@pytest.mark.parametrize(
    "name", ["mcp", "mcp.client.streamable_http", "client", "httpx2", "anyio", "mcp.new.part"]
)
def test_records_of_a_server_are_few_and_short(name: str, caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger(name)
    with LogBudget("s").apply():
        for number in range(1_000):
            logger.warning("%d %s", number, "x" * 60_000)
    assert len(caplog.records) == MAX_RECORDS
    assert len(caplog.text) < MAX_RECORDS * (MAX_CHARS + 200)
    assert caplog.records[0].getMessage().startswith("0 xxx")


def test_tracebacks_are_left_out_and_their_errors_are_not(caplog: pytest.LogCaptureFixture) -> None:
    with LogBudget("s").apply():
        log_error("y" * 300)
        log_error("z" * 60_000)
    assert "ValueError: yyy" in caplog.records[0].getMessage()
    assert "Traceback" not in caplog.text
    assert len(caplog.text) < 4_000


def test_records_left_out_are_counted_in_the_next(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget = LogBudget("far")
    with budget.apply():
        for _ in range(MAX_RECORDS + 1_234):
            LIBRARY.warning("a")
        monkeypatch.setattr(logs, "PERIOD_S", 0.0)
        LIBRARY.warning("b")
        LIBRARY.warning("c")
    texts = [record.getMessage() for record in caplog.records]
    assert texts[-2:] == ["b [1,234 more records about the MCP server far were left out]", "c"]


def test_records_left_out_last_are_counted_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    budget = LogBudget("far")
    with budget.apply():
        for _ in range(MAX_RECORDS + 5):
            LIBRARY.warning("a")
    budget.report()
    budget.report()
    texts = [record.getMessage() for record in caplog.records[MAX_RECORDS:]]
    assert texts == ["5 log records about the MCP server far were left out."]


def test_a_record_that_cannot_be_formatted_is_named(caplog: pytest.LogCaptureFixture) -> None:
    with LogBudget("s").apply():
        LIBRARY.warning("%d", "text")
    assert caplog.records[0].getMessage() == f"(a record of {LIBRARY.name} that cannot be formatted)"


async def test_records_of_others_stay_as_they_are(caplog: pytest.LogCaptureFixture) -> None:
    async def use_it_too() -> None:
        for _ in range(100):
            LIBRARY.warning("%s", "x" * 5_000)
        log_error("mine")

    other = asyncio.ensure_future(use_it_too())
    with LogBudget("s").apply():
        await other
        logging.getLogger("other.program").warning("%s", "x" * 5_000)
    LIBRARY.warning("%s", "x" * 5_000)
    assert len(caplog.records) == 103
    assert len(caplog.records[-1].getMessage()) == 5_000
    assert caplog.text.count("Traceback") == 1
