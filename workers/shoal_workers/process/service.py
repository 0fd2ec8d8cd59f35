"""A worker process: opens what the settings name, announces itself, runs until it is told to stop."""

import logging
import os
import secrets
import signal
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from hashlib import blake2b
from threading import Event
from typing import Any, TextIO
from urllib.parse import quote

from threadpoolctl import threadpool_limits

from shoal import __version__
from shoal.broker.broker import Broker
from shoal.cache.cache import Cache
from shoal.cache.table import Table, num_places
from shoal.errors import ShoalError
from shoal.queue.consumer import Consumer
from shoal.queue.pool import Pool
from shoal.settings import Settings
from shoal_workers.admission import Limits
from shoal_workers.encoding.batcher import Batcher
from shoal_workers.encoding.encoder import Encoder
from shoal_workers.index.index import Index
from shoal_workers.index.manifest import Manifest
from shoal_workers.model.model import Model, prepare_if_needed, prepared_folder
from shoal_workers.process import processors
from shoal_workers.process.crash_report import CrashReports
from shoal_workers.process.heartbeat import Heartbeat
from shoal_workers.process.watchdog import STALLED_AFTER_S, Watchdog
from shoal_workers.worker import Worker

log = logging.getLogger(__name__)

#: Longest that Redis may take for an answer to a worker: nobody waits to be told, and what is not answered runs again.
ANSWER_S = 2.0


def serve(settings: Settings, encoder: Encoder | None = None) -> None:
    """Runs one worker until SIGTERM or SIGINT; the batch under way is answered first.

    `encoder` serves in place of the one that the settings name. Raises what makes serving impossible: ModelNotFound,
    ModelMismatch, IndexNotFound, IndexCorrupt, IndexMismatch.
    """
    stopping = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    broker, keys = Broker.connect(settings.redis_url, ANSWER_S), settings.keys
    words = CrashReports(broker, keys, settings.home_folder / "crashes" / quote(keys.root, safe=""))
    threads = num_threads(settings, Pool(broker, keys))
    threadpool_limits(1, user_api="blas")
    encoder = encoder or open_encoder(settings, threads)
    indexes = open_indexes(settings, encoder.model, threads)
    worker = Worker(
        Consumer(broker, keys, new_worker_id(), settings.result_ttl_s),
        encoder,
        indexes,
        Batcher(settings.max_batch_tokens, encoder.model.shares_rows),
        limits_of(settings),
        stopping,
        open_cache(settings, encoder, broker),
        words,
    )
    with suppress(ShoalError):  # Redis may be away; whoever buries a job here does it too
        words.pass_on()
    with (
        closing(broker),
        announced(worker),
        words.recorded(worker.id) as file,
        watched(worker, words, file, settings.stall_timeout_s),
    ):
        worker.run()
    log.info("worker %s has stopped", worker.id)


@contextmanager
def announced(worker: Worker) -> Iterator[None]:
    """Keeps the worker on the pool's list."""
    heartbeat = Heartbeat(worker.pool, worker.id, lambda: about(worker, worker.indexes))
    heartbeat.start()
    try:
        yield
    finally:
        heartbeat.stop()
        with suppress(ShoalError):  # Redis may be gone; the heartbeat's end says the same
            worker.consumer.leave()


@contextmanager
def watched(worker: Worker, words: CrashReports, file: TextIO, timeout_s: float) -> Iterator[None]:
    """Ends the process if this thread hangs, after telling why, so that others take over at once."""

    def say(summary: str, trace: str) -> None:
        words.say(worker.id, summary, trace)
        worker.pool.leave(worker.id)

    watchdog = Watchdog(worker.progress, timeout_s, file, say)
    watchdog.start()
    try:
        yield
    finally:
        watchdog.stop()


def new_worker_id() -> str:
    """Return an id for this worker: the machine, the process, and a random part."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"


def limits_of(settings: Settings) -> Limits:
    """The limits that the settings set."""
    return Limits(
        settings.max_job_texts, settings.max_text_chars, settings.max_batch_texts, settings.max_batch_wait_ms / 1000
    )


def open_encoder(settings: Settings, threads: int) -> Encoder:
    """The encoder that the settings ask for; the model is prepared first if it never was."""
    folder = prepare_if_needed(settings.home_folder, settings.model)
    return Encoder.open(folder, settings.engine, settings.precision, threads)


def open_indexes(settings: Settings, model: Model, threads: int) -> dict[str, Index]:
    """The indexes that the settings name, by name.

    Raises IndexNotFound, IndexCorrupt or IndexMismatch.
    """
    indexes = {}
    for name, folder in settings.index_folders().items():
        indexes[name] = Index.open(folder, threads)
        indexes[name].check_model(model)
    return indexes


def open_cache(settings: Settings, encoder: Encoder, broker: Broker) -> Cache | None:
    """The pool's cache of exact repeats, if there is to be one."""
    model, engine, keys = encoder.model, encoder.engine, settings.keys
    places = num_places(settings.cache_mb, model.dimension, keys)
    if not places:
        return None
    tokenizer = prepared_folder(settings.home_folder, settings.model) / "tokenizer.json"
    made_by = (__version__, engine.name, engine.precision, model.digest, str(model.max_tokens))
    fingerprint = blake2b("\0".join(made_by).encode() + tokenizer.read_bytes(), digest_size=16).hexdigest()
    table = Table(
        model.name, model.dimension, model.pooling, fingerprint, places, model.prompts, model.prompt_for(None)
    )
    return Cache(broker, keys, table, settings.cache_ttl_s)


def num_threads(settings: Settings, pool: Pool) -> int:
    """Compute threads for a worker that starts now: its share of the processors among the workers on this machine."""
    if settings.threads:
        return settings.threads
    neighbours = 0
    with suppress(ShoalError):  # without Redis nobody knows of any
        neighbours = sum(about.get("machine") == processors.machine_id() for about in pool.workers().values())
    return processors.threads_for(max(settings.workers, neighbours + 1), processors.available())


def about(worker: Worker, indexes: dict[str, Index]) -> dict[str, Any]:
    """What the worker's heartbeat says of it."""
    model, engine = worker.encoder.model, worker.encoder.engine
    return {
        "state": "stalled" if worker.progress.age_s > STALLED_AFTER_S else "ready",
        "model": model.name,
        "digest": model.digest,
        "dimension": model.dimension,
        "max_tokens": model.max_tokens,
        "pooling": model.pooling,
        "prompts": sorted(model.prompts),
        "cache": worker.cache.table.to_heartbeat() if worker.cache else None,
        "engine": engine.name,
        "precision": engine.precision,
        "threads": engine.threads,
        "host": socket.gethostname(),
        "machine": processors.machine_id(),
        "pid": os.getpid(),
        "texts_per_s": worker.speed.texts_per_s,
        "indexes": {name: _about_index(index.manifest) for name, index in indexes.items()},
        "counters": dict(worker.counters),
    }


def _about_index(manifest: Manifest) -> dict[str, Any]:
    return {name: getattr(manifest, name) for name in ("count", "version", "built_at", "model", "digest", "dimension")}
