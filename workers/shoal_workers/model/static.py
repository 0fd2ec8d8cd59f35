"""Static models, of model2vec or Sentence Transformers: a table of tokens' vectors, whose mean is a text's vector."""

from pathlib import Path

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset13 as ops
from safetensors import safe_open
from tokenizers import AddedToken, Tokenizer
from tokenizers.processors import TemplateProcessing

from shoal.errors import ModelMismatch
from shoal_workers.model import weights

#: The names of a table: model2vec's, and Sentence Transformers'.
TABLES = (MODEL2VEC_TABLE, _) = ("embeddings", "embedding.weight")

#: The token that the tokenizer puts before each text, so that no text is without tokens. Its vector is zero.
FIRST = "[SHOAL_FIRST]"


def read_table(folder: Path) -> NDArray[np.float32]:
    """Return the vector of each token id, `[ids, dimension]`. Raises ModelNotFound or ModelMismatch."""
    tensors, file = weights.read(folder), weights.files(folder)[0]
    name = next((name for name in TABLES if name in tensors), "")
    if not name or (table := tensors[name]).ndim != 2:
        raise ModelMismatch(f"{file} has no table of vectors ({' or '.join(TABLES)}): use another model")
    if name != MODEL2VEC_TABLE:
        return table
    with safe_open(file, "numpy") as stored:
        rows = stored.get_tensor("mapping") if "mapping" in stored.keys() else None  # noqa: SIM118 - no dict
    if rows is not None:  # `rows` has the row of each token id; several ids may share a row
        if rows.ndim != 1 or rows.min() < 0 or rows.max() >= len(table):
            raise ModelMismatch(f"{file} maps tokens to rows that the table lacks: fetch the model again")
        table = table[rows]
    if (factors := tensors.get("weights")) is not None:
        if factors.shape != (len(table),):
            raise ModelMismatch(f"{file} has weights of {factors.shape} for {len(table):,} tokens: fetch it again")
        table = table * factors[:, None]
    if (unknown := _unknown_id(folder / "tokenizer.json")) is not None and unknown < len(table):
        table = table.copy()
        table[unknown] = 0  # model2vec leaves such tokens out
    return table


def write_tokenizer(original: Path, path: Path) -> int:
    """Write the tokenizer with `FIRST` before each text and without other special tokens; return the id of `FIRST`."""
    tokenizer = Tokenizer.from_file(str(original))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    taken = tokenizer.get_vocab()
    tokenizer.add_special_tokens([AddedToken(FIRST, special=True, normalized=False)])
    number = int(tokenizer.token_to_id(FIRST) or 0)
    if FIRST in taken or number in taken.values():
        raise ModelMismatch(f"{original} has gaps in its ids, or a token {FIRST}: use another model")
    tokenizer.post_processor = TemplateProcessing(f"{FIRST} $A", f"{FIRST} $A $B", [(FIRST, number)])
    tokenizer.save(str(path), pretty=False)
    return number


def build_graph(table: NDArray[np.float32], first: int) -> ov.Model:
    """Return the graph from the arrays of a `Packing` to token vectors, which are zero for the id `first`."""
    rows = np.zeros((len(table) + 1, table.shape[1]), np.float32)
    rows[: len(table)] = table
    rows[first] = 0
    ids = ops.parameter([-1, -1], np.int32, "ids")
    positions = ops.parameter([-1, -1], np.int32, "positions")
    bias = ops.parameter([-1, 1, -1, -1], np.float32, "bias")
    return ov.Model([ops.gather(ops.constant(rows), ids, np.int64(0))], [ids, positions, bias], "model")


def _unknown_id(path: Path) -> int | None:
    """Return the id of the tokenizer's token for unknown words; None without one, as in a Unigram model."""
    tokenizer = Tokenizer.from_file(str(path))
    token: str | None = getattr(tokenizer.model, "unk_token", None)
    return None if token is None else tokenizer.token_to_id(token)
