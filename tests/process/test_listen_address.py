"""Addresses to listen on, URLs of webhooks, and paths of long jobs are refused if they lead elsewhere."""

import socket
from pathlib import Path

import pytest
from conftest import free_port

from shoal.errors import AddressNotAllowed, BadSetting, FileError, InvalidRequest, PathNotAllowed, PortInUse
from shoal.process import listen_address as of_address
from shoal.process.allowed_path import allowed_path
from shoal.process.listen_address import api_url, find_addresses, find_api_addresses
from shoal.process.private_network import check_address, is_public
from shoal.settings import Settings

PUBLIC = ("8.8.8.8", "2606:4700::1111", "2002:808:808::1", "64:ff9b::808:808")
PRIVATE = (
    *("127.1.2.3", "0.0.0.0", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "224.0.0.1"),
    *("240.0.0.1", "255.255.255.255", "192.0.2.1", "198.18.0.1", "::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1"),
    *("fd00::1", "ff02::1", "fec0::1", "2001:db8::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1"),
    *("2002:7f00:1::1", "2001:0:7f00:1::1"),
)


def test_all_addresses_of_a_name_are_used_except_ones_that_the_machine_lacks() -> None:
    port = free_port()
    resolved = dict.fromkeys(str(address[0]) for *_, address in socket.getaddrinfo("localhost", port))
    found = find_addresses("localhost", port)
    assert found
    assert found == [address for address in resolved if address in found]
    for address in set(resolved) - set(found):
        with pytest.raises(BadSetting, match="cannot listen"):
            find_addresses(address, port)
    family = socket.AF_INET6 if ":" in found[-1] else socket.AF_INET
    with socket.create_server((found[-1], 0), family=family) as server:
        taken = server.getsockname()[1]
        with pytest.raises(PortInUse, match=rf"localhost \({found[-1]}\):{taken} is taken"):
            find_addresses("localhost", taken)


def test_without_keys_all_addresses_of_a_name_must_be_of_this_machine_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_address, "find_addresses", lambda *_: ["127.0.0.1", "192.0.2.1"])
    with pytest.raises(BadSetting, match="would answer every machine without a key"):
        find_api_addresses(Settings())


def test_the_url_leads_to_the_host() -> None:
    names = {address[0] for *_, address in socket.getaddrinfo("localhost", None)}
    here = "localhost" if "127.0.0.1" in names else "127.0.0.1"
    hosts = {"127.0.0.1": here, "0.0.0.0": here, "192.0.2.1": "192.0.2.1", "2001:db8::1": "[2001:db8::1]"}
    assert {host: api_url(Settings(host=host, port=9)) for host in hosts} == {
        host: f"http://{name}:9" for host, name in hosts.items()
    }


def test_a_private_address_is_refused_however_it_is_written_unless_the_settings_name_the_host() -> None:
    assert [address for address in (*PUBLIC, *PRIVATE) if is_public(address)] == [*PUBLIC]
    for url in (
        *("http://localhost:8080/a", "https://[::1]/a", "http://[::ffff:127.0.0.1]/a", "http://127.1/a"),
        *("http://2130706433/a", "http://0x7f000001/a", "http://0/a", "HTTP://LOCALHOST/a", "http://127.0.0.2/a"),
    ):
        with pytest.raises(AddressNotAllowed, match=r"leads into a private network.*SHOAL_PRIVATE_HOSTS"):
            check_address(url, {"127.0.0.1"})
    assert check_address("http://127.0.0.1:81/a", {"127.0.0.1"}) == [("127.0.0.1", 81)]
    assert check_address("https://LocalHost/a", {"localhost"})[0][1] == 443


def test_a_url_that_cannot_be_used_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r'the URL of "example\.com" has a user name') as caught:
        check_address("http://user:secret@example.com/a", ())
    assert "secret" not in caught.value.message
    hosts = ("http:///a", "http://host:99999/a", "http://[::1/a", "http://" + "a" * 9_000)
    for url in ("ftp://example.com/a", "file:///etc/passwd", *hosts):
        with pytest.raises(InvalidRequest, match="write http:// or https://"):
            check_address(url, ())
    host = "a" * 64 + ".example"  # invalid, so no name server is asked: a part of a name has at most 63 letters
    with pytest.raises(FileError, match=r'/a cannot be reached: there is no host "aaa'):
        check_address(f"http://{host}/a?key=secret", ())


def test_long_jobs_may_use_paths_below_the_roots_alone(tmp_path: Path) -> None:
    for name in ("files", "other", "secret"):
        (tmp_path / name).mkdir()
    settings = Settings(roots=f"{tmp_path}/files,{tmp_path}/other")
    links = {"link": "other", "file.csv": "secret/a.csv", "folder": "secret", "circle": "files/circle"}
    for name, target in links.items():
        (tmp_path / "files" / name).symlink_to(tmp_path / target)
    for path in ("a.csv", f"{tmp_path}/files/a.csv", f"file://{tmp_path}/files/a.csv", "b/../a.csv"):
        assert allowed_path(path, settings) == str(tmp_path.resolve() / "files/a.csv")
    for path in ("link/a.csv", f"{tmp_path}/other/a.csv"):
        assert allowed_path(path, settings) == str(tmp_path.resolve() / "other/a.csv")
    for path in (
        *("/etc/passwd", "../secret/a", "file:///etc/passwd", "a/../../secret/a", f"{tmp_path}/filesystem/a"),
        *("file.csv", "folder/a.csv", "folder/../a.csv", "circle/../../secret/a.csv", "a\0b"),
    ):
        with pytest.raises(PathNotAllowed, match=r"is below none of the folders.*SHOAL_ROOTS|is no path of a file"):
            allowed_path(path, settings)
    for url in ("s3://key@bucket/a.csv", "https://a.example/a?key=1", "FILE:///etc/passwd", "local://key/a"):
        with pytest.raises(InvalidRequest, match=r'^"[a-zA-Z3]+://…" is a URL: .* download it') as caught:
            allowed_path(url, settings)
        assert "key" not in caught.value.message
