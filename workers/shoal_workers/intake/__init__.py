"""The intake of a worker: admission of jobs, and blame for those that ended workers.

Imports the contract, the broker, the queue and the cache, and the `operations` and `process` of a worker.
"""
