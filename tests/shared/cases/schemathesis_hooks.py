"""Hooks of schemathesis for the tests of the OpenAPI document, loaded by the path in schemathesis.toml."""

from typing import Any

import msgpack
import schemathesis
from schemathesis import SerializationContext

#: Content types of bodies that are msgpack.
MSGPACK_TYPES = ("application/msgpack", "application/x-msgpack", "application/vnd.msgpack")


def pack(context: SerializationContext, value: Any) -> bytes:
    """Return the value as msgpack, with whole numbers that it cannot hold as floats."""
    return bytes(msgpack.packb(value, default=float, unicode_errors="surrogatepass"))


schemathesis.serializer(*MSGPACK_TYPES)(pack)
