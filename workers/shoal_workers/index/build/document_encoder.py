"""The encoder of a build: it makes the vectors of documents, in this process or in a pool."""

from collections.abc import Callable, Collection, Generator, Iterable
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from shoal.contract.options import DOCUMENT_PROMPTS
from shoal_workers.model.model import Model


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The properties of a model that the vectors of an index depend on.

    `prompt` is the name of the prompt before each document, or empty for the model's default. The `fingerprint` stands
    for all else that a vector depends on, such as precision and texts of prompts; it is empty where it is not known.
    """

    name: str
    digest: str
    pooling: str
    dimension: int
    prompt: str
    fingerprint: str

    @classmethod
    def of(cls, model: Model, fingerprint: str) -> Self:
        """Return the properties of a prepared model, and the fingerprint of its encoder."""
        prompt = document_prompt(model.prompts)
        return cls(model.name, model.digest, model.pooling, model.dimension, prompt, fingerprint)


def document_prompt(known: Collection[str]) -> str:
    """Return the name of the prompt for documents among those of a model; empty if it has none."""
    return next((name for name in DOCUMENT_PROMPTS if name in known), "")


#: A function that is called with the reason while the encoder waits.
Waiting = Callable[[str], None]


def no_wait(reason: str) -> None:
    """Ignore the reason."""


class DocumentEncoder(Protocol):
    """A model that embeds documents."""

    @property
    def model(self) -> ModelInfo:
        """The model."""
        ...

    def embed(self, texts: Iterable[str], waiting: Waiting = no_wait) -> Generator[NDArray[np.float32]]:
        """Yield the normalised vectors of the texts in their order, `[some texts, dimension]` at a time.

        Memory stays constant however many texts there are. `waiting` is called with the reason, again and again, while
        the encoder waits for something.
        """
        ...
