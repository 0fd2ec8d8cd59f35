"""API keys: what their file may contain, how it is changed, and that the API notices a change."""

import fcntl
import hashlib
import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import wait_until
from process import run

from shoal.errors import BadSetting
from shoal_api.access import api_keys
from shoal_api.access.api_keys import PREFIX, ApiKey, Keyring

DIGEST = "ab" * 32


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file of keys, which does not exist yet."""
    return tmp_path / "keys"


def test_a_key_is_256_random_bits_and_only_its_digest_is_kept(path: Path) -> None:
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


def test_comments_stay_when_keys_come_and_go(path: Path) -> None:
    path.write_text("# for the shop\n\n")
    assert Keyring(path).find("") is None
    secret = api_keys.add(path, "shop", "user", "")
    api_keys.add(path, "ops", "admin", "")
    api_keys.drop(path, "ops")
    assert path.read_text() == f"# for the shop\n\nshop user {hashlib.sha256(secret.encode()).hexdigest()}\n"


def test_keys_that_are_made_at_the_same_time_are_all_kept(path: Path) -> None:
    api_keys.add(path, "web", "user", "")
    with ThreadPoolExecutor() as threads, path.open("a") as other:  # another process changes the file
        fcntl.flock(other, fcntl.LOCK_EX)
        adding = threads.submit(api_keys.add, path, "ops", "admin", "")
        with pytest.raises(TimeoutError):
            adding.result(0.1)
        other.write(f"shop user {DIGEST}\n")
    assert [key.name for key in api_keys.read(path)] == ["web", "shop", "ops"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("web user", "takes NAME ROLE DIGEST"),
        ("web user shoal_abc", "takes NAME ROLE DIGEST"),
        (f"web root {DIGEST}", "one of user, admin"),
        (f"a:b user {DIGEST}", "takes a letter"),
        (f"web user {DIGEST} 0/second", "a number, a slash"),
        (f"one user {DIGEST}\none user {DIGEST}", "two keys that are called one"),
    ],
)
def test_a_wrong_line_is_named_and_not_repeated(path: Path, line: str, words: str) -> None:
    path.write_text(f"# keys\n{line}\n")
    with pytest.raises(BadSetting, match=words) as raised:
        Keyring(path)
    assert "line 2" in raised.value.message or "two keys" in raised.value.message
    assert "shoal_abc" not in raised.value.message
    assert DIGEST not in raised.value.message


@pytest.mark.parametrize("replaces", [False, True])
def test_a_change_that_keeps_the_size_is_noticed(path: Path, replaces: bool) -> None:
    first = api_keys.add(path, "web", "user", "")
    keys, before = Keyring(path), path.stat()
    changed = path.with_name("other") if replaces else path
    changed.write_text(f"web user {hashlib.sha256(b'another').hexdigest()}\n")
    os.utime(changed, ns=(before.st_atime_ns, before.st_mtime_ns + (not replaces)))
    changed.replace(path)  # another file may be as old as the one before
    assert path.stat().st_size == before.st_size
    wait_until(lambda: keys.find("another"))
    assert keys.find(first) is None


def test_a_file_that_breaks_or_is_gone_leaves_the_keys(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    secret = api_keys.add(path, "first", "user", "")
    keys = Keyring(path)
    for change in (lambda: path.write_text("a mistake\n"), path.unlink):
        caplog.clear()
        change()
        wait_until(lambda: keys.find(secret) and "the keys stay as they were" in caplog.text)
        assert "mistake" not in caplog.text


def test_keys_are_made_listed_and_dropped_by_command(path: Path) -> None:
    made = run("key", "new", "web", "--rate", "10/minute", api_keys_file=path)
    assert re.fullmatch(rf"{PREFIX}[\w-]{{43}}\n", made.stdout), made.stderr
    assert str(path) in made.stderr
    assert made.stdout.strip() not in made.stderr
    assert run("key", "new", "ops", "--admin", "--api-keys-file", path).returncode == 0
    assert run("key", "list", api_keys_file=path).stdout == "web user 10/minute\nops admin\n"
    assert run("key", "drop", "web", api_keys_file=path).returncode == 0
    assert run("key", "list", api_keys_file=path).stdout == "ops admin\n"
    found = Keyring(path).find(made.stdout.strip())
    assert found is None


def test_a_command_that_cannot_be_done_says_why(path: Path) -> None:
    path.write_text(f"ops admin {DIGEST}\n")
    for arguments, words in (
        (("new", "ops"), "has a key that is called ops"),
        (("new", "web", "--rate", "fast"), "a number, a slash"),
        (("drop", "web"), "has no key that is called web"),
    ):
        done = run("key", *arguments, api_keys_file=path)
        assert (done.returncode, done.stdout, words in done.stderr) == (1, "", True)
        assert done.stderr.endswith("[bad_setting]\n")
        assert path.read_text() == f"ops admin {DIGEST}\n"
    path.unlink()
    assert run("key", "drop", "ops", api_keys_file=path).stderr.endswith("see `shoal key new` [bad_setting]\n")
    assert "SHOAL_API_KEYS_FILE" in run("key", "list").stderr
