"""The original model in Sentence Transformers; run as a program, this computes the golden vectors."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from sentence_transformers import SentenceTransformer

from shoal_workers.model import parity
from shoal_workers.model.download import PACKAGED, find_source
from shoal_workers.model.model import Model


def load(source: str, device: str = "cpu") -> SentenceTransformer:
    """Load the model in a local folder from its safetensors weights; code in the folder is never run."""
    only_weights = {"use_safetensors": True}
    return SentenceTransformer(
        source, device=device, trust_remote_code=False, local_files_only=True, model_kwargs=only_weights
    ).eval()


def encode(model: SentenceTransformer, texts: Sequence[str]) -> NDArray[np.float32]:
    """Return the normalised vectors of the texts, without a prompt: float32 `[texts, dimension]`."""
    return np.asarray(model.encode(list(texts), prompt="", normalize_embeddings=True, show_progress_bar=False))


if __name__ == "__main__":
    default = Model.read(PACKAGED, find_source(PACKAGED))
    vectors = encode(load(default.source), parity.TEXTS)
    save_file({"vectors": vectors}, parity.GOLDEN, parity.identity(default))
