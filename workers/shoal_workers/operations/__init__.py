"""The operations of a worker, one file each. An operation turns a job into inputs of a model, and vectors into a reply.

Imports the contract, the queue and the cache, `encoding`, `index` with its `search` and `serving`, and `process`.
"""
