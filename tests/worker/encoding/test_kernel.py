"""The kernel's engines: vectors compared with OpenVINO's, refusals, threads, compilation, and the choice of engines."""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import tiny_model
from numpy.typing import NDArray
from passes import rows, tokenized

from shoal.contract.options import Options
from shoal.errors import BadSetting, ModelMismatch
from shoal_workers.encoding.encoder import Encoder, TokenizedText
from shoal_workers.encoding.engines import kernel
from shoal_workers.encoding.packing import join
from shoal_workers.encoding.reranker import Reranker
from shoal_workers.kernel import library
from shoal_workers.kernel.kernel import KernelModel, KernelPass, KernelThreads, load
from shoal_workers.kernel.library import CannotCompile, Target, compile_kernel
from shoal_workers.kernel.weights import ACTIVATIONS, KernelWeights, Shape, arrange, find_unsupported
from shoal_workers.model.attention_settings import Attention
from shoal_workers.model.graph import build_graph, core, stored_transformer
from shoal_workers.model.model import GRAPH
from shoal_workers.model.prepare import prepare
from shoal_workers.model.transformer import Layer, Linear, Norm, Transformer
from shoal_workers.process import processors

Array = NDArray[np.float32]


def missing(target: Target) -> str:
    """Compile the kernel if necessary; return why it cannot be tested on this machine, or nothing."""
    if lacking := processors.lacking(target.flags):
        return f"the processor lacks {', '.join(lacking)}"
    try:
        if not library.path(target).exists():
            compile_kernel(target)
    except CannotCompile as error:
        return str(error)
    return ""


#: The target of this machine, and whether it has every precision.
OWN = library.own_target() or library.TARGETS[-1]
HAS_BF16 = OWN is library.BF16

_reason = missing(OWN)
needs_kernel = pytest.mark.skipif(bool(_reason), reason=_reason)
needs_bf16 = pytest.mark.skipif(bool(_reason) or not HAS_BF16, reason=_reason or "the processor lacks BF16")

#: Least mean cosine and least single cosine of a token's vectors in a precision and in f32. Random models are far more
#: sensitive than trained ones.
COSINES = {"f32": (0.9999, 0.999), "bf16": (0.9998, 0.99), "int8": (0.997, 0.94)}

#: Precisions, each with and without the permission to use AMX.
PATHS = [(precision, False) for precision in sorted({"f32", *OWN.precisions})]
PATHS += [(precision, True) for precision in OWN.precisions if HAS_BF16]

#: The kernel's engines, each with its precisions.
ENGINES = sorted({(OWN.engine, precision) for precision in OWN.precisions} | {(library.TARGETS[-1].engine, "f32")})

#: The other targets. Those with int8 multiply with fewer instructions than the first.
OTHERS = library.TARGETS[1:]

NUM_WORDS, NUM_POSITIONS, MAX_TOKENS = 100, 80, 70


class Sizes(NamedTuple):
    """The sizes of a model."""

    width: int
    num_heads: int
    inner: int
    activation: str = "gelu"
    types: int = 1


SMALL, UNTILED, LARGE = Sizes(64, 2, 128), Sizes(96, 3, 96), Sizes(384, 12, 1536)

#: Sizes that together have every activation, both widths of heads, several groups of inputs, and panels that are not
#: full. AMX has no tiles for groups of 96 in int8.
SIZES = [
    SMALL,
    Sizes(64, 1, 192, "gelu_tanh", types=2),
    Sizes(128, 2, 192, "relu"),
    Sizes(192, 6, 64, "silu"),
    Sizes(64, 2, 64, "tanh"),
    UNTILED,
    pytest.param(LARGE, marks=pytest.mark.wide),
    pytest.param(Sizes(1024, 16, 512), marks=pytest.mark.wide),
]


def transformer(sizes: Sizes) -> Transformer:
    generator, (width, num_heads, inner, activation, types) = np.random.default_rng(sizes.width), sizes

    def array(*shape: int, scale: float = 0.5) -> Array:
        return generator.normal(0, scale, shape).astype(np.float32)

    def linear(outputs: int, inputs: int) -> Linear:
        return Linear(array(outputs, inputs, scale=inputs**-0.5), array(outputs, scale=0.2))

    def norm() -> Norm:
        return Norm(1 + array(width, scale=0.1), array(width, scale=0.1))

    def layer() -> Layer:
        products = linear(3 * width, width), linear(width, width)
        return Layer(*products, norm(), linear(inner, width), linear(width, inner), norm())

    words, positions = array(NUM_WORDS, width), array(types * NUM_POSITIONS, width)
    layers = norm(), (layer(), layer())
    return Transformer(words, positions, NUM_POSITIONS, *layers, num_heads, eps=0.01, activation=activation)


def texts() -> list[list[int]]:
    """Return the ids of texts of every possible length, in random order."""
    generator = np.random.default_rng(3)
    lengths = generator.permutation(np.arange(1, MAX_TOKENS + 1))
    return [generator.integers(0, NUM_WORDS, length).tolist() for length in lengths]


def opened(
    made: Transformer,
    precision: str = OWN.precisions[0],
    threads: int = 2,
    may_use_amx: bool = True,
    target: Target = OWN,
) -> KernelThreads:
    weights = arrange(made, MAX_TOKENS, precision)
    return KernelThreads(KernelModel(load(library.path(target)), weights, may_use_amx), threads)


def run(threads: KernelThreads, ids: Sequence[Sequence[int]], parts: int = 1, offset: int = 0) -> Array:
    """Return the vectors of all tokens. The offset is added to positions in the second half of each text."""
    offsets = [np.where(np.arange(len(text)) > len(text) // 2, offset, 0).astype(np.int32) for text in ids]
    packing, _ = join(ids, offsets)
    running = KernelPass(threads, packing.ids, packing.positions, parts)
    running.close()
    return running.tokens


def expected(made: Transformer, ids: Sequence[Sequence[int]], offset: int = 0) -> Array:
    """Return the vectors that OpenVINO computes in f32, each text in a row of its own."""
    compiled = core().compile_model(build_graph(made), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    found = []
    for text in ids:
        length = len(text)
        positions = np.arange(length) + np.where(np.arange(length) > length // 2, offset, 0)
        given = (np.array([text], np.int32), positions[None].astype(np.int32), np.zeros((1, 1, length, length), "f4"))
        found.append(compiled(given)[0][0])
    return np.concatenate(found)


def are_near(found: Array, exact: Array, precision: str) -> bool:
    """Return True if the vectors are as near to the exact vectors as the precision demands."""
    mean, lowest = COSINES[precision]
    cosines = (found * exact).sum(axis=1) / np.linalg.norm(found, axis=1) / np.linalg.norm(exact, axis=1)
    return bool(cosines.mean() > mean and cosines.min() > lowest)


@needs_kernel
class TestVectors:
    @pytest.mark.parametrize("sizes", SIZES)
    def test_vectors_are_near_openvinos_in_f32(self, sizes: Sizes) -> None:
        made, offset = transformer(sizes), NUM_POSITIONS * (sizes.types - 1)
        exact = expected(made, texts(), offset)
        for precision, may_use_amx in PATHS:
            found = run(opened(made, precision, may_use_amx=may_use_amx), texts(), offset=offset)
            assert are_near(found, exact, precision)
            assert np.linalg.norm(found, axis=1) == pytest.approx(np.linalg.norm(exact, axis=1), rel=0.05)

    @pytest.mark.parametrize(("precision", "may_use_amx"), PATHS)
    def test_vectors_depend_on_no_batch_and_no_threads(self, precision: str, may_use_amx: bool) -> None:
        made = transformer(SMALL)
        alone = [run(opened(made, precision, 1, may_use_amx), [text]) for text in texts()]
        for threads in (1, 2, 5):
            pool = opened(made, precision, threads, may_use_amx)
            for parts in (1, threads, 1_000):
                assert np.array_equal(run(pool, texts(), parts), np.concatenate(alone))
            assert np.array_equal(run(pool, texts()[::-1], threads), np.concatenate(alone[::-1]))

    @pytest.mark.parametrize("target", OTHERS)
    def test_libraries_for_fewer_instructions_compute_the_same_in_f32(self, target: Target) -> None:
        if reason := missing(target):
            pytest.skip(reason)
        for sizes in SIZES[:6]:
            assert isinstance(sizes, Sizes)
            made = transformer(sizes)
            found = run(opened(made, "f32", target=target), texts())
            assert found == pytest.approx(run(opened(made, "f32"), texts()), abs=2e-5)
            alone = run(opened(made, "f32", 1, target=target), texts()[:1])
            assert np.array_equal(found[: len(alone)], alone)
        for precision in {"int8", "bf16"} - {*target.precisions}:
            with pytest.raises(ValueError, match="does not support the model"):
                opened(made, precision, target=target)

    def test_int8_has_the_same_bits_wherever_attention_is_f32(self) -> None:
        targets = [target for target in OTHERS if "int8" in target.precisions and not missing(target)]
        for sizes in SIZES[:6] if targets else []:
            assert isinstance(sizes, Sizes)
            made, offset = transformer(sizes), NUM_POSITIONS * (sizes.types - 1)
            first, *others = (run(opened(made, "int8", target=one), texts(), offset=offset) for one in targets)
            assert are_near(first, run(opened(made, "f32"), texts(), offset=offset), "int8")
            assert all(np.array_equal(first, other) for other in others)

    def test_large_weights_give_finite_vectors(self) -> None:
        made = transformer(SMALL)
        large = [layer._replace(up=Linear(layer.up.weights * 1e6, layer.up.bias)) for layer in made.layers]
        for precision, may_use_amx in PATHS:
            for activation in ACTIVATIONS:
                odd = replace(made, layers=tuple(large), activation=activation)
                assert np.isfinite(run(opened(odd, precision, 2, may_use_amx), texts())).all()

    @pytest.mark.parametrize("activation", ["gelu_tanh", "silu"])
    def test_activations_far_below_0_make_no_subnormal_products(self, activation: str) -> None:
        """Subnormal products would make a pass in f32 take up to ten times as long."""
        made, signs = transformer(Sizes(64, 2, 64, activation)), np.resize(np.array([1, -1], np.float32), 64)
        zeros, nothing = np.zeros(64, np.float32), np.zeros((64, 64), np.float32)
        layer = made.layers[1]._replace(
            attention_norm=Norm(zeros, zeros),
            up=Linear(nothing, zeros - 200),
            down=Linear(np.diag(signs), zeros),
            output_norm=Norm(zeros + 1, zeros),
        )
        activations = run(opened(replace(made, layers=(layer,), eps=1.0), "f32"), texts())
        assert np.abs(activations).min() * 1e-6 > np.finfo(np.float32).tiny

    @needs_bf16
    def test_amx_alters_no_bit_of_products_in_int8(self) -> None:
        """Each text has a single token, which attends to itself alone, so attention does not change the rounding."""
        made, ids = transformer(Sizes(192, 6, 384)), [[word] for word in range(NUM_WORDS)]
        with_amx, without = (run(opened(made, "int8", 1, may_use_amx), ids) for may_use_amx in (True, False))
        assert np.array_equal(with_amx, without)


@needs_bf16
class TestAmx:
    @pytest.mark.skipif(bool({"amx_tile", "amx_bf16", "amx_int8"} - processors._flags()), reason="there is no AMX")
    @pytest.mark.parametrize(("precision", "may_use_amx"), PATHS)
    @pytest.mark.parametrize("sizes", [SMALL, UNTILED])
    def test_a_model_uses_it_if_it_may_and_can(self, sizes: Sizes, precision: str, may_use_amx: bool) -> None:
        fits = sizes is SMALL or precision == "bf16"
        assert opened(transformer(sizes), precision, 1, may_use_amx).model.uses_amx == (may_use_amx and fits)


@needs_kernel
class TestHostile:
    """Wrong numbers are refused. With them, the kernel would read or write foreign memory."""

    @pytest.fixture
    def weights(self) -> KernelWeights:
        return arrange(transformer(SMALL), MAX_TOKENS, OWN.precisions[0])

    def test_ids_positions_lengths_and_parts_are_refused(self) -> None:
        pool = opened(transformer(SMALL))
        for ids, positions, parts in (
            *(([5, word], [0, 1], 1) for word in (-1, NUM_WORDS, 2**31 - 1)),
            *(([5, 5], positions, 1) for positions in ([0, NUM_POSITIONS], [0, -1], [1, 2], [0])),
            ([5] * (MAX_TOKENS + 1), [0, *[1] * MAX_TOKENS], 1),
            ([], [], 1),
            *(([5, 5], [0, 1], parts) for parts in (0, -1, 2**31 - 1)),
        ):
            with pytest.raises(ValueError, match=r"a text is empty or too long|2 ids and 1 positions"):
                KernelPass(pool, np.array(ids, np.int32), np.array(positions, np.int32), parts)

    @pytest.mark.parametrize("field", [name for name, *_ in Shape._fields_ if name not in ("number", "eps")])
    def test_a_wrong_size_is_refused(self, weights: KernelWeights, field: str) -> None:
        for value in (-1, 0, 1, len(ACTIVATIONS), 48, 63, 65, 2**31 - 1):
            if (field == "activation" and 0 <= value < len(ACTIVATIONS)) or (field, value) == ("heads", 1):
                continue  # these sizes are right
            if field == "max_tokens" and 0 < value < 2**16:
                continue
            shape = Shape(*(getattr(weights.shape, name) for name, *_ in Shape._fields_))
            setattr(shape, field, value)
            with pytest.raises(ValueError, match=r"have other sizes|does not support the model"):
                KernelModel(load(library.path(OWN)), weights._replace(shape=shape))
        for part in ("words", "positions", "norms", "panels", "scales"):
            with pytest.raises(ValueError, match=r"have other sizes|does not support the model"):
                KernelModel(load(library.path(OWN)), weights._replace(**{part: getattr(weights, part)[:-1]}))

    def test_damaged_weights_are_refused(self) -> None:
        made = transformer(SMALL)
        first, layer = made.layers
        for damaged in (
            layer._replace(up=Linear(layer.up.weights[:, :-1], layer.up.bias)),
            layer._replace(qkv=Linear(layer.qkv.weights[:-1], layer.qkv.bias[:-1])),
            layer._replace(down=Linear(layer.down.weights * np.float32(np.nan), layer.down.bias)),
            layer._replace(output_norm=Norm(layer.output_norm.scale[:-1], layer.output_norm.shift)),
        ):
            with pytest.raises(ValueError, match=r"weights are|not finite|different widths"):
                arrange(replace(made, layers=(first, damaged)), MAX_TOKENS, "int8")

    def test_truncated_weights_are_refused(self, weights: KernelWeights) -> None:
        for part in ("words", "positions", "norms", "panels", "scales"):
            with pytest.raises(ValueError, match=r"have other sizes|does not support the model"):
                KernelModel(load(library.path(OWN)), weights._replace(**{part: getattr(weights, part)[:-1]}))


@needs_bf16
def test_a_deleted_pass_is_waited_for() -> None:
    pool = opened(transformer(SMALL), "int8")
    packing, _ = join(texts() * 20)
    for _ in range(5):
        KernelPass(pool, packing.ids, packing.positions, 2)
    del pool


#: Programs, and the output of each. The model's folder is in argv[1]. Linux does not permit AMX to the last program,
#: because one of its threads has too small a stack for signals.
PROGRAMS = {
    "its end during a pass": (
        """
encoder = Encoder.open(folder, "avx512", "int8", 2)
running = encoder.start([TokenizedText(tokens) for tokens in encoder.tokenize(["storm " * 40] * 1_000)])
""",
        "",
    ),
    "no AMX": (
        """
class Stack(ctypes.Structure):
    _fields_ = [("start", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]

memory = ctypes.create_string_buffer(8_192)
assert not ctypes.CDLL(None).sigaltstack(ctypes.byref(Stack(ctypes.addressof(memory), 0, 8_192)), None)
logging.basicConfig(stream=sys.stdout, level="INFO", format="%(message)s")
Encoder.open(folder, "avx512", "bf16", 1)
""",
        "avx512 multiplies with AVX-512\n",
    ),
}
BEGIN = """
import ctypes, logging, sys
from pathlib import Path
from shoal_workers.encoding.encoder import Encoder, TokenizedText
folder = Path(sys.argv[1])
"""


@needs_bf16
@pytest.mark.parametrize("what", PROGRAMS)
def test_a_program_survives(prepared: Path, what: str) -> None:
    program, printed = PROGRAMS[what]
    command = [sys.executable, "-W", "ignore", "-c", BEGIN + program, str(prepared / "model")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, printed, "")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a prepared `model` and `reranker`, whose widths the kernel supports."""
    folder = tmp_path_factory.mktemp("kernel")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiny_model, "WIDTH", 64)
        patch.setattr(tiny_model, "INNER", 128)
        tiny_model.save(folder / "sources" / "model")
        tiny_model.save_reranker(folder / "sources" / "reranker")
    for name in ("model", "reranker"):
        prepare(name, folder / "sources" / name, folder / name)
    return folder


TEXTS = ["", "storm", "rain in europe and a change of climate", "the market falls in the rain " * 9]


class TestEngine:
    @needs_kernel
    @pytest.mark.parametrize(("name", "precision"), ENGINES)
    def test_vectors_and_scores_of_pairs_are_near_openvinos(self, prepared: Path, name: str, precision: str) -> None:
        exact, found = (
            Encoder.open(prepared / "model", *names, 2) for names in (("openvino", "f32"), (name, precision))
        )
        for options in (*(Options(pooling=pooling) for pooling in ("mean", "cls", "max")), Options(output="tokens")):
            a, b = (encoder.embed(TEXTS, options, "") for encoder in (exact, found))
            assert are_near(b, a, precision)
        pairs = [("storm", text) for text in TEXTS]
        scores = Reranker.open(prepared / "reranker", "openvino", "f32", 1).score(pairs)
        reranker = Reranker.open(prepared / "reranker", name, precision, 2)
        most = {"f32": 0.005, "bf16": 0.05, "int8": 0.15}[precision] * float(np.abs(scores).max())
        assert reranker.score(pairs) == pytest.approx(scores, abs=most)
        reranker.encode(texts := [TokenizedText(tokens, "mean") for tokens in reranker.tokenize(pairs)])
        assert rows(texts).shape == (len(pairs), 1)

    @needs_bf16
    def test_passes_run_at_the_same_time_as_a_pass_aside(self, prepared: Path) -> None:
        encoder = Encoder.open(prepared / "model", "avx512", "bf16", 2)
        bulk, urgent = (tokenized(encoder, texts) for texts in (TEXTS * 50, TEXTS))
        aside = encoder.start_aside(bulk)
        encoder.finish(encoder.start(urgent))
        assert encoder.ends_within(aside, 60)
        encoder.finish(aside)
        assert np.array_equal(rows(urgent), rows(bulk[: len(urgent)]))

    @needs_bf16
    @pytest.mark.parametrize("threads", [1, 3])
    def test_threads_change_no_vector(self, prepared: Path, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
        encoder = Encoder.open(prepared / "model", "avx512", "int8", 1)
        vectors, fingerprint = encoder.embed(TEXTS, Options(), ""), encoder.fingerprint
        before = set(os.listdir("/proc/self/task"))
        engine = encoder.engine = encoder.engine.resized(threads)
        # Threads of normal priority, and as many of low priority. Another library may start a thread meanwhile.
        assert len(set(os.listdir("/proc/self/task")) - before) >= 2 * threads
        assert (engine.threads, engine.num_streams, encoder.fingerprint) == (threads, threads, fingerprint)
        assert np.array_equal(encoder.embed(TEXTS, Options(), ""), vectors)
        monkeypatch.setattr("shoal_workers.encoding.encoder.KERNEL_VERSION", -1)
        assert encoder.fingerprint != fingerprint
        noted: list[int] = []
        monkeypatch.setattr(kernel, "EnginePass", lambda _threads, _packing, parts, _head: noted.append(parts))
        packings = [join([[5] * 10])[0]]
        engine.start(packings, together=True), engine.start(packings), engine.start_aside(packings)
        assert noted == [threads, 1, 1]


class TestChoice:
    """The engine of a worker depends on the setting, the machine and the model."""

    @needs_bf16
    def test_auto_is_avx512_if_nothing_prevents_it(self, prepared: Path) -> None:
        for precision, name, found in (("auto", "avx512", "bf16"), ("int8", "avx512", "int8"), ("f32", "avx2", "f32")):
            engine = Encoder.open(prepared / "model", "auto", precision, 1).engine
            assert (engine.name, engine.precision) == (name, found)

    @needs_bf16
    @pytest.mark.parametrize("target", OTHERS)
    def test_auto_is_avx2_on_a_processor_without_bf16(
        self, prepared: Path, target: Target, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        if reason := missing(target):
            pytest.skip(reason)
        monkeypatch.setattr(processors, "_flags", lambda: set(target.flags))
        caplog.set_level("INFO")
        in_int8 = "avx2" if target in (library.AVX512_VNNI, library.AVX_VNNI) else "openvino"
        chosen = {"auto": ("avx2", "f32"), "bf16": ("openvino", "bf16"), "int8": (in_int8, "int8")}
        for precision, found in chosen.items():
            encoder = Encoder.open(prepared / "model", "auto", precision, 1)
            assert (encoder.engine.name, encoder.engine.precision) == found
            if encoder.engine.name == "avx2":  # neon computes the same bits
                fingerprint, encoder.engine.name = encoder.fingerprint, "neon"
                assert encoder.fingerprint == fingerprint
        assert "the engine is openvino: avx512 needs a processor with " in caplog.text
        assert f"avx2 multiplies with {target.vectors}" in caplog.text

    @pytest.mark.parametrize(
        ("patched", "found", "reason"),
        [
            ("process.processors.lacking", ["vnni"], "needs a processor with vnni"),
            ("kernel.library.path", Path("missing.so"), "is not compiled (python -m shoal_workers.kernel.library does"),
        ],
    )
    def test_auto_is_openvino_if_the_machine_is_unsuitable(
        self, prepared: Path, monkeypatch: pytest.MonkeyPatch, patched: str, found: object, reason: str
    ) -> None:
        monkeypatch.setattr(processors, "lacking", lambda _: [])
        monkeypatch.setattr(f"shoal_workers.{patched}", lambda _: found)
        assert Encoder.open(prepared / "model", "auto", "auto", 1).engine.name == "openvino"
        with pytest.raises(BadSetting, match=re.escape(reason)):
            Encoder.open(prepared / "model", "avx512", "auto", 1)

    def test_auto_is_openvino_on_arm_if_neon_cannot_run(
        self, prepared: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(library, "TARGETS", (library.ARM_BF16, library.ARM_DOT, library.NEON))
        monkeypatch.setattr(library, "path", lambda _: Path("missing.so"))
        caplog.set_level("INFO")
        for target, precision, reason in (
            (library.NEON, "auto", "is not compiled"),
            (library.NEON, "int8", "does not compute in int8 on this processor"),
            (library.ARM_DOT, "int8", "is not compiled"),
            (library.ARM_DOT, "bf16", "does not compute in bf16 on this processor"),
            (library.ARM_BF16, "bf16", "is not compiled"),
        ):
            monkeypatch.setattr(processors, "_flags", lambda flags=target.flags: {*flags})
            assert Encoder.open(prepared / "model", "auto", precision, 1).engine.name == "openvino"
            assert f"the engine is openvino: neon {reason}" in caplog.messages[-1]

    @needs_bf16
    def test_unsupported_models(self, tiny_model: Path, prepared: Path, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("INFO")
        assert Encoder.open(tiny_model, "auto", "auto", 1).engine.name == "openvino"
        assert f"the engine is openvino: {OWN.engine} does not compute heads of 16 numbers" in caplog.text
        for name, precision in (("avx512", "f32"), ("avx2", "bf16"), ("avx2", "int8")):
            with pytest.raises(BadSetting, match=f"{name} does not compute in {precision} on this processor, or"):
                Encoder.open(prepared / "model", name, precision, 1)

    @needs_kernel
    def test_auto_is_openvino_if_the_kernel_fails_the_check(
        self, prepared: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        wrong = replace(stored_transformer(prepared / "model" / GRAPH), eps=100.0)
        monkeypatch.setattr(kernel, "stored_transformer", lambda _: wrong)
        assert Encoder.open(prepared / "model", "auto", "auto", 1).engine.name == "openvino"
        assert f"{OWN.engine} failed on model in the precision auto: the engine's vectors" in caplog.text
        with pytest.raises(ModelMismatch, match="the engine's vectors have cosine"):
            Encoder.open(prepared / "model", OWN.engine, "auto", 1)

    def test_an_unsupported_property_of_a_model_is_named(self) -> None:
        made = transformer(SMALL)
        assert made.other_blocks == find_unsupported(made) == ""
        biased = replace(made, relative_bias=np.zeros((2 * NUM_POSITIONS - 1, 2), np.float32), is_gated=True)
        assert biased.other_blocks == "gates and a bias of each distance"
        turned = replace(made, layers=(made.layers[0]._replace(attention=Attention(theta=10_000.0)), *made.layers[1:]))
        assert turned.other_blocks == "rotary positions"
        assert find_unsupported(replace(made, num_heads=8)) == "heads of 8 numbers"
        assert find_unsupported(transformer(Sizes(160, 5, 80))) == "160 and 80 numbers a token"
        assert find_unsupported(transformer(Sizes(96, 3, 80))) == "96 and 80 numbers a token"


class TestLibrary:
    @pytest.fixture
    def source(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        (path := tmp_path / "kernel.cpp").write_text("int one() { return 1; }")
        monkeypatch.setattr(library, "SOURCE", path)
        monkeypatch.setattr(processors, "lacking", lambda _: [])
        return path

    @needs_bf16
    def test_the_kernel_replaces_an_older_one(self, source: Path, capsys: pytest.CaptureFixture[str]) -> None:
        compile_kernel(library.AVX2)
        library.main()
        assert library.own_target() is library.BF16
        first = {target: library.path(target) for target in library.TARGETS}
        kept = first[library.BF16].stat()
        library.main()
        assert first[library.BF16].stat() == kept
        source.write_text("int two() { return 2; }")
        library.main()
        compile_kernel(library.AVX2)
        now = {library.path(library.BF16), library.path(library.AVX2)}
        assert {*source.parent.glob("kernel-*")} == now
        assert now.isdisjoint(first.values())
        assert capsys.readouterr().out == "  compiling the engine avx512\n" * 2

    @needs_bf16
    def test_a_source_that_does_not_compile_is_no_error(
        self, source: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delattr(Path, "unlink")  # a read-only file system refuses even to delete a missing file
        source.write_text("int one() { return; }")
        library.main()
        assert "the engine avx512 is left out, and OpenVINO runs: g++ fails" in capsys.readouterr().out
        assert [*source.parent.iterdir()] == [source]

    @needs_bf16
    def test_an_older_assembler_compiles_for_fewer_instructions(
        self, source: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(library, "TARGETS", (library.AVX_VNNI, library.AVX2))
        source.write_text('#ifdef __AVXVNNI__\nint one() { asm("unknown"); return 1; }\n#endif\n')
        assert library.own_target() is library.AVX_VNNI
        library.main()
        assert library.own_target() is library.AVX2
        assert library.path(library.AVX2).exists()
        monkeypatch.setattr(library, "TARGETS", (library.BF16, library.AVX_VNNI, library.AVX2))
        assert library.own_target() is library.BF16  # OpenVINO computes faster in bf16 than another engine in f32
        monkeypatch.setattr(library, "TARGETS", (library.AVX512_VNNI, library.AVX2))
        library.main()
        assert library.own_target() is library.AVX512_VNNI

    def test_a_missing_compiler_is_no_error(
        self, source: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PATH", str(source.parent))
        library.main()
        assert re.search(r"there is no g\+\+: install it|it is for Linux on", capsys.readouterr().out)
        monkeypatch.setattr(processors, "lacking", lambda _: ["avx2"])  # a processor that cannot run the kernel
        library.main()
        assert capsys.readouterr().out == ""
