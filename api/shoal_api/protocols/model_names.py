"""The model that is served, and the names by which a request may ask for it."""

from collections.abc import Mapping
from typing import Any

from shoal.contract.excerpt import excerpt
from shoal.contract.model_names import ANY_NAME, is_among, names_of
from shoal.contract.options import DOCUMENT_PROMPTS, QUERY_PROMPTS
from shoal.errors import ModelNotFound, NotReady
from shoal_api.context import context

#: The names that the prompt for a kind of text may have, by the protocols' words for the kind.
_PROMPTS = {
    **dict.fromkeys(("query", "search_query", "retrieval.query"), QUERY_PROMPTS),
    **dict.fromkeys(("document", "passage", "search_document", "retrieval.passage"), DOCUMENT_PROMPTS),
    "classification": ("classification",),
    "clustering": ("clustering",),
}


async def served_models(part: str = "model") -> list[str]:
    """Return the names of the models, or of the rerankers, of ready workers: one, unless workers are being replaced."""
    names = {about.get(part) for about in (await context().pool.read()).ready.values()}
    return sorted(name for name in names if isinstance(name, str))


def known_names(served: list[str]) -> list[str]:
    """Return every name by which a request may ask for one of these, the aliases too, but for `*`."""
    names = (*(name for model in served for name in names_of(model)), *context().settings.model_alias_names())
    return [name for name in dict.fromkeys(names) if name != ANY_NAME] if served else []


async def describe_model(name: str) -> Mapping[str, Any] | None:
    """Return the heartbeat of a ready worker that serves the model, or of any for an alias; None without one."""
    workers = (await context().pool.read()).ready.values()
    return next((about for about in workers if about.get("model") == name), next(iter(workers), None))


async def prompt_for(kind: str | None) -> str | None:
    """Return the name of the served model's prompt for a kind of text, in a protocol's word; None if it has none.

    Raises NotReady while no worker is ready to tell, for without its prompt a text would get another vector.
    """
    names = _PROMPTS.get(kind or "", ())
    if not names:
        return None
    workers = (await context().pool.read()).ready
    if not workers:
        raise NotReady("no worker is ready, so the prompts of the model are not known: wait for one")
    known = next(iter(workers.values())).get("prompts", [])
    return next((name for name in names if name in known), None)


async def check_model(name: str | None, part: str = "model") -> None:
    """Raise ModelNotFound for a name that is not one of the served model's, or of the served reranker's.

    While no ready worker has one, any name is taken: the request waits for a worker, which will say so.
    """
    if name is None or not (served := await served_models(part)):
        return
    known = known_names(served)
    if not is_among(name, (*known, *context().settings.model_alias_names())):
        raise ModelNotFound(
            f"the {part} {excerpt(name)} is not served here: ask for {' or '.join(known)}, or make the name an alias "
            "with SHOAL_MODEL_ALIASES"
        )
