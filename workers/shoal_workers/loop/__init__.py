"""The loop of a worker. A batch is computed in one pass: a forward pass, or several side by side on a thread each.

Imports the contract, the broker, the queue, the cache, `operations`, `index`, `encoding` and `process`.
"""
