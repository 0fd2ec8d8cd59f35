"""Sources that are files in stores of fsspec or on web servers."""

import gzip
from collections.abc import Iterator
from typing import Any

import pytest
from http_servers import Canned, CannedServer, running

from shoal.errors import AddressNotAllowed, FileError, PathNotAllowed, ShoalError
from shoal.records.source import Source
from shoal.records.source_file import SourceRules
from shoal.records.web_file import PACE_S, Pace, WebFile

LOOPBACK = frozenset({"127.0.0.1"})


@pytest.fixture
def parquet_bytes() -> bytes:
    """Return the bytes of a .parquet file with two texts."""
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"text": ["one", "two"]}), sink := pyarrow.BufferOutputStream())
    return bytes(sink.getvalue())


def texts(url: str, *roots: str) -> list[str]:
    """Return the texts of a source below these roots, or without roots."""
    return [document.text for document in Source(url, rules=SourceRules(LOOPBACK, roots))]


class TestStores:
    """Files in a store of fsspec in memory."""

    @pytest.fixture(autouse=True)
    def store(self) -> Iterator[Any]:
        store = pytest.importorskip("fsspec").filesystem("memory")
        yield store
        store.store.clear()

    def test_one_is_read_like_a_local_file(self, store: Any, parquet_bytes: bytes) -> None:
        store.pipe("/bucket/a.csv.gz", gzip.compress(b"text\none\ntwo\n"))
        source = Source("memory://bucket/a.csv.gz")
        assert [document.text for document in source] == ["one", "two"]
        assert source.fraction == 1
        assert source.fingerprint()["name"] == "a.csv.gz"
        store.pipe("/bucket/a.parquet", parquet_bytes)
        assert texts("memory://bucket/a.parquet") == ["one", "two"]

    def test_one_is_read_though_the_seek_of_the_store_returns_none(
        self, store: Any, monkeypatch: pytest.MonkeyPatch, parquet_bytes: bytes
    ) -> None:
        store.pipe("/bucket/a.csv", b"text\none\ntwo\n")
        store.pipe("/bucket/a.parquet", parquet_bytes)
        kind = type(store.open("/bucket/a.csv"))
        go_to = kind.seek

        def seek(self: Any, *place: int) -> None:
            go_to(self, *place)

        monkeypatch.setattr(kind, "seek", seek)
        source = Source("memory://bucket/a.csv")
        assert len(list(source)) == 2
        assert source.fraction == 1
        assert texts("memory://bucket/a.parquet") == ["one", "two"]

    @pytest.mark.parametrize(
        ("url", "message"),
        [
            ("memory://bucket/missing.txt", "there is no file"),
            ("nostore://bucket/a.txt", "cannot be read"),
            ("simplecache::memory://bucket/a.txt", "double colon"),
            ("s3://[/a.txt", "cannot be read|needs"),
            ("memory://bucket/a.xlsx", "of no known kind"),
        ],
    )
    def test_one_that_cannot_be_read_is_refused(self, url: str, message: str) -> None:
        with pytest.raises(ShoalError, match=message):
            list(Source(url))


class PartServer(CannedServer):
    """A server that sends parts of its `content` once it has no prepared answers."""

    content = b""

    def __init__(self) -> None:
        super().__init__()
        self.first: list[Canned] = []

    def next_answer(self) -> Canned:
        if self.first:
            return self.first.pop(0)
        if self.answers:
            return super().next_answer()
        parts = {"Accept-Ranges": "bytes", "ETag": '"a"'}
        asked = self.requests[-1][1].get("Range", "").removeprefix("bytes=").rstrip("-")
        if not asked:
            return Canned(200, self.content, parts)
        place = f"bytes {asked}-{len(self.content) - 1}/{len(self.content)}"
        return Canned(206, self.content[int(asked) :], parts | {"Content-Range": place})


class TestWeb:
    """Files on a web server."""

    @pytest.fixture
    def server(self) -> Iterator[PartServer]:
        server = PartServer()
        with running(server):
            yield server

    def test_one_is_read_like_a_local_file(self, server: PartServer) -> None:
        server.answers = [Canned(200, gzip.compress(b"text\none\ntwo\n"), {"ETag": '"a"'})]
        source = Source(f"{server.url}/x/a.csv.gz?signature=secret", rules=SourceRules(LOOPBACK))
        assert [document.text for document in source] == ["one", "two"]
        assert source.fingerprint()["modified"] == '"a"'
        assert server.requests[0][0] == "/x/a.csv.gz?signature=secret"
        assert source.name == "a.csv.gz"

    def test_a_size_that_no_file_can_have_is_ignored(self, server: PartServer) -> None:
        server.answers = [Canned(200, b"one\n", {"Content-Length": "9" * 5_000})]
        with WebFile(f"{server.url}/a.txt", LOOPBACK) as file:
            assert (file.size_bytes, file.read(4)) == (None, b"one\n")

    def test_a_redirect_into_a_private_network_is_refused(self, server: PartServer) -> None:
        server.answers = [Canned(302, headers={"Location": f"http://localhost:{server.server_port}/b"})]
        with pytest.raises(AddressNotAllowed, match="leads into a private network"):
            list(Source(f"{server.url}/a.txt", rules=SourceRules((*LOOPBACK, "localhost"))))
        assert len(server.requests) == 1

    @pytest.mark.parametrize("target", ["/secret/b.txt", "/open/%2e%2e/secret/b.txt", "/open/b.txt"])
    def test_a_redirect_from_below_a_root_stays_below_it(self, server: PartServer, target: str) -> None:
        redirect, url = Canned(302, headers={"Location": target}), f"{server.url}/open/a.txt"
        server.answers = [redirect, Canned(200, b"one\n")]
        if target == "/open/b.txt":
            assert texts(url, f"{server.url}/open/") == ["one"]
            return
        with pytest.raises(PathNotAllowed, match=r"open/a.txt is redirected to .*/secret/b.txt.* SHOAL_ROOTS"):
            texts(url, f"{server.url}/open/")
        assert len(server.requests) == 1
        server.answers = [redirect, Canned(200, b"one\n")]
        assert texts(url, f"{server.url}/other/") == ["one"]  # the caller has allowed it, because it is below no root

    @pytest.mark.parametrize(
        ("answer", "message"),
        [
            (Canned(404), "answers 404"),
            (Canned(302, headers={"Location": "/a.txt"}), "redirects"),
            (Canned(302, headers={"Location": "http://[x"}), r"redirects to .*, which is no URL"),
            (Canned(0), "does not answer"),
            (Canned(200, b"one\n", {"Content-Length": "9"}), "ended after 4 of 9 bytes"),
        ],
    )
    def test_one_that_cannot_be_read_is_refused_without_its_secret(
        self, server: PartServer, answer: Canned, message: str
    ) -> None:
        server.answers = [answer]
        with pytest.raises(FileError, match=message) as caught:
            texts(f"{server.url}/a.txt?key=secret")
        assert "secret" not in caught.value.message

    def test_reading_continues_after_a_broken_connection_if_the_file_is_the_same(self, server: PartServer) -> None:
        server.content = "".join(f"line {n}\n" for n in range(1_000)).encode()
        whole = {"Accept-Ranges": "bytes", "ETag": '"a"', "Content-Length": str(len(server.content))}
        server.first = [Canned(200, server.content[:3_000], whole)]
        assert texts(f"{server.url}/a.txt")[999] == "line 999"
        assert server.requests[1][1]["Range"] == "bytes=3000-"
        server.first = [Canned(200, server.content[:3_000], whole | {"ETag": '"former"'})]
        with pytest.raises(FileError, match="it has changed since it was opened"):
            texts(f"{server.url}/a.txt")

    def test_a_server_that_is_too_slow_is_noticed(self) -> None:
        pace = Pace()
        assert not any(pace.is_too_slow(8_192, PACE_S / 8) for _ in range(80))
        assert not any(pace.is_too_slow(1, PACE_S / 8) for _ in range(7))
        assert pace.is_too_slow(1, PACE_S / 8)
        assert not pace.is_too_slow(2**20, 10 * PACE_S)
        assert not any(pace.is_too_slow(1, 0.0) for _ in range(1_000))

    def test_parquet_is_read_if_the_server_sends_parts(self, server: PartServer, parquet_bytes: bytes) -> None:
        server.content = parquet_bytes
        assert texts(f"{server.url}/a.parquet") == ["one", "two"]
        server.answers = [Canned(200, server.content)]
        with pytest.raises(FileError, match="sent as a whole only"):
            texts(f"{server.url}/a.parquet")
