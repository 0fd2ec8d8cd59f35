"""All parts of a split search are answered from one version of the index, though workers switch one by one."""

import json
from collections.abc import Iterator, Sequence
from itertools import chain, repeat

import pytest
from awaiting import answering
from conftest import PATIENCE_S
from http_servers import Canned, CannedServer
from hypothesis import given
from hypothesis import strategies as st
from queues import Queue

from shoal import Client, HttpClient
from shoal.client.parts import SWITCH_PAUSE_S, jobs_to_repeat
from shoal.contract.jobs import TEXTS_PER_JOB, Job
from shoal.contract.replies import Reply
from shoal.errors import Internal

pytest_plugins = ["http_fixtures"]

#: Queries that are split into three jobs.
QUERIES = ["storm"] * (2 * TEXTS_PER_JOB + 5)


def ids(results: Sequence[Sequence[dict[str, str]]]) -> set[str]:
    """Return the ids of all hits. The id of a hit is its version of the index."""
    assert len(results) == len(QUERIES)
    return {hit["id"] for hits in results for hit in hits}


@pytest.mark.parametrize(
    ("versions", "expected", "num_jobs"),
    [
        (repeat("v1"), {"v1"}, 3),
        (chain(["v1", "v1"], repeat("v2")), {"v2"}, 5),
        (chain(["v1", "v2", "v1", "v2"], repeat("v2")), {"v2"}, 6),
    ],
)
def test_parts_from_older_versions_are_computed_again(
    queue: Queue, client: Client, versions: Iterator[str], expected: set[str], num_jobs: int
) -> None:
    answered: list[Job] = []

    def reply(job: Job) -> Reply:
        answered.append(job)
        version = next(versions)
        hits = [[{"id": version, "score": 1.0, "text": "t"}] for _ in job.texts]
        return Reply(job.id, hits=hits, index_version=version)

    with answering(queue, reply):
        assert ids(client.search(QUERIES)) == expected
    assert len(answered) == num_jobs


def test_over_http_parts_from_other_versions_are_requested_again(canned: CannedServer) -> None:
    limits = {"max_backlog_texts": 1, "max_response_mb": 96, "max_request_bytes": 2**25}
    bodies = [{"dimension": 4, "limits": limits}]
    bodies += [{"results": [[{"id": version}]], "index_version": version} for version in ("v1", "v1", "v2")]
    canned.answers = [Canned(200, json.dumps(body).encode(), {"Content-Type": "application/json"}) for body in bodies]
    with HttpClient(canned.url, timeout_s=PATIENCE_S) as http:
        assert http.search(["a", "b", "c"]) == [[{"id": "v2"}]] * 3
    assert len(canned.requests) > 4


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=8), st.lists(st.sampled_from("abc"), max_size=30))
def test_all_replies_are_from_one_version_in_the_end(first: list[str], later: list[str]) -> None:
    versions = chain(later, repeat("d"))
    found = [Reply(str(n), index_version=version) for n, version in enumerate(first)]
    parts = [Job([str(n)]) for n in range(len(first))]
    for pause_s, numbers, again in jobs_to_repeat(parts, found, float("inf")):
        assert pause_s in (0.0, SWITCH_PAUSE_S)
        assert numbers == sorted(set(numbers))
        assert [job.texts for job in again] == [[str(n)] for n in numbers]
        for n in numbers:
            found[n] = Reply(str(n), index_version=next(versions))
    assert len({reply.index_version for reply in found}) == 1
    assert [reply.id for reply in found] == [str(n) for n in range(len(first))]


@pytest.mark.parametrize("until", [0, float("inf")])
def test_after_an_error_or_the_deadline_nothing_is_computed_again(until: float) -> None:
    replies = [Reply(name, index_version=name) for name in ("v1", "v2", "v1")]
    if until:
        replies.insert(1, Reply.failure("b", Internal("bad")))
    assert list(jobs_to_repeat([], replies, until)) == []
