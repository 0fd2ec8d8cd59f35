"""The pipeline of a model: tokenizer, engine, the way its passes are cut, and what they were measured to cost."""

from collections.abc import Sequence

from shoal_workers.encoding.bucketing import Bucketing
from shoal_workers.encoding.encoder import Encoder, TokenizedText

#: Share of what was measured before that is kept at each pass: the last ten passes make up two thirds.
KEPT = 0.9


class Pipeline:
    """A model, and the `bucketing` of the texts that it encodes. For one thread."""

    def __init__(self, encoder: Encoder, bucketing: Bucketing[TokenizedText]):
        self.encoder = encoder
        self.bucketing = bucketing
        self._cost, self._seconds = 0.0, 0.0

    def note(self, texts: Sequence[TokenizedText], seconds: float) -> None:
        """Note how long a pass over the texts took."""
        self._cost = KEPT * self._cost + self.bucketing.cost_of(texts)
        self._seconds = KEPT * self._seconds + seconds

    def cost_within(self, seconds: float) -> float:
        """Return the cost of a pass that takes `seconds`, in tokens as bucketing counts them; 0 before the first."""
        return seconds * self._cost / self._seconds if self._seconds else 0.0
