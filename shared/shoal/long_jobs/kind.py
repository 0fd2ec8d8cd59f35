"""The kinds of long jobs, and how each is retried and kept."""

from dataclasses import dataclass

_DAY_S = 86_400


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of long job. `retry_after_s` has the pause before each retry, so it has as many as there are retries.

    A quick kind has a queue of its own, so that it does not wait for the others.
    """

    name: str
    is_quick: bool = False
    timeout_s: int = 365 * _DAY_S
    result_ttl_s: int = 7 * _DAY_S
    failure_ttl_s: int = 30 * _DAY_S
    retry_after_s: tuple[int, ...] = (0, 10, 60, 300, 900)


#: Sends the status of a long job to the URL that its submitter named.
WEBHOOK = Kind("send_webhook", True, 60, 600, _DAY_S, (5, 30, 120, 600, 1_800))

#: The kinds that a runner does.
KINDS = {
    kind.name: kind
    for kind in (
        Kind("embed_file"),
        Kind("build_index"),
        Kind("manage_index", True, 600, 600, 600, (0, 1, 5)),
        WEBHOOK,
    )
}
