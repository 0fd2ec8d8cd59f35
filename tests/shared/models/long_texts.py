"""Texts with 3 to 8,192 tokens in the tiny models' tokenizer, the two special tokens of each text included."""

import numpy as np
from tiny_model import WORDS

MAX_TOKENS = 8_192

LONG_TEXTS = [" ".join(np.random.default_rng(n).choice(WORDS, n - 2)) for n in (3, 130, 1_500, MAX_TOKENS)]
