"""Texts to vectors: tokenizer, bucketing, packing, engines.

Imports the contract, `model`, `avx512`, and the `processors` of a worker process; knows no queue.
"""
