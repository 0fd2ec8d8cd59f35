"""What `/metrics` reports to Prometheus: counters of the API, and the state of the pool at the time of a scrape.

Imports the contract, the queue, and the client that reaches Redis.
"""
