"""Responses with sparse vectors, multivectors or several outputs at once, which only JSON and msgpack can say."""

from collections.abc import Mapping
from typing import Any

from flask import Response

from shoal.contract import wire
from shoal.contract.replies import OUTPUT_FIELDS, Reply
from shoal.errors import InvalidRequest
from shoal_api.answers.response import bytes_response, cost_headers, json_response, sparse_json
from shoal_api.answers.vector_format import JSON, NUMBER_TYPES, accepted_type
from shoal_api.request import MSGPACK_TYPES


def output_type(number_type: str) -> str:
    """Return the media type of such a response that the current request accepts.

    Raises NotAcceptable, and InvalidRequest for another number type than the default.
    """
    if number_type != NUMBER_TYPES[0]:
        raise InvalidRequest(f'output_dtype "{number_type}" goes with output vector, tokens and chunks: leave it out')
    return accepted_type((JSON, *MSGPACK_TYPES))


def output_response(reply: Reply, media_type: str, fields: Mapping[str, Any] | None = None) -> Response:
    """Return a response with a map of the `fields` and the outputs; in JSON without `fields`, with one output alone."""
    headers = cost_headers(reply)
    if media_type != JSON:
        packed = reply.packed_vectors()
        values = {word: packed[name] for word, name in OUTPUT_FIELDS.items() if name in packed}
        return bytes_response(wire.pack({**(fields or {}), **values}), media_type, headers=headers)
    sparse = None if reply.sparse is None else list(map(sparse_json, reply.sparse))
    named = {"vector": reply.vectors, "sparse": sparse, "multivector": reply.multivectors}
    found = {word: output for word, output in named.items() if output is not None}
    return json_response(next(iter(found.values())) if fields is None else {**fields, **found}, headers=headers)
