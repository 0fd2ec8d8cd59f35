"""Every Redis key Shoal uses, composed in one place.

The braces make the pool a hash tag, so that all keys of a pool share one slot and Redis Cluster can hold them.
"""

import re
from dataclasses import dataclass

#: A name that may be part of a key: 1 to 128 of these characters.
NAME = re.compile(r"[A-Za-z0-9_.:-]{1,128}")

#: The same in words, for error messages.
NAME_RULE = "1 to 128 letters, digits, '-', '_', '.' or ':'"


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one pool: `shoal:{default}:lane:interactive` and so on."""

    prefix: str = "shoal"
    pool: str = "default"

    @property
    def root(self) -> str:
        """What every key of the pool begins with."""
        return f"{self.prefix}:{{{self.pool}}}"

    def lane(self, name: str) -> str:
        """Stream of waiting and running jobs: the front of the lane."""
        return f"{self.root}:lane:{name}"

    def back(self, name: str) -> str:
        """Stream of the jobs whose clients had many at the front of the lane already."""
        return f"{self.root}:lane:{name}:back"

    def load(self, name: str) -> str:
        """Hash with the texts and bytes that a lane holds, and the texts that each client has at its front."""
        return f"{self.root}:load:{name}"

    def replies(self, address: str) -> str:
        """Stream that a waiting process reads its replies from."""
        return f"{self.root}:replies:{address}"

    def result(self, job_id: str) -> str:
        """List holding the one reply of a submitted job."""
        return f"{self.root}:result:{job_id}"

    def record(self, job_id: str) -> str:
        """Hash with the status and timings of a submitted job."""
        return f"{self.root}:job:{job_id}"

    def once(self, name: str) -> str:
        """What an idempotency key was used for; `name` is a digest of the key and of whose it is."""
        return f"{self.root}:once:{name}"

    def cache(self, place: str) -> str:
        """The vector of a text that was embedded before; what is stored in a place replaces what was there."""
        return f"{self.root}:cache:{place}"

    @property
    def rates(self) -> str:
        """What the counters of API keys that have a rate begin with."""
        return f"{self.root}:rate"

    @property
    def dead(self) -> str:
        """Stream of jobs nobody could answer, each with its reason."""
        return f"{self.root}:dead"

    @property
    def workers(self) -> str:
        """Set of worker ids; a member counts only while its `worker` key lives."""
        return f"{self.root}:workers"

    def worker(self, worker_id: str) -> str:
        """What a worker says of itself; expires when its heartbeat stops."""
        return f"{self.root}:worker:{worker_id}"

    def words(self, worker_id: str) -> str:
        """What a worker said of its end: a line, and a traceback."""
        return f"{self.root}:words:{worker_id}"
