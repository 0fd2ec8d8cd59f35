"""The speed at which passes of a model are computed, as measured. Knows no tensors and no queue."""

#: Share of what was measured before that is kept at each pass: the last ten passes make up two thirds.
KEPT = 0.9


class PassSpeed:
    """The cost of a model's passes, in tokens as bucketing counts them, and their time; older ones count less."""

    def __init__(self) -> None:
        self._cost = 0.0
        self._seconds = 0.0

    def add(self, cost: float, seconds: float) -> None:
        """Note a pass that was computed."""
        self._cost = KEPT * self._cost + cost
        self._seconds = KEPT * self._seconds + seconds

    def cost_within(self, seconds: float) -> float:
        """Return the cost of a pass that takes `seconds`; 0 before the first one."""
        return seconds * self._cost / self._seconds if self._seconds else 0.0
