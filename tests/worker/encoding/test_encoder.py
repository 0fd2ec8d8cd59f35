"""The encoder makes Sentence Transformers' vectors in any batch, and refuses an engine with other vectors."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import PATIENCE_S
from passes import rows, tokenized
from safetensors.numpy import load_file, save_file

from shoal.contract.options import DOCUMENT_PROMPTS, QUERY_PROMPTS, Options
from shoal.errors import InvalidRequest, ModelMismatch
from shoal_workers.encoding.bucketing import Bucketing
from shoal_workers.encoding.encoder import Encoder, TokenizedText
from shoal_workers.encoding.engines import Engine
from shoal_workers.encoding.engines.openvino import OpenVinoEngine, OpenVinoPass
from shoal_workers.encoding.packing import Packing
from shoal_workers.encoding.tokenizer import Tokenizer
from shoal_workers.model import parity
from shoal_workers.model.model import GRAPH
from shoal_workers.model.prepare import prepare
from shoal_workers.process.processors import NICENESS

TEXTS = [
    "",
    "storm",
    "Storm over Europe, and more rain!",
    "climate change " * 40,
    "Zürich — 価格 😀 naïve",
    "a\0b",
    " \t\n ",
    "the market falls and the market rises",
]

NOT_NORMALISED = Options(normalize=False)

REFERENCE = """
import sys, json
from pathlib import Path
import numpy as np
from sentence_transformers import SentenceTransformer
from shoal.contract.options import Options
from shoal_workers.encoding.encoder import Encoder
model = SentenceTransformer(sys.argv[1], device="cpu")
texts = json.loads(sys.argv[2])
out = {"plain": model.encode(texts, prompt=""), "query": model.encode(texts, prompt_name="query")}
for pooling in ("max", "cls"):
    model[1].pooling_mode = pooling
    out[pooling] = model.encode(texts, prompt="")
tokens = model.encode(texts, prompt="", output_value="token_embeddings", normalize_embeddings=False)
out |= {f"tokens{n}": rows.numpy() for n, rows in enumerate(tokens)}
engine = Encoder.open(Path(sys.argv[4]), "torch", "f32", 1)
out |= {f"torch {how}": engine.embed(texts, Options(pooling=how), "") for how in ("mean", "max", "cls")}
np.savez(sys.argv[3], **out)
"""


@pytest.fixture(scope="module")
def reference(
    torch_reference: None, tiny_source: Path, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, np.ndarray]:
    """Vectors of the texts by Sentence Transformers and by the engine torch, computed in another process."""
    path = tmp_path_factory.mktemp("reference") / "vectors.npz"
    texts = json.dumps([text.replace("\0", "") for text in TEXTS])
    command = [sys.executable, "-W", "ignore", "-c", REFERENCE, str(tiny_source), texts, str(path), str(tiny_model)]
    subprocess.run(command, check=True)
    with np.load(path) as arrays:
        return dict(arrays)


def test_vectors_equal_the_vectors_of_sentence_transformers(encoder: Encoder, reference: dict[str, np.ndarray]) -> None:
    assert (encoder.embed(TEXTS, Options(), "") * reference["plain"]).sum(axis=1).min() > 0.99999
    for options, name in (
        (Options(), "plain"),
        (Options(pooling="mean"), "plain"),
        (Options(pooling="max"), "max"),
        (Options(pooling="cls"), "cls"),
        (Options(prompt_name="query"), "query"),
    ):
        assert encoder.embed(TEXTS, options, encoder.prompt(options)) == pytest.approx(reference[name], abs=2e-3)
    encoder.encode(texts := [TokenizedText(tokens, outputs=("tokens",)) for tokens in encoder.tokenize(TEXTS)])
    for n, text in enumerate(texts):
        assert text.vectors == pytest.approx(reference[f"tokens{n}"], abs=1e-2)

    for how, name in (("mean", "plain"), ("max", "max"), ("cls", "cls")):
        assert reference[f"torch {how}"] == pytest.approx(reference[name], abs=1e-5)


def test_a_pass_of_the_engine_torch_has_texts_of_similar_lengths(encoder: Encoder) -> None:
    for name, shares_rows in (("openvino", True), ("torch", False)):
        engine = WatchedEngine(encoder.engine)
        engine.name = name
        assert Encoder(encoder.model, encoder.tokenizer, engine).bucketing(9) == Bucketing(9, shares_rows)


def test_the_fingerprint_changes_with_everything_that_vectors_depend_on(
    encoder: Encoder, own_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = own_model / "tokenizer.json"
    path.write_text(path.read_text() + "\n")
    engines = [WatchedEngine(encoder.engine) for _ in range(2)]
    engines[0].name, engines[1].precision = "torch", "bf16"
    changes: list[dict[str, Any]] = [
        *({"digest": "other"}, {"max_tokens": 47}, {"pooling": "cls"}, {"default_prompt": "query"}),
        *({"activation": "tanh"}, {"ends_in_tanh": True}),
        {"prompts": encoder.model.prompts | {"document": "another: "}},
    ]
    others = [
        *(Encoder(replace(encoder.model, **change), encoder.tokenizer, encoder.engine) for change in changes),
        *(Encoder(encoder.model, encoder.tokenizer, engine) for engine in engines),
        Encoder(encoder.model, Tokenizer(path, encoder.model.max_tokens), encoder.engine),
    ]
    assert len({other.fingerprint for other in [encoder, *others]}) == 1 + len(others)
    renamed, fingerprint = replace(encoder.model, name="other", source="elsewhere"), encoder.fingerprint
    monkeypatch.setattr("shoal_workers.encoding.encoder.KERNEL_VERSION", -1)  # other engines depend on this version
    assert Encoder(renamed, encoder.tokenizer, encoder.engine).fingerprint == fingerprint


def test_a_text_has_the_same_vector_in_a_batch_and_alone(encoder: Encoder) -> None:
    for pooling in (None, "max", "cls"):
        options = Options(pooling=pooling, normalize=False)
        alone = np.concatenate([encoder.embed([text], options, "") for text in TEXTS])
        assert encoder.embed(TEXTS, options, "") == pytest.approx(alone, abs=1e-5)


def test_passes_side_by_side_are_balanced_and_encode_every_text_once(tiny_model: Path, encoder: Encoder) -> None:
    parallel = Encoder.open(tiny_model, "openvino", "f32", 3)
    many = [*TEXTS, *(f"storm {n}" for n in range(40))]
    texts = tokenized(encoder, many)
    passes = parallel.start(texts)
    sizes = [sum(text.num_tokens for text in one.texts) for one in passes]
    parallel.finish(passes)
    assert len(passes) == 3
    assert max(sizes) - min(sizes) <= max(text.num_tokens for text in texts)
    assert {text for one in passes for text in one.texts} == set(texts)
    assert rows(texts) == pytest.approx(encoder.embed(many, NOT_NORMALISED, ""), abs=1e-5)


class WatchedEngine(OpenVinoEngine):
    """A real engine. It notes the number of passes that it starts side by side, or 0 for a pass on all threads."""

    def __init__(self, engine: Engine):
        vars(self).update(vars(engine))
        self.started: list[int] = []

    def start(self, packings: Sequence[Packing], together: bool = False) -> list[OpenVinoPass]:
        self.started.append(0 if together else len(packings))
        return super().start(packings, together)


@pytest.mark.parametrize(
    ("texts", "num_weights", "passes"),
    [
        (["storm"], 10_000, 1),  # for a short text, waits between threads cost more than they save
        (["climate change " * 20], 10_000, 1),
        (["storm"], 10_000_000, 0),
        (["storm"], 0, 0),  # the number of weights is unknown
        (["storm", "rain"], 10_000, 2),
        (["climate change " * 20, "rain"], 10_000_000, 0),  # side by side, one thread would do nearly all the work
        (["climate change " * 20, "market rises " * 20], 10_000_000, 2),
    ],
)
def test_the_number_of_passes(encoder_of_two_threads: Encoder, texts: list[str], num_weights: int, passes: int) -> None:
    engine = WatchedEngine(encoder_of_two_threads.engine)
    model = replace(encoder_of_two_threads.model, num_weights=num_weights)
    encoder = Encoder(model, encoder_of_two_threads.tokenizer, engine)
    alone = np.concatenate([encoder_of_two_threads.embed([text], NOT_NORMALISED, "") for text in texts])
    encoder.encode(encoded := tokenized(encoder, texts))
    assert rows(encoded) == pytest.approx(alone, abs=1e-5)
    assert engine.started == [passes]


def test_passes_aside_do_not_change_the_vectors_of_others(encoder_of_two_threads: Encoder) -> None:
    engine = WatchedEngine(encoder_of_two_threads.engine)
    encoder = Encoder(encoder_of_two_threads.model, encoder_of_two_threads.tokenizer, engine)
    bulk, urgent = (tokenized(encoder, texts) for texts in (TEXTS, ["a", "b"]))
    encoder.start_aside(tokenized(encoder, TEXTS * 50))  # the test does not wait for these passes
    aside = encoder.start_aside(bulk)
    encoder.finish(encoder.start(urgent))
    encoder.finish(aside)
    assert engine.started == [2]
    expected = encoder.embed([*TEXTS, "a", "b"], NOT_NORMALISED, "")
    assert rows([*bulk, *urgent]) == pytest.approx(expected, abs=1e-5)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has priorities of threads")
def test_passes_aside_have_threads_of_low_priority(tiny_model: Path) -> None:
    encoder = Encoder.open(tiny_model, "openvino", "f32", 2)
    encoder.finish(encoder.start_aside(tokenized(encoder, TEXTS)))
    priorities = [os.getpriority(os.PRIO_PROCESS, int(thread)) for thread in os.listdir("/proc/self/task")]
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert priorities.count(own) > priorities.count(min(19, own + NICENESS)) >= 2
    assert os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] == "0"  # otherwise threads sometimes get wrong code


def test_dimensions_are_cut_before_normalising_and_the_model_provides_the_prompts(encoder: Encoder) -> None:
    raw = encoder.embed(TEXTS, Options(normalize=False), "")
    cut = encoder.embed(TEXTS, Options(dimensions=8), "")
    assert cut == pytest.approx(raw[:, :8] / np.linalg.norm(raw[:, :8], axis=1, keepdims=True), abs=1e-6)
    assert encoder.embed(TEXTS, Options(dimensions=8, normalize=False), "") == pytest.approx(raw[:, :8])
    encoder.check(Options(dimensions=32))
    with pytest.raises(InvalidRequest, match=r"dimensions is 33: the vectors of .* have 32"):
        encoder.check(Options(dimensions=33))
    prompts = [encoder.prompt(Options(), names) for names in ((), QUERY_PROMPTS, DOCUMENT_PROMPTS)]
    assert prompts == ["", "storm ", ""]
    with pytest.raises(InvalidRequest, match=r'prompt_name is "x": .* prompts: \[document, query\]'):
        encoder.prompt(Options(prompt_name="x"))


def test_an_engine_that_fails_to_reproduce_one_vector_is_refused(own_model: Path) -> None:
    vectors = load_file(own_model / parity.FILE)["vectors"]
    away = vectors[3] - (vectors[3] @ vectors[2]) * vectors[2]
    vectors[2] = 0.995 * vectors[2] + np.sqrt(1 - 0.995**2) * away / np.linalg.norm(away)
    save_file({"vectors": vectors}, own_model / parity.FILE)
    with pytest.raises(ModelMismatch, match=r"cosine 0\.99500 .* under 0\.999: prepare the model again"):
        Encoder.open(own_model, "openvino", "f32", 1)


@pytest.mark.parametrize("name", [GRAPH, "openvino.bin", parity.FILE, "tokenizer.json"])
def test_a_truncated_file_of_a_prepared_model_is_refused(own_model: Path, name: str) -> None:
    (own_model / name).write_bytes((own_model / name).read_bytes()[:100])
    with pytest.raises(ModelMismatch, match=r"cannot be used \(\S.*\): prepare it again"):
        Encoder.open(own_model, "openvino", "f32", 1)


@pytest.mark.parametrize("precision", ["f32", "int8"])
def test_passes_aside_and_resizes_use_the_opened_model(own_source: Path, tmp_path: Path, precision: str) -> None:
    prepare("tiny", own_source, folder := tmp_path / "prepared")
    encoder = Encoder.open(folder, "openvino", precision, 2)
    expected, fingerprint = encoder.embed(TEXTS, NOT_NORMALISED, ""), encoder.fingerprint
    tensors = load_file(own_source / "model.safetensors")
    save_file({name: -tensor for name, tensor in tensors.items()}, own_source / "model.safetensors")
    prepare("tiny", own_source, folder)  # as a worker that starts meanwhile would do
    for num_threads in (2, 3):
        passes = encoder.start_aside(texts := tokenized(encoder, TEXTS))
        encoder.finish(passes)
        assert rows(texts) == pytest.approx(expected, abs=1e-4)
        assert (len(passes), encoder.engine.threads, encoder.fingerprint) == (num_threads, num_threads, fingerprint)
        encoder.engine = encoder.engine.resized(3)
    assert encoder.embed(TEXTS, NOT_NORMALISED, "") == pytest.approx(expected, abs=1e-4)


#: A program that opens the prepared model in argv[1], deletes the encoder in another thread, and signals itself.
DROPPED = """
import signal, sys, threading
from pathlib import Path
from shoal_workers.encoding.encoder import Encoder

signal.signal(signal.SIGTERM, lambda *_: print("told to stop"))
encoders = [Encoder.open(Path(sys.argv[1]), "openvino", "f32", 1)]
dropping = threading.Thread(target=encoders.clear)
dropping.start()
dropping.join()
signal.raise_signal(signal.SIGTERM)
"""


def test_a_signal_is_handled_after_another_thread_has_deleted_the_encoder(tiny_model: Path) -> None:
    """On a processor with AMX, OpenVINO's core gives the thread that creates it a stack for signals."""
    command = [sys.executable, "-X", "faulthandler", "-c", DROPPED, str(tiny_model)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stdout) == (0, "told to stop\n"), done.stderr
