"""Texts to vectors: tokenizer, batcher, packing, engines.

Imports the contract, `model`, and the `processors` of a worker process; knows no queue.
"""
