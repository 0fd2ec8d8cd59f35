"""The map of an index: its documents in two dimensions, and the values of a field as colours. Knows no builds.

Imports the contract, `files` and `search`.
"""
