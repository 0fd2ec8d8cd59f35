"""A stream of jobs in the bulk lane: at most a window of them is unanswered, and whatever can pass is waited for."""

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from shoal.client.client import Client
from shoal.client.parts import TEXTS_PER_TOKENS_JOB
from shoal.errors import (
    Internal,
    InvalidText,
    MalformedJob,
    ModelMismatch,
    Overloaded,
    Poisoned,
    ShoalError,
    TextTooLong,
    TooLarge,
    Unavailable,
)
from shoal.jobs import Job, Options, new_id
from shoal.records.document import BadRow, Document
from shoal.replies import Reply

if TYPE_CHECKING:
    from shoal.queue.dispatcher import PendingReply

LANE = "bulk"

#: Most texts of a job, and characters at which it takes no more of them.
MAX_JOB_TEXTS, MAX_JOB_CHARS = 64, 2**18

#: Rows and characters on their way at which no more are sent: enough to keep sixteen workers busy.
MAX_WINDOW_ROWS, MAX_WINDOW_CHARS = 4_096, 2**22

#: Longest time between two calls of `waiting` while an answer is waited for, in seconds.
WAITING_EVERY_S = 0.5

#: Seconds without an answer, though a worker is alive, after which it is looked if Redis has lost jobs.
SEND_AGAIN_S = 60.0

#: Pause before a lane that was full, or Redis, is tried again, in seconds.
RETRY_S = 1.0

#: Texts in sequence that fail by an internal error at which the workers are at fault, and not the texts.
MAX_INTERNAL = 32

#: Errors of a job that one of its texts may be the cause of. Its texts are then sent one by one.
_ERRORS_OF_A_TEXT = (InvalidText, TextTooLong, TooLarge, Internal, Poisoned)

#: A row of the source.
Row = Document | BadRow


@dataclass(slots=True)
class Group:
    """Consecutive rows of the source, whose texts make one job.

    Once it is answered, `errors` has the error of each document that could not be embedded, by its number among the
    documents, and `vectors` those of the others, float32 `[documents, dimension]`; it stays None without any.
    """

    rows: list[Row]
    vectors: NDArray[np.float32] | None = None
    errors: dict[int, ShoalError] = field(default_factory=dict)

    @property
    def texts(self) -> list[str]:
        """The texts of the documents."""
        return [row.text for row in self.rows if isinstance(row, Document)]

    @property
    def num_chars(self) -> int:
        """Characters that its rows hold, without their fields."""
        return sum(map(_num_chars, self.rows))


@dataclass(slots=True)
class _Sent:
    """A job on its way, and the group that it is of."""

    group: Group
    job: Job
    pending: "PendingReply"


def groups(rows: Iterator[Row], part_rows: int, options: Options) -> Iterator[Group]:
    """Cut rows into groups, none of which is of two parts; the first row is the first of a part."""
    max_texts = MAX_JOB_TEXTS if options.is_cacheable else TEXTS_PER_TOKENS_JOB
    group: list[Row] = []
    num_chars, left = 0, part_rows
    for row in rows:
        group.append(row)
        num_chars += _num_chars(row)
        left -= 1
        if len(group) == max_texts or num_chars >= MAX_JOB_CHARS or not left:
            yield Group(group)
            group, num_chars, left = [], 0, left or part_rows
    if group:
        yield Group(group)


class JobStream:
    """The jobs of one bulk embedding. For one thread.

    `waiting` is called with the reason at least every `WAITING_EVERY_S` while the stream waits; it may raise, to stop.
    """

    def __init__(
        self,
        client: Client,
        options: Options,
        model: str,
        dimension: int,
        waiting: Callable[[str], None],
        send_again_s: float = SEND_AGAIN_S,
    ):
        self._client = client
        self._options = options
        self._model = model
        self._dimension = dimension
        self._waiting = waiting
        self._send_again_s = send_again_s
        self._num_internal = 0  # one text after the other, up to the last one

    def embed(self, source: Iterator[Group]) -> Generator[Group, None, None]:
        """Yield the groups, each once it is answered, in order.

        Raises ModelMismatch for vectors of another model, and the errors of jobs that no text is the cause of.
        """
        window: deque[Group | _Sent] = deque()
        num_rows = num_chars = 0
        try:
            while True:
                while num_rows < MAX_WINDOW_ROWS and num_chars < MAX_WINDOW_CHARS and (group := next(source, None)):
                    window.append(self._send(group, group.texts) if group.texts else group)
                    num_rows, num_chars = num_rows + len(group.rows), num_chars + group.num_chars
                if not window:
                    return
                first = window[0]
                if isinstance(first, _Sent):
                    self._finish(first, _sent(window))
                window.popleft()
                group = first.group if isinstance(first, _Sent) else first
                num_rows, num_chars = num_rows - len(group.rows), num_chars - group.num_chars
                yield group
        finally:
            self._forget(_sent(window))

    def _send(self, group: Group, texts: list[str]) -> _Sent:
        job = Job("embed", texts, self._options)
        return _Sent(group, job, self._call(job))

    def _call(self, job: Job) -> "PendingReply":
        return self._client.connect().call(LANE, [job], self._client.name)[0]

    def _forget(self, sent: Sequence[_Sent]) -> None:
        with suppress(ShoalError):
            self._client.connect().forget([each.job for each in sent])

    def _finish(self, first: _Sent, sent: Sequence[_Sent]) -> None:
        """Put the vectors of the first job into its group, or the errors of its texts.

        Raises Internal if one text after the other fails by it: then the workers are at fault.
        """
        try:
            first.group.vectors = self._vectors(first, sent)
            self._num_internal = 0
        except _ERRORS_OF_A_TEXT as error:
            if len(first.job.texts) > 1:
                self._finish_one_by_one(first.group, first.job.texts)
                return
            self._num_internal = self._num_internal + 1 if isinstance(error, Internal) else 0
            if self._num_internal >= MAX_INTERNAL:
                raise
            first.group.errors[0] = error

    def _finish_one_by_one(self, group: Group, texts: Sequence[str]) -> None:
        sent = [self._send(Group([]), [text]) for text in texts]
        try:
            for number, each in enumerate(sent):
                self._finish(each, sent[number:])
        finally:
            self._forget(sent)
        group.errors = {number: each.group.errors[0] for number, each in enumerate(sent) if each.group.errors}
        found = [each.group.vectors for each in sent if each.group.vectors is not None]
        group.vectors = np.concatenate(found) if found else None

    def _vectors(self, first: _Sent, sent: Sequence[_Sent]) -> NDArray[np.float32]:
        """Return the vectors of the first job. Raises ModelMismatch, MalformedJob and the reply's error."""
        reply, shape = self._reply(first, sent), (len(first.job.texts), self._dimension)
        if reply.model != self._model:
            raise ModelMismatch(
                f"a worker answered with vectors of {reply.model}, and those before are of {self._model}: "
                "let all workers of the pool serve one model"
            )
        if reply.vectors is None or reply.vectors.shape != shape:
            found = None if reply.vectors is None else list(reply.vectors.shape)
            raise MalformedJob(f"a worker answered with vectors of the shape {found}, not {list(shape)}: update it")
        return reply.vectors

    def _reply(self, first: _Sent, sent: Sequence[_Sent]) -> Reply:
        """Return the reply to the first job, however long that takes. Raises the reply's error."""
        silent_since = time.monotonic()
        while True:
            try:
                return Reply.join([first.pending.result(WAITING_EVERY_S)])
            except TimeoutError:
                if self._waits_for_worker():
                    silent_since = time.monotonic()
                elif time.monotonic() - silent_since > self._send_again_s:
                    self._send_lost(sent)
                    silent_since = time.monotonic()
            except Overloaded:
                self._pause(RETRY_S, "waiting for room in the lane")
                self._send_refused(sent)
            except Unavailable:
                self._pause(RETRY_S, "waiting for Redis")
                self._send_refused(sent)

    def _waits_for_worker(self) -> bool:
        """Say what is waited for; return False if it is a living worker."""
        try:
            is_alone = not self._client.pool.alive()
        except ShoalError:
            self._waiting("waiting for Redis")
            return True
        self._waiting("waiting for a worker" if is_alone else "embedding")
        return is_alone

    def _pause(self, seconds: float, reason: str) -> None:
        until = time.monotonic() + seconds
        while (left_s := until - time.monotonic()) > 0:
            self._waiting(reason)
            time.sleep(min(left_s, WAITING_EVERY_S))

    def _send_refused(self, sent: Sequence[_Sent]) -> None:
        """Send the jobs again that were refused, or whose answers Redis was too long away for."""
        for each in sent:
            try:
                if each.pending.done():
                    each.pending.result(0)
            except (Overloaded, Unavailable):
                each.pending = self._call(each.job)
            except ShoalError:
                continue  # it is met when its turn comes

    def _send_lost(self, sent: Sequence[_Sent]) -> None:
        """Send the jobs again, as new ones, that have no answer and are in their lane no longer.

        Those that wait there or are with a worker are only slow: sent again, they would never be finished.
        """
        placed = [(each, place) for each in sent if not each.pending.done() and (place := each.pending.place)]
        try:
            held = self._client.queue.holds([place for _, place in placed])
        except ShoalError:
            return  # Redis is away, which the next wait notices
        lost = [each for (each, _), is_held in zip(placed, held, strict=True) if not is_held]
        self._forget(lost)
        for each in lost:
            each.job = replace(each.job, id=new_id())
            each.pending = self._call(each.job)


def _num_chars(row: Row) -> int:
    return len(row.text) + len(row.id) if isinstance(row, Document) else len(row.reason)


def _sent(window: Sequence[Group | _Sent]) -> list[_Sent]:
    return [each for each in window if isinstance(each, _Sent)]
