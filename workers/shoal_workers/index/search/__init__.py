"""Exact search by quantised vectors, and through documents that were added since. Knows neither builds nor stores.

Imports the contract, `changes`, `records`, `files` and `lexical`.
"""
