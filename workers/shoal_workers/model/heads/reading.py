"""The heads of a model, read from its original: SPLADE's, BGE-M3's and ColBERT's, as their libraries save them."""

import logging
import string
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import openvino as ov
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer

from shoal.contract.excerpt import excerpt
from shoal.errors import ModelMismatch
from shoal_workers.model import weights
from shoal_workers.model.graph import build_head
from shoal_workers.model.heads.head import Head, QueryForm
from shoal_workers.model.model import QUERY_TABLE, Model
from shoal_workers.model.source import (
    beside,
    joined_dense,
    layer_config,
    only_output,
    query_table,
    read_config,
    read_json,
    read_tokenizer_config,
    transformer_folder,
)
from shoal_workers.model.transformer import Array, Linear, Transformer, read_words_head

log = logging.getLogger(__name__)

#: SPLADE's reductions over tokens, and the number of logarithms of each function.
_REDUCTIONS = ("max", "sum")
_NUM_LOGS = {"relu": 1, "log1p_relu": 2}

#: Most tokens of a query that a table gives its weights. A tokenizer may name no limit.
MAX_QUERY_TOKENS = 8_192

#: The settings in config_sentence_transformers.json by which PyLate's models are known.
_PYLATE = ("query_prefix", "document_prefix", "query_length", "document_length", "skiplist_words", "do_query_expansion")

Graphs = dict[str, ov.Model]


def read_heads(
    model: Model, source: Path, tensors: dict[str, Array], transformer: Transformer, tokenizer: Path
) -> tuple[Model, Graphs]:
    """Return the model with its heads, and the graph of each output. Raises ModelMismatch.

    `tensors` are the original's, and `tokenizer` is the file of the prepared model, which may get special tokens.
    """
    output = only_output(source)
    try:
        if output == "sparse":
            return _read_words(model, source, tensors, transformer, tokenizer)
        if output == "multivector":
            return _read_late(model, source, tensors, transformer, tokenizer)
        return _read_beside(model, source, transformer, tokenizer)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelMismatch(
            f"{source} has a head that Shoal does not know ({error!r:.200}): use another model"
        ) from error


def _read_words(
    model: Model, source: Path, tensors: dict[str, Array], transformer: Transformer, tokenizer: Path
) -> tuple[Model, Graphs]:
    """Read the head of a SparseEncoder, which makes weights of the words of its vocabulary."""
    settings = layer_config(source, "SpladePooling") or {}
    kind, function = settings.get("pooling_strategy", "max"), settings.get("activation_function", "relu")
    if kind not in _REDUCTIONS or function not in _NUM_LOGS:
        raise ModelMismatch(f"{model.name} makes weights by {excerpt(kind)} and {excerpt(function)}: use another model")
    most = read_json(source / "config_sentence_transformers.json", optional=True).get("max_active_dims") or 0
    layers = read_words_head(read_config(source), tensors, transformer.words)
    head = Head(kind, len(layers.out.bias), num_logs=_NUM_LOGS[function], max_weights=int(most))
    model = replace(model, heads={"sparse": head}, dimension=head.size)
    if table := query_table(source):
        model = _read_query_table(model, table, tokenizer)
    return model, {"sparse": build_head(layers, transformer.eps)}


def _read_query_table(model: Model, folder: Path, path: Path) -> Model:
    """Write the weights of queries beside the tokenizer of the prepared model.

    Special tokens around a query get no weight. The library leaves them out.
    """
    table = weights.read(folder).get("weight", np.empty(0, np.float32))
    if table.shape != (model.dimension,) or table.min() < 0:
        raise ModelMismatch(f"{folder} has no weight over 0 for each of {model.dimension:,} words: use another model")
    tokenizer, of_queries = Tokenizer.from_file(str(path)), Tokenizer.from_file(str(folder / "tokenizer.json"))
    for one in (tokenizer, of_queries):
        one.no_padding()
        one.no_truncation()
    if tokenizer.to_str() != of_queries.to_str():
        raise ModelMismatch(f"{model.name} reads queries with another tokenizer than documents: use another model")
    around = tokenizer.encode("").ids
    table[around] = 0
    save_file({"weights": table}, path.with_name(QUERY_TABLE))
    most = read_json(folder / "tokenizer_config.json", optional=True).get("model_max_length", model.max_tokens)
    form = QueryForm(int(min(most, MAX_QUERY_TOKENS)) + len(around))
    return replace(model, query_form=form, prompts={"query": "", "document": ""} | model.prompts)


def _read_beside(model: Model, source: Path, transformer: Transformer, tokenizer: Path) -> tuple[Model, Graphs]:
    """Read the heads of a model that also has a vector (BGE-M3): a weight of each token's id, and token vectors."""
    pickled = [path.name for path in sorted(source.glob("*_linear.pt"))]
    if pickled and not beside(source):
        log.warning("%s has %s, which is not read: docs/models.md says how to convert it", model.name, pickled[0])
    if beside(source) and transformer.dense:
        names = " and ".join(path.name for path in beside(source).values())
        raise ModelMismatch(
            f"{model.name} has {names} and a Dense layer, which Shoal does not compute together: remove the files "
            "to have its vector alone"
        )
    heads, graphs = {}, {}
    opened = Tokenizer.from_file(str(tokenizer))
    around = opened.encode("").ids  # the tokens that are put around every text
    special = {number for number, token in opened.get_added_tokens_decoder().items() if token.special}
    for output, path in beside(source).items():
        layer = _linear(weights.read_file(path), "", len(transformer.words[0]), path)
        if output == "sparse":
            head = Head("ids", 1, tuple(sorted(special.union(around))))
        else:
            head = Head("vectors", len(layer.bias), tuple(around[:1]), skips_queries=True)
        heads[output], graphs[output] = head, build_head(layer, transformer.eps)
    return replace(model, heads=heads), graphs


def _linear(tensors: dict[str, Array], prefix: str, width: int, path: Path) -> Linear:
    matrix = tensors.get(f"{prefix}weight", np.empty(0, np.float32))
    bias = tensors.get(f"{prefix}bias", np.zeros(matrix.shape[:1], np.float32))
    if matrix.ndim != 2 or not len(matrix) or matrix.shape[1] != width or bias.shape != matrix.shape[:1]:
        raise ModelMismatch(f"{path} has no linear layer of {width:,} inputs ({prefix}weight): fetch the model again")
    return Linear(matrix, bias)


class _Late(NamedTuple):
    """The settings of a late-interaction model, as Sentence Transformers names them. `prefixes` are old markers."""

    prompts: dict[str, str]
    query_length: int | None
    document_length: int | None
    expansion: Mapping[str, Any] | None
    skiplist: list[str]
    skiplist_tasks: list[str]
    prefixes: tuple[str, ...] = ()


def _read_late(
    model: Model, source: Path, tensors: dict[str, Array], transformer: Transformer, tokenizer: Path
) -> tuple[Model, Graphs]:
    """Read the projection of a late-interaction model, and how it reads queries and documents."""
    found = _settings(model, source)
    width = len(transformer.words[0])
    layer = joined_dense(source) or _linear(tensors, "linear.", width, transformer_folder(source))
    opened = Tokenizer.from_file(str(tokenizer))
    _make_special(opened, found.prefixes, tokenizer)
    words = (opened.token_to_id(word) for word in found.skiplist if isinstance(word, str))
    skipped = tuple(sorted({number for number in words if number is not None}))
    if "document" not in found.skiplist_tasks:
        raise ModelMismatch(f"{model.name} skips words of {excerpt(found.skiplist_tasks)} alone: use another model")
    head = Head("vectors", len(layer.bias), skipped, skips_queries="query" in found.skiplist_tasks)
    most = min(found.document_length or model.max_tokens, transformer.num_positions)
    form = _query_form(found, model, source, opened, transformer.num_positions)
    num_special = opened.num_special_tokens_to_add(is_pair=False)
    for length in (most, form.max_tokens):
        if type(length) is not int or length <= num_special:
            raise ModelMismatch(
                f"{model.name} cuts texts to {excerpt(length)} tokens, {num_special} of them special: use another model"
            )
    has_unseen = form.min_tokens and not form.is_filler_seen
    blocks = " and ".join(filter(None, (model.other_blocks, "tokens that no token sees" if has_unseen else "")))
    changes: dict[str, Any] = {"prompts": found.prompts, "default_prompt": "document", "max_tokens": most}
    changes |= {"heads": {"multivector": head}, "query_form": form, "dimension": head.size, "other_blocks": blocks}
    return replace(model, **changes), {"multivector": build_head(layer, transformer.eps)}


def _query_form(found: _Late, model: Model, source: Path, tokenizer: Tokenizer, num_positions: int) -> QueryForm:
    """Return how queries are read. Raises ModelMismatch if the token that fills them is not known."""
    most = min(found.query_length or model.max_tokens, num_positions)
    if found.expansion is None:
        return QueryForm(most)
    expansion, named = found.expansion, read_tokenizer_config(source).get("mask_token")
    named = named["content"] if isinstance(named, dict) else named
    length, strategy = expansion.get("length"), expansion.get("strategy")
    if strategy not in ("fixed", "min") or type(length) is not int or not 0 < length <= num_positions:
        raise ModelMismatch(
            f"{model.name} fills queries to {excerpt(length)} tokens (query_expansion): use another model"
        )
    names = (expansion["token"],) if expansion.get("token") else (named, "[MASK]", "<mask>")
    fillers = [tokenizer.token_to_id(name) for name in names if name]
    filler = next((number for number in fillers if number is not None), None)
    if filler is None:
        raise ModelMismatch(f"{model.name} fills queries by {excerpt(names[0])}, which is no token: use another model")
    most = length if strategy == "fixed" else max(length, most)
    return QueryForm(most, length, filler, bool(expansion.get("attend")))


def _settings(model: Model, source: Path) -> _Late:
    """Return the settings, in the present form or in PyLate's or Stanford's, as `MultiVectorEncoder` reads them."""
    prompts = {name: str(model.prompts.get(name) or "") for name in ("query", "document")}
    if not (source / "modules.json").exists():
        return _stanford(read_json(source / "artifact.metadata", optional=True))
    about = read_json(source / "config_sentence_transformers.json", optional=True)
    old: dict[str, Any] = {}
    if any(name in about for name in _PYLATE):
        attend, length = bool(about.get("attend_to_expansion_tokens")), about.get("query_length") or 32
        old = {name: about.get(name) for name in ("query_length", "document_length")}
        if about.get("do_query_expansion") is not False:
            old |= {"query_length": None, "query_expansion": {"strategy": "fixed", "attend": attend, "length": length}}
    own = read_json(transformer_folder(source) / "sentence_bert_config.json", optional=True)
    prefixes = {name: about.get(f"{name}_prefix") or "" for name in prompts}
    for name, prefix in prefixes.items():
        prompts[name] = prefix + prompts[name].removeprefix(prefix)
    mask = layer_config(source, "MultiVectorMask")
    if mask is None:
        words = about.get("skiplist_words")
        mask = {"skiplist_words": [*string.punctuation] if words is None else words}
    if mask.get("keep_only_token_ids"):
        raise ModelMismatch(f"{model.name} keeps some tokens alone (keep_only_token_ids): use another model")
    lengths = old | {name: own[name] for name in ("query_length", "document_length", "query_expansion") if name in own}
    return _Late(
        prompts,
        lengths.get("query_length"),
        lengths.get("document_length"),
        lengths.get("query_expansion"),
        mask.get("skiplist_words") or [],
        mask.get("skiplist_tasks") or ["document"],
        tuple(filter(None, prefixes.values())),
    )


def _stanford(metadata: Mapping[str, Any]) -> _Late:
    prompts = {
        "query": f"{metadata.get('query_token_id') or '[unused0]'} ",
        "document": f"{metadata.get('doc_token_id') or '[unused1]'} ",
    }
    attend, length = bool(metadata.get("attend_to_mask_tokens")), metadata.get("query_maxlen") or 32
    return _Late(
        prompts,
        None,
        metadata.get("doc_maxlen"),
        {"strategy": "fixed", "attend": attend, "length": length},
        [*string.punctuation] if metadata.get("mask_punctuation", True) else [],
        ["document"],
        tuple(prompts.values()),
    )


def _make_special(tokenizer: Tokenizer, prefixes: tuple[str, ...], path: Path) -> None:
    """Let the tokenizer read the markers at the beginning of texts as one token each, if it knows them."""
    added: list[AddedToken] = []
    for prefix in prefixes:
        for marker in (prefix, *prefix.split(None, 1)[:1]):
            if tokenizer.token_to_id(marker) is not None:
                if tokenizer.encode(marker, add_special_tokens=False).tokens != [marker]:
                    added.append(AddedToken(marker, normalized=False, special=True))
                break
    if added:
        tokenizer.add_special_tokens(added)
        tokenizer.save(str(path), pretty=False)
