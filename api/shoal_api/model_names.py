"""The model that is served, and the names by which a request may ask for it."""

from collections.abc import Mapping, Sequence
from typing import Any

from shoal.errors import ModelNotFound, NotReady
from shoal.excerpt import excerpt
from shoal_api.context import context

#: The alias that stands for any name.
ANY_NAME = "*"


def served_models() -> list[str]:
    """Return the names of the models that ready workers serve: one, unless workers are being replaced."""
    return _names("model")


def served_rerankers() -> list[str]:
    """Return the names of the rerankers that ready workers serve: one or none, unless workers are being replaced."""
    return _names("reranker")


def _names(part: str) -> list[str]:
    names = {about.get(part) for about in context().pool.read().ready.values()}
    return sorted(name for name in names if isinstance(name, str))


def describe_model(name: str) -> Mapping[str, Any] | None:
    """Return the heartbeat of a ready worker that serves the model, or of any for an alias; None without one."""
    workers = context().pool.read().ready.values()
    return next((about for about in workers if about.get("model") == name), next(iter(workers), None))


def prompt_among(names: Sequence[str]) -> str | None:
    """Return the first of these names that is a prompt of the served model; None if it has none of them.

    Raises NotReady while no worker is ready to tell, for without its prompt a text would get another vector.
    """
    if not names:
        return None
    workers = context().pool.read().ready
    if not workers:
        raise NotReady("no worker is ready, so the prompts of the model are not known: wait for one")
    known = next(iter(workers.values())).get("prompts", [])
    return next((name for name in names if name in known), None)


def check_model(name: str | None) -> None:
    """Raise ModelNotFound for a name that is neither the served model's nor one of its aliases.

    While no worker is ready, any name is taken, and the request waits for a worker.
    """
    _check(name, "model")


def check_reranker(name: str | None) -> None:
    """Raise ModelNotFound for a name that is neither the served reranker's nor an alias.

    Where no ready worker has a reranker, any name is taken: a worker will say so.
    """
    _check(name, "reranker")


def _check(name: str | None, part: str) -> None:
    """Raise ModelNotFound if `part` of the heartbeats of ready workers tells of models, and none has the name."""
    if name is None:
        return
    served, aliases = _names(part), context().settings.model_alias_names()
    if served and name not in (*served, *aliases) and ANY_NAME not in aliases:
        raise ModelNotFound(
            f"the {part} {excerpt(name)} is not served here: ask for {', '.join(served)}, or make the name an alias "
            "with SHOAL_MODEL_ALIASES"
        )
