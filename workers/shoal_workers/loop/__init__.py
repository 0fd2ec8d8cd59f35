"""The loop of a worker: admission of jobs, the choice of the next pass, the pass, and its replies.

Imports the contract, the broker, the queue and the cache, `operations`, `encoding` and `process`.
"""
