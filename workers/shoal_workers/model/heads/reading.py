"""The heads of a model, read from its original: SPLADE's and BGE-M3's, as their libraries save them."""

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
from safetensors.numpy import save
from tokenizers import Tokenizer

from shoal.contract.excerpt import excerpt
from shoal.errors import ModelMismatch
from shoal_workers.model import weights
from shoal_workers.model.graph import Graphs, build_head
from shoal_workers.model.heads.late_interaction import read_late, read_linear
from shoal_workers.model.model import QUERY_TABLE, Head, Model, QueryForm
from shoal_workers.model.original_files import OriginalFiles, read_json
from shoal_workers.model.transformer import Array, Transformer, read_words_head

log = logging.getLogger(__name__)

#: SPLADE's reductions over tokens, and for each activation function the number of logarithms that it applies.
_REDUCTIONS = ("max", "sum")
_NUM_LOGS = {"relu": 1, "log1p_relu": 2}

#: Largest number of tokens of a query whose weights come from a table. A tokenizer may name no limit.
MAX_QUERY_TOKENS = 8_192


def read_heads(
    model: Model, original: OriginalFiles, tensors: dict[str, Array], transformer: Transformer, tokenizer: Path
) -> tuple[Model, Graphs]:
    """Return the model with its heads, and the graph of each output. Raises ModelMismatch.

    `tensors` are the original's. `tokenizer` is the prepared model's file; special tokens may be added to it.
    """
    try:
        if original.only_output == "sparse":
            return _read_words(model, original, tensors, transformer, tokenizer)
        if original.only_output == "multivector":
            return read_late(model, original, tensors, transformer, tokenizer)
        return _read_beside(model, original, transformer, tokenizer)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelMismatch(
            f"{original.folder} has a head that Shoal does not know ({error!r:.200}): use another model"
        ) from error


def _read_words(
    model: Model, original: OriginalFiles, tensors: dict[str, Array], transformer: Transformer, tokenizer: Path
) -> tuple[Model, Graphs]:
    """Return the model with a SparseEncoder's head, which makes a weight for each word, and the head's graph."""
    settings = original.layer_config("SpladePooling") or {}
    kind, function = settings.get("pooling_strategy", "max"), settings.get("activation_function", "relu")
    if kind not in _REDUCTIONS or function not in _NUM_LOGS:
        raise ModelMismatch(f"{model.name} makes weights by {excerpt(kind)} and {excerpt(function)}: use another model")
    most = original.about.get("max_active_dims") or 0
    layers = read_words_head(original.config, tensors, transformer.words)
    head = Head(kind, len(layers.out.bias), num_logs=_NUM_LOGS[function], max_weights=int(most))
    model = replace(model, heads={"sparse": head}, dimension=head.size)
    if original.query_table:
        model = _read_query_table(model, original.query_table, tokenizer)
    return model, {"sparse": build_head(layers, transformer.eps)}


def _read_query_table(model: Model, folder: Path, path: Path) -> Model:
    """Write the weights of queries beside the tokenizer of the prepared model.

    Special tokens around a query get no weight, because Sentence Transformers leaves them out.
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
    path.with_name(QUERY_TABLE).write_bytes(save({"weights": table}))
    most = read_json(folder / "tokenizer_config.json", optional=True).get("model_max_length", model.max_tokens)
    form = QueryForm(int(min(most, MAX_QUERY_TOKENS)) + len(around))
    return replace(model, query_form=form, prompts={"query": "", "document": ""} | model.prompts)


def _read_beside(
    model: Model, original: OriginalFiles, transformer: Transformer, tokenizer: Path
) -> tuple[Model, Graphs]:
    """Return the model with its heads (BGE-M3): a weight for each token's id, and token vectors; and their graphs."""
    pickled = [path.name for path in sorted(original.folder.glob("*_linear.pt"))]
    if pickled and not original.beside:
        log.warning("%s has %s, which is not read: docs/models.md says how to convert it", model.name, pickled[0])
    if original.beside and transformer.dense:
        names = " and ".join(path.name for path in original.beside.values())
        raise ModelMismatch(
            f"{model.name} has {names} and a Dense layer, which Shoal does not compute together: remove the files "
            "to have its vector alone"
        )
    heads, graphs = {}, {}
    opened = Tokenizer.from_file(str(tokenizer))
    around = opened.encode("").ids  # the tokens that are put around every text
    special = {number for number, token in opened.get_added_tokens_decoder().items() if token.special}
    for output, path in original.beside.items():
        layer = read_linear(weights.read_file(path), "", len(transformer.words[0]), path)
        if output == "sparse":
            head = Head("ids", 1, tuple(sorted(special.union(around))))
        else:
            head = Head("rest", len(layer.bias))
        heads[output], graphs[output] = head, build_head(layer, transformer.eps)
    return replace(model, heads=heads), graphs
