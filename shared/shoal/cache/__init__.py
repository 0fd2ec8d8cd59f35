"""Vectors of texts that were embedded before, kept in Redis. Imports the contract, the broker and the queue."""
