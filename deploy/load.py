"""Sends requests to Shoal without a pause, and prints a line every 10 s: load.py URL [THREADS]

Each thread sends embeddings and searches in turns, one request after the other. No text is sent twice, so
none comes from the cache, and no request is sent again. SHOAL_API_KEY is the key, if the service needs one. At SIGTERM
or Ctrl-C it prints the sums; exit code 1 means that a request failed.
"""

import json
import os
import signal
import sys
import time
from collections import Counter, deque
from http.client import HTTPConnection, HTTPException
from itertools import count
from statistics import quantiles
from threading import Event, Thread
from urllib.parse import urlsplit

EVERY_S, TIMEOUT_S = 10.0, 75.0


class Load:
    """Threads that send requests. `seconds` and `errors` have the latencies and errors since the last line."""

    def __init__(self, url: str, num_threads: int):
        self.address, self.stopped = urlsplit(url), Event()
        self.seconds: deque[float] = deque()
        self.errors: deque[str] = deque()
        self.numbers = count()
        self.threads = [Thread(target=self.send_all) for _ in range(num_threads)]

    def send_all(self) -> None:
        """Send one request after the other, until the load is stopped."""
        connection = HTTPConnection(self.address.hostname or "", self.address.port, timeout=TIMEOUT_S)
        while not self.stopped.is_set():
            began = time.perf_counter()
            try:
                self.send(connection)
                self.seconds.append(time.perf_counter() - began)
            except (OSError, HTTPException, ValueError) as error:
                self.errors.append(f"{type(error).__name__}: {error}")
                connection.close()
                self.stopped.wait(0.1)

    def send(self, connection: HTTPConnection) -> None:
        """Send a request and read its answer. Raises ValueError if its status is not 200."""
        number = next(self.numbers)
        text = f"what headline {number} of {time.time()} says of storms"
        path, body = ("/search", {"queries": text, "k": 3}) if number % 2 else ("/embed", {"inputs": text})
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get("SHOAL_API_KEY"):
            headers["Authorization"] = f"Bearer {key}"
        connection.request("POST", path, json.dumps(body), headers)
        response = connection.getresponse()
        answer = response.read()
        if response.status != 200:
            raise ValueError(f"{response.status} {answer[:200].decode(errors='replace')}")

    def run(self) -> int:
        """Print lines until the load is stopped, and then the sums; return the exit code."""
        for thread in self.threads:
            thread.start()
        began, num_answered, errors = time.monotonic(), 0, Counter[str]()
        is_stopped = False
        while not is_stopped:
            if is_stopped := self.stopped.wait(EVERY_S):
                for thread in self.threads:
                    thread.join()
            seconds = [self.seconds.popleft() for _ in range(len(self.seconds))]
            found = [self.errors.popleft() for _ in range(len(self.errors))]
            num_answered += len(seconds)
            errors.update(found)
            cuts = [1e3 * cut for cut in quantiles(seconds, n=100)] if len(seconds) > 1 else [0.0] * 99
            times = f"p50 {cuts[49]:.0f} ms, p99 {cuts[98]:.0f} ms"
            print(f"{len(seconds)} answered, {times}, {len(found)} failed", flush=True)
        print(f"in {time.monotonic() - began:.0f} s {num_answered} answered, {errors.total()} failed", flush=True)
        for error, number in errors.most_common(10):
            print(f"{number} x {error}", flush=True)
        return int(errors.total() > 0 or num_answered == 0)


if __name__ == "__main__":
    load = Load(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 8)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: load.stopped.set())
    sys.exit(load.run())
