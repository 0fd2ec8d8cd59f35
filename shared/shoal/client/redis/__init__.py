"""The clients that reach Redis put jobs, get replies, and change indexes. Know nothing of HTTP.

They import the contract, what all of `client` share, `broker`, `queue`, `cache`, `long_jobs`, `changes` and `records`.
"""
