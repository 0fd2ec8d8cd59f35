"""The service: the process of a worker, from its settings to its end, and the host that runs workers of several models.

Imports the contract, the broker, the queue, the cache, changes, records and the supervisor, and all parts of a worker:
`loop`, `encoding`, `model`, `index` with its `store` and `serving`, and `process`.
"""
