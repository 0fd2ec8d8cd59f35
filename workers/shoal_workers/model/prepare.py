"""Preparing a model for serving: its graph and the reference vectors of the parity check are stored.

Shoal makes the graph from the weights if it knows the architecture. Else it uses the OpenVINO or ONNX file that comes
with the model.
"""

import fcntl
import logging
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from safetensors.numpy import save
from tokenizers import Tokenizer
from tokenizers.normalizers import BertNormalizer, Lowercase, Sequence

from shoal.contract.excerpt import excerpt
from shoal.errors import DiskFull, ModelMismatch, ModelNotFound, ShoalError
from shoal.process.progress import StepBar
from shoal_workers.model import architecture, chat_template, own_graph, parity, static, weights
from shoal_workers.model.download import find_source, with_own_graph
from shoal_workers.model.graph import build_graph, core
from shoal_workers.model.heads.open_head import OpenHead
from shoal_workers.model.heads.reading import read_heads
from shoal_workers.model.model import GRAPH, Model, head_file, is_prepared, prepared_folder
from shoal_workers.model.original_files import OriginalFiles, weights_state
from shoal_workers.model.transformer import Transformer, read_transformer

log = logging.getLogger(__name__)

#: Largest tokenizer.json that is read, in bytes. The file of XLM-R, one of the largest, has 17 MB.
MAX_TOKENIZER_BYTES = 64 << 20


def prepare_if_needed(home: Path, name: str, force: bool = False) -> Path:
    """Return the folder of the prepared model. If it is not prepared, one process prepares it. Raises ModelMismatch."""
    folder = prepared_folder(home, name)
    if not force and is_prepared(folder):
        return folder
    source = find_source(name)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{folder.name}.lock").open("w") as lock:
        with StepBar("waiting for another process that prepares it"):
            fcntl.flock(lock, fcntl.LOCK_EX)
        if force or not is_prepared(folder):  # another process may have prepared it meanwhile
            print(f"preparing {name}, once", file=sys.stderr, flush=True)
            with StepBar(f"preparing {name}"):
                prepare(name, source, folder)
    return folder


def prepare(name: str, source: Path, folder: Path) -> None:
    """Prepare the model in `source`. The prepared model replaces `folder` once all its files are written."""
    new, old = (folder.with_name(f".{folder.name}.{what}") for what in ("new", "old"))
    shutil.rmtree(new, ignore_errors=True)  # left by a process that was killed
    new.mkdir(parents=True)
    try:
        _fill(Model.read(name, source), source, new)
        shutil.rmtree(old, ignore_errors=True)
        if folder.exists():
            folder.rename(old)  # a worker that has its files open keeps them
        new.rename(folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def _fill(model: Model, source: Path, folder: Path) -> None:
    """Write all files of the prepared model."""
    original, path = OriginalFiles(source), folder / "tokenizer.json"
    tokenizer = original.transformer / path.name
    if not tokenizer.is_file():
        raise ModelNotFound(
            f"{original.transformer} has no tokenizer.json: save the model with its fast tokenizer, which writes one"
        )
    if (size := tokenizer.stat().st_size) > MAX_TOKENIZER_BYTES:
        raise ModelMismatch(
            f"{tokenizer} has {size:,} bytes, over the limit of {MAX_TOKENIZER_BYTES:,}: use another model"
        )
    if original.is_static:
        _save_static(model, original, folder)
    else:
        shutil.copyfile(tokenizer, path)
        with _usable("tokenizer.json"):
            _adapt_tokenizer(path, original)
        if unknown := architecture.find_unsupported(original.config):
            _save_own_graph(model, original, folder, unknown)
        else:
            _save_transformer(model, original, folder)
    for file in folder.iterdir():
        file.chmod(0o644)


def _save_own_graph(model: Model, original: OriginalFiles, folder: Path, unknown: str) -> None:
    """Write the graph that comes with a model of an architecture that Shoal does not compute. Raises ModelMismatch."""
    if model.is_reranker:
        raise ModelMismatch(
            f"{model.name} is of an architecture that Shoal cannot score pairs with ({unknown}): use a cross-encoder "
            f"of one of {', '.join(kind for kind, known in architecture.ARCHITECTURES.items() if known.head)}"
        )
    if original.dense_folders or original.only_output or original.beside:
        what = "a head" if original.only_output or not original.dense_folders else "a Dense layer"
        raise ModelMismatch(
            f"{model.name} has {what}, and is of an architecture that Shoal does not compute itself ({unknown}): "
            "use another model"
        )
    source = with_own_graph(model.name, original.folder)
    path = next((source / name for name in own_graph.FILES if (source / name).is_file()), None)
    if path is None:
        raise ModelMismatch(
            f"{model.name} is of an architecture that Shoal does not compute itself ({unknown}), and has no file "
            f"{' or '.join(own_graph.FILES)}: write it (docs/models.md), or use another model"
        )
    _check_tokenizer(folder / "tokenizer.json", original.config.get("vocab_size"), model)
    numbers = path.with_suffix(".bin")  # the weights of an OpenVINO graph
    digest = weights.digest(others=[path, *([numbers] if path.suffix == ".xml" and numbers.is_file() else [])])
    model = replace(model, digest=digest, weights_state=weights_state(original.folder))  # the graph may be new
    _save(model, own_graph.read(path, model.dimension), folder, {})


def _save_transformer(model: Model, original: OriginalFiles, folder: Path) -> None:
    """Write the graph of a model that Shoal computes itself, and the graphs of its heads. Raises ModelMismatch."""
    path, tensors = folder / "tokenizer.json", weights.read(original.transformer)
    if model.pair_forms:
        with _usable("tokenizer.json"):
            chat_template.write_tokenizer(path, original.chat.parts)
    transformer = read_transformer(original.config, tensors, model.is_reranker, original.pooled_dense())
    usual = architecture.ARCHITECTURES[original.config["model_type"]]
    model = replace(
        model,
        shares_rows=True,
        max_tokens=min(model.max_tokens, transformer.num_positions),
        num_weights=transformer.num_weights,
        other_blocks=transformer.other_blocks,
        type_offset=_type_offset(transformer, original.tokenizer_config),
        activation="" if transformer.activation == usual.activation else transformer.activation,
    ).checked()
    _check_tokenizer(path, len(transformer.words), model)
    model, head_graphs = read_heads(model, original, tensors, transformer, path)
    _save(model, build_graph(transformer), folder, head_graphs)


def _save_static(model: Model, original: OriginalFiles, folder: Path) -> None:
    """Write the tokenizer, graph and reference of a static model. Raises ModelMismatch."""
    path, source = folder / "tokenizer.json", original.transformer
    with _usable(f"the table or the tokenizer in {source}"):
        table, first = static.read_table(source), static.write_tokenizer(source / path.name, path)
    model = replace(model, shares_rows=True, dimension=table.shape[1])
    _check_tokenizer(path, len(table) + 1, model)
    _save(model, static.build_graph(table, first), folder, {})


def _type_offset(transformer: Transformer, settings: dict[str, Any]) -> int:
    """Return how many rows of the position table each token type has, or 0 if all tokens have one type.

    The class `TokenizersBackend` of transformers 5 makes no token types, unless its settings name them.
    """
    has_types = len(transformer.positions) > transformer.num_positions
    inputs = settings.get("model_input_names")
    named = "token_type_ids" in inputs if isinstance(inputs, list) else None
    makes_types = settings.get("tokenizer_class") != "TokenizersBackend" if named is None else named
    return transformer.num_positions if has_types and makes_types else 0


@contextmanager
def _usable(what: str) -> Iterator[None]:
    """Raise ModelMismatch if a library cannot use the file. A panic of the tokenizer is not an `Exception`."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, ShoalError):
        raise
    except BaseException as error:
        raise ModelMismatch(f"{what} cannot be used ({error!s:.200}): fetch the model again") from error


def _adapt_tokenizer(path: Path, original: OriginalFiles) -> None:
    """Let the tokenizer convert texts to lower case first, if Sentence Transformers does so. Raises ModelMismatch."""
    tokenizer = Tokenizer.from_file(str(path))
    own, lower = tokenizer.normalizer, original.tokenizer_config.get("do_lower_case")
    if isinstance(own, BertNormalizer) and lower in (True, False) and lower != own.lowercase:
        raise ModelMismatch(
            f"do_lower_case is {excerpt(lower)} in tokenizer_config.json, and {excerpt(own.lowercase)} in "
            "tokenizer.json: let both say what the model was trained with"
        )
    if original.reading.get("do_lower_case"):
        tokenizer.normalizer = Sequence([Lowercase(), *([own] if own else [])])
        tokenizer.save(str(path), pretty=False)


def _check_tokenizer(path: Path, num_words: object, model: Model) -> None:
    """Raise ModelMismatch for a tokenizer that fails, leaves no room for a text, or makes ids that have no vector."""
    max_tokens = model.max_tokens
    if type(num_words) is not int:
        raise ModelMismatch(f"vocab_size in config.json is {excerpt(num_words)}: it must be a number")
    with _usable("tokenizer.json"):
        tokenizer = Tokenizer.from_file(str(path))
        tokenizer.no_padding()
        tokenizer.no_truncation()
        num_special = tokenizer.num_special_tokens_to_add(is_pair=model.is_reranker)
        texts = model.formed(parity.PAIRS) if model.is_reranker else parity.TEXTS
        encodings = tokenizer.encode_batch(texts) if num_special < max_tokens else []
    if num_special >= max_tokens:
        raise ModelMismatch(
            f"tokenizer.json adds {num_special:,} tokens to a text, and the model takes {max_tokens:,}: "
            "use another model"
        )
    if not all(encoding.ids for encoding in encodings):
        raise ModelMismatch(
            "tokenizer.json makes no token of an empty text, which has no vector then: use another model"
        )
    if model.is_reranker and (not num_special or max(type_ for found in encodings for type_ in found.type_ids) > 1):
        raise ModelMismatch("tokenizer.json does not say how the two texts of a pair are put together: fetch it again")
    ids = {*tokenizer.get_vocab().values(), *(id for encoding in encodings for id in encoding.ids)}
    if max(ids, default=0) >= num_words:
        raise ModelMismatch(
            f"tokenizer.json makes ids up to {max(ids):,}, and the model has {num_words:,} words: fetch the model again"
        )


def _save(model: Model, graph: ov.Model, folder: Path, head_graphs: Mapping[str, ov.Model]) -> None:
    """Write the graphs, the reference of the parity check and, last, the description.

    Weights are stored as fp16, whose rounding is an eighth of bf16's, so cosines to fp32 stay above 0.999998. Weights
    of a reranker are not rounded, because rounding errors even out in a cosine, but not in a score. The reference is
    computed by the same graph in f32, before the rounding.
    """
    try:
        arrays = _reference(graph, model, folder / "tokenizer.json", head_graphs)
    except RuntimeError as error:
        raise ModelMismatch(f"OpenVINO cannot compute {model.name} ({error!s:.200}): use another model") from error
    (folder / parity.FILE).write_bytes(save(arrays))
    try:
        ov.save_model(graph, folder / GRAPH, compress_to_fp16=not model.is_reranker)
        for output, head_graph in head_graphs.items():
            ov.save_model(head_graph, folder / head_file(output), compress_to_fp16=True)
    except RuntimeError as error:
        free = shutil.disk_usage(folder).free
        raise DiskFull(
            f"{folder / GRAPH} cannot be written, {free >> 20:,} MiB are free: make room, or set SHOAL_HOME to a "
            f"folder on another disk, and try again ({error})"
        ) from error
    model.save(folder)


def _reference(
    graph: ov.Model, model: Model, path: Path, head_graphs: Mapping[str, ov.Model]
) -> dict[str, NDArray[np.float32]]:
    """Return the arrays of the parity check: `vectors`, normalised vectors `[texts, dimension]` or a reranker's scores.

    Each head has the array `[texts, size]` that `parity.profile` makes from its output.
    """
    compiled = core().compile_model(graph, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_padding()
    tokenizer.enable_truncation(model.max_tokens)
    vectors, of_tokens = [], []
    encodings = tokenizer.encode_batch(model.formed(parity.PAIRS) if model.is_reranker else parity.TEXTS)
    for encoding in encodings:
        ids, types = (np.array([numbers], np.int32) for numbers in (encoding.ids, encoding.type_ids))
        length = ids.shape[1]
        positions = np.arange(length, dtype=np.int32) + np.int32(model.type_offset) * types
        tokens = compiled((ids, positions, np.zeros((1, 1, length, length), np.float32)))[0][0]
        of_tokens.append(np.array(tokens))
        if model.pooling:
            one = {"cls": 0, "lasttoken": -1}.get(model.pooling)
            vector = getattr(tokens, model.pooling)(axis=0) if one is None else tokens[one]
            vector = np.tanh(vector) if model.ends_in_tanh else vector
            vectors.append(vector if model.is_reranker else vector / max(np.linalg.norm(vector), 1e-12))
    arrays = {"vectors": np.array(vectors, np.float32)} if vectors else {}
    for output, head_graph in head_graphs.items():
        head = OpenHead(model.heads[output], head_graph, "f32", 1)
        found = head.compute(of_tokens, [encoding.ids for encoding in encodings], [False] * len(encodings))
        arrays[output] = parity.profile(found, head.head)
    return arrays
