"""Exact search by vectors, made fast by quantised copies of them, and vectors of tokens.

Imports the contract and `files`.
"""
