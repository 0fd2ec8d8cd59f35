"""A tiny late-interaction model with random weights in Sentence Transformers' form, and the library's scores.

`python late_model.py MODEL PAIRS` reads pairs from a JSON file and writes the scores by the model in the folder MODEL
into MODEL.npz: `raw`, which is MaxSim, and `scores`, which is its mean.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

#: The dimension of token vectors, the number of tokens of a padded query, and the most tokens of a text.
DIMENSION, QUERY_TOKENS, TEXT_TOKENS = 16, 12, 40

LAYERS = {
    "": "base.modules.transformer.Transformer",
    "1_Dense": "base.modules.dense.Dense",
    "2_MultiVectorMask": "multi_vector_encoder.modules.multi_vector_mask.MultiVectorMask",
    "3_Normalize": "base.modules.normalize.Normalize",
}


def save(folder: Path, transformer: Path) -> None:
    """Save a model made from the transformer in a folder. The transformer's vectors have 32 numbers."""
    shutil.copytree(transformer, folder)
    tokens = {"module_input_name": "token_embeddings", "module_output_name": "token_embeddings"}
    expansion = {"strategy": "fixed", "attend": False, "length": QUERY_TOKENS, "token": "[UNK]"}
    dense = {"in_features": 32, "out_features": DIMENSION, "bias": False}
    files: dict[str, Any] = {
        "modules.json": [
            {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.{kind}"}
            for n, (path, kind) in enumerate(LAYERS.items())
        ],
        "config_sentence_transformers.json": {
            "model_type": "MultiVectorEncoder",
            "prompts": {"query": "q ", "document": "d "},
        },
        "sentence_bert_config.json": {"document_length": TEXT_TOKENS, "query_expansion": expansion},
        "1_Dense/config.json": dense | tokens | {"activation_function": "torch.nn.modules.linear.Identity"},
        "2_MultiVectorMask/config.json": {"skiplist_words": ["the", "of", "a"], "skiplist_tasks": ["document"]},
        "3_Normalize/config.json": tokens,
    }
    for name, value in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(value))
    weights = np.random.default_rng(7).normal(0, 0.2, (DIMENSION, 32)).astype(np.float32)
    save_file({"linear.weight": weights}, folder / "1_Dense/model.safetensors")


def compute(folder: Path, pairs: list[list[str]]) -> None:
    """Write the library's scores of the pairs."""
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.util import maxsim, mean_maxsim

    model = MultiVectorEncoder(str(folder), device="cpu", local_files_only=True)
    queries, texts = model.encode_query([one for one, _ in pairs]), model.encode_document([one for _, one in pairs])
    raw, scores = (function(queries, texts).diagonal().numpy() for function in (maxsim, mean_maxsim))
    np.savez(folder.with_suffix(".npz"), raw=raw, scores=scores)


if __name__ == "__main__":
    compute(Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text()))
