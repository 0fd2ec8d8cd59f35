"""A model is prepared without torch, once for all processes that need it, and completely or not at all."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from shoal.errors import ModelMismatch, ModelNotFound
from shoal_workers.model import parity
from shoal_workers.model.model import Model, prepared_folder
from shoal_workers.model.prepare import prepare_if_needed
from shoal_workers.model.source import PACKAGED, find_source

PREPARE = """
import sys
from pathlib import Path
from shoal_workers.model.prepare import prepare_if_needed
print(prepare_if_needed(Path(sys.argv[1]), sys.argv[2]))
assert not {"torch", "sentence_transformers", "transformers"} & set(sys.modules)
"""

GOLDEN = """
import sys
from pathlib import Path
import numpy as np
from shoal_workers.model import parity, reference
np.save(sys.argv[2], reference.encode(reference.load(sys.argv[1]), parity.TEXTS))
"""


@pytest.fixture
def source(tiny_source: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_source, tmp_path / "model"))


def run(script: str, *arguments: object) -> "subprocess.Popen[str]":
    command = [sys.executable, "-W", "ignore", "-c", script, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_the_default_model_has_golden_vectors_and_needs_no_torch(tmp_path: Path) -> None:
    output, errors = run(PREPARE, tmp_path, PACKAGED).communicate()
    assert "preparing" in errors
    folder = Path(output.strip())
    assert Model.open(folder).reference == "sentence-transformers"
    assert (load_file(folder / parity.FILE)["vectors"] == load_file(parity.GOLDEN)["vectors"]).all()


def test_a_wait_for_another_process_that_prepares_the_model_is_said(tmp_path: Path) -> None:
    folder = prepared_folder(tmp_path, PACKAGED)
    folder.parent.mkdir(parents=True)
    with (folder.parent / f".{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = run(PREPARE, tmp_path, PACKAGED)
        assert process.stderr
        assert "waiting for another process that prepares it" in process.stderr.readline()
    process.communicate()
    assert process.returncode == 0


@pytest.mark.wide
@pytest.mark.usefixtures("torch_reference")
def test_the_golden_vectors_are_those_of_sentence_transformers(tmp_path: Path) -> None:
    path = tmp_path / "vectors.npy"
    run(GOLDEN, find_source(PACKAGED), path).communicate()
    assert load_file(parity.GOLDEN)["vectors"] == pytest.approx(np.load(path), abs=1e-5)


def test_golden_vectors_are_for_their_weights_and_pooling_alone() -> None:
    model = Model.read(PACKAGED, find_source(PACKAGED))
    assert parity.golden_vectors(model) is not None
    changes: list[dict[str, Any]] = [{"digest": "0" * 64}, {"pooling": "cls"}, {"max_tokens": 128}]
    for change in changes:
        assert parity.golden_vectors(replace(model, **change)) is None


def test_of_several_that_need_a_model_at_once_one_prepares_it(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ThreadPoolExecutor(3) as threads:
        folders = set(threads.map(lambda _: prepare_if_needed(tmp_path, str(source)), range(3)))
    assert folders == {prepared_folder(tmp_path, str(source))}
    assert capsys.readouterr().err.count(", once\n") == 1


def test_what_a_killed_process_left_is_not_taken_for_a_model(source: Path, tmp_path: Path) -> None:
    folder = prepared_folder(tmp_path, str(source))
    left = folder.with_name(f".{folder.name}.new")
    left.mkdir(parents=True)
    (left / "openvino.xml").write_text("half")
    assert prepare_if_needed(tmp_path, str(source)) == folder
    assert {path.name for path in folder.parent.iterdir()} == {folder.name, f".{folder.name}.lock"}


def test_a_changed_model_takes_the_place_of_the_old_one(source: Path, tmp_path: Path) -> None:
    folder = prepare_if_needed(tmp_path, str(source))
    (folder / "cache").mkdir()
    (source / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "cls"}))
    assert prepare_if_needed(tmp_path, str(source), force=True) == folder
    assert Model.open(folder).pooling == "cls"
    assert not (folder / "cache").exists()


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


def test_a_full_disk_is_named_and_leaves_nothing(source: Path, tmp_path: Path) -> None:
    output, errors = run(FULL, source, tmp_path / "full" / "model").communicate()
    assert output.startswith("DiskFull"), errors
    assert "MiB are free: make room, or set SHOAL_HOME" in output
    assert not list((tmp_path / "full").iterdir())


NO_ROOM = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}] * 100_000 + [{"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [],
    "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [2] * 1_000, "tokens": ["[CLS]"] * 1_000}},
}
HOPELESS = {"type": "Replace", "pattern": {"Regex": r"(a+)+$|(\w+\s?)+[!]{9}|(.*)*x{9}"}, "content": "b"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": 1}, r"tokenizer\.json cannot be used"),
        ({"post_processor": NO_ROOM}, "adds 100,000,000 tokens to a text, and the model takes 48"),
        ({"normalizer": HOPELESS}, r"tokenizer\.json cannot be used \(Onig: Regex search error"),
        ({"post_processor": None}, r"tokenizer\.json makes no token of an empty text"),
    ],
    ids=["no tokenizer", "no room for a text", "a hopeless pattern", "no token of its own"],
)
def test_a_tokenizer_that_cannot_be_used_is_refused(
    source: Path, tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    update(source / "tokenizer.json", change)
    with pytest.raises(ModelMismatch, match=words):
        prepare_if_needed(tmp_path, str(source))


def test_a_model_of_too_many_weights_is_refused_before_it_is_stored(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal_workers.model.model.MAX_SIZE", 1_000)
    with pytest.raises(ModelMismatch, match="a size outside of 1 to 1,000: use another model"):
        prepare_if_needed(tmp_path, str(source))
    assert [path.name for path in (tmp_path / "models").iterdir() if not path.name.endswith(".lock")] == []


def test_a_tokenizer_of_another_model_is_refused(source: Path, tmp_path: Path) -> None:
    model = json.loads((source / "tokenizer.json").read_text())["model"]
    update(source / "tokenizer.json", {"model": model | {"vocab": model["vocab"] | {"storms": 1_000}}})
    with pytest.raises(ModelMismatch, match=r"makes ids up to 1,000, and the model has \d+ words"):
        prepare_if_needed(tmp_path, str(source))


def update(path: Path, change: dict[str, Any]) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | change))


def test_files_that_disagree_about_capital_letters_are_refused(source: Path, tmp_path: Path) -> None:
    update(source / "tokenizer_config.json", {"do_lower_case": False})  # which transformers follows
    with pytest.raises(ModelMismatch, match=r"do_lower_case is false in tokenizer_config\.json, and true in tok"):
        prepare_if_needed(tmp_path, str(source))
    for lower in (True, None):
        update(source / "tokenizer_config.json", {"do_lower_case": lower})
        assert prepare_if_needed(tmp_path, str(source), force=True)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_pipe_or_a_folder_in_place_of_a_file_is_refused(source: Path, tmp_path: Path, name: str) -> None:
    (source / name).unlink()
    os.mkfifo(source / name)
    with pytest.raises(ModelMismatch, match=f"{name} is neither a file nor a folder"):
        prepare_if_needed(tmp_path, str(source))
    (source / name).unlink()
    (source / name).mkdir()
    with pytest.raises((ModelMismatch, ModelNotFound)):
        prepare_if_needed(tmp_path, str(source))


def test_huge_files_are_not_read(source: Path, tmp_path: Path) -> None:
    for name, limit in (("tokenizer.json", "67,108,864"), ("config.json", "8,388,608")):
        os.truncate(source / name, 10**11)  # which takes no room on the disk
        with pytest.raises(ModelMismatch, match=f"{name} .* over the limit of {limit}"):
            prepare_if_needed(tmp_path, str(source))


def test_a_link_to_itself_is_refused(source: Path, tmp_path: Path) -> None:
    (source / "loop").symlink_to(source / "loop")
    with pytest.raises(ModelMismatch, match="loop is neither a file nor a folder"):
        prepare_if_needed(tmp_path, str(source))
