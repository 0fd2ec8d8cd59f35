"""Access to Redis: passwords, password files, TLS with certificates of both sides; and passwords are never shown."""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import redis
from certificates import certificate, has_openssl
from client_adapters import KINDS, end
from conftest import PATIENCE_S, RedisServer, free_port, redis_program, wait_until
from process import Process, run
from queues import connect, queue_of

from shoal import Client
from shoal.broker.connections import shown
from shoal.errors import Timeout, Unavailable

PASSWORD = "hard to/guess?&@:#é"
SECRET = "guess"


Use = Callable[[str], str]


@pytest.fixture(params=["Client", "AsyncClient"])
def use(request: pytest.FixtureRequest) -> Use:
    """A function that puts a job, waits a moment for its result in vain, and returns its status."""

    def use(url: str) -> str:
        client = KINDS[request.param](url)
        try:
            job = client.submit("embed", "storm")
            with pytest.raises(Timeout):
                job.result(timeout_s=0.01)
            return str(job.status())
        finally:
            end(client)

    return use


def with_password(url: str, password: str, user: str = "") -> str:
    """The URL with user and password in it."""
    return url.replace("://", f"://{user}:{quote(password, safe='')}@")


@pytest.fixture
def locked(own_redis: RedisServer) -> RedisServer:
    """A Redis that asks for the password."""
    with redis.Redis.from_url(own_redis.url) as connection:
        connection.config_set("requirepass", PASSWORD)
    return own_redis


class TestPassword:
    @pytest.mark.parametrize(
        ("password", "message"),
        [("", "put the password into the Redis URL"), (SECRET, "check the user and the password")],
    )
    def test_the_error_says_what_is_wrong(self, locked: RedisServer, password: str, message: str, use: Use) -> None:
        with pytest.raises(Unavailable, match=message) as raised:
            use(with_password(locked.url, password) if password else locked.url)
        assert SECRET not in str(raised.value)

    def test_in_a_file(self, locked: RedisServer, tmp_path: Path, use: Use) -> None:
        file = tmp_path / "pass word"
        url = f"{locked.url}&password_file={quote(str(file))}"
        with pytest.raises(Unavailable, match="check its path"):
            use(url)
        file.write_text(f"{PASSWORD}\n")
        assert use(url) == "queued"
        assert use(url.replace("://", "://default@")) == "queued"
        file.write_text(SECRET)
        with pytest.raises(Unavailable, match="check the user and the password"):
            use(url)

    def test_one_that_changes_is_read_again(self, locked: RedisServer, tmp_path: Path) -> None:
        file = tmp_path / "password"
        file.write_text(PASSWORD)
        with Client(f"{locked.url}&password_file={file}") as client:
            queue_of(client).ping()
            with redis.Redis.from_url(with_password(locked.url, PASSWORD)) as connection:
                connection.config_set("requirepass", "new")
                connection.client_kill_filter(_type="normal", skipme=True)
            file.write_text("new")
            assert client.submit("embed", "storm").status() == "queued"


class TestUrl:
    @pytest.mark.parametrize(
        "url",
        [
            f"redis://:{SECRET}/{SECRET}@localhost",
            f"redis://:{SECRET}@localhost:{SECRET}/0",
            f"redis:/:{SECRET}@localhost",
            f"{SECRET}@localhost",
            f"rediss://:{SECRET}@localhost?ssl_ca_cert={SECRET}",
            f"redis://:{SECRET}@localhost?ssl_ca_certs={SECRET}",
            f"redis://:{SECRET}@localhost?socket_timeout={SECRET}",
            f"rediss://:{SECRET}@localhost?ssl_cert_reqs={SECRET}",
            f"redis://:{SECRET}@[::1",
        ],
    )
    def test_one_that_cannot_be_read_is_refused_and_not_shown(self, url: str) -> None:
        with pytest.raises(Unavailable, match="write redis://host:port/db") as raised:
            connect(url)
        assert SECRET not in str(raised.value)
        assert raised.value.__cause__ is None

    @pytest.mark.parametrize(
        ("url", "safe"),
        [
            ("redis://127.0.0.1:6390/0", "redis://127.0.0.1:6390/0"),
            (f"rediss://me:{SECRET}@host/3?ssl_certfile=c&password={SECRET}", "rediss://host:6379/3"),
            (f"unix://me:{SECRET}@/run/redis.sock?db=2", "unix:///run/redis.sock"),
        ],
    )
    def test_what_is_shown_of_one(self, url: str, safe: str) -> None:
        assert shown(url) == safe

    @pytest.mark.wide
    def test_no_command_shows_the_password(
        self, locked: RedisServer, tiny_source: Path, tiny_model: Path, home: Path, tmp_path: Path
    ) -> None:
        right, wrong = with_password(locked.url, PASSWORD), with_password(locked.url, SECRET)
        settings: dict[str, Any] = {"log_level": "debug", "home": tmp_path, "port": free_port(), "workers": 0}
        worker_settings: dict[str, Any] = {"log_level": "debug", "home": home, "model": tiny_source}
        outputs = []
        for command, url in (("status", wrong), ("status", f"redis://:{SECRET}/{SECRET}@localhost"), ("serve", wrong)):
            done = run(command, redis_url=url, **settings)
            assert done.returncode == 1
            assert "[unavailable]" in done.stderr
            outputs.append(done.stdout + done.stderr)
        with Process(tmp_path / "serve.log", "serve", redis_url=right, **settings) as serve:
            wait_until(lambda: "stop:   " in serve.output)
            assert f"Redis:  {locked.plain_url}" in serve.output
            assert serve.terminate() == 0
        with Process(tmp_path / "worker.log", "worker", redis_url=wrong, **worker_settings) as worker:
            wait_until(lambda: "trying until" in worker.output)
            assert worker.terminate() == 0
        assert SECRET not in "".join([*outputs, serve.output, worker.output])


def speaks_tls(program: str) -> bool:
    """Return True if the server was built with TLS: it misses its certificate then, and not the protocol."""
    command = [program, "--port", "0", "--tls-port", str(free_port())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    return "Failed to configure TLS" in done.stdout


@pytest.mark.skipif(not has_openssl(), reason="there is no openssl 3 to make certificates")
class TestTls:
    @pytest.fixture
    def files(self, tmp_path: Path) -> Path:
        """Certificates of an authority, a server, a server at another address and a client, and a stranger's."""
        certificate(tmp_path, "ca")
        certificate(tmp_path, "server", "ca")
        certificate(tmp_path, "elsewhere", "ca", "IP:127.0.0.2")
        certificate(tmp_path, "client", "ca")
        certificate(tmp_path, "stranger")
        return tmp_path

    @pytest.fixture
    def server(self, files: Path) -> Iterator[RedisServer]:
        """A Redis that speaks TLS only, and only with clients that have a certificate of the same authority."""
        programs = (redis_program(), shutil.which("redis-server"), shutil.which("valkey-server"))
        program = next((program for program in programs if program and speaks_tls(program)), None)
        if not program:
            pytest.skip("there is no Redis server with TLS: the wheel's has none, and none is on the PATH")
        names = {"tls_cert_file": "server.pem", "tls_key_file": "server.key", "tls_ca_cert_file": "ca.pem"}
        server = RedisServer(files, program)
        server.options |= {"port": 0, "tls_port": server.port}
        server.options |= {name: files / file for name, file in names.items()}
        server.url = self.url(server, files, "client")
        server.start()
        yield server
        server.stop()

    def show(self, server: RedisServer, files: Path, name: str) -> None:
        """Have the server show the certificate of that name from now on."""
        with redis.Redis.from_url(server.url) as connection:
            connection.config_set("tls-key-file", f"{files}/{name}.key", "tls-cert-file", f"{files}/{name}.pem")

    def url(self, server: RedisServer, files: Path, name: str) -> str:
        """Return the URL for a client with the certificate of that name."""
        options = f"ssl_ca_certs={files}/ca.pem&ssl_certfile={files}/{name}.pem&ssl_keyfile={files}/{name}.key"
        patience = f"socket_timeout={PATIENCE_S}&socket_connect_timeout={PATIENCE_S}"
        return f"rediss://127.0.0.1:{server.port}/0?{options}&{patience}"

    def test_with_certificates_on_both_sides(self, server: RedisServer, use: Use) -> None:
        assert use(server.url) == "queued"
        done = run("status", redis_url=server.url)
        assert "1 unanswered jobs" in done.stdout

    def test_a_client_without_one_or_with_a_strangers_is_not_let_in(
        self, server: RedisServer, files: Path, use: Use
    ) -> None:
        alone = f"rediss://127.0.0.1:{server.port}/0?ssl_ca_certs={files}/ca.pem"
        for url in (alone, self.url(server, files, "stranger")):
            with pytest.raises(Unavailable, match="Redis does not answer"):
                use(url)

    def test_a_server_that_cannot_be_trusted_is_not_spoken_to(self, server: RedisServer, files: Path, use: Use) -> None:
        for url in (
            f"rediss://127.0.0.1:{server.port}/0",
            server.url.replace("ca.pem", "stranger.pem"),
        ):
            with pytest.raises(Unavailable, match="certificate verify failed"):
                use(url)

    def test_a_server_whose_certificate_names_another_is_not_spoken_to(
        self, server: RedisServer, files: Path, use: Use
    ) -> None:
        self.show(server, files, "elsewhere")
        with pytest.raises(Unavailable, match="certificate verify failed"):
            use(server.url)
