"""Every engine, and both forward passes, make the same vectors. Torch runs in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

TEXTS = ["", "storm", "rain in europe and a change of climate", "the market falls in the rain " * 9]

COMPARE = """
import json, sys
from pathlib import Path
import numpy as np, torch
from shoal.jobs import Options
from shoal_workers.encoder import Encoder
from shoal_workers.graph import PackedBert, PaddedModel, packed_module
from shoal_workers.packing import pack
from shoal_workers.reference import load

folder, texts = Path(sys.argv[1]), json.loads(sys.argv[2])
engines = {name: Encoder.open(folder, name, "f32", 1) for name in ("torch", "openvino")}
vectors = [encoder.embed(texts, Options(), "") for encoder in engines.values()]
encoder = engines["torch"]
packing, _, lengths = pack([tokens.ids for tokens in encoder.tokenizer.encode(texts)])
original = load(encoder.model.source)
inputs = [torch.from_numpy(array) for array in packing]
with torch.inference_mode():
    passes = (PackedBert(original[0].auto_model), PaddedModel(original[0]))
    packed, padded = (module(*inputs)[: lengths.sum()] for module in passes)
print(json.dumps({
    "engines differ by": float(np.abs(vectors[0] - vectors[1]).max()),
    "passes differ by": float((packed - padded).abs().max()),
    "chosen": type(packed_module(original)).__name__,
}))
"""


@pytest.fixture(scope="module")
def compared(tiny_model: Path) -> dict[str, float | str]:
    """What the comparison prints."""
    command = [sys.executable, "-W", "ignore", "-c", COMPARE, str(tiny_model), json.dumps(TEXTS)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_torch_and_openvino_make_the_same_vectors(compared: dict[str, float]) -> None:
    assert compared["engines differ by"] < 1e-3  # the exported weights are rounded to fp16


def test_packed_and_padded_passes_make_the_same_token_vectors(compared: dict[str, float]) -> None:
    assert compared["passes differ by"] < 1e-5


def test_bert_runs_packed(compared: dict[str, str]) -> None:
    assert compared["chosen"] == "PackedBert"
