"""Random models of all architectures that Shoal computes itself, and their outputs by transformers for a few texts.

`python random_models.py FOLDER` makes a folder for each model, with config.json, weights, and `expected.safetensors`.
This file has for text n the arrays `ids{n}` and `types{n}`, and the token vectors `tokens{n}` or, for a model with a
head, the scores `scores{n}`. `packed.json` has the largest error of the torch engine's pass.
"""

import json
import sys
from pathlib import Path
from typing import Any

import expected_outputs
import numpy as np
import torch
import transformers
from expected_outputs import ExpectedOutputs
from safetensors.numpy import save_file
from transformers import PreTrainedModel

from shoal_workers.encoding.engines.torch import JoinedTransformer
from shoal_workers.encoding.packing import join
from shoal_workers.model import weights
from shoal_workers.model.architecture import with_usual_names
from shoal_workers.model.transformer import read_transformer

#: Number of positions: over 128, the farthest distance that MPNet distinguishes. RoBERTa can use two positions less.
POSITIONS = 202

BERT: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": POSITIONS,
    "layer_norm_eps": 0.01,
}
DISTILBERT: dict[str, Any] = {
    "vocab_size": 100,
    "dim": 32,
    "n_layers": 2,
    "n_heads": 4,
    "hidden_dim": 48,
    "max_position_embeddings": POSITIONS,
}
ROBERTA = BERT | {"type_vocab_size": 1, "pad_token_id": 1}

MODERNBERT: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "max_position_embeddings": POSITIONS,
    "norm_eps": 0.01,
    "local_attention": 20,
    **dict.fromkeys(("pad_token_id", "bos_token_id", "cls_token_id"), 0),
    **dict.fromkeys(("eos_token_id", "sep_token_id"), 1),
}

#: Two bases of angles that round to the same number.
ALIKE = {
    kind: {"rope_type": "default", "rope_theta": theta}
    for kind, theta in (("full_attention", 2.4), ("sliding_attention", 1.6))
}

QWEN3: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "intermediate_size": 48,
    "max_position_embeddings": POSITIONS,
    "rms_norm_eps": 0.01,
}

#: Linear scaling of angles, equal to NTK scaling with base 20,000 and factor 8. transformers has no NTK scaling.
LINEAR = {"rope_parameters": {"rope_type": "linear", "rope_theta": 160_000.0, "factor": 8.0 ** (2 / 8)}}

GTE = BERT | {"pad_token_id": 0, "type_vocab_size": 1}

DEBERTA = BERT | {
    "type_vocab_size": 0,
    "relative_attention": True,
    "position_biased_input": False,
    "pos_att_type": ["p2c", "c2p"],
    "share_att_key": True,
    "norm_rel_ebd": "layer_norm",
    "position_buckets": 32,
    "max_relative_positions": 150,
}

GEMMA = QWEN3 | {
    "query_pre_attn_scalar": 20,
    "sliding_window": 21,
    "layer_types": ["sliding_attention", "full_attention"],
    "use_bidirectional_attention": True,
}

#: The models: the class, its settings, and its form on disk.
MODELS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "bert": ("BertModel", BERT, {}),
    "bert, masked": ("BertForMaskedLM", BERT | {"hidden_act": "gelu_new"}, {}),
    "bert, in parts": ("BertModel", BERT | {"hidden_act": "silu"}, {"max_shard_size": 20_000}),
    "bert, scores": ("BertForSequenceClassification", BERT | {"num_labels": 1}, {}),
    "distilbert": ("DistilBertModel", DISTILBERT, {}),
    "distilbert, scores": ("DistilBertForSequenceClassification", DISTILBERT | {"activation": "relu"}, {}),
    "roberta": ("RobertaModel", ROBERTA, {}),
    "roberta, scores": ("RobertaForSequenceClassification", ROBERTA | {"num_labels": 3}, {}),
    "xlm-roberta": ("XLMRobertaModel", ROBERTA, {}),
    "xlm-roberta, scores": ("XLMRobertaForSequenceClassification", ROBERTA | {"num_labels": 1}, {}),
    "camembert": ("CamembertModel", ROBERTA, {}),
    "mpnet": ("MPNetModel", BERT, {}),
    "mpnet, masked": ("MPNetForMaskedLM", BERT, {}),
    "nomic_bert": ("NomicBertModel", BERT | {"hidden_act": "silu"}, {}),
    "nomic_bert, masked": ("NomicBertForMaskedLM", BERT | {"hidden_act": "silu", "num_hidden_layers": 3}, {}),
    "deberta-v2": ("DebertaV2Model", DEBERTA, {}),
    "deberta-v2, masked": ("DebertaV2ForMaskedLM", DEBERTA | {"share_att_key": False, "type_vocab_size": 2}, {}),
    "deberta-v2, scores": (
        "DebertaV2ForSequenceClassification",
        DEBERTA | {"num_labels": 1, "position_buckets": -1, "max_relative_positions": -1},
        {},
    ),
    "gemma3_text": ("Gemma3TextModel", GEMMA, {}),
    "gemma3_text, causal": ("Gemma3ForCausalLM", GEMMA | {"rope_parameters": ALIKE, "num_key_value_heads": 1}, {}),
    "gte": ("GteModel", GTE | {"type_vocab_size": 0}, {}),
    "gte, masked": ("GteForMaskedLM", GTE | {"type_vocab_size": 2, "hidden_act": "silu"} | LINEAR, {}),
    "gte, scores": ("GteForSequenceClassification", GTE | {"num_labels": 1}, {}),
    "qwen3": ("Qwen3Model", QWEN3, {}),
    "qwen3, causal": ("Qwen3ForCausalLM", QWEN3 | {"num_key_value_heads": 4, "rope_theta": 1e6}, {}),
    "modernbert": ("ModernBertModel", MODERNBERT, {}),
    "modernbert, masked": ("ModernBertForMaskedLM", MODERNBERT | {"hidden_activation": "silu"}, {}),
    "modernbert, scores": ("ModernBertForSequenceClassification", MODERNBERT | {"num_labels": 1}, {}),
    "modernbert, scores of means": (
        "ModernBertForSequenceClassification",
        MODERNBERT | {"num_labels": 2, "classifier_pooling": "mean", "rope_parameters": ALIKE},
        {},
    ),
}


def main(folder: Path) -> None:
    """Make all models."""
    errors = {}
    for name, (kind, settings, how) in MODELS.items():
        torch.manual_seed(11)
        model = make(kind, settings)
        (folder / name).mkdir(parents=True)
        model.save_pretrained(folder / name, **how)
        save_file(compute(model), folder / name / expected_outputs.FILE)
        errors[name] = packed_error(folder / name)
    (folder / "packed.json").write_text(json.dumps(errors))


def make(kind: str, settings: dict[str, Any]) -> PreTrainedModel:
    """Return a model whose weights and biases are all random. By default, many would be 0 or 1."""
    cls = getattr(transformers, kind)
    model: PreTrainedModel = cls(cls.config_class(**settings)).eval()
    scale = 0.0 if model.config.model_type == "gemma3_text" else 1.0  # mean weight of norms; Gemma adds 1
    for name, weight in model.named_parameters():
        torch.nn.init.normal_(weight, scale if "norm" in name.lower() and name.endswith("weight") else 0.0, 0.3)
    return model


@torch.inference_mode()
def compute(model: PreTrainedModel) -> dict[str, np.ndarray]:
    """Return the inputs and outputs of a few texts. One text has the model's largest length."""
    random = np.random.default_rng(3)
    has_pad_rows = model.config.model_type in ("roberta", "xlm-roberta", "camembert", "mpnet")
    most = POSITIONS - (2 if has_pad_rows else 0)
    arrays: dict[str, np.ndarray] = {}
    num_types = max(getattr(model.config, "type_vocab_size", 1), 1)
    for n, length in enumerate((2, 17, 60, 5, most, 33)):
        ids = random.integers(5, 100, length)
        types = (np.arange(length) >= length // 2).astype(np.int64) * (num_types - 1)
        has_scores = "SequenceClassification" in type(model).__name__
        inputs = {"input_ids": torch.tensor(ids[None])}
        if has_scores and types.any():
            inputs["token_type_ids"] = torch.tensor(types[None])
        arrays |= {f"ids{n}": ids, f"types{n}": types}
        if has_scores:
            arrays[f"scores{n}"] = model(**inputs).logits[0].numpy()
        else:
            arrays[f"tokens{n}"] = model.base_model(**inputs).last_hidden_state[0].numpy()
    return arrays


@torch.inference_mode()
def packed_error(folder: Path) -> float:
    """Return the largest error of the torch engine's pass over all texts, and over texts with unseen tokens."""
    config = with_usual_names(json.loads((folder / "config.json").read_text()))
    expected = ExpectedOutputs(folder)
    transformer, numbers = (
        read_transformer(config, weights.read(folder), expected.has_scores),
        range(len(expected.texts)),
    )
    packing, spans = expected.pack(numbers, transformer.num_positions, join)
    module = JoinedTransformer(transformer)
    assert JoinedTransformer(transformer, dtype=torch.bfloat16)(packing).dtype == torch.bfloat16
    error = expected.errors(numbers, spans, module(packing).numpy())[0]
    if transformer.head and transformer.head.is_of_mean:
        return error
    for lengths in ((9, 4, 30), (9, 9)):
        texts = [range(5, 5 + length) for length in lengths]
        whole = torch.split(module(join(texts, num_unseen=[2] * len(texts))[0]), [*lengths])
        seen = module(join([text[:-2] for text in texts])[0])
        error = max(error, float((torch.cat([tokens[:-2] for tokens in whole]) - seen).abs().max()))
    return error


if __name__ == "__main__":
    main(Path(sys.argv[1]))
