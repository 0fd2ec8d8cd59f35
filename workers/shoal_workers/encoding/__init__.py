"""Encoding turns texts into vectors. Imports the contract, `model`, `avx512` and `process.processors`, but no queue."""
