"""The original model in Sentence Transformers: what is exported, and what every engine is compared with."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer


class _Pooled(torch.nn.Module):
    """The model up to its pooling: returns token vectors and pooled vectors, neither normalised."""

    def __init__(self, model: SentenceTransformer):
        super().__init__()
        self.steps = torch.nn.ModuleList(step for step in model if type(step).__name__ != "Normalize")

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features = {"input_ids": input_ids, "attention_mask": attention_mask}
        for step in self.steps:
            features = step(features)
        return features["token_embeddings"], features["sentence_embedding"]


def load(source: str, device: str = "cpu") -> SentenceTransformer:
    """The model in a local folder, from its safetensors weights and without any code of its own."""
    return SentenceTransformer(source, device=device, trust_remote_code=False, local_files_only=True).eval()


def pooled_module(model: SentenceTransformer) -> torch.nn.Module:
    """The module that engines run: token ids and mask in, token vectors and pooled vectors out."""
    return _Pooled(model).eval()


def encode(model: SentenceTransformer, texts: Sequence[str]) -> NDArray[np.float32]:
    """Normalised fp32 vectors of the texts, without a prompt."""
    return np.asarray(model.encode(list(texts), prompt="", normalize_embeddings=True, show_progress_bar=False))
