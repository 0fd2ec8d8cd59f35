"""The shapes of requests and responses, as pydantic's models.

Imports the contract, `long_jobs` and the formats of vectors.
"""
