"""Random models with heads, in all published forms, and their outputs by Sentence Transformers.

`python head_reference.py FOLDER` makes a folder for each model, and beside it an `.npz` with the outputs for `TEXTS`:
`sparse` `[texts, words]`, and for text n the vectors `query{n}` and `document{n}`.
"""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from random_models import BERT, DISTILBERT, MODERNBERT, ROBERTA, make
from safetensors.torch import load_file, save_file
from sentence_transformers import MultiVectorEncoder, SentenceTransformer, SparseEncoder
from sentence_transformers.base.modules import Dense, Normalize, Router, Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from sentence_transformers.sentence_transformer.modules import Pooling
from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding, SpladePooling
from tiny_model import edit, word_piece

TEXTS = ["storm in europe", "", "a", "rain " * 80, "the market falls and rises", "climate a b, change 12"]
BGE_TEXTS = [*TEXTS, "rain [CLS] in [SEP] europe"]

#: A width of vectors that Shoal's own kernel supports.
WIDE = BERT | {"hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 64}

#: Models of SPLADE: the class, its settings, and the settings of the pooling.
SPARSE: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "bert": ("BertForMaskedLM", WIDE, {}),
    "distilbert, sum": ("DistilBertForMaskedLM", DISTILBERT | {"activation": "relu"}, {"pooling_strategy": "sum"}),
    "xlm-roberta, own words": (
        "XLMRobertaForMaskedLM",
        ROBERTA | {"tie_word_embeddings": False},
        {"activation_function": "log1p_relu"},
    ),
    "modernbert": ("ModernBertForMaskedLM", MODERNBERT, {"activation_function": "log1p_relu"}),
    "modernbert, no bias": ("ModernBertForMaskedLM", MODERNBERT | {"decoder_bias": False}, {}),
}

#: Late-interaction models: the class, and the settings of class, transformer, mask and prompts.
LATE: dict[str, tuple[str, dict[str, Any], dict[str, Any], dict[str, Any], dict[str, str]]] = {
    "late, fixed": (
        "BertModel",
        BERT,
        {"query_expansion": {"strategy": "fixed", "length": 12}, "document_length": 20},
        {"skiplist_words": ["a", "b", "unknown"]},
        {"query": "rain ", "document": "the "},
    ),
    "late, at least": (
        "ModernBertModel",
        MODERNBERT | {"num_hidden_layers": 2},
        {"query_expansion": {"strategy": "min", "length": 7, "attend": True, "token": "storm"}, "query_length": 30},
        {"skiplist_words": ["a"], "skiplist_tasks": ["query", "document"]},
        {},
    ),
    "late, plain": ("BertModel", WIDE, {"query_length": 9}, {}, {"query": "storm "}),
}


def main(folder: Path) -> None:
    """Make all models."""
    for name, (kind, settings, pooling) in SPARSE.items():
        base = Transformer(save(folder / "base", kind, settings), transformer_task="fill-mask")
        SparseEncoder(modules=[base, SpladePooling(**pooling)]).save_pretrained(str(folder / name))
        np.savez(folder / f"{name}.npz", sparse=SparseEncoder(str(folder / name)).encode(TEXTS).to_dense().numpy())
    for name, (kind, settings, reading, mask, prompts) in LATE.items():
        base = Transformer(save(folder / "base", kind, settings), **reading)
        modules = [base, projection(settings), MultiVectorMask(**mask), Normalize("token_embeddings")]
        MultiVectorEncoder(modules=modules, prompts=prompts).save_pretrained(str(folder / name))
    make_stanford(folder / "late, of Stanford")
    make_pylate(folder / "late, of PyLate")
    for name in (*LATE, "late, of Stanford", "late, of PyLate"):
        compute_late(folder / name)
    make_bge(folder / "bge")
    make_routed(folder / "routed")


def save(folder: Path, kind: str, settings: dict[str, Any]) -> str:
    """Save a random transformer with the tokenizer of the tiny models; return its folder."""
    shutil.rmtree(folder, ignore_errors=True)
    tokenizer = word_piece()
    torch.manual_seed(5)
    make(kind, settings | {"vocab_size": tokenizer.get_vocab_size(), "pad_token_id": 0}).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "9"}
    about = names | {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 48}
    (folder / "tokenizer_config.json").write_text(json.dumps(about))
    return str(folder)


def projection(settings: dict[str, Any]) -> Dense:
    """Return the layer that makes token vectors."""
    torch.manual_seed(6)
    width, plain = settings["hidden_size"], torch.nn.Identity()
    return Dense(width, 16, bias=False, activation_function=plain, module_input_name="token_embeddings")


def make_stanford(folder: Path) -> None:
    """Save a model in Stanford's form: the projection lies beside the transformer, and markers are words."""
    save(folder, "BertModel", BERT)
    tensors = {f"bert.{name}": tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    tensors["linear.weight"] = projection(BERT).linear.weight.detach()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    edit(folder / "config.json", architectures=["HF_ColBERT"])
    metadata = {"query_token_id": "##q", "doc_token_id": "##d", "query_maxlen": 14, "doc_maxlen": 24}
    (folder / "artifact.metadata").write_text(json.dumps(metadata))


def make_pylate(folder: Path) -> None:
    """Save a model in PyLate's form: two layers, and all settings in one file."""
    base = Transformer(save(folder.with_name("base"), "BertModel", BERT))
    MultiVectorEncoder(modules=[base, projection(BERT)]).save_pretrained(str(folder))
    old = ["sentence_transformers.models.Transformer", "pylate.models.Dense.Dense"]
    modules = json.loads((folder / "modules.json").read_text())
    (folder / "modules.json").write_text(json.dumps([m | {"type": t} for m, t in zip(modules, old, strict=True)]))
    settings = {"query_prefix": "[SEP]", "document_prefix": "rain ", "query_length": 11, "document_length": 22}
    settings |= {"attend_to_expansion_tokens": True, "skiplist_words": None}
    edit(folder / "config_sentence_transformers.json", model_type="ColBERT", **settings)
    (folder / "1_Dense/config.json").write_text(
        json.dumps({"in_features": 32, "out_features": 16, "bias": False, "activation_function": IDENTITY})
    )


IDENTITY = "torch.nn.modules.linear.Identity"


def compute_late(folder: Path) -> None:
    """Write the vectors of queries and documents beside the folder of a late-interaction model."""
    model = MultiVectorEncoder(str(folder))
    ways: dict[str, Callable[..., Any]] = {"query": model.encode_query, "document": model.encode_document}
    arrays = {
        f"{way}{n}": encode(text, convert_to_numpy=True) for way, encode in ways.items() for n, text in enumerate(TEXTS)
    }
    np.savez(folder.with_suffix(".npz"), **arrays)


def make_routed(folder: Path) -> None:
    """Save a model that weighs queries by a table, and compute both kinds of texts."""
    base = Transformer(save(folder.with_name("base"), "BertForMaskedLM", BERT), transformer_task="fill-mask")
    table = SparseStaticEmbedding(base.tokenizer, torch.rand(len(base.tokenizer)).round(decimals=1))
    router = Router.for_query_document(query_modules=[table], document_modules=[base, SpladePooling()])
    SparseEncoder(modules=[router], prompts={"query": "storm "}).save_pretrained(str(folder))
    model = SparseEncoder(str(folder))
    arrays = {"query": model.encode_query(TEXTS), "document": model.encode_document(TEXTS)}
    np.savez(folder.with_suffix(".npz"), **{way: rows.to_dense().numpy() for way, rows in arrays.items()})


@torch.inference_mode()
def make_bge(folder: Path) -> None:
    """Save a model with all three outputs, and compute them like FlagEmbedding for BGE-M3."""
    base = Transformer(save(folder.with_name("base"), "XLMRobertaModel", ROBERTA))
    model = SentenceTransformer(modules=[base, Pooling(32, "cls"), Normalize()])
    model.save_pretrained(str(folder))
    weigh, project = torch.nn.Linear(32, 1), torch.nn.Linear(32, 24)
    save_file(weigh.state_dict(), folder / "sparse_linear.safetensors")
    save_file(project.state_dict(), folder / "colbert_linear.safetensors")
    arrays = {
        "vectors": model.encode(BGE_TEXTS, batch_size=1),
        "sparse": np.zeros((len(BGE_TEXTS), word_piece().get_vocab_size()), np.float32),
    }
    for n, text in enumerate(BGE_TEXTS):
        found = base(base.preprocess([text]))
        tokens, ids = found["token_embeddings"][0], found["input_ids"][0].tolist()
        for number, weight in zip(ids, torch.relu(weigh(tokens))[:, 0].tolist(), strict=True):
            if number not in base.tokenizer.all_special_ids:
                arrays["sparse"][n, number] = max(arrays["sparse"][n, number], weight)
        arrays[f"document{n}"] = torch.nn.functional.normalize(project(tokens[1:]), dim=-1).numpy()
    np.savez(folder.with_suffix(".npz"), **arrays)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
