"""GET /metrics, for Prometheus. The metrics themselves are in `metrics/metrics.py`."""

from flask import Response
from prometheus_client import CONTENT_TYPE_LATEST

from shoal_api.answers.response import WholeResponse
from shoal_api.context import context
from shoal_api.description import Blueprint
from shoal_api.metrics.pool import PoolReading
from shoal_api.schema.errors import ErrorBody

api = Blueprint("metrics", __name__, "service", ErrorBody)


@api.get("/metrics", responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}})
async def metrics() -> Response:
    """Report metrics for Prometheus."""
    pool = await PoolReading.take(context().client)
    text = await context().in_thread(context().metrics.render, pool)
    return WholeResponse(text, content_type=CONTENT_TYPE_LATEST)
