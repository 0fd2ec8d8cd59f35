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
from shoal_workers.encoding.encoder import Encoder
from shoal_workers.model.graph import PackedBert, PaddedModel, packed_module
from shoal_workers.encoding.packing import pack
from shoal_workers.model.reference import load

folder, texts = Path(sys.argv[1]), json.loads(sys.argv[2])
engines = {name: Encoder.open(folder, name, "f32", 1) for name in ("torch", "openvino")}
vectors = [encoder.embed(texts, Options(), "") for encoder in engines.values()]
encoder = engines["torch"]
ids = [tokens.ids for tokens in encoder.tokenizer.encode(texts)]
original = load(encoder.model.source)


def run(module, shares_rows):
    packing, places = pack(ids, shares_rows)
    with torch.inference_mode():
        tokens = module(*(torch.from_numpy(array) for array in packing)).flatten(0, 1).numpy()
    return np.concatenate([tokens[start : start + length] for start, length in zip(*places)])


packed = run(PackedBert(original[0].auto_model), True)
padded = run(PaddedModel(original[0]), False)
int8 = Encoder.open(folder, "openvino", "int8", 1).embed(texts, Options(), "")
print(json.dumps({
    "engines differ by": float(np.abs(vectors[0] - vectors[1]).max()),
    "passes differ by": float(np.abs(packed - padded).max()),
    "int8 differs by": float(np.abs(int8 - vectors[1]).max()),
    "chosen": type(packed_module(original)).__name__,
}))
"""


@pytest.fixture(scope="module")
def compared(tiny_model: Path) -> dict[str, float | str]:
    """The output of the comparison."""
    command = [sys.executable, "-W", "ignore", "-c", COMPARE, str(tiny_model), json.dumps(TEXTS)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_torch_and_openvino_make_the_same_vectors(compared: dict[str, float]) -> None:
    assert compared["engines differ by"] < 1e-3  # the exported weights are rounded to fp16


def test_packed_and_padded_passes_make_the_same_token_vectors(compared: dict[str, float]) -> None:
    assert compared["passes differ by"] < 1e-5


def test_int8_is_close_and_not_the_same(compared: dict[str, float]) -> None:
    assert 1e-6 < compared["int8 differs by"] < 0.02


def test_bert_runs_packed(compared: dict[str, str]) -> None:
    assert compared["chosen"] == "PackedBert"
