"""The metrics that `/metrics` reports to Prometheus: counters of the API, and the present state of the pool.

Imports the contract, the queue, and the client that reaches Redis.
"""
