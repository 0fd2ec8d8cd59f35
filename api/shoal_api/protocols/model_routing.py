"""The choice of a pool by the model that a request names, and the names of the models that are served."""

import asyncio
from collections.abc import Mapping
from typing import Any

from shoal.contract.excerpt import excerpt
from shoal.contract.model_names import ANY_NAME, is_among, names_of
from shoal.contract.options import DOCUMENT_PROMPTS, QUERY_PROMPTS, Options
from shoal.errors import ModelNotFound, NotReady, ShoalError
from shoal_api.context import Context, context, contexts
from shoal_api.pool.pool_state import PoolReader, PoolState
from shoal_api.request import json_request

#: The names that models give to their prompt for a kind of text, keyed by the protocols' words for this kind.
_PROMPTS = {
    **dict.fromkeys(("query", "search_query", "retrieval.query"), QUERY_PROMPTS),
    **dict.fromkeys(("document", "passage", "search_document", "retrieval.passage"), DOCUMENT_PROMPTS),
    "classification": ("classification",),
    "clustering": ("clustering",),
}


async def served_models(part: str = "model") -> list[str]:
    """Return the models, or rerankers, of ready workers. A pool has one, unless its workers are being replaced."""
    return sorted({name for _, state in await _states() for name in _served(state, part)})


async def known_names() -> list[str]:
    """Return every name and alias by which a request may ask for a served model, except `*`."""
    names = [name for found, state in await _states() if _served(state) for name in _names(found, state)]
    return [name for name in dict.fromkeys(names) if name != ANY_NAME]


async def model_heartbeat(name: str) -> Mapping[str, Any] | None:
    """Return the heartbeat of a ready worker that serves the model, or None. Every worker serves its pool's aliases."""
    fitting = [state for found, state in await _states() if is_among(name, _names(found, state))]
    workers = [about for state in fitting for about in state.ready.values()]
    return next((about for about in workers if about.get("model") == name), next(iter(workers), None))


async def options_for(
    model: str | None, kind: str | None = None, truncate: bool | None = None, **others: Any
) -> Options:
    """Return the options of an embed by the model with this name, which has a prompt for texts of this kind or none.

    `others` have Shoal's names. Raises ModelNotFound and NotReady.
    """
    await route_to_model(model)
    return Options(truncate=truncate is not False, prompt_name=await prompt_for(kind), **others)


async def prompt_for(kind: str | None) -> str | None:
    """Return the name of the model's prompt for a kind of text, or None if it has none. Raises NotReady."""
    names = _PROMPTS.get(kind or "", ())
    if not names:
        return None
    workers = (await context().pool.read()).ready
    if not workers:
        raise NotReady("no worker is ready, so the prompts of the model are not known: wait for one")
    known = next(iter(workers.values())).get("prompts", [])
    return next((name for name in names if name in known), None)


async def route_to_model(name: str | None, part: str = "model") -> None:
    """Choose the pool that answers the current request: it serves the model, or the reranker, with this name.

    Another pool that serves the same model may answer, unless `name` is the name of a pool. If there is only one pool
    and it has no ready worker, any name is accepted: the request waits for a worker. Raises ModelNotFound. Raises
    NotReady if one of several pools has no ready worker and may serve the name.
    """
    if name in (None, "default/not-specified"):  # Infinity's client sends this name if its user names no model
        return
    for read in (PoolReader.look, PoolReader.read):  # `look` first, so that a silent Redis does not delay other pools
        known = {found.settings.pool: _names(found, await read(found.pool), part) for found in contexts()}
        fitting = [pool for pool, names in known.items() if is_among(name, set(names) - {ANY_NAME})]
        if fitting:
            break
    if not fitting and len(known) > 1:
        away = [found.settings.pool for found in contexts() if not (await found.pool.read()).ready]
        if away:
            raise NotReady(
                f"no worker of the pool {' or '.join(away)} is ready, so its {part} is unknown: wait for one, or ask "
                "for the model by the name of its pool"
            )
    fitting = fitting or [pool for pool, names in known.items() if ANY_NAME in names]
    if not fitting and await served_models(part):
        words = " or ".join(dict.fromkeys(name for names in known.values() for name in names))
        raise ModelNotFound(
            f"the {part} {excerpt(name)} is not served here: ask for {words}, or make the name an alias with "
            "SHOAL_MODEL_ALIASES"
        )
    request = json_request()
    request.pool = next(iter(fitting or known))
    request.may_change_pool = request.may_change_pool and not is_among(name, known)


async def _states() -> list[tuple[Context, PoolState]]:
    """Return the state of each pool that can be read. Raises the first error if no pool can be read."""
    asked = contexts()
    found = await asyncio.gather(*(each.pool.read() for each in asked), return_exceptions=True)
    errors = [state for state in found if isinstance(state, BaseException)]
    if others := [error for error in errors if not isinstance(error, ShoalError) or len(errors) == len(found)]:
        raise others[0]
    return [(each, state) for each, state in zip(asked, found, strict=True) if isinstance(state, PoolState)]


def _served(state: PoolState, part: str = "model") -> set[str]:
    return {name for about in state.ready.values() if isinstance(name := about.get(part), str)}


def _names(found: Context, state: PoolState, part: str = "model") -> list[str]:
    """Return the names of a pool's model, or of its reranker, and then the pool's aliases."""
    models = sorted(_served(state, part))
    return [*(name for model in models for name in names_of(model)), *found.settings.model_alias_names()]
