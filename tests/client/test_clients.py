"""The tests that all clients share, with a worker in a thread, a real Redis and the tiny model."""

import inspect
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from client_adapters import AnyClient, MakeClient, embed_one, embed_together
from conftest import PATIENCE_S, WORDS, free_port, wait_until
from queues import Queue, queue_of, set_limits

from shoal import AsyncClient, Client, HttpClient
from shoal.contract.jobs import MAX_REQUEST_TEXTS, TEXTS_PER_JOB
from shoal.contract.options import Options
from shoal.errors import (
    Cancelled,
    Expired,
    InvalidRequest,
    InvalidText,
    Overloaded,
    TextTooLong,
    Timeout,
    TooLarge,
    Unavailable,
    UnknownIndex,
    UnknownJob,
)
from shoal.operations import Embed
from shoal.queue.lane import LaneLimits
from shoal_workers.encoding.bucketing import Bucketing
from shoal_workers.encoding.encoder import Encoder
from shoal_workers.encoding.reranker import Reranker, sigmoid
from shoal_workers.loop.worker import Worker

pytest_plugins = ["any_client_fixtures"]

TEXTS = [f"{word} {n}" for n in range(25) for word in WORDS]

QUERY = "storm in europe"

#: A program that uses a client, forks, and uses the client in both processes. MADE is the code that makes the client.
FORKS = """
import os
from shoal import Client, HttpClient
from shoal.contract.jobs import new_id

client = MADE
assert client.embed("storm").shape == (32,)
connection = client.pool.broker.execute("CLIENT", "ID") if isinstance(client, Client) else None
ends = os.pipe()
child = os.fork()
if child == 0:
    os.write(ends[1], new_id().encode())
else:
    assert os.read(ends[0], 24).decode() != new_id()
if connection:
    assert (client.pool.broker.execute("CLIENT", "ID") == connection) == (child != 0)
own = client.embed(f"rain {child == 0}")
assert all(abs(client.embed([f"rain {child == 0}", f"{n}"])[0] - own).max() < 1e-5 for n in range(50))
if child == 0:
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
client.close()
"""


@pytest.fixture
def client(make_client: MakeClient) -> AnyClient:
    """A client of the test's own pool."""
    return make_client()


@pytest.mark.usefixtures("serving")
class TestEmbed:
    def test_a_long_list_is_split_and_stays_in_order(self, client: AnyClient, worker: Worker, encoder: Encoder) -> None:
        vectors = client.embed(TEXTS)
        assert vectors == pytest.approx(encoder.embed(TEXTS, Options(), ""), abs=1e-5)
        wait_until(lambda: worker.counters["jobs"] == -(-len(TEXTS) // TEXTS_PER_JOB))
        assert client.embed("storm 0") == pytest.approx(vectors[TEXTS.index("storm 0")], abs=1e-5)

    def test_a_long_text_comes_in_chunks_and_each_token_may_have_a_vector(self, client: AnyClient) -> None:
        text = "The storm hit Europe. Rain falls in the market! " * 40
        (none,), chunks = client.embed(["", text], output="chunks", chunk_tokens=30, chunk_overlap=5)
        assert (none.start, none.stop, none.vector.shape) == (0, 0, (32,))
        assert len(chunks) > 10
        for chunk in chunks:
            assert chunk.vector == pytest.approx(embed_one(client, text[chunk.start : chunk.stop]), abs=1e-5)
        assert client.embed(text, output="chunks", chunk_tokens=30)[0].start == 0
        texts = ["storm", "storm in europe"] * TEXTS_PER_JOB
        shapes = [(3, 32), (5, 32)] * TEXTS_PER_JOB
        assert [rows.shape for rows in client.embed(texts, output="tokens")] == shapes
        assert [rows.shape for rows in client.embed_stream(texts, output="tokens")] == shapes
        assert np.shape(client.embed("storm", output="tokens")) == (3, 32)
        cut = client.embed(["storm rain"], dimensions=8, normalize=False, pooling="max", prompt_name="query")
        assert np.shape(cut) == (1, 8)
        assert cut[0] != pytest.approx(embed_one(client, "storm rain")[:8], abs=1e-3)

    def test_an_error_names_the_place_of_a_text_in_the_whole_list(self, client: AnyClient) -> None:
        texts = ["storm"] * (MAX_REQUEST_TEXTS + 43) + ["storm " * 50]
        with pytest.raises(TextTooLong, match="text 299 has more than the 48 tokens"):
            client.embed(texts, truncate=False)
        with pytest.raises(TextTooLong, match=r"queries\[299\] has more than the 48 tokens"):
            client.search(texts, truncate=False)
        with pytest.raises(InvalidText, match="text 299: "):
            client.embed([*texts[:-1], "\ud800"])
        outcomes = embed_together(client, ["\ud800", "storm"] * 20)
        assert all(isinstance(outcome, InvalidText) for outcome in outcomes[::2])
        assert all(np.shape(outcome) == (32,) for outcome in outcomes[1::2])


@pytest.mark.usefixtures("serving")
class TestSearch:
    def test_each_query_has_its_hits_and_documents_and_vectors_need_none(self, client: AnyClient) -> None:
        queries = [f"{word} rain" for word in WORDS] * TEXTS_PER_JOB
        found = client.search(queries, k=3)
        assert len(found) == len(queries)
        ids = {query: hits[0]["id"] for query, hits in zip(queries, found, strict=True)}
        assert len(set(ids.values())) > 1
        assert client.search(queries[3], k=1)[0]["id"] == ids[queries[3]]
        best = client.search("storm europe", k=3)
        (like,) = client.search(like=best[0]["id"], k=2)
        assert best[0]["id"] not in [hit["id"] for hit in like]
        (same,) = client.search(vectors=client.embed(["storm europe"], prompt_name="query"), k=3)
        assert client.search(vectors=[client.embed("storm europe", prompt_name="query")], k=3) == [same]
        assert [hit["id"] for hit in same] == [hit["id"] for hit in best]
        assert len(client.search("storm", like=["1", "2"])) == 5  # one list of five hits
        assert len(client.search(["storm"], like=["1", "2"])) == 3

    def test_options_reach_the_worker_and_a_reply_has_pages_and_totals(self, client: AnyClient) -> None:
        fused = client.search(["storm", "rain"], k=4, fuse=True)
        assert [hit["id"] for hit in fused] == [hit["id"] for hit in client.search(["rain", "storm"], k=4, fuse=True)]
        assert client.search("storm", negative="rain", k=2) != client.search("storm", k=2)
        assert len(client.search(["storm", "rain"], negative=["sun"], k=2)) == 2
        first = client.find("storm", k=4, cursor="", fields=[])
        assert first.totals == [len(WORDS) ** 2]
        assert first.cursors is not None
        second = client.find("storm", k=4, cursor=first.cursors[0], fields=[])
        whole = client.search("storm", k=8, fields=[])
        assert [*(first.hits or [[]])[0], *(second.hits or [[]])[0]] == whole
        assert set(whole[0]) == {"id", "score"}

    def test_the_error_of_an_unknown_option_suggests_a_similar_one(self, client: AnyClient) -> None:
        calls: list[tuple[Callable[..., Any], str, str]] = [
            (client.search, "fuze", "fuse"),
            (client.embed, "normalise", "normalize"),
            (lambda text, **options: list(client.embed_stream([text], **options)), "pooling_", "pooling"),
            (lambda text, **options: client.rerank("storm", [text], **options), "truncat", "truncate"),
            (lambda text, **options: client.submit("embed", text, **options), "chunk_token", "chunk_tokens"),
        ]
        for call, given, meant in calls:
            with pytest.raises(InvalidRequest, match=f'unknown option "{given}": did you mean {meant}\\?'):
                call("storm", **{given: True})


class TestRerank:
    @pytest.fixture
    def worker(self, queue: Queue, encoder: Encoder, reranker: Reranker) -> Worker:
        """A worker with a reranker."""
        return Worker(queue.consumer(), encoder, {}, Bucketing(4_096), reranker=reranker)

    @pytest.mark.usefixtures("serving")
    def test_a_long_list_is_split_and_the_same_rerank_with_the_same_key_is_the_same_job(
        self, client: AnyClient, worker: Worker, reranker: Reranker
    ) -> None:
        found = client.rerank(QUERY, iter(TEXTS))
        assert (found.shape, found.dtype) == ((len(TEXTS),), np.dtype(np.float32))
        raw = reranker.score([(QUERY, text) for text in TEXTS])
        assert found == pytest.approx(sigmoid(raw), abs=1e-4)
        assert client.rerank(QUERY, TEXTS, raw_scores=True) == pytest.approx(raw, abs=1e-4)
        wait_until(lambda: worker.counters["jobs"] == 2 * -(-len(TEXTS) // TEXTS_PER_JOB))
        with pytest.raises(TextTooLong):
            client.rerank(QUERY, ["rain and change " * 20], truncate=False)
        handle, again = (
            client.submit("rerank", TEXTS[:5], query=QUERY, lane="bulk", idempotency_key="k") for _ in range(2)
        )
        with pytest.raises(InvalidRequest, match="the idempotency key was used for job"):
            client.submit("rerank", TEXTS[:5], query="another", lane="bulk", idempotency_key="k")
        assert handle.id == again.id
        assert handle.result().scores == pytest.approx(found[:5], abs=1e-4)
        assert handle.status() == "done"


class TestSubmit:
    @pytest.mark.usefixtures("serving")
    def test_the_id_is_enough_to_fetch_the_result(self, client: AnyClient, encoder: Encoder) -> None:
        handle = client.submit("embed", TEXTS, lane="bulk")
        reply = client.job(handle.id).result()
        assert reply.vectors == pytest.approx(client.embed(TEXTS), abs=1e-5)
        assert set(reply.timings) == {"queue_s", "tokenize_s", "encode_s", "search_s"}
        assert (reply.id, reply.status, reply.model) == (handle.id, "done", encoder.model.name)
        assert (reply.tokens, reply.truncated) == ([4] * len(TEXTS), [False] * len(TEXTS))
        assert (handle.cancel(), handle.status()) == ("done", "done")
        assert client.submit("search", ["storm"], k=2, timeout_s=3_600).result().hits == [client.search("storm", k=2)]
        rows = client.submit("embed", ["storm", "storm rain"], output="tokens").result().rows_by_text()
        assert [len(row) for row in rows] == [3, 4]
        late, unknown = client.submit("embed", "storm", timeout_s=0), client.submit("search", "storm", index="other")
        for handle, error, status in ((late, Expired, "expired"), (unknown, UnknownIndex, "failed")):
            with pytest.raises(error):
                handle.result()
            assert handle.status() == status

    def test_a_job_that_no_worker_has_started_can_be_cancelled(self, client: AnyClient) -> None:
        handle = client.submit("embed", "storm")
        assert handle.status() == "queued"
        assert handle.cancel() == "cancelled"
        with pytest.raises(Cancelled):
            handle.result()


class TestStream:
    @pytest.mark.usefixtures("serving")
    def test_thousands_of_texts_come_in_order_with_few_unanswered_jobs(self, client: AnyClient, queue: Queue) -> None:
        window, num_read, most_ahead, most_waiting = 4, 0, 0, 0

        def source() -> Iterator[str]:
            nonlocal num_read
            for num_read in range(1, 2_001):
                yield TEXTS[num_read % len(TEXTS)]

        expected = client.embed(TEXTS)
        for n, found in enumerate(client.embed_stream(source(), window=window), 1):
            most_ahead = max(most_ahead, num_read - n)
            if n % 200 == 0:
                most_waiting = max(most_waiting, queue.backlog()["bulk"])
            assert found == pytest.approx(expected[n % len(TEXTS)], abs=1e-5)
        assert n == num_read == 2_000
        assert most_ahead < window * TEXTS_PER_JOB
        assert most_waiting <= window

    @pytest.mark.usefixtures("serving")
    def test_a_stream_can_be_closed_early_and_needs_a_window(
        self, client: AnyClient, queue: Queue, worker: Worker
    ) -> None:
        stream = client.embed_stream(TEXTS * 10, window=3)
        next(stream)
        stream.close()
        wait_until(lambda: queue.backlog()["bulk"] == 0)
        assert worker.counters["texts"] <= 3 * TEXTS_PER_JOB
        for window in (0, -1, True):
            with pytest.raises(InvalidRequest, match=f"window is {str(window).lower()}: it takes a whole number from"):
                next(client.embed_stream(TEXTS, window=window))


def test_without_a_worker_timeout_is_raised(make_client: MakeClient) -> None:
    client = make_client(timeout_s=0.2)
    with pytest.raises(Timeout, match=r"no answer within 0.2 s: no worker is alive; start one"):
        client.embed("storm")
    with pytest.raises(Timeout, match="no worker is alive; start one"):
        next(client.embed_stream(TEXTS))
    with pytest.raises(Timeout, match="keeps its place"):
        client.submit("embed", "storm").result()
    with pytest.raises(Timeout, match=r"after 0\.1 s: it keeps its place"):
        client.submit("embed", "storm").result(0.1)


def test_a_call_is_refused_as_a_whole_by_a_full_lane_or_if_it_exceeds_even_an_empty_one(
    make_client: MakeClient, queue: Queue
) -> None:
    client = make_client(timeout_s=30)  # less than the 60 s after which a lane without workers can be tried again
    set_limits(queue, LaneLimits(max_jobs=3, max_texts=30))
    with pytest.raises(TooLarge, match=r"7 jobs at a time exceed the limit of .* lane, 3 \(SHOAL_MAX_BACKLOG\): split"):
        client.embed(TEXTS)
    with pytest.raises(TooLarge, match=r"texts, chunks counted, .*: raise chunk_tokens, or send fewer"):
        client.embed("storm " * 100, chunk_tokens=4)
    set_limits(queue, LaneLimits(max_jobs=8))  # an eighth is reserved for clients that put few jobs
    client.submit("embed", "storm")
    with pytest.raises(Overloaded, match="no room in the interactive lane"):
        client.embed(TEXTS)
    assert queue.backlog()["interactive"] == 1
    set_limits(queue, LaneLimits(max_jobs=1))
    queue.put("bulk", [Embed(["storm"])])
    with pytest.raises(Overloaded):
        list(client.embed_stream(TEXTS))


def test_without_redis_unavailable_is_raised_and_a_closed_client_connects_again(
    make_client: MakeClient, serving: Worker
) -> None:
    client = make_client(f"redis://127.0.0.1:{free_port()}/0")
    uses: list[Callable[[], Any]] = [lambda: client.embed("storm"), lambda: next(client.embed_stream(TEXTS))]
    for use in uses:
        with pytest.raises(Unavailable, match=r"Redis does not answer .*: check that it runs and that the Redis URL"):
            use()
    client = make_client()
    for _ in range(2):
        assert np.shape(embed_one(client, "storm")) == (32,)
        client.close()


def test_the_clients_for_threads_and_for_an_event_loop_have_the_same_defaults() -> None:
    compared = set()
    for name, method in inspect.getmembers(Client, inspect.isfunction):
        if not name.startswith("_") and hasattr(AsyncClient, name):
            parameters = inspect.signature(method).parameters
            for parameter in inspect.signature(getattr(AsyncClient, name)).parameters.values():
                if parameter.name in parameters:
                    assert parameter.default == parameters[parameter.name].default, (name, parameter.name)
                    compared.add((name, parameter.name))
    assert {("submit", "k"), ("rerank", "raw_scores"), ("search", "k")} <= compared


@pytest.mark.usefixtures("serving")
@pytest.mark.parametrize("make_client", ["Client", "HttpClient"], indirect=True)
def test_after_a_fork_a_client_works_in_both_processes(client: AnyClient, queue: Queue, redis_url: str) -> None:
    made = f"Client({redis_url!r}, key_prefix={queue.keys.prefix!r}, pool={queue.keys.pool!r}, timeout_s=180)"
    if isinstance(client, HttpClient):
        made = f"HttpClient({client.url!r}, timeout_s=180)"
    command = [sys.executable, "-W", "ignore", "-c", FORKS.replace("MADE", made)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("make_client", ["Client"], indirect=True)
class TestThreads:
    def test_ctrl_c_withdraws_the_jobs_of_the_waiting_thread(self, client: Client) -> None:
        main, queue = threading.main_thread(), queue_of(client)
        client.timeout_s = 3_600  # so that no timeout withdraws the job

        def interrupt() -> None:
            wait_until(lambda: queue.backlog()["interactive"] == 1)
            signal.pthread_kill(main.ident or 0, signal.SIGINT)

        assert threading.current_thread() is main
        interrupting = threading.Thread(target=interrupt)
        interrupting.start()
        with pytest.raises(KeyboardInterrupt):
            client.embed("storm")
        interrupting.join()
        wait_until(lambda: queue.backlog()["interactive"] == 0)

    def test_a_call_from_the_clients_own_loop_or_for_a_far_deadline_is_refused(self, client: Client) -> None:
        with pytest.raises(InvalidRequest, match="at most a year from now"):
            client.put(Embed(["storm"], deadline=2e12))

        async def embed(own: AsyncClient) -> None:
            client.embed("storm")

        with pytest.raises(RuntimeError, match="would wait for itself"):
            client.run(embed)

    def test_the_texts_of_a_stream_are_read_in_the_thread_that_reads_its_vectors(self, client: Client) -> None:
        seen: list[int] = []

        def texts() -> Iterator[str]:
            seen.append(threading.get_ident())
            with pytest.raises(UnknownJob):  # the texts' source may use the client too
                client.job("nobody").status()
            yield "storm"

        stream = client.embed_stream(texts())
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(next, stream)
            wait_until(lambda: queue_of(client).backlog()["bulk"] == 1)
            client.close()
            assert isinstance(waiting.exception(), Unavailable)
        assert seen != [threading.get_ident()]
