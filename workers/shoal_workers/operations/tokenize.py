"""Tokenize and decode: jobs for the tokenizer alone, which are done without the model."""

import time
from dataclasses import dataclass, field
from typing import Any, ClassVar

from shoal.operations import Decode
from shoal.operations.tokenize import TokenizerJob
from shoal_workers.operations.work import Work


@dataclass(eq=False)
class TokenizerWork(Work):
    """The work of a job for the tokenizer. Its result is `pieces` or `decoded` texts, and `counts` of tokens."""

    job: TokenizerJob
    pieces: list[list[dict[str, Any]]] | None = None
    decoded: list[str] | None = None
    counts: list[int] = field(default_factory=list)

    reads_texts: ClassVar[bool] = False

    def begin(self) -> None:
        """Run the job, or set the error. Record how long the job has waited."""
        super().begin()
        started = time.perf_counter()
        try:
            tokenizer, special_tokens = self.pipeline.encoder.tokenizer, self.job.special_tokens
            if isinstance(self.job, Decode):
                decoded = [tokenizer.decode(ids, special_tokens) for ids in self.job.texts]
                self.decoded, self.counts = [text for text, _ in decoded], [count for _, count in decoded]
            else:
                self.pieces = [tokenizer.describe(self.prompt + text, special_tokens) for text in self.job.texts]
                self.counts = [len(part) for part in self.pieces]
        except Exception as error:  # a tokenizer may raise any exception
            self.fail("the tokenizer failed", error)
        self.timings["tokenize_s"] += time.perf_counter() - started

    def _result(self) -> dict[str, Any]:
        return {
            "pieces": self.pieces,
            "decoded": self.decoded,
            "tokens": self.counts,
            "truncated": [False] * len(self.counts),
            "characters": [len(text) for text in self.job.texts],
        }
