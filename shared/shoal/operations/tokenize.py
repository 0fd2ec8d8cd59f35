"""Tokenize and decode: the operations that need only the model's tokenizer."""

from dataclasses import dataclass
from typing import ClassVar

from shoal.contract.checks import check_type
from shoal.contract.jobs import Job
from shoal.errors import TooLarge


@dataclass(frozen=True, slots=True)
class TokenizerJob(Job):
    """A job for the tokenizer. Its texts have at most `max_chars` characters in all: more would keep a worker busy."""

    special_tokens: bool = True

    own_names: ClassVar[tuple[str, ...]] = ("special_tokens",)
    max_chars: ClassVar[int] = 0

    def _check(self) -> None:
        check_type("special_tokens", self.special_tokens, bool, "true or false")

    @property
    def texts_per_job(self) -> int:
        """The largest number of texts in a job. It can hold them if each is as long as most models can read."""
        return 8

    def check_sizes(self, max_texts: int) -> None:
        """Raise TooLarge for several texts that have too many characters together."""
        if len(self.texts) > 1 and (num_chars := sum(map(len, self.texts))) > self.max_chars:
            raise TooLarge(
                f"the texts have {num_chars:,} characters, and a job to {self.op} may have {self.max_chars:,}: "
                "split the list"
            )


@dataclass(frozen=True, slots=True)
class Tokenize(TokenizerJob):
    """A job that tokenizes its texts; with `special_tokens`, it adds special tokens."""

    op: ClassVar[str] = "tokenize"
    answer_name: ClassVar[str] = "pieces"
    max_chars: ClassVar[int] = 65_536


@dataclass(frozen=True, slots=True)
class Decode(TokenizerJob):
    """A job that decodes ids: each text has decimal ids, separated by spaces. `special_tokens` keeps special tokens."""

    op: ClassVar[str] = "decode"
    answer_name: ClassVar[str] = "decoded"
    max_chars: ClassVar[int] = 2**20
