"""The lines of progress: none for a short step, then lines with the amount done and the time left."""

import io

import pytest
from conftest import wait_until

from shoal.process.progress import RateMeter, StepBar, TaskBar, task_line
from shoal.task_progress import TaskProgress


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.mark.parametrize(
    ("total", "done", "lines"),
    [
        (0, {0.9: 0, 1.0: 0, 2.0: 0, 5.9: 0, 6.0: 0}, ["storm … 1 s", "storm … 6 s"]),
        (0, {0.5: 1, 2.0: 4}, ["storm: 4 rows, 2 rows a second"]),
        (
            24_000,
            {1.0: 0, 10.0: 2_000},
            ["storm … 1 s", "storm: 2,000 of 24,000 rows, 200 rows a second, 1 min 50 s left"],
        ),
    ],
)
def test_lines_of_a_step(clock: Clock, total: int, done: dict[float, int], lines: list[str]) -> None:
    stream = io.StringIO()
    progress = StepBar("storm", total, unit=" rows", stream=stream, clock=clock)
    for clock.now_s, progress.done in done.items():
        progress.tick()
    assert stream.getvalue().splitlines() == lines


def test_a_thread_shows_a_step_that_does_not_return() -> None:
    stream = io.StringIO()
    with StepBar("opening", stream=stream, clock=iter([0.0, 0.0, *[2.0] * 1_000]).__next__):
        wait_until(stream.getvalue)
    assert stream.getvalue() == "opening … 2 s\n"


def test_a_given_rate_and_time_are_shown_before_measured_ones(clock: Clock) -> None:
    for given_s, shown in ((None, "3 a second, 13 s left"), (5.0, "5 a second, 5 s left")):
        stream, clock.now_s = io.StringIO(), 0.0
        report = TaskBar(stream=stream, clock=clock)
        report(TaskProgress(0, fraction=0.0, rows_per_s=given_s, eta_s=given_s))
        clock.now_s = 20.0
        report(TaskProgress(60, num_bad=2, fraction=0.6, rows_per_s=given_s, eta_s=given_s))
        assert stream.getvalue() == f"waiting: 60 %, 60 rows, {shown}, 2 bad\n"


def test_the_rate_of_a_step_is_measured_from_where_it_was_begun_or_resumed() -> None:
    meter = RateMeter()
    for now_s, rows, fraction, step, measured in (
        (10.0, 500, 0.5, "", (None, None)),  # these rows were done before the job was resumed
        (20.0, 600, 0.6, "", (10.0, 40.0)),
        (21.0, 600, None, "waiting for a worker", (100 / 11, None)),  # a wait is not a new step
        (30.0, 660, 0.4, "", (8.0, None)),  # the estimated fraction has fallen
        (100.0, 60, 0.06, "embedding", (None, None)),
        (150.0, 160, 0.16, "embedding", (2.0, 420.0)),
    ):
        found = meter.measure(TaskProgress(rows=rows, fraction=fraction, step=step), now_s)
        assert (found.rows_per_s, found.eta_s) == pytest.approx(measured)


def test_a_line_contains_the_known_values() -> None:
    assert task_line(TaskProgress()) == "waiting: 0 rows"
    assert task_line(TaskProgress(7, step="reading", rows_per_s=3.5)) == "reading: 7 rows, 4 a second"
    late = task_line(TaskProgress(7, fraction=0.1, rows_per_s=1.0, eta_s=7_260.0))
    assert late == "waiting: 10 %, 7 rows, 1 a second, 2 h 1 min left"
