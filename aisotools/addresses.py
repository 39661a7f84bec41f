"""Which network addresses are the open internet, and nothing else. Pure.

A list of its own: what Python's `is_global` says has changed from version to version, and knows nothing of
the metadata services of clouds.
"""

from __future__ import annotations

import ipaddress

_REFUSED_V4 = tuple(
    ipaddress.ip_network(text)
    for text in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",
        "100.64.0.0/10",  # carriers' NAT, and a cloud's metadata service
        "127.0.0.0/8",
        "168.63.129.16/32",  # a cloud's own services
        "169.254.0.0/16",  # link-local, and most clouds' metadata services
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.31.196.0/24",
        "192.52.193.0/24",
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",
        "192.175.48.0/24",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
    )
)
_OPEN_V6 = ipaddress.ip_network("2000::/3")
_REFUSED_V6 = tuple(
    ipaddress.ip_network(text)
    for text in (
        "2001::/23",  # tunnels that carry IPv4 addresses, and other protocol assignments
        "2001:db8::/32",
        "2002::/16",  # 6to4, which carries an IPv4 address
        "3fff::/20",
    )
)


def is_public(address: str) -> bool:
    """Whether this is an address of the open internet; whatever cannot be read is not."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(parsed, ipaddress.IPv4Address):
        return not any(parsed in network for network in _REFUSED_V4)
    if parsed.scope_id is not None or parsed not in _OPEN_V6:
        return False  # loopback, link-local, unique local, mapped and translated IPv4 all lie outside
    return not any(parsed in network for network in _REFUSED_V6)


def is_address(host: str) -> bool:
    """Whether a host is an address and no name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_odd_number(host: str) -> bool:
    """Whether a host is written as a number in any but the usual way, such as `127.1` or `0x7f000001`."""
    last = host.rstrip(".").rpartition(".")[2].lower()
    numeric = last.isdecimal() or last.startswith("0x")
    return numeric and not is_address(host)
