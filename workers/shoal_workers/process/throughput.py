"""Throughput of a worker: the texts that it answers in a second of work."""

#: Seconds of work after which older measurements count half.
HALF_LIFE_S = 10.0


class Throughput:
    """Texts answered per second of work; older measurements count less."""

    def __init__(self) -> None:
        self._num_texts = 0.0
        self._busy_s = 0.0

    def add_texts(self, num_texts: int) -> None:
        """Count texts that were answered."""
        self._num_texts += num_texts

    def add_busy(self, seconds: float) -> None:
        """Count seconds of work."""
        kept = 0.5 ** (seconds / HALF_LIFE_S)
        self._num_texts *= kept
        self._busy_s = kept * self._busy_s + seconds

    @property
    def texts_per_s(self) -> float:
        """Texts per second; 0 before the first text."""
        return self._num_texts / self._busy_s if self._busy_s else 0.0
