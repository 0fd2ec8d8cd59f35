"""The command `shoal index watch`, which builds an index again after each change of its source."""

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

#: Errors after which the same build may succeed later, and the seconds until the next attempt.
PASSING, RETRY_S = (Unavailable, NotReady, Overloaded, IndexBusy, DiskFull, FileError, Timeout), 10.0

#: Largest share of the time that is spent on looking at the source.
MAX_LOOK_SHARE = 0.1

#: Exit status after Ctrl-C.
INTERRUPTED = 130

#: The options of `shoal index build` that `watch` does not have. They are for a single build.
_BUILD_ONLY = ("source", "full", "drop_changes_before", "no_publish", "detach", "webhook")


class Watcher:
    """Watches a source: builds once at the beginning, and again after each change of the source.

    A build begins when two looks in a row return the same value. `look` returns a value that differs after a change of
    the source, `report` prints an error, and `now_s` returns the seconds of a monotonic clock.
    """

    def __init__(
        self,
        look: Callable[[], object],
        build: Callable[[], object],
        report: Callable[[ShoalError], object],
        now_s: Callable[[], float] = time.monotonic,
    ):
        self._look = look
        self._build = build
        self._report = report
        self._now_s = now_s
        self._seen: object = None
        self._done: object = None
        self._is_away = False
        self._retry_at_s: float | None = 0.0

    def step(self) -> None:
        """Look at the source, and build if a build is due.

        Errors are reported. After one of `PASSING`, the build is tried again in `RETRY_S`; after others, once the
        source has changed. Raises errors of the first look, and of the first build except BadDocument and `PASSING`.
        """
        try:
            found = self._look()
        except InvalidRequest as error:
            if self._done is None:
                raise
            if not self._is_away:
                self._report(error)
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
            self._report(error)


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
    Only new texts are embedded. Errors of the source are printed, and the index stays as it was. The command runs until
    Ctrl-C. The other options are the ones of `shoal index build`.
    """
    from shoal.records.source import Source

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


watch.params += [option for option in build.params if option.name not in _BUILD_ONLY]
