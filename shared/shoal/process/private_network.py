"""The URLs of webhooks. A URL that leads into a private network is refused."""

import ipaddress
import re
import socket
from collections.abc import Collection
from urllib.parse import SplitResult, urlsplit

from shoal.contract.excerpt import excerpt
from shoal.errors import AddressNotAllowed, FileError, InvalidRequest

_PORTS = {"http": 80, "https": 443}


def without_query(url: str) -> str:
    """Return a URL without its query and its user, because both may contain a secret."""
    return re.sub(r"//[^/?#]*@|[?#].*", lambda found: "//" if found[0].startswith("//") else "", url, flags=re.DOTALL)


def split_url(url: str) -> SplitResult:
    """Return the parts of the URL of a webhook. Raises InvalidRequest for any other URL."""
    try:
        parts = urlsplit(url)
        is_usable = parts.scheme in _PORTS and bool(parts.hostname) and parts.port != 0 and len(url) <= 2_048
    except ValueError:
        is_usable = False
    if not is_usable:
        raise InvalidRequest(
            f"the webhook {excerpt(without_query(url))} is no URL that can be used: write http:// or https:// and "
            "a host"
        )
    if parts.username is not None or parts.password is not None:
        raise InvalidRequest(f"the URL of {excerpt(parts.hostname)} has a user name: leave it out")
    return parts


def check_address(url: str, private_hosts: Collection[str]) -> list[tuple[str, int]]:
    """Return the IP addresses and ports of a URL's host.

    Raises InvalidRequest for a wrong URL, FileError for an unknown host, and AddressNotAllowed for an address that is
    not public, unless the host is one of `private_hosts`.
    """
    parts = split_url(url)
    host = parts.hostname or ""
    try:
        found = socket.getaddrinfo(host, parts.port or _PORTS[parts.scheme], type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise FileError(f"{without_query(url)} cannot be reached: there is no host {excerpt(host)}") from error
    addresses = list(dict.fromkeys((str(place[0]), int(place[1])) for *_, place in found))
    if host not in private_hosts and not all(is_public(address) for address, _ in addresses):
        raise AddressNotAllowed(
            f"{without_query(url)} leads into a private network: if that is intended, add {excerpt(host)} to "
            "SHOAL_PRIVATE_HOSTS"
        )
    return addresses


def is_public(address: str) -> bool:
    """Return True if an IP address belongs to a single machine in the public internet."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        is_nat64 = ip in ipaddress.IPv6Network("64:ff9b::/96")  # is translated to the IPv4 address in its last bytes
        inner = ip.ipv4_mapped or ip.sixtofour or (ipaddress.IPv4Address(ip.packed[-4:]) if is_nat64 else None)
        if inner or ip.teredo:
            return inner is not None and is_public(str(inner))
        if ip.is_site_local:
            return False
    return ip.is_global and not ip.is_multicast and not ip.is_reserved
