"""The embedding of a file, or of texts, as clients that reach Redis submit it to a runner."""

from collections.abc import Iterable
from contextlib import aclosing
from os import PathLike
from typing import Any

from shoal.client.grouping import async_batches
from shoal.client.item_file import BATCH, ItemFile
from shoal.client.questions import options_of
from shoal.client.source_file import File, Item, Items, ServerFile, place_of
from shoal.client.work_threads import WorkThreads
from shoal.long_jobs.long_jobs import LongJobs, check


class BulkJob:
    """The embedding of a file into the folder `out`. Texts are written into a file beside `out` first.

    That file is deleted again if the job is refused. Raises an error for options that are wrong, before texts are
    written.
    """

    def __init__(
        self,
        jobs: LongJobs,
        out: str | PathLike[str],
        *,
        text_column: str | None = None,
        id_column: str | None = None,
        format: str = "safetensors",
        webhook: str | None = None,
        idempotency_key: str | None = None,
        **options: Any,
    ):
        options_of(options)
        self._jobs = jobs
        self._once: dict[str, Any] = {"webhook": webhook, "idempotency_key": idempotency_key}
        self._arguments: dict[str, Any] = {"out": place_of(out), "format": format, "options": options}
        self._arguments |= {"text_column": text_column, "id_column": id_column}

    def submit(self, source: File | Iterable[Item]) -> str:
        """Put the job; return its id."""
        if isinstance(source, str | PathLike | ServerFile):
            return self._submit(place_of(source))
        with self._item_file() as file:
            file.write(source)
            return self._submit(str(file.path))

    async def submit_in(self, threads: WorkThreads, source: File | Items) -> str:
        """Put the job; return its id. The threads do what blocks."""
        if isinstance(source, str | PathLike | ServerFile):
            return await threads.do(self._submit, place_of(source))
        with self._item_file() as file:
            await threads.do(file.create)
            async with aclosing(async_batches(source, BATCH)) as batches:
                async for batch in batches:
                    await threads.do(file.append, batch)
            await threads.do(file.keep)
            return await threads.do(self._submit, str(file.path))

    def _item_file(self) -> ItemFile:
        file = ItemFile.beside(self._arguments["out"], self._once["idempotency_key"])
        check({"source": str(file.path), **self._arguments}, self._once["webhook"])
        return file

    def _submit(self, source: str) -> str:
        return self._jobs.submit("embed_file", {"source": source, **self._arguments}, **self._once)
