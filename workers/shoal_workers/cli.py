"""The commands of the workers: `shoal worker`, `shoal jobs`, `shoal index` and `shoal model`."""

import json
import logging
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shoal.cli.options import REDIS_SETTINGS, settings_options
from shoal.progress import Progress
from shoal.settings import Settings

if TYPE_CHECKING:
    from shoal_workers.encoding.encoder import Encoder

#: Sample headlines that come with Shoal.
SAMPLE = Path(__file__).parent / "sample" / "headlines.csv"

MODEL_SETTINGS = ("model", "engine", "precision", "threads", "home")
INDEX_SETTINGS = ("indexes", "index_home")
JOB_SETTINGS = (
    "max_batch_tokens",
    "max_batch_texts",
    "max_batch_wait_ms",
    "max_job_texts",
    "max_text_chars",
    "max_reply_mb",
    "max_result_mb",
    "result_ttl_s",
)
CACHE_SETTINGS = ("cache_mb", "cache_ttl_s")
LONG_JOB_SETTINGS = ("long_jobs", "roots", "index_home", "indexes", "kept_versions", "private_hosts", "schedules")
PROCESS_SETTINGS = ("stall_timeout_s", "workers", "log_level")


@click.command()
@settings_options(
    *REDIS_SETTINGS, *MODEL_SETTINGS, "reranker", *INDEX_SETTINGS, *JOB_SETTINGS, *CACHE_SETTINGS, *PROCESS_SETTINGS
)
def worker(settings: Settings) -> None:
    """Run one worker until it is told to stop (SIGTERM or Ctrl-C)."""
    _limit_native_threads(settings)
    from shoal_workers.service import serve

    logging.basicConfig(level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    serve(settings)


@click.command()
@settings_options(*REDIS_SETTINGS, *LONG_JOB_SETTINGS, "max_text_chars", "home", "log_level")
def jobs(settings: Settings) -> None:
    """Do the long jobs of the pool until it is told to stop (SIGTERM or Ctrl-C).

    A job that is not done by then goes on when it is started again. It runs no model: workers embed for it.
    """
    _limit_native_threads(settings)
    from shoal_workers.long_jobs.runner import Runner

    logging.basicConfig(level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    Runner(settings).run()


@click.group()
def index() -> None:
    """Build an index of your documents, or look at one."""


@index.command()
@click.argument("source", type=click.Path(path_type=Path), required=False)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), required=True, help="Folder of the index.")
@click.option("--text-column", help="Column to embed and search. [default: text, else the only candidate]")
@click.option("--id-column", help="Column of the documents' ids. [default: id, else numbers from 0]")
@settings_options(*MODEL_SETTINGS)
def build(settings: Settings, source: Path | None, out: Path, text_column: str | None, id_column: str | None) -> None:
    """Embed the documents in SOURCE (.csv, .tsv, .jsonl, .txt, .parquet or .arrow) into an index folder.

    Without SOURCE, embed the sample headlines that come with Shoal. An index that is in the folder already stays in use
    until the new version is complete.
    """
    _limit_native_threads(settings)
    from shoal.records.source import Source
    from shoal_workers.index.builder import build

    documents = Source(source, text_column, id_column) if source else Source(SAMPLE, "headline")
    with Progress(f"reading {documents.path}"):
        count = documents.check()
    out.mkdir(parents=True, exist_ok=True)
    with Progress("opening the model"):
        encoder = _encoder(settings)
    with Progress("embedding", count, unit=" documents") as progress:
        manifest = build(documents, out, encoder, count, progress.advance)
    click.echo(f"{out}: {manifest.count:,} documents, version {manifest.version}, {manifest.model}")


@index.command("info")
@click.argument("folder", type=click.Path(path_type=Path))
def index_info(folder: Path) -> None:
    """Check the files of an index and show its manifest."""
    from shoal_workers.index.index import Index

    click.echo(json.dumps(asdict(Index.open(folder).manifest), indent=2, ensure_ascii=False))


@click.group()
def model() -> None:
    """Prepare a model for serving, or look at one."""


@model.command()
@click.option("--force", is_flag=True, help="Prepare the model again even if it is prepared.")
@click.option("--quiet", is_flag=True, help="Do not print the folder of the prepared model.")
@settings_options("model", "reranker", "home")
def prepare(settings: Settings, force: bool, quiet: bool) -> None:
    """Prepare the model, and the reranker if one is named, which is done once.

    Some architectures need the `export` extra for it.
    """
    from shoal_workers.model.model import is_prepared, prepared_folder

    for name in filter(None, (settings.model, settings.reranker)):
        folder = prepared_folder(settings.home_folder, name)
        if force or not is_prepared(folder):
            from shoal_workers.model.prepare import prepare_if_needed  # which loads OpenVINO

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


def _encoder(settings: Settings) -> "Encoder":
    from shoal_workers.process import processors
    from shoal_workers.service import open_encoder

    return open_encoder(settings, settings.threads or processors.threads_for(1, processors.available()))


def _limit_native_threads(settings: Settings) -> None:
    """Set the number of threads of native libraries, which otherwise take all processors; before they are loaded."""
    from shoal_workers.process import processors

    threads = str(settings.threads or processors.threads_for(settings.workers, processors.available()))
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS"):
        os.environ.setdefault(name, threads)
