"""The metrics that `/metrics` reports to Prometheus: counters of the API, and the state of the pool when it is asked.

Imports the contract, the queue, and the client that reaches Redis.
"""
