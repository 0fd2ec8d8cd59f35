"""The simplest embedding server: FastAPI and Sentence Transformers, with a model in each process."""

import os

import torch
from fastapi import FastAPI
from pydantic import BaseModel
from sentence_transformers import SentenceTransformer

# By default, torch has a thread for each processor in each process. On two processors this answered 87 requests a
# second at best, and one thread in each process answered 127.
torch.set_num_threads(1)

app = FastAPI()
model = SentenceTransformer(os.environ.get("MODEL", "sentence-transformers/all-MiniLM-L6-v2"), device="cpu")


class EmbedRequest(BaseModel):
    """A text, or several."""

    inputs: str | list[str]


@app.post("/embed")
def embed(request: EmbedRequest) -> list[list[float]]:
    """Return one vector for each text."""
    texts = [request.inputs] if isinstance(request.inputs, str) else request.inputs
    return model.encode(texts).tolist()
