"""Texts that crash a worker, hang it or take all its memory, beside others, with real workers that are restarted."""

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blocking import DeadLetters
from conftest import TESTS, wait_until
from poisoned_worker import HARM
from process import environment
from queues import queue_of

from shoal import Client
from shoal.contract.keys import Keys
from shoal.contract.options import Options
from shoal.errors import Internal, Poisoned
from shoal_workers.encoding.encoder import Encoder
from shoal_workers.loop.admission import MAX_DEATHS
from shoal_workers.process.watchdog import EXIT_STALLED

pytestmark = pytest.mark.wide

NUM_GOOD, NUM_WORKERS = 100, 3

#: For each harm, words in the reason and in the traceback of the dead letter, and the exit code of the process, if any.
EXPECTED = {
    "abort": ("Fatal Python error: Aborted", "in abort", -signal.SIGABRT),
    "kill": ("ended without a report: killed, or out of memory", "", -signal.SIGKILL),
    "hang": ("stalled while encoding", "in hang", EXIT_STALLED),
    "fail": ("the engine failed on text 0", "the engine chokes", None),
    "panic": ("BaseException: the engine panics", "in panic", 1),
    "gorge": ("the engine failed on text 0", "MemoryError", None),
}

NUM_FATAL = sum(exit_code is not None for _, _, exit_code in EXPECTED.values())


class Workers:
    def __init__(self, log: Path, settings: dict[str, Any]):
        self.exit_codes: Counter[int] = Counter()
        self._log = log
        self._environment = environment(**settings)
        self._running = [self._start() for _ in range(NUM_WORKERS)]

    def look_after(self) -> None:
        for n, process in enumerate(self._running):
            if (code := process.poll()) is not None:
                self.exit_codes[code] += 1
                self._running[n] = self._start()

    def kill(self) -> None:
        for process in self._running:
            process.kill()
            process.wait()

    def _start(self) -> "subprocess.Popen[bytes]":
        program = TESTS / "shared/pool/poisoned_worker.py"
        with self._log.open("ab") as log:
            return subprocess.Popen([sys.executable, str(program)], env=self._environment, stdout=log, stderr=log)


@pytest.fixture
def workers(home: Path, tiny_source: Path, tmp_path: Path, keys: Keys, redis_url: str) -> Iterator[Workers]:
    settings = {"redis_url": redis_url, "key_prefix": keys.prefix, "pool": keys.pool, "home": home, "cache_mb": 0}
    settings |= {"model": tiny_source, "precision": "f32", "threads": 1, "stall_timeout_s": 600, "log_level": "info"}
    workers = Workers(tmp_path / "workers.log", settings)
    yield workers
    workers.kill()


def test_poison_harms_only_itself(workers: Workers, client: Client, encoder: Encoder) -> None:
    texts = [f"rain {n}" for n in range(NUM_GOOD)]
    wait_until(lambda: len(client.pool.ready()) == NUM_WORKERS)
    job_ids = {text: client.submit("embed", text).id for text in [*texts[:50], *HARM, *texts[50:]]}

    def is_done() -> bool:
        workers.look_after()
        return not any(queue_of(client).backlog().values())

    wait_until(is_done)
    vectors = [client.job(job_ids[text]).result(0).vectors for text in texts]
    found = np.concatenate([vector for vector in vectors if vector is not None])
    assert np.allclose(found, encoder.embed(texts, Options(), ""), atol=1e-5)

    letters = {job.texts[0]: letter for letter in DeadLetters(queue_of(client)).newest() if (job := letter.job())}
    assert len(DeadLetters(queue_of(client))) == len(letters) == len(HARM)
    for text, harm in HARM.items():
        letter, (reason, trace, exit_code) = letters[text], EXPECTED[harm.__name__]
        assert reason in letter.reason
        assert trace in letter.traceback
        with pytest.raises(Internal if exit_code is None else Poisoned):
            client.job(job_ids[text]).result(0)
        assert exit_code is None or workers.exit_codes[exit_code] <= MAX_DEATHS
        assert letter.worker
    assert sum(workers.exit_codes.values()) <= MAX_DEATHS * NUM_FATAL
    assert set(workers.exit_codes) <= {exit_code for _, _, exit_code in EXPECTED.values()}
