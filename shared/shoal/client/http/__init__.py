"""The client that talks to the API and does not use Redis.

Imports the contract, the modules of `client`, `long_jobs`, `changes` and `records`.
"""
