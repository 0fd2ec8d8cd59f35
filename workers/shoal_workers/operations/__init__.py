"""The operations of a worker, one file each: how a job becomes inputs of a model, and vectors become a reply.

Imports the contract, the queue and the cache, `encoding`, `index` with its `search` and `serving`, and `process`.
"""
