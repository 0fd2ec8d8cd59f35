"""The names of models and rerankers in requests. The API and the workers share this rule."""

from collections.abc import Iterable

#: The alias that matches any name.
ANY_NAME = "*"

#: The tag that Ollama's clients add to a name without one.
_DEFAULT_TAG = ":latest"

#: Ollama's names for models, by the last part of the usual name in lower case.
_OLLAMA_NAMES = {"all-minilm-l6-v2": "all-minilm"}


def names_of(model: str) -> list[str]:
    """Return the names of a model: its own name, the last part of this name, and Ollama's name if that differs."""
    last = model.rstrip("/").rpartition("/")[2]
    return list(dict.fromkeys(filter(None, (model, last, _OLLAMA_NAMES.get(last.lower())))))


def is_among(asked: str, names: Iterable[str]) -> bool:
    """Return True if `asked` is one of the names. Case and the tag `:latest` do not matter."""
    known = {_plain(name) for name in names}
    return _plain(asked) in known or ANY_NAME in known


def _plain(name: str) -> str:
    return name.lower().removesuffix(_DEFAULT_TAG)
