"""The names by which a model, or a reranker, may be asked for: one rule for the API and the workers."""

from collections.abc import Iterable

#: The alias that stands for any name.
ANY_NAME = "*"

#: The tag that Ollama's clients add to a name without one.
_DEFAULT_TAG = ":latest"

#: Ollama's names of models, by the last part of the usual name in small letters.
_OLLAMA_NAMES = {"all-minilm-l6-v2": "all-minilm"}


def names_of(model: str) -> list[str]:
    """Return the names of a model: its own, the last part of that, and Ollama's name of it if it has another."""
    last = model.rstrip("/").rpartition("/")[2]
    return list(dict.fromkeys(filter(None, (model, last, _OLLAMA_NAMES.get(last.lower())))))


def is_among(asked: str, names: Iterable[str]) -> bool:
    """Return True if the name is one of these, whatever the case, with the tag `:latest` or without."""
    known = {_plain(name) for name in names}
    return _plain(asked) in known or ANY_NAME in known


def _plain(name: str) -> str:
    return name.lower().removesuffix(_DEFAULT_TAG)
