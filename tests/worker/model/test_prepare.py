"""A model is prepared without torch, once for all processes that need it, and completely or not at all."""

import json
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import TESTS
from safetensors.numpy import load_file, save_file
from tiny_model import edit

from shoal.contract.options import Options
from shoal.errors import BadSetting, ModelMismatch, ModelNotFound
from shoal_workers.encoding.encoder import Encoder
from shoal_workers.model import parity, weights
from shoal_workers.model.download import PACKAGED, find_source
from shoal_workers.model.model import Model, is_prepared, prepared_folder
from shoal_workers.model.prepare import prepare_if_needed

PREPARE = """
import sys
from pathlib import Path
from shoal_workers.model.prepare import prepare_if_needed
print(prepare_if_needed(Path(sys.argv[1]), sys.argv[2]))
assert not {"torch", "sentence_transformers", "transformers"} & set(sys.modules)
"""

#: A program that writes Sentence Transformers' vectors of the texts of the parity check.
REFERENCE = """
import sys
import numpy as np
from sentence_transformers import SentenceTransformer
from shoal_workers.model import parity
model = SentenceTransformer(sys.argv[1], device="cpu", local_files_only=True)
np.save(sys.argv[2], model.encode(list(parity.TEXTS), prompt="", normalize_embeddings=True))
"""

#: The same vectors of the default model.
EXPECTED = TESTS / "shared/models/default_model.safetensors"


def run(script: str, *arguments: object) -> "subprocess.Popen[str]":
    command = [sys.executable, "-W", "ignore", "-c", script, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_the_default_model_has_the_vectors_of_sentence_transformers_and_needs_no_torch(tmp_path: Path) -> None:
    output, errors = run(PREPARE, tmp_path, PACKAGED).communicate()
    assert "preparing" in errors
    found = load_file(Path(output.strip()) / parity.FILE)["vectors"]
    assert found == pytest.approx(load_file(EXPECTED)["vectors"], abs=1e-5)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, None),
        ({"matryoshka_dimensions": None, "is_matryoshka": False}, None),
        ({"is_matryoshka": True}, []),
        ({"matryoshka_dimensions": [32, 8, 0, 16, 64]}, [8, 16, 32]),
    ],
)
def test_matryoshka_dimensions_are_read(
    own_source: Path, changes: dict[str, object], expected: list[int] | None
) -> None:
    edit(own_source / "config.json", **changes)
    assert Model.read("model", own_source).matryoshka_dimensions == expected


def add_dense(own_source: Path, *shapes: tuple[int, int], last: str = "Identity", **config: object) -> list[np.ndarray]:
    """Put Dense layers `[outputs, inputs]` after pooling, the last with a function; return the matrix of each."""
    modules, random = json.loads((own_source / "modules.json").read_text())[:2], np.random.default_rng(5)
    matrices = [random.normal(0, 0.3, shape).astype(np.float32) for shape in shapes]
    for n, matrix in enumerate(matrices, 2):
        folder = own_source / f"{n}_Dense"
        folder.mkdir()
        outputs, inputs = matrix.shape
        name = f"torch.nn.{last if n == len(matrices) + 1 else 'Identity'}"
        about = {"in_features": inputs, "out_features": outputs, "activation_function": name} | config
        (folder / "config.json").write_text(json.dumps(about))
        save_file({"linear.weight": matrix, "linear.bias": np.full(outputs, n / 10, np.float32)}, folder / weights.FILE)
        modules.append({"name": str(n), "path": folder.name, "type": "sentence_transformers.models.Dense"})
    modules.append({"name": "9", "path": "9_Normalize", "type": "sentence_transformers.models.Normalize"})
    (own_source / "modules.json").write_text(json.dumps(modules))
    return matrices


@pytest.mark.parametrize(("pooling", "last"), [("mean", "Identity"), ("cls", "Identity"), ("mean", "Tanh")])
def test_dense_layers_are_computed(own_source: Path, tmp_path: Path, pooling: str, last: str) -> None:
    edit(own_source / "1_Pooling/config.json", pooling_mode=pooling)
    options = Options(normalize=False)
    plain = Encoder.open(prepare_if_needed(tmp_path / "plain", str(own_source)), "openvino", "f32", 1)
    first, second = add_dense(own_source, (48, 32), (20, 48), last=last)
    expected = (plain.embed(parity.TEXTS, options, "") @ first.T + 0.2) @ second.T + 0.3
    expected = np.tanh(expected) if last == "Tanh" else expected
    folder = prepare_if_needed(tmp_path / "dense", str(own_source))
    model, encoder = Model.open(folder), Encoder.open(folder, "openvino", "f32", 1)
    assert (model.dimension, model.other_blocks, model.digest == plain.model.digest) == (20, "a Dense layer", False)
    for engine in (encoder, Encoder.open(folder, "torch", "f32", 1)):
        assert engine.embed(parity.TEXTS, options, "") == pytest.approx(expected, rel=0.01, abs=0.01)
    with pytest.raises(BadSetting, match=r"a Dense layer|needs a processor|is not compiled"):
        Encoder.open(folder, "avx512", "bf16", 1)


def test_dense_layers_that_do_more_or_do_not_fit_are_refused(own_source: Path, tmp_path: Path) -> None:
    def refuse(words: str) -> None:
        with pytest.raises(ModelMismatch, match=words):
            prepare_if_needed(tmp_path / "home", str(own_source))

    modules = (own_source / "modules.json").read_text()
    cases: list[tuple[dict[str, Any], list[tuple[int, int]], str]] = [
        ({"activation_function": "torch.nn.modules.activation.GELU"}, [(8, 32)], "more than a linear layer"),
        ({"activation_function": "torch.nn.modules.activation.Tanh"}, [(8, 32), (8, 8)], "more than a linear layer"),
        ({"use_residual": True}, [(32, 32)], "more than a linear layer"),
        *[({"in_features": n}, [(8, 32)], "do not fit its config.json") for n in (31, "a", None, 10**15)],
        ({}, [(8, 32), (8, 9)], "does not fit the layer before it"),
        ({}, [(8, 31)], "does not fit the layer before it"),
    ]
    for config, shapes, words in cases:
        add_dense(own_source, *shapes, **config)
        refuse(words)
        (own_source / "modules.json").write_text(modules)
        for folder in own_source.glob("*_Dense"):
            shutil.rmtree(folder)
    add_dense(own_source, (8, 32))
    with_dense = (own_source / "modules.json").read_text()
    (own_source / "modules.json").write_text(json.dumps(json.loads(with_dense)[::-1]))
    refuse("has layers in the order")
    (own_source / "modules.json").write_text(with_dense)
    edit(own_source / "1_Pooling/config.json", pooling_mode="max")
    refuse("has a Dense layer after pooling by max")
    edit(own_source / "1_Pooling/config.json", pooling_mode="mean")
    edit(own_source / "config.json", hidden_act="mish")
    refuse("has a Dense layer, and is of an architecture")


@pytest.mark.wide
@pytest.mark.usefixtures("torch_reference")
def test_the_expected_vectors_equal_the_vectors_of_sentence_transformers(tmp_path: Path) -> None:
    path = tmp_path / "vectors.npy"
    run(REFERENCE, find_source(PACKAGED), path).communicate()
    assert load_file(EXPECTED)["vectors"] == pytest.approx(np.load(path), abs=1e-5)


def test_one_of_several_prepares_a_model(own_source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = prepared_folder(tmp_path, str(own_source))
    left = folder.with_name(f".{folder.name}.new")  # left by a process that was killed
    left.mkdir(parents=True)
    (left / "openvino.xml").write_text("half")
    with ThreadPoolExecutor(3) as threads:
        assert set(threads.map(lambda _: prepare_if_needed(tmp_path, str(own_source)), range(3))) == {folder}
    assert capsys.readouterr().err.count(", once\n") == 1
    assert {path.name for path in folder.parent.iterdir()} == {folder.name, f".{folder.name}.lock"}


def test_a_changed_model_takes_the_place_of_the_old_one(own_source: Path, tmp_path: Path) -> None:
    edit(own_source / "sentence_bert_config.json", max_seq_length=1_000)
    folder = prepare_if_needed(tmp_path, str(own_source))
    model = Model.open(folder)
    assert (model.max_tokens, model.activation) == (64, "")  # the number of positions
    (folder / "cache").mkdir()
    for name in ("chat_template.jinja", "artifact.metadata"):
        assert is_prepared(folder)
        (own_source / name).write_text("{}")
        assert not is_prepared(folder)
        (own_source / name).unlink()
    edit(own_source / "1_Pooling/config.json", pooling_mode="cls")
    edit(own_source / "config.json", hidden_act="gelu_new")
    (own_source / "sentence_bert_config.json").unlink()
    (own_source / "sentence_roberta_config.json").write_text(json.dumps({"max_seq_length": 19}))  # an old file name
    assert prepare_if_needed(tmp_path, str(own_source)) == folder
    model = Model.open(folder)
    assert (model.pooling, model.max_tokens, model.activation) == ("cls", 19, "gelu_tanh")
    assert not (folder / "cache").exists()


def test_a_relative_name_is_of_this_folder(own_source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for pooling in ("mean", "cls", "mean"):
        folder = tmp_path / pooling
        if not folder.exists():
            shutil.copytree(own_source, folder / "model")
            edit(folder / "model/1_Pooling/config.json", pooling_mode=pooling)
        monkeypatch.chdir(folder)
        assert Model.open(prepare_if_needed(tmp_path / "home", "./model")).pooling == pooling
    found = prepare_if_needed(tmp_path / "home", "../model")
    monkeypatch.chdir(tmp_path / "cls")
    assert is_prepared(found)


FULL = """
import resource, signal, sys
from pathlib import Path
from shoal.errors import DiskFull
from shoal_workers.model.prepare import prepare
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))
try:
    prepare("tiny", Path(sys.argv[1]), Path(sys.argv[2]))
except (DiskFull, OSError) as error:
    print(type(error).__name__, error)
"""


def test_a_full_disk_is_named_and_leaves_nothing(own_source: Path, tmp_path: Path) -> None:
    output, errors = run(FULL, own_source, tmp_path / "full" / "model").communicate()
    assert output.startswith("DiskFull"), errors
    assert "MiB are free: make room, or set SHOAL_HOME" in output
    assert not list((tmp_path / "full").iterdir())


NO_ROOM = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}] * 100_000 + [{"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [],
    "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [2] * 1_000, "tokens": ["[CLS]"] * 1_000}},
}
ADDED = {"id": 78, "content": "storms"} | dict.fromkeys(
    ("special", "normalized", "single_word", "lstrip", "rstrip"), False
)
HOPELESS = {"type": "Replace", "pattern": {"Regex": r"(a+)+$|(\w+\s?)+[!]{9}|(.*)*x{9}"}, "content": "b"}


#: For each file, its change and the words of the error. Its settings change, or it has another content, or it is
#: missing.
FAULTS: dict[str, list[tuple[dict[str, Any] | str | None, str]]] = {
    "config.json": [
        (None, "config.json is missing: fetch the model again"),
        ("{}", "lacks the setting or layer 'hidden_size': fetch the model again"),
        *(({"matryoshka_dimensions": named}, "is not a model that Shoal knows") for named in (8, [8, "16"])),
    ],
    "modules.json": [
        (None, "modules.json is missing"),
        ("[]", "lacks the setting or layer 'Pooling': fetch the model again"),
        ("{}", "modules.json cannot be used (it holds {}): fetch the model again"),
    ],
    "1_Pooling/config.json": [
        (None, "1_Pooling/config.json is missing"),
        ({"include_prompt": False}, "leaves its prompt out"),
        ({"pooling_mode": "weightedmean"}, "pools by weightedmean"),
        ({"pooling_mode": ["cls", "mean"]}, "pools by cls and mean"),
    ],
    "model.safetensors": [(None, "has no .safetensors weights")],
    "tokenizer_config.json": [("null", "tokenizer_config.json cannot be used (it holds null)")],
    "tokenizer.json": [
        (None, "has no tokenizer.json"),
        ({"model": 1}, "tokenizer.json cannot be used"),
        ({"post_processor": NO_ROOM}, "adds 100,000,000 tokens to a text, and the model takes 48"),
        ({"normalizer": HOPELESS}, "tokenizer.json cannot be used (Onig: Regex search error"),
        ({"post_processor": None}, "tokenizer.json makes no token of an empty text"),
        ({"added_tokens": [ADDED]}, "makes ids up to 78, and the model has 78 words"),
    ],
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_a_file_is_named(own_source: Path, tmp_path: Path, name: str) -> None:
    path, whole = own_source / name, (own_source / name).read_bytes()
    for fault, words in FAULTS[name]:
        if fault is None:
            path.unlink()
        elif isinstance(fault, str):
            path.write_text(fault)
        else:
            edit(path, **fault)
        with pytest.raises((ModelMismatch, ModelNotFound), match=re.escape(words)):
            prepare_if_needed(tmp_path, str(own_source))
        path.write_bytes(whole)


def test_a_model_of_too_many_weights_is_refused(
    own_source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal_workers.model.model.MAX_SIZE", 1_000)
    with pytest.raises(ModelMismatch, match="a size outside of 1 to 1,000: use another model"):
        prepare_if_needed(tmp_path, str(own_source))
    assert [path.name for path in (tmp_path / "models").iterdir() if not path.name.endswith(".lock")] == []


def test_files_that_disagree_about_capital_letters_are_refused(own_source: Path, tmp_path: Path) -> None:
    edit(own_source / "tokenizer_config.json", do_lower_case=False)  # transformers follows this file
    for lower in (False, True):  # with True, accents would still differ
        edit(own_source / "sentence_bert_config.json", do_lower_case=lower)
        with pytest.raises(ModelMismatch, match=r"do_lower_case is false in tokenizer_config\.json, and true in tok"):
            prepare_if_needed(tmp_path, str(own_source))
    for agreed in (True, None):
        edit(own_source / "tokenizer_config.json", do_lower_case=agreed)
        assert prepare_if_needed(tmp_path, str(own_source), force=True)


@pytest.mark.parametrize("normalizer", [None, {"type": "NFC"}])
def test_texts_are_made_lower_case(own_source: Path, tmp_path: Path, normalizer: dict[str, str] | None) -> None:
    """The files of bge-base-en-v1.5 ask for it, although their tokenizer does so too."""
    edit(own_source / "tokenizer.json", normalizer=normalizer)
    edit(own_source / "sentence_bert_config.json", do_lower_case=True)
    encoder = Encoder.open(prepare_if_needed(tmp_path, str(own_source)), "openvino", "f32", 1)
    upper, lower, other = encoder.embed(["STORM in Europe", "storm in europe", "rain"], Options(), "")
    assert upper == pytest.approx(lower)
    assert upper != pytest.approx(other, abs=0.01)


def test_a_pipe_a_loop_or_a_folder_in_place_of_a_file_is_refused(own_source: Path, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        path = own_source / name
        path.rename(whole := tmp_path / name)
        for make in (os.mkfifo, lambda path: path.symlink_to(path), os.mkdir):
            make(path)
            with pytest.raises((ModelMismatch, ModelNotFound), match=name):
                prepare_if_needed(tmp_path, str(own_source))
            path.rmdir() if path.is_dir() else path.unlink()
        whole.rename(path)


def test_huge_files_are_not_read(own_source: Path, tmp_path: Path) -> None:
    for name, limit in (("tokenizer.json", "67,108,864"), ("config.json", "8,388,608")):
        os.truncate(own_source / name, 10**11)  # a sparse file takes no room on the disk
        with pytest.raises(ModelMismatch, match=f"{name} .* over the limit of {limit}"):
            prepare_if_needed(tmp_path, str(own_source))


def test_the_digest_is_of_each_file_of_the_weights(tmp_path: Path) -> None:
    names = ["a.safetensors", "b.safetensors"]
    (tmp_path / weights.INDEX).write_text(json.dumps({"weight_map": {name: name for name in names}}))
    digests = set()
    for contents in ("aa", "ba", "ab"):
        for name, content in zip(names, contents, strict=True):
            (tmp_path / name).write_text(content)
        digests.add(weights.digest(tmp_path))
    assert len(digests) == 3
