"""Tokenize and decode: the tokenizer does these jobs as soon as they are admitted."""

import time
from dataclasses import dataclass
from typing import Any

from shoal.errors import ShoalError
from shoal.operations import Decode
from shoal.replies import Reply
from shoal.tokenizer_job import TokenizerJob
from shoal_workers.encoding.tokenizer import Tokenizer
from shoal_workers.work import Work


@dataclass(slots=True, eq=False)
class TokenizerWork(Work):
    """The work of a job for the tokenizer: `pieces` of each text, or the text that was `decoded` and its tokens."""

    job: TokenizerJob
    pieces: list[list[dict[str, Any]]] | None = None
    decoded: list[tuple[str, int]] | None = None

    def use_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Do the job, or set the error."""
        self.begin()
        started, special_tokens = time.perf_counter(), self.job.special_tokens
        try:
            if isinstance(self.job, Decode):
                self.decoded = [tokenizer.decode(ids, special_tokens) for ids in self.job.texts]
            else:
                self.pieces = [tokenizer.describe(self.prompt + text, special_tokens) for text in self.job.texts]
        except ShoalError as error:
            self.error = error
        except Exception as error:  # any that a tokenizer may raise
            self.fail("the tokenizer failed", error)
        self.untokenized.clear()
        self.timings["tokenize_s"] += time.perf_counter() - started

    def _reply(self, model: str) -> Reply:
        counts = [len(part) for part in self.pieces or ()] + [count for _, count in self.decoded or ()]
        return Reply(
            id=self.job.id,
            pieces=self.pieces,
            decoded=None if self.decoded is None else [text for text, _ in self.decoded],
            tokens=counts,
            truncated=[False] * len(counts),
            characters=[len(text) for text in self.job.texts],
            timings=self.timings,
            model=model,
        )
