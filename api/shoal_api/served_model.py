"""The model that is served, and the names by which a request may ask for it."""

from shoal.errors import ModelNotFound
from shoal.excerpt import excerpt
from shoal_api.context import context

#: The alias that stands for any name.
ANY_NAME = "*"


def served_models() -> list[str]:
    """Return the names of the models that ready workers serve: one, unless workers are being replaced."""
    names = {about.get("model") for about in context().pool.read().ready.values()}
    return sorted(name for name in names if isinstance(name, str))


def check_model(name: str | None) -> None:
    """Raise ModelNotFound for a name that is neither the served model's nor one of its aliases.

    While no worker is ready, any name is taken, and the request waits for a worker.
    """
    if name is None:
        return
    shared = context()
    if any(about.get("model") == name for about in shared.pool.read().ready.values()):
        return
    aliases, served = shared.settings.model_alias_names(), served_models()
    if served and name not in aliases and ANY_NAME not in aliases:
        raise ModelNotFound(
            f"the model {excerpt(name)} is not served here: ask for {', '.join(served)}, or make the name an alias "
            "with SHOAL_MODEL_ALIASES"
        )
