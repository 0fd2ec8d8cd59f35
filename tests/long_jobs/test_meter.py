"""The rate of a long job and the time that is left."""

from shoal.long_task import TaskProgress
from shoal_workers.long_jobs.progress_log import Meter


def test_what_was_done_before_a_job_was_resumed_took_no_time_now() -> None:
    meter = Meter(0.0)
    meter.measure(TaskProgress(rows=500, fraction=0.5), 10.0)
    progress = meter.measure(TaskProgress(rows=600, fraction=0.6), 20.0)
    assert (progress.rows_per_s, round(progress.eta_s or 0.0, 6)) == (10.0, 40.0)


def test_each_step_is_measured_from_its_beginning() -> None:
    meter = Meter(0.0)
    for now_s, part in ((0.0, 0.0), (10.0, 0.5), (20.0, 1.0)):
        meter.measure(TaskProgress(rows=int(1_000 * part), fraction=part, step="reading"), now_s)
    first = meter.measure(TaskProgress(rows=0, fraction=0.0, step="embedding"), 100.0)
    assert (first.rows_per_s, first.eta_s) == (None, None)
    progress = meter.measure(TaskProgress(rows=100, fraction=0.1, step="embedding"), 150.0)
    assert (progress.rows_per_s, round(progress.eta_s or 0.0, 6)) == (2.0, 450.0)


def test_a_wait_and_an_estimate_that_falls_a_little_begin_no_step() -> None:
    meter = Meter(0.0)
    meter.measure(TaskProgress(rows=0, fraction=0.0), 0.0)
    meter.measure(TaskProgress(rows=100, fraction=0.5), 10.0)
    meter.measure(TaskProgress(rows=100, step="waiting for a worker"), 11.0)
    progress = meter.measure(TaskProgress(rows=120, fraction=0.4), 12.0)
    assert progress.rows_per_s == 10.0


def test_a_step_that_is_resumed_is_measured_without_the_steps_before_it() -> None:
    meter = Meter(0.0)
    meter.measure(TaskProgress(rows=0, step="waiting for a worker"), 0.0)
    for now_s, part in ((0.0, 0.0), (1.0, 1.0)):
        meter.measure(TaskProgress(rows=int(100_000 * part), fraction=part, step="reading"), now_s)
    first = meter.measure(TaskProgress(rows=60_000, fraction=0.6, step="embedding"), 2.0)
    assert (first.rows_per_s, first.eta_s) == (None, None)
    progress = meter.measure(TaskProgress(rows=61_000, fraction=0.61, step="embedding"), 12.0)
    assert (progress.rows_per_s, round(progress.eta_s or 0.0, 6)) == (100.0, 390.0)
