"""The addresses that a server listens on, which are checked before its start, and the URL of the API."""

import socket

import pytest
from conftest import free_port

from shoal.errors import BadSetting, PortInUse
from shoal.process import address as of_address
from shoal.process.address import api_url, find_addresses, find_api_addresses
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


def test_a_port_that_is_taken_on_one_address_of_a_name_is_an_error() -> None:
    address = find_addresses("localhost", free_port())[-1]
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family) as server:
        port = server.getsockname()[1]
        with pytest.raises(PortInUse, match=rf"localhost \({address}\):{port} is taken"):
            find_addresses("localhost", port)


def test_without_keys_all_addresses_of_a_name_must_be_of_this_machine_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_address, "find_addresses", lambda *_: ["127.0.0.1", "192.0.2.1"])
    with pytest.raises(BadSetting, match="would answer every machine without a key"):
        find_api_addresses(Settings())


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://localhost:9"),
        ("192.0.2.1", "http://192.0.2.1:9"),
        ("2001:db8::1", "http://[2001:db8::1]:9"),
    ],
)
def test_the_url_leads_to_the_host(host: str, url: str) -> None:
    names = {address[0] for *_, address in socket.getaddrinfo("localhost", None)}
    expected = url if host != "127.0.0.1" or host in names else "http://127.0.0.1:9"
    assert api_url(Settings(host=host, port=9)) == expected
