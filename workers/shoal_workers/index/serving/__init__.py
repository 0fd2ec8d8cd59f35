"""Serving indexes: a worker finds them, opens them for searches, switches to new versions, and checks their files.

Imports the index, its `files`, `search`, `vectors` and `store`, `changes` and `model`.
"""
