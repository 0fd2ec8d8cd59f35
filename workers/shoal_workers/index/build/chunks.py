"""Cutting the documents of a build into chunks. Each chunk is a row of the index.

A row has the id and the fields of its document, and the part `start` to `stop` of the document's text, in characters.
"""

from dataclasses import replace
from pathlib import Path

from shoal.bulk.served_model import ModelInfo
from shoal.contract.excerpt import excerpt
from shoal.contract.options import DOCUMENT_PROMPTS, Options
from shoal.errors import BadDocument, ModelMismatch, ModelNotFound
from shoal.records.document import Document
from shoal_workers.encoding.chunking import Chunker, open_chunker
from shoal_workers.encoding.tokenizer import Tokenizer
from shoal_workers.index.files.documents import to_line
from shoal_workers.model.model import Model

#: The fields that each chunk has: the id of its document, and where it starts and stops in the document's text.
DOCUMENT, START, STOP = CHUNK_FIELDS = ("document", "start", "stop")

#: Largest size of one document's fields in all its chunks together, in bytes.
MAX_FIELD_BYTES = 64 * 2**20


class Cutter:
    """Cuts documents into chunks of at most `chunk_tokens` tokens. Neighbours share at most `overlap` tokens."""

    def __init__(self, chunker: Chunker, chunk_tokens: int, overlap: int):
        #: The largest number of tokens in a chunk, and the largest number that neighbouring chunks share.
        self.sizes = [chunk_tokens, overlap]
        self._chunker = chunker

    @classmethod
    def open(cls, home: Path, model: ModelInfo, options: Options) -> "Cutter | None":
        """Return the cutter that the options ask for, with the tokenizer of a model; None if they ask for no chunks.

        If the model is not prepared in `home`, it is prepared first. Raises ModelNotFound if this machine has neither
        the prepared model nor its source, ModelMismatch for another digest, and InvalidRequest for sizes of chunks that
        the model cannot embed.
        """
        if options.chunk_tokens is None:
            return None
        found, folder = _open_model(home, model)
        tokenizer = Tokenizer(folder / "tokenizer.json", found.max_tokens)
        prompt = found.prompt_for(model.prompt or None, DOCUMENT_PROMPTS)
        return cls(open_chunker(tokenizer, found.name, options, prompt), options.chunk_tokens, options.chunk_overlap)

    def cut(self, document: Document) -> list[Document]:
        """Return the chunks of a document.

        Raises BadDocument if a field has the name of a chunk's own field, or if the fields would take too much room.
        """
        if taken := [name for name in CHUNK_FIELDS if name in document.fields]:
            raise BadDocument(f"a chunk has its own {', '.join(taken)}; rename the column of that name")
        return self.recut(document)

    def recut(self, document: Document) -> list[Document]:
        """Return the chunks of a changed document. Each chunk's own fields replace fields of the same name."""
        places: list[dict[str, int]] = []
        start: int | None = 0
        stop = 0
        while start is not None:
            chunks, start = self._chunker.cut(document.text, start, stop)
            stop = chunks[-1].stop
            places += [{START: chunk.start, STOP: chunk.stop} for chunk in chunks]
        if (size := len(to_line(document.fields)) * len(places)) > MAX_FIELD_BYTES:
            raise BadDocument(
                f"the fields of document {excerpt(document.id)} would take {size:,} bytes in its {len(places):,} "
                f"chunks, and may take {MAX_FIELD_BYTES:,}: make the fields shorter, or the chunks longer"
            )
        fields = {**document.fields, DOCUMENT: document.id}
        return [
            replace(document, text=document.text[place[START] : place[STOP]], fields=fields | place) for place in places
        ]


def _open_model(home: Path, model: ModelInfo) -> tuple[Model, Path]:
    """Return a model and its prepared folder."""
    from shoal_workers.model.prepare import prepare_if_needed  # imported here, because only builds with chunks need it

    try:
        folder = prepare_if_needed(home, model.name)
        found = Model.open(folder)
    except ModelNotFound as error:
        raise ModelNotFound(
            f"the tokenizer of {model.name} cuts the chunks, and is not on this machine ({error.message}): "
            "build where a worker is, or without chunk_tokens"
        ) from error
    if found.digest != model.digest:
        raise ModelMismatch(
            f"the tokenizer of {model.name} cuts the chunks, but the model on this machine is not the pool's: build "
            "where a worker is, or without chunk_tokens"
        )
    return found, folder
