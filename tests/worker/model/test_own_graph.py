"""A model's own OpenVINO or ONNX graph: it is served as it is, and refused where it computes something else."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from shoal.contract.options import Options
from shoal.errors import ModelMismatch
from shoal_workers.encoding.encoder import Encoder
from shoal_workers.model import weights
from shoal_workers.model.graph import build
from shoal_workers.model.model import Model
from shoal_workers.model.own_graph import FILES, read
from shoal_workers.model.prepare import prepare
from shoal_workers.model.source import read_config
from shoal_workers.model.transformer import read_transformer

TEXTS = ["", "storm", "rain in europe and a change of climate", "the market falls in the rain " * 9]


@pytest.fixture
def source(tiny_source: Path, tmp_path: Path) -> Path:
    """The tiny model, of an architecture that Shoal does not know, with a graph of its own."""
    source = Path(shutil.copytree(tiny_source, tmp_path / "model"))
    graph = usual_inputs(build(read_transformer(read_config(source), weights.read(source))))
    (source / "openvino").mkdir()
    ov.save_model(graph, source / FILES[0])
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"model_type": "novel"}))
    return source


def text_input(name: str) -> ov.Node:
    parameter = ops.parameter([-1, -1], np.int64)
    parameter.output(0).set_names({name})
    return parameter


def usual_inputs(packed: ov.Model) -> ov.Model:
    """Return the graph with the inputs that models have elsewhere, for one text in each row."""
    names = ("input_ids", "attention_mask", "token_type_ids")
    inputs = {name: text_input(name) for name in names}
    mask = inputs["attention_mask"]
    numbers = ops.subtract(ops.cumsum(ops.multiply(mask, np.int64(0)) + np.int64(1), np.int64(1)), np.int64(1))
    masked = ops.multiply(ops.subtract(ops.convert(mask, "f32"), np.float32(1)), np.float32(1e9))
    row = ops.unsqueeze(ops.unsqueeze(masked, 1), 1)
    column = ops.multiply(ops.convert(ops.unsqueeze(ops.unsqueeze(mask, 1), 3), "f32"), np.float32(0))
    ids, positions, bias = packed.get_parameters()
    ids.output(0).replace(ops.convert(inputs["input_ids"], "i32").output(0))
    positions.output(0).replace(ops.convert(numbers, "i32").output(0))
    bias.output(0).replace(ops.add(row, column).output(0))
    return ov.Model([packed.outputs[0].get_node().input_value(0)], list(inputs.values()), "model")


def test_the_vectors_of_a_models_own_graph_are_served(source: Path, encoder: Encoder, tmp_path: Path) -> None:
    prepare("own", source, tmp_path / "prepared")
    model = Model.open(tmp_path / "prepared")
    assert (model.shares_rows, model.reference) == (False, "openvino")
    assert model.digest != Model.read("own", source).digest
    vectors = Encoder.open(tmp_path / "prepared", "openvino", "f32", 1).embed(TEXTS, Options(), "")
    assert vectors == pytest.approx(encoder.embed(TEXTS, Options(), ""), abs=1e-4)


def test_a_graph_that_is_damaged_or_of_another_dimension_is_refused(source: Path) -> None:
    path = source / FILES[0]
    text = path.read_text()
    with pytest.raises(ModelMismatch, match="has no output of 31 numbers for each token"):
        read(path, 31)
    for damaged in (text[:2000], text.replace('type="SoftMax"', 'type="Bomb"')):
        path.write_text(damaged)
        with pytest.raises(ModelMismatch, match="cannot be read"):
            read(path, 32)
    path.write_text(text)
    path.with_suffix(".bin").write_bytes(path.with_suffix(".bin").read_bytes()[:1000])
    with pytest.raises(ModelMismatch, match="cannot be read"):
        read(path, 32)


def of_pictures() -> ov.Model:
    pixels = ops.parameter([-1, 3], np.float32)
    pixels.output(0).set_names({"pixels"})
    return ov.Model([pixels], [pixels], "model")


def rounded() -> ov.Model:
    ids, mask = text_input("input_ids"), text_input("attention_mask")
    table = ops.convert(ops.constant(np.ones((100, 32), np.int8)), "f32")
    tokens = ops.gather(table, ops.multiply(ids, mask), np.int64(0))
    return ov.Model([tokens], [ids, mask], "model")


@pytest.mark.parametrize(("made", "words"), [(of_pictures, 'takes "pixels"'), (rounded, "has rounded weights")])
def test_a_graph_of_another_kind_is_refused(tmp_path: Path, made: Callable[[], ov.Model], words: str) -> None:
    ov.save_model(made(), tmp_path / "model.xml", compress_to_fp16=False)
    with pytest.raises(ModelMismatch, match=words):
        read(tmp_path / "model.xml", 32)


def test_onnx_that_is_damaged_or_has_numbers_in_other_files_is_refused(tmp_path: Path) -> None:
    for data, words in (
        (b"\x08\x08" + b"\x0a\x08location\x12\x0b/etc/passwd", "has numbers in other files"),
        (b"\x08\x08\xff\xff", "cannot be read"),
    ):
        (tmp_path / "model.onnx").write_bytes(data)
        with pytest.raises(ModelMismatch, match=words):
            read(tmp_path / "model.onnx", 32)
