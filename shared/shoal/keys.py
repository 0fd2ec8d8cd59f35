"""Names of all Redis keys that Shoal uses.

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
        """Return the beginning of every key of the pool."""
        return f"{self.prefix}:{{{self.pool}}}"

    def lane(self, name: str) -> str:
        """Return the stream with the front of a lane: unanswered jobs, taken or not."""
        return f"{self.root}:lane:{name}"

    def overflow(self, name: str) -> str:
        """Return the stream with the overflow of a lane: unanswered jobs that workers may take."""
        return f"{self.root}:lane:{name}:overflow"

    def waiting(self, name: str) -> str:
        """Return the sorted set with the ids of the jobs that wait in the overflow."""
        return f"{self.root}:lane:{name}:waiting"

    def places(self, name: str) -> str:
        """Return the hash with the jobs of the overflow by id: a waiting one whole, one in the stream by its entry."""
        return f"{self.root}:lane:{name}:places"

    def tags(self, name: str) -> str:
        """Return the sorted set with the virtual time of the overflow and the last tag of each of its clients."""
        return f"{self.root}:lane:{name}:tags"

    def load(self, name: str) -> str:
        """Return the hash with the texts and bytes that a lane holds, and the texts of each client at its front."""
        return f"{self.root}:lane:{name}:load"

    def of_lane(self, name: str) -> tuple[str, ...]:
        """Return all keys of a lane, in the order in which the scripts take them."""
        return tuple(key(name) for key in (self.lane, self.overflow, self.waiting, self.places, self.tags, self.load))

    def replies(self, address: str) -> str:
        """Return the stream from which a process reads its replies."""
        return f"{self.root}:replies:{address}"

    def result(self, job_id: str) -> str:
        """Return the list with the one reply to a submitted job."""
        return f"{self.root}:result:{job_id}"

    @property
    def unread(self) -> str:
        """Return the sorted set of the results that were not read, by the time at which each is looked at next."""
        return f"{self.root}:unread"

    @property
    def unread_load(self) -> str:
        """Return the hash with the number and bytes of these results, and the bytes of each client."""
        return f"{self.root}:unread:load"

    def record(self, job_id: str) -> str:
        """Return the hash with the status and timings of a submitted job."""
        return f"{self.root}:job:{job_id}"

    def once(self, name: str) -> str:
        """Return the key of the job that an idempotency key was used for; `name` is a digest of key and owner."""
        return f"{self.root}:once:{name}"

    @property
    def long_jobs(self) -> str:
        """Return the sorted set of the ids of long jobs, by the time of their submission."""
        return f"{self.root}:long-jobs"

    def long_jobs_of(self, client: str) -> str:
        """Return the same of one client; `client` is a digest of its name."""
        return f"{self.root}:long-jobs:{client}"

    def deleted_build(self, job_id: str) -> str:
        """Return the key that exists for some days after a build that was not done is deleted: its job."""
        return f"{self.root}:deleted-build:{job_id}"

    def changes(self, index: str) -> str:
        """Return the stream with the changes of an index that no build has folded in, and a few that one has."""
        return f"{self.root}:changes:{index}"

    @property
    def changed(self) -> str:
        """Return the hash with a line for each index that was ever changed: its last change, and sums."""
        return f"{self.root}:changed"

    def cache(self, place: str) -> str:
        """Return the key of a place in the cache of vectors."""
        return f"{self.root}:cache:{place}"

    @property
    def rates(self) -> str:
        """Return the beginning of the counters of API keys that have a rate."""
        return f"{self.root}:rate"

    @property
    def dead(self) -> str:
        """Return the stream of dead letters: jobs that could not be answered, each with its reason."""
        return f"{self.root}:dead"

    @property
    def dead_bytes(self) -> str:
        """Return the key with the bytes of the dead letters."""
        return f"{self.root}:dead:bytes"

    @property
    def alive(self) -> str:
        """Return the sorted set of the ids of workers, by the time until which they count as alive."""
        return f"{self.root}:alive"

    @property
    def listening(self) -> str:
        """Return the sorted set of the idle workers that block on the streams, by the time until which they do."""
        return f"{self.root}:listening"

    @property
    def sleeping(self) -> str:
        """Return the sorted set of the other idle workers, by the time until which they sleep."""
        return f"{self.root}:sleeping"

    def wake(self, worker_id: str) -> str:
        """Return the list on which an idle worker sleeps until another one wakes it."""
        return f"{self.root}:wake:{worker_id}"

    def processors(self, group: str) -> str:
        """Return the sorted set of the workers that share processors, by the time until which they count as alive."""
        return f"{self.root}:processors:{group}"

    def worker(self, worker_id: str) -> str:
        """Return the key of a worker's heartbeat, which says what the worker serves."""
        return f"{self.root}:worker:{worker_id}"

    @property
    def claim_turn(self) -> str:
        """Return the key that exists while no worker need look for the jobs of dead workers: one has just looked."""
        return f"{self.root}:claim-turn"

    def isolated(self, worker_id: str) -> str:
        """Return the key that names the job which a worker runs alone."""
        return f"{self.root}:isolated:{worker_id}"

    def crash_report(self, worker_id: str) -> str:
        """Return the key of a worker's crash report: a summary in one line, then a traceback."""
        return f"{self.root}:crash:{worker_id}"
