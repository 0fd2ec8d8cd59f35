"""Process metrics (memory, processor time, files) of several API processes together."""

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from prometheus_client import ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

#: Metrics of which the minimum over the processes is reported; others are summed.
_MINIMUM = ("process_start_time_seconds", "process_max_fds")


class ProcessesCollector(Collector):
    """The metrics of the processes that have metric files in a folder and the same parent as this one."""

    def __init__(self, folder: Path):
        self._folder = folder

    def collect(self) -> Iterator[Metric]:
        """Yield prometheus_client's process metrics, for all of the processes together."""
        found: dict[str, list[Metric]] = {}
        for pid in filter(_is_sibling, self._pids()):
            for metric in ProcessCollector(pid=partial(str, pid), registry=None).collect():
                found.setdefault(metric.name, []).append(metric)
        for name, metrics in found.items():
            together = metrics[0]
            values = [sample.value for metric in metrics for sample in metric.samples]
            together.samples = [together.samples[0]._replace(value=min(values) if name in _MINIMUM else sum(values))]
            yield together

    def _pids(self) -> set[int]:
        return {int(file.stem.rpartition("_")[2]) for file in self._folder.glob("*.db")}


def _is_sibling(pid: int) -> bool:
    """Return true if the process lives and has this one's parent: another program may have its number by now."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) == os.getppid()
    except OSError:
        return False
