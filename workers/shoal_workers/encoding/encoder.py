"""Texts to vectors: tokenizer, engine and pooling put together."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shoal.errors import InvalidRequest, ModelMismatch, ShoalError, TextTooLong
from shoal.jobs import Options
from shoal.replies import finish
from shoal_workers.encoding.batcher import Batcher
from shoal_workers.encoding.engines import Engine, open_engine
from shoal_workers.encoding.packing import pack
from shoal_workers.encoding.tokenizer import Tokenizer, Tokens
from shoal_workers.model import parity
from shoal_workers.model.model import Model

#: Names of the prompt for the two sides of a search, in order of preference.
QUERY_PROMPTS = ("query", "search_query")
DOCUMENT_PROMPTS = ("document", "passage", "search_document")


@dataclass(slots=True, eq=False)
class Row:
    """One text to encode; `vectors` is set once it is: float32 `[1, dimension]`, or `[tokens, dimension]`."""

    tokens: Tokens
    pooling: str | None = None
    output: str = "vector"
    vectors: NDArray[np.float32] | None = None
    error: Exception | None = None

    @property
    def num_tokens(self) -> int:
        """Tokens of the text, special ones included."""
        return len(self.tokens.ids)


class Encoder:
    """A model ready to encode. Not thread-safe."""

    def __init__(self, model: Model, tokenizer: Tokenizer, engine: Engine):
        self.model = model
        self.tokenizer = tokenizer
        self.engine = engine

    @classmethod
    def open(cls, folder: Path, engine: str, precision: str, threads: int) -> "Encoder":
        """The model prepared in `folder`, checked against its reference vectors.

        Raises ModelMismatch when a file is damaged or the engine does not reproduce them.
        """
        model = Model.open(folder)
        try:
            tokenizer = Tokenizer(folder / "tokenizer.json", model.max_tokens)
            encoder = cls(model, tokenizer, open_engine(engine, model, folder, precision, threads))
            least = parity.MIN_COSINE_INT8 if precision == "int8" else parity.MIN_COSINE
            parity.check(folder, lambda texts: encoder.embed(texts, Options(), prompt=""), least)
        except (ShoalError, ModuleNotFoundError):
            raise
        except Exception as error:  # each library has its own
            reason = (str(error).splitlines() or [type(error).__name__])[-1]
            raise ModelMismatch(
                f"the model in {folder} cannot be used ({reason}): prepare it again (shoal model prepare --force)"
            ) from error
        return encoder

    def tokenize(self, texts: Sequence[str], options: Options, prompt: str) -> list[Tokens]:
        """The tokens of each text after the prompt.

        Raises TextTooLong if a text would be cut and the options say not to.
        """
        prompted = [prompt + text for text in texts] if prompt else texts
        found = self.tokenizer.encode(prompted, options.truncation_side)
        if not options.truncate:
            for n, tokens in enumerate(found):
                if tokens.truncated:
                    raise TextTooLong(
                        f"text {n} has more than the {self.model.max_tokens} tokens that the model takes: "
                        "shorten it, cut it into passages, or let it be truncated (truncate: true)"
                    )
        return found

    def prompt(self, options: Options, otherwise: tuple[str, ...] = ()) -> str:
        """The text of the prompt that the options name, or that the model would use.

        Raises InvalidRequest for a prompt the model does not have.
        """
        try:
            return self.model.prompt_for(options.prompt_name, otherwise)
        except KeyError:
            name, known = options.prompt_name, ", ".join(sorted(self.model.prompts)) or "none"
            raise InvalidRequest(f"prompt_name is {name!r:.100}: {self.model.name} has {known}") from None

    def check(self, options: Options) -> None:
        """Raises InvalidRequest for options that the model cannot follow."""
        if options.dimensions is not None and options.dimensions > self.model.dimension:
            raise InvalidRequest(
                f"dimensions is {options.dimensions:,}: the vectors of {self.model.name} have {self.model.dimension:,}"
            )

    def encode(self, rows: Sequence[Row]) -> None:
        """Sets the rows' vectors in one forward pass."""
        packing, places = pack([row.tokens.ids for row in rows], self.model.shares_rows)
        poolings = ["tokens" if row.output == "tokens" else row.pooling or self.model.pooling for row in rows]
        vectors = self.engine.forward(packing, places, set(poolings))
        ends = np.cumsum(places.lengths)
        for n, (row, how) in enumerate(zip(rows, poolings, strict=True)):
            part = slice(ends[n] - row.num_tokens, ends[n]) if how == "tokens" else slice(n, n + 1)
            row.vectors = vectors[how][part]

    def embed(
        self, texts: Sequence[str], options: Options, prompt: str, batcher: Batcher[Row] | None = None
    ) -> NDArray[np.float32]:
        """Finished vectors `[texts, dimension]` of any number of texts, for building an index and for self-tests."""
        rows = [Row(tokens, options.pooling) for tokens in self.tokenize(texts, options, prompt)]
        for batch in (batcher or Batcher(2_048, self.model.shares_rows)).cut(rows):
            self.encode(batch)
        return finish([row.vectors for row in rows if row.vectors is not None], options)
