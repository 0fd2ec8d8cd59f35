"""The bytes on the wire, which are msgpack maps (docs/protocol.md)."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import msgpack

from shoal.contract.excerpt import kind
from shoal.errors import InvalidText, MalformedJob, TooLarge

#: Version of the contract that this package speaks.
VERSION = 1

#: Largest depth of lists and maps in a document or a heartbeat. Every common JSON or msgpack library can read it.
MAX_DEPTH = 64

#: An array or a map counts as this many values in addition to its items, because it needs as much memory.
VALUES_OF_A_CONTAINER = 4


def _refuse_extension(code: int, data: bytes) -> NoReturn:
    raise MalformedJob(f"msgpack extension type {code} is not part of the contract: use plain maps, lists and values")


def pack(value: dict[str, Any]) -> bytes:
    """Return the map as msgpack. Raises InvalidText for a string that UTF-8 cannot encode."""
    try:
        return bytes(msgpack.packb(value, use_bin_type=True))
    except UnicodeEncodeError as error:
        raise InvalidText(describe_surrogate(error)) from error


def describe_surrogate(error: UnicodeEncodeError) -> str:
    """Return words for a message that name the character that UTF-8 cannot encode, and the remedy."""
    surrogate = ascii(error.object[error.start])
    return f"lone surrogate {surrogate} at character {error.start}, which UTF-8 cannot hold: remove or replace it"


def unpack(data: bytes, max_values: float = math.inf) -> dict[str, Any]:
    """Return the msgpack map in `data`. All its arrays and maps together may have `max_values` values.

    Raises InvalidText for a string that is not UTF-8, MalformedJob for other bytes, and TooLarge for too many values.
    """
    bounds = _bounds(int(max_values), len(data)) if len(data) * (1 + VALUES_OF_A_CONTAINER) > max_values else {}
    try:
        value = msgpack.unpackb(data, raw=False, strict_map_key=True, ext_hook=_refuse_extension, **bounds)
    except UnicodeDecodeError as error:
        found = error.object[error.start]
        raise InvalidText(
            f"a string is not UTF-8 (byte 0x{found:02x} at {error.start}): encode texts as UTF-8"
        ) from error
    except (msgpack.exceptions.UnpackException, ValueError, TypeError, RecursionError, MemoryError) as error:
        if len(data) > max_values and "exceeds max_" in str(error):
            raise _too_many(max_values) from error
        raise MalformedJob(f"the {len(data):,} bytes are not one msgpack map: {_reason(error)}") from error
    if not isinstance(value, dict):
        raise MalformedJob(f"the msgpack value is {kind(value)}: send a map")
    return value


def num_values(value: Any, most: float = math.inf) -> int:
    """Return how many values `unpack` counts in a value. The count ends once it exceeds `most`."""
    num, left = 0, [value]
    while left and num <= most:
        inner = left.pop()
        if isinstance(inner, list | dict):
            num += len(inner) + VALUES_OF_A_CONTAINER
            if num <= most:
                left.extend(inner.values() if isinstance(inner, dict) else inner)
    return num


def _bounds(max_values: int, num_bytes: int) -> dict[str, Any]:
    num_left = max_values

    def count(values: list[Any]) -> list[Any]:
        nonlocal num_left
        num_left -= len(values) + VALUES_OF_A_CONTAINER
        if num_left < 0:
            raise _too_many(max_values)
        return values

    most = min(max_values, num_bytes)
    hooks = {"list_hook": count, "object_pairs_hook": lambda pairs: dict(count(pairs))}
    return hooks | {"max_array_len": most, "max_map_len": most}


def _too_many(max_values: float) -> TooLarge:
    return TooLarge(f"its arrays and maps have over {max_values:,} values: split it")


def _reason(error: Exception) -> str:
    """Return why msgpack cannot read some bytes, without the Python terms of the library's message."""
    if isinstance(error, msgpack.ExtraData):
        return "more bytes follow the first value"
    if isinstance(error, msgpack.StackError | RecursionError):
        return "arrays and maps are nested too deeply"
    if isinstance(error, msgpack.FormatError):
        return "one of them cannot begin a value"
    if isinstance(error, MemoryError):
        return "there is no memory for them"
    if "map key" in str(error):
        return "a key of a map is not a string"
    return "they end within a value"


def pack_arguments(arguments: Mapping[str, Any]) -> bytes:
    """Return the arguments of a script as msgpack. Bytes are packed as str, because Redis's msgpack has no bin."""
    return bytes(msgpack.packb(arguments, use_bin_type=False))


def unpack_result(data: bytes | None) -> Any:
    """Return the result of a script, or an empty map if there is none. Keys of maps are str, other strings bytes."""
    return {} if data is None else msgpack.unpackb(data, raw=True, object_pairs_hook=_with_str_keys)


def _with_str_keys(pairs: Sequence[tuple[bytes, Any]]) -> dict[str, Any]:
    return {name.decode(): value for name, value in pairs}


def is_json(value: Any, max_depth: int = MAX_DEPTH) -> bool:
    """Return True if `value` has a JSON form: no bytes, only string keys, and at most `max_depth` levels."""
    if isinstance(value, list):
        return max_depth > 0 and all(is_json(item, max_depth - 1) for item in value)
    if isinstance(value, dict):
        return max_depth > 0 and all(isinstance(k, str) and is_json(item, max_depth - 1) for k, item in value.items())
    return value is None or isinstance(value, str | int | float)
