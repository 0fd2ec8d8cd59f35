"""The loop in which the supervisor waits until a process is ready."""

import time
from collections.abc import Callable

import click

from shoal.errors import NotReady

#: Longest wait for processes to become ready; preparing the model does not count.
READY_WITHIN_S = 120.0

_POLL_EVERY_S = 0.05


def wait_until(what: str, is_done: Callable[[], bool], within_s: float = READY_WITHIN_S) -> None:
    """Wait until `is_done` returns True, with a line on standard error after a second: "waiting for `what` …".

    Raises NotReady after `within_s`, and all errors of `is_done`.
    """
    started = time.monotonic()
    is_announced = False
    while not is_done():
        waited_s = time.monotonic() - started
        if waited_s > within_s:
            raise NotReady(
                f"waited {within_s:g} s for {what}: see the lines above, or run the command with --log-level debug"
            )
        if waited_s > 1 and not is_announced:
            click.echo(f"waiting for {what} …", err=True)
            is_announced = True
        time.sleep(_POLL_EVERY_S)
