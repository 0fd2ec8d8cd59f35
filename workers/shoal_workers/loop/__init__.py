"""The loop of a worker. A batch is computed in one pass: one forward pass on all threads, or several at once.

A pass aside has a low priority, so that interactive jobs can be computed at the same time. Imports the contract,
the broker, the queue, the cache, `operations`, `index`, `encoding` and `process`.
"""
