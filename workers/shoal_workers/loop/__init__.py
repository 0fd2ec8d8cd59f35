"""The loop of a worker. Imports the contract, the broker, the queue, the cache, `operations`, `encoding`, `process`."""
