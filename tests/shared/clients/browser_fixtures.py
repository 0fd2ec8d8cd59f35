"""Fixtures for the tests of the page: a real Chromium, and an application with a real worker behind it."""

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from api_stub import MakeApp
from blocking import Pool
from browser import HOSTILE, HOSTILE_FIELD, OpenPage
from conftest import PATIENCE_S, WORDS, running, wait_until
from http_servers import Listen
from queues import Queue

from shoal.records.source import Source
from shoal_api.access import api_keys
from shoal_workers.encoding.bucketing import Bucketing
from shoal_workers.encoding.encoder import Encoder
from shoal_workers.encoding.reranker import Reranker
from shoal_workers.index.build.builder import build
from shoal_workers.index.build.document_encoder import LocalEncoder
from shoal_workers.index.index import Index
from shoal_workers.loop.worker import Worker
from shoal_workers.service.service import about

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

pytest_plugins = ["api_fixtures", "http_fixtures"]


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    """Return Debian's Chromium, headless. It ends with the module: Playwright's event loop uses the main thread."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if not chromium:
        pytest.skip("needs the program chromium")
    sync_api.expect.set_options(timeout=PATIENCE_S * 1000)
    with sync_api.sync_playwright() as playwright:
        args = ["--no-sandbox", "--enable-unsafe-swiftshader"]  # WebGL without a graphics card
        browser = playwright.chromium.launch(executable_path=chromium, args=args)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: "Browser", request: pytest.FixtureRequest) -> Iterator[OpenPage]:
    """Return a function that opens a page in its own window. Fail the test if a script of a page raises an error."""
    for name in request.fixturenames:
        if name != "open_page":  # so that pages end before the servers that answer them
            request.getfixturevalue(name)
    contexts: list[BrowserContext] = []
    errors: list[str] = []

    def open_page(url: str, **options: Any) -> "Page":
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE_S * 1000)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda said: errors.append(said.text) if "Content Security Policy" in said.text else None)
        page.goto(url)
        return page

    yield open_page
    for context in contexts:
        context.close()
    wait_until(lambda: not any("process_request_thread" in thread.name for thread in threading.enumerate()))
    assert not errors


def built(documents: list[dict[str, Any]], folder: Path, encoder: Encoder) -> Index:
    """Return an index of documents."""
    (folder / "documents.jsonl").write_text("\n".join(map(json.dumps, documents)))
    build(Source(folder / "documents.jsonl"), folder / "built", LocalEncoder(encoder))
    return Index.open(folder / "built")


@pytest.fixture(scope="session")
def fields_index(tmp_path_factory: pytest.TempPathFactory, encoder: Encoder) -> Index:
    """An index of pairs of words, each with a topic and a year, and a document that tries to run a script."""
    folder = tmp_path_factory.mktemp("documents")
    pairs = [(first, second) for first in WORDS for second in WORDS]
    documents: list[dict[str, Any]] = [
        {"id": str(n), "text": f"{first} {second}", "topic": first, "year": 2000 + n}
        for n, (first, second) in enumerate(pairs)
    ]
    documents[0]["note"] = "long " * 200  # too long for a keyword, so filters cannot use the field
    hostile = {"id": HOSTILE, "text": f"{HOSTILE} hostile storm", "topic": HOSTILE, "link": "javascript:alert(1)"}
    documents.append(hostile | {"note": "short", HOSTILE_FIELD: "odd"})
    return built(documents, folder, encoder)


@pytest.fixture
def serve_worker(queue: Queue, reranker: Reranker) -> Iterator[Callable[..., Worker]]:
    """Return a function that starts a worker in a thread, with an encoder and the indexes with the given names."""
    with ExitStack() as stack:

        def serve(encoder: Encoder, **indexes: Index) -> Worker:
            worker = Worker(queue.consumer(), encoder, indexes, Bucketing(4_096), reranker=reranker)
            Pool(worker.consumer.broker, worker.consumer.keys, alive_s=3_600).announce(worker.id, about(worker))
            stack.enter_context(running(worker))
            return worker

        yield serve


@pytest.fixture
def serve_indexes(serve_worker: Callable[..., Worker], encoder: Encoder) -> Callable[..., Worker]:
    """Return a function that starts a worker with the tiny model and the indexes with the given names."""
    return partial(serve_worker, encoder)


@pytest.fixture
def page_worker(serve_indexes: Callable[..., Worker], fields_index: Index) -> Worker:
    """Return a worker that serves the index `page_index`."""
    return serve_indexes(default=fields_index)


@pytest.fixture
def serve_many(
    listen: Listen, make_app: MakeApp, serve_indexes: Callable[..., Worker], encoder: Encoder, tmp_path: Path
) -> str:
    """Return the URL of an application's page. Its index has 260 documents, each with one of five topics."""
    documents = [{"id": str(n), "text": f"{WORDS[n % 8]} {n}", "topic": f"topic {n % 5}"} for n in range(260)]
    serve_indexes(default=built(documents, tmp_path, encoder))
    return f"{listen(make_app())}/"


@pytest.fixture
def page_url(listen: Listen, make_app: MakeApp, page_worker: Worker) -> str:
    """Return the URL of an application's page. `page_worker` answers its jobs."""
    return f"{listen(make_app())}/"


@pytest.fixture
def keyed(listen: Listen, make_app: MakeApp, page_worker: Worker, tmp_path: Path) -> tuple[str, str]:
    """Return the URL of the page of a service that needs keys, and a user's key."""
    key = api_keys.add(tmp_path / "keys", "reader", "user", "")
    return f"{listen(make_app(api_keys_file=str(tmp_path / 'keys')))}/", key
