"""The names of models and rerankers in requests. The API and the workers share this rule."""

from collections.abc import Iterable

#: The alias that matches any name.
ANY_NAME = "*"


def names_of(model: str) -> list[str]:
    """Return the names of a model: its own name, the last part of this name, and Ollama's name if that differs."""
    last = model.rstrip("/").rpartition("/")[2]
    of_ollama = "all-minilm" if last.lower() == "all-minilm-l6-v2" else ""
    return list(dict.fromkeys(filter(None, (model, last, of_ollama))))


def is_among(asked: str, names: Iterable[str]) -> bool:
    """Return True if `asked` is one of the names. Case and the tag `:latest` do not matter."""
    known = {_plain(name) for name in names}
    return _plain(asked) in known or ANY_NAME in known


def _plain(name: str) -> str:
    return name.lower().removesuffix(":latest")  # the tag that Ollama's clients add to a name without one
