"""The encoder of a build: it makes the vectors of documents, in this process or in a pool."""

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from shoal.bulk.job_stream import JobStream, groups
from shoal.bulk.served_model import ModelInfo, check_one_model, document_prompt, served_model
from shoal.client.redis.client import Client
from shoal.contract.options import DOCUMENT_PROMPTS, Options
from shoal.contract.vectors import SparseVector, cut_and_normalise
from shoal.errors import NotReady
from shoal.records.document import Document
from shoal_workers.index.build.scratch import SYNC_EVERY
from shoal_workers.model.model import Model

if TYPE_CHECKING:
    from shoal_workers.encoding.encoder import Encoder

#: Number of texts that this process embeds at a time: enough to sort them by length, and few enough to show progress.
GROUP = 512

#: A function that is called with the reason why the encoder waits.
Waiting = Callable[[str], None]


def info_of(model: Model, fingerprint: str) -> ModelInfo:
    """Return the properties of a prepared model; its encoder has this `fingerprint`."""
    dimension = model.dimension if model.pooling else 0
    return ModelInfo(model.name, model.digest, model.pooling, dimension, document_prompt(model.prompts), fingerprint)


class Encoded(NamedTuple):
    """The outputs of some texts: normalised vectors, `[texts, dimension]`, and sparse vectors.

    Without the output `vector` the dimension is 0, and without the output `sparse` there are no sparse vectors.
    """

    vectors: NDArray[np.float32]
    sparse: list[SparseVector]


class DocumentEncoder(Protocol):
    """A model that encodes documents."""

    @property
    def model(self) -> ModelInfo:
        """The properties of the model."""
        ...

    def encode(self, texts: Iterable[str], outputs: Sequence[str], waiting: Waiting) -> Generator[Encoded]:
        """Yield the outputs `vector`, `sparse` or both of the texts in their order, some texts at a time.

        While the encoder waits, `waiting` is called repeatedly with the reason. Raises Unsupported.
        """
        ...


class LocalEncoder:
    """An encoder that runs the model in the process of the build."""

    def __init__(self, encoder: "Encoder"):
        self.model = info_of(encoder.model, encoder.fingerprint)
        self._encoder = encoder

    def encode(self, texts: Iterable[str], outputs: Sequence[str], waiting: Waiting) -> Generator[Encoded]:
        """Yield the outputs of the texts, `GROUP` texts at a time. Raises Unsupported."""
        options = Options(output=tuple(outputs))
        self._encoder.check(options, options.outputs)
        prompt = self._encoder.prompt(options, DOCUMENT_PROMPTS)
        source = iter(texts)
        while group := list(islice(source, GROUP)):
            encoded = self._encoder.encoded(group, options, prompt)
            vectors = np.empty((len(group), 0), np.float32)
            if "vector" in outputs:
                vectors = cut_and_normalise([text.vectors for text in encoded if text.vectors is not None], Options())
            yield Encoded(vectors, [text.made["sparse"] for text in encoded if "sparse" in outputs])


class PoolEncoder:
    """An encoder that uses the model of a pool, so that the process of the build loads none."""

    def __init__(self, client: Client, model: ModelInfo):
        self.model = model
        self._client = client

    @classmethod
    def find(cls, client: Client) -> Self:
        """Return the encoder of the client's pool.

        Raises NotReady if no worker is ready or workers make different vectors, and Unavailable without Redis.
        """
        if model := served_model(client.pool.ready().values()):
            return cls(client, model)
        raise NotReady("no worker of the pool is ready: start one, or build in this process (--local)")

    def encode(self, texts: Iterable[str], outputs: Sequence[str], waiting: Waiting) -> Generator[Encoded]:
        """Yield the outputs of the texts, job by job, through the bulk lane.

        It waits for workers, for Redis and for room in the lane. Raises ModelMismatch if the pool switches to another
        model or to other settings, and the error of a text that cannot be encoded.
        """
        output = outputs[0] if len(outputs) == 1 else tuple(outputs)
        options = Options(prompt_name=self.model.prompt or None, output=output)
        stream = JobStream(self._client, options, self.model.fingerprint, self.model.dimension, waiting)
        rows = (Document("", text, {}) for text in texts)
        with closing(stream.embed(groups(rows, SYNC_EVERY, options))) as jobs:
            for job in jobs:
                if job.errors:
                    raise next(iter(job.errors.values()))
                vectors = np.empty((len(job.rows), 0), np.float32) if job.vectors is None else job.vectors
                yield Encoded(vectors, job.sparse)


def served_digest(client: Client) -> str | None:
    """Return the digest of the model that the pool serves, or None if no worker is ready.

    Raises NotReady if workers serve different models, and Unavailable without Redis.
    """
    workers = client.pool.ready().values()
    check_one_model(workers)
    return next((str(about.get("digest")) for about in workers), None)
