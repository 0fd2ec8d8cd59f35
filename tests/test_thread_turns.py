"""Turns to run Python: the clients take turns, and a thread that waits for a reply has none meanwhile."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from conftest import PATIENCE_S

from shoal.queue.dispatcher import PendingReply
from shoal.queue.thread_turns import Turn, Turns
from shoal.replies import Reply
from shoal_api.response import StreamedResponse


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No turn is given that was not given back."""
    monkeypatch.setattr("shoal.queue.thread_turns.PATIENCE_S", PATIENCE_S)


def waiting(turns: Turns, *clients: str) -> list[threading.Lock]:
    """Return locks that are released when it is the turn of these clients."""
    locks = [threading.Lock() for _ in clients]
    for client, lock in zip(clients, locks, strict=True):
        lock.acquire()
        Turn(turns, client).take_later(lock)
    return locks


def number_of_turns(turns: Turns) -> int:
    """Return the number of turns that can be had now."""
    locks = waiting(turns, *["someone"] * 5)
    number = sum(not lock.locked() for lock in locks)
    for _ in locks:
        Turn(turns, "").give_back()
    return number


@contextmanager
def waits(turns: Turns, pending: PendingReply) -> Iterator["ThreadPoolExecutor"]:
    """Have a thread wait for a reply that had a turn, until the end of the `with`."""

    def wait() -> None:
        with turns.turn("a"):
            assert pending.result(PATIENCE_S).id == "x"

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(wait)
        yield pool
        future.result()


def test_clients_take_turns_and_those_of_each_are_in_order() -> None:
    turns = Turns(1)
    with turns.turn("first"):
        a1, a2, b = waiting(turns, "a", "a", "b")
        assert [lock.locked() for lock in (a1, a2, b)] == [True, True, True]
    assert [lock.locked() for lock in (a1, a2, b)] == [False, True, True]
    Turn(turns, "a").give_back()
    assert [lock.locked() for lock in (a2, b)] == [True, False]
    Turn(turns, "b").give_back()
    assert not a2.locked()


def test_so_many_threads_have_a_turn() -> None:
    assert number_of_turns(Turns(2)) == 2


def test_a_thread_that_waits_for_a_reply_has_no_turn_until_it_can_go_on() -> None:
    turns, pending = Turns(1), PendingReply()
    with waits(turns, pending), turns.turn("b"):
        pending.settle(Reply("x"))
    assert number_of_turns(turns) == 1


def test_a_thread_has_its_turn_again_when_the_reply_does_not_come_in_time() -> None:
    turns = Turns(1)
    with turns.turn("a"):
        with pytest.raises(TimeoutError):
            PendingReply().result(0.01)
        assert number_of_turns(turns) == 0
    assert number_of_turns(turns) == 1


def test_a_reply_that_is_there_already_costs_no_turn() -> None:
    turns, pending = Turns(1), PendingReply()
    pending.settle(Reply("x"))
    with turns.turn("a"):
        assert pending.result(0).id == "x"
        assert number_of_turns(turns) == 0


def test_a_thread_that_sends_a_response_in_pieces_has_no_turn() -> None:
    turns = Turns(1)
    with turns.turn("a"):
        StreamedResponse([b"a"], {})({"REQUEST_METHOD": "GET"}, lambda *_: lambda _: None)
        assert number_of_turns(turns) == 1
    assert number_of_turns(turns) == 1


def test_a_thread_that_keeps_its_turn_holds_up_others_for_a_moment_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.queue.thread_turns.PATIENCE_S", 0.001)
    turns = Turns(1)
    with ThreadPoolExecutor(1) as pool, turns.turn("slow"):
        pool.submit(lambda: turns.turn("b").__enter__()).result(PATIENCE_S)
