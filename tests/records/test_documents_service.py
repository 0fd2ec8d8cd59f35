"""Documents are added to an index and deleted from it, by the requests and programs of the pages and by commands."""

import json
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from conftest import PATIENCE_S, RedisServer, wait_until
from index_versions import publish_version
from page import read
from process import run
from service import service

from shoal import Client


class Running(NamedTuple):
    """A service with the index `news`: the port of its API, and its settings for clients and commands."""

    port: int
    settings: dict[str, Any]

    def wait(self, query: str, is_right: Callable[[str], bool]) -> None:
        """Wait until the text of the best hit is right."""
        with Client(**self.settings, timeout_s=PATIENCE_S) as client:
            ask = partial(client.search, query, k=1, index="news", prompt_name="document")
            wait_until(lambda: is_right(ask()[0]["text"]))


@pytest.fixture(scope="module")
def place(
    redis_server: RedisServer,
    tiny_source: Path,
    tiny_model: Path,
    home: Path,
    index_folder: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("live")
    settings: dict[str, Any] = {"redis_url": redis_server.url, "key_prefix": "live", "pool": "documents"}
    more = {"model": tiny_source, "home": home, "precision": "f32", "threads": 1, "index_home": folder / "indexes"}
    publish_version(folder / "indexes" / "news", index_folder, "v1")
    with service(folder, **settings, **more) as started:
        wait_until(started.is_ready)
        yield Running(started.port, settings)


def test_the_requests_of_the_page_get_the_answers_of_the_page(place: Running) -> None:
    page, text = read("docs/http.md"), "Storm closes ports in Brittany"
    add, delete = re.findall(r"^curl .*localhost:8080/v1/indexes/news/documents.*$", page, re.MULTILINE)
    (answer,) = re.findall(r'^\{"index":"news".*\}$', page, re.MULTILINE)
    for command, is_right in ((add, text.__eq__), (delete, text.__ne__)):
        words = shlex.split(command.replace("localhost:8080", f"127.0.0.1:{place.port}"))
        assert words[0] == "curl"
        done = subprocess.run([*words, "-s"], capture_output=True, text=True, check=True, timeout=PATIENCE_S)
        assert json.loads(done.stdout) | {"position": ""} == json.loads(answer) | {"position": ""}
        place.wait(text, is_right)


def test_the_program_of_the_page_on_long_jobs_runs(place: Running) -> None:
    programs = re.findall(r"```python\n(.*?)```", read("docs/long-jobs.md"), re.DOTALL)
    (program,) = [program for program in programs if "add(" in program]
    url = "{redis_url!r}, key_prefix={key_prefix!r}, pool={pool!r}".format(**place.settings)
    exec(program.replace('"redis://127.0.0.1:6390/0"', url), {})
    with Client(**place.settings) as client:
        client.index("news").add([{"id": "after", "text": "calm"}])
    place.wait("calm", "calm".__eq__)  # earlier changes are applied too
    place.wait("Edition 21: calm returns to Brittany", "Edition 21: calm returns to Brittany".__ne__)


@pytest.mark.wide
def test_commands_add_and_remove_documents(place: Running, tmp_path: Path) -> None:
    (path := tmp_path / "late.jsonl").write_text('{"id": "late", "headline": "falls rises falls", "topic": "sea"}\n')
    add = ("index", "add", "news", path, "--text-column", "headline")
    assert run(*add, **place.settings).stdout == "documents added to news: 1\n"
    place.wait("falls rises falls", "falls rises falls".__eq__)
    assert '"topic": "sea"' in run("search", "falls rises falls", "--index", "news", "--json", **place.settings).stdout
    said = run("index", "remove", "news", "late", **place.settings).stdout
    assert said == "ids removed from news, with their documents if there are any: 1\n"
    place.wait("falls rises falls", "falls rises falls".__ne__)
    path.write_text('{"headline": "no id"}\n')
    assert 'no column is called "id"' in run(*add, **place.settings).stderr
    path.write_text("".join(f'{{"id": "a{n}", "headline": "rain"}}\n' for n in range(10_001)) + "not read")
    assert "there are more than 10,000 documents" in run(*add, **place.settings).stderr
