"""Paths of the compatible protocols: which protocol answers if several share a path, or if a path is unknown."""

from collections import defaultdict
from collections.abc import Mapping
from itertools import combinations
from typing import Any

from flask import Flask
from flask_openapi3.models.path_item import PathItem
from werkzeug.routing import Rule

from shoal.errors import BadSetting
from shoal_api.request import JsonRequest

#: Endpoints that may share a path, each with its rank and the fields by which it recognises a body meant for it. Among
#: the endpoints of a path, the first one that recognises the body answers. If none does, the endpoint with the lowest
#: rank answers. Errors of the path have the shape of this endpoint's protocol.
RECOGNISED_BY: dict[str, tuple[int, set[str]]] = {
    "tei.embed_or_score": (1, {"inputs", "query"}),
    "cohere.embed": (2, {"texts"}),
    "voyage.embeddings": (3, {"input_type", "truncation", "output_dimension", "output_dtype"}),
    "jina.embeddings": (
        2,
        {"task", "embedding_type", "encoding_type", "normalized", "truncate", "late_chunking", "return_multivector"},
    ),
    "openai.embeddings": (1, {"input"}),
    "tei.predict": (2, {"inputs"}),
    "predict.predict": (1, {"text"}),
    "weaviate.rerank": (7, {"property"}),
    "tei.rerank": (5, {"texts"}),
    "voyage.rerank": (4, {"top_k", "truncation"}),
    "cohere.rerank_v1": (3, {"rank_fields", "max_chunks_per_doc", "max_tokens_per_doc", "priority"}),
    "cohere.rerank": (2, {"documents"}),
    "jina.rerank": (1, {"documents"}),
    "infinity.rerank": (6, {"documents"}),
}


class ProtocolPaths:
    """The paths of the protocols, below their `prefixes`. Raises BadSetting for routes that cannot be told apart."""

    def __init__(self, app: Flask, prefixes: Mapping[str, str]):
        self._owners: dict[str, str] = {}
        for rule in app.url_map.iter_rules():
            self._owners.setdefault(rule.rule.partition("/<")[0].rstrip("/"), _blueprint(rule))
        for name, prefix in prefixes.items():
            self._owners.setdefault(prefix, name)
        #: The rules of each path that several protocols share.
        self.shared = _shared_rules(app, prefixes)
        #: For each shared path, the rule that applies until the body is read.
        self.fallbacks = {
            path: min(rules, key=lambda r: RECOGNISED_BY[r.endpoint][0]) for path, rules in self.shared.items()
        }
        self._owners |= {path: _blueprint(rule) for path, rule in self.fallbacks.items()}
        below: defaultdict[str, set[str]] = defaultdict(set)
        for path, owner in self._owners.items():
            while path := path.rpartition("/")[0]:
                below[path].add(owner)
        self._owners = {path: min(names) for path, names in below.items() if len(names) == 1} | self._owners

    def choose(self, request: JsonRequest) -> None:
        """Choose the rule for a request to a shared path by the fields of its body."""
        assert request.url_rule is not None
        names = request.get_json().keys()
        rules = self.shared[request.url_rule.rule]
        fitting = (rule for rule in rules if not RECOGNISED_BY[rule.endpoint][1].isdisjoint(names))
        request.url_rule = next(fitting, request.url_rule)

    def owner(self, path: str) -> str:
        """Return the name of the blueprint that owns the path or its nearest known parent, or "" if there is none."""
        path = path.rstrip("/")
        while path and path not in self._owners:
            path = path.rpartition("/")[0]
        return self._owners.get(path, "")


def _blueprint(rule: Rule) -> str:
    return str(rule.endpoint).partition(".")[0]


def _shared_rules(app: Flask, prefixes: Mapping[str, str]) -> dict[str, list[Rule]]:
    """Return the rules of each shared path, in the order of `RECOGNISED_BY`. Raises BadSetting."""
    found: defaultdict[tuple[str, str], list[Rule]] = defaultdict(list)
    for rule in app.url_map.iter_rules():
        if _blueprint(rule) in prefixes:
            for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}:
                found[method, rule.rule].append(rule)
    shared = {path: rules for (_, path), rules in found.items() if len(rules) > 1}
    for path, rules in shared.items():
        for first, second in combinations(rules, 2):
            fields, others = (RECOGNISED_BY.get(rule.endpoint, (0, set()))[1] for rule in (first, second))
            if not fields or not others or fields == others:
                method = min((second.methods or set()) - {"HEAD", "OPTIONS"})
                raise BadSetting(
                    f"protocols has {_blueprint(first)} and {_blueprint(second)}, which both answer {method} {path}: "
                    "mount one of them below another path"
                )
        rules.sort(key=lambda rule: list(RECOGNISED_BY).index(rule.endpoint))
    return shared


def joined_paths(earlier: PathItem, later: PathItem, own: PathItem | None) -> PathItem:
    """Join two descriptions of a path. Operations with the same method are merged, unless one is Shoal's own."""
    first, second = (item.model_dump(by_alias=True, exclude_unset=True, warnings=False) for item in (earlier, later))
    for method in first.keys() & second.keys():
        if not getattr(own, method, None):
            about, other = first[method], second[method]
            words = f"{', '.join(other['tags'])}: {other['summary']}"
            texts = filter(None, (about.get("description"), words, other.get("description")))
            first[method] = _joined(about, other) | {"description": "\n\n".join(texts)}
    return PathItem.model_validate(second | first)


def _joined(first: Any, second: Any) -> Any:
    """Merge two descriptions: the result has the fields and items of both, and differing schemas as choices."""
    if isinstance(first, list):
        return [*first, *(item for item in second if item not in first)]
    if not isinstance(first, dict) or first == second:
        return first
    if "$ref" in first or "anyOf" in first:
        choices, others = (schema.get("anyOf", [schema]) for schema in (first, second))
        return {"anyOf": _joined(choices, others)}
    return second | first | {name: _joined(first[name], second[name]) for name in first.keys() & second.keys()}
