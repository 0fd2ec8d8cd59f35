"""The clients of a service: `redis` talks to Redis, and `http` talks to the API.

Both use the questions, handles and sources of this package. Imports the contract, `queue`, `long_jobs` and `records`.
"""
