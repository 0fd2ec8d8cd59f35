"""URLs of users, which may not lead into private networks, and the paths that long jobs may use."""

import socket
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from certificates import certificate, has_openssl
from conftest import wait_until
from http_servers import Canned, CannedServer, running

from shoal.errors import AddressNotAllowed, FileError, InvalidRequest, PathNotAllowed
from shoal.process.allowed_path import allowed_path
from shoal.process.private_network import check_address, is_public, send_request
from shoal.settings import Settings

LOOPBACK = frozenset({"127.0.0.1"})


@pytest.fixture
def server() -> Iterator[CannedServer]:
    server = CannedServer()
    with running(server):
        yield server


PUBLIC = ("8.8.8.8", "2606:4700::1111", "2002:808:808::1", "64:ff9b::808:808")
PRIVATE = (
    *("127.1.2.3", "0.0.0.0", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "224.0.0.1"),
    *("240.0.0.1", "255.255.255.255", "192.0.2.1", "198.18.0.1", "::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1"),
    *("fd00::1", "ff02::1", "fec0::1", "2001:db8::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1"),
    *("2002:7f00:1::1", "2001:0:7f00:1::1"),
)


def test_public_addresses_are_distinguished_from_others() -> None:
    assert [address for address in (*PUBLIC, *PRIVATE) if is_public(address)] == [*PUBLIC]


def test_a_private_address_is_refused_however_it_is_written() -> None:
    for url in (
        *("http://localhost:8080/a", "https://[::1]/a", "http://[::ffff:127.0.0.1]/a", "http://127.1/a"),
        *("http://2130706433/a", "http://0x7f000001/a", "http://0/a", "HTTP://LOCALHOST/a"),
    ):
        with pytest.raises(AddressNotAllowed, match=r"leads into a private network.*SHOAL_PRIVATE_HOSTS"):
            check_address(url, ())


def test_a_private_host_of_the_settings_is_allowed() -> None:
    assert check_address("http://127.0.0.1:81/a", LOOPBACK) == [("127.0.0.1", 81)]
    assert check_address("https://LocalHost/a", {"localhost"})[0][1] == 443
    with pytest.raises(AddressNotAllowed):
        check_address("http://127.0.0.2/a", LOOPBACK)


def test_a_url_that_cannot_be_used_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r'the URL of "example\.com" has a user name') as caught:
        check_address("http://user:secret@example.com/a", ())
    assert "secret" not in caught.value.message
    hosts = ("http:///a", "http://host:99999/a", "http://[::1/a", "http://" + "a" * 9_000)
    for url in ("ftp://example.com/a", "file:///etc/passwd", *hosts):
        with pytest.raises(InvalidRequest, match="write http:// or https://"):
            check_address(url, ())


def test_a_host_that_does_not_exist_is_named() -> None:
    host = "a" * 64 + ".example"  # invalid, so no name server is asked: a part of a name has at most 63 letters
    with pytest.raises(FileError, match=r'/a cannot be read: there is no host "aaa'):
        check_address(f"http://{host}/a?key=secret", ())


def test_a_request_reaches_the_address_that_was_checked_without_a_proxy(
    server: CannedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    server.answers = [Canned(302, b"moved", {"Location": "http://127.0.0.1:1/"})]
    response = send_request(f"{server.url}/a b?q=ü&x=%20", LOOPBACK, "POST", b"text", {"Content-Type": "text/plain"})
    with response:
        assert (response.status, response.read()) == (302, b"moved")
    ((path, headers),) = server.requests
    assert path == "/a%20b?q=%C3%BC&x=%20"
    assert (headers["Content-Length"], headers["Content-Type"]) == ("4", "text/plain")
    assert headers["Host"] == f"127.0.0.1:{server.server_port}"
    wait_until(lambda: not any(isinstance(one, threading.Timer) for one in threading.enumerate()))  # it would cut off


def test_a_server_that_does_not_answer_is_named_without_the_query() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/a"
        with pytest.raises(FileError, match=r"/a does not answer \(.*refused"):
            send_request(f"{url}?key=secret", LOOPBACK)


@pytest.mark.skipif(not has_openssl(), reason="needs openssl 3")
def test_the_certificate_is_checked_against_the_name(
    server: CannedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate(tmp_path, "authority")
    certificate(tmp_path, "server", "authority", "DNS:localhost")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    server.socket = tls.wrap_socket(server.socket, server_side=True)
    server.answers = [Canned(200, b"ok")]
    hosts = {"localhost", "127.0.0.1"}
    with pytest.raises(FileError, match="CERTIFICATE_VERIFY_FAILED"):
        send_request(f"https://localhost:{server.server_port}/", hosts)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
    with send_request(f"https://localhost:{server.server_port}/", hosts) as response:
        assert response.read() == b"ok"
    with pytest.raises(FileError, match="IP address mismatch"):
        send_request(f"https://127.0.0.1:{server.server_port}/", hosts)


class TestAllowedPath:
    @pytest.fixture
    def settings(self, tmp_path: Path) -> Settings:
        for name in ("files", "other", "secret"):
            (tmp_path / name).mkdir()
        return Settings(roots=f"{tmp_path}/files,{tmp_path}/other,s3://bucket/in/,https://,http://data.example:81")

    def test_paths_below_the_roots_are_allowed(self, tmp_path: Path, settings: Settings) -> None:
        files = (tmp_path / "files").resolve()
        for path in ("a.csv", f"{tmp_path}/files/a.csv", f"file://{tmp_path}/files/a.csv", "b/../a.csv"):
            assert allowed_path(path, settings) == str(files / "a.csv")
        assert allowed_path(f"{tmp_path}/other/x/y", settings) == str(files.parent / "other" / "x" / "y")
        (tmp_path / "files" / "link").symlink_to(tmp_path / "other")
        assert allowed_path("link/a.csv", settings) == str(files.parent / "other" / "a.csv")

    def test_other_paths_are_refused(self, settings: Settings) -> None:
        for path in ("/etc/passwd", "../secret/a", "file:///etc/passwd", "a/../../secret/a"):
            with pytest.raises(PathNotAllowed, match=r"is below none of the folders.*SHOAL_ROOTS"):
                allowed_path(path, settings)

    def test_links_that_lead_out_are_refused(self, tmp_path: Path, settings: Settings) -> None:
        (tmp_path / "secret" / "a.csv").write_text("text\none\n")
        (tmp_path / "files" / "file.csv").symlink_to(tmp_path / "secret" / "a.csv")
        (tmp_path / "files" / "folder").symlink_to(tmp_path / "secret")
        (tmp_path / "files" / "circle").symlink_to(tmp_path / "files" / "circle")
        paths = ("file.csv", "folder/a.csv", "folder/../a.csv", "circle/../../secret/a.csv")
        for path in (*paths, f"{tmp_path}/filesystem/a", "a\0b"):
            with pytest.raises(PathNotAllowed):
                allowed_path(path, settings)

    def test_urls_below_the_roots_are_allowed(self, settings: Settings) -> None:
        urls = ("s3://bucket/in/a.csv", "s3://bucket/in/b/a.csv?v=1", "https://a.example/a", "http://data.example:81/a")
        assert [url for url in urls if allowed_path(url, settings) != url] == []

    def test_other_urls_are_refused(self, settings: Settings) -> None:
        for url in (
            *("s3://bucket/a.csv", "s3://bucket/input/a.csv", "s3://bucket2/in/a.csv", "gs://bucket/in/a.csv"),
            *("s3://bucket/in/../a.csv", "s3://bucket/in/%2e%2e/a", "s3://bucket/in/%252e%252e/a"),
            *("s3://bucket@x/in/a", "http://data.example/a", "http://data.example:81@evil.example/a"),
            *("http://data.example.evil/a", "zip://a::file:///etc/passwd", "https://a.example/x::/etc/passwd"),
            *("local:///etc/passwd", "s3://["),
        ):
            with pytest.raises(PathNotAllowed, match="is below none of the URLs"):
                allowed_path(url, settings)


def test_endless_headers_are_not_waited_for() -> None:
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(1) as threads:

        def trickle() -> None:
            connection, _ = listening.accept()
            with connection, suppress(OSError):
                connection.sendall(b"HTTP/1.1 200 OK\r\n")
                while not ended.wait(0.02):
                    connection.sendall(b"x")

        server = threads.submit(trickle)
        with pytest.raises(FileError, match="does not answer"):
            send_request(f"http://127.0.0.1:{listening.getsockname()[1]}/", LOOPBACK, timeout_s=0.2)
        ended.set()
        server.result()
