"""Tables of LanceDB in a folder, at `lance:///folder`, or in an object store, at `lance+s3://bucket/folder`."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote

import lancedb
import numpy as np
import pyarrow as pa
from lancedb.index import IvfHnswSq
from numpy.typing import NDArray

from shoal_workers.index.engines.engine import Found
from shoal_workers.index.engines.fields import Bound, Language, joined

#: Least number of candidates that a search of the graph keeps.
EF_SEARCH = 100

#: Number of candidates for each wanted row. Their cosines are computed exactly, because the graph is quantised.
REFINE_FACTOR = 2

T = TypeVar("T")
_TYPES = {str: pa.string(), float: pa.float64()}


def _one_of(key: str, terms: Sequence[str | float]) -> str:
    return f"array_has_any({key}, [{', '.join(map(repr, terms))}])"


def _between(key: str, bounds: Sequence[Bound]) -> str:
    ends = (f"array_{'max' if operator[0] == '>' else 'min'}({key}) {operator} {one!r}" for operator, one in bounds)
    return f"coalesce({' AND '.join(ends)}, false)"


class Table:
    """A table of LanceDB. A filter is a condition in SQL."""

    outages, refusals = (OSError, RuntimeError), (ValueError, LookupError)
    language = Language(
        joined(" AND ", "true"),
        joined(" OR ", "false"),
        "NOT ({})".format,
        "array_length({}) > 0".format,
        _one_of,
        _between,
    )

    def __init__(self, url: str, name: str, password: str, timeout_s: int):
        self._folder = Path(unquote(url.removeprefix("lance://"))) if url.startswith("lance://") else None
        self._url, self._name, self._timeout_s = url.removeprefix("lance+"), name, timeout_s
        self._database: Any = None
        self._table: Any = None

    def create(self, dimension: int, types: Mapping[str, type]) -> None:
        """Make the table, and its folder, if there are none."""
        if self._folder:
            self._folder.mkdir(parents=True, exist_ok=True)
        columns = {"row": pa.int64(), "vector": pa.list_(pa.float32(), dimension), "document": pa.string()}
        schema = pa.schema(columns | {key: pa.list_(_TYPES[type_]) for key, type_ in types.items()})
        self._run(lambda database: database.create_table(self._name, schema=schema, exist_ok=True))

    def count(self) -> int:
        """Return the number of rows; 0 if there is no table."""

        async def count(database: Any) -> int:
            return int(await (await self._opened(database)).count_rows())

        try:
            return self._run(count)
        except LookupError:
            return 0

    def add(
        self, first: int, vectors: NDArray[np.float32], documents: Sequence[str], values: Sequence[Mapping[str, Any]]
    ) -> None:
        """Add the rows, numbered from `first`, that the table lacks. Either all are written, or none."""

        async def add(database: Any) -> None:
            table = await self._opened(database)
            known = max(0, await table.count_rows() - first)
            columns = {"row": range(first + known, first + len(documents)), "vector": [*vectors[known:]]}
            columns |= {"document": documents[known:]} | {
                key: [own[key] for own in values[known:]] for key in values[0]
            }
            if known < len(documents):
                await table.add(pa.table(columns, await table.schema()))

        self._run(add)

    def finish(self) -> None:
        """Compact the table and build the graph of neighbours, if there is no graph yet."""

        async def finish(database: Any) -> None:
            table = await self._opened(database)
            if not await table.list_indices():
                await table.optimize(cleanup_older_than=timedelta(milliseconds=1))
                await table.create_index("vector", config=IvfHnswSq(distance_type="dot"))

        self._run(finish, is_limited=False)

    def search(self, queries: NDArray[np.float32], k: int, wanted: str | None) -> Found:
        """Return the `k` nearest rows that match a filter, for each query, from as many partitions as needed."""

        async def search(database: Any) -> Found:
            self._table = self._table or await self._opened(database)
            query = self._table.query().nearest_to([*queries]).distance_type("dot").limit(k)
            query = query.ef(max(REFINE_FACTOR * k, EF_SEARCH)).refine_factor(REFINE_FACTOR).maximum_nprobes(0)
            query = query.where(wanted) if wanted else query
            rows = (await query.select(["document", "_distance"]).to_arrow()).to_pydict()
            lists: Found = [[] for _ in queries]
            numbers = rows.get("query_index", [0] * len(rows["document"]))
            for number, distance, document in zip(numbers, rows["_distance"], rows["document"], strict=True):
                lists[number].append((1 - distance, document))
            return lists

        return self._run(search)

    def drop(self) -> None:
        """Delete the table, if there is one."""
        self._table = None
        self._run(lambda database: database.drop_table(self._name, ignore_missing=True))

    async def _opened(self, database: Any) -> Any:
        """Return the table. Raises LookupError if there is none."""
        try:
            return await database.open_table(self._name)
        except ValueError as error:
            raise LookupError(str(error)) if "not found" in str(error) else OSError(str(error)) from error

    def _run(self, ask: Callable[[Any], Awaitable[T]], is_limited: bool = True) -> T:
        """Return the result of `ask` for the database. Raises OSError if the database is unreachable or too slow.

        A missing folder counts as unreachable, because LanceDB would create it.
        """

        async def work() -> T:
            if self._folder and not self._folder.is_dir():
                raise FileNotFoundError(f"there is no folder {self._folder}")
            try:
                self._database = self._database or await lancedb.connect_async(self._folder or self._url)
            except ValueError as error:
                raise OSError(f"{self._url} cannot be reached") from error
            return await ask(self._database)

        try:
            return asyncio.run(asyncio.wait_for(work(), self._timeout_s if is_limited else None))
        except Exception:
            self._database = self._table = None  # another process may have replaced the table
            raise
