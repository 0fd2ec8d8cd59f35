"""Products in 8 bits: their results, and the ranges of activations, which are measured once for a model."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray
from openvino import opset13 as ops

from shoal.contract.options import Options
from shoal.errors import ModelMismatch
from shoal_workers.encoding.encoder import Encoder
from shoal_workers.encoding.engines import int8
from shoal_workers.encoding.engines.int8 import Range, load_ranges
from shoal_workers.model import parity
from shoal_workers.model.graph import core
from shoal_workers.model.model import GRAPH
from shoal_workers.process import processors

Array = NDArray[np.float32]

WIDTH, OUTPUTS = 48, 32

needs_vnni = pytest.mark.skipif(not processors.has_vnni(), reason="the processor has no products of 8 bits")


def activations() -> Array:
    """Return activations whose inputs have very different ranges, none centred on 0, as after a layer norm."""
    generator = np.random.default_rng(0)
    sizes = np.float32(10) ** np.linspace(-1, 1, WIDTH, dtype=np.float32)
    return (generator.normal(0.5, 1, (1, 200, WIDTH)) * sizes).astype(np.float32)


def weights() -> Array:
    return np.random.default_rng(1).normal(0, 1, (OUTPUTS, WIDTH)).astype(np.float32)


def range_of(rows: Array) -> Range:
    flat = rows.reshape(-1, rows.shape[-1])
    return Range(flat.min(axis=0), flat.max(axis=0), flat.mean(axis=0))


def product(given: Array, found: Range | None) -> Array:
    """Return the product with the weights, plus a bias, as OpenVINO computes it; in 8 bits if a range is given."""
    inputs = ops.parameter([-1, -1, WIDTH], np.float32)
    multiplied = ops.matmul(inputs, ops.constant(weights()), False, True)
    graph = ov.Model([ops.add(multiplied, ops.constant(np.ones(OUTPUTS, np.float32)))], [inputs], "product")
    if found:
        int8.quantise(graph, [found])
    compiled = core().compile_model(graph, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    result: Array = compiled([given])[0]
    return result


def test_a_product_is_near_the_exact_product_and_has_its_mean() -> None:
    given = activations()
    error, largest = product(given, range_of(given)) - (exact := product(given, None)), np.abs(exact).max()
    assert 1e-4 < np.abs(error).max() < 0.02 * largest
    assert np.abs(error.mean(axis=1)).max() < 0.003 * largest
    given[..., ::2] = 0  # inputs without a range do no harm
    exact, found = product(given, None), product(given, range_of(given))
    assert np.abs(found - exact).max() < 0.02 * np.abs(exact).max()


def test_numbers_far_outside_of_their_range_are_clipped() -> None:
    found = range_of(activations())
    width = found.high - found.low
    for end, beyond in ((found.high, 100 * width.max()), (found.low, -100 * width.max())):
        far, farther = (product((end + n * beyond)[None, None], found) for n in (1, 2))
        assert np.array_equal(far, farther)
        assert np.isfinite(far).all()


class TestGraph:
    @needs_vnni
    def test_every_product_with_weights_runs_in_8_bits(self, tiny_model: Path) -> None:
        graph = core().read_model(tiny_model / GRAPH)
        ranges = load_ranges(tiny_model, 1)
        int8.quantise(graph, ranges)
        compiled = core().compile_model(graph, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        found = [node.get_rt_info() for node in compiled.get_runtime_model().get_ops()]
        products = [info for info in found if str(info["layerType"].astype(str)).startswith("FullyConnected")]
        kinds = [str(info["runtimePrecision"].astype(str)) for info in products]
        assert kinds == ["u8"] * len(ranges)

    @needs_vnni
    def test_vectors_are_near_the_vectors_in_f32(self, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        encoders = [Encoder.open(tiny_model, "openvino", precision, 1) for precision in ("f32", "int8")]
        exact, found = (encoder.embed(["storm", "rain in europe " * 9], Options(), "") for encoder in encoders)
        assert (exact * found).sum(axis=1).min() > 0.999
        assert np.abs(exact - found).max() > 1e-6
        before = [encoder.fingerprint for encoder in encoders]
        monkeypatch.setattr("shoal_workers.encoding.encoder.INT8_VERSION", 1)
        assert [a == b.fingerprint for a, b in zip(before, encoders, strict=True)] == [True, False]


@needs_vnni
class TestUnsuitableRanges:
    """A model whose vectors are too far from the reference if its measured ranges are used."""

    @pytest.fixture
    def bad(self, own_model: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """The tiny model with ranges that are far from its activations."""
        monkeypatch.setattr(int8, "_join", lambda ranges: Range(*(array + 1_000 for array in ranges[0])))
        return own_model

    def test_the_model_is_served_with_activations_rounded_at_run_time(
        self, bad: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        found = Encoder.open(bad, "openvino", "int8", 2)
        (line,) = caplog.messages
        assert (
            "activations during the pass, which is slower: with fixed ranges, the engine's vectors have cosine" in line
        )
        exact = Encoder.open(bad, "openvino", "f32", 1).embed(["storm"], Options(), "")
        assert exact[0] @ found.embed(["storm"], Options(), "")[0] > 0.999
        assert (found.engine.precision, found.engine.fixed_steps) == ("int8", False)
        assert not found.engine.resized(1).fixed_steps
        with monkeypatch.context() as patch:
            patch.setattr(parity, "MIN_COSINE_INT8", 1.1)
            with pytest.raises(ModelMismatch, match=r"under 1\.1"):  # this check fails too
                Encoder.open(bad, "openvino", "int8", 1)
        monkeypatch.undo()
        assert Encoder.open(tiny_model, "openvino", "int8", 1).fingerprint != found.fingerprint

    def test_ranges_with_which_openvino_cannot_compile_are_not_used(
        self, own_model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def fail(*_: object) -> None:
            raise RuntimeError("Exception from src/core:\ncould not append an operation")

        monkeypatch.setattr(int8, "quantise", fail)
        assert not Encoder.open(own_model, "openvino", "int8", 1).engine.fixed_steps
        assert "with fixed ranges, could not append an operation" in caplog.messages[-1]


class TestRanges:
    def test_ranges_are_measured_once_for_a_graph(self, own_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        counted, texts = list[str](), int8.texts
        monkeypatch.setattr(int8, "texts", lambda: counted.append("measured") or texts()[:9])  # type: ignore[func-returns-value]
        with ThreadPoolExecutor(4) as threads:
            first, *others = threads.map(lambda n: load_ranges(own_model, n), (1, 2, 1, 2))
        assert len(counted) == 1
        for other in others:
            assert all(
                np.array_equal(a, b) for pair in zip(first, other, strict=True) for a, b in zip(*pair, strict=True)
            )
        (path,) = (own_model / "cache").glob("*.safetensors")
        path.with_suffix(".lock").unlink()
        path.with_suffix(".lock").mkdir()  # no process can lock, as in a read-only folder
        assert len(load_ranges(own_model, 1)) == len(first)
        assert len(counted) == 1
        graph = (own_model / GRAPH).read_bytes()
        (own_model / GRAPH).unlink()
        (own_model / GRAPH).write_bytes(graph)
        load_ranges(own_model, 1)
        assert len(counted) == 2

    def test_a_worker_starts_even_if_its_folder_cannot_be_written(self, own_model: Path, tiny_model: Path) -> None:
        (own_model / "cache").write_bytes(b"a file instead of a folder")
        opened = [Encoder.open(folder, "openvino", "int8", 1) for folder in (own_model, tiny_model)]
        assert len({encoder.fingerprint for encoder in opened}) == 1
