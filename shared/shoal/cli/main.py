"""The `shoal` command. Commands that need an extra live in its package and are found by entry point."""

import errno
import functools
import json
import sys
from collections.abc import Callable
from dataclasses import fields
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, get_type_hints

import click

from shoal import __version__
from shoal.errors import DiskFull, FileError, MissingExtra, ShoalError
from shoal.settings import Settings, variable

#: Which extra brings the packages that a command's module needs.
_EXTRA_OF = {"shoal_api": "api", "shoal_workers": "workers"}


class _Group(click.Group):
    """A group that also offers the commands of the installed extras, and turns our errors into one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *_plugins()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, cmd_name) or _load(cmd_name)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (ShoalError, ModuleNotFoundError, OSError) as error:
            named = _named(error)
            click.echo(f"shoal: {named.message} [{named.code}]", err=True)
            ctx.exit(1)


def _plugins() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group="shoal.commands")}


def _load(name: str) -> click.Command | None:
    entry = _plugins().get(name)
    return entry.load() if entry else None


def _named(error: Exception) -> ShoalError:
    """The error as one of ours; a closed pipe is left to click, which ends quietly."""
    if isinstance(error, ShoalError):
        return error
    if isinstance(error, ModuleNotFoundError):
        return MissingExtra(f"this needs {error.name!r}, which the light install leaves out: pip install 'shoal[all]'")
    if not isinstance(error, OSError) or error.errno == errno.EPIPE:
        raise error
    if error.errno in DiskFull.ERRNOS:
        return DiskFull(f"no room to write {error.filename or 'the output'} ({error.strerror}): make some, try again")
    return FileError(f"{error.filename or 'a file'} cannot be used ({error.strerror}): check its name and permissions")


def settings_options(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator that adds a flag for each named setting and calls the command with `settings=Settings`.

    Flags win over `SHOAL_<FIELD>`, which wins over the default.
    """
    table = {item.name: item for item in fields(Settings)}
    kinds = get_type_hints(Settings)

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            given = {name: value for name in names if (value := kwargs.pop(name)) is not None}
            return command(*args, settings=Settings.from_environment(**given), **kwargs)

        for name in reversed(names):
            item = table[name]
            kind = click.Choice(item.metadata["choices"]) if item.metadata["choices"] else kinds[name]
            text = f"{item.metadata['help']} [{variable(name)}; default: {item.default!s}]"
            wrapper = click.option(f"--{name.replace('_', '-')}", name, type=kind, default=None, help=text)(wrapper)
        return wrapper

    return decorate


#: The settings that every command talking to Redis takes.
REDIS_SETTINGS = ("redis_url", "key_prefix", "pool")


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="shoal")
def main() -> None:
    """Shoal embeds text and searches it by meaning, on a queue that loses nothing.

    Every setting can also be given as SHOAL_<NAME> in the environment.
    """


@main.command()
@click.option("--workers", type=int, default=None, help="Worker processes to start [SHOAL_WORKERS; default: 1].")
@click.option("--index", "indexes", multiple=True, help="Index folder, or name=folder; repeatable [SHOAL_INDEXES].")
@click.option("--detach", is_flag=True, help="Return once it is ready and leave it running.")
@click.option("--stop", is_flag=True, help="Stop what runs in the same home folder.")
@click.option("--try", "query", help="Search for this once it is ready, and print the hits.")
@settings_options(*(item.name for item in fields(Settings) if item.name not in ("workers", "indexes")))
def serve(
    settings: Settings, workers: int | None, indexes: tuple[str, ...], detach: bool, stop: bool, query: str | None
) -> None:
    """Start Redis (unless one is named), the API and the workers; watch them; stop them on Ctrl-C."""
    from dataclasses import replace

    from shoal.supervisor import supervisor

    if stop:
        return click.echo(supervisor.stop(settings))
    if workers is not None:
        settings = replace(settings, workers=workers)
    if indexes:
        settings = replace(settings, indexes=",".join(indexes))
    supervisor.serve(settings, detach=detach, query=query)


@main.command()
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
    from shoal.cli import vector_file

    if out is not None:
        vector_file.check_path(out)
    lines = list(texts) or (line.rstrip("\r\n") for line in source or sys.stdin)
    with _client(settings) as client:
        vectors = client.embed_stream(lines, normalize=not no_normalize, **options)
        if out is None:
            for vector in vectors:
                click.echo(json.dumps(vector.tolist()))
        else:
            count = vector_file.save(out, vectors)
            click.echo(f"{count:,} vectors in {out}", err=True)


@main.command()
@click.argument("queries", nargs=-1, required=True)
@click.option("-k", default=5, show_default=True, help="Hits for each query.")
@click.option("--index", default="default", show_default=True, help="Index to search.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON list of hits a query.")
@settings_options(*REDIS_SETTINGS)
def search(settings: Settings, queries: tuple[str, ...], k: int, index: str, as_json: bool) -> None:
    """Find the documents nearest in meaning to each of QUERIES."""
    with _client(settings) as client:
        for hits in client.search(queries, k=k, index=index):
            if as_json:
                click.echo(json.dumps(hits, ensure_ascii=False))
                continue
            for hit in hits:
                click.echo(f"{hit['score']:.3f}  {hit['text']}")


@main.command()
@settings_options(*REDIS_SETTINGS)
def status(settings: Settings) -> None:
    """Show the workers alive, their indexes, and how many jobs wait."""
    with _client(settings) as client:
        for lane, load in client.queue.loads().items():
            click.echo(f"lane {lane}: {load.num_jobs:,} unanswered jobs, {load.num_texts:,} texts")
        click.echo(f"dead letters: {client.queue.num_dead():,}")
        workers = client.pool.workers()
        click.echo(f"workers alive: {len(workers)}")
        for worker_id, about in workers.items():
            names = ", ".join(f"{name} ({index['count']:,})" for name, index in about.get("indexes", {}).items())
            click.echo(
                f"  {worker_id} {about.get('state')} {about.get('model')} {about.get('engine')}: {names or 'no index'}"
            )


@main.command()
@click.argument("url", required=False)
@click.option("--file", "source", type=click.File("r", encoding="utf-8"), help="Send the lines of this file.")
@click.option("--runs", type=click.IntRange(1), default=3, show_default=True, help="Runs of each load, in turns.")
@click.option("--seconds", type=click.IntRange(1), default=8, show_default=True, help="Length of a run.")
@click.option("--json", "out", type=click.File("w", encoding="utf-8", lazy=False), help="Save every figure here.")
@settings_options("host", "port")
def bench(settings: Settings, url: str | None, source: Any, runs: int, seconds: int, out: Any) -> None:
    """Measure the running service at URL, or the one on this machine: rate and latency with 1 connection and with 64.

    It embeds and, where there is an index, searches: the headlines that ship with Shoal, one a request. wrk makes the
    load and must be on the PATH.
    """
    from dataclasses import asdict

    from shoal.bench import trial
    from shoal.supervisor import supervisor

    address = (url or supervisor.address(settings)).rstrip("/")
    texts = trial.check_texts([line.rstrip("\r\n") for line in source] if source else trial.sample())
    trials = list(trial.service_trials(address, texts))
    about = trial.about_service(address)
    rows = trial.interleave("bench", trials, runs, seconds, functools.partial(click.echo, err=True))
    click.echo("\n".join(f"{name}: {text}" for name, text in about.items()) + "\n\n" + trial.tables(rows))
    if out:
        json.dump({"about": about, "rows": [asdict(row) for row in rows]}, out, indent=2)


def _client(settings: Settings) -> Any:
    from shoal.client import Client

    return Client.from_settings(settings)
