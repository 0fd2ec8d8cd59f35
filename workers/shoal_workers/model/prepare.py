"""Preparing a model for serving: its graph is exported, and reference vectors for the parity check are stored.

It runs in a process of its own, `python -m shoal_workers.model.prepare NAME FOLDER`, because it needs torch and a
serving worker does not.
"""

import shutil
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import openvino as ov
import torch
from safetensors.numpy import save_file
from sentence_transformers import SentenceTransformer

from shoal.errors import ModelNotFound, ShoalError
from shoal_workers.model import parity, reference
from shoal_workers.model.graph import packed_module, shares_rows
from shoal_workers.model.model import GRAPH, Model
from shoal_workers.model.source import find_source


def prepare(name: str, folder: Path) -> None:
    """Prepare the model called `name` in `folder`, which is replaced only when all files are written.

    Raises ModelNotFound or ModelMismatch.
    """
    source = find_source(name)
    model = Model.read(name, source)
    if not (source / "tokenizer.json").exists():
        raise ModelNotFound(f"{source} has no tokenizer.json: save the model with its fast tokenizer, which writes one")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent, prefix=".preparing-") as scratch:
        _fill(model, source, Path(scratch))
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(scratch, folder)
    folder.chmod(0o755)
    for path in folder.iterdir():
        path.chmod(0o644)


def _fill(model: Model, source: Path, folder: Path) -> None:
    original = reference.load(str(source))
    model = replace(model, shares_rows=shares_rows(original))
    _export_graph(original, folder / GRAPH)
    vectors = reference.encode(original, parity.TEXTS)
    save_file({"vectors": vectors}, folder / parity.FILE)
    shutil.copyfile(source / "tokenizer.json", folder / "tokenizer.json")
    model.save(folder)


def _export_graph(original: SentenceTransformer, path: Path) -> None:
    """Write the OpenVINO graph.

    Weights are stored as fp16: their rounding is an eighth of bf16's, and cosines to fp32 stay above 0.999998.
    """
    bias = torch.zeros(2, 1, 40, 40)
    bias[1, :, :, 25:] = -1e9  # two rows, one of them with padding, so that tracing sees both
    example = (torch.ones(2, 40, dtype=torch.int32), torch.arange(40, dtype=torch.int32).repeat(2, 1), bias)
    with warnings.catch_warnings(), torch.inference_mode(False):
        warnings.simplefilter("ignore")
        graph = ov.convert_model(packed_module(original), example_input=example)
    ov.save_model(graph, path, compress_to_fp16=True)


if __name__ == "__main__":
    try:
        prepare(sys.argv[1], Path(sys.argv[2]))
    except ShoalError as error:
        sys.exit(f"shoal: {error.message} [{error.code}]")
