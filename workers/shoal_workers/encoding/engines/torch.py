"""The torch engine, for GPUs. It computes the original weights."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path

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
    is_ragged = False

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
        self._module = PackedTransformer(transformer).eval().to(self._device, self._dtype)

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
        ids, positions, bias = (torch.from_numpy(array).to(self._device, non_blocking=True) for array in packing)
        tokens: torch.Tensor = self._module(ids, positions, bias.to(self._dtype)).flatten(0, 1).float()
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
    """Pool like `shoal_workers.encoding.pooling.pool`, but on the GPU, so that few token vectors must leave it."""
    if how == "cls":
        return tokens[starts]
    if how == "lasttoken":
        return tokens[starts + lengths - 1]
    owners = torch.repeat_interleave(torch.arange(len(lengths), device=tokens.device), lengths)
    first = torch.cumsum(lengths, 0) - lengths
    packed = tokens[torch.arange(len(owners), device=tokens.device) - first[owners] + starts[owners]]
    return packed if how == "tokens" else torch.segment_reduce(packed, how, lengths=lengths)


_FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "relu": functional.relu,
    "silu": functional.silu,
    "tanh": torch.tanh,
}


class PackedTransformer(torch.nn.Module):
    """A transformer that computes the token vectors of a `Packing`, with attention only within each text."""

    def __init__(self, transformer: Transformer):
        super().__init__()
        self.words, self.positions = _parameter(transformer.words), _parameter(transformer.positions)
        self.norm, self.final_norm = (
            _norm(norm, transformer.eps) for norm in (transformer.norm, transformer.final_norm)
        )
        self.layers = torch.nn.ModuleList(_PackedLayer(layer, transformer) for layer in transformer.layers)
        bias, rows = transformer.relative_bias, transformer.distance_rows
        self.relative_bias = None if bias is None else _parameter(bias)
        self.distance_rows = None if rows is None else torch.nn.Parameter(torch.tensor(rows).long(), False)
        self.farthest, self.num_heads = transformer.num_positions - 1, transformer.num_heads
        self.attention = [layer.attention for layer in transformer.layers]
        for attention in {attention for attention in self.attention if attention.theta}:
            cosines_and_sines = torch.tensor(np.stack(transformer.angles(attention)))
            self.register_buffer(_name(attention), cosines_and_sines, persistent=False)
        self.dense = None if transformer.dense is None else _linear(transformer.dense)
        self.head = None if transformer.head is None else _PackedHead(transformer.head, transformer.eps)

    def forward(self, ids: torch.Tensor, positions: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        tokens = functional.embedding(ids, self.words)
        if len(self.positions):
            tokens = tokens + functional.embedding(positions, self.positions)
        attention_bias, rows = bias, None
        if self.distance_rows is not None:
            rows = self.distance_rows[self._distances(positions)][:, None].expand(-1, self.num_heads, -1, -1)
        if self.relative_bias is not None:
            distance = self._distances(positions)
            attention_bias = bias + functional.embedding(distance, self.relative_bias).permute(0, 3, 1, 2)
        tokens = self.norm(tokens)
        attend = cache(partial(self._attending, positions, attention_bias))  # layers with equal attention share tables
        for layer, attention in zip(self.layers, self.attention, strict=True):
            tokens = layer(tokens, *attend(attention), rows)
        tokens = self.final_norm(tokens)
        if self.dense is not None:
            tokens = self.dense(tokens)
        result: torch.Tensor = tokens if self.head is None else self.head(tokens, bias)
        return result

    def _distances(self, positions: torch.Tensor) -> torch.Tensor:
        """Return, for each two tokens of a row, the index of their distance in a table of distances."""
        return positions[:, None, :] - positions[:, :, None] + self.farthest

    def _attending(
        self, positions: torch.Tensor, bias: torch.Tensor, attention: Attention
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the bias of attention scores, and the cosines and sines that rotate queries and keys, if any."""
        if attention.window:
            is_far = (positions[:, None, :, None] - positions[:, None, None, :]).abs() > attention.window
            bias = bias.masked_fill(is_far, MASKED)
        if attention.is_causal:
            bias = bias.masked_fill(positions[:, None, None, :] > positions[:, None, :, None], MASKED)
        return bias, self.get_buffer(_name(attention))[:, positions, None] if attention.theta else None


def _name(attention: Attention) -> str:
    return f"angles_{attention.theta}_{attention.slowing}".replace(".", "_")


class _PackedLayer(torch.nn.Module):
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

    def forward(
        self, tokens: torch.Tensor, bias: torch.Tensor, angles: torch.Tensor | None, rows: torch.Tensor | None
    ) -> torch.Tensor:
        if self.norms_first:
            tokens = tokens + self.attention_end(self._attended(self.attention_norm(tokens), bias, angles, rows))
            result: torch.Tensor = tokens + self.output_end(self._network(self.output_norm(tokens)))
        else:
            tokens = self.attention_norm(tokens + self._attended(tokens, bias, angles, rows))
            result = self.output_norm(tokens + self._network(tokens))
        return result

    def _attended(
        self, tokens: torch.Tensor, bias: torch.Tensor, angles: torch.Tensor | None, rows: torch.Tensor | None
    ) -> torch.Tensor:
        heads = self.qkv(tokens).unflatten(-1, (sum(self.heads), -1)).split(self.heads, 2)
        query, key, value = self.query_norm(heads[0]), self.key_norm(heads[1]), heads[2]
        if angles is not None:
            query, key = _rotated(query, *angles), _rotated(key, *angles)
        per_key = self.heads[0] // self.heads[1]
        query, key, value = (
            part.repeat_interleave(count, 2).transpose(1, 2)
            for part, count in ((query, 1), (key, per_key), (value, per_key))
        )
        scores = query @ key.transpose(-1, -2) + bias
        if rows is not None:
            keys, queries = self.distances
            scores = scores + (query @ keys.transpose(-1, -2)).gather(3, rows)
            scores = scores + (queries @ key.transpose(-1, -2)).gather(2, rows)
        attended: torch.Tensor = torch.softmax(scores, -1) @ value
        result: torch.Tensor = self.attention_out(attended.transpose(1, 2).flatten(2))
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
    """Return queries or keys `[rows, length, num_heads, size]`, rotated by the angles of their positions."""
    first, second = heads.chunk(2, -1)
    return heads * cosines + torch.cat([-second, first], -1) * sines


class _PackedHead(torch.nn.Module):
    def __init__(self, head: ScoreHead, eps: float):
        super().__init__()
        self.is_of_mean, self.activation = head.is_of_mean, _FUNCTIONS[head.activation]
        self.dense, self.norm, self.out = _linear(head.dense), _norm(head.norm, eps), _linear(head.out)

    def forward(self, tokens: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        if self.is_of_mean:  # the mean is an attention with equal weights for all tokens of a text
            tokens = torch.softmax(bias[:, 0], -1) @ tokens
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
