"""The clients of a service: `redis` talks to Redis, and `http` talks to the API.

Both share the questions, handles and sources in this room. Imports the contract, `queue`, `long_jobs` and `records`.
"""
