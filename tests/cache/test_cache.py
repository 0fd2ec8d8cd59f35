"""The cache of exact repeats: a cached vector equals the computed one, so answers do not depend on the cache."""

import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import redis
from api_stub import MakeApp
from asking import ask, error, vectors
from blocking import Commands, Lookup, Pool, run_now
from conftest import PATIENCE_S, RedisServer, running
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps
from queues import Queue, queue_of

from shoal import AsyncClient, Client
from shoal.broker.async_broker import AsyncBroker
from shoal.cache.cache import MAX_TEXTS_PER_READ, Cache, Entry, Table, num_places, size_bytes
from shoal.cache.lookup import OBJECT_BYTES, CacheLookup
from shoal.contract.keys import Keys
from shoal.contract.options import Options
from shoal.contract.replies import TIMINGS, Reply
from shoal.errors import InvalidRequest, InvalidText, ShoalError, TextTooLong
from shoal.operations import Embed, Search
from shoal.settings import Settings
from shoal_workers.encoding.bucketing import Bucketing
from shoal_workers.encoding.encoder import Encoder
from shoal_workers.index.index import Index
from shoal_workers.loop.worker import Worker
from shoal_workers.service.service import about, open_cache

pytest_plugins = ["api_fixtures"]

LONG = "storm " * 60
TABLE = Table("tiny", 32, "mean", "f", 1_000, {"query": "storm ", "empty": ""}, "")
MakeWorker = Callable[..., Worker]

VECTORS = nps.arrays(np.float32, (1, 32), elements=st.floats(-1e6, 1e6, width=32))
ENTRIES = st.builds(Entry, VECTORS, st.integers(0, 2**32 - 1), st.booleans(), st.integers(1, 2**24 - 1))
DIGESTS = st.binary(min_size=16, max_size=16)


@pytest.fixture
def settings(redis_url: str, keys: Keys, home: Path, tiny_source: Path) -> Settings:
    """Return settings for a worker and an API of the pool that only this test uses."""
    where: dict[str, Any] = {"redis_url": redis_url, "key_prefix": keys.prefix, "pool": keys.pool}
    return Settings(**where, home=str(home), model=str(tiny_source), cache_mb=1, request_timeout_s=PATIENCE_S)


@pytest.fixture
def make_worker(settings: Settings, encoder: Encoder, index: Index) -> Iterator[MakeWorker]:
    """Return a function that makes workers that share a cache; it accepts changes of their settings."""
    queues: list[Queue] = []

    def make(encoder: Encoder = encoder, **changes: Any) -> Worker:
        changed = replace(settings, **changes)
        queue = Queue.connect(changed.redis_url, changed.keys)
        queues.append(queue)
        cache = open_cache(changed, encoder, queue.broker)
        return Worker(queue.consumer(), encoder, {"default": index}, Bucketing(4_096), cache=cache)

    yield make
    for queue in queues:
        queue.close()


@pytest.fixture
def worker(make_worker: MakeWorker) -> Worker:
    return make_worker()


def test_entries_depend_on_everything_that_vectors_depend_on(worker: Worker, settings: Settings) -> None:
    model = replace(worker.encoder.model, max_tokens=7)
    other = open_cache(settings, Encoder(model, worker.encoder.tokenizer, worker.encoder.engine), worker.pool.broker)
    assert worker.cache
    assert other
    assert worker.cache.table.fingerprint != other.table.fingerprint


def announce(worker: Worker) -> None:
    Pool(queue_of(worker).broker, queue_of(worker).keys, alive_s=3_600).announce(worker.id, about(worker))


@contextmanager
def at_work(worker: Worker) -> Iterator[None]:
    announce(worker)
    with running(worker):
        yield


def embed(worker: Worker, *texts: str, **options: Any) -> Reply:
    (reply,) = ask(worker, Embed(list(texts), Options(**options)))
    return reply


def places(worker: Worker) -> list[bytes]:
    return list(queue_of(worker).redis.scan_iter(queue_of(worker).keys.cache("*")))


def cache_of(queue: Queue, table: Table) -> Cache:
    return Cache(queue.broker, queue.keys, table, 100)


class TestEntry:
    @given(ENTRIES, DIGESTS, st.data())
    def test_it_survives_packing_and_is_none_if_damaged_or_of_another_text(
        self, entry: Entry, digest: bytes, data: st.DataObject
    ) -> None:
        found = Entry.unpack(entry.pack(digest), digest, 32)
        assert found is not None
        assert found[1:] == entry[1:]
        assert found.vectors.tobytes() == entry.vectors.tobytes()
        assert found.vectors.shape == (1, 32)
        packed = bytearray(entry.pack(digest))
        packed[data.draw(st.integers(0, len(packed) - 1))] ^= data.draw(st.integers(1, 255))
        assert Entry.unpack(bytes(packed), digest, 32) is None
        whole, other = entry.pack(digest), bytes(byte ^ 1 for byte in digest)
        wrong = ((whole, other, 32), (whole, digest, 31), (whole[:-1], digest, 32), (whole + b"\0", digest, 32))
        assert [Entry.unpack(*each) for each in wrong] == [None] * 4


class TestTable:
    def test_a_digest_depends_on_everything_that_changes_the_vector(self) -> None:
        def digest(table: Table = TABLE, text: str = "storm", prompt: str = "", **options: Any) -> bytes:
            return table.digests([text], prompt, Options(**options))[0]

        others = [
            digest(replace(TABLE, fingerprint="g")),
            digest(replace(TABLE, pooling="cls")),
            digest(text="Storm"),
            digest(text=""),
            digest(prompt="rain "),
            digest(pooling="max"),
            digest(truncation_side="left"),
        ]
        assert len({digest(), *others}) == 1 + len(others)
        for same in ({"pooling": "mean"}, {"normalize": False}, {"dimensions": 3}, {"truncate": False}):
            assert digest(**same) == digest()
        assert digest(prompt="rain ", text="storm") == digest(text="rain storm")

    def test_there_is_a_table_if_all_workers_announce_it(self) -> None:
        beat = {"model": "tiny", "dimension": 32, "pooling": "mean", "cache": TABLE.to_heartbeat()}
        assert Table.from_heartbeats([beat, beat]) == TABLE
        for other in (
            beat | {"cache": None},
            beat | {"cache": {}},
            beat | {"cache": TABLE.to_heartbeat() | {"later": 1}},
            beat | {"cache": TABLE.to_heartbeat() | {"num_places": 5}},
            beat | {"cache": 5},
            beat | {"dimension": 16},
            {},
        ):
            assert Table.from_heartbeats([beat, other]) is None
            assert Table.from_heartbeats([other, beat]) is None
        assert Table.from_heartbeats([]) is None
        assert Table.from_heartbeats([beat | {"cache": TABLE.to_heartbeat() | {"num_places": 0}}]) is None


class TestTableInRedis:
    def test_a_long_list_is_read_in_parts(self, queue: Queue, keys: Keys) -> None:
        cache = cache_of(queue, replace(TABLE, num_places=10**6))
        digests = [struct.pack("<QQ", 2 * n, 2 * n + 1) for n in range(MAX_TEXTS_PER_READ + 7)]  # no two share a place
        cache.store({digest: Entry(np.zeros((1, 32), np.float32), n, False) for n, digest in enumerate(digests)})
        assert [entry and entry.num_tokens for entry in cache.find(digests)] == list(range(len(digests)))

    def test_an_entry_goes_to_the_empty_or_older_of_two_places(self, queue: Queue, keys: Keys) -> None:
        cache = cache_of(queue, TABLE)
        entry = Entry(np.zeros((1, 32), np.float32), 1, False)
        first, second, third = (struct.pack("<QQ", 1 + 1_000 * n, 2) for n in range(3))
        cache.store({first: entry})
        cache.store({second: entry})
        assert None not in cache.find([first, second])
        queue.redis.expire(keys.cache("1"), 50)  # the place of the first entry
        cache.store({third: entry})
        assert [bool(found) for found in cache.find([first, second, third])] == [False, True, True]

    @pytest.mark.parametrize("dimension", [384, 32])
    def test_it_never_needs_more_than_its_memory(
        self, own_redis: RedisServer, own_queue: Queue, dimension: int
    ) -> None:
        table = replace(TABLE, dimension=dimension, num_places=num_places(8, dimension, Keys()))
        entry = Entry(np.zeros((1, dimension), np.float32), 1, False)
        before = used_memory(own_redis)
        cache = cache_of(own_queue, table)
        random = np.random.default_rng(1)
        for _ in range(table.num_places // 5):
            cache.store({random.bytes(16): entry for _ in range(20)})
        assert own_queue.redis.dbsize() > 0.98 * table.num_places
        assert 0.5 * 2**23 < used_memory(own_redis) - before <= 2**23

    def test_it_is_kept_out_of_the_append_only_file(self, own_redis: RedisServer, own_queue: Queue) -> None:
        cache = cache_of(own_queue, TABLE)
        cache.store({b"x" * 16: Entry(np.zeros((1, 32), np.float32), 1, False)})
        own_queue.redis.set("kept", 1)
        own_redis.stop()
        own_redis.start()
        assert own_queue.redis.keys("*") == [b"kept"]
        assert cache.find([b"x" * 16]) == [None]


def used_memory(server: RedisServer) -> int:
    """Return the bytes of Redis's data and of the table of its keys, without connections and scripts."""
    with redis.Redis.from_url(server.url) as connection:
        tables = [about for about in connection.memory_stats().values() if isinstance(about, dict)]
        of_keys = sum(about["overhead.hashtable.main"] for about in tables)
        return int(connection.info("memory")["used_memory_dataset"]) + int(of_keys)


class TestWorker:
    def test_a_repeat_of_a_text_or_query_is_found_to_the_bit_unless_another_program_replaced_it(
        self, worker: Worker
    ) -> None:
        first = embed(worker, "storm in europe", LONG, "")
        again = embed(worker, "storm in europe", LONG, "")
        assert (first.cached, again.cached) == (0, 3)
        assert vectors(again).tobytes() == vectors(first).tobytes()
        assert (again.tokens, again.truncated) == (first.tokens, first.truncated) == ([5, 48, 2], [False, True, False])
        assert again.characters == first.characters == [15, 275, 0]
        assert again.model == first.model
        assert again.timings["encode_s"] == 0 < again.timings["queue_s"]
        assert worker.counters["texts"] == worker.counters["cache_misses"] == worker.counters["cache_hits"] == 3
        assert worker.counters["jobs"] == 2
        assert error(embed(worker, LONG, truncate=False)).code == "text_too_long"
        for name in places(worker):  # another program replaces the entries
            queue_of(worker).redis.delete(name)
            queue_of(worker).redis.hset(name, "a", "b")
            queue_of(worker).redis.expire(name, 100)
        reply = embed(worker, "storm in europe")
        assert reply.cached == 0
        np.testing.assert_allclose(vectors(reply)[0], vectors(first)[0], atol=1e-6)
        assert embed(worker, "storm in europe").cached == 1
        (first,), (again,) = (ask(worker, Search(["storm europe"], k=3)) for _ in range(2))
        assert (first.cached, again.cached) == (0, 1)
        assert again.hits == first.hits
        assert embed(worker, "storm europe", prompt_name="query").cached == 1
        assert embed(worker, "storm europe").cached == 0

    def test_a_full_redis_keeps_no_entry_and_all_jobs_are_answered(
        self, make_worker: MakeWorker, own_redis: RedisServer
    ) -> None:
        worker = make_worker(redis_url=own_redis.url)
        queue_of(worker).put("interactive", [Embed(["storm", "rain"], reply_to="me")])
        queue_of(worker).redis.config_set("maxmemory", 1)
        assert worker.step(block_s=0) == 1
        (reply,) = queue_of(worker).inbox("me").wait()
        assert vectors(reply).shape == (2, 32)
        assert worker.counters["cache_refused"] == 2
        queue_of(worker).redis.config_set("maxmemory", 0)
        assert places(worker) == []
        assert [embed(worker, "storm").cached for _ in range(2)] == [0, 1]

    def test_an_entry_has_the_place_and_the_bytes_that_the_protocol_says(self, worker: Worker) -> None:
        found = vectors(embed(worker, "storm europe", normalize=False, prompt_name="query"))
        heartbeat = about(worker)
        cache = heartbeat["cache"]
        parts = (cache["fingerprint"], heartbeat["pooling"], "right", cache["prompts"]["query"] + "storm europe")
        digest = blake2b("\0".join(parts).encode(), digest_size=16).digest()
        numbers = (int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little"))
        names = [f"{queue_of(worker).keys.root}:cache:{number % cache['num_places']}" for number in numbers]
        (data,) = (data for data in queue_of(worker).redis.mget(names) if data)
        assert data[:16] == digest
        assert data[16:24] == bytes([5, 0, 0, 0, 0, 0, 0, 0])
        assert data[24:-4] == found.tobytes()
        assert data[-4:] == zlib.crc32(data[:-4]).to_bytes(4, "little")


class TestClient:
    def test_cached_texts_need_no_worker(self, client: Client, worker: Worker) -> None:
        texts = [f"storm {n}" for n in range(100)]
        first = embed(worker, *texts)
        announce(worker)
        reply = client.call(Embed(texts))
        assert vectors(reply).tobytes() == vectors(first).tobytes()
        assert (reply.tokens, reply.truncated, reply.model) == (first.tokens, first.truncated, first.model)
        assert (reply.cached, reply.timings) == (100, dict.fromkeys(TIMINGS, 0.0))
        assert queue_of(client).backlog()["interactive"] == 0
        assert np.shape(client.embed("storm 7", dimensions=3)) == (3,)
        for options in (Options(normalize=False), Options(), Options(dimensions=8)):
            job = Embed(["storm 7"], options)
            expected = vectors(client.call(job)).copy()
            vectors(client.call(job))[:] *= 2  # changes no kept entry
            np.testing.assert_array_equal(vectors(client.call(job)), expected)
        with pytest.raises(InvalidRequest, match="it takes one of interactive, bulk"):
            client.call(Embed(texts), lane="slow")

    def test_only_missing_texts_are_sent_and_the_reply_is_in_order(self, client: Client, worker: Worker) -> None:
        texts, new = [f"storm {n}" for n in range(100)], ["rain", "market", LONG]
        first = vectors(embed(worker, *texts))
        mixed = [*texts[:40], *new[:2], *texts[40:], new[2]]
        with at_work(worker):
            reply = client.call(Embed(mixed))
        assert reply.cached == 100
        assert (worker.counters["jobs"], worker.counters["texts"]) == (2, 103)
        np.testing.assert_array_equal(np.delete(vectors(reply), [40, 41, 102], axis=0), first)
        assert [n for n, cut in enumerate(reply.truncated) if cut] == [102]
        assert reply.tokens[40:42] == [3, 3]
        again = embed(worker, *mixed)
        assert again.cached == 103
        np.testing.assert_array_equal(vectors(again), vectors(reply))
        assert (again.tokens, again.truncated) == (reply.tokens, reply.truncated)
        assert again.characters == reply.characters
        assert [count for count, text in zip(reply.characters, mixed, strict=True) if count < len(text)] == [275]

    def test_an_error_names_the_text_by_its_number_in_the_job(self, client: Client, worker: Worker) -> None:
        embed(worker, "storm", "rain", LONG)
        with at_work(worker):
            with pytest.raises(TextTooLong, match="text 2 has"):
                client.embed(["storm", "rain", LONG], truncate=False)
            with pytest.raises(InvalidText, match="text 1: lone surrogate"):
                client.embed(["storm", "\ud800"])

    def test_vectors_of_two_models_are_never_mixed(self, client: Client, worker: Worker, encoder: Encoder) -> None:
        embed(worker, "storm")
        announce(worker)
        other = Encoder(replace(encoder.model, name="other"), encoder.tokenizer, encoder.engine)

        async def replace_lookup(own: AsyncClient) -> None:
            queue = own.queue
            own._session().lookup = CacheLookup(queue.commands, queue.keys, queue.pool, refresh_s=3_600)

        client.run(replace_lookup)  # this client notices the other model late
        assert client.call(Embed(["storm"])).cached == 1
        with at_work(Worker(queue_of(worker).consumer(), other, {}, Bucketing(4_096))):
            reply = client.call(Embed(["storm", "rain"]))
        assert (reply.model, reply.cached) == ("other", 0)

    def test_a_worker_that_comes_or_goes_is_noticed(
        self, client: Client, worker: Worker, make_worker: MakeWorker
    ) -> None:
        lookup = Lookup(queue_of(client), refresh_s=0)

        def is_known() -> bool:
            return bool(lookup.find(Embed(["storm"])).missing == [])

        embed(worker, "storm")
        assert not is_known()
        announce(worker)
        assert is_known()
        other = make_worker(cache_mb=2)
        announce(other)
        assert not is_known()
        other.pool.leave(other.id)
        assert is_known()
        worker.pool.leave(worker.id)
        assert not is_known()

    def test_entries_keep_their_fingerprint_if_the_model_changes_while_they_are_read(self, worker: Worker) -> None:
        class Changing(Commands):
            async def pipeline(self, *commands: Sequence[Any], block_s: float = 0.0) -> list[Any]:
                if lookup._table == worker.cache.table:  # type: ignore[union-attr]
                    queue.pool.leave(worker.id)
                    queue.pool.announce("other", about(worker) | {"fingerprint": "another", "cache": other})
                    await lookup.find(Embed(["rain"]))
                return await super().pipeline(*commands, block_s=block_s)

        queue = queue_of(worker)
        reply, other = embed(worker, "storm"), TABLE.to_heartbeat()
        announce(worker)
        lookup = CacheLookup(cast(AsyncBroker, Changing(queue.broker)), queue.keys, queue.pool.asynchronous, 0.0)
        assert run_now(lookup.find(Embed(["storm"]))).reply().fingerprint == reply.fingerprint

    def test_found_entries_are_kept_for_a_while(self, client: Client, worker: Worker) -> None:
        embed(worker, "storm")
        announce(worker)
        counted: list[tuple[int, int]] = []
        holds = Lookup(queue_of(client), refresh_s=0, hold_s=3_600, count=lambda *numbers: counted.append(numbers))
        reads_anew = Lookup(queue_of(client), refresh_s=0, hold_s=0)
        job = Embed(["storm", "rain"])
        assert holds.find(job).missing == reads_anew.find(job).missing == ["rain"]
        queue_of(worker).redis.delete(*places(worker))
        assert holds.find(job).missing == ["rain"]
        assert reads_anew.find(job).missing == ["storm", "rain"]
        assert counted == [(1, 1), (1, 1)]

    def test_the_memory_for_kept_entries_is_limited(self, client: Client, worker: Worker) -> None:
        texts = [f"storm {n}" for n in range(5)]
        embed(worker, *texts)
        announce(worker)
        of_three = 3 * (size_bytes(32) + OBJECT_BYTES)
        in_turns, at_once = (Lookup(queue_of(client), refresh_s=3_600, max_held_bytes=of_three) for _ in range(2))
        assert [in_turns.find(Embed([text])).missing for text in texts] == [[]] * 5
        assert at_once.find(Embed(texts)).missing == []
        queue_of(worker).redis.delete(*places(worker))
        assert in_turns.find(Embed(texts)).missing == texts[:3]
        assert at_once.find(Embed(texts)).missing == texts[3:]


TEXTS = st.sampled_from(["", "storm", "Storm", "storm rain", "rain in europe", "\0", "märkte 海", LONG, LONG + "x"])
OPTIONS = st.builds(
    Options,
    normalize=st.booleans(),
    pooling=st.sampled_from([None, "mean", "max", "cls"]),
    output=st.sampled_from(["vector", "vector", "vector", "tokens"]),
    prompt_name=st.sampled_from([None, "query", "document", "nobody"]),
    truncate=st.booleans(),
    truncation_side=st.sampled_from(["right", "left"]),
)
REQUESTS = st.tuples(st.lists(TEXTS, min_size=1, max_size=6), OPTIONS, st.sampled_from([None, 1, 31, 32, 33]))


def outcome(client: Client, texts: list[str], options: Options) -> Reply | str:
    try:
        return client.call(Embed(texts, options))
    except ShoalError as error:
        return f"{error.code}: {error}"


@pytest.fixture
def plain(make_worker: MakeWorker, settings: Settings) -> Iterator[Client]:
    pool = f"{settings.pool}-plain"
    with Client(settings.redis_url, key_prefix=settings.key_prefix, pool=pool, timeout_s=PATIENCE_S) as client:
        worker = make_worker(pool=pool, cache_mb=0)
        assert about(worker)["cache"] is None
        with at_work(worker):
            yield client
        queue_of(client).redis.delete(*queue_of(client).redis.scan_iter(f"{client.keys.root}:*"))


@given(st.lists(REQUESTS, min_size=1, max_size=12))
def test_with_and_without_the_cache_all_replies_are_equal(
    client: Client, plain: Client, worker: Worker, requests: list[tuple[list[str], Options, int | None]]
) -> None:
    with at_work(worker):
        for texts, options, dimensions in requests:
            if options.output == "vector":
                options = replace(options, dimensions=dimensions)
            found, expected = outcome(client, texts, options), outcome(plain, texts, options)
            if isinstance(expected, str) or isinstance(found, str):
                assert found == expected
                continue
            assert (found.tokens, found.truncated, found.model) == (expected.tokens, expected.truncated, expected.model)
            np.testing.assert_allclose(vectors(found), vectors(expected), rtol=1e-3, atol=1e-4)


class TestApi:
    def test_an_answer_has_the_number_of_cached_texts_and_metrics_count_them(
        self, make_app: MakeApp, worker: Worker, keys: Keys
    ) -> None:
        api = make_app().test_client()
        embed(worker, "storm", "rain")
        announce(worker)
        response = api.post("/embed", json={"inputs": ["storm", "rain"]})
        assert response.headers["X-Cached"] == "2"
        assert response.headers["X-Tokens"] == "6"
        assert "encode;dur=0.000" in response.headers["Server-Timing"]
        with at_work(worker):
            assert api.post("/embed", json={"inputs": "europe"}).headers["X-Cached"] == "0"
            assert api.post("/search", json={"queries": "europe"}).headers["X-Cached"] == "0"
            job = api.post("/v1/jobs", json={"op": "embed", "inputs": ["storm", "market"]}).get_json()
            assert api.get(f"/v1/jobs/{job['id']}/result?wait=20").get_json()["cached"] == 1
        announce(worker)
        metrics = api.get("/metrics").get_data(as_text=True)
        assert f'shoal_cache_hits_total{{pool="{keys.pool}"}} 2.0' in metrics
        assert f'shoal_cache_misses_total{{pool="{keys.pool}"}} 1.0' in metrics
        assert f'shoal_worker_cache_hits_total{{worker="{worker.id}"}} 1.0' in metrics
        assert f'shoal_worker_cache_misses_total{{worker="{worker.id}"}} 5.0' in metrics
