"""The command `shoal index watch`: builds an index again whenever its source has changed."""

import math
import time
from collections.abc import Callable
from typing import Any

import click

from shoal.errors import (
    BadDocument,
    DiskFull,
    FileError,
    IndexBusy,
    InvalidRequest,
    NotReady,
    Overloaded,
    ShoalError,
    Timeout,
    Unavailable,
)
from shoal_workers.build_command import build

#: Errors after which the same build may succeed, and seconds until it is tried again.
PASSING, RETRY_S = (Unavailable, NotReady, Overloaded, IndexBusy, DiskFull, FileError, Timeout), 10.0

#: Largest share of the time that is spent on looking at the source.
MAX_LOOK_SHARE = 0.1

#: Exit status after Ctrl-C.
INTERRUPTED = 130

#: The options of a build that a watch has not: they are for a single one.
_NOT_TAKEN = ("source", "full", "drop_changes_before", "no_publish", "detach", "webhook")


class Watcher:
    """Builds once at the beginning, and again when the source has changed and has stayed the same from look to look.

    `look` returns what differs when the source has changed; `now_s` is the time on a clock that never goes back.
    """

    def __init__(
        self,
        look: Callable[[], object],
        build: Callable[[], object],
        tell: Callable[[ShoalError], object],
        now_s: Callable[[], float] = time.monotonic,
    ):
        self._look = look
        self._build = build
        self._tell = tell
        self._now_s = now_s
        self._seen: object = None
        self._done: object = None
        self._is_away = False
        self._retry_at_s: float | None = 0.0

    def step(self) -> None:
        """Look at the source, and build if that is to be done.

        Errors are told: after one that may pass the build is tried again after `RETRY_S`, else when the source has
        changed. Raises one of the first look, and of the first build if it has another reason than a document.
        """
        try:
            found = self._look()
        except InvalidRequest as error:
            if self._done is None:
                raise
            if not self._is_away:
                self._tell(error)
            self._is_away = True
            return
        self._is_away = False
        has_settled, self._seen = found == self._seen or self._done is None, found
        is_due = self._retry_at_s is not None and self._now_s() >= self._retry_at_s
        if not (is_due or (found != self._done and has_settled)):
            return
        is_first, self._done, self._retry_at_s = self._done is None, found, None
        try:
            self._build()
        except ShoalError as error:
            if isinstance(error, PASSING):
                self._retry_at_s = self._now_s() + RETRY_S
            elif is_first and not isinstance(error, BadDocument):
                raise
            self._tell(error)


def _check_finite(context: click.Context, parameter: click.Parameter, seconds: float) -> float:
    if not math.isfinite(seconds):
        raise click.BadParameter(f"{seconds} is no number of seconds")
    return seconds


@click.command()
@click.argument("source")
@click.option(
    "--every",
    "every_s",
    type=click.FloatRange(0.1),
    default=2.0,
    callback=_check_finite,
    help="Seconds from look to look.",
)
@click.pass_context
def watch(context: click.Context, /, source: str, every_s: float, **options: Any) -> None:
    """Build an index from SOURCE now, and again whenever it changes.

    SOURCE is a file or folder of this machine. A change is built when nothing has changed from one look to the next.
    Only texts that are new are embedded. What is wrong with a source is printed, and the index stays as it was; it runs
    until Ctrl-C. The other options are those of `shoal index build`.
    """
    from shoal.records.source import Source
    from shoal.records.source_file import is_url

    if is_url(source):
        raise InvalidRequest(f"{source} is a URL: watch a file or folder of this machine, or set SHOAL_SCHEDULES")
    watcher = Watcher(
        lambda: Source(source).fingerprint(),
        lambda: context.invoke(build, source=source, **options),
        lambda error: click.echo(error.line, err=True),
    )
    try:
        while True:
            began_s = time.perf_counter()
            watcher.step()
            time.sleep(max(every_s, (time.perf_counter() - began_s) / MAX_LOOK_SHARE))
    except KeyboardInterrupt:
        click.echo("the index stays as it is", err=True)
        raise SystemExit(INTERRUPTED) from None


watch.params += [option for option in build.params if option.name not in _NOT_TAKEN]
