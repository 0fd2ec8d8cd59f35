"""A stream of texts to be embedded: at most a window of jobs is unanswered."""

import time
from asyncio import sleep
from collections import deque
from collections.abc import Mapping
from typing import Any

from shoal.client.job_limits import check_lane
from shoal.client.questions import options_of, vectors
from shoal.client.redis.session import Session
from shoal.contract.jobs import TEXTS_PER_JOB, Job
from shoal.contract.replies import Reply
from shoal.errors import Overloaded
from shoal.operations import Embed
from shoal.operations.embed import TEXTS_PER_TOKENS_JOB
from shoal.queue.dispatcher import Pending


class EmbedStream:
    """The jobs of a stream that are on their way, of which at most `window` are unanswered.

    `num_texts` is the number of texts of a job. While the lane is full, a job is sent again until it has been refused
    for `timeout_s`.
    """

    def __init__(
        self, session: Session, window: int, lane: str, client: str, timeout_s: float, options: Mapping[str, Any]
    ):
        self._session = session
        self._window = window
        self._lane = check_lane(lane)
        self._client = client
        self._timeout_s = timeout_s
        self._options = options_of(options)
        self.num_texts = TEXTS_PER_JOB if self._options.is_cacheable else TEXTS_PER_TOKENS_JOB
        self._sent = deque[tuple[Job, Pending[Reply]]]()

    @property
    def has_room(self) -> bool:
        """True if another job may be sent."""
        return len(self._sent) < self._window

    @property
    def is_empty(self) -> bool:
        """True if no job is unanswered."""
        return not self._sent

    async def send(self, texts: list[str]) -> None:
        """Send a job of these texts."""
        job = Embed(texts, self._options)
        self._sent.append((job, self._call(job)))

    async def receive(self) -> Any:
        """Return the vectors of the job that was sent first.

        Raises Overloaded once the lane was full for `timeout_s`, and Timeout if a job there has no answer for so long.
        """
        job, pending = self._sent[0]
        until = time.monotonic() + self._timeout_s
        while True:
            try:
                reply = Reply.join([await pending.result(self._timeout_s)])
                break
            except TimeoutError as error:
                raise await self._session.timeout(self._timeout_s) from error
            except Overloaded as error:
                if time.monotonic() + error.retry_after_s > until:
                    raise
                await sleep(error.retry_after_s)
            pending = self._call(job)
        self._sent.popleft()
        return vectors(reply, self._options)

    def close(self) -> None:
        """Withdraw what is not answered."""
        self._session.dispatcher.forget([job for job, _ in self._sent])

    def _call(self, job: Job) -> Pending[Reply]:
        return self._session.dispatcher.call(self._lane, [job], self._client)[0]
