"""A model's weights in one form for all architectures. Each engine makes its forward pass from this form."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.contract.excerpt import excerpt
from shoal.errors import ModelMismatch
from shoal_workers.model.architecture import (
    ACTIVATIONS,
    ARCHITECTURES,
    LATE_CLASS,
    MAX_SIZE,
    Architecture,
)
from shoal_workers.model.attention_settings import Attention, read_attention

Array = NDArray[np.float32]

#: Limit of rotary positions. A text of this length needs 2 GB, because attention has numbers for each pair of tokens.
MAX_ROTARY = 8_192


class Linear(NamedTuple):
    """A linear layer: `weights` `[outputs, inputs]` and `bias` `[outputs]`."""

    weights: Array
    bias: Array


class Norm(NamedTuple):
    """The scale and shift of a layer norm, `[width]` each. If both are empty, there is no norm.

    If only the shift is empty, it is an RMS norm, which does not subtract the mean.
    """

    scale: Array
    shift: Array


NO_NORM = Norm(np.empty(0, np.float32), np.empty(0, np.float32))


class Distances(NamedTuple):
    """A key and a scaled query for each distance of two tokens, each `[heads, distances, size of a head]` (DeBERTa).

    Two products are added to the attention score of two tokens: the query of the first token with the key of their
    distance, and the query of their distance with the key of the second token.
    """

    keys: Array
    queries: Array


class Layer(NamedTuple):
    """One layer. `qkv` makes the scaled query, the key and the value of each token, each `[heads x size]`.

    Keys and values may have fewer heads than queries; then several query heads share a key head. `up` and `down` are
    the two linear layers of the network after attention. `norms_first` of the `Transformer` says where the norms come.
    """

    qkv: Linear
    attention_out: Linear
    attention_norm: Norm
    up: Linear
    down: Linear
    output_norm: Norm
    attention: Attention = Attention()
    query_norm: Norm = NO_NORM
    key_norm: Norm = NO_NORM
    attention_end: Norm = NO_NORM
    output_end: Norm = NO_NORM
    distances: Distances | None = None


class ScoreHead(NamedTuple):
    """The layers that compute scores from each token's vector: a linear layer, a function, a norm, a linear layer.

    With `is_of_mean`, each token's vector is first replaced by the mean of the vectors of its text.
    """

    dense: Linear
    activation: str
    out: Linear
    norm: Norm = NO_NORM
    is_of_mean: bool = False


@dataclass(frozen=True, slots=True)
class Transformer:
    """The weights of an encoder, under the same names for all architectures.

    `positions` is `[token types x num_positions, width]`: a token of a type at a position gets the vector in row
    `type x num_positions + position`. Without a head only the first token type is kept. A model with rotary positions
    has no rows. `relative_bias` is `[2 x num_positions - 1, num_heads]`: row `q - p + num_positions - 1` is added to
    the attention scores of a token at position p for a token at position q. The same row of `distance_rows` has the
    index of their distance in the `distances` of each layer. `dense` is applied to the token vectors at the end.
    """

    words: Array
    positions: Array
    num_positions: int
    norm: Norm
    layers: tuple[Layer, ...]
    num_heads: int
    eps: float
    activation: str
    relative_bias: Array | None = None
    distance_rows: NDArray[np.int32] | None = None
    head: ScoreHead | None = None
    norms_first: bool = False
    is_gated: bool = False
    final_norm: Norm = NO_NORM
    dense: Linear | None = None

    @property
    def num_weights(self) -> int:
        """The number of weights in the layers. Each of them is used once for each token."""
        parts = (part for layer in self.layers for part in layer if isinstance(part, Linear | Norm))
        return sum(array.size for part in parts for array in part)

    @property
    def head_size(self) -> int:
        """The number of values in a head."""
        return int(self.layers[0].attention_out.weights.shape[1]) // self.num_heads

    @property
    def num_key_heads(self) -> int:
        """The number of key heads, which is also the number of value heads."""
        return (len(self.layers[0].qkv.bias) // self.head_size - self.num_heads) // 2

    @property
    def other_blocks(self) -> str:
        """The blocks that BERT lacks, in words; empty if there are none."""
        words = {
            "norms before attention": self.norms_first,
            "gates": self.is_gated,
            "rotary positions": any(layer.attention != Attention() for layer in self.layers),
            "a bias of each distance": self.relative_bias is not None,
            "keys of distances": self.distance_rows is not None,
            "a Dense layer": self.dense is not None,
        }
        return " and ".join(word for word, is_so in words.items() if is_so)

    def angles(self, attention: Attention) -> tuple[Array, Array]:
        """Return cosine and sine of the angles of each position, `[num_positions, size of a head]` each (RoFormer)."""
        size = self.head_size
        speeds = 1 / np.float32(attention.theta) ** (np.arange(0, size, 2, dtype=np.float32) / np.float32(size))
        speeds /= np.float32(attention.slowing)
        found = np.arange(self.num_positions, dtype=np.float32)[:, None] * np.tile(speeds, 2)
        return np.cos(found), np.sin(found)


def read_transformer(
    config: Mapping[str, Any], tensors: dict[str, Array], has_head: bool = False, dense: Linear | None = None
) -> Transformer:
    """Return the model, from supported settings and from the tensors in its files. Raises ModelMismatch."""
    found = _Reader(config, tensors, has_head).transformer()
    return found if dense is None else replace(found, dense=dense)


def read_words_head(config: Mapping[str, Any], tensors: dict[str, Array], words: Array) -> ScoreHead:
    """Return the head that makes a number for each word from token vectors. Raises ModelMismatch.

    `words` are the word embeddings, which are also the head's weights unless `tie_word_embeddings` is false.
    """
    reader = _Reader(config, tensors, has_head=False)
    if (names := reader.architecture.words_head) is None:
        raise ModelMismatch(f"Shoal computes no weights of words for a {config['model_type']}: use another model")
    own = {part: f"{names.out}.decoder.{part}" for part in ("weight", "bias")}
    own = {part: name if name in reader.tensors else f"{names.out}.{part}" for part, name in own.items()}
    if config.get("tie_word_embeddings") is False:
        words = reader._take(own["weight"], *words.shape)
    has_no_bias = config.get("decoder_bias") is False  # possible in ModernBERT
    return ScoreHead(
        reader._linear(names.dense, reader.width, reader.width),
        names.activation or ACTIVATIONS[config["hidden_act"]],
        Linear(words, np.zeros(len(words), np.float32) if has_no_bias else reader._take(own["bias"], len(words))),
        reader._norm("", names.norm),
    )


class _Reader:
    """Reads settings and tensors, once. A tensor that was read is removed, so tensors that are left are unknown."""

    def __init__(self, config: Mapping[str, Any], tensors: dict[str, Array], has_head: bool):
        self.config = config
        self.architecture: Architecture = ARCHITECTURES[config["model_type"]]
        self.names = self.architecture.tensors
        self.has_head = has_head
        self.tensors = {  # in old files, layer norms have `gamma` and `beta`
            name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias"): tensor
            for name, tensor in tensors.items()
        }
        prefix = self.architecture.tensor_prefix
        self.prefix = prefix if any(name.startswith(prefix) for name in self.tensors) else ""
        self.width, self.inner = self._size("hidden_size"), self._size("intermediate_size")
        self.num_layers, self.num_heads = self._size("num_hidden_layers"), self._size("num_attention_heads")
        self.num_key_heads, self.head_size = self.num_heads, self.width // self.num_heads
        if not self.architecture.has_key_heads and self.width % self.num_heads:
            raise ModelMismatch(
                f"hidden_size is {self.width}, no multiple of its {self.num_heads} heads: fetch the model again"
            )
        if self.architecture.has_key_heads:
            self.head_size = self._size("head_dim")
            if config.get("num_key_value_heads", 0) is not None:
                self.num_key_heads = self._size("num_key_value_heads")
        if self.num_heads % self.num_key_heads:
            raise ModelMismatch(
                f"{self.num_heads} query heads are not a multiple of {self.num_key_heads} key heads: use another model"
            )
        if self.architecture.attention and self.head_size % 2:
            raise ModelMismatch(
                f"heads have {self.head_size} numbers, and rotary positions need pairs: use another model"
            )

    def transformer(self) -> Transformer:
        names = self.names
        positions, num_positions = self._positions()
        if names.distances:
            self.distance_vectors = self._distance_vectors()
        words = self._words()
        head = self._head(words) if self.has_head else None
        found = Transformer(
            words=words,
            positions=positions,
            num_positions=num_positions,
            norm=self._norm(self.prefix, names.norm),
            layers=tuple(self._layer(n) for n in range(self.num_layers)),
            num_heads=self.num_heads,
            eps=self._eps(),
            activation=ACTIVATIONS[self.config["hidden_act"]],
            relative_bias=self._relative_bias(num_positions) if names.relative_bias else None,
            distance_rows=self._distance_rows(num_positions) if names.distances else None,
            head=head if isinstance(head, ScoreHead) else None,
            norms_first=self.architecture.norms_first,
            is_gated=self.architecture.is_gated,
            final_norm=self._norm(self.prefix, names.final_norm),
            dense=head if isinstance(head, Linear) else None,
        )
        self._refuse_unknown()
        return found

    def _words(self) -> Array:
        """Return the vector of each word, with the vector of the first token type added if positions have none."""
        names = self.names
        words = self._take(f"{self.prefix}{names.words}.weight", self._size("vocab_size"), self.width)
        words = words * np.float32(self.width**0.5) if self.architecture.scales_words else words
        has_types = names.types and not names.positions and self._size("type_vocab_size", at_least=0)
        return words + self._types()[0] if has_types else words

    def _types(self) -> Array:
        return self._take(f"{self.prefix}{self.names.types}.weight", self._size("type_vocab_size"), self.width)

    def _positions(self) -> tuple[Array, int]:
        """Return the table of positions and token types, and the number of positions."""
        first, names = self.architecture.pad_rows, self.names
        if not names.positions:
            return np.empty((0, self.width), np.float32), min(self._size("max_position_embeddings"), MAX_ROTARY)
        if first is None:
            first = self._size("pad_token_id", at_least=0) + 1
        table = self._take(
            f"{self.prefix}{names.positions}.weight", self._size("max_position_embeddings", first + 1), self.width
        )[first:]
        if not names.types:
            return table, len(table)
        types = self._types()
        types = types if self.has_head else types[:1]
        return (types[:, None] + table).reshape(-1, self.width), len(table)

    def _layer(self, n: int) -> Layer:
        names, width, architecture = self.names, self.width, self.architecture
        prefix = self.prefix + names.layer.format(n)
        queries, keys = self.num_heads * self.head_size, self.num_key_heads * self.head_size
        qkv = self._joined(prefix, names.qkv, (queries, keys, keys))
        has_norm, how = n > 0 or architecture.has_first_norm, architecture.attention
        divisor = self._size(architecture.score_divisor) if architecture.score_divisor else self.head_size
        divisor *= 3 if names.distances else 1  # a score is then the sum of three products
        scaling = np.float32(divisor**-0.5)  # applied to queries, after their norm if any
        query_norm = self._norm(prefix, names.query_norm, self.head_size)
        query_norm = query_norm._replace(scale=query_norm.scale * scaling)
        scale = np.ones(len(qkv.bias), np.float32)
        scale[:queries] = 1 if names.query_norm else scaling
        qkv = Linear(qkv.weights * scale[:, None], qkv.bias * scale)
        return Layer(
            qkv=qkv,
            attention_out=self._linear(prefix + names.attention_out, width, queries),
            attention_norm=self._norm(prefix, names.attention_norm) if has_norm else NO_NORM,
            up=self._up(prefix),
            down=self._linear(prefix + names.down, width, self.inner),
            output_norm=self._norm(prefix, names.output_norm),
            attention=read_attention(self.config, how, n, self.num_layers) if how else Attention(),
            query_norm=query_norm,
            key_norm=self._norm(prefix, names.key_norm, self.head_size),
            attention_end=self._norm(prefix, names.attention_end),
            output_end=self._norm(prefix, names.output_end),
            distances=self._distances(prefix, qkv, scaling) if names.distances else None,
        )

    def _distance_span(self) -> tuple[int, int, int]:
        """Return half the number of distance vectors, the number of buckets (-1 or 0: none), and the largest distance.

        Raises ModelMismatch.
        """
        largest = self._size("max_relative_positions", at_least=-1) if "max_relative_positions" in self.config else -1
        largest = self._size("max_position_embeddings") if largest < 1 else largest
        buckets = self._size("position_buckets", at_least=-1) if "position_buckets" in self.config else -1
        if buckets > 0 and not 0 < buckets // 2 < largest - 1:
            raise ModelMismatch(
                f"position_buckets in config.json is {buckets}: it must be a number from 2 to {2 * largest - 3}"
            )
        return (buckets if buckets > 0 else largest), buckets, largest

    def _distance_vectors(self) -> Array:
        names = self.names
        table = self._take(f"{self.prefix}{names.distances}.weight", 2 * self._distance_span()[0], self.width)
        norm = self._norm(self.prefix, names.distance_norm)
        centred = table - table.mean(1, keepdims=True)
        found: Array = centred / np.sqrt((centred**2).mean(1, keepdims=True) + self._eps()) * norm.scale + norm.shift
        return found

    def _distance_rows(self, num_positions: int) -> NDArray[np.int32]:
        """Return the row of each distance: large distances share rows (DeBERTa)."""
        span, buckets, largest = self._distance_span()
        distance = -np.arange(1 - num_positions, num_positions)  # DeBERTa subtracts the position of the key
        if buckets > 0:
            middle = buckets // 2
            far = np.maximum(np.abs(distance), middle).astype(np.float32) / np.float32(middle)
            scale = np.log(np.float32((largest - 1) / middle))
            shared = np.ceil(np.log(far) / scale * np.float32(middle - 1)) + middle
            distance = np.where(np.abs(distance) <= middle, distance, np.sign(distance) * shared)
        found: NDArray[np.int32] = np.clip(distance + span, 0, 2 * span - 1).astype(np.int32)
        return found

    def _distances(self, prefix: str, qkv: Linear, scaling: np.float32) -> Distances:
        """Return the keys and queries of distances. In some models, `qkv` makes them from the distance vectors."""
        vectors, names, width = self.distance_vectors, self.names, self.width
        if self.config.get("share_att_key"):
            queries, keys, _ = np.split(vectors @ qkv.weights.T + qkv.bias, 3, axis=1)
        else:
            query, key = (
                self._linear(prefix + name, width, width) for name in (names.distance_query, names.distance_key)
            )
            queries, keys = (vectors @ query.weights.T + query.bias) * scaling, vectors @ key.weights.T + key.bias
        heads = (part.reshape(-1, self.num_heads, self.head_size).transpose(1, 0, 2) for part in (keys, queries))
        return Distances(*heads)

    def _up(self, prefix: str) -> Linear:
        architecture = self.architecture
        sizes = (self.inner,) * (2 if architecture.is_gated else 1)
        found = self._joined(prefix, self.names.up, sizes, architecture.has_up_bias)
        return Linear(*(np.roll(array, self.inner, 0) for array in found)) if architecture.has_gate_last else found

    def _relative_bias(self, num_positions: int) -> Array:
        """Return the bias of each distance: large distances share buckets (T5, section 2.1)."""
        table = self._take(f"{self.prefix}{self.names.relative_bias}.weight", 32, self.num_heads)
        half, exact, farthest = 16, 8, 128  # of 32 buckets, half are for tokens that come after
        distance = np.arange(1 - num_positions, num_positions)
        far = np.maximum(np.abs(distance), 1).astype(np.float32) / np.float32(exact)
        bucket = exact + (np.log(far) / np.float32(math.log(farthest / exact)) * np.float32(half - exact)).astype(int)
        bucket = np.where(np.abs(distance) < exact, np.abs(distance), np.minimum(bucket, half - 1))
        found: Array = table[bucket + half * (distance > 0)]
        return found

    def _head(self, words: Array) -> ScoreHead | Linear:
        if (head := self.architecture.head) is None:
            raise ModelMismatch(f"Shoal computes no scores for a {self.config['model_type']}: use another model")
        num_labels = len(self.config.get("id2label") or (0, 1))
        if not head.dense and "true_token_id" in self.config:
            return self._difference_of_logits(words)
        if not head.dense:
            return self._linear(head.out, num_labels, self.width)
        return ScoreHead(
            self._linear(head.dense, self.width, self.width),
            head.activation,
            self._linear(head.out, num_labels, self.width, has_bias=True),
            self._norm("", head.norm),
            bool(head.pooling) and self.config.get(head.pooling) == "mean",
        )

    def _difference_of_logits(self, words: Array) -> Linear:
        """Return the layer whose output is the logit of one word minus the logit of another (Qwen3-Reranker)."""
        is_tied = self.config.get("tie_word_embeddings")
        rows = words if is_tied else self._take("lm_head.weight", *words.shape)
        true, false = (self._size(f"{name}_token_id", at_least=0) for name in ("true", "false"))
        if max(true, false) >= len(rows):
            raise ModelMismatch(f"LogitScore names the words {true} and {false} of {len(rows)}: use another model")
        return Linear(rows[[true]] - rows[[false]], np.zeros(1, np.float32))

    def _joined(self, prefix: str, names: Sequence[str], outputs: Sequence[int], has_bias: bool = True) -> Linear:
        """Return one linear layer in place of the layers with these names."""
        sizes = outputs if len(names) > 1 else [sum(outputs)]
        has_bias = has_bias and self.architecture.has_biases
        parts = [self._linear(prefix + n, size, self.width, has_bias) for n, size in zip(names, sizes, strict=True)]
        return Linear(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))

    def _linear(self, name: str, outputs: int, inputs: int, has_bias: bool | None = None) -> Linear:
        has_bias = self.architecture.has_biases if has_bias is None else has_bias
        return Linear(self._take(f"{name}.weight", outputs, inputs), self._bias(name, outputs, has_bias))

    def _norm(self, prefix: str, name: str, width: int | None = None) -> Norm:
        if not name:
            return NO_NORM
        width, architecture = width or self.width, self.architecture
        scale = self._take(f"{prefix}{name}.weight", width) + np.float32(architecture.adds_one)
        if architecture.is_rms:
            return Norm(scale, NO_NORM.shift)
        return Norm(scale, self._bias(prefix + name, width, architecture.has_shifts))

    def _bias(self, name: str, outputs: int, has_bias: bool) -> Array:
        return self._take(f"{name}.bias", outputs) if has_bias else np.zeros(outputs, np.float32)

    def _take(self, name: str, *shape: int) -> Array:
        tensor = self.tensors.pop(name, None)
        if tensor is None:
            raise ModelMismatch(f"the weights lack tensor {name}, which config.json asks for: fetch the model again")
        if tensor.shape != shape:
            raise ModelMismatch(
                f"tensor {name} is {list(tensor.shape)}, and config.json says {list(shape)}: fetch the model again"
            )
        return tensor

    def _size(self, name: str, at_least: int = 1) -> int:
        value = self.config.get(name)
        if type(value) is not int or not at_least <= value <= MAX_SIZE:
            raise ModelMismatch(
                f"{name} in config.json is {excerpt(value)}: it must be a number from {at_least} to {MAX_SIZE}"
            )
        return value

    def _eps(self) -> float:
        value = self.config.get("layer_norm_eps")
        if type(value) is not float or not 0 < value < 1:
            raise ModelMismatch(f"layer_norm_eps in config.json is {excerpt(value)}: it must be between 0 and 1")
        return value

    def _refuse_unknown(self) -> None:
        """Raise ModelMismatch for an unknown tensor, because the model may use it to compute something else."""
        is_late = LATE_CLASS in (self.config.get("architectures") or ())  # with a projection, "linear"
        unused = (*self.architecture.unused, *(["linear."] if is_late else []))
        known = tuple(prefix + name for name in unused for prefix in ("", self.prefix))
        if unknown := sorted(name for name in self.tensors if not name.startswith(known)):
            raise ModelMismatch(
                f"the weights have {len(unknown)} tensors that config.json does not ask for, such as "
                f"{excerpt(unknown[0])}: use another model"
            )
