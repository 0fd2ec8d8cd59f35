"""Search by quantised vectors, exact and approximate, and through documents that were added since the build.

Knows neither builds nor stores. Imports the contract, `changes`, `avx512`, `files` and `lexical`.
"""
