"""Settings: they come from the environment and go to child processes, and values that cannot work are refused."""

from dataclasses import replace
from pathlib import Path

import pytest

from shoal.contract.jobs import MAX_DEADLINE_S
from shoal.errors import BadSetting, Unavailable
from shoal.settings import EMBEDDED_PORT, PORT_FILE, Settings, variable


def test_the_redis_is_the_named_one_or_the_one_of_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    assert Settings().redis_address == f"redis://127.0.0.1:{EMBEDDED_PORT}/0"
    settings = Settings(home=str(tmp_path))
    with pytest.raises(Unavailable, match=f"no service was started from the home folder {tmp_path}: start one"):
        assert settings.redis_address
    (tmp_path / PORT_FILE).write_text("7000\n")
    assert settings.redis_address == "redis://127.0.0.1:7000/0"
    assert replace(settings, redis_port=7001).redis_address == "redis://127.0.0.1:7001/0"
    assert replace(settings, redis_url="redis://host/0").redis_address == "redis://host/0"
    (tmp_path / PORT_FILE).write_text("soon")
    with pytest.raises(BadSetting, match=r"redis\.port has no port of a Redis: delete it"):
        assert settings.redis_address


def test_the_environment_is_read_by_type_and_made_for_a_child_process() -> None:
    found = Settings.from_environment(
        {"SHOAL_PORT": "9000", "SHOAL_REQUEST_TIMEOUT_S": "2.5", "SHOAL_POOL": "blue", "SHOAL_HOST": "", "PORT": "1"}
    )
    assert (found.port, found.request_timeout_s, found.pool, found.host) == (9000, 2.5, "blue", "127.0.0.1")
    settings = Settings(port=9000, indexes="a=/x,b=/y", stall_timeout_s=1.5, engine="torch")
    assert Settings.from_environment(settings.to_environment()) == settings
    assert Settings.from_environment(Settings(protocols="").to_environment()).protocol_names() == []


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("port", "eighty", 'SHOAL_PORT is "eighty": it takes a whole number'),
        ("request_timeout_s", "soon", 'SHOAL_REQUEST_TIMEOUT_S is "soon": it takes a number'),
        ("request_timeout_s", "nan", "request_timeout_s is nan"),
        ("result_ttl_s", "1000000001", "result_ttl_s is 1000000001"),
        ("receive_timeout_s", "86401", "takes a number from 0.1 to 86,400"),
        ("request_timeout_s", str(MAX_DEADLINE_S + 1), f"takes a number from 0.001 to {MAX_DEADLINE_S:,}"),
        ("port", "65536", "port is 65536: it takes a number from 1 to 65,535"),
        ("pool", "a b", 'pool is "a b": it takes 1 to 128 letters'),
        ("key_prefix", "a{b}", 'key_prefix is "a{b}": it takes 1 to 128 letters'),
        ("max_backlog", "-5", "max_backlog is -5: it takes a number from 1 to 1,000,000,000"),
        ("engine", "onnx", 'engine is "onnx": it takes one of auto, avx512, avx2, neon, openvino, torch'),
        ("indexes", "a=", 'indexes has "a="'),
        ("indexes", "a=x,a=y", "with distinct names"),
        ("roots", "/a,s3://bucket/", 'roots has "s3://bucket/": it takes folders'),
        ("roots", "~no-such-user/x", "of an unknown user: write the path, or set HOME"),
        ("cors_origins", "*,example.com", 'cors_origins has "example.com": write https://host'),
        ("cors_origins", "https://a.b/c", 'cors_origins has "https://a.b/c"'),
    ],
)
def test_a_value_that_cannot_work_is_refused(name: str, text: str, message: str) -> None:
    with pytest.raises(BadSetting, match=message):
        Settings.from_environment({variable(name): text})


def test_folders_are_absolute_and_below_the_home_folder_unless_they_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    settings = Settings(roots="/a, /b,", index_home="/y")
    assert (settings.root_folders(), settings.files_folder) == ([Path("/a"), Path("/b")], Path("/a"))
    assert settings.index_home_folder == Path("/y")
    settings = Settings(home="~/x")
    assert settings.home_folder == Path("/home/somebody/x")
    assert settings.index_home_folder == settings.home_folder / "indexes"
    assert settings.root_folders() == [settings.home_folder / "files"]
    for indexes, expected in (
        ("here", {"default": Path.cwd() / "here"}),
        (" news=/x , /y ,", {"news": Path("/x"), "default": Path("/y")}),
        ("a=/x=y", {"a": Path("/x=y")}),
    ):
        assert Settings(indexes=indexes).index_folders() == expected
