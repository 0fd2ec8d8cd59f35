"""Embedding the documents of a build in a pool: the process that builds holds no model."""

from collections.abc import Generator, Iterable
from itertools import count, islice
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from shoal.client.client import Client
from shoal.errors import IndexMismatch, NotReady
from shoal_workers.index.document_encoder import ModelInfo, document_prompt

#: Texts whose vectors are given on at a time: those of a job.
GROUP = 32

#: Groups from one look at what the pool serves to the next.
GROUPS_A_CHECK = 128


class PoolEncoder:
    """The model of a pool as the encoder of a build."""

    def __init__(self, client: Client, model: ModelInfo):
        self.model = model
        self._client = client

    @classmethod
    def find(cls, client: Client) -> Self:
        """Return the encoder of the client's pool.

        Raises NotReady if no worker is ready or if workers serve different models, and Unavailable without Redis.
        """
        if (model := served_model(client)) is None:
            raise NotReady("no worker of the pool is ready: start one, or build in this process (--local)")
        return cls(client, model)

    def embed(self, texts: Iterable[str]) -> Generator[NDArray[np.float32]]:
        """Yield the vectors of the texts, `GROUP` at a time, through the bulk lane.

        Raises IndexMismatch if the pool comes to serve another model meanwhile.
        """
        vectors = self._client.embed_stream(texts, lane="bulk", prompt_name=self.model.prompt or None)
        for number in count(1):
            group = list(islice(vectors, GROUP))
            if not group or number % GROUPS_A_CHECK == 0:
                self._check_model()
            if not group:
                return
            yield np.stack(group)

    def _check_model(self) -> None:
        now = served_model(self._client)
        if now not in (None, self.model):
            raise IndexMismatch(f"the pool served {self.model.name}, and meanwhile another model: build again")


def served_model(client: Client) -> ModelInfo | None:
    """Return the model that all ready workers of the client's pool serve, or None if no worker is ready.

    Raises NotReady if workers serve different models, and Unavailable without Redis.
    """
    found = {_model(about) for about in client.pool.ready().values()}
    if len(found) > 1:
        names = ", ".join(sorted(f"{model.name} ({model.digest[:12]}…)" for model in found))
        raise NotReady(f"workers of the pool serve different models, {names}: wait until all serve one")
    return next(iter(found), None)


def served_digest(client: Client) -> str | None:
    """Return the digest of the model that the pool serves, or None if no worker is ready."""
    model = served_model(client)
    return model.digest if model else None


def _model(about: dict[str, Any]) -> ModelInfo:
    dimension = about.get("dimension")
    return ModelInfo(
        name=str(about.get("model")),
        digest=str(about.get("digest")),
        pooling=str(about.get("pooling")),
        dimension=dimension if isinstance(dimension, int) else 0,
        prompt=document_prompt(about.get("prompts", [])),
    )
