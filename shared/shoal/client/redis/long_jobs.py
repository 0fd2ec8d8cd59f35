"""The long jobs of clients that reach Redis."""

from collections.abc import Callable, Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any

from shoal.client.blocking_work import BlockingWork, InPlace
from shoal.client.item_file import path_beside, write_items, write_once
from shoal.client.long_job_calls import OnStatus, wait_for
from shoal.client.questions import options_of
from shoal.client.source_file import File, Items, ServerFile, place_of
from shoal.errors import NotReady, ShoalError, Unavailable
from shoal.long_jobs.long_jobs import check
from shoal.long_jobs.status import LongJobStatus

if TYPE_CHECKING:
    from shoal.long_jobs.long_jobs import LongJobs


class RedisLongJobs:
    """The calls for the long jobs of a pool, in RQ, which blocks: `open_work` returns what does that work."""

    def __init__(self, long_jobs: "LongJobs", open_work: Callable[[], BlockingWork] = InPlace):
        self._long_jobs = long_jobs
        self._open_work = open_work

    async def status(self, job_id: str) -> LongJobStatus:
        """Return the state of a job; raise UnknownJob if there is none."""
        return await self._open_work().do(self._long_jobs.status, job_id)

    async def wait(self, job_id: str, timeout_s: float | None = None, on_status: OnStatus | None = None) -> Any:
        """Return the result of a job once it is done, as `wait_for` does."""
        work = self._open_work()

        async def look(job_id: str) -> LongJobStatus:
            return await work.do(self._long_jobs.status, job_id)

        return await wait_for(job_id, look, work.sleep, timeout_s, on_status)

    async def pause(self, job_id: str) -> str:
        """Stop a job for a while; return its status."""
        return await self._open_work().do(self._long_jobs.pause, job_id)

    async def resume(self, job_id: str) -> str:
        """Let a paused job go on; return its status."""
        return await self._open_work().do(self._long_jobs.resume, job_id)

    async def cancel(self, job_id: str) -> str:
        """End a job for good; return its status."""
        return await self._open_work().do(self._long_jobs.cancel, job_id)

    async def delete(self, job_id: str) -> None:
        """Forget a job that has ended; raise JobNotEnded for one that has not."""
        await self._open_work().do(self._long_jobs.delete, job_id)

    async def submit(self, kind: str, arguments: Mapping[str, Any], **once: Any) -> str:
        """Put a job, with the webhook and the idempotency key if there are any, and return its id."""
        return await self._open_work().do(self._long_jobs.submit, kind, arguments, **once)

    async def check_runner(self) -> None:
        """Raise NotReady if no runner is alive."""
        if not await self._open_work().do(self._long_jobs.has_runner):
            raise NotReady("no runner of long jobs is alive: start one with `shoal serve` or `shoal jobs`")

    async def embed_file(
        self,
        source: File | Items,
        out: str | PathLike[str],
        *,
        text_column: str | None = None,
        id_column: str | None = None,
        format: str = "safetensors",
        webhook: str | None = None,
        idempotency_key: str | None = None,
        **options: Any,
    ) -> str:
        """Put the embedding of a file, or of texts, which are written to one first; return the id of the job.

        The file of texts is deleted again if the job is refused.
        """
        options_of(options)  # raises an error for options that are wrong, before texts are written
        place = place_of(out)
        texts = path_beside(place, idempotency_key)
        arguments: dict[str, Any] = {"source": str(texts), "out": place}
        arguments |= {"format": format, "text_column": text_column, "id_column": id_column, "options": options}
        if isinstance(source, str | PathLike | ServerFile):
            arguments["source"] = place_of(source)
            return await self.submit("embed_file", arguments, webhook=webhook, idempotency_key=idempotency_key)
        check(arguments, webhook)
        is_new = True
        if idempotency_key:
            is_new = await write_once(texts, source, self._open_work())
        else:
            await write_items(texts, source, self._open_work())
        try:
            return await self.submit("embed_file", arguments, webhook=webhook, idempotency_key=idempotency_key)
        except ShoalError as error:
            if is_new and not isinstance(error, Unavailable):  # which may come after the job was put
                texts.unlink(missing_ok=True)
            raise
