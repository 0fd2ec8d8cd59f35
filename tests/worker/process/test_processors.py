"""The processors that a worker may use: its control group's share, divided among the workers."""

import os
from pathlib import Path

import pytest

from shoal_workers.process import processors


@pytest.mark.parametrize(
    ("text", "expected"), [("150000 100000\n", 1.5), ("max 100000\n", None), ("50000 100000\n", 0.5)]
)
def test_the_quota_of_version_2(tmp_path: Path, text: str, expected: float | None) -> None:
    (tmp_path / "cpu.max").write_text(text)
    assert processors.quota(tmp_path / "cpu.max", tmp_path / "none", tmp_path / "none") == expected


@pytest.mark.parametrize(("limit", "expected"), [("400000\n", 4), ("-1\n", None)])
def test_the_quota_of_version_1(tmp_path: Path, limit: str, expected: float | None) -> None:
    (tmp_path / "quota").write_text(limit)
    (tmp_path / "period").write_text("100000\n")
    assert processors.quota(tmp_path / "none", tmp_path / "quota", tmp_path / "period") == expected


def test_no_control_group_no_quota(tmp_path: Path) -> None:
    assert processors.quota(tmp_path / "a", tmp_path / "b", tmp_path / "c") is None


@pytest.mark.parametrize(
    ("num_workers", "available", "expected"),
    [(1, 8, 8), (2, 8, 4), (3, 8, 2), (8, 2, 1), (1, 0.5, 1), (1, 1.9, 1), (0, 4, 4)],
)
def test_workers_share_the_processors(num_workers: int, available: float, expected: int) -> None:
    assert processors.threads_for(num_workers, available) == expected


def test_this_machine() -> None:
    assert 0 < processors.available() <= len(os.sched_getaffinity(0))
    assert processors.machine_id() == processors.machine_id() != ""
    assert processors.has_bf16() in (True, False)
