"""A worker whose process dies on marked texts, and that notes what it computes: `worker.py FILE PAUSE_S`.

`PAUSE_S` stands for the time that a heavier model would take for a batch, without taking it from the machine.
"""

import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from hashlib import blake2b
from threading import Event

from shoal.settings import Settings
from shoal_workers.encoding.encoder import EncodedText, Encoder, EncodingPass
from shoal_workers.encoding.tokenizer import Tokens
from shoal_workers.service import open_encoder, serve

#: The end that each word of a poison text brings (chaos_run.cases has the same words).
ENDS: dict[str, Callable[[], object]] = {
    "crash": lambda: os.kill(os.getpid(), signal.SIGABRT),
    "exhaust": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "hang": lambda: Event().wait(),
}

#: Bytes of a text's digest in the file.
DIGEST_BYTES = 8


class PoisonedEncoder(Encoder):
    """The encoder, except that poison ends the process."""

    def __init__(self, encoder: Encoder, computed: int, pause_s: float):
        super().__init__(encoder.model, encoder.tokenizer, encoder.engine)
        self._computed = computed
        self._pause_s = pause_s
        self._poison: dict[Sequence[int], str] = {}

    def tokenize(self, texts: Sequence[str], truncation_side: str = "right") -> list[Tokens]:
        """Return the tokens of each text; the file gets the texts' digests before they are computed."""
        found = super().tokenize(texts, truncation_side)
        words = [text.partition(" ")[0] for text in texts]
        self._poison |= {tokens.ids: word for word, tokens in zip(words, found, strict=True) if word in ENDS}
        os.write(self._computed, b"".join(map(digest, texts)))
        return found

    def start(self, texts: Sequence[EncodedText]) -> EncodingPass:
        """Start the pass, if there is no poison among the texts."""
        time.sleep(self._pause_s)
        for text in texts:
            if word := self._poison.get(text.tokens.ids):
                ENDS[word]()
        return super().start(texts)


def digest(text: str) -> bytes:
    """Return the bytes that stand for a text in the file."""
    return blake2b(text.encode(), digest_size=DIGEST_BYTES).digest()


def main(computed: str, pause_s: str) -> None:
    """Serve until told to stop."""
    settings = Settings.from_environment()
    logging.basicConfig(level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    file = os.open(computed, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    serve(settings, PoisonedEncoder(open_encoder(settings, settings.threads), file, float(pause_s)))


if __name__ == "__main__":
    main(*sys.argv[1:])
