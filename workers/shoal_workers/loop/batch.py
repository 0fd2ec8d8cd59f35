"""A batch: the texts that are encoded together, until each has its vectors or an error."""

import logging
import time
import traceback
from collections.abc import Callable, Sequence

from shoal.process import logs
from shoal_workers.encoding.encoder import EncodingPass, Pipeline, TokenizedText
from shoal_workers.operations.work import INTERACTIVE, Work
from shoal_workers.process.measurements import Measurements
from shoal_workers.process.watchdog import Activity

log = logging.getLogger(__name__)

#: Age of a pass aside, in seconds, from which the worker does nothing but wait for its end, so that the watchdog
#: notices a pass that hangs.
WAIT_FROM_S = 1.0


class Batch:
    """The texts of one pass, all different, and their jobs. A batch's passes run side by side. Not thread-safe."""

    def __init__(self, kind: str, texts: list[TokenizedText], works: list[Work], pipeline: Pipeline):
        self.kind = kind
        self.texts = texts
        self.works = works
        self.pipeline = pipeline
        #: The number of tokens of all texts together.
        self.num_tokens = sum(text.num_tokens for text in texts)
        #: True if interactive jobs may be computed beside this pass. Nothing is computed beside a suspect.
        self.may_run_aside = kind != INTERACTIVE and pipeline.encoder.runs_aside and not works[0].delivery.deaths
        self._passes: Sequence[EncodingPass] | None = None

    def start(self, activity: Activity, measurements: Measurements) -> None:
        """Start the pass, aside if possible. Mark it in `activity` and count it in `measurements`."""
        self._activity, self._measurements = activity, measurements
        self._started_s = time.perf_counter()
        activity.mark("encoding")
        measurements.add_batch(len(self.texts), self.num_tokens, self.pipeline.bucketing.max_batch_tokens)
        encoder = self.pipeline.encoder
        try:
            self._passes = encoder.start_aside(self.texts) if self.may_run_aside else encoder.start(self.texts)
        except Exception as error:  # an engine may raise any exception
            traceback.clear_frames(error.__traceback__)  # frees the memory of the frames' variables

    def ends_within(self, seconds: float, has_come: Callable[[], bool]) -> bool:
        """Wait at most `seconds`, or until a job comes; return True if the pass has ended, failed or is overdue."""
        until = time.perf_counter() + seconds
        while self._passes is not None and time.perf_counter() - self._started_s <= WAIT_FROM_S:
            left_s = until - time.perf_counter()
            wait_s = max(0.0, min(left_s, 0.004))  # not less, because `has_come` takes 50 µs of processor time
            try:
                if self.pipeline.encoder.ends_within(self._passes, wait_s):
                    return True
            except Exception:  # an engine may raise any exception; `finish` raises it again
                return True
            if left_s <= 0 or has_come():
                return False
        return True

    def finish(self) -> float:
        """Wait until each text has its vectors or an error, and return the seconds since the start.

        If the pass fails, each text is encoded alone.
        """
        self._activity.mark("encoding")
        try:
            if self._passes is None:
                raise RuntimeError("the passes could not be started")
            self.pipeline.encoder.finish(self._passes)
        except Exception as error:  # an engine may raise any exception
            traceback.clear_frames(error.__traceback__)
            for text in self.texts:
                self._encode_alone(text)
        return time.perf_counter() - self._started_s

    def _encode_alone(self, text: TokenizedText) -> None:
        self._activity.mark("encoding")
        self._measurements.add_batch(1, text.num_tokens, self.pipeline.bucketing.max_batch_tokens)
        try:
            self.pipeline.encoder.encode([text])
        except Exception as error:  # an engine may raise any exception
            traceback.clear_frames(error.__traceback__)
            text.error = error
            job_ids = [work.job.id for work in self.works if text in work.tokenized.values()]
            facts = logs.about(" ".join(job_ids))
            log.error("the engine failed on a text of %d tokens: %s", text.num_tokens, logs.places(error), extra=facts)
