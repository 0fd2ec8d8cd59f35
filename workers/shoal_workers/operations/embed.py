"""Embed: the vectors of texts, or of their tokens, are the reply."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shoal.cache.entry import Entry
from shoal.contract.replies import finish
from shoal.errors import TooLarge
from shoal.operations import Embed
from shoal.queue.delivery import Delivery
from shoal_workers.operations.chunks import ChunksWork
from shoal_workers.operations.work import Work

if TYPE_CHECKING:
    from shoal_workers.operations.served import Served


@dataclass(slots=True, eq=False)
class EmbedWork(Work):
    """The work of an embed whose texts are read in one piece."""

    @classmethod
    def admit(cls, delivery: Delivery, job: Embed, served: "Served") -> Work:
        """Return the work of a job, whose texts may have to be cut."""
        encoder, options, embeds = served.embeds.encoder, job.options, served.embeds
        prompt = encoder.prompt(options)
        if chunker := encoder.chunker(options, prompt):
            return ChunksWork(delivery, job, embeds, prompt, served.now, chunker=chunker)
        return cls(delivery, job, embeds, prompt, served.now)

    def check_num_vectors(self, max_reply_vectors: int) -> None:
        """Set the error if the texts read so far have more tokens, each with a vector, than a reply has room for."""
        if self.error is not None or self.job.options.output == "vector":
            return
        num_tokens = sum(text.num_tokens for text in self.tokenized.values())
        if num_tokens > max_reply_vectors:
            self.error = TooLarge(
                f"{len(self.tokenized)} of the {len(self.job.texts)} texts have {num_tokens:,} tokens, and a reply has "
                f"room for the vectors of {max_reply_vectors:,} (SHOAL_MAX_REPLY_MB): split the job"
            )

    def _own_result(self, entries: Sequence[Entry]) -> dict[str, Any]:
        return {"vectors": finish([entry.vectors for entry in entries], self.job.options)}
