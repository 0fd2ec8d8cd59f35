"""The command `shoal serve`: start Redis, the API and the workers, or stop them."""

from dataclasses import fields, replace

import click

from shoal.cli.options import settings_options
from shoal.settings import Settings
from shoal.supervisor import background


@click.command(short_help="Start everything (Redis, the API, workers), or stop it.")
@click.option("--workers", type=int, default=None, help="Worker processes to start [SHOAL_WORKERS; default: 1].")
@click.option("--index", "indexes", multiple=True, help="Index folder, or name=folder; repeatable [SHOAL_INDEXES].")
@click.option("--sample", is_flag=True, help="If no index is named, index and serve sample headlines.")
@click.option("--detach", is_flag=True, help="Return once it is ready and leave it running.")
@click.option("--stop", is_flag=True, help="Stop the server of the same home folder.")
@settings_options(*(item.name for item in fields(Settings) if item.name not in ("workers", "indexes")))
def serve(
    settings: Settings,
    workers: int | None,
    indexes: tuple[str, ...],
    sample: bool,
    detach: bool,
    stop: bool,
) -> None:
    """Start Redis (unless one is named), the API and the workers; watch them; stop them on Ctrl-C."""
    if workers is not None:
        settings = replace(settings, workers=workers)
    if indexes:
        settings = replace(settings, indexes=",".join(indexes))
    if stop:
        click.echo(background.stop(settings))
        return
    if sample and not settings.indexes:
        from shoal.supervisor.serve import with_sample

        settings = with_sample(settings)
    log = background.detach(settings) if detach else None
    if log or not detach:
        from shoal.supervisor.serve import serve

        serve(settings, log)
