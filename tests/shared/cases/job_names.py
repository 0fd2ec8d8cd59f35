"""The names of jobs' fields on the wire, without the names of options."""

from dataclasses import fields

from shoal.operations import OPERATIONS

_IN_PARTS = {"options", "search", "ignored"}

#: The names in jobs of any operation.
JOB_NAMES = tuple(
    dict.fromkeys(["op", *(f.name for job in OPERATIONS.values() for f in fields(job) if f.name not in _IN_PARTS)])
)
