"""Embed: texts become vectors, one for each text, token or chunk."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from shoal.contract.jobs import MAX_REQUEST_TEXTS, TEXTS_PER_JOB, Job
from shoal.contract.options import Options
from shoal.contract.replies import OUTPUT_FIELDS, Reply
from shoal.errors import TooLarge

#: Largest number of texts in a job for vectors of tokens. With 384 dimensions and 256 tokens a text, they need 1.5 MB.
TEXTS_PER_TOKENS_JOB = 4

#: The outputs with any number of vectors for each text, except multivectors.
MANY_VECTORS = ("tokens", "chunks")

#: Words are counted only in this many characters of a text. A worker reads at least this many.
COUNTED_CHARS = 8_192


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

    def check_num_vectors(self, heartbeats: Mapping[str, Mapping[str, Any]], max_bytes: int) -> None:
        """Raise TooLarge if the vectors of tokens or chunks need more than `max_bytes` from every worker."""
        sizes = [(about.get("dimension"), about.get("max_tokens")) for about in heartbeats.values()]
        known = [(d, m) for d, m in sizes if isinstance(d, int) and isinstance(m, int)]
        if not known:
            return
        # a word has at least one token
        dimension, max_tokens = min(d for d, _ in known), min(m for _, m in known)
        if self.options.output == "chunks":
            size = min(max_tokens, self.options.chunk_tokens or max_tokens)
            parts = (text[n : n + COUNTED_CHARS] for text in self.texts for n in range(0, len(text), COUNTED_CHARS))
            num_vectors = sum(max(0, len(part.split()) - 1) for part in parts) // size
            what = f"{num_vectors:,} chunks of {size:,} tokens"
            remedy = (
                ": raise chunk_tokens, send fewer or shorter texts at a time, or ask for one vector a text "
                "(output: vector)"
            )
        else:
            part = slice(-COUNTED_CHARS, None) if self.options.truncation_side == "left" else slice(COUNTED_CHARS)
            num_vectors = sum(min(len(text[part].split()), max_tokens) for text in self.texts)
            what, remedy = f"{num_vectors:,} tokens", " (SHOAL_MAX_REPLY_MB): split the list"
        if (num_bytes := 4 * dimension * num_vectors) > max_bytes:
            raise TooLarge(
                f"the texts have at least {what}, whose vectors take {num_bytes:,} bytes, and a reply may have "
                f"{max_bytes:,}{remedy}"
            )


def texts_at_a_time(options: Options) -> int:
    """Return the number of texts in a job or request of a stream: small if texts have many vectors or chunks."""
    return min(TEXTS_PER_JOB, Embed([""], options).texts_per_request)
