"""Building an index: a new version is complete or absent, and until then the old one stays."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.errors import BadDocument
from shoal.index_folder import CURRENT
from shoal.jobs import Options
from shoal.records.source import Source
from shoal_workers.encoding.encoder import Encoder
from shoal_workers.index.builder import CHUNK, KEPT_VERSIONS, build
from shoal_workers.index.index import Index, current_version
from shoal_workers.index.manifest import VECTORS, Manifest


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Return the folder for the index."""
    return tmp_path / "out" / "index"


def build_of(tmp_path: Path, out: Path, encoder: Encoder, texts: list[str]) -> Manifest:
    """Build an index of the texts."""
    path = tmp_path / "source.jsonl"
    path.write_text("".join(json.dumps({"id": f"d{n}", "text": text, "n": n}) + "\n" for n, text in enumerate(texts)))
    source = Source(path)
    return build(source, out, encoder, source.check(), lambda _: None)


def versions(out: Path) -> set[str]:
    """List the folder of the index."""
    return {path.name for path in out.iterdir()}


def test_the_vectors_are_those_of_the_documents(tmp_path: Path, out: Path, encoder: Encoder) -> None:
    texts = ["storm", "market falls", "rain " * 100, "Zürich", "storm"]
    build_of(tmp_path, out, encoder, texts)
    index = Index.open(out)
    prompt = encoder.model.prompts["document"]
    assert index.vectors == pytest.approx(encoder.embed(texts, Options(), prompt), abs=1e-6)
    assert [index.document(n) for n in range(5)] == [{"id": f"d{n}", "text": t, "n": n} for n, t in enumerate(texts)]


def test_more_than_one_chunk_stays_in_order(tmp_path: Path, out: Path, encoder: Encoder) -> None:
    texts = [f"storm {'rain ' * (n % 7)}" for n in range(CHUNK + 3)]
    progress: list[int] = []
    path = tmp_path / "source.txt"
    path.write_text("\n".join(texts))
    build(Source(path), out, encoder, len(texts), progress.append)
    index = Index.open(out)
    assert progress == [CHUNK, 3]
    assert index.document(CHUNK + 2)["id"] == str(CHUNK + 2)
    assert index.vectors[-1] == pytest.approx(encoder.embed([texts[-1].strip()], Options(), "")[0], abs=1e-5)


def test_a_new_version_replaces_the_old_and_one_old_is_kept(tmp_path: Path, out: Path, encoder: Encoder) -> None:
    built = [build_of(tmp_path, out, encoder, [f"storm {n}", "rain"]).version for n in range(4)]
    assert current_version(out).name == built[-1]
    assert versions(out) == {*built[-KEPT_VERSIONS:], CURRENT}


def test_an_open_index_outlives_the_versions_after_it(tmp_path: Path, out: Path, encoder: Encoder) -> None:
    build_of(tmp_path, out, encoder, ["storm"])
    old = Index.open(out)
    for _ in range(KEPT_VERSIONS + 1):
        build_of(tmp_path, out, encoder, ["rain"])
    assert not old.folder.exists()
    assert old.search(encoder.embed(["storm"], Options(), ""), 1)[0][0]["text"] == "storm"


def test_what_fails_half_way_leaves_no_trace(tmp_path: Path, out: Path, encoder: Encoder) -> None:
    before = build_of(tmp_path, out, encoder, ["storm"])
    path = tmp_path / "bad.jsonl"
    path.write_text('{"text": "rain"}\n' * CHUNK + "{bad\n")
    with pytest.raises(BadDocument, match=f"line {CHUNK + 1}"):
        build(Source(path), out, encoder, CHUNK + 1, lambda _: None)
    assert versions(out) == {before.version, CURRENT}


FILL_THE_DISK = """
import resource, sys
from pathlib import Path
from shoal_workers.index.builder import build
from shoal.records.source import Source
from shoal_workers.encoding.encoder import Encoder
from shoal.errors import DiskFull
encoder = Encoder.open(Path(sys.argv[1]), "openvino", "f32", 1)
source = Source(Path(sys.argv[2]))
count = source.check()
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try:
    build(source, Path(sys.argv[3]), encoder, count, lambda _: None)
except DiskFull as error:
    print(error)
"""


def test_on_a_full_disk_the_old_index_stays(tmp_path: Path, out: Path, encoder: Encoder, tiny_model: Path) -> None:
    before = build_of(tmp_path, out, encoder, ["storm", "rain"])
    big = tmp_path / "big.txt"
    big.write_text("storm\n" * 1_000)
    command = [sys.executable, "-c", FILL_THE_DISK, str(tiny_model), str(big), str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert f"no room to build an index in {out}" in done.stdout
    assert "an index there is unchanged" in done.stdout
    assert versions(out) == {before.version, CURRENT}
    assert Index.open(out).manifest == before


@pytest.mark.parametrize("count", [2, 4])
def test_a_source_that_changes_meanwhile_is_refused(tmp_path: Path, out: Path, encoder: Encoder, count: int) -> None:
    path = tmp_path / "source.txt"
    path.write_text("storm\nrain\nmarket")
    with pytest.raises(BadDocument, match=f"has 3 documents and had {count} when it was checked"):
        build(Source(path), out, encoder, count, lambda _: None)
    assert versions(out) == set()


def test_what_a_killed_build_left_is_removed(tmp_path: Path, out: Path, encoder: Encoder) -> None:
    left = out / ".building-20200101T000000Z-abcdef"
    left.mkdir(parents=True)
    (left / VECTORS).write_bytes(b"half")
    manifest = build_of(tmp_path, out, encoder, ["storm"])
    assert Index.open(out).manifest == manifest
    assert versions(out) == {manifest.version, CURRENT}


def test_a_build_does_not_disturb_another(tmp_path: Path, out: Path, encoder: Encoder) -> None:
    built: list[Manifest] = []
    path = tmp_path / "outer.txt"
    path.write_text("storm\nrain")

    def build_another(_: int) -> None:
        built.append(build_of(tmp_path, out, encoder, ["market"]))

    built.append(build(Source(path), out, encoder, 2, build_another))
    assert versions(out) == {built[0].version, built[1].version, CURRENT}
    assert current_version(out).name == built[1].version
    assert Index.open(out).document(1)["text"] == "rain"
