"""Names of clients without a key: their address, or the network of it."""

from collections.abc import Mapping
from functools import lru_cache
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Any


@lru_cache(4_096)
def network_of(address: str) -> str:
    """Return an IPv4 address as it is, and the /64 network of an IPv6 address: one client has 2^64 of those."""
    try:
        ip = ip_address(address)
    except ValueError:  # a connection by a Unix socket has no address
        return address
    if not isinstance(ip, IPv6Address):
        return address
    return str(ip.ipv4_mapped or ip_network((ip, 64), strict=False))


def address_of(environ: Mapping[str, Any], num_proxies: int) -> str:
    """Return the address that a request came from, as the first of `num_proxies` trusted proxies has noted it."""
    if num_proxies:
        noted = str(environ.get("HTTP_X_FORWARDED_FOR", "")).split(",")
        if len(noted) >= num_proxies and (address := noted[-num_proxies].strip()):
            return address
    return str(environ.get("REMOTE_ADDR", ""))
