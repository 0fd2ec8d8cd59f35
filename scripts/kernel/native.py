"""The kernel from Python: compiles it, packs the weights of all-MiniLM-L6-v2 for it, and calls it by ctypes."""

import ctypes
import fcntl
import json
import shutil
import subprocess
import weakref
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

Array = NDArray[np.float32]

SOURCE = Path(__file__).with_name("kernel.cpp")
#: How the kernel is compiled; without warnings, since the headers of g++ 12 give thousands.
FLAGS = "-O3 -std=c++20 -march=x86-64-v4 -mavx512vnni -mavx512bf16 -mtune=znver3 -mprefer-vector-width=512"
FLAGS += " -ffp-contract=fast -fno-math-errno -fno-trapping-math -w -shared -fPIC -pthread"
INSTRUCTIONS = ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "avx512_bf16")

#: Sizes that the kernel is written for, as in the model's config.json.
SIZES: dict[str, object] = {
    "hidden_size": 384,
    "intermediate_size": 1536,
    "num_attention_heads": 12,
    "num_hidden_layers": 6,
    "hidden_act": "gelu",
}
WIDTH, LAYERS, HEAD_WIDTH, PANEL_OUTPUTS, INNER_GROUPS = 384, 6, 32, 48, 4

#: Tokens that a thread takes through all layers at once, about: texts are not cut.
BLOCK_TOKENS = 64


class CannotRun(Exception):
    """The kernel cannot be compiled, or cannot run on this processor or with this model."""


def missing() -> str:
    """Return the reason why the kernel cannot be compiled and run on this machine; an empty text if it can."""
    about = Path("/proc/cpuinfo")
    lines = about.read_text().splitlines() if about.exists() else []
    flags = next((line for line in lines if line.startswith("flags")), "").split()
    if lacking := [name for name in INSTRUCTIONS if name not in flags]:
        return f"the processor lacks {', '.join(lacking)}: the kernel needs AVX-512 with VNNI and BF16"
    return "" if shutil.which("g++") else "there is no g++: install it (version 11 or later)"


def build(folder: Path) -> Path:
    """Return the compiled kernel in the folder, which keeps it for next time. Raises CannotRun."""
    if reason := missing():
        raise CannotRun(reason)
    digest = sha256(SOURCE.read_bytes() + FLAGS.encode()).hexdigest()[:16]
    library, new = folder / f"kernel-{digest}.so", folder / f"kernel-{digest}.new"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of several processes that need it at once, one compiles it
        if not library.exists():
            command = ["g++", *FLAGS.split(), str(SOURCE), "-o", str(new)]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise CannotRun(f"g++ cannot compile {SOURCE}; it takes version 11 or later:\n{done.stderr[-2_000:]}")
            new.rename(library)
    return library


class Kernel:
    """The model in `source`, a folder of Sentence Transformers, in `int8` or `bf16`. Raises CannotRun."""

    def __init__(self, library: Path, source: Path, precision: str):
        weights = _load(source)
        self._words = np.ascontiguousarray(weights["embeddings.word_embeddings.weight"])
        kinds = weights["embeddings.token_type_embeddings.weight"]
        self._positions = np.ascontiguousarray(weights["embeddings.position_embeddings.weight"] + kinds[:1])
        self._norms = _norms(weights)
        panels, scales = zip(*_panels_of_model(weights, precision), strict=True)
        self._library = _open(library)
        pointers = (array.ctypes.data for array in (self._words, self._positions, self._norms))
        self._model = ctypes.c_void_p(
            self._library.open_model(*pointers, b"".join(panels), b"".join(scales), precision == "bf16")
        )
        self.close = weakref.finalize(self, self._library.close_model, self._model)

    def encode(self, texts: Sequence[Sequence[int]], threads: int = 1, block_tokens: int = BLOCK_TOKENS) -> Array:
        """Return the vectors `[texts, 384]` of lists of token ids. Raises ValueError for wrong ids or lengths."""
        if threads < 1 or block_tokens < 1:
            raise ValueError(f"threads is {threads} and block_tokens is {block_tokens}: both must be at least 1")
        lengths = np.array([len(ids) for ids in texts], np.int32)
        ids = np.array([one for ids in texts for one in ids], np.int64)
        self._check(lengths, ids)
        out = np.empty((len(texts), WIDTH), np.float32)
        if texts:
            ids = ids.astype(np.int32)
            pointers = ids.ctypes.data, lengths.ctypes.data, len(texts), out.ctypes.data
            self._library.encode(self._model, *pointers, threads, block_tokens)
        return out

    def _check(self, lengths: NDArray[np.int32], ids: NDArray[np.int64]) -> None:
        wrong = np.flatnonzero((lengths < 1) | (lengths > len(self._positions)))
        if len(wrong):
            n = wrong[0]
            raise ValueError(f"text {n} has {lengths[n]} tokens: it must have 1 to {len(self._positions)}")
        wrong = np.flatnonzero((ids < 0) | (ids >= len(self._words)))
        if len(wrong):
            n = np.searchsorted(lengths.cumsum(), wrong[0], side="right")
            raise ValueError(f"text {n} has the id {ids[wrong[0]]}: the vocabulary has 0 to {len(self._words) - 1}")


def _open(library: Path) -> ctypes.CDLL:
    """Load the library and declare its functions."""
    opened = ctypes.CDLL(str(library))
    pointer, number, raw = ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p
    opened.open_model.argtypes, opened.open_model.restype = [pointer, pointer, pointer, raw, raw, number], pointer
    opened.close_model.argtypes, opened.close_model.restype = [pointer], None
    opened.encode.argtypes = [pointer, pointer, pointer, number, pointer, number, number]
    opened.encode.restype = None
    return opened


def _load(source: Path) -> dict[str, Array]:
    """Return the weights by name. Raises CannotRun for a model of other sizes."""
    config = json.loads((source / "config.json").read_text())
    if wrong := {name: config.get(name) for name, value in SIZES.items() if config.get(name) != value}:
        raise CannotRun(f"the model in {source} has {wrong}: the kernel is written for {SIZES}")
    loaded = load_file(source / "model.safetensors")
    return {name.replace("gamma", "weight").replace("beta", "bias"): weights for name, weights in loaded.items()}


def _norms(weights: Mapping[str, Array]) -> Array:
    """Return scale and shift of all layer norms, in the order of their use."""
    parts = ("attention.output", "output")
    layers = [f"encoder.layer.{n}.{part}.LayerNorm" for n in range(LAYERS) for part in parts]
    names = [f"{norm}.{kind}" for norm in ["embeddings.LayerNorm", *layers] for kind in ("weight", "bias")]
    return np.concatenate([weights[name] for name in names])


def _panels_of_model(weights: Mapping[str, Array], precision: str) -> Iterator[tuple[bytes, bytes]]:
    """Yield all panels and their scales, in the order in which the kernel reads them."""
    for n in range(LAYERS):
        for matrix, bias in _products(weights, f"encoder.layer.{n}."):
            yield from _panels(matrix, bias, precision)


def _products(weights: Mapping[str, Array], layer: str) -> Iterator[tuple[Array, Array]]:
    """Yield weights `[outputs, 384]` and bias of the products of a layer.

    Queries are scaled for a softmax of powers of 2. The feed-forward network is cut into groups of 384 numbers, of
    which the first one's product has the bias.
    """

    def of(name: str) -> tuple[Array, Array]:
        return weights[f"{layer}{name}.weight"], weights[f"{layer}{name}.bias"]

    query, key, value = (of(f"attention.self.{name}") for name in ("query", "key", "value"))
    factor = np.float32(HEAD_WIDTH**-0.5 / np.log(2))
    yield np.concatenate([query[0] * factor, key[0], value[0]]), np.concatenate([query[1] * factor, key[1], value[1]])
    yield of("attention.output.dense")
    (up, up_bias), (down, down_bias) = of("intermediate.dense"), of("output.dense")
    for group in range(INNER_GROUPS):
        part = slice(group * WIDTH, (group + 1) * WIDTH)
        yield up[part], up_bias[part]
        yield down[:, part], down_bias if group == 0 else np.zeros_like(down_bias)


def _panels(weights: Array, bias: Array, precision: str) -> Iterator[tuple[bytes, bytes]]:
    """Yield each 48 outputs as bytes, 4 bytes of each output in turns, and their scales, biases and scaled sums."""
    scale = np.maximum(np.abs(weights).max(axis=1), 1e-12) / 127
    rounded = np.rint(weights / scale[:, None]).astype(np.int32)
    whole = (rounded + 128).astype(np.uint8) if precision == "int8" else _bf16(weights)
    step = 4 // whole.itemsize
    for n in range(0, len(weights), PANEL_OUTPUTS):
        part = slice(n, n + PANEL_OUTPUTS)
        data = whole[part].reshape(PANEL_OUTPUTS, WIDTH // step, step).transpose(1, 0, 2)
        scales = np.concatenate([scale[part], bias[part], scale[part] * rounded[part].sum(axis=1)])
        yield data.tobytes(), scales.astype(np.float32).tobytes()


def _bf16(numbers: Array) -> NDArray[np.uint16]:
    """Return the upper halves of the numbers, rounded to the nearest."""
    bits = np.ascontiguousarray(numbers, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
