"""Which hosts count as this machine: a token is sent to them unencrypted."""

from __future__ import annotations

import pytest

from aisotools.integrations.addresses import is_loopback


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.9.10", "::1"])
def test_this_machine(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host",
    [
        "example.org",
        "10.0.0.1",
        "128.0.0.1",
        "0.0.0.0",
        "::",
        "localhost.example.org",
        "x.localhost",
        "127.1",
    ],
)
def test_other_machines_and_names_that_a_resolver_may_lead_anywhere(host: str) -> None:
    assert not is_loopback(host)
