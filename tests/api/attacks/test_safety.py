"""Files and names that could do harm: no file is run as code, and no name leads out of its folder."""

import ast
import json
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import TESTS

from shoal.errors import IndexCorrupt, ModelMismatch, ModelNotFound
from shoal.index_folder import CURRENT
from shoal_workers.index.files.manifest import DOCUMENTS, MANIFEST
from shoal_workers.index.index import Index, current_version
from shoal_workers.model.download import find_source
from shoal_workers.model.model import Model, prepared_folder

ROOT = TESTS.parent
PACKAGES = [ROOT / "shared" / "shoal", ROOT / "api" / "shoal_api", ROOT / "workers" / "shoal_workers"]

#: Modules that make objects from bytes, or run code in them.
FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "yaml", "code", "runpy"}

#: Functions that make objects from bytes, run code, or give a command to a shell.
FORBIDDEN_CALLS = {
    "eval",
    "exec",
    "compile",
    "__import__",
    "torch.load",
    "torch.hub.load",
    "import_module",
    "os.system",
}
FORBIDDEN_CALLS |= {"importlib.import_module", "os.popen", "subprocess.getoutput"}

#: Arguments that must have this value if they are given. Calls such as `np.load` must be given them.
ONLY = {"trust_remote_code": False, "shell": False, "allow_pickle": False, "weights_only": True}
ONLY |= {"use_safetensors": True}

#: Uses that do no harm, and why.
ALLOWED = {
    ("shared/shoal/__init__.py", "import_module"): "imports modules of this package, by names in a table beside it",
    ("shared/shoal/cli/main.py", "import_module"): "imports commands of this package, by names in a table beside it",
    (
        "workers/shoal_workers/index/engines/engine.py",
        "import_module",
    ): "imports modules beside it, of a table",
}


def found_in(source: str) -> Iterator[str]:
    """Yield every dangerous use in a module, by name."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            yield from (name for name in names if name.partition(".")[0] in FORBIDDEN_MODULES)
        elif isinstance(node, ast.Call):
            name, given = ast.unparse(node.func), {each.arg: ast.unparse(each.value) for each in node.keywords}
            needed = "allow_pickle" if name in ("np.load", "numpy.load") else ""
            if name.endswith("from_pretrained") or name == "SentenceTransformer":
                needed = "trust_remote_code"
            if name in FORBIDDEN_CALLS or (needed and needed not in given):
                yield name
            yield from (
                f"{word}={given[word]}" for word, only in ONLY.items() if given.get(word, str(only)) != str(only)
            )


def test_no_code_is_made_of_bytes_and_no_shell_is_called() -> None:
    paths = [path for package in PACKAGES for path in package.rglob("*.py")]
    found = {(str(path.relative_to(ROOT)), danger) for path in paths for danger in found_in(path.read_text())}
    assert found == set(ALLOWED)


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "import os, pickle",
        "from yaml import load",
        "x = eval('1')",
        "torch.load(path)",
        "np.load(path)",
        "np.load(path, allow_pickle=True)",
        "subprocess.run(line, shell=True)",
        "AutoModel.from_pretrained(name)",
        "SentenceTransformer(name, trust_remote_code=True)",
    ],
)
def test_the_search_finds_each_dangerous_use(line: str) -> None:
    assert list(found_in(line))


# Models


@pytest.fixture
def source(tiny_source: Path, tmp_path: Path) -> Path:
    """A copy of the tiny model that a test may change."""
    return Path(shutil.copytree(tiny_source, tmp_path / "model"))


class Bomb:
    """An object that writes a file when it is unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


def test_a_model_that_is_a_pickle_is_refused(source: Path, tmp_path: Path) -> None:
    (source / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb(tmp_path / "exploded")))
    change_layer(source, 0, path="0_Transformer")  # weights beside the layer that has a pickle do not count
    (source / "0_Transformer").mkdir()
    shutil.copy(source / "config.json", source / "0_Transformer")
    shutil.copy(source / "pytorch_model.bin", source / "0_Transformer")
    with pytest.raises(ModelNotFound, match=r"0_Transformer has no \.safetensors weights, the only format"):
        Model.read("tiny", source)
    assert not (tmp_path / "exploded").exists()


def change_layer(source: Path, number: int, **fields: str) -> None:
    """Change the entry of one layer in the model's list of layers."""
    layers = json.loads((source / "modules.json").read_text())
    layers[number] |= fields
    (source / "modules.json").write_text(json.dumps(layers))


def test_a_layer_outside_of_the_model_or_of_another_kind_is_refused(source: Path) -> None:
    shutil.copytree(source / "1_Pooling", source.parent / "other")
    good = (source / "modules.json").read_text()
    for number, field, values, words in (
        (1, "path", ("..", "../other", "/etc", "1_Pooling/../../other"), "outside of it"),
        (0, "type", ("model.Transformer", "os.system", "sentence_transformers.models.LSTM", "Transformer"), "not know"),
    ):
        (source / "modules.json").write_text(good)
        for value in values:
            change_layer(source, number, **{field: value})
            with pytest.raises(ModelMismatch, match=words):
                Model.read("tiny", source)


@pytest.mark.parametrize("name", ["model.safetensors", "1_Pooling", "extra"])
def test_a_link_out_of_the_model_is_refused(source: Path, name: str) -> None:
    elsewhere = source.parent / "elsewhere"
    if (source / name).exists():
        shutil.move(source / name, elsewhere)
    (source / name).symlink_to(elsewhere)
    with pytest.raises(ModelMismatch, match=f"{name} leads out of the model's folder"):
        Model.read("tiny", source)


def test_the_hubs_cache_has_links_of_its_own(source: Path, tmp_path: Path) -> None:
    snapshot, blobs = tmp_path / "models--a--b" / "snapshots" / "main", tmp_path / "models--a--b" / "blobs"
    blobs.mkdir(parents=True)
    shutil.copytree(source, snapshot)
    shutil.move(snapshot / "model.safetensors", blobs / "0123")
    (snapshot / "model.safetensors").symlink_to("../../blobs/0123")
    assert Model.read("tiny", snapshot).digest == Model.read("tiny", source).digest
    (snapshot / "model.safetensors").unlink()
    (snapshot / "model.safetensors").symlink_to(source / "model.safetensors")
    with pytest.raises(ModelMismatch, match="leads out"):
        Model.read("tiny", snapshot)


def test_the_name_of_a_model_leads_out_of_no_folder(tmp_path: Path) -> None:
    bad = ("../../etc", "/etc", "..", "a/../../etc", "models/../../../x", "a\0b", "x" * 5_000, "a b", "a//b", "é")
    for name in bad:
        with pytest.raises(ModelNotFound):
            find_source(name)
        folder = prepared_folder(tmp_path, name)
        assert (folder.parent, folder.resolve()) == (tmp_path / "models", folder)
        assert len(folder.name) < 100


# Indexes


@pytest.fixture
def folder(index_folder: Path, tmp_path: Path) -> Path:
    """A copy of the index that a test may change."""
    return Path(shutil.copytree(index_folder, tmp_path / "index"))


def test_a_version_outside_of_the_index_is_refused(folder: Path) -> None:
    shutil.copytree(current_version(folder), folder.parent / "other")
    for name in ("..", ".", "../other", "/", "/etc", "a/b", "v/../v", "", " "):
        (folder / CURRENT).write_text(name)
        with pytest.raises(IndexCorrupt, match="which is not a version"):
            Index.open(folder)


def test_a_manifest_has_the_checksums_of_all_files_of_its_version_and_no_others_are_read(folder: Path) -> None:
    path = current_version(folder) / MANIFEST
    manifest = json.loads(path.read_text())
    sums = manifest["checksums"]
    path.write_text(json.dumps(manifest | {"checksums": sums | {"../../secret": "0", "/dev/zero": "0"}}))
    assert Index.open(folder).manifest.checksums == sums
    for few in ({}, {DOCUMENTS: sums[DOCUMENTS]}):
        path.write_text(json.dumps(manifest | {"checksums": few}))
        with pytest.raises(IndexCorrupt, match="checksums lack"):
            Index.open(folder)


def test_a_link_out_of_an_index_is_refused_and_an_index_may_be_a_link(folder: Path) -> None:
    (folder.parent / "link").symlink_to(folder)
    assert Index.open(folder.parent / "link").manifest == Index.open(folder).manifest
    documents = current_version(folder) / DOCUMENTS
    shutil.move(documents, folder.parent / "elsewhere")
    documents.symlink_to(folder.parent / "elsewhere")
    with pytest.raises(IndexCorrupt, match="leads out of"):
        Index.open(folder)
