"""A tiny BERT with random weights and a word-piece tokenizer, as a Sentence Transformers folder and prepared."""

import string
import sys
from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from shoal_workers.model.prepare import prepare

WORDS = ["storm", "europe", "climate", "change", "rain", "the", "a", "of", "in", "and", "market", "falls", "rises"]


def save(folder: str) -> None:
    """Save a model of 32 dimensions and 2 layers that takes 48 tokens and has prompts for queries and documents."""
    torch.manual_seed(7)
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *string.ascii_lowercase, *(f"##{c}" for c in string.ascii_lowercase)]
    vocabulary = {piece: n for n, piece in enumerate(dict.fromkeys([*pieces, *string.digits, *WORDS]))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    BertModel(config).train(False).save_pretrained(f"{folder}-bert", safe_serialization=True)
    special = {"unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)  # type: ignore[no-untyped-call]
    fast.save_pretrained(f"{folder}-bert")
    transformer = Transformer(f"{folder}-bert", max_seq_length=48)
    model = SentenceTransformer(
        modules=[transformer, Pooling(32, "mean"), Normalize()],
        prompts={"query": "storm ", "document": ""},
    )
    model.save(folder)


def main(folder: Path) -> None:
    """Save the model in `folder`/model, and prepare it for serving in `folder`/prepared."""
    save(str(folder / "model"))
    prepare(str(folder / "model"), folder / "prepared")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
