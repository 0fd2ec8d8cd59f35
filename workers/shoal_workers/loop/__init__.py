"""The loop of a worker.

Imports the contract, the broker, the queue, the cache, `operations`, `index`, `encoding` and `process`.
"""
