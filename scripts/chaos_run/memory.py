"""Whether memory is back to where it was."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

#: How many times as much memory as before the faults a process may have afterwards.
MAX_GROWTH = 1.5

#: Memory that Redis may have more afterwards, in MB: what it keeps for connections, workers that died, and scripts.
REDIS_SPARE_MB = 4.0


@dataclass(slots=True)
class Memory:
    """In MB: resident memory of each process under load before the first fault and after the last one, by its name.

    Of Redis what it uses before any job and after all of them, without what would expire by itself.
    """

    before: Mapping[str, float] = field(default_factory=dict)
    after: Mapping[str, float] = field(default_factory=dict)
    redis_before: float = 0.0
    redis_after: float = 0.0

    def grown(self) -> Iterator[str]:
        """What has more than it may."""
        for name in self._names():
            if self.after[name] > MAX_GROWTH * self.before[name]:
                yield f"{name} has {self.after[name]:.0f} MB, and had {self.before[name]:.0f} MB"
        if self.redis_after > MAX_GROWTH * self.redis_before + REDIS_SPARE_MB:
            yield f"Redis uses {self.redis_after:.1f} MB, and used {self.redis_before:.1f} MB"

    def shown(self) -> str:
        """All of it in a line."""
        processes = [f"{name} {self.before[name]:.0f} → {self.after[name]:.0f}" for name in self._names()]
        return ", ".join([f"Redis {self.redis_before:.1f} → {self.redis_after:.1f}", *processes])

    def _names(self) -> list[str]:
        """The processes that are known from before and after; Redis's own memory says more than its process's."""
        return sorted(self.before.keys() & self.after.keys() - {"redis"})
