"""Addresses of servers: which of them lead to this machine, so that a token need not be encrypted."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine: `localhost`, or an address of the loopback interface.

    Names below `localhost` do not count: whether they lead here is up to the resolver.
    """
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
