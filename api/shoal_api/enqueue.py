"""Jobs of requests. A request sends a job and waits for the reply, or submits it and fetches the result later."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from flask import Response

from shoal.client.redis.index_writer import IndexWriter
from shoal.contract.jobs import Job
from shoal.contract.options import MAX_DIMENSIONS, Options
from shoal.contract.replies import FINGERPRINT_HEADER, Reply
from shoal.errors import InvalidRequest, TooLarge, Unavailable
from shoal.operations import Decode, Embed, Rerank, Search
from shoal.queue.lane import num_query_bytes
from shoal_api.access.access_control import JSON_BYTES
from shoal_api.answers.response import json_response
from shoal_api.answers.vector_format import accepted_type, vectors_response
from shoal_api.context import Context, all_contexts, context
from shoal_api.request import json_request

#: To estimate the size of an answer, this dimension is assumed until a worker has reported the dimension of its model.
#: Few models have more dimensions.
_ASSUMED_DIMENSION = 1_024

#: Largest number of hits that a request may ask for. The API has all of them in memory at the same time.
MAX_REQUEST_HITS = 100_000

#: OpenAPI's description of the header `Idempotency-Key`, for routes that submit jobs.
IDEMPOTENCY_KEY: dict[str, Any] = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "For a submit: the same key and request within a day return the job that was submitted first",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255},
}

#: OpenAPI's description of the header with which a request asks for the vectors of one model only.
FINGERPRINT: dict[str, Any] = {
    "name": FINGERPRINT_HEADER,
    "in": "header",
    "description": "Use only the model with this fingerprint. Without such a model, the answer is 409 model_mismatch",
    "schema": {"type": "string"},
}


async def call(job: Job, remedy: str = "split the list", lane: str = "interactive") -> Reply:
    """Send the job, in parts if it is long, and return its reply. A job whose client disconnects is withdrawn."""
    request = json_request()
    chosen = await _choose_pool(job) if request.may_change_pool else context()
    settings = chosen.settings
    if "HTTP_X_MODEL_FINGERPRINT" in request.environ:
        job = replace(job, fingerprint=wanted_fingerprint())
    job.check_texts(settings.max_backlog_texts, settings.max_text_chars, "request", remedy)
    if isinstance(job, Search):
        job.check_hits(MAX_REQUEST_HITS, "request")
    if job.queries:
        chosen.access.hold(request, num_query_bytes(job))
    most = settings.max_response_mb * 2**20
    has_rows = isinstance(job, Embed) and job.options.output == "vector"  # vectors of tokens have a limit of their own
    if has_rows and 4 * MAX_DIMENSIONS * len(job.texts) > most:
        dimension = job.options.dimensions or await chosen.pool.dimension()  # 0 until a worker has reported it
        num_bytes = 4 * (dimension or _ASSUMED_DIMENSION) * len(job.texts)
        if dimension and num_bytes > most:
            raise TooLarge(
                f"the vectors of {len(job.texts):,} texts take {num_bytes:,} bytes, and a response may have {most:,} "
                f"(SHOAL_MAX_RESPONSE_MB): {remedy}"
            )
        chosen.access.hold(request, int(JSON_BYTES * num_bytes))
    return await chosen.client.call(job, lane=lane, timeout_s=settings.request_timeout_s, client=request.client_name)


def wanted_fingerprint() -> str | None:
    """Return the fingerprint that the current request names, or None. Raises InvalidRequest for an empty one."""
    fingerprint = json_request().environ.get("HTTP_X_MODEL_FINGERPRINT")
    if fingerprint == "":  # the server also passes a value that is not ASCII as ""
        raise InvalidRequest(f"{FINGERPRINT_HEADER} is empty: copy the fingerprint of an answer, or leave it out")
    return fingerprint


async def answer_vectors(
    texts: str | list[str],
    options: Options,
    in_json: Callable[[Reply], Any],
    remedy: str = "split the list",
) -> Response:
    """Embed texts, and return their vectors in the format that the request accepts; `in_json` makes the JSON."""
    media_type = accepted_type()
    reply = await call(Embed([texts] if isinstance(texts, str) else texts, options), remedy)
    return vectors_response(reply, media_type, in_json=in_json)


async def as_texts(name: str, value: str | list[str] | list[int] | list[list[int]]) -> list[str]:
    """Return the texts of a field called `name`. A worker decodes token ids, if the settings allow them."""
    if isinstance(value, str):
        return [value]
    if not value or isinstance(value[0], str):
        return cast(list[str], value)
    if context().settings.token_ids == "refuse":  # noqa: S105 - no password
        raise InvalidRequest(
            f"{name} has token ids, and ids of another model's tokenizer would give wrong vectors: send texts "
            "(langchain-openai does with OpenAIEmbeddings(check_embedding_ctx_length=False)), or, if these are of the "
            "served model's tokenizer, start the API with SHOAL_TOKEN_IDS=own"
        )
    lists = [value] if isinstance(value[0], int) else value
    texts = [" ".join(map(str, ids)) for ids in lists]
    decoded = (await call(Decode(texts, special_tokens=False))).decoded
    if decoded is None:
        raise Unavailable("a worker did not decode the token ids: it is of an older version, update it")
    return decoded


async def submit(job: Job, lane: str) -> Response:
    """Submit the job and return 202 with its id and location. Raises InvalidRequest for a wrong idempotency key."""
    request, home = json_request(), context()
    idempotency_key = request.headers.get("Idempotency-Key")
    # With an idempotency key, the request stays in its own pool, because no other pool knows the key.
    chosen = await _choose_pool(job) if request.may_change_pool and idempotency_key is None else home
    if chosen is not home:
        job = replace(job, id=f"{chosen.settings.pool}.{job.id}")
    if "HTTP_X_MODEL_FINGERPRINT" in request.environ:
        job = replace(job, fingerprint=wanted_fingerprint())
    settings, client = chosen.settings, chosen.client
    remedy = f"submit several jobs, or wait for the answer of POST {job.path}, which splits the list"
    job.check_texts(settings.max_job_texts, settings.max_text_chars, "job", remedy)
    job_id = await client.put(job, lane, idempotency_key, request.client_name)
    status = "queued" if job_id == job.id else (await client.queue.status(job_id))[0]
    location = {"Location": f"{request.root_path}/v1/jobs/{job_id}"}
    return json_response({"id": job_id, "status": status}, 202, location)


async def _choose_pool(job: Job) -> Context:
    """Return the context of the pool for a job: of two pools that serve the same model, the less busy one.

    Both are drawn at random from the pools with ready workers. Only unanswered jobs of this process count, because
    counts of others would arrive too late. A search stays in its pool, because each pool has its own indexes.
    """
    home = context()
    if isinstance(job, Search):
        return home
    part = "reranker" if isinstance(job, Rerank) else "model"
    states = [(found, await found.pool.look()) for found in all_contexts()]
    served = home.pool.last_ready.served.get(part)
    alike = [found for found, state in states if served and state.served.get(part) == served and not state.lane_fault]
    drawn = random.sample(alike, min(2, len(alike)))
    return min(drawn, key=lambda found: found.client.dispatcher.num_waiting, default=home)


def writer(index: str) -> IndexWriter:
    """Return an index's writer, which writes all changes of the current request in one step."""
    home, request = context(), json_request()
    return home.client.writer(
        index,
        max_text_chars=home.settings.max_text_chars,
        in_one_step=True,
        client=request.client_name,
        timeout_s=home.settings.request_timeout_s,
    )
