"""Names of all Redis keys that Shoal uses. docs/architecture.md describes their contents.

The braces make the pool a hash tag, so that all keys of a pool are in one slot of a Redis Cluster.
"""

import re
from dataclasses import dataclass

#: A name that may be part of a key: 1 to 128 of these characters.
NAME = re.compile(r"[A-Za-z0-9_.:-]{1,128}")

#: The same rule in words, for error messages.
NAME_RULE = "1 to 128 letters, digits, '-', '_', '.' or ':'"

#: The keys of a lane and their types: the unanswered jobs, sorted by the time of their put; the numbers of texts and
#: bytes of the lane and of each client; the ring of new clients; the ring of other clients; the texts left in each
#: client's turn; and the marker that wakes an idle worker. The jobs of a client are in the list `of:CLIENT`.
LANE_KEYS = {"jobs": "zset", "load": "hash", "new": "list", "old": "list", "credit": "hash", "wake": "list"}


@dataclass
class Keys:
    """The keys of one pool: `shoal:{default}:lane:interactive` and so on."""

    prefix: str = "shoal"
    pool: str = "default"

    def __post_init__(self) -> None:
        self.root = root = f"{self.prefix}:{{{self.pool}}}"
        self.suspects = f"{root}:suspects"
        self.holders = f"{root}:holders"
        self.unread = f"{root}:unread"
        self.unread_load = f"{root}:unread:load"
        self.long_jobs = f"{root}:long-jobs"
        self.changed = f"{root}:changed"
        self.rates = f"{root}:rate"
        self.limits = f"{root}:limits"
        self.scripts = f"{root}:scripts"
        self.dead = f"{root}:dead"
        self.alive = f"{root}:alive"
        self.reclaimed = f"{root}:reclaimed"

    def lane(self, name: str) -> str:
        """Return the key of a lane's list onto which any program may push a job."""
        return f"{self.root}:lane:{name}"

    def of_lane(self, name: str, what: str) -> str:
        """Return a key of a lane; `what` is one of `LANE_KEYS`."""
        return f"{self.root}:lane:{name}:{what}"

    def held(self, worker_id: str) -> str:
        """Return the key of a sorted set: the ids of the jobs that a worker holds, sorted by time of delivery."""
        return f"{self.root}:held:{worker_id}"

    def replies(self, address: str) -> str:
        """Return the key of the stream from which a process reads its replies."""
        return f"{self.root}:replies:{address}"

    def result(self, job_id: str) -> str:
        """Return the key of the list with the reply to a submitted job."""
        return f"{self.root}:result:{job_id}"

    def record(self, job_id: str) -> str:
        """Return the key of a job's record, a hash. A submitted job's record stays after the answer."""
        return f"{self.root}:job:{job_id}"

    def once(self, name: str) -> str:
        """Return the key that records the use of an idempotency key; `name` is a digest of that key and its owner."""
        return f"{self.root}:once:{name}"

    def long_jobs_of(self, client: str) -> str:
        """Return the key of a sorted set with a client's long jobs; `client` is a digest of the client's name."""
        return f"{self.root}:long-jobs:{client}"

    def changes(self, index: str) -> str:
        """Return the key of a stream with an index's changes: changes not folded in yet, and a few older changes."""
        return f"{self.root}:changes:{index}"

    def cache(self, place: str) -> str:
        """Return the key of one of the numbered places for vectors in the cache."""
        return f"{self.root}:cache:{place}"

    def processors(self, group: str) -> str:
        """Return the key of a sorted set: workers that share processors, scored by when their heartbeats expire."""
        return f"{self.root}:processors:{group}"

    def worker(self, worker_id: str) -> str:
        """Return the key of a worker's heartbeat."""
        return f"{self.root}:worker:{worker_id}"

    def crash_report(self, worker_id: str) -> str:
        """Return the key of a worker's crash report: a summary in one line, then a traceback."""
        return f"{self.root}:crash:{worker_id}"
