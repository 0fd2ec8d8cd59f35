"""Embedding the documents of a build in a pool: the process that builds holds no model."""

import time
from collections.abc import Generator, Iterable
from contextlib import closing, suppress
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from shoal.bulk.job_stream import JobStream, groups
from shoal.bulk.served_model import check_one_model, check_same_vectors
from shoal.client.redis.client import Client
from shoal.contract.options import Options
from shoal.errors import IndexMismatch, NotReady, Unavailable
from shoal.records.document import Document
from shoal_workers.index.build.document_encoder import ModelInfo, Waiting, document_prompt, no_wait
from shoal_workers.index.build.vectors import SYNC_EVERY

#: Jobs from one look at what the pool serves to the next.
JOBS_A_CHECK = 64

#: Pause before the pool is looked at again for a worker, in seconds.
RETRY_S = 0.5


class PoolEncoder:
    """The model of a pool as the encoder of a build."""

    def __init__(self, client: Client, model: ModelInfo):
        self.model = model
        self._client = client

    @classmethod
    def find(cls, client: Client, waiting: Waiting | None = None) -> Self:
        """Return the encoder of the client's pool; with `waiting`, once a worker is ready.

        Raises NotReady if no worker is ready or if workers serve different models, and Unavailable without Redis.
        """
        while (model := served_model_info(client)) is None:
            if waiting is None:
                raise NotReady("no worker of the pool is ready: start one, or build in this process (--local)")
            waiting("waiting for a worker")
            time.sleep(RETRY_S)
        return cls(client, model)

    def embed(self, texts: Iterable[str], waiting: Waiting = no_wait) -> Generator[NDArray[np.float32]]:
        """Yield the vectors of the texts, those of a job at a time, through the bulk lane.

        Workers, Redis and room in the lane are waited for. Raises IndexMismatch or ModelMismatch if the pool comes to
        serve another model meanwhile, and the error of a text that cannot be embedded.
        """
        options = Options(prompt_name=self.model.prompt or None)
        stream = JobStream(self._client, options, self.model.name, self.model.dimension, waiting)
        rows = (Document("", text, {}) for text in texts)
        with closing(stream.embed(groups(rows, SYNC_EVERY, options))) as jobs:
            for number, job in enumerate(jobs, 1):
                if job.errors:
                    raise next(iter(job.errors.values()))
                if number % JOBS_A_CHECK == 0:
                    self._check_model()
                if job.vectors is not None:
                    yield job.vectors
        self._check_model()

    def _check_model(self) -> None:
        with suppress(Unavailable):  # it is waited for when the next job is
            if served_model_info(self._client) not in (None, self.model):
                raise IndexMismatch(
                    f"the pool served {self.model.name}, and meanwhile another model, or this one with other settings: "
                    "build again"
                )


def served_model_info(client: Client) -> ModelInfo | None:
    """Return the model that all ready workers of the client's pool serve, or None if no worker is ready.

    Raises NotReady if their vectors differ, as they serve different models or the same one with other settings, and
    Unavailable without Redis.
    """
    workers = client.pool.ready().values()
    check_same_vectors(workers)
    return next(map(_model, workers), None)


def served_digest(client: Client) -> str | None:
    """Return the digest of the model that the pool serves, or None if no worker is ready.

    Raises NotReady if workers serve different models, and Unavailable without Redis.
    """
    workers = client.pool.ready().values()
    check_one_model(workers)
    return next((_model(about).digest for about in workers), None)


def _model(about: dict[str, Any]) -> ModelInfo:
    dimension = about.get("dimension")
    return ModelInfo(
        name=str(about.get("model")),
        digest=str(about.get("digest")),
        pooling=str(about.get("pooling")),
        dimension=dimension if isinstance(dimension, int) else 0,
        prompt=document_prompt(about.get("prompts", [])),
        fingerprint=str(about.get("fingerprint")),
    )
