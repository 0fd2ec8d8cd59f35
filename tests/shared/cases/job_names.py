"""The names that the fields of jobs have on the wire, beside those of options."""

from dataclasses import fields

from shoal.operations import OPERATIONS

_IN_PARTS = {"options", "search", "ignored"}

#: Of all operations together.
JOB_NAMES = tuple(
    dict.fromkeys(["op", *(f.name for job in OPERATIONS.values() for f in fields(job) if f.name not in _IN_PARTS)])
)
