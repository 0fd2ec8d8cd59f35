"""The original model in Sentence Transformers, which is exported and which every engine is compared with."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer


def load(source: str, device: str = "cpu") -> SentenceTransformer:
    """Load the model in a local folder from its safetensors weights; code in the folder is never run."""
    only_weights = {"use_safetensors": True}
    return SentenceTransformer(
        source, device=device, trust_remote_code=False, local_files_only=True, model_kwargs=only_weights
    ).eval()


def encode(model: SentenceTransformer, texts: Sequence[str]) -> NDArray[np.float32]:
    """Return the normalised vectors of the texts, without a prompt: float32 `[texts, dimension]`."""
    return np.asarray(model.encode(list(texts), prompt="", normalize_embeddings=True, show_progress_bar=False))
