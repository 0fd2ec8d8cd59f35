"""Embed: vectors of texts, of their tokens, or of their chunks."""

import time
from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from shoal.contract.vectors import cut_and_normalise
from shoal.errors import TooLarge
from shoal.operations import Embed
from shoal.queue.consumer import Delivery
from shoal_workers.encoding.chunking import Chunker, TokenizedChunk, open_chunker
from shoal_workers.encoding.tokenizer import Tokens
from shoal_workers.operations.work import Work

if TYPE_CHECKING:
    from shoal_workers.loop.admission import Served


@dataclass(eq=False)
class ChunksWork(Work):
    """The work of an embed job whose texts `chunker` cuts. The chunks of all texts are numbered consecutively.

    A text stays in `untokenized` until all of it is cut. If the job asks for chunks, the vectors of all chunks are
    kept. Otherwise each text keeps only the sum of its chunks' vectors, weighted by their tokens. `tokens` has the
    number of tokens of each text, and `truncated` says for each text whether tokens were left out.
    """

    chunker: Chunker = field(kw_only=True)
    _place: tuple[int, int] = field(default=(0, 0), init=False)  # next start and last end in the current text
    _waiting: deque[tuple[int, TokenizedChunk]] = field(default_factory=deque, init=False)  # text number and chunk
    _rows: list[NDArray[np.float32]] = field(default_factory=list, init=False)

    is_cut: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        texts, options = self.job.texts, self.job.options
        self.tokens, self.truncated = [0] * len(texts), [False] * len(texts)
        self.chunks: list[list[dict[str, Any]]] | None = [[] for _ in texts] if options.output == "chunks" else None
        self._sums: list[Any] = [0.0] * len(texts)
        self._num_chunks = [options.num_chunks(text) for text in texts]  # an estimate

    @property
    def num_waiting(self) -> int:
        """Approximate number of chunks that are not encoded yet."""
        num_uncut = 0
        if self.untokenized:
            number = self.untokenized[0]
            num_chars = len(self.job.texts[number])
            num_left = self._num_chunks[number] * (num_chars - self._place[0]) // max(1, num_chars)
            num_uncut = max(1, num_left) + sum(self._num_chunks[number + 1 :])
        return num_uncut + len(self.tokenized)

    def cut(self) -> tuple[list[tuple[Work, int, Tokens]], int]:
        """Cut the next few chunks; return each chunk's number and tokens, and how many characters all of them have.

        Sets the error if that fails.
        """
        self.begin()
        started, number = time.perf_counter(), self.untokenized[0]
        first, chunks = self.num_computed + len(self._waiting), list[TokenizedChunk]()
        try:
            chunks, next_start = self.chunker.cut(self.job.texts[number], *self._place)
            if next_start is None:
                self.untokenized.popleft()
            self._place = (0, 0) if next_start is None else (next_start, chunks[-1].stop)
        except Exception as error:  # a tokenizer may raise any exception
            self.fail("the tokenizer failed", error)
        self.timings["tokenize_s"] += time.perf_counter() - started
        self._waiting.extend((number, chunk) for chunk in chunks)
        num_chars = sum(chunk.stop - chunk.start for chunk in chunks)
        return [(self, number, chunk.tokens) for number, chunk in enumerate(chunks, first)], num_chars

    def check_num_vectors(self) -> None:
        """Set the error if the texts have more chunks than the number of vectors that a reply has room for."""
        most = self.pipeline.max_vectors
        if self.error is None and self.chunks is not None and self.num_computed + len(self._waiting) > most:
            self.error = TooLarge(
                f"the texts have more chunks of {self.job.options.chunk_tokens:,} tokens than the "
                f"{most:,} for whose vectors a reply has room (SHOAL_MAX_REPLY_MB): raise "
                "chunk_tokens, send fewer or shorter texts at a time, or ask for one vector a text (output: vector)"
            )

    def end_pass(self, seconds: float) -> None:
        """Move the vectors of encoded chunks into the result, in order; set the error if the engine failed on one."""
        self.timings["encode_s"] += seconds
        while self._waiting and (text := self.tokenized.get(self.num_computed)) and text.is_done:
            if text.error is not None:
                self.fail(f"the engine failed on a chunk of {self.job.name_of(self._waiting[0][0])}", text.error)
                return
            del self.tokenized[self.num_computed]
            assert text.vectors is not None
            text_number, chunk = self._waiting.popleft()
            self.num_computed += 1
            self.num_tokens += text.num_tokens
            self.tokens[text_number] += text.num_tokens
            self.truncated[text_number] |= text.tokens.truncated
            if self.chunks is None:
                self._sums[text_number] += text.num_tokens * cut_and_normalise([text.vectors], self.job.options)[0]
            else:
                self.chunks[text_number].append({"start": chunk.start, "stop": chunk.stop, "tokens": text.num_tokens})
                self._rows.append(text.vectors)

    def _result(self) -> dict[str, Any]:
        rows = self._rows
        if self.chunks is None:  # a text's vector is the weighted mean of its chunks' vectors
            rows = [(np.array(self._sums) / np.maximum(self.tokens, 1)[:, None]).astype(np.float32)]
        return {
            "vectors": cut_and_normalise(rows, self.job.options),
            "output": self.job.options.outputs[0],
            "tokens": self.tokens,
            "truncated": self.truncated,
            "characters": [len(text) for text in self.job.texts],
            "chunks": self.chunks,
        }


@dataclass(eq=False)
class EmbedWork(Work):
    """The work of an embed job whose texts are not cut into chunks."""

    @classmethod
    def of_job(cls, delivery: Delivery, job: Embed, served: "Served") -> Work:
        """Return the work of a job: a `ChunksWork` if its texts are to be cut into chunks."""
        encoder, options, embeds = served.embeds.encoder, job.options, served.embeds
        prompt = encoder.prompt(options)
        if options.chunk_tokens is not None:
            chunker = open_chunker(encoder.tokenizer, encoder.model.name, options, prompt)
            return ChunksWork(delivery, job, embeds, prompt, served.now, chunker=chunker)
        return cls(delivery, job, embeds, prompt, served.now, is_query=encoder.is_query(options))

    def check_num_vectors(self) -> None:
        """Set the error if the tokens so far, or the weights of words so far, do not fit into a reply."""
        model, outputs, most = self.pipeline.encoder.model, self.job.options.outputs, self.pipeline.max_vectors
        if self.error is None and "sparse" in outputs:
            self._check_num_weights(most * model.dimension // 2)
        if self.error is not None or not {"tokens", "multivector"}.intersection(outputs):
            return
        if "multivector" in outputs:  # these vectors may have another dimension than the model's
            most = most * model.dimension // model.heads["multivector"].size
        num_tokens = self.num_tokens + sum(text.num_tokens for text in self.tokenized.values())
        if num_tokens > most:
            num_read = self.num_computed + len(self.tokenized)
            self.error = TooLarge(
                f"{num_read} of the {len(self.job.texts)} texts have {num_tokens:,} tokens, and a reply has room for "
                f"the vectors of {most:,} (SHOAL_MAX_REPLY_MB): split the job"
            )

    def _check_num_weights(self, most: int) -> None:
        made = [text.made["sparse"] for text in self.encoded.values() if "sparse" in text.made]
        if (num_weights := sum(len(vector.values) for vector in made)) > most:
            self.error = TooLarge(
                f"{len(made)} of the {len(self.job.texts)} texts have {num_weights:,} weights of words, and a reply "
                f"has room for {most:,} (SHOAL_MAX_REPLY_MB): split the job"
            )

    def _result(self) -> dict[str, Any]:
        options, outputs, result = self.job.options, self.job.options.outputs, super()._result()
        if {"vector", "tokens"}.intersection(outputs):
            result["vectors"] = cut_and_normalise(
                [self.entries[n].vectors for n in range(len(self.job.texts))], options
            )
        if "sparse" in outputs:
            result["sparse"] = self._made("sparse")
        if "multivector" in outputs:
            whole = replace(options, dimensions=None)
            result["multivectors"] = [cut_and_normalise([rows], whole) for rows in self._made("multivector")]
        return result

    def _made(self, output: str) -> list[Any]:
        return [self.encoded[n].made[output] for n in range(len(self.job.texts))]
