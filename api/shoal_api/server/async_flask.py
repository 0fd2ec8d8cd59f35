"""Flask whose views may be coroutines: a request that waits in one holds no thread.

The application stays a `flask.Flask`: its routes, blueprints, contexts, hooks and error handlers are Flask's, and any
WSGI server can run it. Only the dispatch is awaited.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from inspect import iscoroutinefunction
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, TypeVar

from flask import Flask, Request, Response
from flask.ctx import RequestContext
from flask.globals import request_ctx
from flask.sessions import NullSession, SessionInterface
from flask.signals import request_started
from flask_openapi3.openapi import OpenAPI
from werkzeug.routing import MapAdapter

from shoal_api.answers.response import LOOP

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

#: Threads of a process for views that are no coroutines: they read files, or ask Redis by a library that blocks.
NUM_THREADS = 32

_T = TypeVar("_T")


class _NoSessions(SessionInterface):
    """One empty session for all requests: nothing here reads cookies, and a write to it raises."""

    _empty = NullSession()

    def open_session(self, app: Flask, request: Request) -> NullSession:
        """Return the empty session."""
        return self._empty


class WsgiLoop:
    """The event loop of requests of a WSGI server, in a thread that starts with the first of them. Thread-safe."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: Thread | None = None
        self._lock = Lock()

    def run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Return the result of a coroutine, for which the calling thread waits."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._loop.set_default_executor(ThreadPoolExecutor(NUM_THREADS, "shoal-body"))  # which may come slowly
                self._thread = Thread(target=self._loop.run_forever, name="shoal-loop", daemon=True)
                self._thread.start()
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def close(self, at_end: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """End the loop, if it has begun, in which `at_end` is awaited last; other coroutines must have ended."""
        with self._lock:
            if self._loop is not None and self._thread is not None:
                asyncio.run_coroutine_threadsafe(at_end(), self._loop).result()
                asyncio.run_coroutine_threadsafe(self._loop.shutdown_default_executor(), self._loop).result()
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._thread.join()
                self._loop.close()
            self._loop = self._thread = None


class AsyncFlask(OpenAPI):
    """A Flask application, described by OpenAPI, whose views may be coroutines; the others run in threads.

    A server that has an event loop awaits `respond`. Under WSGI the coroutines run in `loop`.
    """

    session_interface = _NoSessions()

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.loop = WsgiLoop()
        self.threads = ThreadPoolExecutor(NUM_THREADS, "shoal-view")

    async def respond(self, environ: "WSGIEnvironment") -> Response:
        """Return the response to a request."""
        return await self.respond_in(self.request_context(environ))

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
        """Return the response of the view, or of its error's handler, after the hooks."""
        try:
            request_started.send(self)
            answer = self.preprocess_request()
            if answer is None:
                answer = await self.dispatch()
        except Exception as error:
            answer = self.handle_user_exception(error)
        return self.finalize_request(answer)

    async def dispatch(self) -> Any:
        """Return the answer of the view of the request's route."""
        request = request_ctx._get_current_object().request  # type: ignore[attr-defined]
        if request.routing_exception is not None:
            self.raise_routing_exception(request)
        rule: Any = request.url_rule
        if request.method == "OPTIONS" and rule.provide_automatic_options:
            return self.make_default_options_response()
        view, arguments = self.view_functions[rule.endpoint], request.view_args or {}
        if iscoroutinefunction(view):
            return await view(**arguments)
        return await run_in(self.threads_for(request), partial(view, **arguments))

    def threads_for(self, request: Request) -> ThreadPoolExecutor:
        """Return the threads of which one runs the view of the request, if that is no coroutine."""
        return self.threads

    def create_url_adapter(self, request: Request | None) -> MapAdapter | None:
        """Return the routes by path and method alone: Flask would check and encode the host name as well."""
        if request is None:
            return None
        host, path = request.environ.get("HTTP_HOST", ""), request.path
        return MapAdapter(self.url_map, host, request.root_path, "", request.scheme, path, request.method)

    def wsgi_app(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        """Answer a request of a WSGI server, whose thread waits meanwhile."""
        environ[LOOP] = self.loop
        response = self.loop.run(self.respond(environ))
        return response(environ, start_response)

    def close(self, at_end: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """End the threads and the loop, in which `at_end` is awaited last, if it has begun."""
        self.loop.close(at_end)
        self.threads.shutdown()


async def run_in(threads: ThreadPoolExecutor, function: Callable[[], _T]) -> _T:
    """Return the result of a function that one of the threads runs in the present context."""
    return await asyncio.get_running_loop().run_in_executor(threads, copy_context().run, function)
