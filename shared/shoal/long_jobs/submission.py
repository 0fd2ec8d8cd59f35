"""The part of a long job that its submitter gave, and its bytes."""

from dataclasses import asdict, dataclass, field
from typing import Any, Self

from shoal.contract import traceparent, wire
from shoal.errors import MalformedJob
from shoal.long_jobs.serializer import MsgpackSerializer


@dataclass(frozen=True, slots=True)
class Submission:
    """The part of a long job that its submitter gave: the kind, the arguments, and the URL to tell of its end.

    The trace that it belongs to makes no other job of it.
    """

    kind: str
    arguments: dict[str, Any]
    webhook: str = ""
    client: str = ""
    traceparent: str | None = field(default=None, compare=False)

    def to_map(self) -> dict[str, Any]:
        """Return all but the kind."""
        values = asdict(self)
        del values["kind"]
        return values

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """Return the submission in the bytes that RQ keeps: the kind, no instance, no positional arguments, and a map.

        Raises MalformedJob, InvalidText or TooLarge.
        """
        match MsgpackSerializer.loads(data):
            case [
                str(kind),
                None,
                [],
                {"arguments": dict(arguments), "webhook": str(url), "client": str(client), **rest},
            ]:
                trace = traceparent.valid(rest.get("traceparent"))
            case _:
                raise MalformedJob("it is no long job of Shoal's: submit jobs by the API, a client or the command line")
        if not wire.is_json(arguments):
            raise MalformedJob("arguments has values that JSON cannot hold")
        return cls(kind, arguments, url, client, trace)
