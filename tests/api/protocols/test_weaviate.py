"""The routes of Weaviate's container of transformers."""

import json
from typing import Any

import numpy as np
import pytest
from api_stub import StubWorker, vector_of
from flask.testing import FlaskClient

pytest_plugins = ["api_fixtures"]


class TestVectors:
    @pytest.mark.usefixtures("stub")
    def test_one_text_without_a_content_type(self, api: FlaskClient) -> None:
        asked = {"text": "a", "config": {"pooling_strategy": "masked_mean", "task_type": ""}}
        body = api.post("/vectors", data=json.dumps(asked)).get_json()
        assert np.array_equal(np.array(body["vector"], np.float32), vector_of("a"))
        assert (body["text"], body["dims"], body["dim"]) == ("a", 4, 4)

    @pytest.mark.usefixtures("stub")
    def test_several_texts(self, api: FlaskClient) -> None:
        body = api.post("/vectors", json={"texts": ["a", "b"], "config": {"dimensions": 2}}).get_json()
        assert np.array_equal(np.array(body["vectors"], np.float32), [vector_of("a")[:2], vector_of("b")[:2]])
        assert body["dims"] == 2

    @pytest.mark.usefixtures("stub")
    def test_of_one_text_and_several_the_one_counts(self, api: FlaskClient) -> None:
        body = api.post("/vectors", json={"text": "a", "texts": ["b", "c"]}).get_json()
        assert np.array_equal(np.array(body["vector"], np.float32), vector_of("a"))
        assert (body["text"], body.keys() & {"texts", "vectors"}) == ("a", set())

    @pytest.mark.usefixtures("stub")
    @pytest.mark.parametrize("config", [None, {"task_type": None, "dimensions": None}])
    def test_options_may_be_null(self, api: FlaskClient, config: Any) -> None:
        body = api.post("/vectors", json={"text": "a", "config": config}).get_json()
        assert np.array_equal(np.array(body["vector"], np.float32), vector_of("a"))

    def test_the_task_chooses_the_prompt(self, api: FlaskClient, stub: StubWorker) -> None:
        for task in ("query", "passage"):
            api.post("/vectors", json={"text": "a", "config": {"task_type": task}})
        assert stub.prompts_asked == ["query", None]

    @pytest.mark.usefixtures("stub")
    def test_an_error_is_one_string(self, api: FlaskClient) -> None:
        for body in ({}, {"text": 5}, {"text": "a", "config": {"dimensions": 0}}):
            response = api.post("/vectors", json=body)
            assert (response.status_code, list(response.get_json())) == (422, ["error"])


def test_it_is_ready_with_a_worker(api: FlaskClient, stub: StubWorker) -> None:
    assert api.get("/.well-known/ready").status_code == 204
    assert api.get("/.well-known/live").status_code == 204
    assert api.get("/meta").get_json()["model"] == "stub"
    stub.announce(state="starting")
    assert list(api.get("/.well-known/ready").get_json()) == ["error"]
