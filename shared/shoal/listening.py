"""Whether a server could listen on an address."""

import errno
import socket

from shoal.errors import BadSetting, PortInUse


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
