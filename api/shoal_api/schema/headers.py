"""The headers of responses, as the OpenAPI document describes them."""

from typing import Any


def _header(description: str, kind: str = "string") -> dict[str, Any]:
    return {"description": description, "schema": {"type": kind}}


#: The headers with the cost of an answer.
COST = {
    "Server-Timing": _header("Milliseconds of `queue`, `tokenize`, `encode` and `search`"),
    "X-Tokens": _header("Tokens of all texts together", "integer"),
    "X-Truncated": _header("Texts that were cut", "integer"),
    "X-Cached": _header("Texts that were not computed, because the cache had their vectors", "integer"),
}

#: The headers of an answer with vectors.
VECTORS = COST | {
    "X-Dtype": _header("In another format than JSON: the type of a number, such as float32"),
    "X-Shape": _header("In another format than JSON: the numbers of rows and columns, such as 2,384"),
}

#: The headers with which Text Embeddings Inference tells the cost of an answer; times are in whole milliseconds.
TEI = {
    "X-Compute-Type": _header("`cpu`"),
    "X-Compute-Characters": _header("Characters of all texts", "integer"),
    "X-Compute-Tokens": _header("Tokens of all texts", "integer"),
    "X-Compute-Time": _header("Time of the whole request", "integer"),
    "X-Total-Time": _header("The same", "integer"),
    "X-Queue-Time": _header("Time of waiting in the lane", "integer"),
    "X-Tokenization-Time": _header("Time of tokenizing", "integer"),
    "X-Inference-Time": _header("Time of encoding", "integer"),
}

#: The headers of the answer to a submit.
SUBMITTED = {
    "Location": _header("Path of the job"),
    "Preference-Applied": _header("`respond-async`, if `Prefer` asked for it"),
}

#: The headers of an error.
ERROR = {
    "Retry-After": _header("With 429 and 503: seconds to wait before another attempt", "integer"),
    "WWW-Authenticate": _header("With 401: the way to send a key"),
}

#: The headers of any answer to a key with a rate.
RATE = {
    "RateLimit-Policy": _header("The rate of the key"),
    "RateLimit": _header("Past that rate: the seconds to wait"),
}
