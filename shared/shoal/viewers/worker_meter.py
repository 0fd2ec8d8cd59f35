"""A worker's meter: how fast it works, from the differences of its heartbeats, which carry sums since its start."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shoal.contract.histogram import Histogram

#: Time over which the longer of the two measurements goes, in seconds.
WINDOW_S = 60.0

#: Most characters of a word of a heartbeat that are shown.
MAX_CHARS = 256


def typed(values: Mapping[str, Any], name: str, type_: Any) -> Any:
    """Return a value of a heartbeat, of a string its beginning; None if it is of another type."""
    value = values.get(name)
    if isinstance(value, str):
        value = value[:MAX_CHARS]
    return value if isinstance(value, type_) else None


def written_at(about: Mapping[str, Any]) -> float | None:
    """Return when a heartbeat was written, by Redis's clock in Unix seconds; None for one that does not say it."""
    time_s = about.get("written_at")
    return float(time_s) if isinstance(time_s, int | float) and 0 < time_s < 2**40 else None


#: The fields of a heartbeat of which work is the difference.
_MEASURED = ("written_at", "counters", "waits", "batches")


@dataclass(frozen=True, slots=True)
class Work:
    """The work of a worker in the `seconds` between two heartbeats.

    `waits` are of the seconds that jobs waited, by lane, and `fill` is of the shares of a pass's tokens that were used.
    """

    seconds: float
    counters: Mapping[str, float]
    waits: Mapping[str, Histogram]
    fill: Histogram | None

    @classmethod
    def between(cls, before: Mapping[str, Any], now: Mapping[str, Any]) -> "Work":
        """Return the work between two heartbeats that say when they were written."""
        earlier, later = (about.get("counters", {}) for about in (before, now))
        return cls(
            now["written_at"] - before["written_at"],
            {name: max(0.0, number - earlier.get(name, 0)) for name, number in later.items()},
            {lane: _since(before, now, "waits", lane) for lane in now.get("waits", {})},
            _since(before, now, "batches", "fill") if "fill" in now.get("batches", {}) else None,
        )


@dataclass(slots=True)
class WorkerMeter:
    """The meter of one worker: its last heartbeat, and its work since the one before and in the last minute."""

    about: Mapping[str, Any] = field(default_factory=dict)
    last: Work | None = None
    minute: Work | None = None
    #: When the worker was alive last, in Unix seconds.
    seen_at: float = 0.0
    _beats: list[Mapping[str, Any]] = field(default_factory=list)

    def forget(self) -> None:
        """Forget the heartbeats; what the last one told stays."""
        self.last = self.minute = None
        self._beats.clear()

    def update(self, about: Mapping[str, Any]) -> None:
        """Take over a heartbeat, which may be one that was read before.

        One that does not say its time measures nothing. Earlier ones with later times were written before Redis's clock
        was set back.
        """
        self.about = about
        now_s = written_at(about)
        if now_s is None or (self._beats and self._beats[-1]["written_at"] == now_s):
            return
        beats = [beat for beat in self._beats if beat["written_at"] < now_s]
        num_old = sum(beat["written_at"] <= now_s - WINDOW_S for beat in beats)
        measured = {name: about[name] for name in _MEASURED if name in about}  # the rest may take megabytes
        self._beats = [*beats[max(0, num_old - 1) :], measured]
        if len(self._beats) > 1:
            self.last = Work.between(self._beats[-2], measured)
            self.minute = Work.between(self._beats[0], measured)


def _since(before: Mapping[str, Any], now: Mapping[str, Any], field: str, name: str) -> Histogram:
    """Return what a histogram has measured between two heartbeats."""
    later, earlier = Histogram.from_map(now[field][name]), before.get(field, {}).get(name)
    return later.minus(Histogram.from_map(earlier)) if earlier else later
