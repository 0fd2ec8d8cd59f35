"""The command `shoal api`."""

import click

from shoal.cli import REDIS_SETTINGS, settings_options
from shoal.settings import Settings


@click.command()
@settings_options(
    "host",
    "port",
    *REDIS_SETTINGS,
    "max_backlog",
    "result_ttl_s",
    "api_processes",
    "api_threads",
    "request_timeout_s",
    "max_request_bytes",
    "max_request_texts",
    "max_text_chars",
    "log_level",
)
def api(settings: Settings) -> None:
    """Answer HTTP requests; workers started elsewhere do the work."""
    from shoal_api.server import serve

    serve(settings)
