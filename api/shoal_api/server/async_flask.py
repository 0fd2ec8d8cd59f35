"""A Flask application whose views may be coroutines, so that a waiting request holds no thread.

The application stays a `flask.Flask`: its routes, blueprints, contexts, hooks and error handlers are Flask's, and any
WSGI server can run it. Only the dispatch is awaited.
"""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, TypeVar, cast
from wsgiref.types import StartResponse, WSGIEnvironment

from flask import Request, Response
from flask.ctx import RequestContext
from flask.sessions import NullSession
from flask.signals import request_started
from flask_openapi3.blueprint import APIBlueprint
from flask_openapi3.openapi import OpenAPI
from werkzeug.exceptions import RequestTimeout
from werkzeug.routing import MapAdapter

from shoal.client.redis.loop_thread import LoopThread
from shoal.contract import traceparent
from shoal.contract.checks import check_known
from shoal_api.access.access_control import MAX_TRANSFERS
from shoal_api.answers.response import WholeResponse
from shoal_api.protocol_paths import joined_paths
from shoal_api.request import JsonRequest, json_request

if TYPE_CHECKING:
    from shoal_api.context import Context

#: Number of threads for views that are not coroutines. Such views read files, or use a blocking library for Redis.
NUM_THREADS = 32

#: The beginning of a path with the name of the pool that has to answer.
_POOL_PATH = re.compile(r"/pools/([^/]+)(?=/)")

#: The path of a job whose id begins with the name of its pool, because the API has chosen the pool.
_JOB_PATH = re.compile(r"/v1/jobs/([^/]+)\.[0-9a-f]{24}(?=/|$)")

#: The status that metrics note for a request whose client disconnected before the response.
_CLIENT_GONE = 499

#: Routes that supervisors and Prometheus request all the time. They get no spans.
_QUIET_ROUTES = ("/health", "/ready", "/metrics")

#: The session of all requests. It is empty, because no view reads cookies, and a write to it raises an error.
_NO_SESSION = NullSession()

_T = TypeVar("_T")


class AsyncFlask(OpenAPI):
    """The application. It admits requests by access control, receives their bodies, and counts the requests.

    Its views are coroutines, or run in threads. Under WSGI, the coroutines run in `loop`.
    """

    request_class = JsonRequest
    response_class = WholeResponse

    #: The context of the application's own pool.
    own: "Context"

    #: The contexts of the application's pools by the pools' names, its own pool first.
    contexts: "Mapping[str, Context]"

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        #: For the endpoint of each of Shoal's own views, the names of all query parameters that the view accepts.
        self.own_parameters: dict[str, Collection[str]] = {}
        self.loop = LoopThread(self.close, "shoal-loop", NUM_THREADS)  # the threads block while they read bodies
        self.threads = ThreadPoolExecutor(NUM_THREADS, "shoal-view")
        #: The threads of uploads, which may take minutes each.
        self.upload_threads = ThreadPoolExecutor(MAX_TRANSFERS, "shoal-upload")

    async def close(self) -> None:
        """Close the clients of all pools."""
        for context in self.contexts.values():
            await context.client.close()

    # Routes

    def add_url_rule(self, rule: str, *args: Any, **options: Any) -> None:
        """Register a view. A path that ends with a slash also works without the slash, and without a redirect."""
        path = rule.rstrip("/") or "/"
        if path != rule:
            options["strict_slashes"] = False  # a redirect would lead to the host that the request names
        super().add_url_rule(path, *args, **options)

    def register_api(self, api: APIBlueprint, **options: Any) -> None:
        """Add the routes of a blueprint, and join the descriptions of paths that several blueprints share."""
        earlier = dict(self.paths)
        super().register_api(api, **options)
        for path, item in earlier.items():
            if (later := self.paths[path]) is not item:
                self.paths[path] = joined_paths(item, later)

    def create_url_adapter(self, request: Request | None) -> MapAdapter | None:
        """Return an adapter that finds routes by path and method alone. Flask's adapter would also check the host."""
        if request is None:
            return None
        host, path = request.environ.get("HTTP_HOST", ""), request.path
        return MapAdapter(self.url_map, host, request.root_path, "", request.scheme, path, request.method)

    # Requests

    def wsgi_app(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer a request from a WSGI server, whose thread waits for the response."""
        response = self.loop.run(lambda: self.respond(environ))
        return response(environ, start_response)

    async def respond(self, environ: WSGIEnvironment) -> Response:
        """Return the response to a request. The request is counted as under way until the response is closed."""
        path, pool = environ["PATH_INFO"], ""
        if len(self.contexts) > 1:
            if (named := _POOL_PATH.match(path)) and named[1] in self.contexts:
                pool = named[1]
                environ |= {"SCRIPT_NAME": environ["SCRIPT_NAME"] + named[0], "PATH_INFO": path[named.end() :]}
            elif (of_job := _JOB_PATH.match(path)) and of_job[1] in self.contexts:
                pool = of_job[1]
        context = RequestContext(self, environ, session=_NO_SESSION)
        request, release, failure = cast(JsonRequest, context.request), self.own.access.release, None
        request.pool, request.may_change_pool = pool, len(self.contexts) > 1 and not pool
        is_traced = self.own.tracer is not None or "HTTP_TRACEPARENT" in environ
        try:
            context.push()
            try:
                response = await (self._answer_traced(request) if is_traced else self.answer(request))
            except Exception as error:
                failure = error
                response = self.handle_exception(error)
            finally:
                context.pop(failure)
        except BaseException:
            self.own.metrics.observe(request, _CLIENT_GONE)
            release(request)
            raise
        response.call_on_close(partial(release, request))
        return response

    async def _answer_traced(self, request: JsonRequest) -> Response:
        """Return the response to the request as part of the request's trace, with a span if tracing is on."""
        tracer, given = self.own.tracer, traceparent.valid(request.environ.get("HTTP_TRACEPARENT"))
        method, route = (request.method, request.url_rule.rule) if request.url_rule else ("HTTP", "unmatched")
        if tracer is None or route in _QUIET_ROUTES:
            with traceparent.continued(given):
                return await self.answer(request)
        start_ns = time.time_ns() - int(1e9 * (time.perf_counter() - request.started_s))
        attributes = {"http.request.method": method, "http.route": route}
        span = tracer.begin(f"{method} {route}", "SERVER", given, start_ns, attributes)
        try:
            with traceparent.continued(traceparent.format_traceparent(span.get_span_context())):
                response = await self.answer(request)
            span.set_attribute("http.response.status_code", response.status_code)
            span.set_attribute("shoal.client", request.client_name)
            if response.status_code >= 500:
                tracer.fail(span, str(response.status_code))
            return response
        finally:
            span.end()

    async def answer(self, request: JsonRequest) -> Response:
        """Run the hooks, and return the response of the view, or of the handler for the view's error.

        A body that nothing has read is dropped first.
        """
        try:
            request_started.send(self)
            answer = self.preprocess_request()
            if answer is None:
                answer = await self.dispatch(request)
        except Exception as error:
            answer = self.handle_user_exception(error)
        if not request.is_read and (num_bytes := request.num_unread_bytes()):
            with suppress(RequestTimeout, RuntimeError):  # Granian raises a RuntimeError if the body is incomplete
                await self._in_time(request.drop(num_bytes))
        return self.finalize_request(answer)

    async def dispatch(self, request: JsonRequest) -> Any:
        """Admit the request, receive its body, and return the view's answer."""
        access, paths = self.own.access, self.own.paths
        rule: Any = request.url_rule
        is_shared = request.method == "POST" and rule is not None and rule.rule in paths.fallbacks
        if is_shared:
            request.url_rule = paths.fallbacks[rule.rule]
        await access.admit(request)
        if request.routing_exception is not None:
            self.raise_routing_exception(request)
        if request.is_counted and request.declared_bytes != 0:
            await self._in_time(request.receive(partial(access.hold, request)))
        if is_shared:
            paths.choose(request)
        rule = request.url_rule
        if (known := self.own_parameters.get(rule.endpoint)) is not None and request.query_string:
            check_known("query parameter", request.args, known)
        if request.method == "OPTIONS" and rule.provide_automatic_options:
            return self.make_default_options_response()
        view, arguments = self.view_functions[rule.endpoint], request.view_args or {}
        release = access.count_transfer(request) if request.is_upload else None
        try:
            if iscoroutinefunction(view):
                return await view(**arguments)
            return await run_in(self.upload_threads if release else self.threads, partial(view, **arguments))
        finally:
            if release:
                release()

    async def _in_time(self, reading: Awaitable[None]) -> None:
        """Raise RequestTimeout if reading the body takes too long."""
        most_s = self.own.settings.receive_timeout_s
        try:
            async with asyncio.timeout(most_s):
                await reading
        except TimeoutError:
            raise RequestTimeout(f"the body did not arrive within {most_s:g} s: send it faster, or less") from None

    def process_response(self, response: Response) -> Response:
        """Run the hooks, count the request, and add headers."""
        response, request = super().process_response(response), json_request()
        if request.is_negotiated:
            response.headers["Vary"] = ", ".join([*response.headers.getlist("Vary"), "Accept"])
        if request.rate_headers:
            response.headers.update(request.rate_headers)
        self.own.metrics.observe(request, response.status_code)
        if self.own.stopping.is_set():
            response.headers["Connection"] = "close"
        return response


async def run_in(threads: ThreadPoolExecutor, function: Callable[[], _T]) -> _T:
    """Run a function in one of the threads, in the present context, and return its result."""
    return await asyncio.get_running_loop().run_in_executor(threads, copy_context().run, function)
