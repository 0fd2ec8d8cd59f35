"""The model that the workers of a pool serve, according to their heartbeats."""

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from shoal.bulk.job_stream import WAITING_EVERY_S
from shoal.client.redis.client import Client
from shoal.contract.excerpt import excerpt
from shoal.contract.options import DOCUMENT_PROMPTS
from shoal.errors import NotReady, Unavailable
from shoal.task_progress import Report, TaskProgress

#: Fields of a heartbeat on which a worker's vectors depend.
_CAUSES = ("precision", "engine", "max_tokens", "pooling", "prompts")


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The properties of a model on which the vectors of documents depend.

    The `dimension` is 0 if the model makes no vectors of texts.
    `prompt` is the name of the prompt before each document, or empty for the model's default. The `fingerprint` changes
    with everything else that a vector depends on, such as the precision and the texts of prompts. It is empty if
    unknown.
    """

    name: str
    digest: str
    pooling: str
    dimension: int
    prompt: str
    fingerprint: str


def served_model(workers: Collection[Mapping[str, Any]]) -> ModelInfo | None:
    """Return the model that all workers with these heartbeats serve, or None if no heartbeat describes a model.

    Raises NotReady if workers make different vectors.
    """
    kinds = {"model": str, "digest": str, "dimension": int}
    found = [about for about in workers if all(isinstance(about.get(name), kind) for name, kind in kinds.items())]
    if not found:
        return None
    check_same_vectors(found)
    about = found[0]
    prompts = about.get("prompts")
    return ModelInfo(
        name=about["model"],
        digest=about["digest"],
        pooling=str(about.get("pooling")),
        dimension=about["dimension"] if about.get("pooling") != "" else 0,
        prompt=document_prompt(prompts if isinstance(prompts, list) else []),
        fingerprint=str(about["fingerprint"]),
    )


def document_prompt(known: Collection[str]) -> str:
    """Return the name of a model's prompt for documents, or "" if there is none; `known` has all names of prompts."""
    return next((name for name in DOCUMENT_PROMPTS if name in known), "")


def check_same_vectors(workers: Collection[Mapping[str, Any]]) -> None:
    """Raise NotReady if heartbeats do not show that the workers make the same vector of the same text.

    Vectors differ if workers differ in their model, engine, precision, prompt or longest length of a text.
    """
    check_one_model(workers)
    found = {str(about.get("fingerprint") or "") for about in workers}
    if "" in found:
        raise NotReady("a worker's heartbeat does not describe its vectors: update all workers of the pool")
    if len(found) < 2:
        return
    values = {name: sorted({excerpt(about.get(name)) for about in workers}) for name in _CAUSES}
    different = [f"{name} ({' and '.join(found)})" for name, found in values.items() if len(found) > 1]
    raise NotReady(
        f"workers of the pool make different vectors of a text, as they have different "
        f"{', '.join(different) or 'files of the model'}: prepare the model anew, and start all with the same settings"
    )


def check_one_model(workers: Collection[Mapping[str, Any]]) -> None:
    """Raise NotReady if heartbeats name different models."""
    if len({about.get("digest") for about in workers}) > 1:
        names = ", ".join(sorted({f"{about.get('model')} ({about.get('digest')!s:.12})" for about in workers}))
        raise NotReady(f"workers of the pool serve different models, {names}: wait until all serve one")


def wait_for_model(client: Client, report: Report) -> ModelInfo:
    """Return the model of the client's pool once Redis answers and a worker is alive. Until then `report` is called.

    Raises NotReady if workers make different vectors.
    """
    while True:
        reason = "waiting for a worker"
        try:
            if model := served_model(client.pool.workers().values()):
                return model
        except Unavailable:
            reason = "waiting for Redis"
        report(TaskProgress(step=reason))
        time.sleep(WAITING_EVERY_S)
