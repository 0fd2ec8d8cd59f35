"""Encoding turns texts into vectors. Imports the contract, `model`, `kernel` and `process.processors`, but no queue."""
