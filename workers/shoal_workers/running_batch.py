"""A batch that the engine computes: it is started, waited for, and encoded text by text where the engine fails."""

import logging
import time
import traceback
from collections.abc import Sequence

from shoal import logs
from shoal.queue.job_notice import JobNotice
from shoal_workers.encoding.encoder import Encoder, EncodingPass, TokenizedText
from shoal_workers.passes_end import PassesEnd
from shoal_workers.process.measurements import Measurements
from shoal_workers.process.watchdog import Progress
from shoal_workers.scheduler import Batch

log = logging.getLogger(__name__)


class RunningBatch:
    """A batch whose texts the engine encodes from now on. For one thread.

    With `aside`, which takes an encoder that `runs_aside`, other batches can be started and finished meanwhile.
    Each pass is marked in `progress` and counted in `measurements`.
    """

    def __init__(
        self, batch: Batch, encoder: Encoder, progress: Progress, measurements: Measurements, aside: bool = False
    ):
        self.batch = batch
        self._encoder = encoder
        self._progress = progress
        self._measurements = measurements
        self._started_s = time.perf_counter()
        self._passes = self._start(aside)
        self._end = PassesEnd(encoder, self._passes) if aside and self._passes else None

    @property
    def age_s(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self._started_s

    def ends_within(self, seconds: float, notice: JobNotice | None = None) -> bool:
        """Wait `seconds` at most for a batch that runs aside; return True if the engine has ended it or failed on it.

        A notice that is asked ends the wait.
        """
        return self._end is None or self._end.comes_within(seconds, notice)

    def finish(self) -> float:
        """Wait until each text has its vectors or an error; return the seconds since the start.

        If the engine fails, the texts are encoded one by one, so that a bad text harms only its own job.
        """
        self._progress.mark("encoding")
        if self._end:
            self._end.close()  # first: no other thread may wait for passes that are finished
        if not self._has_vectors():
            for text in self.batch.texts:
                self._encode_alone(text)
        return self.age_s

    def _start(self, aside: bool) -> Sequence[EncodingPass] | None:
        """Start the passes of the batch; return None if the engine fails."""
        self._note_pass(self.batch.texts)
        try:
            return self._encoder.start_aside(self.batch.texts) if aside else self._encoder.start(self.batch.texts)
        except Exception as error:  # any that an engine may raise
            traceback.clear_frames(error.__traceback__)  # they hold memory
            return None

    def _has_vectors(self) -> bool:
        """Wait for the passes; return False if the engine fails."""
        if self._passes is None:
            return False
        try:
            self._encoder.finish(self._passes)
        except Exception as error:  # any that an engine may raise
            traceback.clear_frames(error.__traceback__)
            return False
        return True

    def _encode_alone(self, text: TokenizedText) -> None:
        """Encode one text in a pass of its own, and set its error if the engine fails on it."""
        self._note_pass([text])
        try:
            self._encoder.encode([text])
        except Exception as error:  # any that an engine may raise
            traceback.clear_frames(error.__traceback__)
            text.error = error
            job_ids = [work.job.id for work in self.batch.works if text in work.tokenized.values()]
            facts = logs.about(" ".join(job_ids))
            log.error("the engine failed on a text of %d tokens: %s", text.num_tokens, logs.places(error), extra=facts)

    def _note_pass(self, texts: Sequence[TokenizedText]) -> None:
        self._progress.mark("encoding")
        num_tokens = sum(text.num_tokens for text in texts)
        self._measurements.add_batch(len(texts), num_tokens, self.batch.max_tokens)
