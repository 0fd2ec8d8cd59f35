"""The clients that put jobs into Redis, wait for the replies there, and change indexes. They do not use HTTP.

Imports the contract, the modules of `client`, `broker`, `queue`, `cache`, `long_jobs`, `changes` and `records`.
"""
