"""Dead letters can be listed, shown, retried and dropped by a program, over HTTP and from the command line."""

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from api_stub import StubWorker
from blocking import DeadLetters, commands_of
from click.testing import CliRunner, Result
from conftest import PATIENCE_S
from flask.testing import FlaskClient
from queues import Queue, set_limits

import shoal.queue.consumer
from shoal.cli.main import main
from shoal.contract.jobs import LANES, Job
from shoal.contract.replies import Reply
from shoal.errors import Overloaded, UnknownJob
from shoal.operations import Embed, Search
from shoal.queue.consumer import Answer
from shoal.queue.dead_letters import MAX_LISTED_BYTES, DeadLetter
from shoal.queue.lane import LaneLimits
from shoal.queue.producer import Producer

pytest_plugins = ["api_fixtures"]

#: The limit on the bytes of all letters, in the test of this limit.
MAX_BYTES = 50_000


def bury(queue: Queue, data: bytes, reason: str = "poisoned: why", trace: str = "line 1") -> str:
    queue.redis.rpush(queue.keys.lane("bulk"), data)
    (delivery,) = queue.take("w1", LANES, 1)
    queue.reply([Answer(delivery, letter=DeadLetter(reason, trace, "w1"))])
    return DeadLetters(queue).newest(1)[0].id


def listed(queue: Queue) -> list[str]:
    return [letter.id for letter in DeadLetters(queue).newest()]


class TestDeadLetters:
    def test_a_list_has_the_beginning_of_each_job(self, queue: Queue) -> None:
        job = Search(["x" * 100_000, "storm"], id="mine")
        for _ in range(120):
            bury(queue, job.pack(), "internal: " + "y" * 10_000)
        received = queue.redis.info("stats")["total_net_output_bytes"]
        letters = DeadLetters(queue).newest(110)
        assert queue.redis.info("stats")["total_net_output_bytes"] - received < 110 * 3 * MAX_LISTED_BYTES
        assert [letter.id for letter in letters] == sorted((letter.id for letter in letters), reverse=True)
        assert len({letter.id for letter in letters}) == 110
        assert {letter.size_bytes for letter in letters} == {len(job.pack())}
        outline = letters[0].outline()
        assert (outline.id, outline.op, outline.num_texts) == ("mine", "search", 2)
        assert DeadLetters(queue).get(letters[0].id).job() == job

    def test_a_retried_job_runs_again_and_its_result_can_be_fetched(self, queue: Queue) -> None:
        letters, job = DeadLetters(queue), Embed(["storm"], reply_to="gone", deadline=1.0, timeout_s=5.0)
        job_id = letters.retry(bury(queue, job.pack()))
        assert len(letters) == 0
        (delivery,) = queue.take("w2", ["bulk"], 1)
        again = delivery.job()
        assert (again.id, again.texts) == (job_id, ["storm"])
        assert (again.deadline, again.timeout_s, again.reply_to) == (None, None, None)
        queue.reply([Answer(delivery, Reply(job_id))])
        assert queue.wait_result(job_id, 0) is not None

    def test_of_six_retries_at_once_one_puts_the_job(self, redis_url: str, queue: Queue) -> None:
        class Together(Producer):
            """A producer that puts a job only when six threads are ready to put it."""

            async def put(self, lane: str, jobs: Sequence[Job], client: str = "") -> None:
                barrier.wait(PATIENCE_S)
                await super().put(lane, jobs, client)

        barrier = Barrier(6)
        letter_id = bury(queue, Embed(["storm"]).pack())
        together = Queue.connect(redis_url, queue.keys)
        together.asynchronous = Together(commands_of(together.broker), queue.keys)
        with ThreadPoolExecutor(6) as threads:
            job_ids = set(threads.map(lambda _: DeadLetters(together).retry(letter_id), range(6)))
        together.close()
        assert len(job_ids) == queue.backlog()["bulk"] == 1
        assert len(DeadLetters(queue)) == 0

    def test_a_letter_stays_when_there_is_no_room_to_retry(self, queue: Queue) -> None:
        letters, letter_id = DeadLetters(queue), bury(queue, Embed(["storm"]).pack())
        queue.put("bulk", [Embed(["storm"])])
        set_limits(queue, LaneLimits(max_jobs=1))
        with pytest.raises(Overloaded):
            letters.retry(letter_id)
        assert letters.get(letter_id).id == letter_id
        for unknown in ("1-1", "", "-", "1-1 2-2", "9" * 40, "\u0661-\u0661"):
            for ask in (letters.get, letters.retry, letters.drop):
                with pytest.raises(UnknownJob, match="no dead letter"):
                    ask(unknown)


class TestHttp:
    def test_a_letter_is_listed_shown_and_retried_over_http(self, api: FlaskClient, stub: StubWorker) -> None:
        stub.pause()
        letter_id = bury(stub.queue, Embed(["storm"], id="mine").pack())
        stub.resume()
        answer = api.get("/v1/dead").get_json()
        assert answer["count"] == 1
        brief = {"id": letter_id, "job_id": "mine", "op": "embed", "num_texts": 1, "reason": "poisoned: why"}
        brief |= {"lane": "bulk", "worker": "w1"}
        assert brief.items() <= answer["dead"][0].items()
        whole = api.get(f"/v1/dead/{letter_id}").get_json()
        assert (whole["traceback"], whole["asked"]["texts"]) == ("line 1", ["storm"])
        retried = api.post(f"/v1/dead/{letter_id}/retry")
        assert retried.status_code == 202
        result = api.get(f"{retried.headers['Location']}/result?wait=20").get_json()
        assert result["status"] == "done"
        assert api.get("/v1/dead").get_json() == {"count": 0, "dead": []}

    def test_an_unreadable_job_is_listed_and_dropped_over_http(self, api: FlaskClient, queue: Queue) -> None:
        letter_id = bury(queue, b"\xc1\xff" * 501)
        whole = api.get(f"/v1/dead/{letter_id}").get_json()
        assert (whole["asked"], whole["bytes"]) == (None, "c1ff" * 500)
        assert api.post(f"/v1/dead/{letter_id}/retry").status_code == 400
        assert api.delete(f"/v1/dead/{letter_id}").get_json() == {"id": letter_id, "dropped": True}
        assert api.delete(f"/v1/dead/{letter_id}").get_json()["error"]["code"] == "unknown_job"


class TestCommands:
    def shoal(self, queue: Queue, redis_url: str, *words: str) -> Result:
        settings = {"SHOAL_REDIS_URL": redis_url, "SHOAL_KEY_PREFIX": queue.keys.prefix, "SHOAL_POOL": queue.keys.pool}
        return CliRunner(env=settings).invoke(main, ["dead", *words])

    def test_list_show_retry_and_drop(self, queue: Queue, redis_url: str) -> None:
        first = bury(queue, Search(["stürm \n x"], id="mine").pack())
        second = bury(queue, b"\xc1")
        listed = self.shoal(queue, redis_url, "list").stdout.splitlines()
        assert listed[0] == "2 dead letters"
        assert "2 unreadable bytes" not in listed[1]
        assert [line.split()[0] for line in listed[1:]] == [second, first]
        assert len(self.shoal(queue, redis_url, "list", "--limit", "1").stdout.splitlines()) == 2
        shown = self.shoal(queue, redis_url, "show", first).stdout
        assert "search mine (1 texts)" in shown
        assert f"text 0: {json.dumps('stürm ' + chr(10) + ' x', ensure_ascii=False)}" in shown
        assert "line 1" in shown
        assert r"bytes: b'\xc1'" in self.shoal(queue, redis_url, "show", second).stdout
        assert f"{first} is job " in self.shoal(queue, redis_url, "retry", first).stdout
        assert queue.backlog()["bulk"] == 1
        assert self.shoal(queue, redis_url, "drop", second).stdout == f"{second} is gone\n"
        missing = self.shoal(queue, redis_url, "show", second)
        assert (missing.exit_code, "[unknown_job]" in missing.stderr) == (1, True)


def test_a_letter_can_be_dropped_while_the_memory_of_redis_is_full(own_queue: Queue) -> None:
    letter_id = bury(own_queue, b"x")
    own_queue.redis.config_set("maxmemory", 1)
    DeadLetters(own_queue).drop(letter_id)
    assert listed(own_queue) == []


@pytest.mark.parametrize("how", ["drop", "retry"])
def test_they_are_limited_in_bytes(queue: Queue, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shoal.queue.consumer, "MAX_DEAD_BYTES", MAX_BYTES)
    job = Embed(["x" * 10_000])  # there is room for 4 letters with such a job
    kept = [bury(queue, job.pack()) for _ in range(3)]
    for _ in range(6):
        letter_id = bury(queue, job.pack())
        if how == "drop":
            DeadLetters(queue).drop(letter_id)
        else:
            queue.cancel(DeadLetters(queue).retry(letter_id))
    assert listed(queue) == kept[::-1]
    kept += [bury(queue, job.pack()) for _ in range(2)]
    assert listed(queue) == kept[:0:-1]
    kept.append(bury(queue, b"x" * 2 * MAX_BYTES))
    assert listed(queue) == kept[-1:]
    DeadLetters(queue).drop(kept[-1])
    monkeypatch.setattr(shoal.queue.consumer, "MAX_DEAD_LETTERS", 3)
    kept = [bury(queue, b"x") for _ in range(5)]
    assert listed(queue) == kept[:1:-1]
