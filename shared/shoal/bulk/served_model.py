"""The model that the workers of a pool serve, as their heartbeats tell it."""

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from shoal.bulk.job_stream import WAITING_EVERY_S
from shoal.client.redis.client import Client
from shoal.errors import NotReady, Unavailable
from shoal.task_progress import Report, TaskProgress

_START_ALIKE = "start all with the same model and settings"

#: Fields of a heartbeat on which a worker's vectors depend, and the remedy where workers differ in one.
_CAUSES = {
    "precision": "set SHOAL_PRECISION to the same, such as f32, for all",
    "engine": "set SHOAL_ENGINE to the same for all",
    **dict.fromkeys(("max_tokens", "pooling", "prompts"), _START_ALIKE),
}


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that workers serve, the dimension of its vectors, and the fingerprint of all that they depend on."""

    name: str
    digest: str
    dimension: int
    fingerprint: str


def served_model(client: Client) -> ServedModel | None:
    """Return the model of the client's pool, or None without a living worker that tells its model.

    Raises NotReady if workers make different vectors, and Unavailable without Redis.
    """
    kinds = {"model": str, "digest": str, "dimension": int}
    beats = client.pool.workers().values()
    found = [about for about in beats if all(isinstance(about.get(name), kind) for name, kind in kinds.items())]
    check_same_vectors(found)
    if not found:
        return None
    about = found[0]
    return ServedModel(about["model"], about["digest"], about["dimension"], str(about["fingerprint"]))


def check_same_vectors(workers: Collection[Mapping[str, Any]]) -> None:
    """Raise NotReady if heartbeats do not tell that the workers make the same vectors of a text.

    Workers make others with another model, engine or precision, with other prompts or another length.
    """
    check_one_model(workers)
    found = {str(about.get("fingerprint") or "") for about in workers}
    if "" in found:
        raise NotReady("a worker does not tell what its vectors depend on: update all workers of the pool")
    if len(found) < 2:
        return
    difference = "different files of the model, such as another tokenizer: prepare it anew on all machines"
    for name, remedy in _CAUSES.items():
        values = [about.get(name) for about in workers]
        words = {", ".join(map(str, value)) if isinstance(value, list) else str(value) for value in values}
        if len(words) > 1:
            difference = f"different {name.replace('_', ' ')} ({'; '.join(sorted(words))}): {remedy}"
            break
    raise NotReady(f"workers of the pool make different vectors of a text, as they have {difference}")


def check_one_model(workers: Collection[Mapping[str, Any]]) -> None:
    """Raise NotReady if heartbeats name different models."""
    if len({about.get("digest") for about in workers}) > 1:
        names = ", ".join(sorted({f"{about.get('model')} ({about.get('digest')!s:.12})" for about in workers}))
        raise NotReady(f"workers of the pool serve different models, {names}: wait until all serve one")


def wait_for_model(client: Client, report: Report) -> ServedModel:
    """Return the model of the client's pool, once there is a worker and Redis answers. `report` is called meanwhile.

    Raises NotReady if workers make different vectors.
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
