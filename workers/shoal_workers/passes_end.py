"""The end of passes that run aside, waited for together with the notice that a job has come."""

import threading
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Pipe, wait
from typing import Any

from shoal.queue.job_notice import JobNotice
from shoal_workers.encoding.encoder import Encoder, EncodingPass

#: Interval at which the thread that waits for the passes looks whether it is still needed, in seconds.
LOOK_EVERY_S = 0.25


class PassesEnd:
    """The end of passes, as a thread of its own waits for it and tells the thread that polls."""

    def __init__(self, encoder: Encoder, passes: Sequence[EncodingPass]):
        self._encoder = encoder
        self._passes = passes
        self._has_come, self._tells = Pipe(duplex=False)
        self._is_needed = True
        self._thread = threading.Thread(target=self._wait, daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # the system gives this process no more threads: the passes are waited for at once
            self._tells.close()

    def comes_within(self, seconds: float, notice: JobNotice | None = None) -> bool:
        """Wait `seconds` at most, or until a notice; return True if the passes have ended or the engine has failed."""
        awaited: list[Any] = [self._has_come, *([notice] if notice and notice.is_asked else [])]
        return self._has_come in wait(awaited, seconds)

    def close(self) -> None:
        """End the thread, which may take `LOOK_EVERY_S` if the passes go on."""
        self._is_needed = False
        if self._thread.ident:
            self._thread.join()
        self._has_come.close()

    def _wait(self) -> None:
        with suppress(Exception):  # any that an engine may raise, and raises again when the passes are finished
            while self._is_needed and not self._encoder.ends_within(self._passes, LOOK_EVERY_S):
                pass
        self._tells.close()
