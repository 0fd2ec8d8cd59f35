"""The encoder, which turns texts into vectors with the tokenizer, packing, the engine and pooling."""

import json
import logging
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from shoal.contract.excerpt import excerpt
from shoal.contract.options import QUERY_PROMPTS, Options
from shoal.contract.vectors import SparseVector, cut_and_normalise
from shoal.errors import BadSetting, InvalidRequest, ModelMismatch, ShoalError, Unsupported
from shoal_workers.encoding.bucketing import Bucketing
from shoal_workers.encoding.engines import (
    INT8_VERSION,
    KERNEL_ENGINES,
    KERNEL_VERSION,
    Engine,
    ForwardPass,
    open_engine,
)
from shoal_workers.encoding.engines.kernel import engine_for
from shoal_workers.encoding.packing import Packing, TextSpans, join, pack, round_up
from shoal_workers.encoding.tokenizer import Tokenizer, Tokens
from shoal_workers.model import parity, weights
from shoal_workers.model.graph import core
from shoal_workers.model.heads.open_head import OpenHead
from shoal_workers.model.model import QUERY_TABLE, Head, Model, head_file
from shoal_workers.process import processors

log = logging.getLogger(__name__)

#: Version of the vectors of this package. A change that alters vectors by more than rounding raises the version by one.
VECTORS_VERSION = 1

#: Largest pass that one thread always computes alone: its number of tokens times the bytes of the model's weights. It
#: takes about a millisecond. Measured: two threads are not quicker for a headline in int8, and use one and a half times
#: the processor time.
MAX_WORK_OF_ONE_THREAD = 200_000_000

#: Speed of one pass on all threads, relative to one-thread passes side by side. It is lower because threads wait for
#: each other.
RATE_TOGETHER = 0.8

#: Bytes of one weight in these precisions. In any other precision, a weight has four bytes.
_WEIGHT_BYTES = {"int8": 1, "bf16": 2}


@dataclass(slots=True, eq=False)
class TokenizedText:
    """One text on its way through the model.

    If `pooling` is None, the model's pooling is used. The text gets an `error` if the engine fails on it, or else
    `vectors`, float32: `[1, dimension]`, or `[tokens, dimension]` with the output `tokens`, or `[0, …]` if heads make
    all outputs. `made` has the output of each head, by the head's name. `num_tokens` includes special tokens. Texts
    with equal keys can share one computation.
    """

    tokens: Tokens
    pooling: str | None = None
    outputs: tuple[str, ...] = ("vector",)
    vectors: NDArray[np.float32] | None = None
    made: dict[str, Any] = field(default_factory=dict)
    error: Exception | None = None
    num_tokens: int = field(init=False)
    key: tuple[Any, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.num_tokens, self.key = len(self.tokens.ids), (self.tokens, self.pooling, self.outputs)

    @property
    def is_done(self) -> bool:
        """True once the engine has encoded the text, or failed on it."""
        return self.vectors is not None or self.error is not None


@dataclass(frozen=True, slots=True)
class EncodingPass:
    """One forward pass of a batch: its texts, their positions in the `Packing`, and the running pass of the engine."""

    texts: Sequence[TokenizedText]
    spans: TextSpans
    running: ForwardPass


class Encoder:
    """A model that is ready to encode texts. Not thread-safe."""

    #: True for a reranker, whose model is a cross-encoder.
    is_reranker: ClassVar[bool] = False

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        engine: Engine,
        head_graphs: Mapping[str, Any] | None = None,
        query_table: NDArray[np.float32] | None = None,
    ):
        self.model = model
        self.tokenizer = tokenizer
        self.engine = engine
        self._head_graphs = head_graphs or {}
        self._heads: dict[str, OpenHead] = {}
        self._query_table = query_table

    @property
    def runs_aside(self) -> bool:
        """True if the engine can run passes aside, which means at low priority beside other passes."""
        return self.engine.num_streams > 1

    def bucketing(self, max_batch_tokens: int) -> Bucketing:
        """Return the bucketing for passes of at most `max_batch_tokens`. The torch engine pads texts for attention."""
        return Bucketing(max_batch_tokens, self.model.shares_rows and self.engine.name != "torch")

    @classmethod
    def open(cls, folder: Path, engine: str, precision: str, threads: int) -> Self:
        """Open the prepared model in `folder` and check it; raise ModelMismatch if it cannot be used."""
        model = Model.open(folder)
        if model.is_reranker != cls.is_reranker:
            raise ModelMismatch(
                f"{model.name} scores pairs of texts and makes no vectors: name it as SHOAL_RERANKER alone"
                if model.is_reranker
                else f"{model.name} makes vectors and scores no pairs: "
                "name a cross-encoder or ColBERT as SHOAL_RERANKER"
            )
        try:
            tokenizer = Tokenizer(folder / "tokenizer.json", model.max_tokens)
            open_checked = cls._open_best if engine == "auto" else partial(cls._open_checked, engine)
            encoder = open_checked(model, tokenizer, folder, precision, threads)
        except (ShoalError, ModuleNotFoundError):
            raise
        except Exception as error:  # each library has its own exceptions
            reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
            raise ModelMismatch(
                f"the model in {folder} cannot be used ({reason}): prepare it again (shoal model prepare --force)"
            ) from error
        return encoder

    @classmethod
    def _open_best(cls, model: Model, tokenizer: Tokenizer, folder: Path, precision: str, threads: int) -> Self:
        """Open the kernel's engine for this processor if it can compute the model, otherwise openvino."""
        name = engine_for(precision)
        try:
            return cls._open_checked(name, model, tokenizer, folder, precision, threads)
        except BadSetting as error:
            log.info("the engine is openvino: %s", error.message)
        except Exception as error:  # a failed check, or too little memory
            log.warning("%s failed on %s in the precision %s: %s", name, model.name, precision, str(error))
        return cls._open_checked("openvino", model, tokenizer, folder, precision, threads)

    @classmethod
    def _open_checked(
        cls, engine: str, model: Model, tokenizer: Tokenizer, folder: Path, precision: str, threads: int
    ) -> Self:
        """Open the engine and check it. If openvino fails in int8 with fixed steps, open it without fixed steps."""
        opened = partial(open_engine, engine, model, folder, precision, threads)
        graphs = {output: core().read_model(folder / head_file(output)) for output in model.heads}
        table = weights.read_file(folder / QUERY_TABLE)["weights"] if model.has_query_table else None
        try:
            encoder = cls(model, tokenizer, opened(), graphs, table)
            encoder.check_parity(folder, precision)
        except Exception as error:  # a library may raise any exception
            if precision != "int8" or engine != "openvino":
                raise
            encoder = cls(model, tokenizer, opened(may_fix_steps=False), graphs, table)
            encoder.check_parity(folder, precision)
            reason = (str(error).strip().splitlines() or [type(error).__name__])[-1].partition(": ")[0]
            log.warning(
                "%s rounds activations during the pass, which is slower: with fixed ranges, %s", model.name, reason
            )
        return encoder

    @property
    def fingerprint(self) -> str:
        """The digest of everything on which a vector depends, except the text and its options."""
        model, engine = self.model, self.engine
        numbers = [VECTORS_VERSION, model.max_tokens]
        numbers += [INT8_VERSION] if engine.fixed_steps else []
        numbers += [KERNEL_VERSION] if engine.name in KERNEL_ENGINES else []
        name = KERNEL_ENGINES.get(engine.name, engine.name)
        words = [name, engine.precision, model.digest, model.pooling, self.tokenizer.digest]
        words += ["tanh"] * model.ends_in_tanh + [f"layers: {model.activation}"] * bool(model.activation)
        made_of: list[Any] = [numbers, words, model.prompts, model.default_prompt]
        made_of += [[asdict(head) for head in model.heads.values()], model.query_form and asdict(model.query_form)]
        made_by = json.dumps(made_of if model.heads else made_of[:4], sort_keys=True)
        return blake2b(made_by.encode(), digest_size=16).hexdigest()

    def check_parity(self, folder: Path, precision: str) -> None:
        """Raise ModelMismatch if the engine does not reproduce the reference vectors in the folder."""
        min_cosine = parity.MIN_COSINE_INT8 if precision == "int8" else parity.MIN_COSINE
        if self.model.pooling:
            parity.check(folder, lambda texts: self.embed(texts, Options(), prompt=""), min_cosine)
        for output, head in self.model.heads.items():
            parity.check(folder, partial(self._profile, output, head), min_cosine, output)

    def _profile(self, output: str, head: Head, texts: Sequence[str]) -> NDArray[np.float32]:
        encoded = self.encoded(texts, Options(output=output), prompt="")
        return parity.profile([text.made[output] for text in encoded], head)

    def prompt(self, options: Options, fallbacks: tuple[str, ...] = ()) -> str:
        """Return the text of the prompt that the options name, or of the first fallback. Raises InvalidRequest."""
        try:
            return self.model.prompt_for(options.prompt_name, fallbacks)
        except KeyError:
            name, known = options.prompt_name, ", ".join(sorted(self.model.prompts))
            raise InvalidRequest(
                f"prompt_name is {excerpt(name)}: {self.model.name} has no such prompt. Available prompts: [{known}]"
            ) from None

    def check(self, options: Options, outputs: Sequence[str] = ()) -> None:
        """Raise InvalidRequest for options, and Unsupported for outputs, that the model does not support."""
        if options.dimensions is not None and options.dimensions > self.model.dimension:
            raise InvalidRequest(
                f"dimensions is {options.dimensions:,}: the vectors of {self.model.name} have {self.model.dimension:,}"
            )
        if options.pooling not in (None, "mean") and self.model.is_static:
            raise InvalidRequest(f"pooling is {options.pooling}: {self.model.name} is a static model, which takes mean")
        for output in outputs:
            if output not in self.model.outputs:
                made = ", ".join(self.model.outputs)
                raise Unsupported(f"output is {output}: {self.model.name} makes only {made}; ask for one of them")

    def is_query(self, options: Options) -> bool:
        """Return True for texts that the model reads in another form than documents."""
        return self.model.query_form is not None and options.prompt_name in QUERY_PROMPTS

    def max_tokens(self, is_query: bool) -> int:
        """Return the largest number of tokens of a text."""
        form = self.model.query_form
        return form.max_tokens if form and is_query else self.model.max_tokens

    def tokenize(self, inputs: Sequence[Any], truncation_side: str = "right", is_query: bool = False) -> list[Tokens]:
        """Return the tokens of each text. A text that is too long for the model is cut on the named side."""
        form = self.model.query_form
        if form is None or not is_query:
            return self.tokenizer.encode(inputs, truncation_side)
        found = []
        for tokens in self.tokenizer.limited_to(form.max_tokens).encode(inputs, truncation_side):
            num_filled = max(0, form.min_tokens - len(tokens.ids))
            ids, num_unseen = tokens.ids + (form.filler,) * num_filled, 0 if form.is_filler_seen else num_filled
            found.append(replace(tokens, ids=ids, is_query=True, num_unseen=num_unseen))
        return found

    def start(self, texts: Sequence[TokenizedText]) -> list[EncodingPass]:
        """Start encoding the texts, in one-thread passes side by side or, if quicker, in one pass on all threads."""
        parts = self._split(texts)
        sizes = [sum(text.num_tokens for text in part) for part in parts]
        longest, whole = round_up(max(sizes, default=0)), round_up(sum(sizes))
        work = longest * self.model.num_weights * _WEIGHT_BYTES.get(self.engine.precision, 4)
        is_short = 0 < work <= MAX_WORK_OF_ONE_THREAD  # 0 if the model's number of weights is unknown
        if parts and not is_short and longest * self.engine.num_streams * RATE_TOGETHER > whole:
            texts = [text for part in parts for text in part]
            return self._start([texts], partial(self.engine.start, together=True))
        return self._start(parts, self.engine.start)

    def start_aside(self, texts: Sequence[TokenizedText]) -> list[EncodingPass]:
        """Start encoding texts at low priority, beside the passes that `start` begins. Needs `runs_aside`."""
        return self._start(self._split(texts), self.engine.start_aside)

    def needs_pass(self, text: TokenizedText) -> bool:
        """Return False for a query whose weights come from a table."""
        return self._query_table is None or not text.tokens.is_query

    def _without_queries(self, texts: Sequence[TokenizedText], table: NDArray[np.float32]) -> list[TokenizedText]:
        """Return the texts that need a pass, and set the weights of the queries, which need none."""
        for text in texts:
            if text.tokens.is_query:
                ids = np.unique(np.array(text.tokens.ids, np.int32))
                ids = ids[table[ids] > 0]
                text.made["sparse"] = SparseVector(ids, table[ids])
                text.vectors = np.empty((0, self.model.dimension), np.float32)
        return [text for text in texts if not text.tokens.is_query]

    def ends_within(self, passes: Sequence[EncodingPass], seconds: float) -> bool:
        """Wait at most `seconds` for passes that run aside; return True if all have ended."""
        until = time.monotonic() + seconds
        return all(one.running.ends_within(max(0.0, until - time.monotonic())) for one in passes)

    def finish(self, passes: Sequence[EncodingPass]) -> None:
        """Wait for the passes and set the vectors of their texts. Raises the engine's exceptions."""
        failures: list[Exception] = []
        of_tokens: dict[TokenizedText, NDArray[np.float32]] = {}
        for one in passes:
            try:
                of_tokens |= self._finish(one)
            except Exception as error:  # wait for the other passes too, because they read memory of this process
                failures.append(error)
        if failures:
            raise failures[0]
        for output in self.model.heads:
            if texts := [text for text in of_tokens if output in text.outputs]:
                rows, ids = [of_tokens[text] for text in texts], [text.tokens.ids for text in texts]
                made = self._head(output).compute(rows, ids, [text.tokens.is_query for text in texts])
                for text, result in zip(texts, made, strict=True):
                    text.made[output] = result

    def _start(
        self, parts: Sequence[Sequence[TokenizedText]], start: Callable[[list[Packing]], Sequence[ForwardPass]]
    ) -> list[EncodingPass]:
        packed, offset = [], self.model.type_offset
        for texts in parts:
            offsets = [np.multiply(text.tokens.types, offset, dtype=np.int32) for text in texts] if offset else None
            ids = [text.tokens.ids for text in texts]
            num_unseen = [text.tokens.num_unseen for text in texts] if self.model.query_form else None
            if self.engine.is_ragged:
                packed.append(join(ids, offsets, num_unseen))
            else:
                packed.append(pack(ids, self.model.shares_rows, offsets, num_unseen))
        running = start([packing for packing, _ in packed])
        return [EncodingPass(part, spans, one) for part, (_, spans), one in zip(parts, packed, running, strict=True)]

    def _finish(self, one: EncodingPass) -> dict[TokenizedText, NDArray[np.float32]]:
        """Wait for the pass and set the vectors of its texts; return the token vectors of texts that need a head."""
        heads = self.model.heads.keys()
        with_heads = {text for text in one.texts if not heads.isdisjoint(text.outputs)} if heads else ()
        poolings = [
            text.pooling or self.model.pooling if text.outputs[0] in ("vector", "chunks") else "tokens"
            for text in one.texts
        ]
        vectors = one.running.wait(one.spans, {*poolings, "tokens"} if with_heads else set(poolings))
        if self.model.ends_in_tanh:
            vectors = {how: np.tanh(found) for how, found in vectors.items()}
        ends, of_tokens = np.cumsum(one.spans.lengths), {}
        for n, (text, how) in enumerate(zip(one.texts, poolings, strict=True)):
            part = slice(ends[n] - text.num_tokens, ends[n]) if how == "tokens" else slice(n, n + 1)
            text.vectors = vectors[how][part]
            if with_heads and text in with_heads:
                of_tokens[text] = vectors["tokens"][ends[n] - text.num_tokens : ends[n]]
                if text.outputs[0] != "vector":  # heads make all outputs
                    text.vectors = text.vectors[:0]
        return of_tokens

    def _head(self, output: str) -> OpenHead:
        """Return the head of an output, opened for the engine's number of threads."""
        found, engine = self._heads.get(output), self.engine
        if found is None or found.threads != engine.threads:
            fastest = "bf16" if processors.has_bf16() else "f32"
            precision = fastest if engine.precision == "int8" else engine.precision
            found = OpenHead(self.model.heads[output], self._head_graphs[output], precision, engine.threads)
            self._heads[output] = found
        return found

    def _split(self, texts: Sequence[TokenizedText]) -> list[list[TokenizedText]]:
        """Return the texts that need a pass in parts of about equal numbers of tokens, at most one for each stream."""
        if self._query_table is not None:
            texts = self._without_queries(texts, self._query_table)
        parts: list[list[TokenizedText]] = [[] for _ in range(min(self.engine.num_streams, len(texts)))]
        sizes = [0] * len(parts)
        for text in sorted(texts, key=lambda text: text.num_tokens, reverse=True):
            smallest = sizes.index(min(sizes))
            parts[smallest].append(text)
            sizes[smallest] += text.num_tokens
        return parts

    def encode(self, texts: Sequence[TokenizedText]) -> None:
        """Set the vectors of the texts. Raises the engine's exceptions."""
        self.finish(self.start(texts))

    def embed(self, texts: Sequence[str], options: Options, prompt: str) -> NDArray[np.float32]:
        """Return the finished vectors `[texts, dimension]` of any number of texts."""
        encoded = self.encoded(texts, options, prompt)
        return cut_and_normalise([text.vectors for text in encoded if text.vectors is not None], options)

    def encoded(self, texts: Sequence[str], options: Options, prompt: str) -> list[TokenizedText]:
        """Return any number of texts with the outputs that the options name."""
        prompted = [prompt + text for text in texts] if prompt else texts
        tokenized = self.tokenize(prompted, options.truncation_side, self.is_query(options))
        encoded = [TokenizedText(tokens, options.pooling, options.outputs) for tokens in tokenized]
        for batch in self.bucketing(2_048).cut(encoded):
            self.encode(batch)
        return encoded


#: Factor by which each pass reduces the weight of earlier measurements. The last ten passes make up two thirds of the
#: measured speed.
KEPT = 0.9


class Pipeline:
    """A model with the `bucketing` of its texts and its measured speed. Not thread-safe.

    A reply has room for `max_vectors` vectors of the model.
    """

    def __init__(self, encoder: Encoder, bucketing: Bucketing, max_vectors: int = sys.maxsize):
        self.encoder, self.max_vectors = encoder, max_vectors
        #: The fields of a reply that describe the model.
        self.made_by = {"model": encoder.model.name, "fingerprint": encoder.fingerprint}
        self.bucketing = bucketing
        self._cost, self._seconds = 0.0, 0.0

    def note(self, texts: Sequence[TokenizedText], seconds: float) -> None:
        """Record how long a pass over the texts took, in seconds."""
        if computed := [text for text in texts if self.encoder.needs_pass(text)]:
            self._cost = KEPT * self._cost + self.bucketing.cost_of(computed)
            self._seconds = KEPT * self._seconds + seconds

    def cost_within(self, seconds: float) -> float:
        """Return the cost of a pass that takes `seconds`, as `Bucketing.cost_of` counts it; 0 before the first pass."""
        return seconds * self._cost / self._seconds if self._seconds else 0.0
