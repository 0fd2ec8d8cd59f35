"""A worker that certain texts harm. Tests start this process in place of `shoal worker`."""

import logging
import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Sequence

from shoal.settings import Settings
from shoal_workers.encoding.encoder import Encoder, EncodingPass, TokenizedText
from shoal_workers.service.service import open_encoder, serve

#: Memory that the worker may take after its start, in bytes.
MAX_MORE_BYTES = 256 * 2**20


def abort() -> None:
    """Crash, like native code."""
    os.abort()


def kill() -> None:
    """Be killed without a message, as if the system's memory had run out."""
    os.kill(os.getpid(), signal.SIGKILL)


def hang() -> None:
    """Never return, and let an hour pass on the watchdog's clock."""
    now_s = time.monotonic()
    time.monotonic = lambda: now_s + 3_600
    threading.Event().wait()


def fail() -> None:
    """Raise an exception."""
    raise RuntimeError("the engine chokes")


def panic() -> None:
    """Raise an exception that handlers should not catch, like a panic of native code in Rust."""
    raise BaseException("the engine panics")


def gorge() -> None:
    """Take memory until none is left."""
    taken = []
    while True:
        taken.append(bytearray(2**24))


#: The function that each text calls. The texts differ in length, and so in tokens.
HARM: dict[str, Callable[[], None]] = {
    "storm " * (20 + n): harm for n, harm in enumerate((abort, kill, hang, fail, panic, gorge))
}


class PoisonedEncoder(Encoder):
    """The real encoder, except that the texts of `HARM` call their functions."""

    def __init__(self, encoder: Encoder):
        super().__init__(encoder.model, encoder.tokenizer, encoder.engine)
        tokens = self.tokenize(list(HARM))
        self._harm = {found.ids: harm for found, harm in zip(tokens, HARM.values(), strict=True)}

    def start(self, texts: Sequence[TokenizedText]) -> list[EncodingPass]:
        """Call the functions of the pass's texts, then start the pass."""
        self._do_harm(texts)
        return super().start(texts)

    def start_aside(self, texts: Sequence[TokenizedText]) -> list[EncodingPass]:
        """Call the functions of the pass's texts, then start the pass aside."""
        self._do_harm(texts)
        return super().start_aside(texts)

    def _do_harm(self, texts: Sequence[TokenizedText]) -> None:
        for text in texts:
            if harm := self._harm.get(text.tokens.ids):
                harm()


def main() -> None:
    """Serve until a signal stops the worker."""
    settings = Settings.from_environment()
    logging.basicConfig(level=settings.log_level.upper())
    encoder = PoisonedEncoder(open_encoder(settings, settings.threads))
    with open("/proc/self/statm") as file:
        now_bytes = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now_bytes + MAX_MORE_BYTES, resource.RLIM_INFINITY))
    serve(settings, encoder)


if __name__ == "__main__":
    main()
