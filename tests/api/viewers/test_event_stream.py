"""The events of a job, whose states are made up here."""

import asyncio
import json
from collections.abc import Iterator
from threading import Event
from typing import Any

import pytest
from api_stub import MakeApp, StubWorker
from keys_file import KeysFile

from shoal.errors import ShoalError, Unavailable, UnknownJob
from shoal_api.viewers import event_stream

pytest_plugins = ["api_fixtures"]

QUEUED, RUNNING, DONE = ({"id": "a", "status": word} for word in ("queued", "running", "done"))


class Stop(Event):
    """The sign that the server stops, which comes after `num_looks` reads of the job."""

    def __init__(self, num_looks: int):
        super().__init__()
        self._num_looks = num_looks

    def is_set(self) -> bool:
        """Return True if the sign has come."""
        self._num_looks -= 1
        return self._num_looks <= 0


@pytest.fixture(autouse=True)
def _request(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make a current request without a key, whose response is the stream, and read jobs without a pause."""
    monkeypatch.setattr(event_stream, "LOOK_EVERY_S", 0.0)
    with make_app().test_request_context():
        yield


def blocks(*states: dict[str, Any] | ShoalError, num_looks: int = 1_000) -> list[str]:
    """Return the stream of a job that goes through these states and stays in the last, without the first line."""
    left = list(states)

    async def look() -> dict[str, Any]:
        state = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(state, ShoalError):
            raise state
        return state

    response = event_stream.as_stream(event_stream.events_of_job(look, Stop(num_looks)))
    assert response.headers["X-Accel-Buffering"] == "no"

    async def read() -> bytes:
        return b"".join([piece async for piece in response.pieces])

    found = asyncio.run(read()).decode().split("\n\n")
    assert (found[0], found[-1]) == ("retry: 1000", "")
    return found[1:-1]


def events(*states: dict[str, Any] | ShoalError, num_looks: int = 1_000) -> list[tuple[str, Any]]:
    """Return the events of such a job."""
    pairs = [block.split("\n") for block in blocks(*states, num_looks=num_looks)]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in pairs]


def test_each_state_is_sent_once_and_the_last_one_again_as_the_end() -> None:
    expected = [("progress", QUEUED), ("progress", RUNNING), ("progress", DONE), ("end", DONE)]
    assert events(QUEUED, QUEUED, RUNNING, RUNNING, DONE) == expected


def test_redis_may_go_away_and_come_back() -> None:
    assert events(QUEUED, Unavailable("away"), Unavailable("away"), DONE)[-2:] == [("progress", DONE), ("end", DONE)]


def test_it_ends_with_a_job_that_redis_has_forgotten() -> None:
    assert events(RUNNING, UnknownJob("gone")) == [("progress", RUNNING), ("end", RUNNING)]


def test_comments_show_whether_the_client_is_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(blocks(QUEUED, num_looks=3)) == 1
    monkeypatch.setattr(event_stream, "KEEP_ALIVE_S", -1.0)  # so the time has always passed
    assert blocks(QUEUED, num_looks=3)[1:] == [": the job is as before"] * 3


def test_it_ends_without_an_end_of_the_job_if_the_server_stops() -> None:
    assert events(RUNNING, num_looks=3) == [("progress", RUNNING)]


@pytest.mark.parametrize("new_role", ["", "user"])
def test_events_end_when_their_key_is_dropped_or_gets_another_role(
    make_app: MakeApp, keys_file: KeysFile, new_role: str, stub: StubWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_stream, "LOOK_EVERY_S", 0.02)
    monkeypatch.setattr(event_stream, "KEEP_ALIVE_S", 0.05)
    stub.pause()
    path, admin = keys_file.path, keys_file.admin
    api = make_app(api_keys_file=str(path)).test_client()
    place = api.post("/v1/jobs", json={"op": "embed", "inputs": "storm"}, headers=admin).headers["Location"]
    pieces: Any = iter(api.get(f"{place}/events", headers=admin).response)
    assert bytes([next(pieces) for _ in range(2)][1]).startswith(b"event: progress")
    lines = [line.replace(" admin ", f" {new_role} ") for line in path.read_text().splitlines()]
    path.write_text("\n".join(line for line in lines if new_role))
    for n, _ in enumerate(pieces):
        assert n < 1_000
