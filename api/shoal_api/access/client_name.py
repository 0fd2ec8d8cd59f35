"""Whose the current request is."""

from functools import lru_cache
from ipaddress import IPv6Address, ip_address, ip_network
from typing import cast

from flask.globals import request_ctx

from shoal_api.request import JsonRequest


def caller() -> str:
    """The name of the request's API key, else where it comes from, as `origin_of` says."""
    return cast(JsonRequest, request_ctx.request).caller


@lru_cache(4_096)
def origin_of(address: str) -> str:
    """The IPv4 address, or the network of an IPv6 address: whoever has one of those has 2^64."""
    try:
        ip = ip_address(address)
    except ValueError:  # a socket file has none
        return address
    if not isinstance(ip, IPv6Address):
        return address
    return str(ip.ipv4_mapped or ip_network((ip, 64), strict=False))
