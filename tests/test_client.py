"""The client against a real worker in a thread, on a real Redis and the tiny model."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from conftest import WORDS, wait_until

from shoal import Client
from shoal.client.parts import TEXTS_PER_JOB
from shoal.errors import (
    Cancelled,
    InvalidRequest,
    InvalidText,
    Overloaded,
    TextTooLong,
    Timeout,
    TooLarge,
    Unavailable,
    UnknownIndex,
)
from shoal.jobs import Job
from shoal.queue.lane import LaneLimits
from shoal_workers.encoding.encoder import Encoder
from shoal_workers.worker import Worker

TEXTS = [f"{word} {n}" for n in range(25) for word in WORDS]


def alone(client: Client, text: str) -> np.ndarray:
    """Return the vector of a text that is embedded by itself."""
    vector = client.embed(text)
    assert isinstance(vector, np.ndarray)
    return vector


@pytest.mark.usefixtures("serving")
class TestEmbed:
    def test_a_single_text_gives_one_vector(self, client: Client) -> None:
        vector = alone(client, "storm")
        assert vector.shape == (32,)
        assert vector.dtype == np.dtype(np.float32)
        assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-6)

    def test_a_list_gives_a_row_each(self, client: Client) -> None:
        vectors = client.embed(["storm", "rain"])
        assert isinstance(vectors, np.ndarray)
        assert vectors.shape == (2, 32)
        assert vectors[1] == pytest.approx(alone(client, "rain"), abs=1e-5)

    def test_a_long_list_is_split_and_stays_in_order(self, client: Client, worker: Worker) -> None:
        vectors = client.embed(TEXTS)
        assert isinstance(vectors, np.ndarray)
        assert vectors.shape == (len(TEXTS), 32)
        wait_until(lambda: worker.counters["jobs"] == -(-len(TEXTS) // TEXTS_PER_JOB))
        for n in (0, TEXTS_PER_JOB - 1, TEXTS_PER_JOB, len(TEXTS) - 1):
            assert vectors[n] == pytest.approx(alone(client, TEXTS[n]), abs=1e-5)

    def test_any_iterable_will_do(self, client: Client) -> None:
        assert np.shape(client.embed(word for word in WORDS)) == (len(WORDS), 32)

    def test_token_vectors_come_as_one_array_a_text(self, client: Client) -> None:
        texts = ["storm", "storm in europe"] * TEXTS_PER_JOB
        rows = client.embed(texts, output="tokens")
        assert [row.shape for row in rows] == [(3, 32), (5, 32)] * TEXTS_PER_JOB
        assert np.shape(client.embed("storm", output="tokens")) == (3, 32)

    def test_options_reach_the_worker(self, client: Client) -> None:
        cut = client.embed(["storm rain"], dimensions=8, normalize=False, pooling="max", prompt_name="query")
        assert np.shape(cut) == (1, 8)
        assert cut[0] != pytest.approx(alone(client, "storm rain")[:8], abs=1e-3)

    def test_the_empty_text_and_nul_bytes_are_embedded(self, client: Client) -> None:
        assert np.isfinite(client.embed(["", "storm\0rain"])).all()

    def test_a_refused_option_is_named(self, client: Client) -> None:
        with pytest.raises(InvalidRequest, match='pooling is "last": it takes one of null, mean, max, cls'):
            client.embed("storm", pooling="last")
        with pytest.raises(InvalidRequest, match=r'prompt_name is "nobody".*document, query'):
            client.embed("storm", prompt_name="nobody")
        with pytest.raises(InvalidRequest, match="list of texts is empty"):
            client.embed([])
        with pytest.raises(InvalidRequest, match=r"dimensions is 33.*32"):
            client.embed("storm", dimensions=33)

    def test_a_text_that_is_too_long_is_named_when_it_may_not_be_cut(self, client: Client) -> None:
        with pytest.raises(TextTooLong, match="text 1 has more than the 48 tokens"):
            client.embed(["storm", "storm " * 50], truncate=False)

    def test_one_text_that_utf8_cannot_hold_fails_alone(self, client: Client) -> None:
        with ThreadPoolExecutor(8) as threads:
            bad = [threads.submit(client.embed, "\ud800") for _ in range(20)]
            good = [threads.submit(client.embed, "storm") for _ in range(20)]
        assert all(isinstance(future.exception(), InvalidText) for future in bad)
        assert all(np.shape(future.result()) == (32,) for future in good)


@pytest.mark.usefixtures("serving")
class TestSearch:
    def test_hits_come_best_first(self, client: Client) -> None:
        hits = client.search("storm europe", k=7)
        assert len(hits) == 7
        assert [hit["score"] for hit in hits] == sorted((hit["score"] for hit in hits), reverse=True)
        assert set(hits[0]) == {"id", "score", "text"}

    def test_each_query_has_its_hits(self, client: Client) -> None:
        queries = [f"{word} rain" for word in WORDS] * TEXTS_PER_JOB
        found = client.search(queries, k=3)
        assert len(found) == len(queries)
        best = {query: hits[0]["id"] for query, hits in zip(queries, found, strict=True)}
        assert len(set(best.values())) > 1
        assert client.search(queries[3], k=1)[0]["id"] == best[queries[3]]

    def test_no_more_hits_than_documents(self, client: Client) -> None:
        assert len(client.search("storm", k=1_000)) == len(WORDS) ** 2

    def test_an_unknown_index_is_named_with_those_there_are(self, client: Client) -> None:
        with pytest.raises(UnknownIndex, match='no index "other": this worker serves default'):
            client.search("storm", index="other")


@pytest.mark.usefixtures("serving")
class TestSubmit:
    def test_the_result_is_there_for_anyone_who_knows_the_id(self, client: Client) -> None:
        handle = client.submit("embed", TEXTS, lane="bulk")
        reply = client.job(handle.id).result()
        assert reply.vectors is not None
        assert reply.vectors.shape == (len(TEXTS), 32)
        assert handle.status() == "done"
        assert set(reply.timings) == {"queue_s", "tokenize_s", "encode_s", "search_s"}

    def test_a_search_can_be_submitted(self, client: Client) -> None:
        hits = client.submit("search", "storm", k=2).result().hits
        assert hits is not None
        assert [len(found) for found in hits] == [2]

    def test_an_error_is_raised_when_the_result_is_fetched(self, client: Client) -> None:
        handle = client.submit("search", "storm", index="other")
        with pytest.raises(UnknownIndex):
            handle.result()
        assert handle.status() == "failed"


def test_a_job_that_no_worker_has_started_can_be_cancelled(client: Client) -> None:
    handle = client.submit("embed", "storm")
    assert handle.status() == "queued"
    assert handle.cancel() == "cancelled"
    with pytest.raises(Cancelled):
        handle.result()


def test_a_lane_that_is_not_there_is_refused(client: Client) -> None:
    for use in (
        lambda: client.submit("embed", "storm", lane="fast"),
        lambda: list(client.embed_stream(["storm"], lane="fast")),
    ):
        with pytest.raises(InvalidRequest, match='lane is "fast": it takes one of interactive, bulk'):
            use()


class TestStream:
    @pytest.mark.usefixtures("serving")
    def test_thousands_of_texts_come_in_order_with_few_on_their_way(self, client: Client) -> None:
        window, num_read, most_ahead, most_waiting = 4, 0, 0, 0

        def source() -> Iterator[str]:
            nonlocal num_read
            for num_read in range(1, 5_001):
                yield TEXTS[num_read % len(TEXTS)]

        expected = client.embed(TEXTS)
        for n, vector in enumerate(client.embed_stream(source(), window=window), 1):
            most_ahead = max(most_ahead, num_read - n)
            if n % 500 == 0:
                most_waiting = max(most_waiting, client.queue.backlog()["bulk"])
                assert vector == pytest.approx(expected[n % len(TEXTS)], abs=1e-5)
        assert n == num_read == 5_000
        assert most_ahead < window * TEXTS_PER_JOB
        assert most_waiting <= window

    @pytest.mark.usefixtures("serving")
    def test_token_vectors_stream_too(self, client: Client) -> None:
        shapes = [rows.shape for rows in client.embed_stream(["storm", "storm rain"], output="tokens")]
        assert shapes == [(3, 32), (4, 32)]

    def test_no_texts_no_vectors(self, client: Client) -> None:
        assert list(client.embed_stream([])) == []

    @pytest.mark.usefixtures("serving")
    def test_it_can_be_left_early(self, client: Client, worker: Worker) -> None:
        stream = client.embed_stream(TEXTS * 10, window=3)
        next(stream)
        stream.close()  # type: ignore[attr-defined]
        wait_until(lambda: client.queue.backlog()["bulk"] == 0)
        assert worker.counters["texts"] <= 3 * TEXTS_PER_JOB

    def test_a_full_lane_is_said(self, client: Client) -> None:
        client.queue.put("bulk", [Job("embed", ["storm"])])
        client.queue.limits = LaneLimits(max_jobs=1)
        with pytest.raises(Overloaded):
            list(client.embed_stream(TEXTS))

    def test_without_a_worker_it_ends(self, client: Client) -> None:
        client.timeout_s = 0.2
        with pytest.raises(Timeout, match="no worker is alive; start one"):
            next(client.embed_stream(TEXTS))


def test_without_a_worker_the_caller_is_told(client: Client) -> None:
    client.timeout_s = 0.2
    with pytest.raises(Timeout, match=r"no answer within 0.2 s: no worker is alive; start one"):
        client.embed("storm")
    with pytest.raises(Timeout, match="keeps its place"):
        client.submit("embed", "storm").result()


def test_a_full_lane_refuses_all_parts_of_a_call(client: Client) -> None:
    client.submit("embed", "storm")
    client.queue.limits = LaneLimits(max_jobs=7)
    with pytest.raises(Overloaded, match="no room in the interactive lane"):
        client.embed(TEXTS)
    assert client.queue.backlog()["interactive"] == 1


def test_more_than_an_empty_lane_takes_is_too_large(client: Client) -> None:
    client.queue.limits = LaneLimits(max_jobs=3)
    with pytest.raises(TooLarge, match=r"7 jobs at a time are over what .* takes, 3 \(SHOAL_MAX_BACKLOG\): split"):
        client.embed(TEXTS)
    assert client.queue.backlog()["interactive"] == 0


@pytest.mark.usefixtures("serving")
def test_many_threads_share_one_dispatcher(client: Client, encoder: Encoder) -> None:
    from shoal.jobs import Options

    expected = encoder.embed(TEXTS, Options(), "")
    before = threading.active_count()
    with ThreadPoolExecutor(32) as threads:
        vectors = list(threads.map(client.embed, TEXTS))
        assert threading.active_count() <= before + 32 + 2
    assert np.stack(vectors) == pytest.approx(expected, abs=1e-5)


def test_closing_wakes_waiting_threads_and_leaves_no_thread(redis_url: str, client: Client) -> None:
    other = Client(redis_url, key_prefix=client.queue.keys.prefix, pool=client.queue.keys.pool)
    with ThreadPoolExecutor(4) as threads:
        waiting = [threads.submit(other.embed, text) for text in TEXTS[:4]]
        wait_until(lambda: client.queue.backlog()["interactive"] == 4)
        other.close()
        assert all(isinstance(future.exception(), Unavailable) for future in waiting)


def test_a_closed_client_connects_again(redis_url: str, client: Client, serving: Worker) -> None:
    client.embed("storm")
    client.close()
    assert np.shape(client.embed("storm")) == (32,)
