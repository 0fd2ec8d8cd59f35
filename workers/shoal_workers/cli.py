"""The commands of the workers: `shoal worker`, `shoal host`, `shoal jobs`, `shoal index` and `shoal model`."""

import json
import math
from dataclasses import asdict

import click

from shoal.cli.options import MODEL_SETTINGS, REDIS_SETTINGS, settings_options
from shoal.process import logs
from shoal.settings import Settings
from shoal_workers.index_commands import index

__all__ = ["host", "index", "jobs", "model", "worker"]

INDEX_SETTINGS = ("indexes", "index_home", "index_store")
LOG_SETTINGS = ("log_level", "log_format", "tracing")


@click.command()
@settings_options(
    *REDIS_SETTINGS,
    *MODEL_SETTINGS,
    "reranker",
    *INDEX_SETTINGS,
    *("max_batch_tokens", "max_batch_texts", "max_job_texts", "max_text_chars", "max_reply_mb"),
    *("max_result_mb", "result_ttl_s", "cache_mb", "stall_timeout_s", "workers"),
    *LOG_SETTINGS,
)
def worker(settings: Settings) -> None:
    """Run one worker until it is told to stop (SIGTERM or Ctrl-C)."""
    from shoal_workers.process.processors import limit_native_threads

    limit_native_threads(settings.threads, settings.workers)
    from shoal_workers.service.service import serve

    logs.configure(settings)
    serve(settings)


@click.command()
@click.argument("models", nargs=-1, required=True, metavar="POOL=MODEL...")
@click.option(
    "--memory-gb",
    type=click.FloatRange(min=0, max=10**6, min_open=True),
    required=True,
    help="Largest memory of all models together.",
)
@click.option(
    "--idle-s",
    type=click.IntRange(0, 10**9),
    default=300,
    show_default=True,
    help="Seconds after its last job at which a model is sent to sleep.",
)
@settings_options(*REDIS_SETTINGS, "engine", "precision", "threads", *INDEX_SETTINGS, "cache_mb", *LOG_SETTINGS)
def host(settings: Settings, models: tuple[str, ...], memory_gb: float, idle_s: float) -> None:
    """Run workers of several models, within a budget of memory.

    Each POOL is a pool of the API (SHOAL_POOLS), and MODEL is a value of `shoal worker --model`. Each model runs once
    at the start. From then on, a model runs while jobs come for its pool, and the first job starts it.
    """
    from shoal_workers.service.model_host import run_host

    if math.isnan(memory_gb):
        raise click.BadParameter("nan is not a number: write one, such as 8", param_hint="'--memory-gb'")
    logs.configure(settings)
    run_host(settings, models, int(memory_gb * 2**30), idle_s)


@click.command()
@settings_options(
    *REDIS_SETTINGS,
    *("long_jobs", "roots", "max_results_mb"),
    *INDEX_SETTINGS,
    *("kept_versions", "max_text_chars", "log_level", "log_format"),
)
def jobs(settings: Settings) -> None:
    """Run long jobs until told to stop (SIGTERM or Ctrl-C).

    Unfinished jobs go on when the command is started again. The command runs no model: workers embed for it.
    """
    from shoal_workers.process.processors import limit_native_threads

    limit_native_threads(settings.threads, settings.workers)
    from shoal_workers.index.store.copy_process import check_store
    from shoal_workers.long_jobs.runner import Runner

    logs.configure(settings)
    check_store(settings)
    Runner(settings).run()


@click.group()
def model() -> None:
    """Prepare a model for serving, or look at one."""


@model.command()
@click.option("--force", is_flag=True, help="Prepare the model again even if it is prepared.")
@click.option("--quiet", is_flag=True, help="Do not print the folder of the prepared model.")
@settings_options("model", "reranker", "home")
def prepare(settings: Settings, force: bool, quiet: bool) -> None:
    """Prepare the model, and the reranker if one is named, unless they are prepared."""
    from shoal_workers.model.model import is_prepared, prepared_folder

    for name in filter(None, (settings.model, settings.reranker)):
        folder = prepared_folder(settings.home_folder, name)
        if force or not is_prepared(folder):
            from shoal_workers.model.prepare import prepare_if_needed  # loads OpenVINO

            prepare_if_needed(settings.home_folder, name, force=force)
        if not quiet:
            click.echo(folder)


@model.command("info")
@settings_options("model", "home")
def model_info(settings: Settings) -> None:
    """Show the description of a prepared model."""
    from shoal_workers.model.model import Model, prepared_folder

    folder = prepared_folder(settings.home_folder, settings.model)
    click.echo(json.dumps(asdict(Model.open(folder)), indent=2))
