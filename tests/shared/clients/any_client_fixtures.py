"""The fixture of tests that run against every kind of client."""

from collections.abc import Iterator
from typing import Any

import pytest
from client_adapters import KINDS, AnyClient, MakeClient, end
from conftest import PATIENCE_S

from shoal.contract.keys import Keys


@pytest.fixture(params=KINDS)
def make_client(request: pytest.FixtureRequest, redis_url: str, keys: Keys) -> Iterator[MakeClient]:
    """Return a function that makes clients of one kind for the test's own pool, with the given settings."""
    made: list[AnyClient] = []

    def make(redis_url: str = redis_url, **settings: Any) -> AnyClient:
        own: dict[str, Any] = {"key_prefix": keys.prefix, "pool": keys.pool, "timeout_s": PATIENCE_S}
        made.append(KINDS[request.param](redis_url, **(own | settings)))
        return made[-1]

    yield make
    for client in made:
        end(client)
