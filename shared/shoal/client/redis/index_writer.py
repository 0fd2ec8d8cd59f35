"""The writer of a served index, which adds and deletes documents by writing changes into Redis."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from shoal.changes.change import (
    BYTES_OF_A_VALUE,
    MAX_CHANGE_BYTES,
    MAX_CHANGE_IDS,
    MAX_CHANGE_VALUES,
    MAX_CHANGES,
    Change,
    is_position,
    map_of,
)
from shoal.changes.change_log import append
from shoal.client.splitting import noting_num_written
from shoal.contract import wire
from shoal.contract.excerpt import excerpt
from shoal.contract.jobs import Job, bounded_groups
from shoal.contract.languages import LEARNED
from shoal.contract.options import Options
from shoal.contract.replies import Reply
from shoal.contract.vectors import SparseVector
from shoal.errors import InvalidRequest, ModelMismatch, NotReady, TooLarge, UnknownIndex
from shoal.operations import Embed
from shoal.queue.pool import ANSWERING
from shoal.queue.producer import Producer
from shoal.records.document import Document
from shoal.records.given_document import Given, documents_of, ids_of

#: Largest number of documents in a change if several changes are allowed. One call embeds the documents of a change.
DOCUMENTS_PER_CHANGE = 256

#: Size limit of a change's ids, or of its documents with their vectors, in bytes. 4,096 bytes are for other fields.
MAX_BYTES = MAX_CHANGE_BYTES - 4_096

#: Longest wait until workers announce an index that was just published, and the pause between two checks, in seconds.
SERVED_WITHIN_S, LOOK_EVERY_S = 2.0, 0.5

T = TypeVar("T")


class Written(NamedTuple):
    """The number of added documents or deleted ids, and the position of the last change in the index's log."""

    num: int
    position: str


class IndexModel(NamedTuple):
    """The properties of a served index, and of its workers, on which the documents' vectors depend."""

    name: str
    digest: str
    dimension: int
    prompt: str
    fingerprint: str
    has_learned_words: bool

    @property
    def outputs(self) -> tuple[str, ...]:
        """The outputs that the index needs for a document's text."""
        return (*(("vector",) if self.dimension else ()), *(("sparse",) if self.has_learned_words else ()))

    @classmethod
    def of(cls, about: Mapping[str, Any], index: str) -> Self | None:
        """Return the properties from a worker's heartbeat; None if the heartbeat lacks one."""
        served = about["indexes"][index]
        name, fingerprint = about.get("model"), about.get("fingerprint")
        digest, dimension, prompt = map(served.get, ("digest", "dimension", "prompt"))
        words = (name, digest, prompt, fingerprint)
        if not isinstance(dimension, int) or not all(isinstance(word, str) for word in words):
            return None
        is_learned = served.get("language") == LEARNED
        return cls(str(name), str(digest), dimension, str(prompt), str(fingerprint), is_learned)


@dataclass(frozen=True, slots=True)
class IndexWriter:
    """The writer of the index `name`. Its `call` returns the reply to a job.

    With `in_one_step`, a method writes one change or raises TooLarge. Otherwise it may write several changes, and the
    error of a later change says how many documents or ids are written. Changes are written only if all documents are
    valid and all workers that serve the index compute the same vectors. The methods wait for an index that was just
    published.
    """

    name: str
    call: Callable[[Job], Awaitable[Reply]]
    queue: Producer
    max_text_chars: int
    in_one_step: bool = False

    async def add(self, documents: Iterable[Given]) -> Written:
        """Add documents. A document replaces the document with the same id."""
        max_values = MAX_CHANGE_VALUES if self.in_one_step else math.inf
        found = documents_of(documents, self._max_ids, self.max_text_chars, max_values)
        if not found:
            return Written(0, "")
        model = await self._model([document.id for document in found])
        groups = self._cut("document", found, [_size(document, model) for document in found], DOCUMENTS_PER_CHANGE)
        changes = [change for group in groups for change in await self._changes(group, model)]
        if await self._model([document.id for document in found]) != model:
            raise self._other_model()
        return await self._write(changes)

    async def delete(self, ids: Iterable[str]) -> Written:
        """Delete the documents with these ids. An id without a document is not an error."""
        found = ids_of(ids, self._max_ids)
        if not found:
            return Written(0, "")
        model = await self._model(found, is_for_vectors=False)
        none = np.empty((0, model.dimension), np.float32)
        groups = self._cut("id", found, [len(one.encode()) + 5 for one in found], MAX_CHANGE_IDS)
        return await self._write([Change((), none, tuple(group), model.digest, 0.0) for group in groups])

    @property
    def _max_ids(self) -> int:
        return MAX_CHANGE_IDS if self.in_one_step else MAX_CHANGES

    def _cut(self, what: str, items: Sequence[T], sizes: Sequence[int], max_num: int) -> list[list[T]]:
        """Return the items in groups. Each group makes one change."""
        largest = max(range(len(sizes)), key=sizes.__getitem__)
        if sizes[largest] > MAX_BYTES:
            raise TooLarge(f"{what} {largest} takes {sizes[largest]:,} bytes and may take {MAX_BYTES:,}: shorten it")
        if not self.in_one_step:
            return list(bounded_groups(items, sizes, max_num, MAX_BYTES))
        if (total := sum(sizes)) > MAX_BYTES:
            raise TooLarge(
                f"the {what}s take {total:,} bytes, with vectors, and may take {MAX_BYTES:,}: split the list"
            )
        return [list(items)]

    async def _changes(self, documents: Sequence[Document], model: IndexModel) -> list[Change]:
        """Return the changes that add the documents: one, or several if the documents have many learned words."""
        vectors, sparse = await self._encode([document.text for document in documents], model)
        if not sparse:
            return [Change(tuple(documents), vectors, (), model.digest, 0.0)]
        sizes = [_size(one, model, len(weights.indices)) for one, weights in zip(documents, sparse, strict=True)]
        changes = []
        for group in self._cut("document", range(len(documents)), sizes, DOCUMENTS_PER_CHANGE):
            added, weights = tuple(documents[n] for n in group), tuple(sparse[n] for n in group)
            changes.append(Change(added, vectors[group], (), model.digest, 0.0, weights))
        return changes

    async def _encode(self, texts: list[str], model: IndexModel) -> tuple[NDArray[np.float32], Sequence[SparseVector]]:
        """Return the vectors of texts, float32 `[texts, dimension]`, and their sparse vectors for learned words."""
        output = model.outputs if len(model.outputs) > 1 else model.outputs[0]
        options = Options(prompt_name=model.prompt or None, output=output)
        try:
            reply = await self.call(Embed(texts, options).pinned(model.fingerprint))
        except ModelMismatch as error:
            raise self._other_model() from error
        vectors = reply.vectors if model.dimension else np.empty((len(texts), 0), np.float32)
        sparse = reply.sparse or ()
        num_sparse = len(texts) if model.has_learned_words else 0
        if vectors is None or vectors.shape != (len(texts), model.dimension) or len(sparse) != num_sparse:
            raise self._other_model()
        return vectors, sparse

    async def _model(self, ids: Sequence[str], *, is_for_vectors: bool = True) -> IndexModel:
        """Return the model of all ready workers that serve the index; raise an error if these ids cannot be changed."""
        serving = await self._serving()
        are_positions = any(about["indexes"][self.name].get("ids_are_positions") for about in serving)
        if are_positions and (taken := [one for one in ids if is_position(one)]):
            raise InvalidRequest(
                f"the source of index {self.name} has no column of ids, so that its documents are numbered, and "
                f"{excerpt(taken[0])} may be another document in the next version: build the index with a column of "
                "ids (--id-column, or id_column in a long job), or give another id than a number"
            )
        if engines := [engine for about in serving if (engine := about["indexes"][self.name].get("engine"))]:
            raise InvalidRequest(
                f"index {self.name} is in an engine ({engines[0]}), which gets whole versions: build it, and push it"
            )
        found = {IndexModel.of(about, self.name) for about in serving}
        if not is_for_vectors:
            found = {model and model._replace(fingerprint="") for model in found}
        model, *others = found
        if model is None or others:
            raise self._other_model()
        return model

    async def _serving(self) -> list[dict[str, Any]]:
        """Return the heartbeats of the ready workers that serve the index, waiting for the first such worker."""
        until = time.monotonic() + SERVED_WITHIN_S
        while True:
            alive = (await self.queue.pool.workers()).values()
            ready = [about for about in alive if about.get("state") in ANSWERING]
            if not ready:
                raise NotReady("no worker is ready, so the model of the index is not known: start one")
            if serving := [about for about in ready if self.name in about.get("indexes", {})]:
                return serving
            if time.monotonic() > until:
                known = ", ".join(sorted({name for about in ready for name in about.get("indexes", {})})) or "none"
                raise UnknownIndex(f"no index {excerpt(self.name)}: the workers serve {known:.500}")
            await asyncio.sleep(LOOK_EVERY_S)

    def _other_model(self) -> NotReady:
        return NotReady(
            f"workers serve index {self.name} with different models, or with settings that give other vectors, so "
            "nothing is written: try again when all have the same"
        )

    async def _write(self, changes: Sequence[Change]) -> Written:
        num, position = 0, ""
        for change in changes:
            with noting_num_written(num):
                position = await append(
                    self.queue.commands, self.queue.keys, self.name, replace(change, made_at=await self.queue.now())
                )
            num += change.num_ids
        return Written(num, position)


def _size(document: Document, model: IndexModel, num_weights: int = 0) -> int:
    """Return the bytes of a document in a change, with its vectors; `num_weights` is its number of learned words."""
    value = map_of(document)
    size = len(wire.pack(value)) + 4 * model.dimension + 8 * num_weights + 5
    return max(size, BYTES_OF_A_VALUE * wire.num_values([value]))
