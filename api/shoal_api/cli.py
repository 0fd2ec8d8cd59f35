"""The commands `shoal api` and `shoal key new`."""

from pathlib import Path

import click

from shoal.cli.options import REDIS_SETTINGS, settings_options
from shoal.errors import BadSetting
from shoal.settings import Settings
from shoal_api.access import api_keys


@click.command(short_help="Answer HTTP requests.")
@settings_options(
    "host",
    "port",
    *REDIS_SETTINGS,
    "max_backlog",
    "max_backlog_texts",
    "max_backlog_mb",
    "max_reply_mb",
    "max_result_mb",
    "result_ttl_s",
    "api_processes",
    "request_timeout_s",
    "max_request_bytes",
    "max_response_mb",
    "max_text_chars",
    "receive_timeout_s",
    "roots",
    "max_upload_mb",
    "max_uploads_mb",
    "max_results_mb",
    "max_long_jobs_per_client",
    "api_keys_file",
    "allow_anonymous",
    "cors_origins",
    "trusted_proxies",
    "protocols",
    "model_aliases",
    "pools",
    "token_ids",
    "log_level",
    "log_format",
    "tracing",
)
def api(settings: Settings) -> None:
    """Answer HTTP requests; `shoal worker` starts the workers that embed and search."""
    from shoal_api.server.server import serve

    serve(settings)


@click.group()
def key() -> None:
    """Make the keys that HTTP requests need. To drop one, delete its line. A running API notices within a second."""


@key.command()
@click.argument("name")
@click.option("--admin", is_flag=True, help="Also allow the routes that manage dead letters and indexes.")
@click.option("--rate", default="", metavar="RATE", help="Rate limit: 100/second, or a number per minute, hour or day.")
@settings_options("api_keys_file")
def new(settings: Settings, name: str, admin: bool, rate: str) -> None:
    """Make a key called NAME and print it once, because the file keeps only its digest."""
    if not settings.api_keys_file:
        raise BadSetting("there is no file to keep keys in: name one with --api-keys-file or SHOAL_API_KEYS_FILE")
    path = Path(settings.api_keys_file)
    click.echo(api_keys.add(path, name, "admin" if admin else "user", rate))
    click.echo(f"its digest is in {path}; the key itself is not stored: copy it now", err=True)
