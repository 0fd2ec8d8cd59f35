"""Access control: keys, their file and their roles, rates in Redis, shares of clients, and browsers."""

import fcntl
import hashlib
import io
import os
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import product
from pathlib import Path

import pytest
from api_stub import MakeApp, error_of
from conftest import RedisServer, wait_until
from keys_file import KeysFile
from process import run

from shoal.errors import BadSetting, Overloaded
from shoal_api.access import api_keys
from shoal_api.access.access_control import Shares
from shoal_api.access.api_keys import PREFIX, ApiKey, Keyring
from shoal_api.request import json_request

pytest_plugins = ["api_fixtures"]


#: Longest wait for a worker, in seconds. No worker runs.
SHORT_S = 0.05


OPEN = {("/", "GET"), ("/health", "GET"), ("/ready", "GET"), ("/docs", "GET"), ("/openapi.json", "GET")}


def test_each_route_needs_the_key_that_the_description_says(make_app: MakeApp, keys_file: KeysFile) -> None:
    guarded = make_app(api_keys_file=str(keys_file.path), request_timeout_s=SHORT_S).test_client()
    free = make_app(request_timeout_s=SHORT_S).test_client()
    described = guarded.get("/openapi.json").get_json()
    schemes = described["components"]["securitySchemes"]
    assert schemes["bearer"].items() >= {"type": "http", "scheme": "bearer"}.items()
    assert schemes["header"] == {"type": "apiKey", "in": "header", "name": "X-API-Key"}
    assert described["security"] == [{"bearer": []}, {"header": []}]
    assert "security" not in free.get("/openapi.json").get_json()
    found = [(path, way.upper(), about) for path, ways in described["paths"].items() for way, about in ways.items()]
    assert {(path, way) for path, way, about in found if about.get("security") == []} == OPEN
    for path, way, _ in found:
        asked, is_open = {"path": path.replace("{id}", "1-1"), "method": way}, (path, way) in OPEN
        assert (guarded.open(**asked).status_code == 401) != is_open, path
        forbidden = guarded.open(**asked, headers=keys_file.user).status_code == 403
        assert forbidden == path.startswith(("/v1/dead", "/v1/indexes/")), path
        assert free.open(**asked).status_code not in (401, 403), path
    assert guarded.get("/nowhere").status_code == 401
    assert guarded.get("/docs", follow_redirects=True).status_code == 200
    assert error_of(guarded.get("/v1/dead", headers=keys_file.user), 403)[0] == "forbidden"
    assert guarded.get("/v1/dead", headers=keys_file.admin).status_code == 200


def test_a_key_is_a_bearer_token_or_a_header_of_its_own(make_app: MakeApp, keys_file: KeysFile) -> None:
    guarded = make_app(api_keys_file=str(keys_file.path)).test_client()
    secret = keys_file.user["Authorization"].partition(" ")[2]
    for value in (f"Bearer {secret}", f"bearer {secret}", f"Bearer  {secret} "):
        assert guarded.get("/info", headers={"Authorization": value}).status_code == 200
    assert guarded.get("/info", headers={"X-API-Key": secret}).status_code == 200
    wrong = ("Bearer", "Bearer x", "Basic dXNlcjp4", "", "Bearer \xff")
    for headers in ({"X-API-Key": secret[:-1]}, *({"Authorization": value} for value in wrong)):
        response = guarded.post("/embed", data=b"no json", headers=headers)
        assert error_of(response, 401)[0] == "unauthorized"  # refused before the body is read
        assert response.headers["WWW-Authenticate"] == 'Bearer realm="shoal"'


FORWARDED = "198.51.100.1, 203.0.113.7, 10.9.9.9"

#: The number of trusted proxies, X-Forwarded-For, the address of the connection, and the name of the client.
NAMES = [
    *((n, FORWARDED, "127.0.0.1", ["127.0.0.1", *FORWARDED.split(", ")[::-1]][n]) for n in range(4)),
    *((1, noted, "127.0.0.1", "203.0.113.7") for noted in ("203.0.113.7:4711", "::ffff:203.0.113.7")),
    *((1, noted, "::1", "2001:db8:1:2::/64") for noted in ("[2001:db8:1:2::7]:4711", "[2001:db8:1:2::7]")),
    (0, "", "2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
    (0, "", "", ""),
]


def test_without_a_key_the_address_names_the_client(make_app: MakeApp) -> None:
    for num_proxies, noted, address, name in NAMES:
        app = make_app(trusted_proxies=num_proxies)
        app.add_url_rule("/name", view_func=lambda: json_request().client_name)
        headers, environ = {"X-Forwarded-For": noted}, {"REMOTE_ADDR": address}
        assert app.test_client().get("/name", headers=headers, environ_base=environ).text == name


class TestRates:
    def test_a_key_may_be_used_as_often_as_its_rate_says(self, make_app: MakeApp, keys_file: KeysFile) -> None:
        slow, other = keys_file.make("slow", rate="5/hour"), keys_file.make("other", rate="5/hour")
        one, two = (make_app(api_keys_file=str(keys_file.path)).test_client() for _ in range(2))
        answers = [api.get("/info", headers=slow) for api in (one, two) * 3]
        assert [response.status_code for response in answers] == [200] * 5 + [429]
        assert [response.headers.get("RateLimit", "")[:9] for response in answers] == [""] * 5 + ['"key";r=0']
        assert {response.headers["RateLimit-Policy"] for response in answers} == {'"key";q=5;w=3600'}
        code, message = error_of(answers[-1], 429)
        assert (code, "slow" in message) == ("rate_limited", True)
        assert 0 < int(answers[-1].headers["Retry-After"]) <= 7_200
        assert one.get("/info", headers=other).status_code == 200
        quick = keys_file.make("quick", rate="1/second")
        api, waits = make_app(api_keys_file=str(keys_file.path)).test_client(), set()

        def is_answered(status: int) -> bool:
            response = api.get("/info", headers=quick)
            waits.add(response.headers.get("Retry-After"))
            return response.status_code == status

        for status in (200, 429, 200):  # two requests may fall into different seconds
            wait_until(partial(is_answered, status))
        assert "0" not in waits

    def test_without_redis_only_keys_without_a_rate_are_served(
        self, make_app: MakeApp, keys_file: KeysFile, own_redis: RedisServer
    ) -> None:
        slow = keys_file.make("slow", rate="5/hour")
        own_redis.stop()
        api = make_app(api_keys_file=str(keys_file.path), redis_url=own_redis.url).test_client()
        response = api.get("/metrics", headers=keys_file.user)
        assert (response.status_code, "RateLimit" in response.headers) == (200, False)
        assert error_of(api.post("/embed", json={"inputs": "a"}, headers=slow), 503)[0] == "unavailable"


class TestShares:
    def test_a_client_may_hold_as_much_as_it_leaves_free_and_one_that_holds_nothing_gets_the_rest(self) -> None:
        shares = Shares(256, "things")

        def taken(client: str) -> int:
            with suppress(Overloaded):
                while True:
                    shares.acquire(client, 1)
            return shares.held(client)

        assert [taken(f"client {n}") for n in range(8)] == [128, 64, 32, 16, 8, 4, 2, 1]
        for n in range(8):
            shares.release(f"client {n}", shares.held(f"client {n}"))
        shares.acquire("a", 200)
        with pytest.raises(Overloaded, match=r"this client has 200 of 256 things, and 1 more are not granted now"):
            shares.acquire("a", 1)
        shares.acquire("b", 56)
        assert taken("c") == 0
        shares.release("a", 200)
        shares.release("b", 56)
        assert taken("c") == 128


class TestBytes:
    """A process here accepts 4 * (1,000 + 2.5 * 2**20) bytes of requests and responses, a client half of that."""

    MOST = 4 * (1_000 + 5 * 2**19)

    def test_a_client_with_many_bytes_is_refused_another_body(self, make_app: MakeApp) -> None:
        sizes = {"Content-Length": "700"}, {"Transfer-Encoding": "chunked"}
        for (num_free, status), headers in product(((2_000, 400), (900, 429)), sizes):
            app = make_app(max_request_bytes=1_000, max_response_mb=1)
            shares = app.own.access._bytes
            shares.acquire("203.0.113.7", self.MOST - 2 * num_free)
            shares.acquire("127.0.0.1", num_free // 2)
            body, environ = io.BytesIO(b"{" * 700), {"wsgi.input_terminated": True}
            response = app.test_client().post("/embed", input_stream=body, headers=headers, environ_overrides=environ)
            assert response.status_code == status
            assert shares._held["127.0.0.1"] == num_free // 2

    def test_a_request_that_fails_gives_its_bytes_back_and_health_needs_none(self, make_app: MakeApp) -> None:
        app = make_app(max_request_bytes=1_000, max_response_mb=1)
        api, shares = app.test_client(), app.own.access._bytes
        assert [api.post("/embed", data=b"{").status_code for _ in range(5)] == [400] * 5
        assert shares._held == {}
        shares.acquire("127.0.0.1", self.MOST)
        response = api.post("/embed", json={"inputs": "a"})
        assert (error_of(response, 429)[0], response.headers["Retry-After"]) == ("overloaded", "1")
        assert api.get("/health").status_code == 200
        assert api.get("/ready").status_code == 503  # there is no worker; bytes do not matter


class TestBrowsers:
    """Web pages of other sites, which could use an API without keys through the browser of a user."""

    def test_it_answers_to_the_names_of_this_machine_or_to_any(self, make_app: MakeApp, keys_file: KeysFile) -> None:
        api = make_app(host="Shoal.test").test_client()
        for host in ("localhost", "LOCALHOST", "127.0.0.1:8080", "[::1]:8080", "[::1]", "shoal.test:1"):
            assert api.get("/info", headers={"Host": host}).status_code == 200
        for host in ("evil.example", "localhost.evil.example", "10.0.0.1:8080", ""):
            code, message = error_of(api.get("/info", headers={"Host": host}), 403)
            assert (code, "--allow-anonymous anywhere" in message) == ("forbidden", True)
        assert api.get("/docs", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 302  # the user follows a link
        for app in (make_app(allow_anonymous="anywhere"), make_app(api_keys_file=str(keys_file.path))):
            asked = app.test_client().get("/info", headers={"Host": "my.example", **keys_file.user})
            assert asked.status_code == 200

    def test_foreign_pages_may_not_submit(self, make_app: MakeApp) -> None:
        evil = "https://evil.example"
        for site, origin, origins, status in (
            ("cross-site", evil, "", 403),
            ("same-site", evil, "", 403),
            ("same-origin", evil, "", 202),
            ("none", evil, "", 202),
            *(("cross-site", evil, f"https://{name}.example", 202) for name in ("evil", "EVIL")),
            ("cross-site", evil, "https://other.example", 403),
            ("cross-site", evil, "*", 202),
            (None, "http://localhost", "", 202),
            *((None, other, "", 403) for other in (evil, "http://localhost:1", "null", "")),
        ):
            headers = {"Origin": origin, "Content-Type": "text/plain"} | ({"Sec-Fetch-Site": site} if site else {})
            api = make_app(cors_origins=origins).test_client()
            response = api.post("/v1/jobs", data=b'{"op": "embed", "inputs": "a"}', headers=headers)
            assert response.status_code == status, (site, origin, origins)


DIGEST = "ab" * 32


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file of keys, which does not exist yet."""
    return tmp_path / "keys"


def test_only_digests_of_keys_are_kept_and_comments_stay(path: Path) -> None:
    first, second = api_keys.add(path, "web", "user", "100/second"), api_keys.add(path, "ops", "admin", "")
    for secret in (first, second):
        assert secret.startswith(PREFIX)
        assert len(secret) == len(PREFIX) + 43
        assert secret[len(PREFIX) :] not in path.read_text()
    keys = Keyring(path)
    assert keys.find(first) == ApiKey("web", "user", hashlib.sha256(first.encode()).digest(), "100/second")
    assert keys.find(second) == ApiKey("ops", "admin", hashlib.sha256(second.encode()).digest())
    for wrong in ("", first[:-1], f"{first} ", first.upper(), "web", hashlib.sha256(first.encode()).hexdigest()):
        assert keys.find(wrong) is None
    path.write_text("# for the shop\n\n")
    assert Keyring(path).find("") is None
    path.write_text("# for the shop")
    secret = api_keys.add(path, "shop", "user", "")
    assert path.read_text() == f"# for the shop\nshop user {hashlib.sha256(secret.encode()).hexdigest()}\n"


def test_keys_that_are_made_at_the_same_time_are_all_kept(path: Path) -> None:
    api_keys.add(path, "web", "user", "")
    with ThreadPoolExecutor() as threads, path.open("a") as other:  # another process changes the file
        fcntl.flock(other, fcntl.LOCK_EX)
        adding = threads.submit(api_keys.add, path, "ops", "admin", "")
        with pytest.raises(TimeoutError):
            adding.result(0.1)
        other.write(f"shop user {DIGEST}\n")
    assert [key.name for key in api_keys.read(path)] == ["web", "shop", "ops"]


def test_a_wrong_line_is_named_and_not_repeated(path: Path) -> None:
    wrong = ["web user", "web user shoal_abc", *(f"{words} {DIGEST}" for words in ("web root", "a:b user"))]
    wrong += [f"web user {DIGEST} {rate}" for rate in ("0/second", "5/hours", "5/hour x")]
    takes = r"line 2: a key takes NAME ROLE DIGEST \[RATE\]"
    for line, words in (
        *((line, takes) for line in wrong),
        (f"one user {DIGEST}\none user {DIGEST}", "two keys that are called one"),
    ):
        path.write_text(f"# keys\n{line}\n")
        with pytest.raises(BadSetting, match=words) as raised:
            Keyring(path)
        assert not [secret for secret in ("shoal_abc", DIGEST) if secret in raised.value.message]
    path.write_bytes(b"# \xff")
    with pytest.raises(BadSetting, match="it is not UTF-8"):
        Keyring(path)


def test_a_change_that_keeps_the_size_is_noticed(path: Path) -> None:
    for replaces in (False, True):
        path.unlink(missing_ok=True)
        first = api_keys.add(path, "web", "user", "")
        keys, before = Keyring(path), path.stat()
        changed = path.with_name("other") if replaces else path
        changed.write_text(f"web user {hashlib.sha256(b'another').hexdigest()}\n")
        os.utime(changed, ns=(before.st_atime_ns, before.st_mtime_ns + (not replaces)))
        changed.replace(path)  # the new file may have the same time as the old one
        assert path.stat().st_size == before.st_size
        wait_until(lambda: keys.find("another"))  # noqa: B023 - it is called here
        assert keys.find(first) is None


def test_a_file_that_breaks_or_is_gone_leaves_the_keys(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    secret = api_keys.add(path, "first", "user", "")
    keys = Keyring(path)
    for change in (lambda: path.write_text("a mistake\n"), path.unlink):
        caplog.clear()
        change()
        wait_until(lambda: keys.find(secret) and "the keys stay as they were" in caplog.text)
        assert "mistake" not in caplog.text


def test_a_command_makes_a_key_or_says_why_it_cannot(path: Path) -> None:
    made = run("key", "new", "web", "--rate", "10/minute", api_keys_file=path)
    assert re.fullmatch(rf"{PREFIX}[\w-]{{43}}\n", made.stdout), made.stderr
    assert (str(path) in made.stderr, made.stdout.strip() in made.stderr) == (True, False)
    assert run("key", "new", "ops", "--admin", "--api-keys-file", path).returncode == 0
    assert [(key.name, key.role, key.rate) for key in api_keys.read(path)] == [
        ("web", "user", "10/minute"),
        ("ops", "admin", ""),
    ]
    before = path.read_text()
    wrong = *((name, "has a key that is called ops") for name in ("ops", " ops\n")), ("a b", "a key takes NAME ROLE")
    for arguments, words in (
        *(([name], words) for name, words in wrong),
        (["a", "--rate", "fast"], "a number, a slash"),
    ):
        done = run("key", "new", *arguments, api_keys_file=path)
        assert (done.returncode, done.stdout, words in done.stderr) == (1, "", True)
        assert done.stderr.endswith("[bad_setting]\n")
    assert path.read_text() == before
    assert "SHOAL_API_KEYS_FILE" in run("key", "new", "a").stderr
