"""Static models: a text's vector is the mean of its tokens' rows of a table, as in the library of each format."""

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tiny_model import word_piece
from tokenizers import Tokenizer, models, pre_tokenizers

from shoal.contract.options import Options
from shoal.errors import BadSetting, InvalidRequest, ModelMismatch
from shoal_workers.encoding.encoder import Encoder
from shoal_workers.model.model import Model
from shoal_workers.model.prepare import prepare

DIMENSION = 16
TEXTS = ["", " ", "storm", "the storm in europe", "storm 漢", "漢", "a storm of rain " * 300, "[SEP] market"]


@pytest.fixture(scope="module")
def rows() -> NDArray[np.float32]:
    """The table's rows, one for each token of the tokenizer."""
    return np.random.default_rng(5).normal(0, 1, (word_piece().get_vocab_size(), DIMENSION)).astype(np.float32)


def save_model2vec(folder: Path, **tensors: NDArray[np.generic]) -> Path:
    """Save a folder as model2vec writes it."""
    folder.mkdir()
    word_piece().save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"model_type": "model2vec", "normalize": True}))
    save_file(tensors, folder / "model.safetensors")
    return folder


def prepared(source: Path) -> Path:
    folder = source.with_name(f"{source.name}-prepared")
    prepare("static", source, folder)
    return folder


def embed(folder: Path, precision: str = "f32") -> NDArray[np.float32]:
    return Encoder.open(folder, "auto", precision, 1).embed(TEXTS, Options(), "")


def mean_rows(table: NDArray[np.float32], skipped: int | None = None) -> NDArray[np.float32]:
    """Return the normalised mean of the rows of each text's first 512 tokens, without those that are skipped."""
    found = []
    for encoding in word_piece().encode_batch(TEXTS, add_special_tokens=False):
        ids = [number for number in encoding.ids[:512] if number != skipped]
        mean = table[ids].mean(axis=0) if ids else np.zeros(DIMENSION, np.float32)
        found.append(mean / max(float(np.linalg.norm(mean)), 1e-12))
    return np.array(found, np.float32)


@pytest.fixture
def model2vec(tmp_path: Path, rows: NDArray[np.float32]) -> Path:
    return prepared(save_model2vec(tmp_path / "model", embeddings=rows))


def test_model2vec_leaves_unknown_words_out(model2vec: Path, rows: NDArray[np.float32]) -> None:
    expected = mean_rows(rows, skipped=word_piece().token_to_id("[UNK]"))
    for precision, error in (("f32", 1e-3), ("bf16", 0.02), ("int8", 0.02)):
        found = embed(model2vec, precision)
        np.testing.assert_allclose(found, expected, atol=error)
        assert not found[[0, 1, 5]].any()  # texts without a known word


def test_model2vec_may_share_rows_and_weigh_tokens(tmp_path: Path, rows: NDArray[np.float32]) -> None:
    random = np.random.default_rng(6)
    mapping, factors = random.integers(0, 9, len(rows)), random.uniform(0.5, 2, len(rows)).astype(np.float32)
    source = save_model2vec(tmp_path / "model", embeddings=rows[:9], mapping=mapping, weights=factors)
    expected = mean_rows(rows[mapping] * factors[:, None], skipped=word_piece().token_to_id("[UNK]"))
    np.testing.assert_allclose(embed(prepared(source)), expected, atol=1e-3)


@pytest.mark.wide
def test_a_static_embedding_is_computed(torch_reference: None, tmp_path: Path, rows: NDArray[np.float32]) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    original = SentenceTransformer(modules=[StaticEmbedding(word_piece(), embedding_weights=rows)], device="cpu")
    original.save(str(tmp_path / "model"))
    short = [n for n, text in enumerate(TEXTS) if len(text) < 1_000]
    expected = original.encode([TEXTS[n] for n in short], normalize_embeddings=True)
    np.testing.assert_allclose(embed(prepared(tmp_path / "model"))[short], expected, atol=1e-3)
    np.testing.assert_allclose(embed(tmp_path / "model-prepared"), mean_rows(rows), atol=1e-3)


def test_a_text_counts_its_tokens_and_one_before_them_and_is_pooled_by_the_mean_alone(model2vec: Path) -> None:
    encoder = Encoder.open(model2vec, "auto", "f32", 1)
    counted = [(len(tokens.ids), tokens.truncated) for tokens in encoder.tokenize(TEXTS)]
    assert counted[:4] == [(1, False), (1, False), (2, False), (5, False)]
    assert counted[6] == (513, True)
    encoder.check(Options(pooling="mean"))
    with pytest.raises(InvalidRequest, match="is a static model, which takes mean"):
        encoder.check(Options(pooling="cls"))


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"vectors": (30, 4)}, "has no table of vectors"),
        ({"embeddings": (30,)}, "has no table of vectors"),
        ({"embeddings": (77, 4)}, "makes ids up to 78, and the model has 78 words"),
        ({"embeddings": (78, 4), "weights": (9,)}, "has weights of"),
        ({"embeddings": (60, 4), "mapping": (78,)}, "maps tokens to rows that the table lacks"),
    ],
)
def test_tables_that_cannot_be_used(tmp_path: Path, tensors: dict[str, tuple[int, ...]], message: str) -> None:
    made: dict[str, NDArray[np.generic]] = {name: np.ones(shape, np.float32) for name, shape in tensors.items()}
    if "mapping" in made:
        made["mapping"] = np.full(tensors["mapping"], 60, np.int64)
    with pytest.raises(ModelMismatch, match=message):
        prepared(save_model2vec(tmp_path / "model", **made))


@pytest.mark.parametrize("engine", ["avx512", pytest.param("torch", marks=pytest.mark.wide)])
def test_other_engines_refuse_static_models(model2vec: Path, engine: str) -> None:
    if engine == "torch":
        pytest.importorskip("torch")
    assert Model.open(model2vec).is_static
    with pytest.raises(BadSetting, match=r"a static model: openvino does|avx512 needs|is not compiled"):
        Encoder.open(model2vec, engine, "auto", 1)


def test_unknown_words_of_a_unigram_tokenizer_count(tmp_path: Path) -> None:
    pieces = [("<unk>", 0.0), ("▁storm", -1.0), ("▁rain", -2.0), ("▁", -3.0)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    table = np.eye(4, dtype=np.float64)
    source = save_model2vec(tmp_path / "model", embeddings=table)
    tokenizer.save(str(source / "tokenizer.json"))
    encoder = Encoder.open(prepared(source), "auto", "f32", 1)
    (found,) = encoder.embed(["storm 漢"], Options(), "")
    assert found[0] > 0
    assert found[1] > 0
