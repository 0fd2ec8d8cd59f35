"""The kernel in scripts/kernel, which is not part of the package: its vectors, and what it refuses."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from kernel import native
from kernel.native import CannotRun, Kernel, build
from numpy.typing import NDArray

from shoal.bench.service import sample
from shoal.jobs import Options
from shoal.settings import Settings
from shoal_workers.encoding.encoder import Encoder
from shoal_workers.model.source import PACKAGED, find_source
from shoal_workers.service import open_encoder

needs_kernel = pytest.mark.skipif(bool(native.missing()), reason=native.missing())

#: Lowest cosine to f32; that of the empty text is the lowest in int8.
MIN_COSINES = {"int8": 0.98, "bf16": 0.999}


@pytest.fixture(scope="module")
def home(request: pytest.FixtureRequest) -> Path:
    """Return a folder that stays for the next run of the tests: to compile and to prepare takes ten seconds."""
    return Path(request.config.cache.mkdir("kernel")) if request.config.cache else Path()


@pytest.fixture(scope="module")
def encoder(home: Path) -> Encoder:
    """Return the engine with the weights that the kernel has, in f32."""
    return open_encoder(Settings(home=str(home), model=PACKAGED, precision="f32"), 1)


@pytest.fixture(scope="module", params=MIN_COSINES)
def kernel(request: pytest.FixtureRequest, home: Path) -> tuple[str, Kernel]:
    """Return a precision and the kernel in it."""
    return request.param, Kernel(build(home), find_source(PACKAGED), request.param)


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """Return texts of many lengths: none of the kernel's tiles is left out, and one text is cut at 256 tokens."""
    lines = sample()
    longer = [" ".join(lines[:n]) for n in (2, 3, 4, 5, 7, 10, 15, 60)]
    return ["", "storm", *lines[:60], *longer, "雨 e\u0301 🌧", *lines[60:80]]


def ids_of(encoder: Encoder, texts: Sequence[str]) -> list[tuple[int, ...]]:
    """Return the token ids of each text."""
    return [tokens.ids for tokens in encoder.tokenize(texts)]


@needs_kernel
class TestVectors:
    def test_they_are_near_those_of_f32(
        self, encoder: Encoder, kernel: tuple[str, Kernel], texts: Sequence[str]
    ) -> None:
        precision, opened = kernel
        found = opened.encode(ids_of(encoder, texts), threads=2)
        cosines = (found * encoder.embed(texts, Options(), "")).sum(axis=1)
        assert cosines.min() > MIN_COSINES[precision]
        assert cosines.max() < 1.0001
        assert np.linalg.norm(found, axis=1) == pytest.approx(1, abs=1e-5)

    @pytest.mark.parametrize("threads", [1, 2, 5])
    @pytest.mark.parametrize("block_tokens", [1, 64, 100_000])
    def test_a_text_has_the_same_vector_alone_and_in_a_batch(
        self, encoder: Encoder, kernel: tuple[str, Kernel], texts: Sequence[str], threads: int, block_tokens: int
    ) -> None:
        opened = kernel[1]
        found = opened.encode(ids_of(encoder, texts), threads, block_tokens)
        alone = [opened.encode([ids]) for ids in ids_of(encoder, texts)]
        assert np.array_equal(found, np.concatenate(alone))

    def test_texts_have_up_to_as_many_tokens_as_the_model_has_positions(self, kernel: tuple[str, Kernel]) -> None:
        longest = [[101, *range(2_000, 2_510), 102]] * 5
        found: NDArray[np.float32] = kernel[1].encode([*longest, [101]])
        assert np.array_equal(found[0], found[4])
        assert np.isfinite(found).all()
        assert kernel[1].encode([]).shape == (0, 384)


@needs_kernel
class TestRefused:
    @pytest.mark.parametrize(
        ("texts", "message"),
        [
            ([[101, 102], []], "text 1 has 0 tokens: it must have 1 to 512"),
            ([[101], [5] * 513], "text 1 has 513 tokens"),
            ([[101, 102], [101, -1]], "text 1 has the id -1: the vocabulary has 0 to 30521"),
            ([[101, 102], [101], [30_522]], "text 2 has the id 30522"),
            ([[1 << 40]], "text 0 has the id 1099511627776"),
        ],
    )
    def test_wrong_ids_and_lengths_are(
        self, kernel: tuple[str, Kernel], texts: Sequence[Sequence[int]], message: str
    ) -> None:
        with pytest.raises(ValueError, match=message):
            kernel[1].encode(texts)

    def test_no_threads_are(self, kernel: tuple[str, Kernel]) -> None:
        with pytest.raises(ValueError, match="threads is 0"):
            kernel[1].encode([[101]], threads=0)

    def test_a_model_of_other_sizes_is(self, home: Path, tiny_source: Path) -> None:
        with pytest.raises(CannotRun, match="the kernel is written for"):
            Kernel(build(home), tiny_source, "int8")


class TestMissing:
    def test_a_machine_without_a_compiler_or_the_instructions_is_told(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(CannotRun, match=r"there is no g\+\+|the processor lacks"):
            build(tmp_path)
        monkeypatch.setattr(native, "INSTRUCTIONS", ("avx512_of_tomorrow",))
        with pytest.raises(CannotRun, match="the processor lacks avx512_of_tomorrow: the kernel needs AVX-512"):
            build(tmp_path)
