"""Scores of pairs by the CrossEncoder of Sentence Transformers, and a tiny RoBERTa that makes such scores.

`python reranker_reference.py PAIRS BERT ROBERTA` reads pairs from a JSON file, makes a model in the folder ROBERTA, and
writes the scores of both models beside them: BERT.npz and ROBERTA.npz, each with `scores`, `raw`, and `left`, the raw
scores of pairs that lose their beginning.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from random_models import ROBERTA, make
from sentence_transformers import CrossEncoder
from tiny_model import word_piece
from tokenizers.processors import RobertaProcessing

#: Most tokens of a pair.
MAX_TOKENS = 48


def make_roberta(folder: Path) -> None:
    """Save a RoBERTa with one label, whose tokenizer puts two tokens between the texts and knows no token types."""
    torch.manual_seed(5)
    tokenizer = word_piece()
    tokenizer.post_processor = RobertaProcessing(("[SEP]", 3), ("[CLS]", 2))
    settings = {"vocab_size": tokenizer.get_vocab_size(), "num_labels": 1, "pad_token_id": 0, "layer_norm_eps": 1e-5}
    model = make("RobertaForSequenceClassification", ROBERTA | settings)
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    kind = {"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": ["input_ids", "attention_mask"]}
    (folder / "tokenizer_config.json").write_text(json.dumps(names | kind | {"model_max_length": MAX_TOKENS}))


def compute(folder: Path, pairs: list[list[str]]) -> None:
    """Write the scores of the pairs beside the model's folder."""
    model = CrossEncoder(str(folder), device="cpu", local_files_only=True, model_kwargs={"use_safetensors": True})
    arrays = {"scores": model.predict(pairs), "raw": model.predict(pairs, activation_fn=torch.nn.Identity())}
    model.tokenizer.truncation_side = "left"
    arrays["left"] = model.predict(pairs, activation_fn=torch.nn.Identity())
    np.savez(folder.with_suffix(".npz"), **arrays)


if __name__ == "__main__":
    make_roberta(Path(sys.argv[3]))
    for argument in sys.argv[2:]:
        compute(Path(argument), json.loads(Path(sys.argv[1]).read_text()))
