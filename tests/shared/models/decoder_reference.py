"""Tiny decoders that score a pair in a chat template, and their scores by CrossEncoder.

`python decoder_reference.py PAIRS TIED UNTIED SCORES` makes a model in each of the last three folders. TIED and UNTIED
compare the logits of two words, and only UNTIED has its own output vectors for the words. SCORES has a layer for
scores. Scores are saved as in `reranker_reference.py`.
"""

import json
import sys
from pathlib import Path

from random_models import QWEN3
from reranker_reference import compute, save
from sentence_transformers import CrossEncoder
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

#: A template with the tokens and the white space of Qwen3-Reranker's template around query and text.
TEMPLATE = """\
{%- set what = messages | selectattr("role", "eq", "system") | map(attribute="content") | first | default("Find it") -%}
{%- set query = messages | selectattr("role", "eq", "query") | map(attribute="content") | first -%}
{%- set text = messages | selectattr("role", "eq", "document") | map(attribute="content") | first -%}
<|im_start|>system
Judge by "yes" or "no".<|im_end|>
<|im_start|>user
<Instruct>: {{ what }}
<Query>: {{ query }}
<Document>: {{ text }}<|im_end|>
<|im_start|>assistant
<think>

</think>


"""

#: A part of Qwen's rule to split a text: a space joins the next word, and a line break joins punctuation.
SPLIT = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def make_decoder(folder: Path, kind: str, **settings: object) -> None:
    """Save a decoder with a chat template in the form of Sentence Transformers' CrossEncoder."""
    merges = [("y", "e"), ("ye", "s"), ("n", "o"), ("?", "Ċ"), ("Ġ", "s"), ("Ġs", "t"), ("o", "r"), ("Ġst", "or")]
    names = ["<|endoftext|>", *sorted(pre_tokenizers.ByteLevel.alphabet()), *map("".join, merges)]
    tokenizer = Tokenizer(models.BPE({name: n for n, name in enumerate(names)}, merges))
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(SPLIT), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens(["<think>", "</think>"])
    longer = {"max_position_embeddings": 2_048, "rms_norm_eps": 1e-6}
    plain = folder.with_name(f"{folder.name}-plain")
    save(plain, kind, QWEN3 | longer | settings, tokenizer, 2_048, pad_token="<|endoftext|>")
    (plain / "chat_template.jinja").write_text(TEMPLATE)
    CrossEncoder(str(plain), device="cpu", local_files_only=True).save_pretrained(str(folder))


if __name__ == "__main__":
    folders = [Path(argument) for argument in sys.argv[2:]]
    make_decoder(folders[0], "Qwen3ForCausalLM", tie_word_embeddings=True)
    make_decoder(folders[1], "Qwen3ForCausalLM", tie_word_embeddings=False)
    make_decoder(folders[2], "Qwen3ForSequenceClassification")
    for folder in folders:
        compute(folder, json.loads(Path(sys.argv[1]).read_text()))
