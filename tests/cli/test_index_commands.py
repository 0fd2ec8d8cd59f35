"""The commands `shoal index`: build through a pool, and list, publish and delete versions."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from blocking import ChangeLog, as_written
from changes import change
from click.testing import CliRunner
from conftest import running
from index_versions import publish_version
from queues import Queue
from test_cli import fail, succeed

from shoal import Client
from shoal.bulk.served_model import served_model
from shoal.cli.main import main
from shoal.contract.excerpt import excerpt
from shoal.errors import ModelMismatch, NotReady
from shoal.queue.lane import LaneLimits
from shoal_workers.encoding.encoder import Encoder
from shoal_workers.index.build.document_encoder import LocalEncoder, PoolEncoder, info_of, served_digest
from shoal_workers.index.build.vectors import model_of
from shoal_workers.index.files.manifest import VECTORS
from shoal_workers.index.index import Index, current_version
from shoal_workers.index.versions import list_versions
from shoal_workers.loop.worker import Worker
from shoal_workers.service.service import announced

pytest_plugins = ["cli_fixtures"]


@pytest.fixture
def pool(worker: Worker) -> Iterator[Worker]:
    """A worker that announces itself and runs in a thread."""
    with announced(worker, LaneLimits()), running(worker):
        yield worker


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Return a file of texts."""
    path = tmp_path / "source.txt"
    path.write_text("".join(f"storm {n}\n" for n in range(100)))
    return path


@pytest.mark.usefixtures("pool")
def test_versions_are_built_listed_published_and_deleted(
    shoal: CliRunner, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, build = tmp_path / "news", ["index", "build", str(source), "--name", "news"]
    result = shoal.invoke(main, build)
    assert f"{folder}: 100 documents, version " in succeed(result)
    assert "the pool embeds the texts (" in result.stderr
    first = current_version(folder).name
    source.write_text(source.read_text() + "rain\n")
    built = succeed(shoal.invoke(main, [*build, "--no-publish"]))
    assert "1 texts were embedded; 100 documents have their vectors from the version built last, 0 from" in built
    assert current_version(folder).name == first
    listed = succeed(shoal.invoke(main, ["index", "list", "news"])).splitlines()
    assert listed[1].startswith(f"* {first}  100 documents, ")
    second = listed[0].split()[0]
    about = folder / second / "manifest.json"
    right = about.read_text()
    about.write_text(json.dumps(json.loads(right) | {"digest": "f" * 64}))
    said = fail(shoal.invoke(main, ["index", "publish", "news", second]), "index_mismatch")
    assert "but the pool serves another model" in said
    about.write_text(right)
    succeed(shoal.invoke(main, ["index", "publish", "news", second]))
    assert current_version(folder).name == second
    assert f"version {first} is published" in succeed(shoal.invoke(main, ["index", "rollback", str(folder)]))
    said = fail(shoal.invoke(main, ["index", "delete", "news", first]), "invalid_request")
    assert "publish another one first" in said
    succeed(shoal.invoke(main, ["index", "delete", "news", second]))
    assert len(succeed(shoal.invoke(main, ["index", "list", "news"])).splitlines()) == 1
    assert json.loads(succeed(shoal.invoke(main, ["index", "info", "news"])))["version"] == first
    monkeypatch.setattr("shoal_workers.index.files.checksums.LARGE_BYTES", 1)
    vectors = folder / first / VECTORS
    vectors.write_bytes(vectors.read_bytes()[:-1] + b"?")
    fail(shoal.invoke(main, ["index", "info", "news"]), "index_corrupt")
    said = fail(shoal.invoke(main, [*build, "--model", "other"]), "invalid_request")
    assert "the model is other, but the pool serves" in said


@pytest.mark.usefixtures("pool")
def test_the_store_follows_each_change(shoal: CliRunner, source: Path, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    store = ["--index-store", f"file://{tmp_path}/store"]
    stored, built = tmp_path / "store" / "news", []
    for _ in range(2):
        result = shoal.invoke(main, ["index", "build", str(source), "--name", "news", "--full", *store])
        succeed(result)
        assert "the store of indexes is up to date" in result.stderr
        built.append(current_version(stored).name)
    succeed(shoal.invoke(main, ["index", "rollback", "news", *store]))
    assert Index.open(stored).manifest.version == built[0] != built[1]
    succeed(shoal.invoke(main, ["index", "publish", "news", built[1], *store]))
    assert Index.open(stored).manifest.version == built[1]
    succeed(shoal.invoke(main, ["index", "delete", "news", built[0], *store]))
    assert [version.name for version in list_versions(stored)] == built[1:]
    elsewhere = shoal.invoke(main, ["index", "build", str(source), "--out", str(tmp_path / "a" / "b"), *store])
    assert "up to date" not in elsewhere.stderr


@pytest.mark.usefixtures("pool")
def test_the_pool_makes_the_vectors_of_this_process(shoal: CliRunner, tmp_path: Path, encoder: Encoder) -> None:
    (source := tmp_path / "source.csv").write_text("text,year,size\nstorm,2001,10\nrain,2002,20x5\nsun,2003,30\n")
    result = shoal.invoke(main, ["index", "build", str(source), "--out", str(tmp_path / "news")])
    assert "fields: size (keyword), year (number)" in succeed(result)
    encoded = LocalEncoder(encoder).encode(["storm", "rain", "sun"], ("vector",), print)
    index = Index.open(tmp_path / "news")
    assert index.vectors == pytest.approx(np.concatenate([found.vectors for found in encoded]), abs=1e-5)
    assert index.manifest.prompt == "document"
    assert model_of(index.manifest) == info_of(encoder.model, encoder.fingerprint)


@pytest.mark.usefixtures("pool")
def test_changes_of_the_index_are_folded_in(shoal: CliRunner, source: Path, tmp_path: Path, queue: Queue) -> None:
    log = ChangeLog(queue.broker, queue.keys)
    log.append("news", change(["one"], ["gone"], made_at=1_700_000_000.0))
    log.append("news", change(["two"], made_at=1_800_000_000.0))
    build = ["index", "build", str(source)]
    said = succeed(shoal.invoke(main, [*build, "--name", "news"]))
    assert "changes of 3 ids are folded in" in said
    assert "102 documents, " in said
    assert queue.redis.xlen(queue.keys.changes("news")) == 0  # no version needs these changes
    again = succeed(shoal.invoke(main, [*build, "--name", "news"]))
    assert f"news: unchanged: version {current_version(tmp_path / 'news').name} stays" in again
    for time, count in (("1700000001", 101), ("1800000000", 101), ("1800000000.5", 100)):
        out = ["--full", "--out", str(tmp_path / "news")]
        said = succeed(shoal.invoke(main, [*build, *out, "--drop-changes-before", time]))
        assert f"{count} documents, " in said
    log.append("news", change(["three"]))
    for command, num_folded in (([*build, "--name", "news"], b"4"), (["index", "rollback", "news"], b"3")):
        succeed(shoal.invoke(main, command))
        assert queue.broker.execute("HGET", queue.keys.changed, "news").split()[1:4:2] == [b"4", num_folded]
    result = shoal.invoke(main, [*build, "--name", "news", "--drop-changes-before", "yesterday"])
    assert result.exit_code == 2
    assert "'yesterday' is not a valid float" in result.stderr


def test_an_index_migrates_to_other_settings_in_this_process_and_back_to_the_pool(
    shoal: CliRunner, source: Path, tmp_path: Path, queue: Queue, tiny_source: Path, home: Path, pool: Worker
) -> None:
    succeed(shoal.invoke(main, ["index", "build", str(source), "--name", "news"]))
    first = current_version(tmp_path / "news").name
    assert f"news: unchanged: version {first} stays" in succeed(shoal.invoke(main, ["index", "migrate", "news"]))
    as_written(ChangeLog(queue.broker, queue.keys)).append("news", change(["one"], ["gone"]))
    local = ["--local", "--model", str(tiny_source), "--precision", "int8", "--home", str(home)]
    said = succeed(shoal.invoke(main, ["index", "migrate", "news", *local]))
    assert f"{tmp_path / 'news'}: 101 documents, version " in said
    assert "changes of 2 ids are folded in" in said
    other = Index.open(tmp_path / "news")
    assert other.manifest.version != first
    assert other.manifest.fingerprint not in ("", pool.encoder.fingerprint)
    result = shoal.invoke(main, ["index", "migrate", "news", "--no-publish"])
    assert "1 texts were embedded; 100 documents have their vectors from the version built last" in succeed(result)
    assert "it is not published: shoal index publish" in result.stderr
    assert current_version(tmp_path / "news").name == other.manifest.version
    assert "holds no index" in fail(shoal.invoke(main, ["index", "migrate", "none"]), "index_not_found")


def test_either_a_name_or_a_folder_and_a_name_goes_before_a_folder_here(
    shoal: CliRunner, tmp_path: Path, index_folder: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for words in ([], ["--name", "news", "--out", "news"]):
        result = shoal.invoke(main, ["index", "build", str(source), *words])
        assert result.exit_code == 2
        assert "Name the index with --name, or its folder with --out." in result.stderr
    elsewhere = shoal.invoke(main, ["index", "build", str(source), "--name", "../news"])
    assert 'the index is called "../news"' in fail(elsewhere, "invalid_request")
    (here := tmp_path / "here").mkdir()
    monkeypatch.chdir(here)
    for folder, version in ((tmp_path / "news", "v1"), (here / "news", "v2"), (here / "other", "v3")):
        publish_version(folder, index_folder, version)
    for name, version in (("news", "v1"), ("./news", "v2"), ("other", "v3")):
        assert f"* {version} " in succeed(shoal.invoke(main, ["index", "list", name]))


def test_workers_that_are_not_ready_or_of_different_models(client: Client) -> None:
    about = {"state": "stalled", "model": "m", "digest": "d", "dimension": 8, "precision": "f32", "fingerprint": "f32"}
    client.pool.announce("f32", about)
    with pytest.raises(NotReady, match="no worker of the pool is ready"):
        PoolEncoder.find(client)
    client.pool.announce("f32", about | {"state": "asleep"})
    assert PoolEncoder.find(client).model.digest == "d"
    for name in ("bf16", "f32"):
        client.pool.announce(name, about | {"state": "ready", "precision": name, "fingerprint": name})
    with pytest.raises(NotReady, match=r'make different vectors .* different precision \("bf16" and "f32"\)'):
        served_model(client.pool.ready().values())
    assert served_digest(client) == "d"  # versions can still be published and rolled back
    client.pool.announce("two", about | {"state": "ready", "model": "two", "digest": "two" * 8})
    with pytest.raises(NotReady, match=r"serve different models, m \(d.*, two \("):
        served_model(client.pool.ready().values())


@pytest.mark.usefixtures("pool")
def test_a_pool_that_comes_to_serve_another_model(client: Client, encoder: Encoder) -> None:
    here = info_of(encoder.model, encoder.fingerprint)
    with pytest.raises(ModelMismatch, match=f"and {excerpt(here.name)} has {here.fingerprint}"):
        list(PoolEncoder(client, replace(here, fingerprint="f" * 32)).encode(["storm"], ("vector",), print))
