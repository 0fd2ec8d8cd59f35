"""Documents are added to an index and deleted from it, at an API with two workers in processes."""

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from blocking import ChangeLog
from conftest import PATIENCE_S, RedisServer, wait_until
from index_versions import publish_version
from page import read
from process import Process, run
from service import Service, service

from shoal import Client
from shoal.contract.keys import Keys

#: The Redis keys of the service.
KEYS = Keys("live", "documents")


class Running:
    """The service with the index `news`, and the settings for commands."""

    def __init__(self, service: Service, settings: dict[str, Any], client: Client):
        self.settings = settings
        self.client = client
        self.port = service.port
        self._log = ChangeLog(client.broker, client.keys)

    def best(self, query: str) -> dict[str, Any]:
        """Return the best hit of a search."""
        (hit,) = self.client.search(query, k=1, index="news", prompt_name="document")
        return dict(hit)

    def wait(self, query: str, text: str | None) -> None:
        """Wait for all changes at both workers. Check that the best hit has the text, or for None another text."""
        position = self._log.positions()["news"]
        wait_until(lambda: self.applied() == {position})
        found = {self.best(query)["text"] for _ in range(8)}
        assert found == {text} if text else query not in found

    def applied(self) -> set[Any]:
        """Return the positions up to which the two workers have applied changes."""
        ready = self.client.pool.ready().values()
        return {about["indexes"]["news"]["changes_through"] for about in ready} if len(ready) == 2 else set()


@pytest.fixture(scope="module")
def started(
    redis_server: RedisServer,
    tiny_source: Path,
    tiny_model: Path,
    home: Path,
    index_folder: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Service]:
    """An API and two workers, which serve the index `news`."""
    folder = tmp_path_factory.mktemp("live")
    settings: dict[str, Any] = {"redis_url": redis_server.url, "key_prefix": KEYS.prefix, "pool": KEYS.pool}
    settings |= {"model": tiny_source, "home": home, "precision": "f32", "threads": 1, "index_home": folder / "indexes"}
    publish_version(folder / "indexes" / "news", index_folder, "v1")
    with service(folder, **settings) as started, Process(folder / "second.log", "worker", **settings) as second:
        yield started
        assert second.terminate() == 0


@pytest.fixture
def place(started: Service, redis_url: str) -> Iterator[Running]:
    """The service, once both workers are ready."""
    settings = {"redis_url": redis_url, "key_prefix": KEYS.prefix, "pool": KEYS.pool}
    with Client(redis_url, key_prefix=KEYS.prefix, pool=KEYS.pool, timeout_s=PATIENCE_S) as client:
        wait_until(lambda: len(client.pool.ready()) == 2)
        yield Running(started, settings, client)


def test_the_requests_of_the_page_get_the_answers_of_the_page(place: Running) -> None:
    page = read("docs/http.md")
    add, delete = re.findall(r"^curl .*localhost:8080/v1/indexes/news/documents.*$", page, re.MULTILINE)
    (answer,) = re.findall(r'^\{"index":"news".*\}$', page, re.MULTILINE)
    for command, found in ((add, "Storm closes ports in Brittany"), (delete, None)):
        words = shlex.split(command.replace("localhost:8080", f"127.0.0.1:{place.port}"))
        assert words[0] == "curl"
        done = subprocess.run([*words, "-s"], capture_output=True, text=True, check=True, timeout=PATIENCE_S)
        said = json.loads(done.stdout)
        assert said | {"position": ""} == json.loads(answer) | {"position": ""}
        place.wait("Storm closes ports in Brittany", found)


def test_the_program_of_the_page_on_long_jobs_runs(place: Running) -> None:
    programs = re.findall(r"```python\n(.*?)```", read("docs/long-jobs.md"), re.DOTALL)
    (program,) = [program for program in programs if "add(" in program]
    url = f"{place.settings['redis_url']!r}, key_prefix={KEYS.prefix!r}, pool={KEYS.pool!r}"
    exec(program.replace('"redis://127.0.0.1:6390/0"', url), {})
    place.wait("Edition 21: calm returns to Brittany", None)


def command(place: Running, *words: str) -> str:
    """Run `shoal` and return its output."""
    done = run(*words, **place.settings)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.wide
def test_commands_add_and_remove_documents(place: Running, tmp_path: Path) -> None:
    (path := tmp_path / "late.jsonl").write_text('{"id": "late", "headline": "falls rises falls", "topic": "sea"}\n')
    said = command(place, "index", "add", "news", str(path), "--text-column", "headline")
    assert said == "documents added to news: 1\n"
    place.wait("falls rises falls", "falls rises falls")
    assert place.best("falls rises falls")["topic"] == "sea"
    said = command(place, "index", "remove", "news", "late")
    assert said == "ids removed from news, with their documents if there are any: 1\n"
    place.wait("falls rises falls", None)
    path.write_text('{"headline": "no id"}\n')
    refused = run("index", "add", "news", str(path), "--text-column", "headline", **place.settings)
    assert 'no column is called "id"' in refused.stderr
