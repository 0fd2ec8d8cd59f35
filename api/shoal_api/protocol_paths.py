"""Paths of the compatible protocols: which protocol answers if several share a path, or if a path is unknown."""

from collections import defaultdict
from collections.abc import Mapping
from itertools import combinations
from typing import Any

from flask import Flask
from flask_openapi3.models.media_type import MediaType
from flask_openapi3.models.operation import Operation
from flask_openapi3.models.path_item import PathItem
from flask_openapi3.models.request_body import RequestBody
from flask_openapi3.models.schema import Schema
from werkzeug.routing import Rule

from shoal.errors import BadSetting
from shoal_api.request import JsonRequest

#: Endpoints that may share a path, each with its rank and the fields by which it recognises a body meant for it.
#: Among the endpoints of a path, the first one that recognises the body answers. If none does, the endpoint with the
#: lowest rank answers; its protocol shapes the path's errors.
RECOGNISED_BY: dict[str, tuple[int, set[str]]] = {
    "tei.embed_or_score": (1, {"inputs", "query"}),
    "cohere.embed": (2, {"texts"}),
    "voyage.embeddings": (3, {"input_type", "truncation", "output_dimension", "output_dtype"}),
    "jina.embeddings": (
        2,
        {"task", "embedding_type", "normalized", "truncate", "late_chunking", "return_multivector"},
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
    """The paths of the protocols, below their `prefixes`. Raises BadSetting for two routes that look the same."""

    def __init__(self, app: Flask, prefixes: Mapping[str, str]):
        self._owners: dict[str, str] = {}
        for rule in app.url_map.iter_rules():
            self._owners.setdefault(rule.rule.partition("/<")[0].rstrip("/"), _blueprint(rule))
        for name, prefix in prefixes.items():
            self._owners.setdefault(prefix, name)
        #: The rules of each path that several protocols share.
        self.shared = _shared_rules(app, prefixes)
        #: The rule of each of these paths that holds until the body is read.
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
        """Give a request to a shared path the rule that its body fits."""
        assert request.url_rule is not None
        names = request.get_json().keys()
        rules = self.shared[request.url_rule.rule]
        fitting = (rule for rule in rules if not RECOGNISED_BY[rule.endpoint][1].isdisjoint(names))
        request.url_rule = next(fitting, request.url_rule)

    def owner(self, path: str) -> str:
        """Return the name of the blueprint that owns the path, or its nearest known parent; else an empty text."""
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
    """Return the operations of both paths. Operations with the same method are merged, except if one is Shoal's own."""
    operations = {}
    for method in earlier.model_fields_set | later.model_fields_set:
        first, second = getattr(earlier, method), getattr(later, method)
        is_shared = first and second and not getattr(own, method, None)
        operations[method] = _joined_operation(first, second) if is_shared else first or second
    return later.model_copy(update=operations)


def _joined_operation(first: Operation, second: Operation) -> Operation:
    """Return one operation that accepts the request bodies of both operations and describes the answers of both."""
    requests = (first.requestBody, second.requestBody)
    bodies = [body.content if isinstance(body, RequestBody) else {} for body in requests]
    responses = dict(first.responses or {})
    for status, response in (second.responses or {}).items():
        known = responses.setdefault(status, response)
        content = _joined_content(known.content or {}, response.content or {})
        names = (known.headers or {}) | (response.headers or {})
        responses[status] = known.model_copy(update={"content": content, "headers": names or None})
    words = f"{', '.join(second.tags or ())}: {second.summary}"
    update: dict[str, Any] = {
        "tags": [*(first.tags or ()), *(second.tags or ())],
        "description": "\n\n".join(filter(None, (first.description, words, second.description))),
        "parameters": [*(first.parameters or ()), *(second.parameters or ())] or None,
        "requestBody": RequestBody(content=_joined_content(*bodies)) if any(bodies) else None,
        "responses": responses,
    }
    return first.model_copy(update={name: value for name, value in update.items() if value})


def _joined_content(first: Mapping[str, MediaType], second: Mapping[str, MediaType]) -> dict[str, MediaType]:
    """Return the media types of both contents. A media type in both allows the values of both schemas."""
    found = dict(first)
    for name, media in second.items():
        known = _schemas(found[name]) if name in found else []
        schemas = [*known, *(schema for schema in _schemas(media) if schema not in known)]
        found[name] = media if len(schemas) == 1 else MediaType(schema=Schema(anyOf=schemas))
    return found


def _schemas(media: MediaType) -> list[Any]:
    """Return the alternative schemas of a media type."""
    schema = media.media_type_schema
    if isinstance(schema, Schema) and schema.anyOf:
        return list(schema.anyOf)
    return [] if schema is None else [schema]
