"""Embedding the documents of a build in the process that builds."""

from collections.abc import Generator, Iterable
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from shoal.contract.options import DOCUMENT_PROMPTS, Options
from shoal_workers.encoding.bucketing import Bucketing
from shoal_workers.encoding.encoder import Encoder, TokenizedText
from shoal_workers.index.build.document_encoder import ModelInfo, Waiting, no_wait

#: Texts embedded at a time: enough to sort by length, few enough to show progress.
GROUP = 512


class LocalEncoder:
    """An opened model as the encoder of a build."""

    def __init__(self, encoder: Encoder):
        self.model = ModelInfo.of(encoder.model, encoder.fingerprint)
        self._encoder = encoder

    def embed(self, texts: Iterable[str], waiting: Waiting = no_wait) -> Generator[NDArray[np.float32]]:
        """Yield the vectors of the texts, `GROUP` at a time."""
        bucketing: Bucketing[TokenizedText] = Bucketing(2_048, self._encoder.model.shares_rows)
        prompt = self._encoder.prompt(Options(), DOCUMENT_PROMPTS)
        source = iter(texts)
        while group := list(islice(source, GROUP)):
            yield self._encoder.embed(group, Options(), prompt, bucketing)
