"""Texts to vectors. Imports the contract, `model`, `avx512`, and the `processors` of `process`; knows no queue."""
