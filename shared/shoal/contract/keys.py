"""Names of all Redis keys that Shoal uses.

The braces make the pool a hash tag, so that all keys of a pool share one slot and Redis Cluster can hold them.
"""

import re
from dataclasses import dataclass

#: A name that may be part of a key: 1 to 128 of these characters.
NAME = re.compile(r"[A-Za-z0-9_.:-]{1,128}")

#: The same in words, for error messages.
NAME_RULE = "1 to 128 letters, digits, '-', '_', '.' or ':'"


#: What is kept of a lane, with the type of each key: its unanswered jobs by the time of their put; the texts and bytes
#: of all and of each client; the clients that wait for their first turn, the others, and what each may still take; and
#: the marker that wakes an idle worker. The jobs of a client are in the list `of:CLIENT`.
LANE_KEYS = {"jobs": "zset", "load": "hash", "new": "list", "old": "list", "credit": "hash", "wake": "list"}


@dataclass
class Keys:
    """The keys of one pool: `shoal:{default}:lane:interactive` and so on."""

    prefix: str = "shoal"
    pool: str = "default"

    def __post_init__(self) -> None:
        #: The beginning of every key of the pool.
        self.root = root = f"{self.prefix}:{{{self.pool}}}"
        #: The list of the ids of waiting jobs that may have ended a worker.
        self.suspects = f"{root}:suspects"
        #: The set of the workers that hold jobs.
        self.holders = f"{root}:holders"
        #: The sorted set of the results that were not read, by the time at which each is looked at next.
        self.unread = f"{root}:unread"
        #: The hash with the number and bytes of the results that were not read, and the bytes of each client.
        self.unread_load = f"{root}:unread:load"
        #: The sorted set of the ids of long jobs, by the time of their submission.
        self.long_jobs = f"{root}:long-jobs"
        #: The hash with a line for each index that was ever changed: its last change, and sums.
        self.changed = f"{root}:changed"
        #: The beginning of the counters of API keys that have a rate.
        self.rates = f"{root}:rate"
        #: The hash with the limits of the lanes and of jobs, as the workers have announced them.
        self.limits = f"{root}:limits"
        #: The hash with the texts of the scripts for programs that put and cancel jobs.
        self.scripts = f"{root}:scripts"
        #: The stream of dead letters: jobs that could not be answered, each with its reason.
        self.dead = f"{root}:dead"
        #: The sorted set of the ids of workers, by the time until which they count as alive.
        self.alive = f"{root}:alive"
        #: The key that exists while no worker need look for the jobs of dead workers: one has just looked.
        self.reclaimed = f"{root}:reclaimed"

    def lane(self, name: str) -> str:
        """Return the list onto which any program may push a job."""
        return f"{self.root}:lane:{name}"

    def of_lane(self, name: str, what: str) -> str:
        """Return one of `LANE_KEYS` of a lane."""
        return f"{self.root}:lane:{name}:{what}"

    def held(self, worker_id: str) -> str:
        """Return the sorted set of the ids of the jobs that a worker holds, by the time of their delivery."""
        return f"{self.root}:held:{worker_id}"

    def replies(self, address: str) -> str:
        """Return the stream from which a process reads its replies."""
        return f"{self.root}:replies:{address}"

    def result(self, job_id: str) -> str:
        """Return the list with the one reply to a submitted job."""
        return f"{self.root}:result:{job_id}"

    def record(self, job_id: str) -> str:
        """Return the hash with all of an unanswered job, and with the status and timings of a submitted one."""
        return f"{self.root}:job:{job_id}"

    def once(self, name: str) -> str:
        """Return the key of the job that an idempotency key was used for; `name` is a digest of key and owner."""
        return f"{self.root}:once:{name}"

    def long_jobs_of(self, client: str) -> str:
        """Return the same of one client; `client` is a digest of its name."""
        return f"{self.root}:long-jobs:{client}"

    def deleted_build(self, job_id: str) -> str:
        """Return the key that exists for some days after a build that was not done is deleted: its job."""
        return f"{self.root}:deleted-build:{job_id}"

    def changes(self, index: str) -> str:
        """Return the stream with the changes of an index that no build has folded in, and a few that one has."""
        return f"{self.root}:changes:{index}"

    def cache(self, place: str) -> str:
        """Return the key of a place in the cache of vectors."""
        return f"{self.root}:cache:{place}"

    def processors(self, group: str) -> str:
        """Return the sorted set of the workers that share processors, by the time until which they count as alive."""
        return f"{self.root}:processors:{group}"

    def worker(self, worker_id: str) -> str:
        """Return the key of a worker's heartbeat, which says what the worker serves."""
        return f"{self.root}:worker:{worker_id}"

    def crash_report(self, worker_id: str) -> str:
        """Return the key of a worker's crash report: a summary in one line, then a traceback."""
        return f"{self.root}:crash:{worker_id}"
