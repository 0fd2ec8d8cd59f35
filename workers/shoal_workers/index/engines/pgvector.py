"""Tables in PostgreSQL with the extension pgvector, at `postgresql://user@host/database`."""

import json
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import psycopg
from numpy.typing import NDArray
from psycopg import sql

from shoal.errors import InvalidRequest

#: The cosine and the document of each row that was found, best first, for each query.
Found = list[list[tuple[float, str]]]

#: Largest dimension of vectors that pgvector indexes.
MAX_DIMENSION = 2_000

#: Least number of candidates that a search of the graph keeps.
EF_SEARCH = 100

#: With this setting, a search of the graph with a filter goes on until it has enough matching rows.
_SET = "SET hnsw.iterative_scan = strict_order"

_CREATE = """CREATE TABLE IF NOT EXISTS {}
(row bigint PRIMARY KEY, vector vector({}) NOT NULL, document text NOT NULL, fields jsonb NOT NULL)"""

_ADD = """INSERT INTO {} SELECT * FROM unnest(%s::bigint[], %s::vector[], %s::text[], %s::jsonb[])
ON CONFLICT (row) DO NOTHING"""

#: `<#>` is the negative inner product of two vectors.
_SEARCH = """SELECT q.n, -found.distance, found.document FROM unnest(%(queries)s::vector[]) WITH ORDINALITY q(v, n),
LATERAL (SELECT document, vector <#> q.v AS distance FROM {} WHERE {} ORDER BY distance LIMIT %(k)s) found
ORDER BY q.n, found.distance"""

#: The same search without the graph, because a scan of the graph ends after 20,000 rows.
_EXACT = _SEARCH.replace("BY distance", "BY (vector <#> q.v) + 0")


class _Connection(psycopg.Connection[Any]):  # type: ignore[misc]
    """A connection that is closed if a statement gets no answer within `limit_s`, because the server may hang."""

    limit_s = math.inf

    def wait(self, gen: Any, *args: Any, **options: Any) -> Any:
        """Run the generator of a statement, which psycopg resumes every 0.1 s or sooner, and return its result."""
        return super().wait(self._limited(gen), *args, **options)

    def _limited(self, steps: Any) -> Any:
        end = time.monotonic() + self.limit_s
        try:
            ready = yield next(steps)
            while time.monotonic() < end:
                ready = yield steps.send(ready)
        except StopIteration as done:
            return done.value
        self.close()
        raise psycopg.OperationalError(f"there is no answer after {self.limit_s} s")


class Table:
    """A table of rows in PostgreSQL, used by one thread at a time. A filter is a JSON path predicate.

    `outages` are the errors of an engine that does not answer, and `refusals` the errors of a refused call.
    """

    outages, refusals = (psycopg.OperationalError, psycopg.InterfaceError), (psycopg.Error,)

    def __init__(self, url: str, name: str, password: str, timeout_s: int):
        self._url, self._name, self._password, self._timeout_s = url, sql.Identifier(name), password, timeout_s
        self._graph = sql.Identifier(f"{name[:59]}_nn")
        self._connection: _Connection | None = None

    def __del__(self) -> None:
        if self._connection:
            self._connection.close()

    def create(self, dimension: int) -> None:
        """Make the table, and the extension, if there are none. Raises InvalidRequest for too many dimensions."""
        if dimension > MAX_DIMENSION:
            raise InvalidRequest(f"pgvector indexes vectors of {MAX_DIMENSION:,} numbers, and these have {dimension:,}")
        self._run("CREATE EXTENSION IF NOT EXISTS vector")
        self._run(_CREATE, self._name, sql.Literal(dimension))

    def count(self) -> int:
        """Return the number of rows; 0 if there is no table."""
        try:
            return int(self._run("SELECT count(*) FROM {}", self._name)[0][0])
        except psycopg.errors.UndefinedTable:
            return 0

    def add(
        self, first: int, vectors: NDArray[np.float32], documents: Sequence[str], values: Sequence[Mapping[str, Any]]
    ) -> None:
        """Add rows, numbered from `first`, in one transaction. Rows that the table has already are skipped."""
        numbers = list(range(first, first + len(documents)))
        self._run(_ADD, self._name, values=(numbers, _vectors(vectors), list(documents), [*map(json.dumps, values)]))

    def finish(self) -> None:
        """Build the graph of neighbours. There is no time limit."""
        graph = "CREATE INDEX IF NOT EXISTS {} ON {} USING hnsw (vector vector_ip_ops)"
        self._run(graph, self._graph, self._name, is_limited=False)
        self._run("ANALYZE {}", self._name, is_limited=False)

    def search(self, queries: NDArray[np.float32], k: int, wanted: str | None) -> Found:
        """Return the `k` nearest rows that match a filter, for each query. If the graph yields fewer rows, scan all."""
        matching = sql.SQL("true" if wanted is None else "fields @@ %(path)s::jsonpath")
        values = {"queries": _vectors(queries), "k": k, "path": wanted}
        self._run(f"SET hnsw.ef_search = {max(k, EF_SEARCH)}")
        for statement in (_SEARCH, _EXACT):
            lists: Found = [[] for _ in queries]
            for number, score, document in self._run(statement, self._name, matching, values=values):
                lists[number - 1].append((score, document))
            if all(len(rows) == k for rows in lists):
                break
        return lists

    def drop(self) -> None:
        """Delete the table, if there is one."""
        self._run("DROP TABLE IF EXISTS {}", self._name)

    def _run(self, statement: str, *parts: sql.Composable, values: Any = None, is_limited: bool = True) -> Any:
        """Run a statement, and return its rows. After a lost connection, the next call connects again."""
        if self._connection is None or self._connection.closed:
            limits = {"connect_timeout": self._timeout_s, "tcp_user_timeout": 1000 * self._timeout_s}
            password = self._password or None
            self._connection = _Connection.connect(self._url, password=password, autocommit=True, **limits)
            self._connection.limit_s = self._timeout_s + 1
            self._connection.execute(_SET)
        self._connection.limit_s = self._timeout_s + 1 if is_limited else math.inf
        self._connection.execute(f"SET statement_timeout = {1000 * self._timeout_s * is_limited}")
        cursor = self._connection.execute(sql.SQL(statement).format(*parts), values)
        return cursor.fetchall() if cursor.description else []


def _vectors(vectors: NDArray[np.float32]) -> list[str]:
    return [json.dumps(vector) for vector in vectors.tolist()]
