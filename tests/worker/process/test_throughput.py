"""The throughput of a worker: texts over the time it was busy, where what is long ago counts less."""

import pytest

from shoal_workers.process.measurements import HALF_LIFE_S, Throughput


def test_it_is_texts_over_busy_seconds() -> None:
    throughput = Throughput()
    assert throughput.texts_per_s == 0
    throughput.add_texts(100)
    throughput.add_busy(0.5)
    assert throughput.texts_per_s == pytest.approx(200, rel=0.05)


def test_it_follows_what_a_worker_does_lately() -> None:
    throughput = Throughput()
    for _ in range(100):
        throughput.add_texts(1_000)
        throughput.add_busy(1)
    for _ in range(int(3 * HALF_LIFE_S)):
        throughput.add_texts(100)
        throughput.add_busy(1)
    assert 100 < throughput.texts_per_s < 300
