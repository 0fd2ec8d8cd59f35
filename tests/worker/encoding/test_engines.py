"""Every engine, and both forward passes, make the same vectors. Torch runs in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

TEXTS = ["", "storm", "rain in europe and a change of climate", "the market falls in the rain " * 9]

COMPARE = """
import json, os, sys
from pathlib import Path
import numpy as np, openvino as ov, torch
from shoal.contract.options import Options
from shoal_workers.encoding.encoder import Encoder
from shoal_workers.encoding.engines.torch import PackedTransformer
from shoal_workers.encoding.packing import pack
from shoal_workers.model import weights
from shoal_workers.model.export import PaddedModel
from shoal_workers.model.graph import build
from shoal_workers.model.reference import load
from shoal_workers.model.source import read_config
from shoal_workers.model.transformer import read_transformer

folder, texts = Path(sys.argv[1]), json.loads(sys.argv[2])
engines = {name: Encoder.open(folder, name, "f32", 1) for name in ("torch", "openvino")}
vectors = [encoder.embed(texts, Options(), "") for encoder in engines.values()]
encoder = engines["torch"]
ids = [tokens.ids for tokens in encoder.tokenizer.encode(texts)]
source = Path(encoder.model.source)
transformer = read_transformer(read_config(source), weights.read(source))
graph = ov.Core().compile_model(build(transformer), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})


def run(module, shares_rows):
    packing, places = pack(ids, shares_rows)
    with torch.inference_mode():
        tokens = torch.as_tensor(module(*(torch.from_numpy(array) for array in packing))).flatten(0, 1).numpy()
    return np.concatenate([tokens[start : start + length] for start, length in zip(*places)])


packed = run(PackedTransformer(transformer), True)
padded = run(PaddedModel(load(str(source))[0]), False)
built = run(lambda *inputs: graph([array.numpy() for array in inputs])[0], True)
int8 = Encoder.open(folder, "openvino", "int8", 1).embed(texts, Options(), "")
print(json.dumps({
    "engines differ by": float(np.abs(vectors[0] - vectors[1]).max()),
    "passes differ by": float(np.abs(packed - padded).max()),
    "graphs differ by": float(np.abs(packed - built).max()),
    "int8 differs by": float(np.abs(int8 - vectors[1]).max()),
    "code kept for all streams": float(os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"]),
}))
"""


@pytest.mark.usefixtures("torch_reference")
def test_every_engine_and_pass_makes_the_same_vectors(tiny_model: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", COMPARE, str(tiny_model), json.dumps(TEXTS)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    compared = json.loads(done.stdout)
    assert compared["engines differ by"] < 1e-3  # the exported weights are rounded to fp16
    assert compared["passes differ by"] < 1e-5
    assert compared["graphs differ by"] < 1e-5
    assert 1e-6 < compared["int8 differs by"] < 0.02
    assert compared["code kept for all streams"] == 0  # else oneDNN gives one of them wrong code now and then
