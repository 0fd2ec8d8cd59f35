"""Flask without the work for each request that this API does not use, which is half of Flask's time for a request.

Left out are host names, sessions, and the hooks before and at the end of a request. A hook that is left out is refused
when it is registered, so that none is silently skipped. Hooks after a request, error handlers and signals run as usual.
"""

from collections import defaultdict
from collections.abc import Callable
from inspect import iscoroutinefunction
from typing import Any, NoReturn, SupportsIndex

from flask import Flask, Request, Response
from flask.ctx import RequestContext
from flask.globals import request_ctx
from flask.sessions import NullSession, SessionInterface
from flask.signals import appcontext_tearing_down, request_finished, request_started, request_tearing_down
from flask_openapi3.openapi import OpenAPI
from werkzeug.routing import MapAdapter


class _NoSessions(SessionInterface):
    """One empty session for all requests: nothing here reads cookies, and a write to it raises."""

    _empty = NullSession()

    def open_session(self, app: Flask, request: Request) -> NullSession:
        """Return the empty session."""
        return self._empty


class _RefusedHooks(defaultdict[Any, list[Any]]):
    """A place of Flask's for hooks by blueprint that this application would never run. It refuses them."""

    def __init__(self, kind: str):
        super().__init__()
        self._kind = kind

    def __missing__(self, blueprint: Any) -> NoReturn:
        _refuse(self._kind)

    def setdefault(self, blueprint: Any, hooks: Any = None) -> NoReturn:
        """Raise NotImplementedError: this is how Flask registers a hook."""
        _refuse(self._kind)


class _RefusedTeardowns(list[Any]):
    """Flask's list of hooks for the end of an application context, which this application would never run."""

    def append(self, hook: Any) -> NoReturn:
        """Raise NotImplementedError: this is how Flask registers a hook."""
        _refuse("teardown_appcontext")

    def insert(self, index: SupportsIndex, hook: Any) -> NoReturn:
        """Raise NotImplementedError."""
        _refuse("teardown_appcontext")


class FastFlask(OpenAPI):
    """A Flask application, described by OpenAPI, whose dispatch is replaced by a shorter one.

    Registering a hook that the shorter dispatch skips raises NotImplementedError, on the application and on its
    blueprints: before_request, teardown_request, teardown_appcontext, url_value_preprocessor, and async views.
    """

    session_interface = _NoSessions()

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.before_request_funcs = _RefusedHooks("before_request")
        self.url_value_preprocessors = _RefusedHooks("url_value_preprocessor")
        self.teardown_request_funcs = _RefusedHooks("teardown_request")
        self.teardown_appcontext_funcs = _RefusedTeardowns()

    def add_url_rule(
        self, rule: str, endpoint: str | None = None, view_func: Callable[..., Any] | None = None, *args: Any, **kw: Any
    ) -> None:
        """Register a view, or raise NotImplementedError for an async one."""
        if iscoroutinefunction(view_func):
            _refuse(f"the async view of {rule}")
        super().add_url_rule(rule, endpoint, view_func, *args, **kw)

    def create_url_adapter(self, request: Request | None) -> MapAdapter | None:
        """Return the routes by path and method alone: Flask would check and encode the host name as well."""
        if request is None:
            return None
        host, path = request.environ.get("HTTP_HOST", ""), request.path
        return MapAdapter(self.url_map, host, request.root_path, "", request.scheme, path, request.method)

    def full_dispatch_request(self) -> Response:
        """Return the response of the view, or of its error's handler, after the hooks."""
        self._got_first_request = True
        try:
            if request_started.receivers:
                request_started.send(self)
            answer = self.dispatch_request()
        except Exception as error:
            answer = self.handle_user_exception(error)
        response = self.process_response(self.make_response(answer))
        if request_finished.receivers:
            request_finished.send(self, response=response)
        return response

    def dispatch_request(self) -> Any:
        """Return what the view of the request's route answers."""
        request = request_ctx.request
        if request.routing_exception is not None:
            self.raise_routing_exception(request)
        rule: Any = request.url_rule
        view_args: Any = request.view_args
        if request.method == "OPTIONS" and rule.provide_automatic_options:
            return self.make_default_options_response()
        return self.view_functions[rule.endpoint](**view_args)  # add_url_rule refuses async ones

    def process_response(self, response: Response) -> Response:
        """Run the hooks after the request: its own, then its blueprint's, then the application's."""
        context: RequestContext = request_ctx._get_current_object()  # type: ignore[attr-defined]
        hooks = list(context._after_request_functions)
        for name in (*context.request.blueprints, None):
            hooks += reversed(self.after_request_funcs.get(name, ()))
        for hook in hooks:
            response = self.ensure_sync(hook)(response)
        return response

    def do_teardown_request(self, exc: BaseException | None = None) -> None:
        """Send the signal; there are no hooks."""
        if request_tearing_down.receivers:
            request_tearing_down.send(self, exc=exc)

    def do_teardown_appcontext(self, exc: BaseException | None = None) -> None:
        """Send the signal; there are no hooks."""
        if appcontext_tearing_down.receivers:
            appcontext_tearing_down.send(self, exc=exc)


def _refuse(what: str) -> NoReturn:
    raise NotImplementedError(
        f"{what} would never run: this application skips such hooks for speed (shoal_api.server.fast_flask). "
        "Do its work in a view or in an after_request hook, or teach FastFlask to run it"
    )
