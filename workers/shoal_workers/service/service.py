"""The service: a worker process that opens its model and indexes, joins the pool, and runs until it is stopped."""

import logging
import os
import secrets
import signal
import socket
from collections.abc import Callable
from contextlib import closing, nullcontext, suppress
from functools import partial
from hashlib import blake2b
from threading import Event
from time import monotonic
from typing import Any
from urllib.parse import quote

from threadpoolctl import threadpool_limits

from shoal import __version__
from shoal.broker.broker import Broker
from shoal.cache.cache import Cache, Table, num_places
from shoal.changes.change_log import ChangeLog
from shoal.errors import ShoalError
from shoal.operations.search import MAX_JOB_HITS, MAX_JOB_ROWS
from shoal.process.system_limits import raise_file_limit
from shoal.process.tracing import open_tracer
from shoal.queue.consumer import Consumer
from shoal.queue.lane import LaneLimits
from shoal.queue.pool import Pool
from shoal.settings import Settings
from shoal_workers.encoding.encoder import Encoder
from shoal_workers.encoding.reranker import LateReranker, Reranker
from shoal_workers.index.serving.open_indexes import OpenIndexes, describe
from shoal_workers.index.serving.open_indexes import watched as watched_indexes
from shoal_workers.index.store.copy_process import check_store, kept_copies
from shoal_workers.loop.admission import Limits
from shoal_workers.loop.worker import Worker
from shoal_workers.model.model import Model
from shoal_workers.model.prepare import prepare_if_needed
from shoal_workers.process import processors
from shoal_workers.process.crash_report import CrashReports
from shoal_workers.process.heartbeat import Heartbeat
from shoal_workers.process.watchdog import STALLED_AFTER_S, Watchdog
from shoal_workers.service.compute_threads import ProcessorShare, Resizing

log = logging.getLogger(__name__)

#: Longest wait of a worker for an answer of Redis, in seconds. If a reply is not written in time, its job runs again.
ANSWER_S = 2.0

#: Number of open files that a worker asks the system for: enough for some thousand indexes, whose mapped files count.
MAX_FILES = 65_536


def serve(settings: Settings, encoder: Encoder | None = None) -> None:
    """Run one worker until SIGTERM or SIGINT, with `encoder` or else with the model that the settings name."""
    check_store(settings)
    raise_file_limit(MAX_FILES)
    tracer = open_tracer(settings, "worker")
    broker, keys = Broker.connect(settings.redis_address, ANSWER_S), settings.keys
    crash_reports = CrashReports(broker, keys, settings.home_folder / "crashes" / quote(keys.root, safe=""))
    share = share_of(settings, Pool(broker, keys))
    threadpool_limits(1, user_api="blas")
    encoder = encoder or open_encoder(settings, share.threads)
    log.info("%s runs on %s in %s", encoder.model.name, encoder.engine.name, encoder.engine.precision)
    reranker = open_reranker(settings, share.threads)
    stopping = Event()
    for number in (signal.SIGTERM, signal.SIGINT):  # until here, a signal ends the process at once, as it has no jobs
        signal.signal(number, lambda *_: stopping.set())
    sizes = {"max_reply_bytes": settings.max_reply_mb * 2**20, "max_unread_bytes": settings.max_result_mb * 2**20}
    indexes = OpenIndexes.from_settings(settings, encoder.model, share.threads, ChangeLog(broker, keys), stopping)
    resizing = Resizing(share.threads, [encoder, *([reranker] if reranker else [])], indexes.resize)
    worker_id = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
    worker = Worker(
        Consumer(broker, keys, worker_id, settings.result_ttl_s, **sizes),
        encoder,
        indexes,
        encoder.bucketing(settings.max_batch_tokens),
        limits_of(settings),
        stopping,
        open_cache(settings, encoder, broker),
        crash_reports,
        reranker=reranker,
        before_pass=resizing.take,
        tracer=tracer,
    )
    with suppress(ShoalError):  # without Redis, a later worker on this machine does it
        crash_reports.forward_files()
    with (
        closing(broker),
        closing(tracer) if tracer else nullcontext(),
        kept_copies(settings),
        watched_indexes(indexes),
        closing(resizing),
    ):
        _run(worker, settings, crash_reports, lambda n: resizing.start(share.update(n, monotonic())))
    log.info("worker %s has stopped", worker.id)


def _run(worker: Worker, settings: Settings, reports: CrashReports, note_sharing: Callable[[int], object]) -> None:
    """Run the worker to its end, and announce and watch it meanwhile. If it hangs, it leaves the pool with a report."""

    def report(summary: str, trace: str) -> None:
        reports.write(worker.id, summary, trace)
        worker.pool.leave(worker.id, processors.group())  # so that other workers do its jobs

    with (
        announced(worker, LaneLimits.from_settings(settings), note_sharing),
        reports.recorded(worker.id) as file,
        closing(Watchdog(worker.activity, settings.stall_timeout_s, file, report).start()),
    ):
        worker.run()


def announced(
    worker: Worker, lane_limits: LaneLimits, note_sharing: Callable[[int], object] = lambda _: None
) -> "closing[Heartbeat]":
    """Announce the worker to the pool during the `with` block. `Heartbeat` explains `note_sharing`."""
    contents, group = partial(about, worker, lane_limits), processors.group()
    return closing(Heartbeat(worker.pool, worker.id, contents, group, note_sharing).start())


def open_encoder(settings: Settings, threads: int) -> Encoder:
    """Return the encoder of the model in the settings. The model is prepared first if necessary."""
    folder = prepare_if_needed(settings.home_folder, settings.model)
    return Encoder.open(folder, settings.engine, settings.precision, threads)


def open_reranker(settings: Settings, threads: int) -> Reranker | None:
    """Return the reranker in the settings, or None if they name none. Its model is prepared first if necessary."""
    if not settings.reranker:
        return None
    folder = prepare_if_needed(settings.home_folder, settings.reranker)
    kind = LateReranker if "multivector" in Model.open(folder).outputs else Reranker
    return kind.open(folder, settings.engine, settings.precision, threads)


def open_cache(settings: Settings, encoder: Encoder, broker: Broker) -> Cache | None:
    """Return the pool's cache of the vectors of texts, or None if the settings turn it off."""
    model, keys = encoder.model, settings.keys
    places = num_places(settings.cache_mb, model.dimension, keys) if model.pooling else 0  # only vectors are cached
    if not places:
        return None
    fingerprint = blake2b(f"{__version__} {encoder.fingerprint}".encode(), digest_size=16).hexdigest()
    table = Table(
        model.name, model.dimension, model.pooling, fingerprint, places, model.prompts, model.prompt_for(None)
    )
    return Cache(broker, keys, table)


def limits_of(settings: Settings) -> Limits:
    """Return the limits of a worker with these settings."""
    return Limits(
        max_job_texts=settings.max_job_texts,
        max_text_chars=settings.max_text_chars,
        max_batch_texts=settings.max_batch_texts,
    )


def share_of(settings: Settings, pool: Pool) -> ProcessorShare:
    """Return the share of the processors for a worker that starts now."""
    num_others = 0
    with suppress(ShoalError):  # without Redis, no other worker is known
        num_others = len(pool.sharing(processors.group()))
    return ProcessorShare(num_others + 1, settings.workers, settings.threads)


def about(worker: Worker, lane_limits: LaneLimits | None = None) -> dict[str, Any]:
    """Return the contents of the worker's heartbeat, with the `lane_limits` that producers obey."""
    model, engine, now_s = worker.encoder.model, worker.encoder.engine, worker.clock.now()
    return {
        "state": "stalled" if worker.activity.age_s > STALLED_AFTER_S else "ready",
        "model": model.name,
        "digest": model.digest,
        "fingerprint": worker.encoder.fingerprint,
        "dimension": model.dimension,
        "matryoshka_dimensions": model.matryoshka_dimensions,
        "max_tokens": model.max_tokens,
        "pooling": model.pooling,
        "outputs": list(model.outputs),
        "prompts": sorted(model.prompts),
        "reranker": worker.reranker.model.name if worker.reranker else None,
        "reranker_fingerprint": worker.reranker.fingerprint if worker.reranker else None,
        "cache": worker.cache.table.to_heartbeat() if worker.cache else None,
        "engine": engine.name,
        "precision": engine.precision,
        "threads": engine.threads,
        "host": socket.gethostname(),
        "machine": processors.machine_id(),
        "pid": os.getpid(),
        "clock_offset_s": worker.clock.offset_s,
        "clock_error_s": worker.clock.error_s,
        "limits": (lane_limits or LaneLimits()).to_map()
        | {
            "max_job_texts": worker.limits.max_job_texts,
            "max_text_chars": worker.limits.max_text_chars,
            "max_job_hits": MAX_JOB_HITS,
            "max_job_rows": MAX_JOB_ROWS,
            "max_reply_bytes": worker.consumer.max_reply_bytes,
            "result_ttl_s": worker.consumer.result_ttl_s,
        },
        "indexes": describe(worker.indexes),
        "index_errors": worker.indexes.errors if isinstance(worker.indexes, OpenIndexes) else {},
        "written_at": None if worker.clock.error_s is None else now_s,  # unknown until the clock is measured
        "recent": list(worker.log.recent),
        **worker.log.measurements.to_heartbeat(),
    }
