"""The client that talks to the API, and has no connection to Redis.

Imports the contract, the modules of `client`, `long_jobs`, `changes` and `records`.
"""
