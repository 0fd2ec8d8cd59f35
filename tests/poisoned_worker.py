"""A worker that does harm on certain texts, as a process of its own: tests start it in place of `shoal worker`."""

import logging
import os
import resource
import signal
import threading
from collections.abc import Callable, Sequence

from shoal.jobs import Options
from shoal.settings import Settings
from shoal_workers.encoding.encoder import Encoder, Row
from shoal_workers.process.service import open_encoder, serve

#: More memory than this on top of what a fresh worker has is refused by the system.
MAX_MORE_BYTES = 256 * 2**20


def abort() -> None:
    """Crashes as native code does."""
    os.abort()


def kill() -> None:
    """Is killed without a word, as by the system when memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)


def hang() -> None:
    """Never comes back."""
    threading.Event().wait()


def fail() -> None:
    """Raises an exception."""
    raise RuntimeError("the engine chokes")


def panic() -> None:
    """Raises what is not meant to be caught, as native code written in Rust does."""
    raise BaseException("the engine panics")


def gorge() -> None:
    """Takes memory until there is none."""
    taken = []
    while True:
        taken.append(bytearray(2**24))


#: What each text does; they differ in their length, so that they differ in their tokens.
HARM: dict[str, Callable[[], None]] = {
    "storm " * (20 + n): harm for n, harm in enumerate((abort, kill, hang, fail, panic, gorge))
}


class PoisonedEncoder(Encoder):
    """The real encoder, except for those texts."""

    def __init__(self, encoder: Encoder):
        super().__init__(encoder.model, encoder.tokenizer, encoder.engine)
        tokens = self.tokenize(list(HARM), Options(), "")
        self._harm = {found.ids: harm for found, harm in zip(tokens, HARM.values(), strict=True)}

    def encode(self, rows: Sequence[Row]) -> None:
        """Sets the rows' vectors, if no harm comes first."""
        for row in rows:
            if harm := self._harm.get(row.tokens.ids):
                harm()
        super().encode(rows)


def main() -> None:
    """Serves until told to stop."""
    settings = Settings.from_environment()
    logging.basicConfig(level=settings.log_level.upper())
    encoder = PoisonedEncoder(open_encoder(settings, settings.threads))
    with open("/proc/self/statm") as file:
        now_bytes = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now_bytes + MAX_MORE_BYTES, resource.RLIM_INFINITY))
    serve(settings, encoder)


if __name__ == "__main__":
    main()
