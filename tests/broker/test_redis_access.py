"""Access to Redis by passwords, password files and TLS with certificates on both sides. Passwords are never shown."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import redis
from certificates import certificate, has_openssl
from conftest import PATIENCE_S, RedisServer, free_port, redis_program, wait_until
from process import Process, run
from queues import connect, queue_of

from shoal import Client
from shoal.broker.connections import PasswordFile, printable_url
from shoal.errors import Timeout, Unavailable

PASSWORD = "hard to/guess?&@:#é"
SECRET = "guess"

#: Options of a URL with long timeouts, so that connections do not fail on a busy machine.
PATIENCE = f"socket_timeout={PATIENCE_S}&socket_connect_timeout={PATIENCE_S}"


def use(url: str) -> str:
    """Ask Redis from a thread, put a job from an event loop, and return the job's status."""
    with Client(url) as client:
        queue_of(client).ping()
        job = client.submit("embed", "storm")
        with pytest.raises(Timeout):
            job.result(timeout_s=0.01)
        return job.status()


def answers(client: Client) -> bool:
    with suppress(Unavailable):
        queue_of(client).ping()
        return True
    return False


def check_refused(url: str, words: str) -> None:
    """Check that Redis refuses a thread and a task of an event loop, and that both errors have these words."""
    with Client(url) as client:
        for ask in (queue_of(client).ping, lambda: client.submit("embed", "storm")):
            with pytest.raises(Unavailable, match=words) as refusal:
                ask()
            assert SECRET not in str(refusal.value)


def with_password(url: str, password: str, user: str = "") -> str:
    return url.replace("://", f"://{user}:{quote(password, safe='')}@")


@pytest.fixture
def locked(own_redis: RedisServer) -> RedisServer:
    with redis.Redis.from_url(own_redis.url) as connection:
        connection.config_set("requirepass", PASSWORD)
    return own_redis


class TestPassword:
    def test_it_may_be_in_a_file_and_an_error_says_what_is_wrong(self, locked: RedisServer, tmp_path: Path) -> None:
        check_refused(locked.url, "put the password into the Redis URL")
        check_refused(with_password(locked.url, SECRET), "check the user and the password")
        file = tmp_path / "pass word"
        url = f"{locked.url}&password_file={quote(str(file))}"
        check_refused(url, "check its path")
        file.write_text(f"{PASSWORD}\n")
        assert use(url) == "queued"
        assert use(url.replace("://", "://default@")) == "queued"
        user = PasswordFile(str(file), None)
        assert user.get_credentials() == (PASSWORD,)
        file.write_text(SECRET)
        assert user.get_credentials() == (SECRET,)  # each new connection reads the file again
        check_refused(url, "check the user and the password")


class TestUrl:
    @pytest.mark.parametrize(
        "url",
        [
            f"redis://:{SECRET}/{SECRET}@localhost",
            f"redis://:{SECRET}@localhost:{SECRET}/0",
            f"{SECRET}@localhost",
            f"rediss://:{SECRET}@localhost?ssl_ca_cert={SECRET}",
            f"redis://:{SECRET}@localhost?socket_timeout={SECRET}",
            f"redis+sentinel://:{SECRET}@host:26379",
            f"redis+sentinel://:{SECRET}@host:x/service",
            f"redis+sentinel://:{SECRET}@/service/0",
            f"redis+cluster://:{SECRET}@host:7000/1",
            f"redis+cluster://:{SECRET}@host:7000?a",
            f"redis+other://:{SECRET}@host",
        ],
    )
    def test_an_unreadable_url_is_refused_and_not_shown(self, url: str) -> None:
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
            (f"rediss+sentinel://me:{SECRET}@a:1,b:2/name/0?sentinel_password=x", "rediss+sentinel://a:1,b:2/name/0"),
            (f"redis+cluster://:{SECRET}@x@[::1]:7000,b", "redis+cluster://[::1]:7000,b"),
        ],
    )
    def test_a_url_is_shown_without_secrets(self, url: str, safe: str) -> None:
        assert printable_url(url) == safe

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
    """Return True if the server was built with TLS. It then complains that it has no certificate."""
    command = [program, "--port", "0", "--tls-port", str(free_port())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    return "Failed to configure TLS" in done.stdout


@pytest.mark.skipif(not has_openssl(), reason="there is no openssl 3 to make certificates")
class TestTls:
    @pytest.fixture
    def files(self, tmp_path: Path) -> Path:
        """Make certificates of an authority, of a server and a client that it signs, and of a stranger."""
        certificate(tmp_path, "ca")
        certificate(tmp_path, "server", "ca")
        certificate(tmp_path, "client", "ca")
        certificate(tmp_path, "stranger")
        return tmp_path

    @pytest.fixture
    def server(self, files: Path) -> Iterator[RedisServer]:
        """Return a Redis that only speaks TLS, and only with clients that have a certificate of its authority."""
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

    def url(self, server: RedisServer, files: Path, name: str) -> str:
        options = f"ssl_ca_certs={files}/ca.pem&ssl_certfile={files}/{name}.pem&ssl_keyfile={files}/{name}.key"
        return f"rediss://127.0.0.1:{server.port}/0?{options}&{PATIENCE}"

    def test_certificates_on_both_sides_alone_let_a_client_in(self, server: RedisServer, files: Path) -> None:
        alone = f"rediss://127.0.0.1:{server.port}/0?ssl_ca_certs={files}/ca.pem"
        for url in (alone, self.url(server, files, "stranger")):
            check_refused(url, "Redis does not answer")
        for url in (server.url.replace("ca.pem", "stranger.pem"), server.url.replace("127.0.0.1", "localhost")):
            check_refused(url, "certificate verify failed")
        assert use(server.url) == "queued"
        done = run("status", redis_url=server.url)
        assert "1 unanswered jobs" in done.stdout

    def test_sentinels_are_asked_with_the_same_certificates(self, server: RedisServer, files: Path) -> None:
        port = free_port()
        lines = [
            *("port 0", f"tls-port {port}", "tls-replication yes", "tls-auth-clients yes"),
            *(f"tls-cert-file {files}/server.pem", f"tls-key-file {files}/server.key"),
            *(f"tls-ca-cert-file {files}/ca.pem", f"sentinel monitor main 127.0.0.1 {server.port} 1"),
        ]
        (files / "sentinel.conf").write_text("\n".join(lines))
        command = [server.program, str(files / "sentinel.conf"), "--sentinel"]
        with subprocess.Popen(command, cwd=files, stdout=subprocess.DEVNULL) as sentinel:
            try:
                options = server.url.partition("?")[2]
                url = f"rediss+sentinel://127.0.0.1:{port}/main/0?{options}"
                with Client(url) as client:
                    wait_until(lambda: answers(client))
                assert use(url) == "queued"
                check_refused(url.replace("client.", "stranger."), "Redis does not answer")
            finally:
                sentinel.terminate()
