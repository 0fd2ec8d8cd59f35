"""Clients of OpenAI's API get the vectors of Sentence Transformers from a running service."""

import asyncio
from typing import Any

import numpy as np
import pytest
from client_reference import Reference, check_same

pytest_plugins = ["client_fixtures"]

openai = pytest.importorskip("openai")

pytestmark = [pytest.mark.wide, pytest.mark.filterwarnings("ignore")]  # the clients' warnings do not matter here

TEXTS = ["storm in europe", "", "market falls", "the rain " * 40]
#: More texts than a request to OpenAI may have.
MANY = [f"storm {n}" for n in range(3_000)]


@pytest.fixture
def client(url: str) -> Any:
    """A client of the service."""
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client:
        yield client


@pytest.mark.client("openai")
class TestOpenAI:
    def test_vectors_equal_the_reference(self, client: Any, model: str, reference: Reference) -> None:
        answer = client.embeddings.create(model=model, input=TEXTS)
        check_same([item.embedding for item in answer.data], reference(TEXTS))
        assert [item.index for item in answer.data] == [0, 1, 2, 3]
        assert answer.model == model
        assert answer.usage.prompt_tokens == answer.usage.total_tokens > len(TEXTS)

    def test_vectors_as_lists_of_numbers_may_be_shorter_and_are_normalised_again(
        self, client: Any, model: str, reference: Reference
    ) -> None:
        answer = client.embeddings.create(model=model, input=TEXTS, dimensions=8, encoding_format="float", user="u")
        check_same([item.embedding for item in answer.data], reference(TEXTS)[:, :8])
        lengths = [np.linalg.norm(item.embedding) for item in answer.data]
        assert lengths == pytest.approx([1.0] * len(TEXTS), abs=1e-5)

    def test_a_request_may_have_more_texts_than_openai_allows(
        self, client: Any, model: str, reference: Reference
    ) -> None:
        answer = client.embeddings.create(model=model, input=MANY)
        check_same([item.embedding for item in answer.data], reference(MANY))

    def test_models_are_listed_and_found(self, client: Any, model: str) -> None:
        (found,) = client.models.list().data
        assert (found.id, found.object, found.owned_by) == (model, "model", "shoal")
        assert client.models.retrieve(model) == found

    def test_an_unknown_model_is_not_found(self, client: Any) -> None:
        with pytest.raises(openai.NotFoundError, match="is not served here") as failure:
            client.embeddings.create(model="text-embedding-3-small", input="a")
        assert (failure.value.code, failure.value.type) == ("model_not_found", "not_found_error")

    def test_the_asynchronous_client_gets_the_same_vectors(self, url: str, model: str, reference: Reference) -> None:
        async def vectors() -> list[list[float]]:
            async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
                answers = [client.embeddings.create(model=model, input=text) for text in TEXTS]
                return [answer.data[0].embedding for answer in await asyncio.gather(*answers)]

        check_same(asyncio.run(vectors()), reference(TEXTS))

    @pytest.mark.parametrize(
        ("asked", "told"),
        [
            ({"input": "a", "dimensions": 33}, r"dimensions is 33: the vectors of .* have 32"),
            ({"input": [[15_339, 1_917]]}, "check_embedding_ctx_length=False"),
        ],
    )
    def test_wrong_input_is_a_bad_request(self, client: Any, model: str, asked: dict[str, Any], told: str) -> None:
        with pytest.raises(openai.BadRequestError, match=told):
            client.embeddings.create(model=model, **asked)

    def test_the_client_waits_and_tries_again_when_its_key_is_over_the_rate(
        self, limited: tuple[str, str], model: str, reference: Reference
    ) -> None:
        url, key = limited
        with openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=5) as client:
            for text in TEXTS[:3]:
                check_same([client.embeddings.create(model=model, input=text).data[0].embedding], reference([text]))
        with openai.OpenAI(base_url=f"{url}/v1", api_key="wrong") as client, pytest.raises(openai.AuthenticationError):
            client.embeddings.create(model=model, input="a")
