"""A stream of jobs in the bulk lane: it waits for workers, room and Redis, and sends lost jobs again."""

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from shoal.client.redis.async_client import AsyncClient
from shoal.client.redis.client import Client
from shoal.contract.jobs import Job, new_id
from shoal.contract.options import Options
from shoal.contract.replies import Reply
from shoal.contract.vectors import SparseVector
from shoal.errors import (
    Internal,
    InvalidText,
    MalformedJob,
    Overloaded,
    Poisoned,
    ShoalError,
    TextTooLong,
    TooLarge,
    Unavailable,
)
from shoal.operations import Embed
from shoal.operations.embed import TEXTS_PER_TOKENS_JOB
from shoal.queue.dispatcher import Pending
from shoal.records.document import BadRow, Document

#: Largest number of rows in a group, and the number of characters at which a group ends.
MAX_GROUP_ROWS, MAX_GROUP_CHARS = 64, 2**18

#: Largest number of unanswered rows in a stream, and of characters in these rows: enough to keep sixteen workers busy.
MAX_WINDOW_ROWS, MAX_WINDOW_CHARS = 4_096, 2**22

#: If this many consecutive texts fail with an internal error, the workers are at fault, and not the texts.
MAX_INTERNAL = 32

#: Seconds between two calls of `waiting`, and between two attempts while the lane is full or Redis is away.
WAITING_EVERY_S = 0.5

#: Seconds without an answer from living workers after which the stream checks whether Redis has lost jobs.
SEND_AGAIN_S = 60.0

#: Errors that one text of a job may cause. The texts of such a job are then sent one by one.
_ERRORS_OF_A_TEXT = (InvalidText, TextTooLong, TooLarge, Internal, Poisoned)

#: A row of the source.
Row = Document | BadRow


@dataclass(slots=True)
class Group:
    """Consecutive rows of the source, whose texts make one job.

    Once the job is answered, `errors` maps the number of each document that could not be embedded to its error.
    Documents are numbered within the group. `vectors` has the vectors of the other documents, float32 `[documents,
    dimension]`, or stays None if there are no others. With the output `sparse`, `sparse` has their sparse vectors.
    """

    rows: list[Row]
    vectors: NDArray[np.float32] | None = None
    sparse: list[SparseVector] = field(default_factory=list)
    errors: dict[int, ShoalError] = field(default_factory=dict)


def groups(rows: Iterator[Row], part_rows: int, options: Options) -> Iterator[Group]:
    """Cut rows into groups. The first row begins a part, and each group lies within one part of `part_rows` rows."""
    max_rows = MAX_GROUP_ROWS if options.is_cacheable or "sparse" in options.outputs else TEXTS_PER_TOKENS_JOB
    group: list[Row] = []
    num_chars, left = 0, part_rows
    for row in rows:
        group.append(row)
        num_chars += _num_chars(row)
        left -= 1
        if len(group) == max_rows or num_chars >= MAX_GROUP_CHARS or not left:
            yield Group(group)
            group, num_chars, left = [], 0, left or part_rows
    if group:
        yield Group(group)


@dataclass(slots=True)
class _SentJob:
    job: Job
    pending: Pending


class JobStream:
    """The jobs of one bulk embedding. At most one window of jobs is unanswered at a time. Not thread-safe.

    Workers with this `fingerprint` make the vectors, which have this `dimension`. `waiting` is called with the reason
    at least every `WAITING_EVERY_S` during a wait. It may raise an error, which ends the stream.
    """

    def __init__(
        self,
        client: Client,
        options: Options,
        fingerprint: str,
        dimension: int,
        waiting: Callable[[str], None],
        send_again_s: float = SEND_AGAIN_S,
    ):
        self._client = client
        self._options = options
        self._fingerprint = fingerprint
        self._dimension = dimension
        self._waiting = waiting
        self._send_again_s = send_again_s
        self._num_internal = 0  # consecutive texts that failed with Internal, the last text included

    def embed(self, source: Iterator[Group]) -> Generator[Group, None, None]:
        """Yield each group once its job is answered, in order.

        Raises ModelMismatch once no worker has the fingerprint, and errors of a job that no text can cause.
        """
        window: deque[tuple[Group, int, _SentJob | None]] = deque()  # a group without texts has no job
        num_rows = num_chars = 0
        try:
            while True:
                while num_rows < MAX_WINDOW_ROWS and num_chars < MAX_WINDOW_CHARS and (group := next(source, None)):
                    texts = [row.text for row in group.rows if isinstance(row, Document)]
                    window.append((group, sum(map(_num_chars, group.rows)), self._send(texts) if texts else None))
                    num_rows, num_chars = num_rows + len(group.rows), num_chars + window[-1][1]
                if not window:
                    return
                group, group_chars, first = window[0]
                if first:
                    self._finish(group, first, [job for *_, job in window if job])
                window.popleft()
                num_rows, num_chars = num_rows - len(group.rows), num_chars - group_chars
                yield group
        finally:
            self._forget(job for *_, job in window if job)

    def _finish(self, group: Group, first: _SentJob, sent: Sequence[_SentJob]) -> None:
        """Put the vectors of the first job, or the errors of its texts, into the group."""
        outcomes = [self._outcome(first, sent)]
        if isinstance(outcomes[0], ShoalError) and len(first.job.texts) > 1:
            one_by_one = [self._send([text]) for text in first.job.texts]
            try:
                outcomes = [self._outcome(each, one_by_one[number:]) for number, each in enumerate(one_by_one)]
            finally:
                self._forget(one_by_one)
        group.errors = {number: found for number, found in enumerate(outcomes) if isinstance(found, ShoalError)}
        replies = [found for found in outcomes if not isinstance(found, ShoalError)]
        vectors = [reply.vectors for reply in replies if reply.vectors is not None]
        group.vectors = np.concatenate(vectors) if vectors else None
        group.sparse = [vector for reply in replies for vector in reply.sparse or ()]

    def _outcome(self, first: _SentJob, sent: Sequence[_SentJob]) -> Reply | ShoalError:
        """Return the reply to the first job, or its error. Raises Internal if `MAX_INTERNAL` texts fail in a row."""
        try:
            reply = self._reply(first, sent)
        except _ERRORS_OF_A_TEXT as error:
            if len(first.job.texts) == 1:
                self._num_internal = self._num_internal + 1 if isinstance(error, Internal) else 0
            if self._num_internal >= MAX_INTERNAL:
                raise
            return error
        first.job.check_answers(reply)
        if reply.vectors is not None and (found := reply.vectors.shape[1]) != self._dimension:
            raise MalformedJob(
                f"a worker answered with vectors of dimension {found:,}, not {self._dimension:,}: update it"
            )
        self._num_internal = 0
        return reply

    def _reply(self, first: _SentJob, sent: Sequence[_SentJob]) -> Reply:
        """Return the reply to the first job. Waits for workers, room in the lane and Redis have no time limit."""
        silent_since = time.monotonic()
        while True:
            try:
                return Reply.join([self._client.run(lambda _: first.pending.within(WAITING_EVERY_S))])
            except TimeoutError:
                if self._has_worker() and time.monotonic() - silent_since > self._send_again_s:
                    self._send_lost(sent)
                    silent_since = time.monotonic()
            except (Overloaded, Unavailable) as refusal:
                reason = "room in the lane" if isinstance(refusal, Overloaded) else "Redis"
                self._waiting(f"waiting for {reason}")
                time.sleep(WAITING_EVERY_S)
                for each in sent:
                    if each.pending.done() and isinstance(each.pending.result().error, Overloaded | Unavailable):
                        each.pending = self._call(each.job)  # other errors are raised later

    def _has_worker(self) -> bool:
        """Call `waiting` with the reason of the wait. Return True if a worker is alive."""
        try:
            has_worker = bool(self._client.pool.alive())
        except ShoalError:
            self._waiting("waiting for Redis")
            return False
        self._waiting("embedding" if has_worker else "waiting for a worker")
        return has_worker

    def _send_lost(self, sent: Sequence[_SentJob]) -> None:
        """Send lost jobs again under new ids. A job is lost if no lane and no worker has it."""
        placed = [each for each in sent if each.pending.is_put and not each.pending.done()]
        try:
            held = self._client.run(lambda client: client.queue.holds([each.job.id for each in placed]))
        except ShoalError:
            return  # Redis does not answer, and the next wait notices it
        lost = [each for each, is_held in zip(placed, held, strict=True) if not is_held]
        self._forget(lost)
        for each in lost:
            each.job = replace(each.job, id=new_id())
            each.pending = self._call(each.job)

    def _send(self, texts: list[str]) -> _SentJob:
        job = Embed(texts, self._options).pinned(self._fingerprint)
        return _SentJob(job, self._call(job))

    def _call(self, job: Job) -> Pending:
        async def call(client: AsyncClient) -> Pending:
            return client.dispatcher.send("bulk", [job], client.name)[0]

        return self._client.run(call)

    def _forget(self, sent: Iterable[_SentJob]) -> None:
        """Withdraw jobs whose replies are no longer needed."""
        jobs = [each.job for each in sent]

        async def forget(client: AsyncClient) -> None:
            client.dispatcher.forget(jobs)

        with suppress(ShoalError):
            self._client.run(forget)


def _num_chars(row: Row) -> int:
    return len(row.text) + len(row.id) if isinstance(row, Document) else len(row.reason)
