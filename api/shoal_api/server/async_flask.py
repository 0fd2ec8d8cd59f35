"""Flask whose views may be coroutines: a request that waits in one holds no thread.

The application stays a `flask.Flask`: its routes, blueprints, contexts, hooks and error handlers are Flask's, and any
WSGI server can run it. Only the dispatch is awaited.
"""

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, TypeVar

from flask import Flask, Request, Response
from flask.ctx import RequestContext
from flask.sessions import NullSession, SessionInterface
from flask.signals import request_started
from flask_openapi3.openapi import OpenAPI
from werkzeug.routing import MapAdapter

from shoal.client.redis.loop_thread import LoopThread
from shoal_api.access.access_control import MAX_LASTING
from shoal_api.answers.response import LOOP
from shoal_api.request import json_request

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

#: Number of threads for views that are not coroutines. Such views read files, or use a blocking library for Redis.
NUM_THREADS = 32

_T = TypeVar("_T")


class _NoSessions(SessionInterface):
    """One empty session for all requests: nothing here reads cookies, and a write to it raises."""

    _empty = NullSession()

    def open_session(self, app: Flask, request: Request) -> NullSession:
        """Return the empty session."""
        return self._empty


class AsyncFlask(OpenAPI):
    """A Flask application whose views are coroutines, or run in threads. Under WSGI, the coroutines run in `loop`."""

    session_interface = _NoSessions()

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.loop = LoopThread(self.close, "shoal-loop", NUM_THREADS)  # its threads read bodies, which may come slowly
        self.threads = ThreadPoolExecutor(NUM_THREADS, "shoal-view")
        #: The threads of uploads, which may take minutes each.
        self.upload_threads = ThreadPoolExecutor(MAX_LASTING, "shoal-upload")

    @abstractmethod
    async def respond(self, environ: "WSGIEnvironment") -> Response:
        """Return the response to a request."""

    @abstractmethod
    async def close(self) -> None:
        """Close the connections of the event loop."""

    async def respond_in(self, context: RequestContext) -> Response:
        """Return the response to a request, within its context."""
        failure = None
        context.push()
        try:
            try:
                return await self.full_dispatch()
            except Exception as error:
                failure = error
                return self.handle_exception(error)
        finally:
            context.pop(failure)

    async def full_dispatch(self) -> Response:
        """Run the hooks, and return the response of the view, or of the handler for the view's error."""
        try:
            request_started.send(self)
            answer = self.preprocess_request()
            if answer is None:
                answer = await self.dispatch()
        except Exception as error:
            answer = self.handle_user_exception(error)
        return self.finalize_request(answer)

    async def dispatch(self) -> Any:
        """Return the answer of the request's view. The request has a route."""
        request = json_request()
        rule: Any = request.url_rule
        if request.method == "OPTIONS" and rule.provide_automatic_options:
            return self.make_default_options_response()
        view, arguments = self.view_functions[rule.endpoint], request.view_args or {}
        if iscoroutinefunction(view):
            return await view(**arguments)
        return await run_in(self.upload_threads if request.is_upload else self.threads, partial(view, **arguments))

    def create_url_adapter(self, request: Request | None) -> MapAdapter | None:
        """Return an adapter that finds routes by path and method alone: Flask's would check the host name as well."""
        if request is None:
            return None
        host, path = request.environ.get("HTTP_HOST", ""), request.path
        return MapAdapter(self.url_map, host, request.root_path, "", request.scheme, path, request.method)

    def wsgi_app(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        """Answer a request from a WSGI server. The thread of the server waits meanwhile."""
        environ[LOOP] = self.loop
        response = self.loop.run(lambda: self.respond(environ))
        return response(environ, start_response)


async def run_in(threads: ThreadPoolExecutor, function: Callable[[], _T]) -> _T:
    """Run a function in one of the threads, in the present context, and return its result."""
    return await asyncio.get_running_loop().run_in_executor(threads, copy_context().run, function)
