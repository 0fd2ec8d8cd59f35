"""A file with any content is read as a valid one, or refused with one of Shoal's own errors.

A damaged index gets the checksums of its files, as an attacker would do.
"""

import ast
import gzip
import io
import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path

import numpy as np
import pytest
from fuzzing import TEXTS, changed, fuzz, mutated, nested, outcome
from hypothesis import strategies as st

from shoal.broker.broker import Broker
from shoal.contract import wire
from shoal.errors import (
    BadDocument,
    BadSetting,
    IndexCorrupt,
    InvalidRequest,
    ModelMismatch,
    ModelNotFound,
    Unavailable,
)
from shoal.records.document import Document
from shoal.records.source import Source
from shoal.settings import Settings, variable
from shoal_workers.index.files.array_file import save_array
from shoal_workers.index.files.checksums import checksum
from shoal_workers.index.files.manifest import DOCUMENTS, FILES, MANIFEST, OFFSETS
from shoal_workers.index.index import Index, current_version
from shoal_workers.model.model import Model

pytestmark = pytest.mark.wide

#: Bytes that are unusual or invalid in JSON.
JSON_CLAIMS = (
    *(b"[" * 600, b'{"a":' * 2_000, b"1e999", b"NaN", b"9" * 400),
    *(b"-1", b"null", b"\xff", b'"\\ud800"', b"\0", b"[]"),
)
#: Values of all types in JSON.
JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.sampled_from([-1, 0, 2**31, 2**62, 2**63, 2**64])
    | st.floats()
    | TEXTS
    | st.integers(1, 500).map(nested)
    | st.sampled_from(["..", "../..", "/etc", "/dev/zero", "F32", "\ud800"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


@pytest.fixture
def folder(index_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(index_folder, tmp_path / "index"))


def rewritten(path: Path, data: bytes, check: Callable[[], None]) -> None:
    """Run the check with `data` as the content of the file, then restore the file."""
    kept = path.read_bytes()
    path.write_bytes(data)
    try:
        check()
    finally:
        path.write_bytes(kept)


def use(folder: Path, *, is_signed: bool = False) -> None:
    """Open the index and search it; assert that the search finds the wanted number of hits, or is refused.

    If `is_signed`, the manifest gets the checksums of the changed files.
    """
    if is_signed:
        version = current_version(folder)
        manifest = json.loads((version / MANIFEST).read_text())
        manifest["checksums"] = {name: checksum(version / name) for name in FILES}
        (version / MANIFEST).write_text(json.dumps(manifest))
    index = outcome(Index.open, folder)
    if isinstance(index, Index):
        queries = np.eye(2, index.manifest.dimension, dtype=np.float32)
        with np.errstate(all="ignore"):
            hits = outcome(index.search, queries, 5)
        assert isinstance(hits, IndexCorrupt) or [len(found) for found in hits] == [5, 5]
    else:
        assert isinstance(index, IndexCorrupt)


# Indexes


@fuzz(25, data=st.data())
def test_manifest_of_an_index(index_folder: Path, folder: Path, data: st.DataObject) -> None:
    path = current_version(folder) / MANIFEST
    values = json.loads((current_version(index_folder) / MANIFEST).read_text())
    text = json.dumps(data.draw(changed(values, JSON_VALUES))).encode()
    rewritten(path, data.draw(st.just(text) | mutated(st.just(text), JSON_CLAIMS)), lambda: use(folder))


@fuzz(50, data=st.data(), name=st.sampled_from([name for name in FILES if name.endswith(".npy")]))
def test_header_of_an_array(folder: Path, data: st.DataObject, name: str) -> None:
    path = current_version(folder) / name
    raw = path.read_bytes()
    length = int.from_bytes(raw[8:10], "little")
    values = ast.literal_eval(raw[10 : 10 + length].decode())
    sizes = st.tuples(*[st.integers(-70, 9_000) | st.sampled_from([2**31, 2**63, 2**64, True])] * 2)
    types = st.sampled_from(["<f4", ">f4", "|i1", "<i8", "O", "|O8", "V9", "<f4,<f4", "<U9", "f" * 900, "M8[s]"])
    values = data.draw(changed(values, JSON_VALUES | sizes | types))
    text = st.just(repr(values).encode("utf-8", "surrogatepass") + b"\n")
    head = data.draw(text | mutated(text, (*JSON_CLAIMS, b"(" * 600, b"-" * 900, b"1for", b"__import__('os')")))
    size = data.draw(st.just(len(head)) | st.integers(0, 2**16 - 1))
    version = data.draw(st.sampled_from([b"\1\0", b"\1\0", b"\1\0", b"\2\0", b"\3\0", b"\xff\xff"]))
    damaged = raw[:6] + version + min(size, 2**16 - 1).to_bytes(2, "little") + head + raw[10 + length :]
    rewritten(path, damaged, lambda: use(folder, is_signed=True))


@fuzz(50, data=st.data(), name=st.sampled_from(FILES))
def test_damaged_file_of_an_index(folder: Path, data: st.DataObject, name: str) -> None:
    path = current_version(folder) / name
    damaged = data.draw(mutated(st.just(path.read_bytes()), JSON_CLAIMS) | st.binary(max_size=100))
    rewritten(path, damaged, lambda: use(folder, is_signed=True))


@fuzz(40, document=st.data())
def test_document_of_an_index(folder: Path, document: st.DataObject) -> None:
    version = current_version(folder)
    values = document.draw(changed({"id": "1", "text": "storm"}, JSON_VALUES) | JSON_VALUES)
    text = json.dumps(values, ensure_ascii=document.draw(st.booleans())).encode("utf-8", "surrogatepass")
    line = document.draw(st.just(text) | mutated(st.just(text), JSON_CLAIMS)) + b"\n"
    documents = b"".join([line] * 64)
    save_array(version / OFFSETS, np.arange(65, dtype=np.int64) * len(line))

    def check() -> None:
        use(folder, is_signed=True)
        index = Index.open(folder)
        found = outcome(index.documents.document, 3)
        if not isinstance(found, IndexCorrupt):
            assert wire.is_json(found)
            wire.pack(found)

    rewritten(version / DOCUMENTS, documents, check)


# Models

MODEL_FILES = (
    *("modules.json", "config.json", "1_Pooling/config.json", "config_sentence_transformers.json"),
    *("sentence_bert_config.json", "tokenizer_config.json"),
)


@pytest.fixture
def source(tiny_source: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_source, tmp_path / "model"))


@fuzz(60, data=st.data(), name=st.sampled_from(MODEL_FILES))
def test_file_of_a_model(source: Path, data: st.DataObject, name: str) -> None:
    path = source / name
    values = json.loads(path.read_text()) if path.exists() else {}
    path.touch()
    if isinstance(values, list):
        values = [data.draw(changed(layer, JSON_VALUES)) for layer in values]
    else:
        values = data.draw(changed(values or {"model_max_length": 9}, JSON_VALUES))
    text = json.dumps(data.draw(st.just(values) | JSON_VALUES)).encode()

    def check() -> None:
        model = outcome(Model.read, "tiny", source)
        assert isinstance(model, Model | ModelNotFound | ModelMismatch)

    rewritten(path, data.draw(st.just(text) | mutated(st.just(text), JSON_CLAIMS)), check)


@fuzz(40, data=st.data())
def test_description_of_a_prepared_model(tiny_source: Path, tmp_path: Path, data: st.DataObject) -> None:
    values = asdict(Model.read("tiny", tiny_source))
    text = json.dumps(data.draw(changed(values, JSON_VALUES) | JSON_VALUES)).encode()
    (tmp_path / "model.json").write_bytes(data.draw(st.just(text) | mutated(st.just(text), JSON_CLAIMS)))
    assert isinstance(outcome(Model.open, tmp_path), Model | ModelNotFound)


# Documents

TABLE = b'id,text,year\n1,storm in europe,2020\n2,"rain, again",2021\n'
LINES = b'{"id": 1, "text": "storm", "tags": ["a", {"b": 1.5}]}\n\n{"id": 2, "text": "rain"}\n'
CLAIMS = (*JSON_CLAIMS, b'"', b"\r", b",,,", b"\t", b"\xef\xbb\xbf", b"x" * 200_000)
KINDS = {".csv": TABLE, ".tsv": TABLE.replace(b",", b"\t"), ".jsonl": LINES, ".txt": b"storm\nrain\n"}


PACKERS: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".gz": gzip.compress}


@fuzz(80, data=st.data(), kind=st.sampled_from(sorted(KINDS)), packed=st.sampled_from(sorted(PACKERS)))
def test_documents(tmp_path: Path, data: st.DataObject, kind: str, packed: str) -> None:
    content = data.draw(mutated(st.just(KINDS[kind]), CLAIMS) | st.binary())
    if packed:
        content = PACKERS[packed](content)
        content = data.draw(st.just(content) | mutated(st.just(content), CLAIMS))
    read(tmp_path / f"documents{kind}{packed}", content)


@pytest.fixture(scope="module")
def columns() -> bytes:
    """Return the bytes of a .parquet file."""
    import pyarrow
    from pyarrow import parquet

    words = pyarrow.array(["storm", "rain", "storm"])
    values = {"id": [1, 2, 3], "text": words, "tags": [["a"], [], None], "on": [{"b": 1.5}] * 3}
    parquet.write_table(pyarrow.table(values | {"kind": words.dictionary_encode()}), sink := io.BytesIO())
    return sink.getvalue()


@fuzz(60, data=st.data())
def test_documents_of_columns(columns: bytes, tmp_path: Path, data: st.DataObject) -> None:
    read(tmp_path / "documents.parquet", data.draw(mutated(st.just(columns)) | st.binary(max_size=50)))


def read(path: Path, content: bytes) -> None:
    """Read the file, and assert that its documents can be indexed and sent, or that it is refused."""
    path.write_bytes(content)
    source = Source(path)
    rows = outcome(lambda: list(source.rows()))
    if not isinstance(rows, list):
        assert isinstance(rows, BadDocument | InvalidRequest)
        return
    numbers = [row.number for row in rows]
    assert numbers == sorted(set(numbers))
    for document in (row for row in rows if isinstance(row, Document)):
        wire.pack({"id": document.id, "text": document.text, **document.fields})
        assert wire.is_json(document.fields)
    documents = outcome(list, source)
    assert documents == rows or isinstance(documents, BadDocument)


# Settings

WORDS = TEXTS.map(lambda text: text.replace("\0", ""))
NUMBERS = st.sampled_from(["nan", "inf", "-1", "1e400", "9" * 5_000, "0x10", "1_0", "٣", " 5 ", "", "True"])
PLACES = st.sampled_from(
    ["~no-such-user/x", "a=b,a=c", "=", "a=", ",,", "redis://[", "redis://h:99999999", "redis://h:x/y"]
)


@fuzz(
    60,
    values=st.dictionaries(st.sampled_from([f.name for f in fields(Settings)]), WORDS | NUMBERS | PLACES, max_size=4),
)
def test_settings(values: dict[str, str]) -> None:
    settings = outcome(Settings.from_environment, {variable(name): text for name, text in values.items()})
    if isinstance(settings, Settings):
        assert isinstance(outcome(lambda: settings.home_folder), Path | BadSetting)
        connection = outcome(Broker.connect, settings.redis_url)
        assert isinstance(connection, Unavailable) or connection.close() is None
    else:
        assert isinstance(settings, BadSetting)
