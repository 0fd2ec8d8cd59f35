"""The clients of programs and of the API: `redis` has those that reach Redis, and `http` the one that reaches the API.

Here is what they share: questions, handles, and the sources of long jobs. It imports the contract, `queue`, `long_jobs`
and `records`.
"""
