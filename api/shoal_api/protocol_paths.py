"""Paths that several compatible protocols share: which protocol answers a request, and the joint description."""

from typing import Any

from flask import Flask
from flask_openapi3.models.path_item import PathItem

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
    """The paths that several of an application's protocols share."""

    def __init__(self, app: Flask):
        rules = [rule for name in RECOGNISED_BY if name in app.view_functions for rule in app.url_map.iter_rules(name)]
        by_path = {rule.rule: [other for other in rules if other.rule == rule.rule] for rule in rules}
        self._rules = {path: rules for path, rules in by_path.items() if len(rules) > 1}
        #: For each shared path, the rule that applies until the body is read, and if no protocol recognises the body.
        self.fallbacks = {
            path: min(rules, key=lambda rule: RECOGNISED_BY[rule.endpoint][0]) for path, rules in self._rules.items()
        }

    def choose(self, request: JsonRequest) -> None:
        """Choose the rule for a request to a shared path by the fields of its body."""
        assert request.url_rule is not None
        names = request.get_json().keys()
        rules = self._rules[request.url_rule.rule]
        fitting = (rule for rule in rules if not RECOGNISED_BY[rule.endpoint][1].isdisjoint(names))
        request.url_rule = next(fitting, request.url_rule)


def joined_paths(earlier: PathItem, later: PathItem) -> PathItem:
    """Join two descriptions of a path. Operations with the same method are merged."""
    first, second = (item.model_dump(by_alias=True, exclude_unset=True, warnings=False) for item in (earlier, later))
    for method in first.keys() & second.keys():
        first[method] = _joined(first[method], second[method])
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
