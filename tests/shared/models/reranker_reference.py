"""Tiny rerankers, and scores of pairs by Sentence Transformers' CrossEncoder.

`python reranker_reference.py PAIRS BERT ROBERTA MODERNBERT` reads pairs from a JSON file, makes models in the last two
folders, and writes the scores of all three models beside them: BERT.npz and so on. Each file has `scores`, `raw`, and
`left`, the raw scores of pairs that are cut at their beginning.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from random_models import MODERNBERT, ROBERTA, make
from sentence_transformers import CrossEncoder
from tiny_model import word_piece
from tokenizers import Tokenizer
from tokenizers.processors import RobertaProcessing, TemplateProcessing

#: Largest number of tokens of a pair.
MAX_TOKENS = 48


def make_roberta(folder: Path) -> None:
    """Save a RoBERTa with one label. Its tokenizer puts two tokens between the texts, and has no token types."""
    tokenizer = word_piece()
    tokenizer.post_processor = RobertaProcessing(("[SEP]", 3), ("[CLS]", 2))
    save(folder, "RobertaForSequenceClassification", ROBERTA | {"layer_norm_eps": 1e-5}, tokenizer)


def make_modernbert(folder: Path) -> None:
    """Save a ModernBERT with one label from the mean of a pair's tokens. Its tokenizer has no token types."""
    tokenizer = word_piece()
    pair = "[CLS] $A [SEP] $B:0 [SEP]:0"
    tokenizer.post_processor = TemplateProcessing("[CLS] $A [SEP]", pair, [("[CLS]", 2), ("[SEP]", 3)])
    settings = {"classifier_pooling": "mean", "norm_eps": 1e-5}
    save(folder, "ModernBertForSequenceClassification", MODERNBERT | settings, tokenizer)


def save(
    folder: Path, kind: str, settings: dict[str, Any], tokenizer: Tokenizer, most: int = MAX_TOKENS, **names: str
) -> None:
    """Save a random model with one label, and its tokenizer."""
    torch.manual_seed(5)
    labels = {"vocab_size": tokenizer.get_vocab_size(), "num_labels": 1, "pad_token_id": 0}
    make(kind, settings | labels).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    names = names or {"unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": ["input_ids", "attention_mask"]}
    (folder / "tokenizer_config.json").write_text(json.dumps(names | about | {"model_max_length": most}))


def compute(folder: Path, pairs: list[list[str]]) -> None:
    """Write the scores of the pairs beside the model's folder."""
    model = CrossEncoder(str(folder), device="cpu", local_files_only=True, model_kwargs={"use_safetensors": True})
    arrays = {"scores": model.predict(pairs), "raw": model.predict(pairs, activation_fn=torch.nn.Identity())}
    model.tokenizer.truncation_side = "left"
    arrays["left"] = model.predict(pairs, activation_fn=torch.nn.Identity())
    np.savez(folder.with_suffix(".npz"), **arrays)


if __name__ == "__main__":
    make_roberta(Path(sys.argv[3]))
    make_modernbert(Path(sys.argv[4]))
    for argument in sys.argv[2:]:
        compute(Path(argument), json.loads(Path(sys.argv[1]).read_text()))
