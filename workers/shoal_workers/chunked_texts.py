"""The texts of a job that are cut into chunks: what is still to be cut, and what is known of the encoded chunks."""

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.options import Options
from shoal.replies import finish
from shoal_workers.encoding.chunking import Chunker, TokenizedChunk
from shoal_workers.encoding.encoder import TokenizedText
from shoal_workers.encoding.tokenizer import Tokens


class ChunkedTexts:
    """The chunks of a job's texts, which are cut a few at a time, and numbered through all texts.

    Vectors of chunks are kept if the job asks for them; else only the sum for each text, weighted by tokens. `tokens`
    and `truncated` have the number of tokens of each text, and whether any was left out. `num_cut` counts the chunks
    that were cut, and `num_cut_chars` their characters, those that overlap once for each chunk.
    """

    def __init__(self, texts: Sequence[str], options: Options, chunker: Chunker):
        self.tokens = [0] * len(texts)
        self.truncated = [False] * len(texts)
        self.chunks: list[list[dict[str, Any]]] | None = [[] for _ in texts] if options.output == "chunks" else None
        self.num_cut = 0
        self.num_cut_chars = 0
        self._texts = texts
        self._options = options
        self._chunker = chunker
        self._num_chunks = [options.num_chunks(text) for text in texts]  # estimated
        self._number, self._start, self._covered = 0, 0, 0  # the text that is being cut, and how far
        self._cut: deque[tuple[int, TokenizedChunk]] = deque()  # chunks that are not encoded, and their texts
        self._rows: list[NDArray[np.float32]] = []
        self._sums: list[Any] = [0.0] * len(texts)

    @property
    def is_cut(self) -> bool:
        """True once all texts are cut to their ends."""
        return self._number == len(self._texts)

    @property
    def num_uncut(self) -> int:
        """About how many chunks are not cut yet."""
        if self.is_cut:
            return 0
        num_chars = len(self._texts[self._number])
        num_left = self._num_chunks[self._number] * (num_chars - self._start) // max(1, num_chars)
        return max(1, num_left) + sum(self._num_chunks[self._number + 1 :])

    @property
    def num_encoded(self) -> int:
        """Number of chunks that are encoded, which is that of the next one too."""
        return self.num_cut - len(self._cut)

    @property
    def next_text(self) -> int:
        """Number of the text of the next chunk that is not encoded."""
        return self._cut[0][0]

    def cut(self) -> list[tuple[int, Tokens]]:
        """Cut the next few chunks; return the number and the tokens of each."""
        chunks, start = self._chunker.cut(self._texts[self._number], self._start, self._covered)
        self._cut.extend((self._number, chunk) for chunk in chunks)
        if start is None:
            self._number, self._start, self._covered = self._number + 1, 0, 0
        else:
            self._start, self._covered = start, chunks[-1].stop
        self.num_cut += len(chunks)
        self.num_cut_chars += sum(chunk.stop - chunk.start for chunk in chunks)
        return list(enumerate((chunk.tokens for chunk in chunks), self.num_cut - len(chunks)))

    def add(self, text: TokenizedText) -> None:
        """Take over the vector of the next chunk, which is encoded."""
        number, chunk = self._cut.popleft()
        assert text.vectors is not None
        self.tokens[number] += text.num_tokens
        self.truncated[number] |= text.tokens.truncated
        if self.chunks is None:
            self._sums[number] = self._sums[number] + text.num_tokens * finish([text.vectors], self._options)[0]
        else:
            self.chunks[number].append({"start": chunk.start, "stop": chunk.stop, "tokens": text.num_tokens})
            self._rows.append(text.vectors)

    def vectors(self) -> NDArray[np.float32]:
        """Return the vectors of all chunks, or the mean of each text's, as the options ask for them."""
        if self.chunks is not None:
            return finish(self._rows, self._options)
        means = np.array(self._sums) / np.maximum(self.tokens, 1)[:, None]
        return finish([means.astype(np.float32)], self._options)
