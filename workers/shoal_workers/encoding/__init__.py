"""Texts to vectors: tokenizer, batcher, packing, engines. Knows no queue."""
