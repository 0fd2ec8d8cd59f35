"""The application: Flask with all routes, error handlers and metrics."""

from dataclasses import replace
from threading import Event

from flask_openapi3.models.info import Info
from werkzeug.exceptions import HTTPException

from shoal import __version__
from shoal.client.redis.async_client import AsyncClient
from shoal.errors import ShoalError
from shoal.process.tracing import open_tracer
from shoal.settings import Settings
from shoal_api import errors
from shoal_api.access import cors
from shoal_api.access.access_control import AccessControl
from shoal_api.context import Context
from shoal_api.long_jobs.upload_store import UploadStore
from shoal_api.metrics.metrics import Metrics
from shoal_api.pool.pool_state import PoolReader
from shoal_api.protocol_paths import ProtocolPaths
from shoal_api.protocols import cohere, infinity, jina, ollama, openai, smaller_services, tei, voyage, weaviate
from shoal_api.routes import indexes, inference, jobs, pages, pool, service
from shoal_api.schema.error_statuses import ErrorBody
from shoal_api.server.async_flask import AsyncFlask
from shoal_api.validation import refuse

_ROUTES = (
    inference.embed_api,
    inference.api,
    jobs.api,
    jobs.long_jobs_api,
    pool.dead_letters_api,
    service.api,
    pool.api,
    indexes.api,
    pages.api,
)

#: The routes of the compatible protocols, by the protocols' names in the settings.
PROTOCOL_APIS = {
    "openai": openai.api,
    "tei": tei.api,
    "infinity": infinity.api,
    "ollama": ollama.api,
    "cohere": cohere.api,
    "jina": jina.api,
    "voyage": voyage.api,
    "weaviate": weaviate.api,
    "vllm": smaller_services.vllm_api,
    "similar": smaller_services.similar_api,
    "predict": smaller_services.predict_api,
    "wire_formats": smaller_services.wire_formats_api,
}


def create_app(settings: Settings) -> AsyncFlask:
    """Return the application, with a client for each pool; Redis may start later. Raises BadSetting."""
    app = AsyncFlask(
        __name__,
        info=Info(title="Shoal", version=__version__, description="Embeds text and searches it by meaning."),
        validation_error_model=ErrorBody,
        validation_error_status="4XX",
        validation_error_callback=refuse,
        doc_ui=False,
        static_folder=None,
    )
    # A path with an empty part (//) is unknown, and is not redirected. Of several leading slashes, werkzeug keeps one.
    app.url_map.merge_slashes = app.url_map.redirect_defaults = False
    app.config["MAX_CONTENT_LENGTH"] = settings.max_request_bytes
    app.register_error_handler(ShoalError, errors.answer_error)
    app.register_error_handler(HTTPException, errors.answer_http_error)
    app.register_error_handler(Exception, errors.answer_unexpected_error)
    for routes in _ROUTES:
        app.register_api(routes)
    for name in settings.protocol_names():
        app.register_api(PROTOCOL_APIS[name])
    _attach_contexts(app, settings, ProtocolPaths(app))
    pages.install(app)
    own = {routes.name for routes in (*_ROUTES, pages.docs_api)}
    for endpoint, view in app.view_functions.items():
        if endpoint.partition(".")[0] in own:
            query = view.__annotations__.get("query")
            app.own_parameters[endpoint] = query.model_fields if query else ()
    if origins := settings.origin_names():
        cors.install(app, origins)
    return app


def _attach_contexts(app: AsyncFlask, settings: Settings, paths: ProtocolPaths) -> None:
    """Create the contexts of all pools that the application serves, and attach them to it."""
    others = [replace(settings, pool=name, pools="", indexes="", model_aliases=name) for name in settings.pool_names()]
    if others:  # the name of each pool is an alias of its model
        settings = replace(settings, model_aliases=f"{settings.model_aliases},{settings.pool}")
    clients = {each.pool: AsyncClient.from_settings(each) for each in (settings, *others)}
    metrics, access, stopping = Metrics(clients), AccessControl(settings), Event()
    tracer = open_tracer(settings, "api")
    app.contexts = {
        each.pool: Context(
            settings=each,
            client=clients[each.pool],
            metrics=metrics,
            access=access,
            pool=PoolReader(clients[each.pool]),
            paths=paths,
            long_jobs=clients[each.pool].long_jobs,
            uploads=UploadStore(each, clients[each.pool].long_jobs.status),
            stopping=stopping,
            threads=app.threads,
            tracer=tracer,
        )
        for each in (settings, *others)
    }
    app.own = app.contexts[settings.pool]


def from_environment() -> AsyncFlask:
    """Return the application with settings from the environment, for any WSGI server."""
    return create_app(Settings.from_environment())
