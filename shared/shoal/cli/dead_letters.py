"""The commands `shoal dead`: list, show, retry and drop dead letters."""

import json

import click

from shoal.cli.options import REDIS_SETTINGS, settings_options
from shoal.cli.output import echo, echo_lines, when
from shoal.client.redis.client import Client
from shoal.queue.dead_letters import DeadLetter, DeadLetters
from shoal.settings import Settings

#: If a job cannot be read, `shoal dead show` prints at most this many of its bytes.
MAX_SHOWN_BYTES = 1_000


@click.group()
def dead() -> None:
    """Look at jobs that could not be answered, retry and drop them."""


@dead.command("list")
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="Largest number of letters.")
@settings_options(*REDIS_SETTINGS)
def list_(settings: Settings, limit: int) -> None:
    """List dead letters, the newest first."""
    with Client.from_settings(settings) as client:
        echo(f"{client.run(lambda own: own.queue.num_dead()):,} dead letters")
        for letter in client.run(lambda own: DeadLetters(own.queue).newest(limit)):
            echo(f"{letter.id}  {when(letter.time_s)}  {_describe(letter)}  {letter.reason}")


@dead.command()
@click.argument("letter_id")
@settings_options(*REDIS_SETTINGS)
def show(settings: Settings, letter_id: str) -> None:
    """Show one dead letter, with its texts and the traceback if there is one."""
    with Client.from_settings(settings) as client:
        letter = client.run(lambda own: DeadLetters(own.queue).get(letter_id))
    about = {"reason": letter.reason, "time": when(letter.time_s), "lane": letter.lane, "worker": letter.worker}
    for name, value in (about | {"deliveries": letter.deliveries, "job": _describe(letter)}).items():
        echo(f"{name}: {value}")
    if job := letter.job():
        for n, text in enumerate(job.texts):
            echo(f"text {n}: {json.dumps(text, ensure_ascii=False)}")
    else:
        echo(f"bytes: {letter.data[:MAX_SHOWN_BYTES]!r}{'…' if len(letter.data) > MAX_SHOWN_BYTES else ''}")
    if letter.traceback:
        echo("traceback:")
        echo_lines(letter.traceback)


@dead.command()
@click.argument("letter_ids", nargs=-1, required=True)
@settings_options(*REDIS_SETTINGS)
def retry(settings: Settings, letter_ids: tuple[str, ...]) -> None:
    """Put jobs into the queue again under new ids. Their results can be fetched by these ids."""
    with Client.from_settings(settings) as client:
        for letter_id in letter_ids:
            echo(f"{letter_id} is job {client.run(lambda own: DeadLetters(own.queue).retry(letter_id))}")  # noqa: B023


@dead.command()
@click.argument("letter_ids", nargs=-1, required=True)
@settings_options(*REDIS_SETTINGS)
def drop(settings: Settings, letter_ids: tuple[str, ...]) -> None:
    """Delete dead letters."""
    with Client.from_settings(settings) as client:
        for letter_id in letter_ids:
            client.run(lambda own: DeadLetters(own.queue).drop(letter_id))  # noqa: B023
            echo(f"{letter_id} is gone")


def _describe(letter: DeadLetter) -> str:
    outline = letter.outline()
    if outline.id is None:
        return f"{letter.size_bytes:,} unreadable bytes"
    return f"{outline.op} {outline.id} ({outline.num_texts} texts)"
