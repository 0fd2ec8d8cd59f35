"""The command `shoal embed`: vectors of texts from the command line, a file or standard input."""

import json
import sys
from pathlib import Path
from typing import Any

import click

from shoal.cli import vector_file
from shoal.cli.options import REDIS_SETTINGS, settings_options
from shoal.client.client import Client
from shoal.settings import Settings


@click.command(short_help="Turn texts, or the lines of a file, into vectors.")
@click.argument("texts", nargs=-1)
@click.option("--file", "source", type=click.File("r", encoding="utf-8"), help="Read texts from here, one a line.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write .safetensors, .npy or .jsonl here.")
@click.option("--no-normalize", is_flag=True, help="Leave the vectors as long as the model makes them.")
@click.option("--dimensions", type=int, help="Keep the first so many numbers of each vector.")
@click.option("--prompt-name", help="Put the model's prompt of this name before each text.")
@settings_options(*REDIS_SETTINGS)
def embed(
    settings: Settings, texts: tuple[str, ...], source: Any, out: Path | None, no_normalize: bool, **options: Any
) -> None:
    """Embed TEXTS, the lines of a file, or those of standard input; print or save the vectors in the same order."""
    if out is not None:
        vector_file.check_path(out)
    lines = list(texts) or (line.rstrip("\r\n") for line in source or sys.stdin)
    with Client.from_settings(settings) as client:
        vectors = client.embed_stream(lines, normalize=not no_normalize, **options)
        if out is None:
            for vector in vectors:
                click.echo(json.dumps(vector.tolist()))
        else:
            count = vector_file.save(out, vectors)
            click.echo(f"{count:,} vectors in {out}", err=True)
