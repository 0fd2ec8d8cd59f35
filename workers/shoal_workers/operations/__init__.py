"""The operations in a worker, a file each: inputs for a model, what follows the passes, and the reply.

Imports the contract, the queue and the cache, `encoding`, `index` with its `search` and `serving`, and `process`.
"""
