"""The options of texts: how a worker reads texts, and which vectors it makes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from shoal.contract.checks import check_range, check_string, check_type
from shoal.contract.excerpt import excerpt
from shoal.errors import InvalidRequest

# The values of some options. The HTTP schema is also made from them.
Pooling = Literal["mean", "max", "cls"]
Output = Literal["vector", "tokens", "chunks", "sparse", "multivector"]
ListedOutput = Literal["vector", "sparse", "multivector"]
TruncationSide = Literal["right", "left"]

#: The allowed values of options that have only a few values. None means the model's own value.
CHOICES: dict[str, tuple[str | None, ...]] = {
    "pooling": (None, *get_args(Pooling)),
    "output": get_args(Output),
    "truncation_side": get_args(TruncationSide),
}

#: The outputs that are rows of one array.
ROW_OUTPUTS = ("vector", "tokens", "chunks")

#: The outputs that one job may ask for together, in the order of `Options.outputs`.
LISTED_OUTPUTS: tuple[str, ...] = get_args(ListedOutput)

#: The options that a rerank may have.
RERANK_OPTIONS = ("truncate", "truncation_side")

#: Names of prompts for queries and for documents, in order of preference.
QUERY_PROMPTS = ("query", "search_query")
DOCUMENT_PROMPTS = ("document", "passage", "search_document")

#: Largest value of `dimensions`: more than any model has.
MAX_DIMENSIONS = 100_000

#: Largest value of `chunk_tokens`: more tokens than any model reads.
MAX_CHUNK_TOKENS = 1_000_000

#: Number of ASCII characters that count as a token when a text's chunks are estimated, before a worker cuts the text.
#: Every other character counts as one token, which is nearly right for most other scripts.
ASCII_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class Options:
    """Options that say how a job's texts are embedded. Raises InvalidRequest for a value that an option cannot have.

    `output` is a word, or a list of words from `LISTED_OUTPUTS`, which becomes a tuple. With `chunk_tokens`, a text is
    cut into chunks of at most `chunk_tokens` tokens. Neighbouring chunks share at most `chunk_overlap` tokens. The
    vector of the text is the mean of the chunks' vectors.
    """

    normalize: bool = True
    pooling: str | None = None
    output: str | list[str] | tuple[str, ...] = "vector"
    dimensions: int | None = None
    prompt_name: str | None = None
    truncate: bool = True
    truncation_side: str = "right"
    chunk_tokens: int | None = None
    chunk_overlap: int = 0

    def __post_init__(self) -> None:
        for name, allowed in CHOICES.items():
            value = getattr(self, name)
            if name == "output" and isinstance(value, list | tuple):
                self._check_list(value)
            elif value not in allowed:
                words = ", ".join("null" if word is None else word for word in allowed)
                raise InvalidRequest(f"{name} is {excerpt(value)}: it takes one of {words}")
        for name in ("normalize", "truncate"):
            check_type(name, getattr(self, name), bool, "true or false")
        if self.prompt_name is not None:
            check_string("prompt_name", self.prompt_name, "the name of a prompt")
        if self.pooling is not None and "vector" not in self.outputs:
            self._check_outputs("pooling", ("sparse", "multivector"))
        if self.dimensions is not None:
            check_range("dimensions", self.dimensions, 1, MAX_DIMENSIONS)
            if "vector" not in self.outputs:
                self._check_outputs("dimensions", ("tokens", "sparse", "multivector"))
        self._check_chunks()

    def _check_list(self, words: Sequence[Any]) -> None:
        if not words or any(word not in LISTED_OUTPUTS for word in words) or len(set(words)) < len(words):
            listed = ", ".join(LISTED_OUTPUTS)
            raise InvalidRequest(f"output is {excerpt(list(words))}: a list takes one or more of {listed}, each once")
        object.__setattr__(self, "output", tuple(words))

    def _check_outputs(self, name: str, refused: tuple[str, ...]) -> None:
        """Raise InvalidRequest if the job asks for an output that excludes the option `name`."""
        for output in self.outputs:
            if output in refused:
                raise InvalidRequest(f"{name} does not go with output '{output}': drop one of the two")

    def _check_chunks(self) -> None:
        check_range("chunk_overlap", self.chunk_overlap, 0, MAX_CHUNK_TOKENS)
        if self.chunk_tokens is None:
            if self.output == "chunks":
                raise InvalidRequest("output 'chunks' takes chunk_tokens: say how many tokens a chunk may have")
            if self.chunk_overlap:
                raise InvalidRequest(f"chunk_overlap is {self.chunk_overlap:,}, without chunk_tokens: set both")
            return
        check_range("chunk_tokens", self.chunk_tokens, 1, MAX_CHUNK_TOKENS)
        self._check_outputs("chunk_tokens", ("tokens", "sparse", "multivector"))
        if self.truncation_side == "left":
            raise InvalidRequest("chunk_tokens does not go with truncation_side 'left': drop one of the two")
        if self.chunk_overlap > self.chunk_tokens // 2:
            raise InvalidRequest(
                f"chunk_overlap is {self.chunk_overlap:,}: it takes at most half of chunk_tokens, "
                f"{self.chunk_tokens // 2:,}"
            )

    @property
    def outputs(self) -> tuple[str, ...]:
        """The words of `output`, with `vector` first. The first word describes the reply's `vectors`, if it has any."""
        if isinstance(self.output, str):
            return (self.output,)
        return tuple(word for word in LISTED_OUTPUTS if word in self.output)

    @property
    def is_cacheable(self) -> bool:
        """True if each text has one vector, and is not cut into chunks."""
        return self.output == "vector" and self.chunk_tokens is None

    def num_chunks(self, text: str) -> int:
        """Return an estimate of the number of chunks of the text; 1 without `chunk_tokens`."""
        if self.chunk_tokens is None:
            return 1
        num_ascii = len(text) if text.isascii() else len(text.encode("ascii", "ignore"))
        size = num_ascii + ASCII_PER_TOKEN * (len(text) - num_ascii)
        return max(1, size // (ASCII_PER_TOKEN * (self.chunk_tokens - self.chunk_overlap)))

    @classmethod
    def from_map(cls, values: Mapping[str, Any]) -> "Options":
        """Return options with values from a map. Options that the map lacks keep their defaults."""
        given = {
            name: value
            for name, default in OPTION_DEFAULTS.items()
            if (value := values.get(name, default)) is not default  # not `!=`, because 1 equals True
        }
        return cls(**given) if given else DEFAULT_OPTIONS

    def to_map(self) -> dict[str, Any]:
        """Return the options that differ from their defaults, by their names."""
        return {name: value for name, default in OPTION_DEFAULTS.items() if (value := getattr(self, name)) != default}


#: The options of most jobs.
DEFAULT_OPTIONS = Options()

#: The default of each option by its name, which is the same on the wire, in HTTP bodies and in Python.
OPTION_DEFAULTS: dict[str, Any] = {option.name: option.default for option in fields(Options)}

#: The names of all options.
OPTION_NAMES = tuple(OPTION_DEFAULTS)
