"""The torch engine, for GPUs. It computes the original weights."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import fields, replace
from functools import cache, partial, reduce
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from shoal.errors import BadSetting
from shoal_workers.encoding.engines import Pooled
from shoal_workers.encoding.packing import Packing, TextSpans
from shoal_workers.model import weights
from shoal_workers.model.attention_settings import Attention
from shoal_workers.model.graph import MASKED
from shoal_workers.model.model import Model
from shoal_workers.model.original_files import OriginalFiles
from shoal_workers.model.transformer import Transformer, read_transformer

_DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


class TorchEngine:
    """The original model, on the GPU if there is one, otherwise on the CPU. Raises BadSetting for a wrong precision."""

    name = "torch"
    num_streams = 1
    fixed_steps = False
    is_ragged = True

    def __init__(self, model: Model, precision: str, threads: int):
        # Torch keeps its number of compute threads separately for each calling thread. So the number is set in the
        # engine's thread and in this thread.
        self._thread = ThreadPoolExecutor(1, "torch", torch.set_num_threads, (threads,))
        torch.set_num_threads(threads)
        self.threads = threads
        device = "cuda" if torch.cuda.is_available() else "cpu"
        fastest = "bf16" if device == "cuda" else "f32"
        self.precision = fastest if precision == "auto" else precision
        if self.precision not in _DTYPES:
            raise BadSetting(f"precision is {precision!r}: the torch engine takes one of auto, {', '.join(_DTYPES)}")
        original = OriginalFiles(Path(model.source))
        tensors = weights.read(original.transformer)
        transformer = read_transformer(original.config, tensors, model.is_reranker, original.pooled_dense())
        self._module = JoinedTransformer(transformer, device, _DTYPES[self.precision])

    def start(self, packings: Sequence[Packing], together: bool = False) -> "list[TorchPass]":
        return [TorchPass(self._thread.submit(self._forward, packing)) for packing in packings]

    def start_aside(self, packings: Sequence[Packing]) -> "list[TorchPass]":  # with one stream, no pass runs aside
        return self.start(packings)

    def resized(self, threads: int) -> "TorchEngine":
        self._thread.submit(torch.set_num_threads, threads)
        self.threads = threads
        return self

    @torch.inference_mode()
    def _forward(self, packing: Packing) -> torch.Tensor:
        tokens: torch.Tensor = self._module(packing).float()
        return tokens


class TorchPass:
    """A pass that the engine's thread computes. Torch releases the interpreter's lock meanwhile."""

    def __init__(self, running: "Future[torch.Tensor]"):
        self._running = running

    def ends_within(self, seconds: float) -> bool:
        return self._running.done()

    @torch.inference_mode()
    def wait(self, spans: TextSpans, poolings: Iterable[str]) -> Pooled:
        tokens = self._running.result()
        starts, lengths = (torch.from_numpy(array).to(tokens.device) for array in spans)
        return {how: _pool(how, tokens, starts, lengths).cpu().numpy() for how in poolings}


def _pool(how: str, tokens: torch.Tensor, starts: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Pool like `shoal_workers.encoding.pooling.pool`, but on the GPU, so that only pooled vectors are copied."""
    if how == "cls":
        return tokens[starts]
    if how == "lasttoken":
        return tokens[starts + lengths - 1]
    return tokens if how == "tokens" else torch.segment_reduce(tokens, how, lengths=lengths)


class Grid:
    """A grid of tokens, with a row for each text and padding at the end of rows. Position 0 begins a new text."""

    def __init__(self, positions: NDArray[np.int32], device: torch.device):
        starts = np.flatnonzero(positions == 0)
        lengths = np.diff(starts, append=len(positions))
        self.num_tokens, self.num_texts, self.num_columns = len(positions), len(lengths), int(lengths.max())
        self.lengths = torch.from_numpy(lengths).to(device)
        self.is_full = self.num_tokens == self.num_texts * self.num_columns
        before = np.arange(self.num_texts) * self.num_columns - starts
        self._places = torch.from_numpy(np.arange(len(positions)) + np.repeat(before, lengths)).to(device)

    def spread(self, tokens: torch.Tensor, padding: float = 0.0) -> torch.Tensor:
        """Return the vectors of tokens, `[tokens, …]`, in the grid: `[texts, columns, …]`."""
        if not self.is_full:
            padded = tokens.new_full((self.num_texts * self.num_columns, *tokens.shape[1:]), padding)
            padded[self._places] = tokens
            tokens = padded
        return tokens.view(self.num_texts, self.num_columns, *tokens.shape[1:])

    def join(self, grid: torch.Tensor) -> torch.Tensor:
        """Return the vectors in the grid, `[texts, columns, …]`, without padding: `[tokens, …]`."""
        flat = grid.flatten(0, 1)
        return flat if self.is_full else flat[self._places]


class Attending(NamedTuple):
    """Attention in a grid, the same for all layers with equal settings.

    `bias` is added to attention scores, `[texts, heads, queries, keys]`. `angles` are the cosines and sines that rotate
    queries and keys. `distances` has the row of each query and key in the layers' distance tables (DeBERTa).
    """

    grid: Grid
    bias: torch.Tensor | None
    is_causal: bool
    angles: torch.Tensor | None
    distances: torch.Tensor | None


_FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "relu": functional.relu,
    "silu": functional.silu,
    "tanh": torch.tanh,
}


class JoinedTransformer:
    """A transformer that computes the token vectors of texts that `packing.join` has joined."""

    def __init__(self, transformer: Transformer, device: str = "cpu", dtype: torch.dtype = torch.float32):
        rotating = {layer.attention for layer in transformer.layers if layer.attention.theta}
        angles = {attention: np.stack(transformer.angles(attention)) for attention in rotating}
        parts = {item.name: getattr(transformer, item.name) for item in fields(transformer)}
        self._angles = {attention: _to_tensors(table, device, dtype) for attention, table in angles.items()}
        tensors = {name: _to_tensors(part, device, dtype) for name, part in parts.items()}
        self._model: Any = replace(transformer, **tensors)

    def __call__(self, packing: Packing) -> torch.Tensor:
        """Return the vectors of the tokens of the joined texts, `[tokens, width]`."""
        model, device = self._model, self._model.words.device
        ids, positions, unseen = (torch.from_numpy(array.ravel()).to(device) for array in packing)
        grid = Grid(packing.positions.ravel(), device)
        tokens = functional.embedding(ids, model.words)
        if len(model.positions):
            tokens = tokens + functional.embedding(positions, model.positions)
        tokens = self._norm(tokens, model.norm)
        attend = cache(partial(self._attending, grid, unseen))  # layers with equal attention share tables
        for layer in model.layers:
            tokens = self._layer(tokens, layer, attend(layer.attention))
        tokens = self._norm(tokens, model.final_norm)
        if model.dense is not None:
            tokens = functional.linear(tokens, *model.dense)
        return tokens if model.head is None else self._scores(tokens, model.head, grid)

    def _attending(self, grid: Grid, unseen: torch.Tensor, attention: Attention) -> Attending:
        model, columns = self._model, torch.arange(grid.num_columns, device=unseen.device)
        like, farthest, distance, terms = model.words, model.num_positions - 1, columns - columns[:, None], []
        if len(unseen) or not (grid.is_full or attention.is_causal):  # causal queries see no padding
            of_keys = unseen if len(unseen) else unseen.new_zeros(grid.num_tokens)
            terms.append(grid.spread(of_keys.to(like), MASKED)[:, None, None])
        if model.relative_bias is not None:
            terms.append(functional.embedding(distance + farthest, model.relative_bias).permute(2, 0, 1)[None])
        if attention.window:
            terms.append((distance.abs() > attention.window).to(like)[None, None] * MASKED)
        if attention.is_causal and terms:
            terms.append((distance > 0).to(like)[None, None] * MASKED)
        angles = self._angles[attention][:, : grid.num_columns, None] if attention.theta else None
        distances = None if model.distance_rows is None else model.distance_rows[distance + farthest]
        bias = reduce(torch.add, terms) if terms else None
        return Attending(grid, bias, attention.is_causal and not terms, angles, distances)

    def _layer(self, tokens: torch.Tensor, layer: Any, attending: Attending) -> torch.Tensor:
        norm = self._norm
        if self._model.norms_first:
            attended = self._attended(norm(tokens, layer.attention_norm), layer, attending)
            tokens = tokens + norm(attended, layer.attention_end)
            return tokens + norm(self._network(norm(tokens, layer.output_norm), layer), layer.output_end)
        tokens = norm(tokens + self._attended(tokens, layer, attending), layer.attention_norm)
        return norm(tokens + self._network(tokens, layer), layer.output_norm)

    def _attended(self, tokens: torch.Tensor, layer: Any, attending: Attending) -> torch.Tensor:
        grid, bias, is_causal, angles, distances = attending
        num_heads, num_keys = self._model.num_heads, self._model.num_key_heads
        projected = grid.spread(functional.linear(tokens, *layer.qkv))
        heads = projected.view(*projected.shape[:2], num_heads + 2 * num_keys, -1)
        query, key, value = torch.split(heads, [num_heads, num_keys, num_keys], 2)
        query, key = self._norm(query, layer.query_norm), self._norm(key, layer.key_norm)
        if angles is not None:
            query, key = _rotated(query, *angles), _rotated(key, *angles)
        if (per_key := num_heads // num_keys) > 1:
            key, value = key.repeat_interleave(per_key, 2), value.repeat_interleave(per_key, 2)
        query, key, value = (part.transpose(1, 2) for part in (query, key, value))
        if distances is not None:
            rows = distances.expand(*query.shape[:2], -1, -1)
            scores = (query @ layer.distances.keys.transpose(-1, -2)).gather(3, rows)
            scores += (layer.distances.queries @ key.transpose(-1, -2)).gather(2, rows)
            bias = scores if bias is None else bias + scores
        attended = functional.scaled_dot_product_attention(query, key, value, bias, is_causal=is_causal, scale=1.0)
        return functional.linear(grid.join(attended.transpose(1, 2)).flatten(1), *layer.attention_out)

    def _network(self, tokens: torch.Tensor, layer: Any) -> torch.Tensor:
        inner, function = functional.linear(tokens, *layer.up), _FUNCTIONS[self._model.activation]
        if self._model.is_gated:
            passed, gate = inner.chunk(2, -1)
            return functional.linear(function(passed) * gate, *layer.down)
        return functional.linear(function(inner), *layer.down)

    def _scores(self, tokens: torch.Tensor, head: Any, grid: Grid) -> torch.Tensor:
        if head.is_of_mean:
            means = torch.segment_reduce(tokens, "mean", lengths=grid.lengths)
            tokens = means.repeat_interleave(grid.lengths, 0, output_size=len(tokens))
        inner = _FUNCTIONS[head.activation](functional.linear(tokens, *head.dense))
        return functional.linear(self._norm(inner, head.norm), *head.out)

    def _norm(self, tokens: torch.Tensor, norm: Any) -> torch.Tensor:
        (scale, shift), eps = norm, self._model.eps
        if not len(scale):
            return tokens
        if not len(shift):
            return functional.rms_norm(tokens, scale.shape, scale, eps)
        return functional.layer_norm(tokens, scale.shape, scale, shift, eps)


def _rotated(heads: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
    """Return queries or keys `[texts, columns, num_heads, size]`, rotated by the angles of their columns."""
    first, second = heads.chunk(2, -1)
    return heads * cosines + torch.cat([-second, first], -1) * sines


def _to_tensors(value: Any, device: str, dtype: torch.dtype) -> Any:
    """Return a value of a `Transformer` with its arrays as tensors of this type. Whole numbers stay whole numbers."""
    if isinstance(value, np.ndarray):
        tensor = torch.tensor(value)
        return tensor.to(device, dtype if tensor.is_floating_point() else torch.long)
    if isinstance(value, tuple):
        parts = [_to_tensors(part, device, dtype) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value
