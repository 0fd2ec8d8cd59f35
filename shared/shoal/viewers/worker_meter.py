"""A worker's meter: how fast it works, from the differences of its heartbeats, which carry sums since its start."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shoal.contract.histogram import Histogram

#: Time for which the difference between two heartbeats is kept, in seconds.
WINDOW_S = 60.0


@dataclass(frozen=True, slots=True)
class Stretch:
    """The work of a worker in the `seconds` between two heartbeats, of which the later is from `until_s`, Unix seconds.

    `waits` are of the seconds that jobs waited, by lane, and `fill` is of the shares of a pass's tokens that were used.
    """

    until_s: float
    seconds: float
    counters: Mapping[str, float]
    waits: Mapping[str, Histogram]
    fill: Histogram | None


class WorkerMeter:
    """The meter of one worker. For one thread."""

    def __init__(self) -> None:
        #: The last heartbeat.
        self.about: Mapping[str, Any] = {}
        #: The stretches of the last minute; none is later than the last heartbeat, also if Redis's clock was set back.
        self.stretches: deque[Stretch] = deque()

    def update(self, about: Mapping[str, Any]) -> None:
        """Take over a heartbeat, which may be one that was read before. One of an older version measures nothing."""
        before, self.about = self.about, about
        then_s, now_s = written_at(before), written_at(about)
        if now_s is None or then_s is None or now_s <= then_s:
            return
        kept = (stretch for stretch in self.stretches if now_s - WINDOW_S < stretch.until_s < now_s)
        self.stretches = deque([*kept, _stretch(before, about, now_s, now_s - then_s)])

    def last(self) -> Stretch | None:
        """Return the stretch between the last two heartbeats."""
        return self.stretches[-1] if self.stretches else None


def written_at(about: Mapping[str, Any]) -> float | None:
    """Return when a heartbeat was written, by Redis's clock in Unix seconds; None for one that does not say it."""
    time_s = about.get("written_at")
    return float(time_s) if isinstance(time_s, int | float) and 0 < time_s < 2**40 else None


def _stretch(before: Mapping[str, Any], now: Mapping[str, Any], until_s: float, seconds: float) -> Stretch:
    earlier, later = (about.get("counters", {}) for about in (before, now))
    counters = {name: max(0.0, number - earlier.get(name, 0)) for name, number in later.items()}
    waits = {lane: _since(before, now, "waits", lane) for lane in now.get("waits", {})}
    fill = _since(before, now, "batches", "fill") if "fill" in now.get("batches", {}) else None
    return Stretch(until_s, seconds, counters, waits, fill)


def _since(before: Mapping[str, Any], now: Mapping[str, Any], field: str, name: str) -> Histogram:
    """Return what a histogram has measured between two heartbeats."""
    later, earlier = Histogram.from_map(now[field][name]), before.get(field, {}).get(name)
    return later.minus(Histogram.from_map(earlier)) if earlier else later
