"""Models of all architectures in real sizes, with random weights: each engine process has one thread on one core.

Needs torch and transformers (`scripts/install export`), which make the models. Their folders are kept in the home
folder.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import psutil
from stack import HOME

from benchmarks.engine import Embed, Engine, started
from benchmarks.one_core.encoders import RATE, pin, texts_of
from benchmarks.one_core.peers import source
from benchmarks.plan import Plan, say
from benchmarks.trial import Row
from shoal.contract.options import Options
from shoal_workers.encoding.encoder import Encoder
from shoal_workers.model.prepare import prepare_if_needed

#: Number of tokens in a text, and number of texts in a call.
TOKENS, BATCH = 64, 16

#: Length of a trial, as a share of the length of a run against a server.
SHARE = 0.25

_BASE: dict[str, Any] = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12}
_BASE |= {"intermediate_size": 3_072}
_SMALL: dict[str, Any] = _BASE | {"hidden_size": 384, "num_hidden_layers": 6, "intermediate_size": 1_536}
_XLM: dict[str, Any] = {"vocab_size": 250_002, "max_position_embeddings": 514, "type_vocab_size": 1}
_DEBERTA: dict[str, Any] = {"relative_attention": True, "position_biased_input": False, "type_vocab_size": 0}
_DEBERTA |= {
    "pos_att_type": ["p2c", "c2p"],
    "share_att_key": True,
    "position_buckets": 256,
    "norm_rel_ebd": "layer_norm",
}
_GEMMA: dict[str, Any] = {"hidden_size": 768, "num_hidden_layers": 24, "num_attention_heads": 3, "head_dim": 256}
_GEMMA |= {"num_key_value_heads": 1, "intermediate_size": 1_152, "vocab_size": 262_144, "query_pre_attn_scalar": 256}
_GEMMA |= {"sliding_window": 512, "use_bidirectional_attention": True, "max_position_embeddings": 2_048}
_QWEN: dict[str, Any] = {"hidden_size": 1_024, "num_hidden_layers": 28, "num_attention_heads": 16, "head_dim": 128}
_QWEN |= {"num_key_value_heads": 8, "intermediate_size": 3_072, "vocab_size": 151_669}

#: For each model: its class in transformers, its settings that differ from the base size, and its output.
MODELS: dict[str, tuple[str, dict[str, Any], str]] = {
    "bert, as MiniLM": ("BertModel", _SMALL, "vector"),
    "bert": ("BertModel", {}, "vector"),
    "distilbert": ("DistilBertModel", {}, "vector"),
    "xlm-roberta": ("XLMRobertaModel", _XLM, "vector"),
    "mpnet": ("MPNetModel", {}, "vector"),
    "nomic_bert": ("NomicBertModel", {}, "vector"),
    "modernbert": ("ModernBertModel", {}, "vector"),
    "gte": ("GteModel", {}, "vector"),
    "deberta-v2": ("DebertaV2Model", _BASE | _DEBERTA, "vector"),
    "gemma3_text": ("Gemma3TextModel", _GEMMA, "vector"),
    "qwen3": ("Qwen3Model", _QWEN, "vector"),
    "SPLADE": ("BertForMaskedLM", {}, "sparse"),
    "BGE-M3": ("XLMRobertaModel", _XLM, "multivector"),
}

#: The class and the settings of the layer after the transformer, for each output.
_POOLING: dict[str, tuple[str, dict[str, Any]]] = {
    "vector": ("models.Pooling", {"pooling_mode_mean_tokens": True}),
    "sparse": ("sparse_encoder.models.SpladePooling", {"pooling_strategy": "max"}),
}


def run(plan: Plan) -> list[Row]:
    """Embed the same texts with each model, one model after the other, in bf16 and in f32."""
    texts = texts_of(TOKENS, plan.texts.articles)
    rows = []
    for name, (kind, settings, output) in MODELS.items():
        original = HOME / "bench" / f"models-{name}"
        if not original.exists():
            say(f"models: making {original}")
            _make(original, kind, settings, output)
        prepared = prepare_if_needed(HOME, str(original))
        for precision in ("bf16", "f32"):
            with started(name, 1, _open, prepared, precision, output) as engine:
                rows.append(_measured(plan, engine, precision, texts))
    return rows


def _measured(plan: Plan, engine: Engine, precision: str, texts: list[str]) -> Row:
    engine.call(pin)
    (row,) = plan.interleave("models", [engine.trial(precision, BATCH, texts, SHARE)])
    figures = {RATE: row.figures[RATE], "resident MB": [engine.call(_resident_mb)]}
    return Row("models", precision, engine.name, figures)


def _open(prepared: Path, precision: str, output: str) -> Embed:
    encoder, options = Encoder.open(prepared, "auto", precision, 1), Options(output=output)
    return lambda texts: encoder.encoded(texts, options, "")  # type: ignore[return-value]


def _resident_mb(_: Embed) -> float:
    return float(psutil.Process().memory_info().rss / 2**20)


def _make(folder: Path, kind: str, settings: dict[str, Any], output: str) -> None:
    """Save a model with random weights in bf16, the tokenizer of the default model, and its head."""
    import torch
    import transformers
    from safetensors.torch import save_file

    new = folder.with_name(f"{folder.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    cls = getattr(transformers, kind)
    torch.manual_seed(7)
    model = cls(cls.config_class(**settings)).to(torch.bfloat16)
    model.save_pretrained(new)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(source() / file, new / file)
    width = model.config.hidden_size
    _write_layers(new, *_POOLING["sparse" if output == "sparse" else "vector"])
    if output == "multivector":  # like BGE-M3, which makes all outputs
        for name, outputs in (("sparse", 1), ("colbert", width)):
            head = {"weight": torch.randn(outputs, width) / width**0.5, "bias": torch.zeros(outputs)}
            save_file(head, new / f"{name}_linear.safetensors")
    new.rename(folder)


def _write_layers(folder: Path, kind: str, settings: dict[str, Any]) -> None:
    """Write the files by which Sentence Transformers finds the transformer and the layer after it."""
    paths = {"": "models.Transformer", "1_Pooling": kind}
    layers = [
        {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.{layer}"}
        for n, (path, layer) in enumerate(paths.items())
    ]
    (folder / "modules.json").write_text(json.dumps(layers))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text(json.dumps(settings))
