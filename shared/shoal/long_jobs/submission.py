"""The kinds of long jobs, and the submission of one."""

import re
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from shoal.contract import traceparent, wire
from shoal.errors import MalformedJob
from shoal.long_jobs.serializer import MsgpackSerializer

_DAY_S = 86_400

#: The ids of long jobs that RQ allows.
JOB_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")

#: The queues, for long work and for quick work. A runner has separate workers for each queue.
QUEUES = (LONG, QUICK) = ("long", "quick")


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of long job, with its queue, its time limits, and the pause before each retry."""

    name: str
    queue: str = LONG
    timeout_s: int = 365 * _DAY_S
    result_ttl_s: int = 7 * _DAY_S
    failure_ttl_s: int = 30 * _DAY_S
    retry_after_s: tuple[int, ...] = (0, 10, 60, 300, 900)


#: The kinds of jobs that a runner does.
KINDS = {
    kind.name: kind
    for kind in (
        Kind("embed_file"),
        Kind("build_index"),
        Kind("manage_index", QUICK, 600, 600, 600, (0, 1, 5)),
    )
}


def queue_name(root: str, queue: str) -> str:
    """Return RQ's name for one of `QUEUES` in the pool whose Redis keys begin with `root`."""
    return f"{root}:{queue}"


@dataclass(frozen=True, slots=True)
class Submission:
    """The request for a long job: its kind, arguments and submitter, and the size of its upload, or 0.

    Submissions that differ only in their traces are equal.
    """

    kind: str
    arguments: dict[str, Any]
    client: str = ""
    upload_bytes: int = 0
    traceparent: str | None = field(default=None, compare=False)

    def to_map(self) -> dict[str, Any]:
        """Return all values except the kind, by their names, as runners of an earlier release read them too."""
        values = asdict(self) | {"webhook": ""}
        del values["kind"]
        return values

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """Return the submission in the bytes that RQ keeps. Raises MalformedJob, InvalidText or TooLarge."""
        match MsgpackSerializer.loads(data):
            case [str(kind), None, [], {"arguments": dict(arguments), "client": str(client), **rest}]:
                trace, size = traceparent.valid(rest.get("traceparent")), rest.get("upload_bytes")
            case _:
                raise MalformedJob("it is no long job of Shoal's: submit jobs by the API, a client or a command")
        if not wire.is_json(arguments):
            raise MalformedJob("arguments has values that JSON cannot hold")
        return cls(kind, arguments, client, size if isinstance(size, int) else 0, trace)
