"""A stream of jobs in the bulk lane: at most a window of them is unanswered."""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from shoal.bulk.bulk_lane import SEND_AGAIN_S, BulkLane, SentJob
from shoal.bulk.group import Group
from shoal.client.redis.client import Client
from shoal.contract.options import Options
from shoal.errors import (
    Internal,
    InvalidText,
    MalformedJob,
    ModelMismatch,
    Poisoned,
    ShoalError,
    TextTooLong,
    TooLarge,
)
from shoal.operations import Embed

#: Rows and characters on their way at which no more are sent: enough to keep sixteen workers busy.
MAX_WINDOW_ROWS, MAX_WINDOW_CHARS = 4_096, 2**22

#: Texts in sequence that fail by an internal error at which the workers are at fault, and not the texts.
MAX_INTERNAL = 32

#: Errors of a job that one of its texts may be the cause of. Its texts are then sent one by one.
_ERRORS_OF_A_TEXT = (InvalidText, TextTooLong, TooLarge, Internal, Poisoned)


class JobStream:
    """The jobs of one bulk embedding. For one thread.

    `model` and `dimension` are those of the vectors to come. `waiting` and `send_again_s` are those of `BulkLane`.
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
        self._lane = BulkLane(client, waiting, send_again_s)
        self._options = options
        self._model = model
        self._dimension = dimension
        self._num_internal = 0  # one text after the other, up to the last one

    def embed(self, source: Iterator[Group]) -> Generator[Group, None, None]:
        """Yield the groups, each once it is answered, in order.

        Raises ModelMismatch for vectors of another model, and the errors of jobs that no text is the cause of.
        """
        window: deque[tuple[Group, SentJob | None]] = deque()  # a group without texts has no job
        num_rows = num_chars = 0
        try:
            while True:
                while num_rows < MAX_WINDOW_ROWS and num_chars < MAX_WINDOW_CHARS and (group := next(source, None)):
                    window.append((group, self._send(group.texts) if group.texts else None))
                    num_rows, num_chars = num_rows + len(group.rows), num_chars + group.num_chars
                if not window:
                    return
                group, first = window[0]
                if first:
                    self._finish(group, first, _jobs(window))
                window.popleft()
                num_rows, num_chars = num_rows - len(group.rows), num_chars - group.num_chars
                yield group
        finally:
            self._lane.forget(_jobs(window))

    def _send(self, texts: list[str]) -> SentJob:
        return self._lane.send(Embed(texts, self._options))

    def _finish(self, group: Group, first: SentJob, sent: Sequence[SentJob]) -> None:
        """Put the vectors of the first job into its group, or the errors of its texts."""
        outcomes = [self._outcome(first, sent)]
        if isinstance(outcomes[0], ShoalError) and len(first.job.texts) > 1:
            outcomes = self._one_by_one(first.job.texts)
        group.errors = {number: found for number, found in enumerate(outcomes) if isinstance(found, ShoalError)}
        vectors = [found for found in outcomes if not isinstance(found, ShoalError)]
        group.vectors = np.concatenate(vectors) if vectors else None

    def _one_by_one(self, texts: Sequence[str]) -> list[NDArray[np.float32] | ShoalError]:
        """Return the vector or the error of each text, which is sent as a job of its own."""
        sent = [self._send([text]) for text in texts]
        try:
            return [self._outcome(each, sent[number:]) for number, each in enumerate(sent)]
        finally:
            self._lane.forget(sent)

    def _outcome(self, first: SentJob, sent: Sequence[SentJob]) -> NDArray[np.float32] | ShoalError:
        """Return the vectors of the first job, or the error that one of its texts is the cause of.

        Raises Internal if one text after the other fails by it: then the workers are at fault.
        """
        try:
            vectors = self._vectors(first, sent)
        except _ERRORS_OF_A_TEXT as error:
            if len(first.job.texts) == 1:
                self._num_internal = self._num_internal + 1 if isinstance(error, Internal) else 0
            if self._num_internal >= MAX_INTERNAL:
                raise
            return error
        self._num_internal = 0
        return vectors

    def _vectors(self, first: SentJob, sent: Sequence[SentJob]) -> NDArray[np.float32]:
        """Return the vectors of the first job. Raises ModelMismatch, MalformedJob and the reply's error."""
        reply, shape = self._lane.reply(first, sent), (len(first.job.texts), self._dimension)
        if reply.model != self._model:
            raise ModelMismatch(
                f"a worker answered with vectors of {reply.model}, and those before are of {self._model}: "
                "let all workers of the pool serve one model"
            )
        if reply.vectors is None or reply.vectors.shape != shape:
            found = None if reply.vectors is None else list(reply.vectors.shape)
            raise MalformedJob(f"a worker answered with vectors of the shape {found}, not {list(shape)}: update it")
        return reply.vectors


def _jobs(window: Iterable[tuple[Group, SentJob | None]]) -> list[SentJob]:
    return [job for _, job in window if job]
