"""The kinds of long jobs, and how each is retried and kept."""

from dataclasses import dataclass

_DAY_S = 86_400


#: The queues: of long work, of quick work, and of webhooks. A runner has a worker of its own for each.
QUEUES = (LONG, QUICK, WEBHOOKS) = ("long", "quick", "webhooks")


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of long job. `retry_after_s` has the pause before each retry, so it has as many as there are retries.

    `queue` is one of `QUEUES`. A run that takes longer than `timeout_s` is ended.
    """

    name: str
    queue: str = LONG
    timeout_s: int = 365 * _DAY_S
    result_ttl_s: int = 7 * _DAY_S
    failure_ttl_s: int = 30 * _DAY_S
    retry_after_s: tuple[int, ...] = (0, 10, 60, 300, 900)


#: The name of the kind that builds a version of an index.
BUILD = "build_index"

#: Sends the status of a long job to the URL that its submitter named. It is kept as long as any job that has ended,
#: whose status shows what became of it.
WEBHOOK = Kind("send_webhook", WEBHOOKS, 10, 30 * _DAY_S, retry_after_s=(5, 30, 120, 600, 1_800))

#: The kinds that a runner does.
KINDS = {
    kind.name: kind
    for kind in (
        Kind("embed_file"),
        Kind(BUILD),
        Kind("manage_index", QUICK, 600, 600, 600, (0, 1, 5)),
        WEBHOOK,
    )
}
