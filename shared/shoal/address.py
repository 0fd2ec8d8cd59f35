"""The address that a server listens on, checked before the server starts."""

import errno
import socket
from ipaddress import ip_address

from shoal.errors import BadSetting, PortInUse
from shoal.settings import Settings


def find_api_address(settings: Settings) -> str:
    """Return the IP address for the API to listen on, as `find_address` does.

    Also raises BadSetting if other machines could use the API without a key, unless the settings allow that.
    """
    address = find_address(settings.host, settings.port)
    is_private = ip_address(address.partition("%")[0]).is_loopback
    if is_private or settings.api_keys_file or settings.allow_anonymous == "anywhere":
        return address
    raise BadSetting(
        f"on {settings.host}:{settings.port} the API would answer every machine without a key: make a key with "
        "`shoal key new` and name its file with --api-keys-file, or allow it with --allow-anonymous anywhere"
    )


def find_address(host: str, port: int, remedy: str = "stop it, or choose another --port") -> str:
    """Return the IP address of `host`, after checking that a process can listen on its port now.

    Raises PortInUse, with the remedy, if another program listens there, and BadSetting if this machine has no such
    address or the port needs more rights.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortInUse(f"{host}:{port} is taken by another program: {remedy}") from error
        raise BadSetting(f"cannot listen on {host}:{port} ({error}): choose another --host or --port") from error
    return str(address[0])
