"""The forward pass that is usual elsewhere: a batch padded to its longest text, from the first layer to the last.

The original model with its pooling, as it is, in the same engine and precision as ours.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from shoal.settings import Settings
from shoal_workers.encoding.tokenizer import Tokenizer
from shoal_workers.model.model import Model, prepared_folder
from shoal_workers.process import processors

GRAPH = "padded.xml"


class Padded:
    """A stand-in for the worker's encoder in the default precision, on padded texts."""

    def __init__(self, folder: Path, settings: Settings, threads: int):
        prepared = prepared_folder(settings.home_folder, settings.model)
        self._tokenizer = Tokenizer(prepared / "tokenizer.json", Model.open(prepared).max_tokens)
        options = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": "bf16" if processors.has_bf16() else "f32",
            "ENABLE_CPU_PINNING": False,
        }
        self._request = ov.Core().compile_model(str(folder / GRAPH), "CPU", options).create_infer_request()

    def embed(self, texts: Sequence[str], *_: object) -> NDArray[np.float32]:
        """Return finished vectors `[texts, dimension]`, computed in one forward pass."""
        found = [tokens.ids for tokens in self._tokenizer.encode(texts)]
        ids = np.zeros((len(found), max(map(len, found))), np.int64)
        mask = np.zeros_like(ids)
        for n, of_text in enumerate(found):
            ids[n, : len(of_text)] = of_text
            mask[n, : len(of_text)] = 1
        self._request.infer({0: ids, 1: mask}, share_inputs=True)
        return np.array(self._request.get_output_tensor(0).data)


def export(source: str, folder: Path) -> None:
    """Write the graph of the Sentence Transformers model in `source`."""
    import torch

    from shoal_workers.model.reference import load

    class Whole(torch.nn.Module):
        """All of the model's modules as one."""

        def __init__(self, model: Any):
            super().__init__()
            self.steps = torch.nn.ModuleList(model)

        def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            features: dict[str, Any] = {"input_ids": ids, "attention_mask": mask}
            for step in self.steps:
                features = step(features)
            vectors: torch.Tensor = features["sentence_embedding"]
            return vectors

    example = (torch.ones((2, 8), dtype=torch.long), torch.tensor([[1] * 8, [1] * 5 + [0] * 3]))
    with torch.inference_mode(False):
        graph = ov.convert_model(Whole(load(source)).eval(), example_input=example)
    folder.mkdir(parents=True, exist_ok=True)
    ov.save_model(graph, folder / GRAPH, compress_to_fp16=True)
