"""Formats of responses with vectors: their number types, and the media types that a request may accept.

Only JSON and msgpack can express sparse vectors, multivectors, or several outputs at once.
"""

from base64 import b64encode
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Literal, get_args

import numpy as np
from flask import Response
from numpy.typing import NDArray
from werkzeug.datastructures import MIMEAccept
from werkzeug.http import parse_accept_header

from shoal.contract import wire
from shoal.contract.excerpt import excerpt
from shoal.contract.replies import CHUNK_COLUMNS, OUTPUT_FIELDS, Reply
from shoal.errors import InvalidRequest, NotAcceptable
from shoal_api.answers.response import bytes_response, cost_headers, json_response, sparse_json
from shoal_api.request import MSGPACK_TYPES, json_request

#: Arrays by their names: `embeddings`, with a row for each vector, and the scales, offsets and chunks of the rows.
Arrays = dict[str, NDArray[Any]]

NumberType = Literal["float32", "float16", "int8", "binary", "ubinary"]

#: All number types; the first is the default.
NUMBER_TYPES: tuple[str, ...] = get_args(NumberType)

_MAX_INT8 = 127
_MAX_FLOAT16 = float(np.finfo(np.float16).max)

JSON = "application/json"
RAW = "application/octet-stream"

#: Longest Accept header that is read. Parsing 64 KiB would take a third of a second; browsers send some 150 characters.
MAX_ACCEPT_CHARS = 1_000


def convert(vectors: NDArray[np.float32], number_type: str) -> Arrays:
    """Return the vectors, float32 `[rows, dimension]`, as little-endian arrays of the number type.

    `embeddings` is `[rows, dimension]`, and for packed bits `[rows, dimension / 8]`, rounded up. `int8` adds the array
    `scales`, float32 `[rows]`: each row times its scale restores the vector.
    """
    if number_type == "float32":
        return {"embeddings": vectors.astype("<f4", copy=False)}
    if number_type == "float16":
        return {"embeddings": np.clip(vectors, -_MAX_FLOAT16, _MAX_FLOAT16).astype("<f2")}
    if number_type == "int8":  # the largest absolute value becomes 127; zeros have the scale 0
        scales = np.abs(vectors).max(axis=1) / np.float32(_MAX_INT8)
        rows = np.rint(vectors / np.where(scales > 0, scales, 1)[:, None])
        within = np.clip(rows, -_MAX_INT8, _MAX_INT8)  # a scale near 0 is rounded, so a number may exceed 127
        return {"embeddings": within.astype("i1"), "scales": scales.astype("<f4", copy=False)}
    bits = np.packbits(vectors > 0, axis=1)  # the first number is the highest bit of the first byte
    if number_type == "binary":  # each byte minus 128, as in other services that return signed bytes
        bits = (bits ^ np.uint8(128)).view("i1")
    return {"embeddings": bits}


def base64_rows(rows: NDArray[Any]) -> list[str]:
    """Return the numbers of each row in base64: 32-bit floats as little-endian bytes, other types as they are."""
    return [b64encode(row).decode() for row in (rows.astype("<f4", copy=False) if rows.dtype == np.float32 else rows)]


#: The media types of vectors besides JSON.
FORMATS = (*MSGPACK_TYPES, RAW)

#: All media types of vectors, the default first.
OFFERED = (JSON, *FORMATS)


def accepted_type(offered: tuple[str, ...] = OFFERED) -> str:
    """Return the media type that the current request accepts; JSON without an Accept header. Raises NotAcceptable."""
    media_type = best_type(offered)
    if media_type is None:
        accept = excerpt(json_request().environ["HTTP_ACCEPT"])
        raise NotAcceptable(f"Accept is {accept}: this answer comes as {', '.join(offered)}")
    return media_type


def best_type(offered: tuple[str, ...]) -> str | None:
    """Return the offered media type that the current request prefers, or None if it accepts none of them."""
    request = json_request()
    request.is_negotiated = True
    header = request.environ.get("HTTP_ACCEPT", "")
    return _best(header, offered) if len(header) <= MAX_ACCEPT_CHARS else None


def vectors_response(
    reply: Reply,
    media_type: str,
    number_type: str = "float32",
    *,
    in_json: Callable[[Reply], Any] | None = None,
    fields: Mapping[str, Any] | None = None,
) -> Response:
    """Return a response with the vectors of a reply, and with headers that report the cost of the reply.

    If `in_json` is given, it makes the JSON from the reply. Otherwise the JSON is a map of the `fields` and the arrays.
    Without `fields`, it is the list of vectors alone, or a map of the arrays if there are scales or chunks. msgpack is
    a map of the `fields` and of the arrays, each a map of its dtype, shape and bytes.
    """
    headers = cost_headers(reply)
    if media_type == JSON and in_json is not None:
        return json_response(in_json(reply), headers=headers)
    arrays = arrays_of(reply, number_type)
    if media_type == JSON:
        named = listed(arrays) if "offsets" in arrays else arrays
        if fields is None:
            return json_response(named if len(named) > 1 else named["embeddings"], headers=headers)
        return json_response({**fields, **named}, headers=headers)
    vectors = arrays["embeddings"]
    headers |= {"X-Dtype": vectors.dtype.name, "X-Shape": ",".join(map(str, vectors.shape))}
    if media_type == RAW:
        return bytes_response(b"".join(array.tobytes() for array in arrays.values()), media_type, headers=headers)
    maps = {
        name: {"dtype": array.dtype.name, "shape": list(array.shape), "data": array.tobytes()}
        for name, array in arrays.items()
    }
    return bytes_response(wire.pack({**(fields or {}), **maps}), media_type, headers=headers)


def arrays_of(reply: Reply, number_type: str) -> Arrays:
    """Return the vectors of a reply as arrays of the number type.

    Vectors of tokens or chunks add `offsets`, int64 `[texts + 1]`: the vectors of text `n` are the rows from
    `offsets[n]` to before `offsets[n + 1]`. Chunks also add `chunks`, int64 `[vectors, 3]`: start, stop and tokens.
    """
    assert reply.vectors is not None
    arrays = convert(reply.vectors, number_type)
    if reply.output == "tokens":
        arrays["offsets"] = np.cumsum([0, *reply.tokens], dtype="<i8")
    if reply.chunks is not None:
        arrays["offsets"] = np.cumsum([0, *map(len, reply.chunks)], dtype="<i8")
        rows = [[chunk[name] for name in CHUNK_COLUMNS] for part in reply.chunks for chunk in part]
        arrays["chunks"] = np.array(rows, dtype="<i8")
    return arrays


def listed(arrays: Arrays) -> Mapping[str, Any]:
    """Return arrays with offsets for JSON: each array is cut into one part for each text."""
    offsets = arrays["offsets"]
    named: dict[str, Any] = {
        name: np.split(array, offsets[1:-1]) for name, array in arrays.items() if name != "offsets"
    }
    if "chunks" in named:
        parts = (part.tolist() for part in named["chunks"])
        named["chunks"] = [[dict(zip(CHUNK_COLUMNS, row, strict=True)) for row in part] for part in parts]
    return named


def output_type(number_type: str) -> str:
    """Return the media type that the current request accepts for a response by `output_response`.

    Raises NotAcceptable, and InvalidRequest for any number type but the default.
    """
    if number_type != NUMBER_TYPES[0]:
        raise InvalidRequest(f'output_dtype "{number_type}" goes with output vector, tokens and chunks: leave it out')
    return accepted_type((JSON, *MSGPACK_TYPES))


def output_response(reply: Reply, media_type: str, fields: Mapping[str, Any] | None = None) -> Response:
    """Return a response with a map of the `fields` and the outputs. JSON without `fields` is the first output alone."""
    headers = cost_headers(reply)
    if media_type != JSON:
        packed = reply.packed_vectors()
        values = {word: packed[name] for word, name in OUTPUT_FIELDS.items() if name in packed}
        return bytes_response(wire.pack({**(fields or {}), **values}), media_type, headers=headers)
    sparse = None if reply.sparse is None else list(map(sparse_json, reply.sparse))
    named = {"vector": reply.vectors, "sparse": sparse, "multivector": reply.multivectors}
    found = {word: output for word, output in named.items() if output is not None}
    return json_response(next(iter(found.values())) if fields is None else {**fields, **found}, headers=headers)


@lru_cache(maxsize=64)  # programs send the same few headers
def _best(header: str, offered: tuple[str, ...]) -> str | None:
    """Return the offered media type that fits the Accept header best, or None if none does."""
    # Java sends `*/*; q=.2`, which the grammar does not allow. Parameters such as a charset are ignored.
    asked = parse_accept_header(header.replace("q=.", "q=0."), MIMEAccept)
    if not asked:
        return JSON
    plain = MIMEAccept([(item.partition(";")[0], quality) for item, quality in asked])
    return plain.best_match(offered)
