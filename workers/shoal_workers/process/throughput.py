"""How fast a worker is."""

#: How many seconds of work it takes until what was before counts half.
HALF_LIFE_S = 10.0


class Throughput:
    """Texts that a worker answers a second, while it has any to answer; what is long ago counts less."""

    def __init__(self) -> None:
        self._num_texts = 0.0
        self._busy_s = 0.0

    def note(self, num_texts: int, busy_s: float) -> None:
        """Adds so many texts that took so long."""
        kept = 0.5 ** (busy_s / HALF_LIFE_S)
        self._num_texts = kept * self._num_texts + num_texts
        self._busy_s = kept * self._busy_s + busy_s

    @property
    def texts_per_s(self) -> float:
        """The speed; 0 before the first text."""
        return self._num_texts / self._busy_s if self._busy_s else 0.0
