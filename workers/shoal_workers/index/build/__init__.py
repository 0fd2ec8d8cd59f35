"""Builds of versions: a source and the later changes are read, embedded, indexed, checked and published, or pushed.

Imports `files`, `lexical`, `vectors`, `index`, `engines`, `versions`, `changes`, `records`, `model` and
`encoding`. A build through a pool imports `client` and `bulk`; no other part of the index knows the queue.
"""
