"""The metrics that `/metrics` reports to Prometheus: of the API, and of the pool at the time of a scrape.

Imports the contract, the queue, and the client that reaches Redis.
"""
