"""The model that the workers of a pool serve, as their heartbeats tell it."""

import time
from dataclasses import dataclass

from shoal.bulk.bulk_lane import WAITING_EVERY_S
from shoal.client.client import Client
from shoal.errors import NotReady, Unavailable
from shoal.long_task import Report, TaskProgress


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that workers serve, and the dimension of its vectors."""

    name: str
    digest: str
    dimension: int


def served_model(client: Client) -> ServedModel | None:
    """Return the model of the client's pool, or None without a living worker that tells its model.

    Raises NotReady if workers have different models, and Unavailable without Redis.
    """
    found = []
    for about in client.pool.first_heartbeats().values():
        name, digest, dimension = (about.get(field) for field in ("model", "digest", "dimension"))
        if isinstance(name, str) and isinstance(digest, str) and isinstance(dimension, int):
            found.append(ServedModel(name, digest, dimension))
    if len({model.digest for model in found}) > 1:
        names = ", ".join(sorted({model.name for model in found}))
        raise NotReady(f"the workers of the pool have different models ({names}): let all serve one")
    return found[0] if found else None


def wait_for_model(client: Client, report: Report) -> ServedModel:
    """Return the model of the client's pool, once there is a worker and Redis answers. `report` is called meanwhile.

    Raises NotReady if workers have different models.
    """
    while True:
        reason = "waiting for a worker"
        try:
            if model := served_model(client):
                return model
        except Unavailable:
            reason = "waiting for Redis"
        report(TaskProgress(step=reason))
        time.sleep(WAITING_EVERY_S)
