"""Heads make the sparse weights and vectors of tokens of Sentence Transformers, for texts alone and packed together."""

import json
import re
import shutil
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from conftest import run_reference
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tiny_model import edit

from shoal.contract.options import Options
from shoal.errors import BadSetting, ModelMismatch, ModelNotFound
from shoal_workers.encoding.bucketing import Bucketing
from shoal_workers.encoding.encoder import Encoder, Pipeline
from shoal_workers.model.heads import open_head
from shoal_workers.model.model import Model
from shoal_workers.model.prepare import prepare

TEXTS = ["storm in europe", "", "a", "rain " * 80, "the market falls and rises", "climate a b, change 12"]
SPARSE = ["bert", "distilbert, sum", "xlm-roberta, own words", "modernbert"]
LATE = ["late, fixed", "late, at least", "late, plain", "late, of Stanford", "late, of PyLate"]
LOWEST = {"f32": 0.9999, "bf16": 0.999}
QUERY_TABLE = "query_0_SparseStaticEmbedding"
DOCUMENT_ROUTE = ["document_0_Transformer", "document_1_SpladePooling"]

Arrays = dict[str, NDArray[np.float32]]


@pytest.fixture(scope="module")
def models(torch_reference: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("heads")
    run_reference("head_reference.py", folder)
    return folder


def prepared(source: Path) -> Path:
    folder = source.with_name(f"{source.name}, prepared")
    if not folder.exists():
        prepare("model", source, folder)
    return folder


def opened(models: Path, name: str, precision: str = "f32", engine: str = "openvino") -> tuple[Encoder, Arrays]:
    with np.load(models / f"{name}.npz") as stored:
        return Encoder.open(prepared(models / name), engine, precision, 1), dict(stored)


def outputs_of(
    encoder: Encoder, output: str, texts: list[str], prompt_name: str | None = None
) -> list[NDArray[np.float32]]:
    """Return the weights of all words, or the normalised vectors, of each text."""
    options = Options(output=output, prompt_name=prompt_name)
    found = []
    for text in encoder.encoded(texts, options, encoder.prompt(options)):
        if output == "sparse":
            made = np.zeros(encoder.tokenizer._tokenizer.get_vocab_size(), np.float32)
            indices, values = text.made[output]
            assert (values > 0).all()
            made[indices] = values
        else:
            made = text.made[output] / np.linalg.norm(text.made[output], axis=1, keepdims=True)
        found.append(made)
    return found


def check(found: list[NDArray[np.float32]], expected: list[NDArray[np.float32]], lowest: float) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape
        lengths = np.linalg.norm(one, axis=-1) * np.linalg.norm(other, axis=-1)
        assert ((one * other).sum(axis=-1) >= lowest * lengths).all()
        assert np.abs(one - other).max(initial=0) <= (0.02 if lowest > 0.999 else 0.2) * np.abs(other).max(initial=1)


@pytest.mark.wide
@pytest.mark.parametrize(("name", "precision"), [*product(SPARSE, LOWEST), ("modernbert, no bias", "f32")])
def test_sparse_weights_are_right(models: Path, name: str, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, expected = opened(models, name, precision)
    assert encoder.model.outputs == ("sparse",)
    assert encoder.model.dimension == expected["sparse"].shape[1]
    check(outputs_of(encoder, "sparse", TEXTS), [*expected["sparse"]], LOWEST[precision])
    monkeypatch.setattr(open_head, "MAX_VALUES", 2 * open_head.GROUP * encoder.model.dimension)  # texts have many parts
    for n, text in enumerate(TEXTS):
        check(outputs_of(encoder, "sparse", [text]), [expected["sparse"][n]], LOWEST[precision])


@pytest.mark.wide
@pytest.mark.parametrize("precision", LOWEST)
@pytest.mark.parametrize("name", LATE)
def test_vectors_of_tokens_are_right(models: Path, name: str, precision: str) -> None:
    encoder, expected = opened(models, name, precision)
    assert (encoder.model.outputs, encoder.model.dimension) == (("multivector",), 16)
    for way in ("query", "document"):
        of_texts = [expected[f"{way}{n}"] for n in range(len(TEXTS))]
        check(outputs_of(encoder, "multivector", TEXTS, way), of_texts, LOWEST[precision])
        for n, text in enumerate(TEXTS):
            check(outputs_of(encoder, "multivector", [text], way), [of_texts[n]], LOWEST[precision])
    assert outputs_of(encoder, "multivector", TEXTS)[5].shape == expected["document5"].shape


@pytest.mark.wide
def test_a_model_makes_all_three_outputs_in_one_pass(models: Path) -> None:
    encoder, expected = opened(models, "bge")
    assert encoder.model.outputs == ("vector", "tokens", "chunks", "sparse", "multivector")
    texts = [*TEXTS, "rain [CLS] in [SEP] europe"]
    check(outputs_of(encoder, "sparse", texts), [*expected["sparse"]], LOWEST["f32"])
    check(outputs_of(encoder, "multivector", texts), [expected[f"document{n}"] for n in range(7)], LOWEST["f32"])
    check([*encoder.embed(texts, Options(), "")], [*expected["vectors"]], LOWEST["f32"])
    (text,) = encoder.encoded(["storm in europe"], Options(output=["vector", "sparse", "multivector"]), "")
    assert text.vectors is not None
    assert (text.vectors.shape, {*text.made}) == ((1, 32), {"sparse", "multivector"})


@pytest.mark.wide
def test_a_table_gives_queries_their_weights_without_a_pass(models: Path, tmp_path: Path) -> None:
    encoder, expected = opened(models, "routed")
    check(outputs_of(encoder, "sparse", TEXTS, "document"), [*expected["document"]], LOWEST["f32"])
    check(outputs_of(encoder, "sparse", TEXTS), [*expected["document"]], LOWEST["f32"])
    found = outputs_of(encoder, "sparse", TEXTS, "query")
    assert (np.array(found) == expected["query"]).all()
    assert (expected["query"] > 0).any(axis=1).all()
    query, document = (
        encoder.encoded(["storm"], Options(output="sparse", prompt_name=way), "")[0] for way in ("query", "document")
    )
    assert (encoder.needs_pass(query), encoder.needs_pass(document)) == (False, True)
    assert encoder.start([query]) == encoder.start_aside([query]) == []
    pipeline = Pipeline(encoder, Bucketing(64))
    pipeline.note([document], 1.0)
    cost = pipeline.cost_within(1.0)
    pipeline.note([query], 0.0)
    assert pipeline.cost_within(1.0) == cost
    source = shutil.copytree(models / "routed", tmp_path / "model")
    for table in (np.ones(5, np.float32), -np.ones(78, np.float32)):
        save_file({"weight": table}, source / QUERY_TABLE / "model.safetensors")
        with pytest.raises(ModelMismatch, match="has no weight over 0 for each of 78 words"):
            prepare("model", source, tmp_path / "prepared")


@pytest.mark.wide
@pytest.mark.parametrize(("engine", "precision"), [("torch", "f32"), ("avx512", "bf16")])
def test_heads_are_the_same_on_every_engine(models: Path, engine: str, precision: str) -> None:
    for name, output in (("bert", "sparse"), ("late, plain", "multivector")):
        try:
            encoder, expected = opened(models, name, precision, engine)
        except BadSetting as error:
            pytest.skip(str(error))
        of_texts = (
            [*expected["sparse"]] if output == "sparse" else [expected[f"document{n}"] for n in range(len(TEXTS))]
        )
        check(outputs_of(encoder, output, TEXTS, "document"), of_texts, LOWEST[precision])


@pytest.mark.wide
def test_heads_follow_the_number_of_threads_and_are_part_of_the_fingerprint(models: Path) -> None:
    encoder, expected = opened(models, "bert")
    before = encoder.fingerprint
    encoder.engine = encoder.engine.resized(2)
    check(outputs_of(encoder, "sparse", TEXTS), [*expected["sparse"]], LOWEST["f32"])
    assert [head.threads for head in encoder._heads.values()] == [2]
    about = json.loads((prepared(models / "bert") / "model.json").read_text())
    about["heads"]["sparse"]["num_logs"] = 2
    copy = shutil.copytree(prepared(models / "bert"), models / "changed")
    (copy / "model.json").write_text(json.dumps(about))
    assert Encoder(Model.open(copy), encoder.tokenizer, encoder.engine).fingerprint != before
    about["heads"]["sparse"]["size"] = 0
    (copy / "model.json").write_text(json.dumps(about))
    with pytest.raises(ModelNotFound, match="describes no model"):
        Encoder.open(copy, "openvino", "f32", 1)


@pytest.mark.wide
@pytest.mark.parametrize(
    ("name", "file", "changes", "words"),
    [
        ("bert", "1_SpladePooling/config.json", {"pooling_strategy": "mean"}, 'makes weights by "mean" and "relu"'),
        ("bert", "config.json", {"hidden_act": "mish"}, "has a head, and is of an architecture"),
        ("bert", "config.json", {"tie_word_embeddings": False}, "the weights lack tensor cls.predictions.weight"),
        ("late, fixed", "1_Dense/config.json", {"activation_function": "torch.nn.Tanh"}, "more than a linear layer"),
        ("late, fixed", "2_MultiVectorMask/config.json", {"keep_only_token_ids": [1]}, "keeps some tokens alone"),
        (
            "late, fixed",
            "2_MultiVectorMask/config.json",
            {"skiplist_tasks": ["query"]},
            'skips words only in ["query"]',
        ),
        *[
            ("late, fixed", "sentence_bert_config.json", {"query_expansion": {"strategy": "fixed"} | more}, words)
            for more, words in (
                ({"length": 10**6}, "fills queries to 1000000 tokens"),
                ({"length": 9, "token": "nobody"}, 'fills queries by "nobody", not a token'),
                ({"length": 9, "strategy": "most"}, "query_expansion"),
                ({"length": 2}, "cuts texts to 2 tokens, 2 of them special"),
            )
        ],
        *[
            ("late, plain", "sentence_bert_config.json", {name: length}, f"cuts texts to {length} tokens")
            for name in ("query_length", "document_length")
            for length in (-5, 2, 10.5)
        ],
        *[
            ("routed", "router_config.json", {"structure": structure}, words)
            for structure, words in (
                ({"query": [], "image": []}, "has a Router for query, image"),
                ({"query": DOCUMENT_ROUTE[:1], "document": DOCUMENT_ROUTE[:1]}, "lacks the setting or layer 'Pooling'"),
                ({"query": DOCUMENT_ROUTE[:1], "document": DOCUMENT_ROUTE}, "sends queries through Transformer"),
            )
        ],
        ("routed", f"{QUERY_TABLE}/tokenizer.json", {"normalizer": None}, "reads queries with another tokenizer"),
        ("late, of Stanford", "artifact.metadata", {"query_maxlen": "many"}, "query_expansion"),
        ("late, of Stanford", "artifact.metadata", {"doc_maxlen": "many"}, "has a head that Shoal does not know"),
    ],
)
def test_settings_that_a_head_cannot_have_are_refused(
    models: Path, tmp_path: Path, name: str, file: str, changes: dict[str, object], words: str
) -> None:
    source = shutil.copytree(models / name, tmp_path / "model")
    edit(source / file, **changes)
    with pytest.raises(ModelMismatch, match=re.escape(words)):
        prepare("model", source, tmp_path / "prepared")


@pytest.mark.wide
def test_pickled_and_damaged_heads(models: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = shutil.copytree(models / "bge", tmp_path / "model")
    digest = Model.read("model", source).digest
    weigh = source / "sparse_linear.safetensors"
    save_file({"weight": np.zeros((1, 31), np.float32)}, weigh)
    assert Model.read("model", source).digest != digest
    with pytest.raises(ModelMismatch, match="no linear layer of 32 inputs"):
        prepare("model", source, tmp_path / "prepared")
    weigh.unlink()
    (source / "colbert_linear.safetensors").rename(source / "colbert_linear.pt")
    prepare("model", source, tmp_path / "prepared")
    assert "has colbert_linear.pt, which is not read: docs/models.md says" in caplog.text
    assert Model.open(tmp_path / "prepared").outputs == ("vector", "tokens", "chunks")


@pytest.mark.wide
def test_a_dense_layer_beside_heads_is_refused(models: Path, tmp_path: Path) -> None:
    source = shutil.copytree(models / "bge", tmp_path / "model")
    layers = json.loads((source / "modules.json").read_text())
    layers[2] |= {"name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"}
    (source / "modules.json").write_text(json.dumps(layers))
    (source / "2_Dense").mkdir()
    about = {"in_features": 32, "out_features": 32, "bias": False, "activation_function": "torch.nn.Identity"}
    (source / "2_Dense/config.json").write_text(json.dumps(about))
    save_file({"linear.weight": 2 * np.eye(32, dtype=np.float32)[::-1].copy()}, source / "2_Dense/model.safetensors")
    names = "sparse_linear.safetensors and colbert_linear.safetensors"
    with pytest.raises(ModelMismatch, match=f"has {names} and a Dense layer"):
        prepare("model", source, tmp_path / "prepared")
