"""URLs of webhooks, which may not lead into private networks, and the paths that long jobs may use."""

from pathlib import Path

import pytest

from shoal.errors import AddressNotAllowed, FileError, InvalidRequest, PathNotAllowed
from shoal.process.allowed_path import allowed_path
from shoal.process.private_network import check_address, is_public
from shoal.settings import Settings

LOOPBACK = frozenset({"127.0.0.1"})

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
    with pytest.raises(FileError, match=r'/a cannot be reached: there is no host "aaa'):
        check_address(f"http://{host}/a?key=secret", ())


class TestAllowedPath:
    @pytest.fixture
    def settings(self, tmp_path: Path) -> Settings:
        for name in ("files", "other", "secret"):
            (tmp_path / name).mkdir()
        return Settings(roots=f"{tmp_path}/files,{tmp_path}/other")

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

    def test_urls_are_refused_without_their_secrets(self, settings: Settings) -> None:
        for url in ("s3://key@bucket/a.csv", "https://a.example/a?key=1", "FILE:///etc/passwd", "local://key/a"):
            with pytest.raises(InvalidRequest, match=r'^"[a-zA-Z3]+://…" is a URL: .* download it') as caught:
                allowed_path(url, settings)
            assert "key" not in caught.value.message
