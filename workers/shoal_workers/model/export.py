"""The export by torch of a model that Shoal does not compute itself, run in a process of its own."""

import sys
import warnings
from pathlib import Path

sys.modules["openvino_telemetry"] = None  # type: ignore[assignment] # else OpenVINO reports the export to a server

import openvino as ov  # noqa: E402
import torch  # noqa: E402
from safetensors.numpy import save_file  # noqa: E402
from sentence_transformers import SentenceTransformer  # noqa: E402

from shoal_workers.model import parity, reference  # noqa: E402
from shoal_workers.model.model import GRAPH  # noqa: E402


class PaddedModel(torch.nn.Module):
    """The forward pass of Sentence Transformers over a `Packing` that has one text in each row."""

    def __init__(self, transformer: torch.nn.Module):
        super().__init__()
        self.transformer = transformer

    def forward(self, ids: torch.Tensor, positions: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        mask = (bias[:, 0, 0, :] == 0).long()  # the first token attends to the tokens of the text
        features = {"input_ids": ids.long() * mask, "attention_mask": mask}
        tokens: torch.Tensor = self.transformer(features)["token_embeddings"]
        # `positions` is not needed here; adding zero times it keeps it an input of the exported graph.
        return tokens + positions[:, :, None] * 0.0


def export(source: str, folder: Path) -> None:
    """Write the graph and the reference vectors of the model in the folder `source`."""
    original = reference.load(source)
    _export_graph(original, folder / GRAPH)
    save_file({"vectors": reference.encode(original, parity.TEXTS)}, folder / parity.FILE)


def _export_graph(original: SentenceTransformer, path: Path) -> None:
    bias = torch.zeros(2, 1, 40, 40)
    bias[1, :, :, 25:] = -1e9  # two rows, one of them with padding, so that tracing sees both
    example = (torch.ones(2, 40, dtype=torch.int32), torch.arange(40, dtype=torch.int32).repeat(2, 1), bias)
    with warnings.catch_warnings(), torch.inference_mode(False):
        warnings.simplefilter("ignore")
        graph = ov.convert_model(PaddedModel(original[0]).eval(), example_input=example)
    ov.save_model(graph, path, compress_to_fp16=True)


if __name__ == "__main__":
    export(sys.argv[1], Path(sys.argv[2]))
