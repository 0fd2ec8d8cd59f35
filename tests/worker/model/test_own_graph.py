"""Models of other architectures, with a graph of their own, and models of a hub."""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import process
import pytest
from http_servers import running
from openvino import opset13 as ops
from tiny_model import edit

from shoal.contract.options import Options
from shoal.errors import ModelMismatch
from shoal_workers.encoding.encoder import Encoder
from shoal_workers.model import weights
from shoal_workers.model.graph import build_graph
from shoal_workers.model.model import Model, is_prepared
from shoal_workers.model.original_files import OriginalFiles
from shoal_workers.model.own_graph import FILES, read
from shoal_workers.model.prepare import prepare, prepare_if_needed
from shoal_workers.model.transformer import read_transformer

TEXTS = ["", "storm", "rain in europe and a change of climate", "the market falls in the rain " * 9]


@pytest.fixture
def source(own_source: Path) -> Path:
    """The tiny model, with an architecture that Shoal does not know."""
    edit(own_source / "config.json", model_type="novel")
    return own_source


@pytest.fixture
def with_graph(source: Path) -> Path:
    """The same model with its own graph."""
    settings = OriginalFiles(source).config | {"model_type": "bert"}
    (source / "openvino").mkdir()
    ov.save_model(usual_inputs(build_graph(read_transformer(settings, weights.read(source)))), source / FILES[0])
    return source


def test_an_architecture_that_shoal_does_not_compute_needs_a_graph_of_its_own(source: Path, tmp_path: Path) -> None:
    words = r'\(model_type is "novel"\), and has no file openvino/openvino_model.xml or onnx/model.onnx: write it'
    with pytest.raises(ModelMismatch, match=words):
        prepare("acme/novel", source, tmp_path / "prepared")
    assert not (tmp_path / "prepared").exists()


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


def test_the_vectors_of_a_models_own_graph_are_served(with_graph: Path, encoder: Encoder, tmp_path: Path) -> None:
    digests, numbers = {Model.read("own", with_graph).digest}, (with_graph / FILES[0]).with_suffix(".bin")
    for _ in range(2):
        folder = prepare_if_needed(tmp_path / "home", str(with_graph))
        assert is_prepared(folder)
        model = Model.open(folder)
        assert not model.shares_rows
        digests.add(model.digest)
        vectors = Encoder.open(folder, "openvino", "f32", 1).embed(TEXTS, Options(), "")
        assert vectors == pytest.approx(encoder.embed(TEXTS, Options(), ""), abs=1e-4)
        numbers.write_bytes(numbers.read_bytes() + b"changed")
        assert not is_prepared(folder)
    assert len(digests) == 3


def test_a_graph_that_is_damaged_or_of_another_dimension_is_refused(with_graph: Path) -> None:
    path = with_graph / FILES[0]
    text, numbers = path.read_text(), path.with_suffix(".bin")
    with pytest.raises(ModelMismatch, match="has no output of 31 numbers for each token"):
        read(path, 31)
    whole = numbers.read_bytes()
    for damaged, data in ((text[:2000], whole), (text.replace('"SoftMax"', '"Bomb"'), whole), (text, whole[:1000])):
        path.write_text(damaged)
        numbers.write_bytes(data)
        with pytest.raises(ModelMismatch, match="cannot be read"):
            read(path, 32)


def of_pictures() -> ov.Model:
    pixels = ops.parameter([-1, 3], np.float32)
    pixels.output(0).set_names({"pixels"})
    return ov.Model([pixels], [pixels], "model")


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (of_pictures, 'takes "pixels"'),
        (b"\x08\x08" + b"\x0a\x08location\x12\x0b/etc/passwd", "has numbers in other files"),
        (b"\x08\x08\xff\xff", "cannot be read"),
    ],
)
def test_a_graph_of_another_kind_is_refused(tmp_path: Path, made: Callable[[], ov.Model] | bytes, words: str) -> None:
    path = tmp_path / f"model.{'onnx' if isinstance(made, bytes) else 'xml'}"
    if isinstance(made, bytes):
        path.write_bytes(made)
    else:
        ov.save_model(made(), path, compress_to_fp16=False)
    with pytest.raises(ModelMismatch, match=words):
        read(path, 32)


# The hub

OFFERED = (
    *("pytorch_model.bin", "model.pkl", "modeling_novel.py", "openvino/openvino_model.pkl"),
    *("onnx/model_qint8.onnx", "openvino/openvino_model_qint8_quantized.xml"),
)
OWN_GRAPH = ("openvino/openvino_model.xml", "openvino/openvino_model.bin", "onnx/model.onnx")


class Hub(ThreadingHTTPServer):
    """A hub on loopback that has one model, `acme/tiny`, and remembers which of its files were asked for."""

    def __init__(self, files: dict[str, bytes]):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files = files
        self.fetched: set[str] = set()


class _Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_GET(self) -> None:
        names = self.server.files
        found = re.fullmatch(r"/acme/tiny/resolve/\w+/(.*)", self.path)
        if found:
            content = names.get(found[1])
            self.server.fetched |= {found[1]} & names.keys() if self.command == "GET" else set()
        elif "/tree/" in self.path:
            files = [{"type": "file", "path": name, "size": len(names[name]), "oid": "0" * 40} for name in names]
            content = json.dumps(files).encode()
        else:
            siblings = [{"rfilename": name} for name in names]
            content = json.dumps({"id": "acme/tiny", "sha": "1" * 40, "siblings": siblings}).encode()
        self.send_response(404 if content is None else 200)
        self.send_header("Content-Length", str(len(content or b"")))
        self.send_header("Content-Type", "application/json")
        self.send_header("ETag", f'"{self.path.replace("/", "-")}"')
        self.send_header("X-Repo-Commit", "1" * 40)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content or b"")

    do_HEAD = do_GET

    def log_message(self, format: str, *arguments: Any) -> None:
        """Print nothing."""


@contextmanager
def hub(source: Path) -> Iterator[Hub]:
    """Serve the files of a model, and further files that must not be fetched."""
    files = {str(path.relative_to(source)): path.read_bytes() for path in source.rglob("*") if path.is_file()}
    server = Hub(files | {name: b"\x80\x04." for name in (*OFFERED, *OWN_GRAPH)})
    with running(server):
        yield server


def prepare_from(endpoint: str, home: Path) -> "subprocess.CompletedProcess[str]":
    ours = {"HF_ENDPOINT": endpoint, "HF_HOME": str(home / "hub"), "HF_HUB_OFFLINE": "0"}
    environment = process.environment(model="acme/tiny", home=home) | ours
    command = [sys.executable, "-m", "shoal", "model", "prepare"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace")


@pytest.mark.wide
def test_a_hub_is_asked_only_for_files_that_are_needed(tiny_source: Path, source: Path, tmp_path: Path) -> None:
    """A model's own graph is needed only for an architecture that Shoal does not compute."""
    for original, fetched, folder in ((tiny_source, set(), "known"), (source, {*OWN_GRAPH}, "novel")):
        with hub(original) as server:
            done = prepare_from(f"http://127.0.0.1:{server.server_port}", tmp_path / folder)
        assert {"config.json", "model.safetensors", "tokenizer.json", "1_Pooling/config.json"} <= server.fetched
        assert server.fetched & {*OFFERED, *OWN_GRAPH} == fetched
        assert (done.returncode == 0) == (not fetched), done.stderr
    assert "openvino/openvino_model.xml cannot be read" in done.stderr


@pytest.mark.wide
def test_a_hub_that_cannot_be_asked_is_named_in_one_sentence(tmp_path: Path) -> None:
    done = prepare_from("http://127.0.0.1:9", tmp_path)
    assert done.returncode != 0
    (line,) = done.stderr.strip().splitlines()
    assert 'model "acme/tiny" is not a local folder and cannot be had from the hub' in line
