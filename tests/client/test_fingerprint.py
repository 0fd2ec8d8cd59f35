"""All vectors and hits of an answer are from one model and one version of an index, though workers differ."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, cycle, repeat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from awaiting import answering
from client_adapters import MakeClient
from conftest import PATIENCE_S, running, wait_until
from http_servers import Canned, CannedServer
from hypothesis import given
from hypothesis import strategies as st
from queues import Queue

from shoal import Client, HttpClient
from shoal.client.splitting import SWITCH_PAUSE_S, jobs_to_repeat
from shoal.contract import wire
from shoal.contract.jobs import TEXTS_PER_JOB, Job
from shoal.contract.options import Options
from shoal.contract.replies import Reply
from shoal.errors import Internal, InvalidRequest, MalformedJob, ModelMismatch
from shoal.operations import Embed, Rerank, unpack
from shoal.operations.embed import TEXTS_PER_TOKENS_JOB
from shoal.queue.lane import LaneLimits
from shoal.settings import Settings
from shoal_workers.encoding.bucketing import Bucketing
from shoal_workers.encoding.encoder import Encoder
from shoal_workers.encoding.reranker import Reranker
from shoal_workers.index.index import Index
from shoal_workers.loop.worker import Worker
from shoal_workers.service.service import about, announced, open_cache

pytest_plugins = ["any_client_fixtures", "http_fixtures"]

#: Texts that are split into five jobs.
TEXTS = [f"storm {n}" for n in range(4 * TEXTS_PER_JOB + 1)]


@pytest.fixture(scope="module")
def other_encoder(tiny_model: Path) -> Encoder:
    """The tiny model in int8, whose vectors and fingerprint are different."""
    return Encoder.open(tiny_model, "openvino", "int8", 1)


@pytest.fixture
def workers(queue: Queue, encoder: Encoder, other_encoder: Encoder, index: Index, reranker: Reranker) -> list[Worker]:
    """A worker in f32 and a worker in int8, both announced."""
    made = [
        Worker(queue.consumer(name), each, {"default": index}, Bucketing(4_096), reranker=reranker)
        for name, each in (("a", encoder), ("b", other_encoder))
    ]
    for worker in made:
        queue.pool.announce(worker.id, about(worker))
    return made


@pytest.fixture
def caching(client: Client, queue: Queue, encoder: Encoder) -> Iterator[Worker]:
    """An announced worker in f32 with a cache."""
    cache = open_cache(Settings(key_prefix=queue.keys.prefix, pool=queue.keys.pool), encoder, queue.broker)
    worker = Worker(queue.consumer("a"), encoder, {}, Bucketing(4_096), cache=cache)
    with announced(worker, LaneLimits()):
        wait_until(client.pool.ready)
        yield worker


@contextmanager
def answering_with(queue: Queue, fingerprints: Iterator[str], *, is_older: bool = False) -> Iterator[list[str | None]]:
    """Answer embeds in a thread; yield the fingerprints that the jobs ask for, None for a job without one.

    The reply to a job has the fingerprint that the job asks for, or else the next of `fingerprints`. An older worker
    does not know that jobs may ask for one.
    """
    asked: list[str | None] = []

    def reply(job: Job) -> Reply:
        fingerprint = next(fingerprints) if is_older else job.fingerprint or next(fingerprints)
        asked.append(job.fingerprint)
        vectors = np.full((len(job.texts), 2), ord(fingerprint) if fingerprint else 0, np.float32)
        facts: dict[str, Any] = {"output": job.options.output, "tokens": [1] * len(job.texts)}
        return Reply(job.id, vectors=vectors, model="m", fingerprint=fingerprint, **facts)

    with answering(queue, reply):
        yield asked


def test_a_job_keeps_its_fingerprint() -> None:
    job = Embed(["a", "b"]).pinned("f")
    assert {unpack(part.pack()).fingerprint for part in (job, *job.cut(1, 9, [1, 1]))} == {"f"}
    assert (job.pinned("g").fingerprint, Embed(["a"]).pinned("").fingerprint) == ("f", None)
    assert job.digest() != Embed(["a", "b"]).digest()
    assert Rerank(["a"], query="b").pinned("f").fingerprint is None  # the reranker has another fingerprint


def test_a_fingerprint_that_does_not_fit_into_a_header_is_refused(make_client: MakeClient) -> None:
    wrong: list[Any] = ["é", "a\nb", "\0", "f" * 1_025, 5, ["f"]]
    for one in wrong:
        with pytest.raises(InvalidRequest, match="a fingerprint of replies"):
            make_client(fingerprint=one).embed("storm")
        with pytest.raises(MalformedJob, match="shape"):
            Reply.unpack(wire.pack({"id": "a", "fingerprint": one}))


def test_every_reply_has_the_fingerprint_of_its_model(
    make_client: MakeClient, workers: list[Worker], reranker: Reranker
) -> None:
    client, (worker, other) = make_client(), workers
    with running(worker):
        assert client.find("storm", k=1).fingerprint == worker.encoder.fingerprint
        handles = {}
        for op, options in (("embed", {}), ("search", {}), ("tokenize", {}), ("rerank", {"query": "rain"})):
            expected = reranker if op == "rerank" else worker.encoder
            if op != "tokenize" or isinstance(client, Client):
                handles[op] = client.submit(op, ["storm"], **options)
                assert handles[op].result().fingerprint == expected.fingerprint
        pinned = make_client(fingerprint=other.encoder.fingerprint)
        with pytest.raises(ModelMismatch):
            pinned.job(handles["embed"].id).result()
        assert len(pinned.job(handles["rerank"].id).result().scores) == 1
        unknown = make_client(fingerprint="f" * 32)
        said = f'fingerprint "{"f" * 32}", and .* has {worker.encoder.fingerprint}.*: start workers with that model'
        for ask in (
            unknown.embed,
            unknown.search,
            lambda text: list(unknown.embed_stream([text])),
            lambda text: unknown.submit("embed", text).result(),
        ):
            with pytest.raises(ModelMismatch, match=said):
                ask("storm")


def test_in_a_pool_of_two_models_a_worker_with_the_wanted_fingerprint_answers(
    make_client: MakeClient, workers: list[Worker]
) -> None:
    found = []
    with running(workers[0]), running(workers[1]):
        for worker in workers:
            client = make_client(fingerprint=worker.encoder.fingerprint)
            found.append(expected := make_client(fingerprint=worker.encoder.fingerprint).embed(TEXTS))
            assert np.array_equal(client.embed(TEXTS), expected)
            assert np.array_equal(np.stack(list(client.embed_stream(TEXTS, window=2))), expected)
            assert client.find("storm").fingerprint == worker.encoder.fingerprint
            assert client.submit("embed", TEXTS[:9]).result().fingerprint == worker.encoder.fingerprint
            assert len(client.rerank("storm", ["rain", "sun"])) == 2
    assert not np.array_equal(*found)


def test_workers_of_an_earlier_release_answer_only_clients_that_ask_for_no_fingerprint(
    make_client: MakeClient, queue: Queue
) -> None:
    pinned = make_client(fingerprint="f")
    with answering_with(queue, repeat(""), is_older=True):
        for ask in (lambda: pinned.embed("storm"), lambda: list(pinned.embed_stream(["storm"]))):
            with pytest.raises(ModelMismatch, match="worker that answered names none"):
                ask()
    with answering_with(queue, cycle(["a", ""]), is_older=True):
        assert len(list(make_client().embed_stream(TEXTS, window=2))) == len(TEXTS)


def test_parts_with_vectors_of_tokens_and_streams_have_one_fingerprint(make_client: MakeClient, queue: Queue) -> None:
    with answering_with(queue, cycle("abb")):
        found = np.concatenate(make_client().embed(TEXTS[: 9 * TEXTS_PER_TOKENS_JOB], output="tokens"))
    assert len(found) == 9 * TEXTS_PER_TOKENS_JOB
    assert (found == found[0]).all()
    with answering_with(queue, cycle("ab")) as asked:
        found = np.stack(list(make_client().embed_stream(TEXTS, window=2)))
    assert (found == found[0]).all()
    assert chr(int(found[0, 0])) in asked


def test_cached_vectors_have_the_fingerprint_that_is_asked_for_and_that_of_the_others(
    client: Client, make_client: MakeClient, queue: Queue, caching: Worker, other_encoder: Encoder
) -> None:
    with running(caching):
        expected = client.embed(["storm", "rain"])
    fingerprint = caching.encoder.fingerprint
    found = make_client(fingerprint=fingerprint).embed(["storm", "rain"])  # now no worker takes jobs
    assert np.array_equal(found, expected)
    assert client.call(Embed(["storm"])).fingerprint == fingerprint
    with running(caching), pytest.raises(ModelMismatch):
        make_client(fingerprint="f").embed("storm")
    other = Worker(queue.consumer("b"), other_encoder, {}, Bucketing(4_096))  # the same model, in int8
    with running(other):
        found = client.embed(["storm", "sun"])
    assert found == pytest.approx(other_encoder.embed(["storm", "sun"], Options(), ""), abs=1e-6)
    assert other.counters["texts"] == 3  # first the text that is not cached, then both


@pytest.mark.parametrize(
    ("fingerprints", "wanted", "num_asked"),
    [
        (chain("aabab", repeat("b")), "b", 3),
        (chain(["a", "", "a", "", "a"], repeat("x")), None, 0),
        (chain(["a", "b", "a", "b", ""], repeat("x")), "b", 2),  # the last reply has none
    ],
)
def test_parts_of_a_list_have_one_fingerprint(
    client: Client, queue: Queue, fingerprints: Iterator[str], wanted: str | None, num_asked: int
) -> None:
    with answering_with(queue, fingerprints) as asked:
        found = client.embed(TEXTS)
    assert asked == [None] * 5 + [wanted] * num_asked
    assert wanted is None or {*np.unique(found)} <= {0, ord(wanted)}


def test_a_rerank_may_ask_for_the_fingerprint_of_the_reranker(
    workers: list[Worker], reranker: Reranker, client: Client
) -> None:
    with running(workers[0]):
        found = client.call(Rerank(["storm"], query="rain", fingerprint=reranker.fingerprint))
        assert found.fingerprint == reranker.fingerprint
        with pytest.raises(ModelMismatch):
            client.call(Rerank(["storm"], query="rain", fingerprint=workers[0].encoder.fingerprint))


#: Queries that are split into three jobs.
QUERIES = ["storm"] * (2 * TEXTS_PER_JOB + 5)


def ids(results: Sequence[Sequence[dict[str, str]]]) -> set[str]:
    """Return the ids of all hits. The id of a hit is its version of the index."""
    assert len(results) == len(QUERIES)
    return {hit["id"] for hits in results for hit in hits}


@pytest.mark.parametrize(
    ("versions", "expected", "num_jobs"),
    [
        (repeat("v1"), {"v1"}, 3),
        (chain(["v1", "v1"], repeat("v2")), {"v2"}, 5),
        (chain(["v1", "v2", "v1", "v2"], repeat("v2")), {"v2"}, 6),
    ],
)
def test_parts_from_older_versions_are_computed_again(
    queue: Queue, client: Client, versions: Iterator[str], expected: set[str], num_jobs: int
) -> None:
    answered: list[Job] = []

    def reply(job: Job) -> Reply:
        answered.append(job)
        version = next(versions)
        hits = [[{"id": version, "score": 1.0, "text": "t"}] for _ in job.texts]
        return Reply(job.id, hits=hits, index_version=version)

    with answering(queue, reply):
        assert ids(client.search(QUERIES)) == expected
    assert len(answered) == num_jobs


def test_over_http_parts_from_other_versions_are_requested_again(canned: CannedServer) -> None:
    limits = {"max_backlog_texts": 1, "max_response_mb": 96, "max_request_bytes": 2**25}
    bodies = [{"dimension": 4, "limits": limits}]
    bodies += [{"results": [[{"id": version}]], "index_version": version} for version in ("v1", "v1", "v2")]
    canned.answers = [Canned(200, json.dumps(body).encode(), {"Content-Type": "application/json"}) for body in bodies]
    with HttpClient(canned.url, timeout_s=PATIENCE_S) as http:
        assert http.search(["a", "b", "c"]) == [[{"id": "v2"}]] * 3
    assert len(canned.requests) > 4


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=8), st.lists(st.sampled_from("abc"), max_size=30))
def test_all_replies_are_from_one_version_in_the_end(first: list[str], later: list[str]) -> None:
    versions = chain(later, repeat("d"))
    found = [Reply(str(n), index_version=version) for n, version in enumerate(first)]
    parts = [Job([str(n)]) for n in range(len(first))]
    for pause_s, numbers, again in jobs_to_repeat(parts, found, float("inf")):
        assert pause_s in (0.0, SWITCH_PAUSE_S)
        assert numbers == sorted(set(numbers))
        assert [job.texts for job in again] == [[str(n)] for n in numbers]
        for n in numbers:
            found[n] = Reply(str(n), index_version=next(versions))
    assert len({reply.index_version for reply in found}) == 1
    assert [reply.id for reply in found] == [str(n) for n in range(len(first))]


def test_after_an_error_or_the_deadline_nothing_is_computed_again() -> None:
    replies = [Reply(name, index_version=name) for name in ("v1", "v2", "v1")]
    assert list(jobs_to_repeat([], replies, 0)) == []
    assert list(jobs_to_repeat([], [*replies, Reply.failure("b", Internal("bad"))], float("inf"))) == []
