"""Late-interaction models, as Sentence Transformers, PyLate and Stanford's code save them."""

import string
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer

from shoal.contract.excerpt import excerpt
from shoal.errors import ModelMismatch
from shoal_workers.model.graph import Graphs, build_head
from shoal_workers.model.model import Head, Model, QueryForm
from shoal_workers.model.original_files import OriginalFiles, read_json
from shoal_workers.model.transformer import Array, Linear, Transformer

#: The settings in config_sentence_transformers.json that only PyLate's models have.
_PYLATE = ("query_prefix", "document_prefix", "query_length", "document_length", "skiplist_words", "do_query_expansion")


def read_late(
    model: Model, original: OriginalFiles, tensors: dict[str, Array], transformer: Transformer, tokenizer: Path
) -> tuple[Model, Graphs]:
    """Return the model with its projection as a head and the forms of queries and documents, and the head's graph."""
    prompts, prefixes, found = _settings(model, original)
    width = len(transformer.words[0])
    layer = original.dense() or read_linear(tensors, "linear.", width, original.transformer)
    opened = Tokenizer.from_file(str(tokenizer))
    _make_special(opened, prefixes, tokenizer)
    words = (opened.token_to_id(word) for word in found.get("skiplist_words") or () if isinstance(word, str))
    skipped = tuple(sorted({number for number in words if number is not None}))
    tasks = found.get("skiplist_tasks") or ["document"]
    if "document" not in tasks:
        raise ModelMismatch(f"{model.name} skips words only in {excerpt(tasks)}: use another model")
    head = Head("vectors", len(layer.bias), skipped, skips_queries="query" in tasks)
    most = min(found.get("document_length") or model.max_tokens, transformer.num_positions)
    form = _query_form(found, model, original, opened, transformer.num_positions)
    num_special = opened.num_special_tokens_to_add(is_pair=False)
    for length in (most, form.max_tokens):
        if type(length) is not int or length <= num_special:
            raise ModelMismatch(
                f"{model.name} cuts texts to {excerpt(length)} tokens, {num_special} of them special: use another model"
            )
    has_unseen = form.min_tokens and not form.is_filler_seen
    blocks = " and ".join(filter(None, (model.other_blocks, "tokens that no token sees" if has_unseen else "")))
    changes: dict[str, Any] = {"prompts": prompts, "default_prompt": "document", "max_tokens": most}
    changes |= {"heads": {"multivector": head}, "query_form": form, "dimension": head.size, "other_blocks": blocks}
    return replace(model, **changes), {"multivector": build_head(layer, transformer.eps)}


def read_linear(tensors: dict[str, Array], prefix: str, width: int, path: Path) -> Linear:
    """Return the linear layer whose tensors begin with the prefix. Raises ModelMismatch."""
    matrix = tensors.get(f"{prefix}weight", np.empty(0, np.float32))
    bias = tensors.get(f"{prefix}bias", np.zeros(matrix.shape[:1], np.float32))
    if matrix.ndim != 2 or not len(matrix) or matrix.shape[1] != width or bias.shape != matrix.shape[:1]:
        raise ModelMismatch(f"{path} has no linear layer of {width:,} inputs ({prefix}weight): fetch the model again")
    return Linear(matrix, bias)


def _query_form(
    found: dict[str, Any], model: Model, original: OriginalFiles, tokenizer: Tokenizer, num_positions: int
) -> QueryForm:
    """Return the form of queries. Raises ModelMismatch if the tokenizer does not know the token that fills queries."""
    most = min(found.get("query_length") or model.max_tokens, num_positions)
    expansion, named = found.get("query_expansion"), original.tokenizer_config.get("mask_token")
    if expansion is None:
        return QueryForm(most)
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


def _settings(model: Model, original: OriginalFiles) -> tuple[dict[str, str], tuple[str, ...], dict[str, Any]]:
    """Return the prompts, the markers that begin them, and the settings by their names in Sentence Transformers.

    The files have the present form, PyLate's or Stanford's, which `MultiVectorEncoder` reads too.
    """
    if not original.layers:
        about = read_json(original.folder / "artifact.metadata", optional=True)
        prompts = {
            "query": f"{about.get('query_token_id') or '[unused0]'} ",
            "document": f"{about.get('doc_token_id') or '[unused1]'} ",
        }
        found = _filled(about.get("query_maxlen"), about.get("attend_to_mask_tokens"))
        found["skiplist_words"] = [*string.punctuation] if about.get("mask_punctuation", True) else []
        return prompts, tuple(prompts.values()), found | {"document_length": about.get("doc_maxlen")}
    about, found = original.about, {}
    if any(name in about for name in _PYLATE):
        found = {name: about.get(name) for name in ("query_length", "document_length")}
        if about.get("do_query_expansion") is not False:
            found |= _filled(about.get("query_length"), about.get("attend_to_expansion_tokens"))
    prefixes = {name: about.get(f"{name}_prefix") or "" for name in ("query", "document")}
    prompts = {
        name: prefix + str(model.prompts.get(name) or "").removeprefix(prefix) for name, prefix in prefixes.items()
    }
    mask = original.layer_config("MultiVectorMask")
    if mask is None:
        words = about.get("skiplist_words")
        mask = {"skiplist_words": [*string.punctuation] if words is None else words}
    if mask.get("keep_only_token_ids"):
        raise ModelMismatch(f"{model.name} keeps some tokens alone (keep_only_token_ids): use another model")
    return prompts, tuple(filter(None, prefixes.values())), found | mask | original.reading


def _filled(length: Any, attend: Any) -> dict[str, Any]:
    """Return the settings of queries that are filled to a fixed length: 32 tokens if the files name none."""
    return {"query_expansion": {"strategy": "fixed", "attend": bool(attend), "length": length or 32}}


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
