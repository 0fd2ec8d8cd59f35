"""A hostile client: it puts more jobs than the pool can compute, with idempotency keys, and reads no result."""

import time
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from random import Random
from threading import Event, Thread

from chaos_run.cases import WORDS, in_letters
from chaos_run.http_requests import Http
from shoal.errors import ShoalError

#: The hostile client's address, which no other client has.
ADDRESS = "127.0.0.99"

#: Texts of each job: more than 32, so it counts as a long job.
NUM_TEXTS = 33

#: One in `EVERY_HUGE` jobs has `NUM_HUGE` texts of `HUGE_CHARS`. One in `EVERY_BROKEN` requests is not valid.
EVERY_HUGE, NUM_HUGE, HUGE_CHARS, EVERY_BROKEN = 40, 4, 2**19, 10

#: The number of the hostile client's first text. Other clients' texts have smaller numbers, so none repeats.
FIRST_NAME = 26**5

#: Seconds that the hostile client waits after a refusal.
AGAIN_S = 0.1

_BROKEN = ({"op": "embed", "inputs": [[[]]]}, {"op": "drop"}, ["storm"], {"op": "embed", "inputs": "storm", "lane": 7})


class Hostile:
    """The thread of the client, the outcomes of its requests, and the ids of its accepted jobs."""

    def __init__(self, ports: Iterable[int], seed: int, seconds: float):
        self.outcomes: Counter[str] = Counter()
        self.job_ids: set[str] = set()
        self._ports, self._random, self._seconds = ports, Random(f"hostile {seed}"), seconds
        self._stopped = Event()
        self._thread = Thread(target=self._run, daemon=True)
        self.start = self._thread.start

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        if self._thread.ident:
            self._thread.join(30)

    def _run(self) -> None:
        until, number = time.monotonic() + self._seconds, 0
        with closing(Http(self._ports, ADDRESS)) as http:
            while time.monotonic() < until and not self._stopped.is_set():
                number += 1
                if number % EVERY_BROKEN == 0:
                    self._put(http, self._random.choice(_BROKEN), "broken")
                lane = self._random.choice(("interactive", "bulk"))
                job = {"op": "embed", "lane": lane, "inputs": self._texts(number)}
                # The client puts a job again until it knows the id, so it knows all its jobs.
                while not self._put(http, job, f"hostile-{number}") and not self._stopped.wait(AGAIN_S):
                    pass

    def _put(self, http: Http, job: object, key: str) -> bool:
        """Put a job once; return True if it was accepted."""
        try:
            self.job_ids.add(http.ask("POST", "/v1/jobs", job, Idempotency_Key=key)[1]["id"])
            outcome = "accepted"
        except ShoalError as error:
            outcome = error.code
        except ConnectionError:
            outcome = "no answer"
        self.outcomes[outcome] += 1
        return outcome == "accepted"

    def _texts(self, number: int) -> list[str]:
        name = in_letters(FIRST_NAME + number)
        if number % EVERY_HUGE == 0:
            return [f"{name} {letter * HUGE_CHARS}" for letter in self._random.choices("x天z氣", k=NUM_HUGE)]
        return [" ".join([name, *self._random.choices(WORDS, k=5)]) for _ in range(NUM_TEXTS)]
