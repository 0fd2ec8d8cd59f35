"""Models of all architectures in real sizes, with random weights: their speed on one core, memory and errors.

Needs torch and Sentence Transformers (`scripts/install export`), which make the models. Their folders are kept in the
home folder.
"""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from stack import HOME

from benchmarks.engine import Embed, Engine, started
from benchmarks.one_core.encoders import RATE, pin, texts_of
from benchmarks.one_core.peers import source
from benchmarks.plan import Plan, own_process, say
from benchmarks.trial import Figures, Row
from shoal.contract.options import Options
from shoal_workers.encoding.encoder import Encoder
from shoal_workers.model.prepare import prepare_if_needed

#: Number of tokens in a text, and number of texts in a call.
TOKENS, BATCH = 64, 16

#: Numbers of tokens of the compared texts. Each model is compared in the texts that are short enough for it.
COMPARED = (3, 17, 130, 512, 2_048, 8_192)

#: Name of the file with the token vectors of transformers.
EXPECTED = "expected.safetensors"

#: Length of a trial, as a share of the length of a run against a server.
SHARE = 0.25

_BASE: dict[str, Any] = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12}
_BASE |= {"intermediate_size": 3_072}
_SMALL: dict[str, Any] = _BASE | {"hidden_size": 384, "num_hidden_layers": 6, "intermediate_size": 1_536}
_XLM: dict[str, Any] = {"vocab_size": 250_002, "max_position_embeddings": 514, "type_vocab_size": 1}
_LONG: dict[str, Any] = {"max_position_embeddings": 8_192}
_DEBERTA: dict[str, Any] = {"relative_attention": True, "position_biased_input": False, "type_vocab_size": 0}
_DEBERTA |= {"pos_att_type": ["p2c", "c2p"], "share_att_key": True, "position_buckets": 256}
_DEBERTA |= {"norm_rel_ebd": "layer_norm", "max_position_embeddings": 2_048}
_GEMMA: dict[str, Any] = {"hidden_size": 768, "num_hidden_layers": 24, "num_attention_heads": 3, "head_dim": 256}
_GEMMA |= {"num_key_value_heads": 1, "intermediate_size": 1_152, "vocab_size": 262_144, "query_pre_attn_scalar": 256}
_GEMMA |= {"sliding_window": 512, "use_bidirectional_attention": True, "max_position_embeddings": 2_048}
_QWEN: dict[str, Any] = {"hidden_size": 1_024, "num_hidden_layers": 28, "num_attention_heads": 16, "head_dim": 128}
_QWEN |= {"num_key_value_heads": 8, "intermediate_size": 3_072, "vocab_size": 151_669}

#: For each model: its class in transformers, its settings that differ from the base size, and its form.
MODELS: dict[str, tuple[str, dict[str, Any], str]] = {
    "bert, as MiniLM": ("BertModel", _SMALL, "vector"),
    "bert": ("BertModel", {}, "vector"),
    "distilbert": ("DistilBertModel", {}, "vector"),
    "xlm-roberta": ("XLMRobertaModel", _XLM, "vector"),
    "mpnet": ("MPNetModel", {"max_position_embeddings": 514}, "vector"),
    "nomic_bert": ("NomicBertModel", _LONG, "vector"),
    "modernbert": ("ModernBertModel", {}, "vector"),
    "gte": ("GteModel", _LONG, "vector"),
    "deberta-v2": ("DebertaV2Model", _BASE | _DEBERTA, "vector"),
    "gemma3_text": ("Gemma3TextModel", _GEMMA, "vector"),
    "qwen3": ("Qwen3Model", _QWEN, "vector"),
    "SPLADE": ("BertForMaskedLM", {}, "sparse"),
    "SPLADE of documents": ("DistilBertForMaskedLM", {}, "sparse, queries by a table"),
    "ColBERT": ("BertModel", {}, "multivector"),
    "BGE-M3": ("XLMRobertaModel", _XLM | {"max_position_embeddings": 8_194}, "all outputs"),
}


def run(plan: Plan) -> list[Row]:
    """Embed texts with each model in bf16 and f32, and compare vectors of many lengths with transformers' in f32."""
    texts = texts_of(TOKENS, plan.texts.articles)
    long = [" ".join(plan.texts.articles[n : n + 40]) for n in range(20)]
    compared = [texts_of(tokens, long)[0] for tokens in COMPARED]
    rows = []
    for name, (kind, settings, form) in MODELS.items():
        original = HOME / "bench" / f"models-{name}"
        if not original.exists():
            say(f"models: making {original}")
            with own_process() as process:
                process.submit(_make, original, source(), kind, settings, form, compared).result()
        prepared = prepare_if_needed(HOME, str(original))
        output = "multivector" if form == "all outputs" else form.partition(",")[0]
        for precision in ("bf16", "f32"):
            with started(name, 1, _open, prepared, precision, Options(output=output)) as engine:
                figures = _measured(plan, engine, precision, texts)
            if (expected := original / EXPECTED).exists():
                with started(name, 1, _open, prepared, precision, Options(output="tokens")) as engine:
                    figures |= engine.call(_errors, compared, expected)
            if form == "sparse, queries by a table":
                by_table = Options(output=output, prompt_name="query")
                with started(name, 1, _open, prepared, precision, by_table) as engine:
                    figures |= {"queries/s": _measured(plan, engine, "queries", texts)[RATE]}
            rows.append(Row("models", precision, name, {figure: [value] for figure, value in figures.items()}))
    return rows


def _measured(plan: Plan, engine: Engine, precision: str, texts: list[str]) -> dict[str, float]:
    engine.call(pin)
    (row,) = plan.interleave("models", [engine.trial(precision, BATCH, texts, SHARE)])
    return {RATE: row.median(RATE), "resident MB": engine.call(_resident_mb)}


def _open(prepared: Path, precision: str, options: Options) -> Embed:
    encoder = Encoder.open(prepared, "auto", precision, 1)
    return lambda texts: encoder.encoded(texts, options, encoder.prompt(options))  # type: ignore[return-value]


def _resident_mb(_: Embed) -> float:
    return float(psutil.Process().memory_info().rss / 2**20)


def _errors(embed: Any, texts: Sequence[str], expected: Path) -> Figures:
    """Return the largest difference of the cosine from 1, in millionths, of the vector of a text and of a token."""
    from safetensors.numpy import load_file

    arrays = load_file(expected)
    tokens = [arrays[f"tokens{n}"] for n in range(len(arrays))]
    texts = texts[: len(tokens)]
    found = [text.vectors for text in embed(texts)] + [embed([text])[0].vectors for text in texts]
    pairs = [*zip(found, tokens * 2, strict=True)]
    of_texts = max(_error(one.mean(axis=0), other.mean(axis=0)) for one, other in pairs)
    return {"error of texts": of_texts, "of tokens": max(_error(*pair) for pair in pairs)}


def _error(found: Any, expected: Any) -> float:
    lengths = np.linalg.norm(found, axis=-1) * np.linalg.norm(expected, axis=-1)
    return float(1e6 * np.max(1 - (found.astype(float) * expected).sum(axis=-1) / lengths))


def _make(folder: Path, source: Path, kind: str, settings: dict[str, Any], form: str, texts: Sequence[str]) -> None:
    """Save a model with random weights in bf16 and the tokenizer in `source`, and the token vectors of the texts."""
    import torch
    import transformers
    from safetensors.torch import save_file
    from sentence_transformers import MultiVectorEncoder, SentenceTransformer, SparseEncoder
    from sentence_transformers.base.modules import Dense, Router, Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling
    from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding, SpladePooling

    base, new = folder.with_name(f"{folder.name}.base"), folder.with_name(f"{folder.name}.new")
    for old in (base, new):
        shutil.rmtree(old, ignore_errors=True)
    cls = getattr(transformers, kind)
    torch.manual_seed(7)
    model = cls(cls.config_class(**settings)).to(torch.bfloat16)
    model.save_pretrained(base)
    about = json.loads((source / "tokenizer_config.json").read_text()) | {"model_max_length": COMPARED[-1]}
    (base / "tokenizer_config.json").write_text(json.dumps(about))
    shutil.copy(source / "tokenizer.json", base)
    transformer = Transformer(str(base), **({"transformer_task": "fill-mask"} if "sparse" in form else {}))
    width = model.config.hidden_size
    if form == "sparse":
        SparseEncoder(modules=[transformer, SpladePooling()]).save_pretrained(str(new))
    elif form == "multivector":
        projection = Dense(
            width, 128, bias=False, activation_function=torch.nn.Identity(), module_input_name="token_embeddings"
        )
        MultiVectorEncoder(modules=[transformer, projection]).save_pretrained(str(new))
    elif "table" in form:
        table = SparseStaticEmbedding(transformer.tokenizer, torch.rand(len(transformer.tokenizer)))
        router = Router.for_query_document([table], [transformer, SpladePooling()])
        SparseEncoder(modules=[router]).save_pretrained(str(new))
    else:
        SentenceTransformer(modules=[transformer, Pooling(width, "mean")]).save_pretrained(str(new))
        exact = cls.from_pretrained(base, dtype=torch.float32)  # not model.float(), whose angles were rounded to bf16
        save_file(_token_vectors(exact.eval(), transformer.tokenizer, texts), new / EXPECTED)
    if form == "all outputs":
        for name, outputs in (("sparse", 1), ("colbert", width)):
            head = {"weight": torch.randn(outputs, width) / width**0.5, "bias": torch.zeros(outputs)}
            save_file(head, new / f"{name}_linear.safetensors")
    shutil.rmtree(base)
    new.rename(folder)


def _token_vectors(model: Any, tokenizer: Any, texts: Sequence[str]) -> dict[str, Any]:
    """Return the token vectors of the texts that the model can read."""
    import torch

    with torch.inference_mode():
        ids = [torch.tensor([tokenizer(text)["input_ids"]]) for text in texts]
        most = min(model.config.max_position_embeddings, COMPARED[-1])
        return {f"tokens{n}": model(one).last_hidden_state[0] for n, one in enumerate(ids) if one.shape[1] <= most}
