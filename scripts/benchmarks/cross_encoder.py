"""A cross-encoder of the size of MiniLM with random weights: scoring a pair takes as long as with trained ones."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from stack import HOME, model

from shoal_workers.model.model import prepared_folder

#: Layers, width, heads, and the width between the two products of a layer, as cross-encoder/ms-marco-MiniLM-L6-v2 has.
NUM_LAYERS, WIDTH, NUM_HEADS, INNER = 6, 384, 12, 1_536

#: Most tokens of a pair, and types of tokens.
MAX_TOKENS, NUM_TYPES = 512, 2

#: Words of BERT's vocabulary, which the served model's tokenizer has.
NUM_WORDS = 30_522

#: Numbers in the weights of the layers, with which a token is multiplied.
NUM_WEIGHTS = NUM_LAYERS * WIDTH * (4 * WIDTH + 2 * INNER)


def made() -> Path:
    """Return the folder of the cross-encoder, which is made if it is missing."""
    folder = HOME / "bench" / "cross-encoder"
    if not (folder / "model.safetensors").exists():
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(prepared_folder(HOME, model().name) / "tokenizer.json", folder)
        (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": MAX_TOKENS}))
        (folder / "config.json").write_text(json.dumps(_config()))
        save_file(dict(_tensors()), folder / "model.safetensors", {"format": "pt"})
    return folder


def _config() -> dict[str, object]:
    return {
        "architectures": ["BertForSequenceClassification"],
        "model_type": "bert",
        "vocab_size": NUM_WORDS,
        "hidden_size": WIDTH,
        "num_hidden_layers": NUM_LAYERS,
        "num_attention_heads": NUM_HEADS,
        "intermediate_size": INNER,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": MAX_TOKENS,
        "type_vocab_size": NUM_TYPES,
        "pad_token_id": 0,
        "id2label": {"0": "LABEL_0"},
    }


def _tensors() -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Yield the name of each tensor and random numbers for it."""
    random = np.random.default_rng(7)

    def linear(name: str, num_outputs: int, num_inputs: int) -> Iterator[tuple[str, NDArray[np.float32]]]:
        yield f"{name}.weight", random.normal(0, 0.05, (num_outputs, num_inputs)).astype(np.float32)
        yield f"{name}.bias", np.zeros(num_outputs, np.float32)

    def norm(name: str) -> Iterator[tuple[str, NDArray[np.float32]]]:
        yield f"{name}.weight", np.ones(WIDTH, np.float32)
        yield f"{name}.bias", np.zeros(WIDTH, np.float32)

    for name, num_rows in (("word", NUM_WORDS), ("position", MAX_TOKENS), ("token_type", NUM_TYPES)):
        table = random.normal(0, 0.05, (num_rows, WIDTH)).astype(np.float32)
        yield f"bert.embeddings.{name}_embeddings.weight", table
    yield from norm("bert.embeddings.LayerNorm")
    for layer in (f"bert.encoder.layer.{n}" for n in range(NUM_LAYERS)):
        for name in ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"):
            yield from linear(f"{layer}.{name}", WIDTH, WIDTH)
        yield from norm(f"{layer}.attention.output.LayerNorm")
        yield from linear(f"{layer}.intermediate.dense", INNER, WIDTH)
        yield from linear(f"{layer}.output.dense", WIDTH, INNER)
        yield from norm(f"{layer}.output.LayerNorm")
    yield from linear("bert.pooler.dense", WIDTH, WIDTH)
    yield from linear("classifier", 1, WIDTH)
