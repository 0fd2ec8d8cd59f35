"""Texts to vectors: tokenizer, bucketing, packing, engines.

Imports the contract, `model`, and the `processors` of a worker process; knows no queue.
"""
