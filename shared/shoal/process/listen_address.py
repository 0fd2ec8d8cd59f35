"""The addresses that a server listens on, checked before the server starts."""

import errno
import socket
from contextlib import suppress
from ipaddress import ip_address

from shoal.errors import BadSetting, PortInUse
from shoal.settings import Settings


def find_api_addresses(settings: Settings) -> list[str]:
    """Return the IP addresses for the API. Raises BadSetting if other machines could use the API without a key."""
    addresses = find_addresses(settings.host, settings.port)
    is_private = all(ip_address(address.partition("%")[0]).is_loopback for address in addresses)
    if is_private or settings.api_keys_file or settings.allow_anonymous == "anywhere":
        return addresses
    raise BadSetting(
        f"on {settings.host}:{settings.port} the API would answer every machine without a key: make a key with "
        "`shoal key new` and name its file with --api-keys-file, or allow it with --allow-anonymous anywhere"
    )


def find_addresses(host: str, port: int) -> list[str]:
    """Return the IP addresses of `host` that this machine has and can listen on now. Raises PortInUse or BadSetting."""
    found, missing = [], []
    try:
        resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise _cannot_listen(host, port, error) from error
    for family, address in dict.fromkeys((family, address) for family, *_, address in resolved):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
            found.append(str(address[0]))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                shown = host if host == address[0] else f"{host} ({address[0]})"
                raise PortInUse(
                    f"{shown}:{port} is taken by another program: stop it, or choose another --port"
                ) from error
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):  # this machine has the address
                raise _cannot_listen(host, port, error) from error
            missing.append(error)
    if not found:
        raise _cannot_listen(host, port, missing[0])
    return found


def api_url(settings: Settings) -> str:
    """Return the URL of the API for clients on this machine."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)  # noqa: S104 - not bound
    with suppress(OSError):
        if host in {address[0] for *_, address in socket.getaddrinfo("localhost", None)}:
            host = "localhost"
    return f"http://[{host}]:{settings.port}" if ":" in host else f"http://{host}:{settings.port}"


def _cannot_listen(host: str, port: int, error: OSError) -> BadSetting:
    return BadSetting(f"cannot listen on {host}:{port} ({error}): choose another address or port")
