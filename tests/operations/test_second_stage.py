"""Searches with a second stage: the reranker scores what was found, in passes that all jobs share."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blocking import DeadLetters
from conftest import wait_until
from numpy.typing import NDArray
from process import Process
from queues import Queue, drive
from test_rerank import FailingReranker, replies
from test_worker_process import NUM_JOBS, assert_all_done, num_pending, suspend_at_work

from shoal import Client
from shoal.cache.cache import Cache
from shoal.cache.table import Table
from shoal.contract.jobs import Job
from shoal.contract.keys import Keys
from shoal.contract.options import QUERY_PROMPTS, Options
from shoal.contract.replies import Reply
from shoal.errors import InvalidRequest, TooLarge
from shoal.operations import Embed, Search
from shoal.operations.search_options import SearchOptions
from shoal.records.source import Source
from shoal_workers.encoding.bucketing import Bucketing
from shoal_workers.encoding.encoder import Encoder, EncodingPass, TokenizedText
from shoal_workers.encoding.reranker import Reranker, sigmoid
from shoal_workers.index.build.builder import build
from shoal_workers.index.build.document_encoder import LocalEncoder
from shoal_workers.index.index import Index
from shoal_workers.index.ranked_search import most_diverse, pool_size
from shoal_workers.loop.admission import Limits
from shoal_workers.loop.worker import Worker

QUERY, TOP_N = "storm in europe", 20

#: Largest difference between scores of different passes.
MAX_ERROR = 1e-4


@pytest.fixture
def failing(reranker: Reranker) -> FailingReranker:
    """A reranker that notes its passes and fails on the pair of `storm in europe` and `poison`."""
    return FailingReranker(reranker)


@pytest.fixture
def worker(queue: Queue, encoder: Encoder, failing: FailingReranker, index: Index) -> Worker:
    """A worker that searches and reranks."""
    limits = Limits(max_job_texts=100, max_text_chars=40_000)
    return Worker(queue.consumer(), encoder, {"default": index}, Bucketing(4_096), limits, reranker=failing)


@pytest.fixture
def small_passes(queue: Queue, encoder: Encoder, failing: FailingReranker, index: Index) -> Worker:
    """The same with passes of few tokens, so that a second stage takes several."""
    return Worker(queue.consumer(), encoder, {"default": index}, Bucketing(24), reranker=failing)


def put(queue: Queue, *queries: str, lane: str = "interactive", reply_to: str | None = "me", **fields: Any) -> Search:
    """Put a search of the queries, whose best hits are reranked."""
    job = search(*queries, reply_to=reply_to, **fields)
    queue.put(lane, [job])
    return job


def search(*queries: str, k: int = 5, options: Options | None = None, **fields: Any) -> Search:
    """Return such a search; options of the search are given by name."""
    about = {name: fields.pop(name) for name in ("reply_to", "deadline") if name in fields}
    return Search(
        list(queries),
        options or Options(),
        k=k,
        search=SearchOptions(**{"rerank": {"top_n": TOP_N}} | fields),
        **about,
    )


def embedded(encoder: Encoder, query: str) -> NDArray[np.float32]:
    """Return the vector of a query, [1, dimension]."""
    return encoder.embed([query], Options(), encoder.prompt(Options(), QUERY_PROMPTS))


def expected(
    index: Index, encoder: Encoder, reranker: Reranker, query: str, top_n: int = TOP_N
) -> list[dict[str, Any]]:
    """Return the hits of the first stage with the scores of the reranker, in their order."""
    (found,) = index.search(embedded(encoder, query), top_n)
    scores = sigmoid(reranker.score([(query, hit["text"]) for hit in found]))
    order = np.argsort(-scores, kind="stable")
    return [found[n] | {"score": float(scores[n])} for n in order]


def hits(reply: Reply) -> list[list[dict[str, Any]]]:
    """Return the hits of a reply without error."""
    assert reply.error is None
    assert reply.hits is not None
    return reply.hits


def check_hits(found: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> None:
    """Assert that these are the best of the wanted hits; those with about the same score may come in another order."""
    by_id = {hit["id"]: hit for hit in wanted}
    scores = [hit["score"] for hit in found]
    assert scores == sorted(scores, reverse=True)
    assert scores == pytest.approx([hit["score"] for hit in wanted[: len(found)]], abs=MAX_ERROR)
    for hit in found:
        assert hit | {"score": 0} == by_id[hit["id"]] | {"score": 0}
        assert hit["score"] == pytest.approx(by_id[hit["id"]]["score"], abs=MAX_ERROR)


def code(reply: Reply) -> str:
    """Return the code of the error of a reply."""
    assert reply.error is not None
    return reply.error.code


# What is found


def test_the_best_hits_come_in_the_order_of_the_reranker(
    worker: Worker, queue: Queue, failing: FailingReranker, index: Index, encoder: Encoder, reranker: Reranker
) -> None:
    queries = ["storm", "rain in europe"]
    jobs = [put(queue, query, rerank={"top_n": 10}) for query in (*queries, *queries)]
    assert drive(worker) == len(jobs)
    assert failing.passes == [len(queries) * 10]  # all jobs share a pass, and equal pairs are computed once
    found = replies(queue)
    for job in jobs:
        wanted = expected(index, encoder, reranker, job.texts[0], 10)
        (of_query,) = hits(found[job.id])
        assert len(of_query) == 5
        check_hits(of_query, wanted)
    plain = index.search(embedded(encoder, "storm"), 5)[0]
    assert [hit["id"] for hit in plain] != [hit["id"] for hit in hits(found[jobs[0].id])[0]]


def test_several_queries_of_a_job_each_have_their_own_pairs(
    worker: Worker, queue: Queue, index: Index, encoder: Encoder, reranker: Reranker
) -> None:
    job = put(queue, "storm", "market falls", k=TOP_N)
    drive(worker)
    for query, of_query in zip(job.texts, hits(replies(queue)[job.id]), strict=True):
        assert len(of_query) == TOP_N
        check_hits(of_query, expected(index, encoder, reranker, query))


def test_the_reply_tells_of_the_queries_and_of_the_model_of_the_index(
    worker: Worker, queue: Queue, encoder: Encoder, index: Index
) -> None:
    job = put(queue, QUERY)
    drive(worker)
    reply = replies(queue)[job.id]
    assert (reply.model, len(reply.tokens), reply.truncated, reply.characters) == (
        encoder.model.name,
        1,
        [False],
        [len(QUERY)],
    )
    assert reply.index_version == index.manifest.version
    assert reply.scores is reply.vectors is None
    assert min(reply.timings["encode_s"], reply.timings["search_s"]) > 0
    assert worker.counters["jobs"] == 1
    assert worker.counters["texts"] == 1 + TOP_N


def test_a_given_query_is_what_hits_are_scored_for(
    worker: Worker, queue: Queue, index: Index, encoder: Encoder, reranker: Reranker
) -> None:
    vector = embedded(encoder, "storm")[0].tolist()
    rerank = {"top_n": TOP_N, "query": "market"}
    jobs = [put(queue, "storm", rerank=rerank), put(queue, vectors=[vector], rerank=rerank)]
    jobs.append(put(queue, "storm", "rain", fuse=True, rerank=rerank))
    drive(worker)
    found = replies(queue)
    (first,) = index.search(np.array([vector], np.float32), TOP_N)
    scores = sigmoid(reranker.score([("market", hit["text"]) for hit in first]))
    for job in jobs[:2]:
        (of_list,) = hits(found[job.id])
        assert [hit["score"] for hit in of_list] == pytest.approx(sorted(scores, reverse=True)[:5], abs=MAX_ERROR)
    assert len(hits(found[jobs[2].id])[0]) == 5


def test_long_documents_are_cut_although_queries_may_not_be(
    queue: Queue, encoder: Encoder, failing: FailingReranker, tmp_path: Path
) -> None:
    (tmp_path / "long.txt").write_text("storm in europe " * 40 + "\nrain\n")
    build(Source(tmp_path / "long.txt"), tmp_path / "long", LocalEncoder(encoder))
    worker = Worker(
        queue.consumer(), encoder, {"default": Index.open(tmp_path / "long")}, Bucketing(4_096), reranker=failing
    )
    jobs = [put(queue, "storm", options=Options(truncate=False, truncation_side=side)) for side in ("right", "left")]
    drive(worker)
    first, second = (hits(replies_of)[0] for replies_of in _in_order(queue, jobs))
    assert len(first) == 2
    assert first == second


def _in_order(queue: Queue, jobs: Sequence[Job]) -> list[Reply]:
    found = replies(queue)
    return [found[job.id] for job in jobs]


def test_diversity_is_about_the_scores_of_the_reranker(
    worker: Worker, queue: Queue, index: Index, encoder: Encoder, reranker: Reranker
) -> None:
    job = put(queue, QUERY, diversity=0.7)
    drive(worker)
    pool = expected(index, encoder, reranker, QUERY)
    vectors = np.concatenate([index.vectors[index.rows_of([hit["id"]])] for hit in pool])
    chosen = most_diverse(np.array([hit["score"] for hit in pool], np.float32), vectors, 5, 0.7)
    assert [hit["id"] for hit in hits(replies(queue)[job.id])[0]] == [pool[n]["id"] for n in chosen]


def test_a_search_may_be_diverse_without_a_second_stage(
    worker: Worker, queue: Queue, index: Index, encoder: Encoder, failing: FailingReranker
) -> None:
    job, plain = put(queue, QUERY, diversity=0.6, rerank=None), put(queue, QUERY, rerank=None)
    drive(worker)
    assert failing.passes == []
    query = embedded(encoder, QUERY)
    (pool,) = index.search(query, pool_size(5))
    vectors = np.concatenate([index.vectors[index.rows_of([hit["id"]])] for hit in pool])
    chosen = most_diverse(np.array([hit["score"] for hit in pool], np.float32), vectors, 5, 0.6)
    diverse, nearest = (hits(reply)[0] for reply in _in_order(queue, [job, plain]))
    assert diverse == [pool[n] for n in chosen]
    assert diverse != nearest


def test_a_search_that_finds_nothing_has_nothing_to_score(
    worker: Worker, queue: Queue, failing: FailingReranker
) -> None:
    job = put(queue, QUERY, min_score=1.0)
    drive(worker)
    assert hits(replies(queue)[job.id]) == [[]]
    assert failing.passes == []


# Limits


def test_hits_to_score_count_as_texts_in_a_lane() -> None:
    job = search("a", "b", rerank={"top_n": 30})
    assert (job.num_pairs, job.num_lane_texts) == (60, 62)
    assert [part.texts for part in job.split(32)] == [["a"], ["b"]]
    grouped = search("a", rerank={"top_n": 30}, group_by="topic", group_size=3)
    assert grouped.num_pairs == 90
    assert search("a", "b", rerank=None).num_lane_texts == 2
    assert search("a", "b", fuse=True, rerank={"top_n": 30}).num_pairs == 30


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"k": 21}, "rerank.top_n is 20, and k is 21: raise it to at least that"),
        ({"rerank": {"top_n": 1_001}}, "rerank.top_n is 1001: it takes a whole number from 1 to 1,000"),
        ({"rerank": {"top_n": 20, "query": " "}}, "rerank.query is empty"),
        ({"rerank": {"top_n": 20, "query": 5}}, "rerank.query is 5: it takes a string"),
        ({"like": ["1"]}, "rerank.query is missing: hits of vectors and documents are scored for a text"),
        ({"vectors": [[1.0]], "fuse": True}, "rerank.query is missing"),
        ({"sort": [{"field": "year"}]}, "sort does not go with rerank and diversity"),
        ({"cursor": ""}, "cursor does not go with rerank and diversity"),
        ({"rerank": None, "diversity": 0.5, "sort": [{"field": "year"}]}, "sort does not go with"),
    ],
)
def test_a_wrong_value_is_named(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        search("a", **fields)


def test_a_job_with_very_many_hits_to_score_is_refused(worker: Worker, queue: Queue) -> None:
    job = put(queue, *(f"query {n}" for n in range(6)), rerank={"top_n": 20})
    drive(worker)
    reply = replies(queue)[job.id]
    assert isinstance(reply.error, TooLarge)
    assert "the job has 120 hits to rerank and may have 100" in reply.error.message


def test_without_a_reranker_a_second_stage_is_refused(queue: Queue, encoder: Encoder, index: Index) -> None:
    worker = Worker(queue.consumer(), encoder, {"default": index}, Bucketing(4_096))
    job = put(queue, QUERY)
    drive(worker)
    assert code(replies(queue)[job.id]) == "unsupported"


def test_a_reranker_may_be_named_and_another_one_is_refused(worker: Worker, queue: Queue, reranker: Reranker) -> None:
    name = reranker.model.name
    models = (name, f"{name.rpartition('/')[2].upper()}:latest", "another")
    named, short, other = (put(queue, QUERY, rerank={"top_n": TOP_N, "model": model}) for model in models)
    drive(worker)
    found = replies(queue)
    assert found[named.id].hits == found[short.id].hits != []
    assert code(found[other.id]) == "unsupported"
    assert (error := found[other.id].error)
    assert error.message.startswith(f'rerank.model is "another", and this pool has {name}')


def test_a_query_to_score_for_has_the_length_of_a_text_at_most(worker: Worker, queue: Queue) -> None:
    job = put(queue, QUERY, rerank={"top_n": TOP_N, "query": "x" * 40_001})
    drive(worker)
    reply = replies(queue)[job.id]
    assert isinstance(reply.error, TooLarge)
    assert reply.error.message == "rerank.query has 40,001 characters and may have 40,000: shorten it"


def test_facets_of_a_field_that_is_not_there_are_refused_before_anything_is_scored(
    worker: Worker, queue: Queue, failing: FailingReranker
) -> None:
    job = put(queue, QUERY, facets=["nothing"])
    drive(worker)
    assert code(replies(queue)[job.id]) == "invalid_request"
    assert failing.passes == []
    assert DeadLetters(queue).newest() == []


# Other jobs, and the ends of jobs


def test_a_headline_waits_for_one_pass_of_a_second_stage(
    small_passes: Worker, queue: Queue, failing: FailingReranker
) -> None:
    long = put(queue, QUERY, rerank={"top_n": 100})
    small_passes.step(block_s=0)
    small_passes.step(block_s=0)
    headline = Embed(["storm"], reply_to="me")
    queue.put("interactive", [headline])
    small_passes.step(block_s=0)
    small_passes.step(block_s=0)
    assert replies(queue).keys() == {headline.id}
    assert 1 <= len(failing.passes) <= 3
    drive(small_passes)
    assert len(hits(replies(queue)[long.id])[0]) == 5


def test_a_document_that_the_engine_fails_on_harms_its_own_job_alone(
    queue: Queue, encoder: Encoder, failing: FailingReranker, tmp_path: Path
) -> None:
    (tmp_path / "texts.txt").write_text("rain\npoison\nstorm\n")
    build(Source(tmp_path / "texts.txt"), tmp_path / "texts", LocalEncoder(encoder))
    indexes = {"default": Index.open(tmp_path / "texts")}
    worker = Worker(queue.consumer(), encoder, indexes, Bucketing(4_096), reranker=failing)
    bad, good = put(queue, QUERY), put(queue, "market")
    drive(worker)
    found = replies(queue)
    assert code(found[bad.id]) == "internal"
    assert "the engine failed on a hit" in str(found[bad.id].error)
    assert "poison" not in str(found[bad.id].error)
    assert len(hits(found[good.id])[0]) == 3
    assert len(DeadLetters(queue).newest()) == 1


def test_a_search_that_is_cancelled_between_two_passes_is_computed_no_further(
    small_passes: Worker, queue: Queue, failing: FailingReranker
) -> None:
    job = put(queue, QUERY, rerank={"top_n": 100}, reply_to=None)
    until_scored(small_passes, failing)
    assert queue.cancel(job.id) == "cancelled"
    small_passes.admission._next_check = 0.0  # at once, where `run` would look a quarter of a second later
    assert drive(small_passes) == 0
    assert len(failing.passes) <= 2
    assert code(queue.wait_result(job.id, 0) or Reply("")) == "cancelled"


def test_a_search_that_expires_between_two_passes_is_computed_no_further(
    small_passes: Worker, queue: Queue, failing: FailingReranker
) -> None:
    small_passes.clock.refresh()
    job = put(queue, QUERY, rerank={"top_n": 100}, deadline=small_passes.clock.now() + 3_600)
    until_scored(small_passes, failing)
    small_passes.clock._redis_ahead_s += 7_200  # as if two hours had passed
    drive(small_passes)
    assert code(replies(queue)[job.id]) == "expired"
    assert len(failing.passes) <= 2


def until_scored(worker: Worker, failing: FailingReranker) -> None:
    """Step until the first pass of the second stage."""
    for _ in range(5):
        if not failing.passes:
            worker.step(block_s=0)
    assert failing.passes
    assert worker.scheduler.unanswered()


def test_a_worker_that_is_stopped_answers_what_it_has_found(
    small_passes: Worker, queue: Queue, failing: FailingReranker
) -> None:
    job = put(queue, QUERY)
    until_scored(small_passes, failing)
    small_passes.stop()
    small_passes._drain()
    assert len(hits(replies(queue)[job.id])[0]) == 5
    assert small_passes.scheduler.unanswered() == []


class NotesHeld(FailingReranker):
    """A reranker that notes how many jobs its worker holds while it computes."""

    held: Callable[[], int] = lambda: 0

    def __init__(self, reranker: Reranker):
        super().__init__(reranker)
        self.seen: list[int] = []

    def start(self, texts: Sequence[TokenizedText]) -> list[EncodingPass]:
        self.seen.append(self.held())
        return super().start(texts)


def test_a_suspect_is_alone_in_each_pass(queue: Queue, encoder: Encoder, reranker: Reranker, index: Index) -> None:
    suspects = NotesHeld(reranker)
    worker = Worker(queue.consumer(), encoder, {"default": index}, Bucketing(24), reranker=suspects)
    suspects.held = lambda: queue.redis.zcard(queue.keys.held(worker.id))
    job = put(queue, QUERY)
    queue.take("killed", ["interactive"], 1)
    worker.step(block_s=0)
    others = [put(queue, "market"), put(queue, "rain")]
    while any(queue.backlog().values()):
        worker.step(block_s=0)
    found = replies(queue)
    assert all(len(hits(found[each.id])[0]) == 5 for each in (job, *others))
    of_suspect = suspects.seen.index(2)
    assert of_suspect > 1
    assert set(suspects.seen[:of_suspect]) == {1}


@pytest.mark.wide
def test_a_worker_that_is_killed_in_the_middle_loses_nothing(
    home: Path,
    tiny_source: Path,
    reranker_source: Path,
    index_folder: Path,
    tmp_path: Path,
    keys: Keys,
    redis_url: str,
    client: Client,
) -> None:
    settings = {"redis_url": redis_url, "key_prefix": keys.prefix, "pool": keys.pool, "home": home, "threads": 1}
    settings |= {"model": tiny_source, "reranker": reranker_source, "precision": "f32"}
    settings |= {"indexes": f"default={index_folder}"}

    def submit() -> str:
        return client.submit("search", [QUERY, "rain"], lane="bulk", rerank={"top_n": 40}).id

    with Process(tmp_path / "worker.log", "worker", **settings) as first:
        wait_until(client.pool.ready)
        job_ids = suspend_at_work(client, first, lambda: [submit() for _ in range(NUM_JOBS)])
        first.kill()
    assert num_pending(client) > 0
    with Process(tmp_path / "worker.log", "worker", **settings) as second:
        assert_all_done(client, job_ids)
        found = [hits(client.job(job_id).result()) for job_id in job_ids]
        assert len({json.dumps([[hit["id"] for hit in of_query] for of_query in lists]) for lists in found}) == 1
        second.terminate()


def test_the_vectors_of_queries_come_from_the_cache_and_go_there(
    queue: Queue, encoder: Encoder, failing: FailingReranker, index: Index
) -> None:
    model = encoder.model
    cache = Cache(queue.broker, queue.keys, Table(model.name, model.dimension, model.pooling, "f", 1_000, {}, ""))
    worker = Worker(queue.consumer(), encoder, {"default": index}, Bucketing(4_096), cache=cache, reranker=failing)
    jobs = []
    for _ in range(2):
        jobs.append(put(queue, QUERY))
        drive(worker)
    first, second = _in_order(queue, jobs)
    assert (first.cached, second.cached) == (0, 1)
    assert first.hits == second.hits
