"""GET /metrics, for Prometheus. The metrics themselves are in `metrics/metrics.py`."""

from contextlib import suppress

from flask import Response
from prometheus_client import CONTENT_TYPE_LATEST

from shoal.errors import ShoalError
from shoal.viewers.pool_snapshot import PoolSnapshot
from shoal_api.answers.response import WholeResponse
from shoal_api.context import context
from shoal_api.description import Blueprint
from shoal_api.metrics.pool import read_memory
from shoal_api.schema.errors import ErrorBody

api = Blueprint("metrics", __name__, "service", ErrorBody)


@api.get("/metrics", responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}})
async def metrics() -> Response:
    """Report metrics for Prometheus."""
    pool, memory, queue = None, None, context().client.queue
    with suppress(ShoalError):
        pool = await PoolSnapshot.take(queue)
        memory = await read_memory(queue)
    text = await context().in_thread(context().metrics.render, pool, memory)
    return WholeResponse(text, content_type=CONTENT_TYPE_LATEST)
