"""A tiny BERT with random weights and a word-piece tokenizer, and a tiny cross-encoder.

Both are saved in their libraries' forms, Sentence Transformers' and transformers', and prepared for serving.
"""

import json
import string
import sys
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from shoal_workers.model.prepare import prepare

WORDS = ["storm", "europe", "climate", "change", "rain", "the", "a", "of", "in", "and", "market", "falls", "rises"]

WIDTH, INNER, LAYERS, POSITIONS = 32, 64, 2, 64


def save(folder: Path) -> None:
    """Save a model of 32 dimensions and 2 layers that takes 48 tokens and has prompts for queries and documents."""
    layers = [("", "models.Transformer"), ("1_Pooling", "models.Pooling"), ("2_Normalize", "models.Normalize")]
    files: dict[str, Any] = {
        "modules.json": [
            {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.{kind}"}
            for n, (path, kind) in enumerate(layers)
        ],
        "1_Pooling/config.json": {"word_embedding_dimension": WIDTH, "pooling_mode": "mean"},
        "sentence_bert_config.json": {"max_seq_length": 48, "do_lower_case": False},
        "config_sentence_transformers.json": {"prompts": {"query": "storm ", "document": ""}},
    }
    for path, _ in layers:
        (folder / path).mkdir(parents=True, exist_ok=True)
    for name, value in files.items():
        (folder / name).write_text(json.dumps(value))
    _save(folder, "BertModel", weights())


def save_reranker(folder: Path) -> None:
    """Save a cross-encoder with one label that takes 48 tokens.

    Its weights are larger than a new model's, because otherwise all scores would be about the same.
    """
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(11)
    tensors = {f"bert.{name}": tensor for name, tensor in weights(0.3).items()}
    tensors["classifier.weight"] = random.normal(0, 0.3, (1, WIDTH)).astype(np.float32)
    tensors["classifier.bias"] = np.array([0.25], np.float32)
    _save(folder, "BertForSequenceClassification", tensors, {"id2label": {"0": "LABEL_0"}})


def _save(
    folder: Path, architecture: str, tensors: dict[str, np.ndarray], settings: dict[str, Any] | None = None
) -> None:
    """Save a model's files in a folder: config.json, the tokenizer and the weights."""
    tokenizer = word_piece()
    config = {
        "architectures": [architecture],
        "model_type": "bert",
        "vocab_size": tokenizer.get_vocab_size(),
        "hidden_size": WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 2,
        "intermediate_size": INNER,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": POSITIONS,
        "type_vocab_size": 2,
        "pad_token_id": 0,
    }
    tokenizer_config = {
        "tokenizer_class": "BertTokenizer",
        "unk_token": "[UNK]",
        "pad_token": "[PAD]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "model_max_length": 48,
    }
    (folder / "config.json").write_text(json.dumps(config | (settings or {})))
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    tokenizer.save(str(folder / "tokenizer.json"))
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def word_piece() -> Tokenizer:
    """Return a tokenizer of the `WORDS`, letters and digits."""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *string.ascii_lowercase, *(f"##{c}" for c in string.ascii_lowercase)]
    vocabulary = {piece: n for n, piece in enumerate(dict.fromkeys([*pieces, *string.digits, *WORDS]))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer


def weights(scale: float = 0.02) -> dict[str, np.ndarray]:
    """Return random weights. The default scale is BERT's scale before its training."""
    random, num_words = np.random.default_rng(7), word_piece().get_vocab_size()
    tensors: dict[str, np.ndarray] = {}

    def linear(name: str, outputs: int, inputs: int) -> None:
        tensors[f"{name}.weight"] = random.normal(0, scale, (outputs, inputs)).astype(np.float32)
        tensors[f"{name}.bias"] = np.zeros(outputs, np.float32)

    def norm(name: str) -> None:
        tensors[f"{name}.weight"], tensors[f"{name}.bias"] = np.ones(WIDTH, np.float32), np.zeros(WIDTH, np.float32)

    for name, rows in (("word", num_words), ("position", POSITIONS), ("token_type", 2)):
        table = random.normal(0, scale, (rows, WIDTH)).astype(np.float32)
        tensors[f"embeddings.{name}_embeddings.weight"] = table
    norm("embeddings.LayerNorm")
    for n in range(LAYERS):
        layer = f"encoder.layer.{n}"
        for name in ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"):
            linear(f"{layer}.{name}", WIDTH, WIDTH)
        linear(f"{layer}.intermediate.dense", INNER, WIDTH)
        linear(f"{layer}.output.dense", WIDTH, INNER)
        norm(f"{layer}.attention.output.LayerNorm")
        norm(f"{layer}.output.LayerNorm")
    linear("pooler.dense", WIDTH, WIDTH)
    return tensors


def edit(path: Path, **changes: object) -> None:
    """Change values of a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def main(folder: Path) -> None:
    """Save the models in `folder`/model and `folder`/reranker, and prepare each for serving, in `folder`/prepared."""
    save(folder / "model")
    save_reranker(folder / "reranker")
    for name in ("model", "reranker"):
        prepare(str(folder / name), folder / name, folder / "prepared" / name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
