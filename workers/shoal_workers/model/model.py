"""A model as its own files describe it, and the folder in which it is prepared for serving."""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

from shoal.contract.excerpt import excerpt
from shoal.errors import ModelMismatch, ModelNotFound
from shoal_workers.model.architecture import MAX_SIZE
from shoal_workers.model.download import local_folder
from shoal_workers.model.original_files import read_properties, weights_state

#: Version of prepared folders, raised by one whenever their files change. Folders of other versions are made again.
LAYOUT = 9

#: Name of the file in a prepared folder that describes its model.
DESCRIPTION = "model.json"

#: File of the graph in a prepared folder.
GRAPH = "openvino.xml"

#: File of the table with the weights of queries' tokens, in a prepared folder.
QUERY_TABLE = "query_table.safetensors"


@dataclass(frozen=True, slots=True)
class Head:
    """An output besides the pooled vector. Its graph makes `size` numbers from each token vector.

    `kind` says how these numbers become the output: "max" and "sum" reduce them over a text's tokens to the weights of
    all words of the vocabulary (SPLADE), "ids" takes the one number of a token as the weight of its id (BGE-M3),
    "vectors" keeps them as the token's vector (ColBERT), and "rest" does so for all tokens but the first (BGE-M3).

    For "ids" and "vectors", tokens with an id in `skipped` are left out; in queries only with `skips_queries`. For a
    word's weight, log(1 + x) is applied `num_logs` times to its number. A text has at most `max_weights` weights; 0
    means no limit.
    """

    kind: str
    size: int
    skipped: tuple[int, ...] = ()
    skips_queries: bool = False
    num_logs: int = 1
    max_weights: int = 0


@dataclass(frozen=True, slots=True)
class QueryForm:
    """The form of queries, which differs from the form of documents: cut to `max_tokens`, filled to `min_tokens`.

    `filler` is the id of the tokens that fill a query. Unless `is_filler_seen`, no token attends to them.
    """

    max_tokens: int
    min_tokens: int = 0
    filler: int = 0
    is_filler_seen: bool = False


@dataclass(frozen=True, slots=True)
class Model:
    """The properties of a model that a worker needs to serve it, read from the model's own files.

    `source` is the folder of the original; a worker that serves needs it only for the torch engine. `digest` is the
    SHA-256 of the weights. `weights_state` shows whether the original's weights or settings have changed since.
    `shares_rows` is true if a row may have several texts.

    `is_reranker` is true for a cross-encoder, which makes one score for a pair of texts. `type_offset` is added to the
    position of a token for each token type; it is 0 if there are no types. `num_weights` is the number of weights in
    the layers, or 0 if it is not known. `other_blocks` names, in words, the blocks that BERT lacks. With
    `ends_in_tanh`, a tanh is applied to pooled vectors. `activation` is the function in the layers if it is not the
    architecture's usual one. `pair_forms` are format strings for a reranker's query and text, with `{}` where these are
    inserted; they are empty if the tokenizer takes both unchanged.

    `matryoshka_dimensions` are the smaller dimensions for which the model was trained. They are empty if the model's
    files name no dimension, and None if the files do not mention such training.

    `heads` has the heads of outputs besides the pooled vector, by output. Without a pooled vector, `pooling` is empty
    and `dimension` is the size of the first head. With a `query_form`, `max_tokens` is the limit of documents.
    """

    name: str
    source: str
    digest: str
    dimension: int
    max_tokens: int
    pooling: str
    prompts: dict[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    weights_state: str = ""
    shares_rows: bool = False
    is_reranker: bool = False
    type_offset: int = 0
    num_weights: int = 0
    other_blocks: str = ""
    ends_in_tanh: bool = False
    activation: str = ""
    pair_forms: list[str] = field(default_factory=list)
    matryoshka_dimensions: list[int] | None = None
    heads: dict[str, Head] = field(default_factory=dict)
    query_form: QueryForm | None = None
    layout: int = LAYOUT

    @property
    def is_static(self) -> bool:
        """True for a table of vectors without layers."""
        return self.shares_rows and not self.num_weights

    @property
    def has_query_table(self) -> bool:
        """True if a table gives queries their sparse weights, and the model reads documents alone."""
        return self.query_form is not None and "sparse" in self.heads

    @property
    def outputs(self) -> tuple[str, ...]:
        """The outputs that a job may ask for."""
        return (*(("vector", "tokens", "chunks") if self.pooling else ()), *self.heads)

    @classmethod
    def read(cls, name: str, source: Path) -> Self:
        """Read the model in a Sentence Transformers folder. Raises ModelNotFound or ModelMismatch."""
        return cls(name=name, source=str(source.absolute()), **read_properties(name, source)).checked()

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Read the description of the model that was prepared in `folder`. Raises ModelNotFound."""
        try:
            values = json.loads((folder / DESCRIPTION).read_text("utf-8"))
            values["heads"] = {output: Head(**head) for output, head in values.get("heads", {}).items()}
            values["query_form"] = QueryForm(**form) if (form := values.get("query_form")) else None
            return cls(**values).checked()
        except FileNotFoundError:
            raise ModelNotFound(f"no model is prepared in {folder}: run `shoal model prepare`") from None
        except (OSError, ValueError, TypeError, AttributeError, RecursionError, ModelMismatch) as error:
            raise ModelNotFound(
                f"{folder / DESCRIPTION} describes no model ({error!s:.200}): run `shoal model prepare --force`"
            ) from error

    def save(self, folder: Path) -> None:
        """Write the description that `open` reads."""
        (folder / DESCRIPTION).write_text(json.dumps(asdict(self), indent=2) + "\n", "utf-8")

    def checked(self) -> Self:
        """Return this model itself. Raises ModelMismatch for a property that no model can have."""
        prompts = self.prompts if isinstance(self.prompts, dict) else {None: None}
        words = [self.digest, self.pooling, *prompts, *prompts.values()]
        sizes = [self.dimension, self.max_tokens, self.type_offset + 1, self.num_weights + 1]
        sizes += [head.size for head in self.heads.values()]
        is_size = [type(n) is int and 0 < n <= MAX_SIZE for n in sizes]
        if not all(isinstance(word, str) for word in words) or not all(is_size):
            raise ModelMismatch(
                f"{excerpt(self.name)} has a property of a wrong type or a size outside of 1 to {MAX_SIZE:,}: "
                "use another model"
            )
        if self.default_prompt is not None and self.default_prompt not in list(prompts):
            raise ModelMismatch(
                f"{self.name} lacks its default prompt {excerpt(self.default_prompt)}: use another model"
            )
        return self

    def formed(self, pairs: Sequence[tuple[str, str]]) -> Sequence[tuple[str, str]]:
        """Return the pairs, formatted by `pair_forms` for the tokenizer."""
        if not self.pair_forms:
            return pairs
        of_query, of_text = self.pair_forms
        return [(of_query.format(query), of_text.format(text)) for query, text in pairs]

    def prompt_for(self, name: str | None, otherwise: tuple[str, ...] = ()) -> str:
        """Return the text of the prompt `name`; if None, of the first known name in `otherwise`, or the default."""
        if name is not None:
            return self.prompts[name]
        found = next((known for known in otherwise if known in self.prompts), self.default_prompt)
        return self.prompts[found] if found else ""


def prepared_folder(home: Path, name: str) -> Path:
    """Return the folder in which the model of that name is prepared."""
    readable = re.sub(r"[^A-Za-z0-9._-]+", "--", name).strip("-")[-80:]
    return home / "models" / f"{readable}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def head_file(output: str) -> str:
    """Return the name of the file of a head's graph in a prepared folder."""
    return f"{output}.xml"


def is_prepared(folder: Path) -> bool:
    """Return True if `folder` has a model of this layout, and its original is gone or has not changed since."""
    try:
        model = Model.open(folder)
    except ModelNotFound:
        return False
    source = Path(model.source)
    is_same = (local_folder(model.name) or source).resolve() == source.resolve()  # a relative path may lead elsewhere
    return model.layout == LAYOUT and is_same and (not source.exists() or weights_state(source) == model.weights_state)
