"""The command `shoal embed`: embed texts from the command line, a file or standard input."""

import json
import sys
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import numpy as np

from shoal.bulk.embed_file import BulkRequest, embed_file
from shoal.bulk.part_file import SUFFIXES, write_files
from shoal.bulk.vector_folder import BAD_ROWS
from shoal.cli.long_job import submit
from shoal.cli.options import REDIS_SETTINGS, settings_options
from shoal.cli.output import echo
from shoal.client.job_source import place_of
from shoal.client.redis.client import Client
from shoal.contract.excerpt import excerpt
from shoal.errors import Cancelled, InvalidRequest
from shoal.process.progress import StepBar, TaskBar
from shoal.records.source import RECORD_ENDINGS
from shoal.settings import Settings

#: Endings of the names of files that can contain vectors.
ENDINGS = (".safetensors", ".npy")


@click.command(short_help="Turn texts, or the lines of a file, into vectors.")
@click.argument("texts", nargs=-1)
@click.option("--file", "source", help="Read texts from here, one a line; for a folder of vectors, a file of records.")
@click.option("--out", help="Write a .safetensors or .npy file, or a folder of vectors in parts.")
@click.option("--no-normalize", is_flag=True, help="Do not scale vectors to length 1.")
@click.option("--dimensions", type=int, metavar="N", help="Keep the first N numbers of each vector.")
@click.option("--prompt-name", help="Put the model's prompt of this name before each text.")
@click.option("--text-column", help="Folder: column of the texts. [default: text, else the only possible one]")
@click.option("--id-column", help="Folder: column of the ids. [default: id, else _id, else numbers from 0]")
@click.option("--format", "format_name", type=click.Choice(tuple(SUFFIXES)), help="Folder: format of its parts.")
@click.option("--part-rows", type=int, help="Folder: rows of the source in each part. [default: 8192]")
@click.option("--detach", is_flag=True, help="Folder: let a runner do it, print the id of the job, and return.")
@settings_options(*REDIS_SETTINGS, "max_text_chars")
def embed(
    settings: Settings,
    texts: tuple[str, ...],
    source: str | None,
    out: str | None,
    no_normalize: bool,
    text_column: str | None,
    id_column: str | None,
    format_name: str | None,
    part_rows: int | None,
    detach: bool,
    **options: Any,
) -> None:
    """Embed TEXTS, the lines of a file, or the lines of standard input. Print or save the vectors in the same order.

    With --file and a folder as --out, a file of records of any size (.csv, .tsv, .jsonl, .txt or .parquet, compressed
    or not) is embedded in parts. After an interruption, the same command continues.
    """
    options = {name: value for name, value in options.items() if value is not None}
    options |= {"normalize": False} if no_normalize else {}
    of_folder = {"text_column": text_column, "id_column": id_column, "format": format_name, "part_rows": part_rows}
    given: dict[str, Any] = {name: value for name, value in of_folder.items() if value is not None}
    if out is not None and (out.endswith("/") or Path(out).is_dir() or not Path(out).suffix):
        if texts or source in (None, "-"):
            raise InvalidRequest(f"{excerpt(out)} is a folder, for the vectors of records: name their file with --file")
        if detach:
            request = BulkRequest(place_of(str(source)), place_of(out), options=options, **given)
            submit(settings, "embed_file", asdict(request))
        else:
            _embed_into_folder(settings, BulkRequest(str(source), out, options=options, **given))
        return
    if given := given | ({"detach": True} if detach else {}):
        raise InvalidRequest(f"--{next(iter(given)).replace('_', '-')} goes with a folder: name one with --out")
    _embed_lines(settings, texts, source, None if out is None else _check_path(Path(out)), options)


def _embed_lines(
    settings: Settings, texts: tuple[str, ...], source: str | None, out: Path | None, options: dict[str, Any]
) -> None:
    if texts and source:
        raise InvalidRequest("there are texts and --file: give one of them")
    if source and source.lower().endswith(RECORD_ENDINGS):
        raise InvalidRequest(f"{source} has records: name a folder with --out, or put its lines into standard input")
    with (
        nullcontext(sys.stdin) if source is None else click.open_file(source, encoding="utf-8") as file,
        Client.from_settings(settings) as client,
    ):
        lines = list(texts) or (line.rstrip("\r\n") for line in file)
        vectors = client.embed_stream(lines, **options)
        if out is None:
            for vector in vectors:
                click.echo(json.dumps(vector.tolist()))
        else:
            with StepBar("embedding", len(texts), unit=" texts") as progress:
                rows = list(progress.over(vectors))
            write_files(out.suffix[1:], [out], (), np.stack(rows) if rows else np.empty((0, 0), np.float32))
            click.echo(f"{progress.done:,} vectors in {out}", err=True)


def _embed_into_folder(settings: Settings, request: BulkRequest) -> None:
    with Client.from_settings(settings) as client:
        try:
            result = embed_file(request, client, TaskBar(), settings)
        except KeyboardInterrupt:
            raise Cancelled(f"stopped: the same command goes on from the last part in {request.out}") from None
    click.echo(f"{result.num_vectors:,} vectors in {result.num_parts:,} parts in {result.out}", err=True)
    if result.num_bad:
        where = Path(result.out, BAD_ROWS)
        click.echo(f"{result.num_bad:,} rows were left out, with their reasons in {where}. The first:", err=True)
        for reason in result.first_bad:
            echo(f"  {reason}", err=True)


def _check_path(path: Path) -> Path:
    """Return the path of a file of vectors. Raises InvalidRequest for an unknown format or a missing folder."""
    if path.suffix not in ENDINGS:
        raise InvalidRequest(
            f"{path} ends with {excerpt(path.suffix)}: name a file that ends with {' or '.join(ENDINGS)}, or a "
            f"folder with a slash at its end, as {path}/"
        )
    if not path.parent.is_dir():
        raise InvalidRequest(f"there is no folder {path.parent} to write {path.name} in: make it first")
    return path
