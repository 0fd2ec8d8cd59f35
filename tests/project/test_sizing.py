"""The simulation of larger machines: it agrees with the measured one, and the page shows what it finds."""

from dataclasses import replace

import pytest
from conftest import TESTS
from sizing import Costs, Layout, lines, rate

PAGE = TESTS.parent / "docs" / "experiments.md"

#: Requests a second that were measured on two cores with 64 connections.
MEASURED = 865


def test_two_cores_are_as_fast_as_measured() -> None:
    assert rate(Costs(), Layout(2, 1, 1, 2), 64) == pytest.approx(MEASURED, rel=0.1)
    assert f"{MEASURED:,} were measured" in PAGE.read_text()


def test_one_client_waits_for_each_cost_in_turn() -> None:
    costs = Costs()
    each = costs.load + costs.api + costs.redis + costs.worker + costs.text + costs.thread_pass
    assert rate(costs, Layout(8, 1, 1, 1), 1) == pytest.approx(1_000 / each, rel=0.01)


def test_what_is_done_one_at_a_time_is_the_limit() -> None:
    costs = replace(Costs(), redis=0.5)
    assert rate(costs, Layout(96, 16, 36, 2), 1_000) == pytest.approx(2_000, rel=0.05)


@pytest.mark.wide
def test_the_page_shows_what_the_simulation_prints() -> None:
    assert "\n".join(lines(64)) in PAGE.read_text()
