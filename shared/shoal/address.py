"""Whether a server could listen on an address."""

import errno
import socket
from ipaddress import ip_address

from shoal.errors import BadSetting, PortInUse
from shoal.settings import Settings


def find_api_address(settings: Settings) -> str:
    """The IP address on which the API is to listen, as `find_address` finds it.

    Raises BadSetting too if others than this machine could ask there without a key, and nobody allowed that.
    """
    address = find_address(settings.host, settings.port)
    is_private = ip_address(address.partition("%")[0]).is_loopback
    if is_private or settings.api_keys_file or settings.allow_anonymous == "anywhere":
        return address
    raise BadSetting(
        f"on {settings.host}:{settings.port} the API would answer anybody: make a key with `shoal key new` and name "
        "its file with --api-keys-file, or allow it with --allow-anonymous anywhere"
    )


def find_address(host: str, port: int, remedy: str = "stop it, or choose another --port") -> str:
    """The IP address of `host`, on whose port a process can listen now.

    Raises PortInUse, with the remedy, if something listens there, and BadSetting if this machine cannot.
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
