"""The clients of programs and of the API: `redis` reaches Redis, `http` the API.

They share questions, handles and sources here. It imports the contract, `queue`, `long_jobs` and `records`.
"""
