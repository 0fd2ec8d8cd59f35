"""Token ids in place of texts: refused, or decoded by a worker where they are of the model's own tokenizer."""

from typing import cast

from shoal.errors import InvalidRequest, Unavailable
from shoal.operations import Decode
from shoal_api.context import context
from shoal_api.enqueue import call


async def as_texts(name: str, value: str | list[str] | list[int] | list[list[int]]) -> list[str]:
    """Return the texts of a field called `name`, which may have ids; special tokens are left out.

    Raises InvalidRequest for ids unless the settings declare them to be of the model's own tokenizer, and what a job
    for a worker may raise.
    """
    if isinstance(value, str):
        return [value]
    if not value or isinstance(value[0], str):
        return cast(list[str], value)
    if context().settings.token_ids == "refuse":  # noqa: S105 - no password
        raise InvalidRequest(
            f"{name} has token ids, and ids of another model's tokenizer would give wrong vectors: send texts "
            "(langchain-openai does with OpenAIEmbeddings(check_embedding_ctx_length=False)), or, if these are of the "
            "served model's tokenizer, start the API with SHOAL_TOKEN_IDS=own"
        )
    lists = [value] if isinstance(value[0], int) else value
    texts = [" ".join(map(str, ids)) for ids in lists]
    decoded = (await call(Decode(texts, special_tokens=False), remedy="split the list")).decoded
    if decoded is None:
        raise Unavailable("a worker did not decode the token ids: it is of an older version, update it")
    return decoded
