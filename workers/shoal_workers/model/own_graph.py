"""A model's own OpenVINO or ONNX graph, with the inputs of a `Packing` that has one text in each row."""

from pathlib import Path

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from shoal.contract.excerpt import excerpt
from shoal.errors import ModelMismatch
from shoal_workers.model.graph import core

#: The files, in order of preference. Other files, such as quantised graphs, are ignored.
FILES = ("openvino/openvino_model.xml", "onnx/model.onnx")

_INPUTS = {"input_ids", "attention_mask", "token_type_ids", "position_ids"}

#: Bytes that are in an ONNX file if its weights are in another file.
_EXTERNAL = b"\x0a\x08location\x12"


def read(path: Path, dimension: int) -> ov.Model:
    """Return the graph with the inputs of a `Packing` and token vectors as its output. Raises ModelMismatch."""
    graph = _read(path)
    inputs = {_name(parameter): parameter for parameter in graph.get_parameters()}
    if not {"input_ids", "attention_mask"} <= set(inputs) <= _INPUTS:
        raise ModelMismatch(f"{path} takes {', '.join(sorted(map(excerpt, inputs)))}: use a model of texts")
    if graph.get_sinks():
        raise ModelMismatch(f"{path} keeps a state from one text to the next: use another model")
    ids = ops.parameter([-1, -1], np.int32, "ids")
    positions = ops.parameter([-1, -1], np.int32, "positions")
    bias = ops.parameter([-1, 1, -1, -1], np.float32, "bias")
    # The first token attends to the tokens of the text.
    first = ops.squeeze(ops.gather(bias, np.int64(0), np.int64(2)), 1)
    mask = ops.equal(first, np.float32(0))
    given = {
        "input_ids": ids,
        "attention_mask": mask,
        "token_type_ids": ops.multiply(ids, np.int32(0)),
        "position_ids": positions,
    }
    for name, parameter in inputs.items():
        value = ops.convert(given[name], parameter.get_element_type().to_string())
        parameter.output(0).replace(value.output(0))
    return ov.Model([_token_vectors(graph, path, dimension)], [ids, positions, bias], "model")


def _read(path: Path) -> ov.Model:
    try:
        if path.suffix == ".onnx" and _EXTERNAL in path.read_bytes():
            raise ModelMismatch(f"{path} has numbers in other files, which are not read: use a model in one file")
        return core().read_model(path)
    except RuntimeError as error:
        reason = (str(error).strip().splitlines() or ["no reason given"])[-1]
        raise ModelMismatch(f"{path} cannot be read ({reason:.200}): fetch the model again") from error


def _name(parameter: ov.Node) -> str:
    names: set[str] = parameter.output(0).get_names()
    return min(names & _INPUTS, default=min(names, default=parameter.get_friendly_name()))


def _token_vectors(graph: ov.Model, path: Path, dimension: int) -> ov.Node:
    """Return the output with the token vectors, which have `dimension` numbers, as float32."""
    for output in graph.outputs:
        shape = output.get_partial_shape()
        if shape.rank.is_static and len(shape) == 3 and (shape[2].is_dynamic or shape[2].get_length() == dimension):
            result: ov.Node = ops.convert(output.get_node().input_value(0), "f32")
            return result
    raise ModelMismatch(f"{path} has no output of {dimension:,} numbers for each token: use another model")
