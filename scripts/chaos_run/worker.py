"""Runs a worker that dies at marked texts, and notes the texts that it computes: `worker.py FILE PAUSE_S`.

`PAUSE_S` is a pause in each batch, which simulates a heavier model without using the processor.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from hashlib import blake2b
from threading import Event

from shoal.process import logs
from shoal.settings import Settings
from shoal_workers.encoding.encoder import Encoder, EncodingPass, TokenizedText
from shoal_workers.encoding.tokenizer import Tokens
from shoal_workers.service.service import open_encoder, serve

#: For each first word of a poison text, the function that ends the process. chaos_run.cases has the same words.
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
        self._texts: dict[Sequence[int], tuple[bytes, str]] = {}  # digest and first word of each text, by its tokens

    def tokenize(self, texts: Sequence[str], truncation_side: str = "right", is_query: bool = False) -> list[Tokens]:
        """Return the tokens of each text, and remember their text."""
        found = super().tokenize(texts, truncation_side, is_query)
        for text, tokens in zip(texts, found, strict=True):
            self._texts[tokens.ids] = digest(text), text.partition(" ")[0]
        return found

    def start(self, texts: Sequence[TokenizedText]) -> list[EncodingPass]:
        """Write the digests of the texts to the file, then start the pass, if there is no poison among them."""
        self._note(texts)
        return super().start(texts)

    def start_aside(self, texts: Sequence[TokenizedText]) -> list[EncodingPass]:
        """Write the digests like `start`, then start the pass aside."""
        self._note(texts)
        return super().start_aside(texts)

    def _note(self, texts: Sequence[TokenizedText]) -> None:
        sources = [self._texts[text.tokens.ids] for text in texts]
        os.write(self._computed, b"".join(known for known, _ in sources))
        time.sleep(self._pause_s)
        for _, first_word in sources:
            if end := ENDS.get(first_word):
                end()


def digest(text: str) -> bytes:
    """Return the bytes that identify a text in the file."""
    return blake2b(text.encode(), digest_size=DIGEST_BYTES).digest()


def main(computed: str, pause_s: str) -> None:
    """Serve until a signal stops the worker."""
    settings = Settings.from_environment()
    logs.configure(settings)
    file = os.open(computed, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    serve(settings, PoisonedEncoder(open_encoder(settings, settings.threads), file, float(pause_s)))


if __name__ == "__main__":
    main(*sys.argv[1:])
