"""Texts with 3 to 8,192 tokens for the tokenizer of the tiny models, of which two stand around each text."""

import numpy as np
from tiny_model import WORDS

MAX_TOKENS = 8_192

LONG_TEXTS = [" ".join(np.random.default_rng(n).choice(WORDS, n - 2)) for n in (3, 130, 1_500, MAX_TOKENS)]
