"""The metrics that `/metrics` reports to Prometheus: of the API, and of the pool at the time of a scrape.

Imports the contract, the queue, the snapshot of viewers, and the client that reaches Redis.
"""
