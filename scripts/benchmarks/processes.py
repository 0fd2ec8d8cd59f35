"""What processes take of the machine: processor time and memory."""

import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil

#: Processes that take less than this share of a processor have finished what they were asked to do.
IDLE_SHARE = 0.1

#: Longest that a wait for that may take.
IDLE_WITHIN_S = 60.0


class Processes:
    """Processes by name, each with all that it started."""

    def __init__(self, roots: Mapping[str, int]):
        self._roots = {name: psutil.Process(pid) for name, pid in roots.items()}

    def cpu_s(self) -> Counter[str]:
        """Processor time so far, in seconds; what is called `worker 1` and `worker 2` counts as `worker`."""
        found: Counter[str] = Counter()
        for name, _, process in self._all():
            times = process.cpu_times()
            found[name.rstrip(" 0123456789")] += times.user + times.system
        return found

    def memory_mb(self) -> dict[str, dict[str, float]]:
        """Memory of each process: `resident`, the `private` part that no other maps, and what of that was `written`.

        Files that others could map too, such as an index, are in `private` while nobody else does, but not `written`.
        """
        return {
            f"{name}, child {number}" if number else name: _memory_mb(process.pid)
            for name, number, process in self._all()
        }

    def wait_until_idle(self) -> None:
        """Returns once what was left to answer when the load ended has been computed, so that it slows nobody else."""
        until = time.monotonic() + IDLE_WITHIN_S
        before, pause_s = self.cpu_s().total(), 0.2
        while time.monotonic() < until:
            time.sleep(pause_s)
            now = self.cpu_s().total()
            if now - before < IDLE_SHARE * pause_s:
                return
            before = now

    def _all(self) -> Iterator[tuple[str, int, psutil.Process]]:
        for name, root in self._roots.items():
            for number, process in enumerate([root, *root.children(recursive=True)]):
                yield name, number, process


def _memory_mb(pid: int) -> dict[str, float]:
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    sizes = {name: int(size) / 2**10 for name, size in re.findall(r"^(\w+):\s+(\d+) kB", text, re.MULTILINE)}
    private = sizes["Private_Clean"] + sizes["Private_Dirty"]
    return {"resident": sizes["Rss"], "private": private, "written": sizes["Private_Dirty"]}
