"""Errors as responses: their HTTP statuses, and their bodies in the dialect of the route's protocol."""

import logging
from collections.abc import Mapping

from flask import Response, current_app, request
from flask.globals import request_ctx
from werkzeug.exceptions import HTTPException

from shoal.contract import traceparent
from shoal.contract.excerpt import excerpt
from shoal.errors import Internal, ShoalError
from shoal.process import logs
from shoal_api.answers.response import json_response
from shoal_api.context import context
from shoal_api.request import json_request
from shoal_api.schema.error_statuses import STATUS, ErrorBody, ErrorShape

_CODE_OF_STATUS = {404: "not_found", 405: "method_not_allowed", 413: "too_large"}

_log = logging.getLogger(__name__)


def answer_error(error: ShoalError) -> Response:
    """Return the response to an error of Shoal's own."""
    status, headers = _dialect().statuses.get(error.code) or STATUS.get(error.code, 500), {}
    if status in (429, 503):  # the same request may succeed a little later
        headers["Retry-After"] = str(error.retry_after_s)
    if status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="shoal"'
    return _error_response(error.code, error.message, status, headers)


def answer_http_error(error: HTTPException) -> Response:
    """Return the response to a request that Flask itself refuses. The response keeps headers such as Allow."""
    status = error.code or 500
    code = _CODE_OF_STATUS.get(status, "invalid_request" if status < 500 else "internal")
    headers = {name: value for name, value in error.get_headers() if name != "Content-Type"}
    message = error.description or error.name
    if status == 404:
        message = f"nothing is at {excerpt(request.path)}: /docs lists the paths"
    elif status == 405:
        message = f"{excerpt(request.path)} does not take the method {excerpt(request.method)}: /docs lists its methods"
    elif status == 413:
        limit = context().settings.max_request_bytes
        message = f"the body is larger than {limit:,} bytes (SHOAL_MAX_REQUEST_BYTES): split the list"
    return _error_response(code, message, status, headers)


def answer_unexpected_error(error: Exception) -> Response:
    """Return the response to any other error, and log it without its message, which could contain a text."""
    facts = logs.about(None, json_request().client_name, traceparent.current())
    _log.error("%s %s failed: %s", request.method, request.url_rule, logs.places(error), extra=facts)
    return answer_error(Internal("the server failed unexpectedly: its log has the traceback, please report it"))


def _error_response(code: str, message: str, status: int, headers: Mapping[str, str]) -> Response:
    context().metrics.errors.labels(code).inc()
    return json_response(_dialect().error_body(code, message, status), status, headers)


def _dialect() -> type[ErrorShape]:
    """Return the dialect of the current request's path; for an unknown path, Shoal's own."""
    rule, adapter = request.url_rule, request_ctx.url_adapter
    if rule is None and adapter and (methods := adapter.allowed_methods()):  # the path does not take this method
        rule, _ = adapter.match(method=min(methods), return_rule=True)
        if "POST" in (rule.methods or ()):
            rule = context().paths.fallbacks.get(rule.rule, rule)
    name = rule.endpoint.partition(".")[0] if rule else ""
    errors = getattr(current_app.blueprints.get(name), "errors", ErrorBody)
    found: type[ErrorShape] = errors.for_body(json_request().field_names)
    return found
