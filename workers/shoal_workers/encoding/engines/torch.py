"""The torch engine, for GPUs. It computes the original weights."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, partial, reduce
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from shoal.errors import BadSetting
from shoal_workers.encoding.engines import Pooled
from shoal_workers.encoding.packing import Packing, TextSpans
from shoal_workers.model import weights
from shoal_workers.model.attention import Attention
from shoal_workers.model.graph import MASKED
from shoal_workers.model.model import Model
from shoal_workers.model.original import Original
from shoal_workers.model.transformer import Layer, Linear, Norm, ScoreHead, Transformer, read_transformer

_DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


class TorchEngine:
    """The original model, on the GPU if there is one, otherwise on the CPU. Raises BadSetting for a wrong precision."""

    name = "torch"
    num_streams = 1
    fixed_steps = False
    is_ragged = True

    def __init__(self, model: Model, precision: str, threads: int):
        # Torch keeps its number of compute threads separately for each calling thread. So it is set in the engine's
        # thread and in this one.
        self._thread = ThreadPoolExecutor(1, "torch", torch.set_num_threads, (threads,))
        torch.set_num_threads(threads)
        self.threads = threads
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        fastest = "bf16" if self._device == "cuda" else "f32"
        self.precision = fastest if precision == "auto" else precision
        if self.precision not in _DTYPES:
            raise BadSetting(f"precision is {precision!r}: the torch engine takes one of auto, {', '.join(_DTYPES)}")
        self._dtype = _DTYPES[self.precision]
        original = Original(Path(model.source))
        tensors = weights.read(original.transformer)
        transformer = read_transformer(original.config, tensors, model.is_reranker, original.pooled_dense())
        self._module = JoinedTransformer(transformer).eval().to(self._device, self._dtype)

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
    """Places for the tokens of texts, in a row for each text, with padding. A text begins at each position 0."""

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
    """The attention of layers in a grid.

    `bias` is added to attention scores, `[texts, heads, queries, keys]`. `angles` are the cosines and sines that rotate
    queries and keys. `distances` are the rows of tables for each query and key (DeBERTa).
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


class JoinedTransformer(torch.nn.Module):
    """A transformer that computes the token vectors of texts that `packing.join` has joined."""

    def __init__(self, transformer: Transformer):
        super().__init__()
        self.words, self.positions = _parameter(transformer.words), _parameter(transformer.positions)
        self.norm, self.final_norm = (
            _norm(norm, transformer.eps) for norm in (transformer.norm, transformer.final_norm)
        )
        self.layers = torch.nn.ModuleList(_Layer(layer, transformer) for layer in transformer.layers)
        bias, rows = transformer.relative_bias, transformer.distance_rows
        self.relative_bias = None if bias is None else _parameter(bias)
        self.distance_rows = None if rows is None else torch.nn.Parameter(torch.tensor(rows).long(), False)
        self.farthest, self.num_heads = transformer.num_positions - 1, transformer.num_heads
        self.attention = [layer.attention for layer in transformer.layers]
        for attention in {attention for attention in self.attention if attention.theta}:
            cosines_and_sines = torch.tensor(np.stack(transformer.angles(attention)))
            self.register_buffer(_name(attention), cosines_and_sines, persistent=False)
        self.dense = None if transformer.dense is None else _linear(transformer.dense)
        self.head = None if transformer.head is None else _Head(transformer.head, transformer.eps)

    def forward(self, packing: Packing) -> torch.Tensor:
        """Return the vectors of the tokens of the joined texts, `[tokens, width]`."""
        device = self.words.device
        ids, positions, unseen = (torch.from_numpy(array.ravel()).to(device) for array in packing)
        grid = Grid(packing.positions.ravel(), device)
        tokens = functional.embedding(ids, self.words)
        if len(self.positions):
            tokens = tokens + functional.embedding(positions, self.positions)
        tokens = self.norm(tokens)
        attend = cache(partial(self._attending, grid, unseen))  # layers with equal attention share tables
        for layer, attention in zip(self.layers, self.attention, strict=True):
            tokens = layer(tokens, attend(attention))
        tokens = self.final_norm(tokens)
        if self.dense is not None:
            tokens = self.dense(tokens)
        result: torch.Tensor = tokens if self.head is None else self.head(tokens, grid)
        return result

    def _attending(self, grid: Grid, unseen: torch.Tensor, attention: Attention) -> Attending:
        like, columns = self.words, torch.arange(grid.num_columns, device=unseen.device)
        distance, terms = columns - columns[:, None], []
        if len(unseen) or not (grid.is_full or attention.is_causal):  # causal queries see no padding
            of_keys = unseen if len(unseen) else unseen.new_zeros(grid.num_tokens)
            terms.append(grid.spread(of_keys.to(like), MASKED)[:, None, None])
        if self.relative_bias is not None:
            terms.append(functional.embedding(distance + self.farthest, self.relative_bias).permute(2, 0, 1)[None])
        if attention.window:
            terms.append((distance.abs() > attention.window).to(like)[None, None] * MASKED)
        if attention.is_causal and terms:
            terms.append((distance > 0).to(like)[None, None] * MASKED)
        angles = self.get_buffer(_name(attention))[:, : grid.num_columns, None] if attention.theta else None
        distances = None if self.distance_rows is None else self.distance_rows[distance + self.farthest]
        bias = reduce(torch.add, terms) if terms else None
        return Attending(grid, bias, attention.is_causal and not terms, angles, distances)


def _name(attention: Attention) -> str:
    return f"angles_{attention.theta}_{attention.slowing}".replace(".", "_")


class _Layer(torch.nn.Module):
    def __init__(self, layer: Layer, transformer: Transformer):
        super().__init__()
        keys = transformer.num_key_heads
        self.heads = [transformer.num_heads, keys, keys]
        self.norms_first, self.is_gated = transformer.norms_first, transformer.is_gated
        self.query_norm, self.key_norm = (_norm(norm, transformer.eps) for norm in (layer.query_norm, layer.key_norm))
        self.activation = _FUNCTIONS[transformer.activation]
        keys_and_queries = layer.distances or ()
        self.distances = torch.nn.ParameterList(map(_parameter, keys_and_queries))
        self.qkv, self.attention_out = _linear(layer.qkv), _linear(layer.attention_out)
        self.up, self.down = _linear(layer.up), _linear(layer.down)
        norms = (layer.attention_norm, layer.attention_end, layer.output_norm, layer.output_end)
        self.attention_norm, self.attention_end, self.output_norm, self.output_end = (
            _norm(norm, transformer.eps) for norm in norms
        )

    def forward(self, tokens: torch.Tensor, attending: Attending) -> torch.Tensor:
        if self.norms_first:
            tokens = tokens + self.attention_end(self._attended(self.attention_norm(tokens), attending))
            result: torch.Tensor = tokens + self.output_end(self._network(self.output_norm(tokens)))
        else:
            tokens = self.attention_norm(tokens + self._attended(tokens, attending))
            result = self.output_norm(tokens + self._network(tokens))
        return result

    def _attended(self, tokens: torch.Tensor, attending: Attending) -> torch.Tensor:
        grid, bias, is_causal, angles, distances = attending
        projected = grid.spread(self.qkv(tokens))
        heads = torch.split(projected.view(*projected.shape[:2], sum(self.heads), -1), self.heads, 2)
        query, key, value = self.query_norm(heads[0]), self.key_norm(heads[1]), heads[2]
        if angles is not None:
            query, key = _rotated(query, *angles), _rotated(key, *angles)
        if (per_key := self.heads[0] // self.heads[1]) > 1:
            key, value = key.repeat_interleave(per_key, 2), value.repeat_interleave(per_key, 2)
        query, key, value = (part.transpose(1, 2) for part in (query, key, value))
        if distances is not None:
            rows = distances.expand(*query.shape[:2], -1, -1)
            keys, queries = self.distances
            scores = (query @ keys.transpose(-1, -2)).gather(3, rows)
            scores += (queries @ key.transpose(-1, -2)).gather(2, rows)
            bias = scores if bias is None else bias + scores
        attended = functional.scaled_dot_product_attention(query, key, value, bias, is_causal=is_causal, scale=1.0)
        result: torch.Tensor = self.attention_out(grid.join(attended.transpose(1, 2)).flatten(1))
        return result

    def _network(self, tokens: torch.Tensor) -> torch.Tensor:
        inner = self.up(tokens)
        if self.is_gated:
            passed, gate = inner.chunk(2, -1)
            result: torch.Tensor = self.down(self.activation(passed) * gate)
        else:
            result = self.down(self.activation(inner))
        return result


def _rotated(heads: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
    """Return queries or keys `[texts, columns, num_heads, size]`, rotated by the angles of their columns."""
    first, second = heads.chunk(2, -1)
    return heads * cosines + torch.cat([-second, first], -1) * sines


class _Head(torch.nn.Module):
    def __init__(self, head: ScoreHead, eps: float):
        super().__init__()
        self.is_of_mean, self.activation = head.is_of_mean, _FUNCTIONS[head.activation]
        self.dense, self.norm, self.out = _linear(head.dense), _norm(head.norm, eps), _linear(head.out)

    def forward(self, tokens: torch.Tensor, grid: Grid) -> torch.Tensor:
        if self.is_of_mean:
            means = torch.segment_reduce(tokens, "mean", lengths=grid.lengths)
            tokens = means.repeat_interleave(grid.lengths, 0, output_size=len(tokens))
        result: torch.Tensor = self.out(self.norm(self.activation(self.dense(tokens))))
        return result


def _linear(linear: Linear) -> torch.nn.Linear:
    made = torch.nn.Linear(linear.weights.shape[1], linear.weights.shape[0], device="meta")
    made.weight, made.bias = _parameter(linear.weights), _parameter(linear.bias)
    return made


def _norm(norm: Norm, eps: float) -> torch.nn.Module:
    if not norm.scale.size:
        return torch.nn.Identity()
    if not norm.shift.size:
        rms = torch.nn.RMSNorm(norm.scale.size, eps, device="meta")
        rms.weight = _parameter(norm.scale)
        return rms
    made = torch.nn.LayerNorm(norm.scale.size, eps, device="meta")
    made.weight, made.bias = _parameter(norm.scale), _parameter(norm.shift)
    return made


def _parameter(array: NDArray[np.float32]) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.tensor(array), requires_grad=False)
