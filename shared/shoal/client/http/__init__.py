"""The client that reaches the API, and not Redis. It has no connection of its own to the queue or the cache.

Imports the contract, what all of `client` share, `long_jobs`, `changes` and `records`.
"""
