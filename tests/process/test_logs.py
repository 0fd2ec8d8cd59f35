"""Log lines: in words or JSON, one for each job, with its id, client and trace, and without texts or secrets."""

import json
import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgpack
import pytest
from conftest import running, wait_until
from process import Process
from queues import Queue, work_off
from service import Service, service

from shoal import Client
from shoal.contract.jobs import LANES
from shoal.errors import ShoalError
from shoal.operations import Embed, Search
from shoal.process import logs
from shoal.settings import Settings
from shoal_api.access import api_keys
from shoal_workers.encoding.bucketing import Bucketing
from shoal_workers.encoding.encoder import Encoder, EncodingPass, TokenizedText
from shoal_workers.encoding.tokenizer import Tokens
from shoal_workers.index.index import Index
from shoal_workers.loop.admission import MAX_DEATHS, Limits
from shoal_workers.loop.worker import Worker

pytest_plugins = ["api_fixtures"]

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
CALLER = f"00-{TRACE}-00f067aa0ba902b7-01"

#: A word in every text, and a secret of the service.
MARKER, SECRET = "marshmallow", "shibboleth"

#: Depth to which an example follows its schema. A condition of a filter may contain conditions.
MAX_DEPTH = 8


def record(message: str = "job done", error: BaseException | None = None, **extra: Any) -> logging.LogRecord:
    info = (type(error), error, error.__traceback__) if error else None
    return logging.getLogger("shoal.test").makeRecord("shoal.test", 10, "a.py", 1, message, (), info, extra=extra)


FORMATTERS = (logs.TextFormatter(), logs.JsonFormatter())


def test_a_line_has_the_facts_as_words_or_as_fields() -> None:
    facts = logs.about("a-1", "web", CALLER, op="embed", queue_s=0.1234567891, error=None)
    words, line = (formatter.format(record(**facts)) for formatter in FORMATTERS)
    shown = rf"job_id=a-1 client=web trace_id={TRACE} op=embed queue_s=0\.123457"
    assert re.fullmatch(rf"[-\d]+ [\d:,]+ DEBUG shoal\.test: job done {shown}", words)
    assert FORMATTERS[0].format(record(**logs.about("a-1", 'b"c'))).endswith(r'client="b\"c"')
    values = json.loads(line)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", values.pop("time"))
    about = {"job_id": "a-1", "client": "web", "trace_id": TRACE, "op": "embed", "queue_s": 0.123457}
    assert values == {"level": "debug", "logger": "shoal.test", "message": "job done", **about}


@pytest.mark.parametrize("name", ["two\nlines", "\x1b[31m", 'a" b', "a\u2028b"])
def test_no_name_or_message_begins_another_line_or_controls_the_terminal(name: str) -> None:
    for formatter in FORMATTERS:
        line = formatter.format(record(f"claimed {name}", **logs.about("a", name)))
        assert len(line.splitlines()) == 1
        assert "\x1b" not in line
    assert json.loads(line)["client"] == name


def test_a_traceback_is_indented_and_on_the_same_line_in_json() -> None:
    try:
        raise ValueError(f"two\nlines of {MARKER}")
    except ValueError as caught:
        error = caught
    (first, *rest), line = (formatter.format(record("it failed", error)).splitlines() for formatter in FORMATTERS)
    assert first.endswith("it failed")
    assert len(rest) > 3
    assert all(part.startswith("    ") for part in rest)
    assert "in test_a_traceback" in json.loads(*line)["traceback"]
    assert re.fullmatch(r"ValueError at process/test_logs\.py:\d+ test_a_traceback\w+", logs.places(error))
    assert logs.places(ValueError(MARKER)) == "ValueError"


def about(caplog: pytest.LogCaptureFixture, logger: str) -> list[dict[str, Any]]:
    """Return the message and the facts of each line of a logger."""
    return [
        {"message": line.getMessage(), **getattr(line, "about", {})} for line in caplog.records if line.name == logger
    ]


def test_worker_and_client_log_a_line_a_job(worker: Worker, client: Client, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with running(worker):
        client.call(Embed([MARKER], id="good", traceparent=CALLER), client="web")
        with pytest.raises(ShoalError):
            client.call(Search([MARKER], id="bad", index="none", traceparent=CALLER), client="web")
    for logger, facts in (("shoal.client", {}), ("shoal_workers.process.measurements", {"computed": 1})):
        good, bad = about(caplog, logger)
        names = {"client": "web", "trace_id": TRACE, "texts": 1}
        assert good.items() >= {"message": "job done", "job_id": "good", "op": "embed", **names, **facts}.items()
        assert {"queue_s", "tokenize_s", "encode_s", "search_s"} <= good.keys()
        expected = {"message": "job failed", "job_id": "bad", "op": "search", "error": "unknown_index"}
        assert bad.items() >= (expected | names).items()
    caplog.clear()
    with pytest.raises(ShoalError):
        client.call(Embed([MARKER], id="a"), timeout_s=0.05)
    (line,) = about(caplog, "shoal.client")
    assert line.items() >= {"message": "job given up", "job_id": "a", "error": "timeout"}.items()
    with pytest.raises(ShoalError):
        client.call(Embed([f"{MARKER}\ud800"]))
    assert MARKER not in caplog.text


class LeakyEncoder(Encoder):
    fails_on = ""

    def tokenize(self, texts: Sequence[str], truncation_side: str = "right", is_query: bool = False) -> list[Tokens]:
        if self.fails_on == "tokenize":
            raise RuntimeError(f"cannot tokenize {texts}")
        return super().tokenize(texts, truncation_side, is_query)

    def start(self, texts: Sequence[TokenizedText]) -> list[EncodingPass]:
        if self.fails_on == "encode":
            raise ValueError(f"cannot encode {MARKER}") from KeyError(MARKER)
        return super().start(texts)


class LeakyIndex:
    fault = group_field = ""
    default_mode = "dense"

    def search(self, *_: object) -> None:
        raise RuntimeError(f"cannot search for {MARKER}")


def job(**fields: object) -> bytes:
    return bytes(msgpack.packb({"v": 1, "id": "a", "op": "embed", "texts": [f"{MARKER} pie"]} | fields))


JOBS = {
    "not msgpack": MARKER.encode(),
    "no id": job(id=MARKER + " pie"),
    "an id that is no text": job(id=[MARKER]),
    "no text": job(texts=MARKER),
    "an operation that is a text": job(op=MARKER),
    "an option that is a text": job(pooling=MARKER),
    "a text that is not UTF-8": job().replace(b" pie", b"\xffpie"),
    "too many texts": job(texts=[MARKER] * 9),
    "too long a text": job(texts=[MARKER * 99]),
    "too long for the model": job(texts=[f"{MARKER} " * 45], truncate=False),
    "expired": job(deadline=1),
    "an unknown index": job(op="search", index=MARKER),
    "an unknown prompt": job(prompt_name=MARKER),
    "a broken index": job(op="search", index="broken"),
    "good": job(),
}


@pytest.mark.parametrize("fails_on", ["", "tokenize", "encode"])
def test_a_worker_logs_no_text(
    queue: Queue, encoder: Encoder, index: Index, caplog: pytest.LogCaptureFixture, fails_on: str
) -> None:
    caplog.set_level(logging.DEBUG)
    engine = LeakyEncoder(encoder.model, encoder.tokenizer, encoder.engine)
    indexes: dict[str, Any] = {"default": index, "broken": LeakyIndex()}
    limits = Limits(max_job_texts=3, max_text_chars=500)
    leaky, engine.fails_on = Worker(queue.consumer(), engine, indexes, Bucketing(4_096), limits), fails_on
    queue.redis.rpush(queue.keys.lane("interactive"), job(id="poison"))
    for n in range(MAX_DEATHS):
        assert queue.take(f"dead{n}", LANES, 1)
        queue.die()
    for data in JOBS.values():
        queue.redis.rpush(queue.keys.lane("interactive"), data)
    work_off(leaky, queue)
    assert "dead letter: poisoned" in caplog.text
    assert "failed" in caplog.text or fails_on != "encode"
    assert MARKER not in caplog.text


def example(schema: dict[str, Any], schemas: dict[str, Any], depth: int = 0) -> Any:
    """Return a value of an OpenAPI schema in which every string is the marker."""
    if depth > MAX_DEPTH:
        return None
    if name := schema.get("$ref"):
        return example(schemas[name.rpartition("/")[2]], schemas, depth + 1)
    if choices := schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf"):
        return example(choices[0], schemas, depth + 1)
    match schema.get("type"):
        case "object":
            return {name: example(part, schemas, depth + 1) for name, part in schema.get("properties", {}).items()}
        case "array":
            return [example(schema.get("items", {}), schemas, depth + 1)]
        case "boolean":
            return True
        case "integer" | "number":
            return 1
    return schema.get("enum", [MARKER])[0]


@pytest.mark.wide
def test_no_process_logs_a_text_or_a_secret_and_each_job_has_a_line(
    settings: Settings, tiny_source: Path, reranker_source: Path, home: Path, index_folder: Path, tmp_path: Path
) -> None:
    key = api_keys.add(tmp_path / "keys", "web", "admin", "")
    names = {"redis_url": settings.redis_url, "key_prefix": settings.key_prefix, "pool": settings.pool, "home": home}
    values: dict[str, Any] = names | {"model": tiny_source, "reranker": reranker_source, "precision": "f32"}
    values |= {"indexes": index_folder, "log_level": "debug", "log_format": "json"}
    values |= {"api_keys_file": tmp_path / "keys", "roots": tmp_path / "files"}
    with service(tmp_path, **values) as running, Process(tmp_path / "jobs.log", "jobs", **values) as runner:
        wait_until(running.is_ready)
        use(running, key)
        assert runner.terminate() == 0, runner.output
    for name, message in (("api", "job done"), ("worker", "job done"), ("jobs", "the long job is done")):
        text = (tmp_path / f"{name}.log").read_text()
        assert [word for word in (MARKER, SECRET, key) if word in text] == [], name
        found = [line for line in map(json.loads, text.splitlines()) if line["message"] == message]
        assert found[0]["job_id"]
        assert (found[0]["client"], found[0]["trace_id"]) == ("web", TRACE)


def use(running: Service, key: str) -> None:
    """Send jobs, and to each route valid and wrong requests, in which every text is the marker."""
    headers = {"Authorization": f"Bearer {key}", "Traceparent": CALLER}
    unknown = {"Authorization": f"Bearer {SECRET}", "X-API-Key": MARKER, "Idempotency-Key": MARKER}
    for path, body in (
        ("/embed", {"inputs": [MARKER]}),
        ("/search", {"queries": [MARKER], "explain": True, "mode": "lexical"}),
        ("/search", {"queries": [MARKER]}),
        ("/score", {"query": MARKER, "texts": [MARKER]}),
    ):
        assert running.ask("POST", path, body, headers).status in (200, 422)
        assert running.ask("POST", path, body, unknown).status == 401
    uploaded = running.ask("POST", "/v1/bulk?name=news.csv", f"text\n{MARKER}\n".encode(), headers)
    assert uploaded.status == 202
    place = f"/v1/jobs/{uploaded.body['id']}"
    wait_until(lambda: running.ask("GET", place, headers=headers).body["status"] == "done")
    description, statuses = running.ask("GET", "/openapi.json", headers=headers).body, set[int]()
    for path, method, route in (
        (path, method, route) for path, methods in description["paths"].items() for method, route in methods.items()
    ):
        content = route.get("requestBody", {}).get("content", {})
        schema: dict[str, Any] = next((kind["schema"] for kind in content.values() if "schema" in kind), {})
        address = re.sub(r"{\w+}", "no-such", path)  # a name may be in a log, so it is not the marker
        valid = example(schema, description["components"]["schemas"])
        for sent in (valid, {MARKER: MARKER}, MARKER.encode()):
            statuses.add(running.ask(method.upper(), address, sent, headers).status)
    assert statuses >= {200, 404, 422}
