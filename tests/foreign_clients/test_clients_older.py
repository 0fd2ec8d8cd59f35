"""Clients that need older releases of libraries get the vectors of Sentence Transformers from a running service."""

from typing import Any

import numpy as np
import pytest
from client_programs import Older
from client_reference import Reference, check_same

pytest_plugins = ["client_fixtures"]

pytestmark = pytest.mark.wide

TEXTS = ["storm in europe", "market falls", "the rain " * 40]


@pytest.mark.client("litellm")
class TestLiteLLM:
    @pytest.mark.parametrize(
        ("provider", "path", "more"),
        [
            ("openai", "/v1", {"encoding_format": "float"}),
            ("hosted_vllm", "/v1", {"dimensions": 8}),
            ("infinity", "", {}),
            ("ollama", "", {}),
            ("cohere", "/v2/embed", {"input_type": "search_document"}),
            ("cohere", "", {"input_type": "search_document"}),
            ("voyage", "/v1", {"dimensions": 8}),
            ("jina_ai", "/v1", {}),
            ("huggingface", "/embed", {"input_type": "embed"}),
        ],
    )
    def test_vectors_equal_the_reference(
        self,
        older: Older,
        url: str,
        model: str,
        reference: Reference,
        provider: str,
        path: str,
        more: dict[str, Any],
    ) -> None:
        place = {"model": f"{provider}/{model}", "api_base": url + path, "api_key": "none"}
        code = "import litellm; found = [item['embedding'] for item in litellm.embedding(**asked).data]"
        found = older(code, asked={"input": TEXTS, **place, **more})
        check_same(found, reference(TEXTS)[:, : more.get("dimensions")])
        assert np.linalg.norm(found, axis=1) == pytest.approx(np.ones(len(TEXTS)), abs=1e-5)
