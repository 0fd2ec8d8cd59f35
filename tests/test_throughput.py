"""The speed of a worker: texts over the time it was busy, where what is long ago counts less."""

import pytest

from shoal_workers.process.throughput import HALF_LIFE_S, Throughput


def test_it_is_texts_over_busy_seconds() -> None:
    speed = Throughput()
    assert speed.texts_per_s == 0
    speed.note(100, 0)
    speed.note(0, 0.5)
    assert speed.texts_per_s == pytest.approx(200, rel=0.05)


def test_it_follows_what_a_worker_does_lately() -> None:
    speed = Throughput()
    for _ in range(100):
        speed.note(1_000, 1)
    for _ in range(int(3 * HALF_LIFE_S)):
        speed.note(100, 1)
    assert 100 < speed.texts_per_s < 300
