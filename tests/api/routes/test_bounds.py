"""Every string, list, map and number of a request and of a job has a bound, and so has the work of a search."""

import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from api_stub import MakeApp
from changes import unit_vectors
from flask import Flask
from flask.testing import FlaskClient
from pydantic import BaseModel, ValidationError
from test_search_modes import Scene

from shoal.contract.checks import MAX_NAME_CHARS, MAX_VALUE_CHARS
from shoal.contract.options import Options
from shoal.errors import InvalidRequest
from shoal.operations import OPERATIONS
from shoal.operations.search_fields import MAX_BOOST_VALUES, MAX_BOOSTS, MAX_FACETS, MAX_SORTS
from shoal.operations.search_filter import MAX_FILTER_CONDITIONS, MAX_FILTER_VALUES
from shoal.operations.search_options import MAX_FIELDS, MAX_GROUP_SIZE, MAX_LISTS, SearchOptions
from shoal.records.document import Document
from shoal_api.protocols.cohere import CohereBody
from shoal_api.protocols.openai import EmbeddingsBody
from shoal_api.protocols.tei import DecodeBody, TeiEmbedBody, TeiTokensBody
from shoal_api.schema.body import Body
from shoal_api.schema.indexes import BuildBody
from shoal_api.schema.requests import EmbedBody, SearchBody

pytest_plugins = ["api_fixtures"]

#: A size that no option accepts, yet small enough to make at once.
MANY = 200_000

#: Most calls of functions that an option may make in a search of the sample's 1,025 documents for one hit.
MAX_CALLS = 100_000


#: Fields with texts or their token ids, which settings bound, and options, which `SearchOptions` bounds.
TEXT_FIELDS = (
    "content documents ids input inputs keywords negative prompt property queries query sentences source_sentence text "
    "texts"
)
OPTION_FIELDS = "boost cursor facets fields filter group_by like min_score rerank snippet sort vectors"


def request_models(app: Flask) -> set[type[BaseModel]]:
    """Return the models of all bodies, paths and queries: the models that views name, and all subclasses of Body."""
    found = {
        kind
        for view in app.view_functions.values()
        for name, kind in getattr(view, "__annotations__", {}).items()
        if name != "return" and isinstance(kind, type) and issubclass(kind, BaseModel)
    }
    bodies = [Body]
    while bodies:
        found.update(more := bodies.pop().__subclasses__())
        bodies += more
    return found


#: For each type in a JSON schema, the words that bound its values.
RANGE = {"minimum", "maximum"}
BOUNDS = {"string": {"maxLength"}, "array": {"maxItems"}, "object": {"properties"}, "integer": RANGE, "number": RANGE}


def unbounded(schema: Any, name: str = "") -> Iterator[str]:
    """Yield the names of the fields in a JSON schema that have a string, list, map or number without a bound."""
    if isinstance(schema, list):
        for choice in schema:
            yield from unbounded(choice, name)
        return
    if not schema.keys() & {"enum", "const"} and not BOUNDS.get(schema.get("type", ""), set()) <= schema.keys():
        yield name
    for word in schema.keys() & {"anyOf", "oneOf", "items"}:
        yield from unbounded(schema[word], name)
    for field, about in [*schema.get("properties", {}).items(), *schema.get("$defs", {}).items()]:
        yield from unbounded(about, field)


def test_every_value_of_a_request_is_bounded(make_app: MakeApp) -> None:
    models = request_models(make_app())
    assert len(models) > 40
    found = {name for model in models for name in unbounded(model.model_json_schema())}
    assert found == {*TEXT_FIELDS.split(), *OPTION_FIELDS.split()}


def nested(depth: int) -> Any:
    """Return a filter with this many levels."""
    value: Any = {"year": 1}
    for _ in range(depth):
        value = {"not": value}
    return value


#: Values that no option accepts.
HUGE: dict[str, Any] = {
    "string": "x" * MANY,
    "strings": ["x"] * MANY,
    "long strings": ["x" * MANY],
    "names": {str(n): n for n in range(MANY)},
    "long name": {"x" * MANY: 1},
    "levels": nested(MAX_FILTER_CONDITIONS),
    "numbers": [1.0] * MANY,
    "vectors": [[1.0] * MANY],
    "number": 10**400,
    "infinity": float("inf"),
}

#: The fields of a job that this test leaves out. Settings of a worker and of the API bound texts and the query, other
#: tests check the options, and a traceparent that cannot be read is dropped.
OTHERS = {"texts", "query", "traceparent", "options", "search"}

#: The fields of a job besides its texts, or in place of texts, by operation.
GIVEN: dict[str, dict[str, Any]] = {"rerank": {"texts": ["a"], "query": "a"}}


def is_refused_or_left_out(op: str, name: str, value: Any) -> bool:
    """Return True if no job can have the field, or if a packed job does not contain it."""
    try:
        job = OPERATIONS[op](**{"texts": ["a"], **GIVEN.get(op, {}), name: value})
    except InvalidRequest as error:
        return len(error.message) < 400
    return len(job.pack()) < 400


@pytest.mark.parametrize("huge", HUGE)
def test_no_field_of_a_job_or_of_its_options_is_longer_than_its_bound(huge: str) -> None:
    names = [(op, field.name) for op, job in OPERATIONS.items() for field in fields(job) if field.name not in OTHERS]
    assert [(op, name) for op, name in names if not is_refused_or_left_out(op, name, HUGE[huge])] == []
    for options in (Options, SearchOptions):
        for field in fields(options):
            with pytest.raises(InvalidRequest) as caught:
                options(**{field.name: HUGE[huge]})
            assert len(caught.value.message) < 400


NAME, VALUE = "x" * (MAX_NAME_CHARS + 1), "x" * (MAX_VALUE_CHARS + 1)

#: Options of a search with one part that is longer than it may be.
PARTS: list[dict[str, Any]] = [
    {"filter": {NAME: 1}},
    {"filter": {"tag": VALUE}},
    {"filter": {"tag": {"in": ["a", VALUE]}}},
    {"filter": {"day": {"gte": "2001", "lt": VALUE}}},
    {"filter": {"or": [{"tag": "a"}] * MAX_FILTER_CONDITIONS}},
    {"filter": {"tag": {"in": ["a"] * (MAX_FILTER_VALUES + 1)}}},
    {"sort": [{"field": NAME}]},
    {"sort": [{"field": "tag", "order": VALUE}]},
    {"sort": [{"field": "tag"}] * (MAX_SORTS + 1)},
    {"boost": [{"field": NAME, "weight": 1}]},
    {"boost": [{"field": "tag", "weight": 1, "value": VALUE}]},
    {"boost": [{"field": "tag", "weight": 1, "value": ["a", VALUE]}]},
    {"boost": [{"field": "tag", "weight": 1, "value": ["a"] * 1_001}]},
    {"boost": [{"field": "tag", "weight": 1, "value": ["a"] * 101}] * 10},
    {"boost": [{"field": "day", "weight": 1, "half_life_days": 1, "origin": VALUE}]},
    {"boost": [{"field": "tag", "weight": 1}] * (MAX_BOOSTS + 1)},
    {"facets": [NAME]},
    {"facets": ["tag"] * (MAX_FACETS + 1)},
    {"fields": [NAME]},
    {"fields": ["tag"] * (MAX_FIELDS + 1)},
    {"like": [VALUE]},
    {"like": ["a"] * (MAX_LISTS + 1)},
    {"group_by": NAME},
    {"rerank": {"top_n": 5, "model": NAME}},
    {"snippet": {NAME: 5}},
    {"vectors": [[1.0]] * (MAX_LISTS + 1)},
]


def test_no_part_of_an_option_is_longer_than_its_bound() -> None:
    for options in PARTS:
        with pytest.raises(InvalidRequest) as caught:
            SearchOptions(**options)
        assert len(caught.value.message) < 400


_KEYS = [f"key {n}" for n in range(MAX_FILTER_VALUES)]

#: The largest accepted options of each kind.
LARGEST: list[dict[str, Any]] = [
    {"filter": {"key": {"in": _KEYS}}},
    {"filter": {"and": [{"tag": {"in": ["t1"]}}] * (MAX_FILTER_CONDITIONS - 1)}},
    {"filter": {"or": [{"key": "x" * MAX_VALUE_CHARS}] * (MAX_FILTER_CONDITIONS - 1)}},
    {"sort": [{"field": name} for name in ("tag", "key", "year", "day")] * (MAX_SORTS // 4)},
    {"boost": [{"field": "key", "weight": 1, "value": _KEYS}]},
    {"boost": [{"field": "tag", "weight": 1, "value": ["t1"] * (MAX_BOOST_VALUES // MAX_BOOSTS)}] * MAX_BOOSTS},
    {"boost": [{"field": "day", "weight": 1, "half_life_days": 1}] * MAX_BOOSTS},
    {"facets": ["tag", "key", "year", "day"] * (MAX_FACETS // 4)},
    {"fields": ["tag", "key"] * (MAX_FIELDS // 2)},
    {"group_by": "key", "group_size": MAX_GROUP_SIZE},
    {"explain": True, "snippet": {"max_chars": 10_000}},
    {"like": [str(n) for n in range(MAX_LISTS)]},
    {"vectors": [[1.0] * 8] * MAX_LISTS, "fuse": True},
]


def test_the_largest_options_need_little_work(tmp_path: Path) -> None:
    tags = [{"tag": [f"t{m}" for m in range(n % 10)], "key": f"key {n}"} for n in range(1_025)]
    dates = [{"year": float(n), "day": f"2001-05-{1 + n % 28:02}"} for n in range(1_025)]
    documents = [Document(str(n), f"text {n}", tags[n] | dates[n]) for n in range(1_025)]
    made, num_calls = Scene.of(tmp_path / "version", documents, unit_vectors(1_025), 1_025), 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal num_calls
        num_calls += event.endswith("call")

    for options in LARGEST:
        num_calls = 0
        sys.setprofile(count)
        try:
            made.answer(unit_vectors(1, seed=3)[0], k=1, **options)
        finally:
            sys.setprofile(None)
        assert 0 < num_calls < MAX_CALLS, options.keys()


#: Routes, the models of their bodies, and bodies with many wrong elements.
BODIES: list[tuple[str, type[BaseModel], dict[str, Any]]] = [
    ("/v2/embed", CohereBody, {"texts": ["a"], "embedding_types": ["wrong"] * 100_000}),
    ("/embed", EmbedBody, {"inputs": [[1, *["a"] * 100_000]]}),
    ("/", TeiEmbedBody, {"inputs": [[1, *["a"] * 100_000]]}),
    ("/embed_all", TeiTokensBody, {"inputs": [[1, *["a"] * 100_000]]}),
    ("/v1/embeddings", EmbeddingsBody, {"input": [[1, *["a"] * 100_000]]}),
    ("/decode", DecodeBody, {"ids": [["a"] * 100_000]}),
    ("/decode", DecodeBody, {"ids": ["a"] * 100_000}),
    *(
        ("/search", SearchBody, {"queries": "a", name: [5] * 100_000})
        for name in ("like", "fields", "facets", "negative")
    ),
    *(("/search", SearchBody, {"queries": "a", name: ["a"] * 100_000}) for name in ("sort", "boost", "vectors")),
    ("/search", SearchBody, {"queries": "a", "vectors": [["a"] * 100_000]}),
    ("/v1/indexes/news/builds", BuildBody, {"source": "a", "field_kinds": [5] * 200}),
]


def test_a_list_of_wrong_elements_gives_a_short_message_about_one(api: FlaskClient) -> None:
    for path, shape, body in BODIES:
        with pytest.raises(ValidationError) as caught:
            shape.model_validate(body)
        assert caught.value.error_count() <= 2
        response = api.post(path, json=body)
        assert response.status_code in (400, 422)
        assert len(response.get_data()) < 400
    many: dict[str, Any] = {"queries": "a", "sort": [{str(n): n for n in range(100_000)}]}
    assert SearchBody.model_validate(many).sort == many["sort"]  # pydantic did not make an error for each element
    told = 'sort[0] has "0": it takes field, order'
    for wrong, message in ((many, told), ({"k": "many", "alpha": "none"}, 'alpha is "none": it takes a number')):
        response = api.post("/search", json={"queries": "a"} | wrong)
        assert (response.status_code, response.get_json()["error"]["message"]) == (422, message)
