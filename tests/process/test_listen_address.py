"""Addresses to listen on, and paths of long jobs, are refused if they lead elsewhere."""

import socket
from pathlib import Path

import pytest
from conftest import free_port

from shoal.errors import BadSetting, InvalidRequest, PathNotAllowed, PortInUse
from shoal.process import listen_address as of_address
from shoal.process.allowed_path import allowed_path
from shoal.process.listen_address import api_url, find_addresses, find_api_addresses
from shoal.settings import Settings


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
