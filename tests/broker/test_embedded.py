"""The Redis that `shoal serve` starts: the choice of its program and port, its options, and why it ended."""

import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import ROOT, TESTS, free_port

from shoal.broker import embedded
from shoal.errors import PortInUse
from shoal.settings import PORT_FILE, Settings

#: Prints the server's command, or the error. It runs without site-packages, and so without the wheel.
CHOOSE = """
import sys
from shoal.broker import embedded
from shoal.errors import ShoalError
from shoal.settings import Settings
try:
    print(embedded.command(Settings(home=sys.argv[1]))[0])
except ShoalError as error:
    print(error.message)
"""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Return settings with a temporary home folder and a free port for the server."""
    return Settings(home=str(tmp_path / "home"), redis_port=free_port())


def program(folder: Path, name: str, version: str) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\necho 'Redis server v={version} sha=0'\n")
    path.chmod(0o755)
    return path


def choose(home: Path, *folders: Path) -> str:
    """Return the chosen server, or the error, without the wheel and with these folders on the PATH."""
    environment = os.environ | {"PATH": os.pathsep.join(map(str, folders)), "PYTHONPATH": str(ROOT / "shared")}
    command = [sys.executable, "-S", "-c", CHOOSE, str(home)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()


class TestChoice:
    def test_without_the_wheel_a_server_on_the_path_is_used(self, tmp_path: Path) -> None:
        message = choose(tmp_path / "home", tmp_path)
        assert all(remedy in message for remedy in ("[embedded]", "valkey-server", "--redis-url"))
        redis = program(tmp_path, "redis-server", "7.0.15")
        assert choose(tmp_path / "home", tmp_path) == str(redis)
        valkey = program(tmp_path, "valkey-server", "9.1.2")
        assert choose(tmp_path / "home", tmp_path) == str(valkey)

    def test_a_server_too_old_for_the_data_is_not_started(self, tmp_path: Path) -> None:
        program(tmp_path, "redis-server", "6.2.14")
        folder = tmp_path / "home" / "redis"
        (folder / "appendonlydir").mkdir(parents=True)
        message = choose(tmp_path / "home", tmp_path)
        assert f"cannot read the data in {folder}" in message
        assert "--home" in message

    def test_data_without_its_manifest_is_not_overwritten(self, tmp_path: Path) -> None:
        folder = tmp_path / "home" / "redis" / "appendonlydir"
        folder.mkdir(parents=True)
        program(tmp_path, "redis-server", "7.0.15")
        for size, is_refused in ((100, False), (1_000, True)):
            (folder / "appendonly.aof.1.incr.aof").write_bytes(bytes(size))
            message = choose(tmp_path / "home", tmp_path)
            assert ("appendonly.aof.manifest is missing" in message) == is_refused


class TestPort:
    def test_the_last_port_is_used_again_and_a_port_of_another_program_is_not_used(self, settings: Settings) -> None:
        settings.home_folder.mkdir()
        embedded.save_port(settings)
        anew = replace(settings, redis_port=0)
        assert embedded.choose_port(anew) == settings.redis_port
        with socket.create_server((embedded.HOST, settings.redis_port)):
            assert embedded.choose_port(anew) not in (0, settings.redis_port)
            with pytest.raises(PortInUse, match=f"port {settings.redis_port}, .* choose another --redis-port"):
                embedded.choose_port(settings)
        assert [path.name for path in settings.home_folder.iterdir()] == [PORT_FILE]


def test_it_writes_to_disk_and_listens_on_loopback_only(tmp_path: Path) -> None:
    command = embedded.command(Settings(home=str(tmp_path), redis_port=7000))
    options = dict(zip(command[1::2], command[2::2], strict=True))
    assert options["--bind"] == "127.0.0.1"
    assert options["--port"] == "7000"
    kept = [options[f"--{name}"] for name in ("appendonly", "appendfsync", "maxmemory-policy")]
    assert kept == ["yes", "everysec", "noeviction"]
    assert options["--maxmemory"] == "1088mb"
    compose = (TESTS.parent / "docker-compose.yml").read_text()
    assert f"--maxmemory, {options['--maxmemory']}," in compose
    assert Path(options["--dir"]) == tmp_path / "redis"
    assert "server v=" in subprocess.run([command[0], "--version"], capture_output=True, text=True).stdout


def test_the_reason_why_it_ended_is_quoted_with_the_remedies(settings: Settings) -> None:
    command = embedded.command(settings)
    folder = Path(settings.home) / "redis" / "appendonlydir"
    folder.mkdir()
    (folder / "appendonly.aof.manifest").write_text("file appendonly.aof.1.base.rdb seq 1 type b\n")
    (folder / "appendonly.aof.1.base.rdb").write_bytes(b"no data")
    assert subprocess.run(command).returncode == 1
    said = embedded.why_it_ended(settings)
    words = (
        "Bad file format",
        str(embedded.log_file(settings)),
        "choose another --home",
        "--redis-url",
        "On a full disk",
    )
    assert [word for word in words if word not in said] == []
