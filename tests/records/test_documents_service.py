"""Documents are added to an index and deleted from it at an API with two workers, each a process."""

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
from javascript import NODE, needs_node
from page import read
from process import Process, run
from service import Service, service

from shoal import Client, HttpClient
from shoal.contract.keys import Keys

#: A program that knows docs/http.md alone: it prints the statuses and the hits of a search before and after a deletion.
JAVASCRIPT = """
const url = process.argv[1];
const ask = async (method, path, body) => {
  const answer = await fetch(url + path, { method, body: JSON.stringify(body) });
  return { status: answer.status, body: await answer.json() };
};
const query = { queries: "gale", k: 1, index: "news", prompt_name: "document" };
const find = async () => (await ask("POST", "/search", query)).body.results[0][0];
const wait = async (isTrue) => {
  for (;;) {
    const hit = await find();
    if (isTrue(hit)) return hit;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
};
const documents = [{ id: "js", text: "gale", topic: "weather", tags: ["sea", 7] }];
const added = await ask("POST", "/v1/indexes/news/documents", { documents });
const hit = await wait((hit) => hit.id === "js");
const deleted = await ask("DELETE", "/v1/indexes/news/documents", { ids: ["js"] });
await wait((hit) => hit.id !== "js");
const wrong = await ask("POST", "/v1/indexes/news/documents", { documents: [...documents, { id: 7, text: "a" }] });
console.log(JSON.stringify({ added, hit, deleted, wrong }));
"""


#: The keys of the service.
KEYS = Keys("live", "documents")


class Running:
    """The service with its index `news`, and settings for commands."""

    def __init__(self, service: Service, settings: dict[str, Any], client: Client):
        self.service = service
        self.settings = settings
        self.client = client
        self.url = f"http://127.0.0.1:{service.port}"
        self._log = ChangeLog(client.broker, client.keys)

    def command(self, *words: str) -> str:
        """Run `shoal` and return what it prints."""
        done = run(*words, **self.settings)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def best(self, query: str) -> dict[str, Any]:
        """Return the best hit of a search."""
        (hit,) = self.client.search(query, k=1, index="news", prompt_name="document")
        return dict(hit)

    def wait(self, query: str, text: str | None) -> None:
        """Return once all workers have all changes, and then check that the best hit has the text, or another one."""
        position = self._log.positions()["news"]
        wait_until(lambda: self.applied() == {position})
        found = {self.best(query)["text"] for _ in range(8)}
        assert found == {text} if text else query not in found

    def applied(self) -> set[Any]:
        """Return the positions of the changes that the workers have applied."""
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
    """Run an API and two workers, which serve the index `news`."""
    folder = tmp_path_factory.mktemp("live")
    settings: dict[str, Any] = {"redis_url": redis_server.url, "key_prefix": KEYS.prefix, "pool": KEYS.pool}
    settings |= {"model": tiny_source, "home": home, "precision": "f32", "threads": 1, "index_home": folder / "indexes"}
    publish_version(folder / "indexes" / "news", index_folder, "v1")
    with service(folder, **settings) as started, Process(folder / "second.log", "worker", **settings) as second:
        yield started
        assert second.terminate() == 0


@pytest.fixture
def place(started: Service, redis_url: str) -> Iterator[Running]:
    """Return the service, with both workers ready."""
    settings = {"redis_url": redis_url, "key_prefix": KEYS.prefix, "pool": KEYS.pool}
    with Client(redis_url, key_prefix=KEYS.prefix, pool=KEYS.pool, timeout_s=PATIENCE_S) as client:
        wait_until(lambda: len(client.pool.ready()) == 2)
        yield Running(started, settings, client)


def test_the_requests_of_the_page_are_answered_as_it_says(place: Running) -> None:
    page = read("docs/http.md")
    add, delete = re.findall(r"^curl .*localhost:8080/v1/indexes/news/documents.*$", page, re.MULTILINE)
    (answer,) = re.findall(r'^\{"index":"news".*\}$', page, re.MULTILINE)
    for command, found in ((add, "Storm closes ports in Brittany"), (delete, None)):
        words = shlex.split(command.replace("localhost:8080", place.url.removeprefix("http://")))
        assert words[0] == "curl"
        done = subprocess.run([*words, "-s"], capture_output=True, text=True, check=True, timeout=PATIENCE_S)
        said = json.loads(done.stdout)
        assert said | {"position": ""} == json.loads(answer) | {"position": ""}
        place.wait("Storm closes ports in Brittany", found)


def test_an_added_document_takes_the_place_of_the_one_with_its_id(place: Running) -> None:
    before = place.best("storm storm")["id"]
    path = "/v1/indexes/news/documents"
    assert place.service.ask("POST", path, {"documents": [{"id": before, "text": "rain europe rain"}]}).status == 200
    place.wait("rain europe rain", "rain europe rain")
    assert place.best("storm storm")["text"] != "storm storm"
    assert place.service.ask("POST", path, {"documents": [{"id": before, "text": "storm storm"}]}).status == 200
    place.wait("storm storm", "storm storm")
    assert place.best("rain europe rain")["text"] != "rain europe rain"


def test_the_program_of_the_page_on_long_jobs_runs(place: Running) -> None:
    programs = re.findall(r"```python\n(.*?)```", read("docs/long-jobs.md"), re.DOTALL)
    (program,) = [program for program in programs if "add(" in program]
    url = f"{place.settings['redis_url']!r}, key_prefix={KEYS.prefix!r}, pool={KEYS.pool!r}"
    exec(program.replace('"redis://127.0.0.1:6390/0"', url), {})
    place.wait("Edition 21: calm returns to Brittany", None)


def test_the_clients_do_the_same(place: Running) -> None:
    with HttpClient(place.url, timeout_s=PATIENCE_S) as http:
        for client in (http, place.client):
            news = client.index("news")
            assert news.add([{"id": "new", "text": "market rain"}, {"id": "other", "text": "rain market"}]) == 2
            place.wait("market rain", "market rain")
            assert news.delete(["new", "other"]) == 2


@pytest.mark.wide
def test_the_commands_do_the_same(place: Running, tmp_path: Path) -> None:
    (path := tmp_path / "late.jsonl").write_text('{"id": "late", "headline": "falls rises falls", "topic": "sea"}\n')
    said = place.command("index", "add", "news", str(path), "--text-column", "headline")
    assert said == "documents added to news: 1\n"
    place.wait("falls rises falls", "falls rises falls")
    assert place.best("falls rises falls")["topic"] == "sea"
    said = place.command("index", "remove", "news", "late")
    assert said == "ids removed from news, with their documents if there are any: 1\n"
    place.wait("falls rises falls", None)
    path.write_text('{"headline": "no id"}\n')
    refused = run("index", "add", "news", str(path), "--text-column", "headline", **place.settings)
    assert 'no column is called "id"' in refused.stderr


@pytest.mark.wide
@needs_node
def test_a_program_in_javascript_does_it_with_the_page_alone(place: Running) -> None:
    command = [NODE, "--input-type=module", "--eval", JAVASCRIPT, place.url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    said = json.loads(done.stdout or done.stderr)
    hit = {"id": "js", "score": said["hit"]["score"], "text": "gale", "topic": "weather", "tags": ["sea", 7]}
    assert (said["added"]["status"], said["added"]["body"]["num"], said["hit"]) == (200, 1, hit)
    assert (said["deleted"]["status"], said["deleted"]["body"]["num"]) == (200, 1)
    assert (said["wrong"]["status"], said["wrong"]["body"]["error"]["code"]) == (422, "bad_document")
