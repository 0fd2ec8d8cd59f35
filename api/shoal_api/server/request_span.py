"""The trace of a request, which its `traceparent` names, with a span of the request where spans are on."""

import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from flask import Response

from shoal.contract import traceparent
from shoal_api.request import JsonRequest

if TYPE_CHECKING:
    from shoal.process.spans import Tracer

#: Routes that supervisors and Prometheus ask all the time: they have no span.
QUIET_ROUTES = ("/health", "/ready", "/metrics")


async def answer_traced(
    tracer: "Tracer | None", request: JsonRequest, answer: Callable[[], Awaitable[Response]]
) -> Response:
    """Return the answer; the jobs that are put for it belong to the trace of the request."""
    given = traceparent.valid(request.environ.get("HTTP_TRACEPARENT"))
    route = request.url_rule.rule if request.url_rule else "unmatched"
    if tracer is None or route in QUIET_ROUTES:
        if given is None:
            return await answer()
        with traceparent.continued(given):
            return await answer()
    method = request.method if request.url_rule else "HTTP"
    attributes = {"http.request.method": method, "http.route": route}
    start_ns = time.time_ns() - int(1e9 * (time.perf_counter() - request.started_s))
    span = tracer.begin(f"{method} {route}", "SERVER", given, start_ns, attributes)
    try:
        with traceparent.continued(traceparent.format_traceparent(span.get_span_context())):
            response = await answer()
        span.set_attribute("http.response.status_code", response.status_code)
        span.set_attribute("shoal.client", request.client_name)
        if response.status_code >= 500:
            tracer.fail(span, str(response.status_code))
        return response
    finally:
        span.end()
