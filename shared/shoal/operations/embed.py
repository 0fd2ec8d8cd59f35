"""Embed: texts become vectors, one for each text, token or chunk."""

from dataclasses import dataclass
from typing import Any, ClassVar

from shoal.contract.jobs import MAX_REQUEST_TEXTS, TEXTS_PER_JOB, Job
from shoal.contract.options import Options
from shoal.contract.replies import OUTPUT_FIELDS, Reply

#: Largest number of texts in a job for vectors of tokens. With 384 dimensions and 256 tokens a text, they need 1.5 MB.
TEXTS_PER_TOKENS_JOB = 4


@dataclass(frozen=True, slots=True)
class Embed(Job):
    """A job that embeds its texts."""

    op: ClassVar[str] = "embed"
    path: ClassVar[str] = "/embed"

    @property
    def texts_per_job(self) -> int:
        """The largest number of texts or chunks in a job; small if each token has a vector."""
        options = self.options
        has_many = options.output != "vector" and {"tokens", "multivector"}.intersection(options.outputs)
        return TEXTS_PER_TOKENS_JOB if has_many else TEXTS_PER_JOB

    @property
    def texts_per_request(self) -> int:
        """The largest number of texts in an HTTP request; small if texts have many vectors or chunks."""
        is_small = self.options.chunk_tokens is not None or self.texts_per_job == TEXTS_PER_TOKENS_JOB
        return TEXTS_PER_TOKENS_JOB if is_small else MAX_REQUEST_TEXTS

    def answers_of(self, reply: Reply) -> list[Any]:
        """Return for each output the field of the reply that has one item for each text, or None."""
        return [getattr(reply, OUTPUT_FIELDS.get(word, word)) for word in self.options.outputs]

    def lane_sizes(self) -> list[int]:
        """Return an estimate of the number of chunks of each text."""
        if self.options.chunk_tokens is None:
            return [1] * len(self.texts)
        return list(map(self.options.num_chunks, self.texts))


def texts_at_a_time(options: Options) -> int:
    """Return the number of texts in a job or request of a stream: small if texts have many vectors or chunks."""
    return min(TEXTS_PER_JOB, Embed([""], options).texts_per_request)
