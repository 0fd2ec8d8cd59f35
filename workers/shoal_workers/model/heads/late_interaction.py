"""Late-interaction models, as Sentence Transformers, PyLate and Stanford's code save them."""

import string
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tokenizers import AddedToken, Tokenizer

from shoal.contract.excerpt import excerpt
from shoal.errors import ModelMismatch
from shoal_workers.model.graph import Graphs, build_head
from shoal_workers.model.heads.head import Head, QueryForm
from shoal_workers.model.model import Model
from shoal_workers.model.original import Original, read_json
from shoal_workers.model.transformer import Array, Linear, Transformer

#: The settings in config_sentence_transformers.json that only PyLate's models have.
_PYLATE = ("query_prefix", "document_prefix", "query_length", "document_length", "skiplist_words", "do_query_expansion")


class _Late(NamedTuple):
    """The settings of a late-interaction model, by the names in Sentence Transformers. `prefixes` begin the prompts."""

    prompts: dict[str, str]
    query_length: int | None
    document_length: int | None
    expansion: Mapping[str, Any] | None
    skiplist: list[str]
    skiplist_tasks: list[str]
    prefixes: tuple[str, ...] = ()


def read_late(
    model: Model, original: Original, tensors: dict[str, Array], transformer: Transformer, tokenizer: Path
) -> tuple[Model, Graphs]:
    """Return the model with its projection as a head and the forms of queries and documents, and the head's graph."""
    found = _settings(model, original)
    width = len(transformer.words[0])
    layer = original.dense() or read_linear(tensors, "linear.", width, original.transformer)
    opened = Tokenizer.from_file(str(tokenizer))
    _make_special(opened, found.prefixes, tokenizer)
    words = (opened.token_to_id(word) for word in found.skiplist if isinstance(word, str))
    skipped = tuple(sorted({number for number in words if number is not None}))
    if "document" not in found.skiplist_tasks:
        raise ModelMismatch(f"{model.name} skips words only in {excerpt(found.skiplist_tasks)}: use another model")
    head = Head("vectors", len(layer.bias), skipped, skips_queries="query" in found.skiplist_tasks)
    most = min(found.document_length or model.max_tokens, transformer.num_positions)
    form = _query_form(found, model, original, opened, transformer.num_positions)
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


def read_linear(tensors: dict[str, Array], prefix: str, width: int, path: Path) -> Linear:
    """Return the linear layer whose tensors begin with the prefix. Raises ModelMismatch."""
    matrix = tensors.get(f"{prefix}weight", np.empty(0, np.float32))
    bias = tensors.get(f"{prefix}bias", np.zeros(matrix.shape[:1], np.float32))
    if matrix.ndim != 2 or not len(matrix) or matrix.shape[1] != width or bias.shape != matrix.shape[:1]:
        raise ModelMismatch(f"{path} has no linear layer of {width:,} inputs ({prefix}weight): fetch the model again")
    return Linear(matrix, bias)


def _query_form(found: _Late, model: Model, original: Original, tokenizer: Tokenizer, num_positions: int) -> QueryForm:
    """Return the form of queries. Raises ModelMismatch if the tokenizer does not know the token that fills queries."""
    most = min(found.query_length or model.max_tokens, num_positions)
    if found.expansion is None:
        return QueryForm(most)
    expansion, named = found.expansion, original.tokenizer_config.get("mask_token")
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
        raise ModelMismatch(f"{model.name} fills queries by {excerpt(names[0])}, not a token: use another model")
    most = length if strategy == "fixed" else max(length, most)
    return QueryForm(most, length, filler, bool(expansion.get("attend")))


def _settings(model: Model, original: Original) -> _Late:
    """Return the settings from the present form, PyLate's or Stanford's, which `MultiVectorEncoder` reads too."""
    prompts = {name: str(model.prompts.get(name) or "") for name in ("query", "document")}
    if not original.layers:
        return _stanford(read_json(original.folder / "artifact.metadata", optional=True))
    about, own = original.about, original.reading
    old: dict[str, Any] = {}
    if any(name in about for name in _PYLATE):
        attend, length = bool(about.get("attend_to_expansion_tokens")), about.get("query_length") or 32
        old = {name: about.get(name) for name in ("query_length", "document_length")}
        if about.get("do_query_expansion") is not False:
            old |= {"query_length": None, "query_expansion": {"strategy": "fixed", "attend": attend, "length": length}}
    prefixes = {name: about.get(f"{name}_prefix") or "" for name in prompts}
    for name, prefix in prefixes.items():
        prompts[name] = prefix + prompts[name].removeprefix(prefix)
    mask = original.layer_config("MultiVectorMask")
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
    """Let the tokenizer read each marker at the beginning of texts as one token, if the marker is in its vocabulary."""
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
