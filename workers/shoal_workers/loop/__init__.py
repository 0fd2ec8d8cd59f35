"""The loop of a worker: the choice of the next pass, the pass, and its replies.

Imports the contract, the broker, the queue and the cache, `intake`, `operations`, `encoding` and `process`.
"""
