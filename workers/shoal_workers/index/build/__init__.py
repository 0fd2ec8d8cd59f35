"""Builds of index versions: documents are read, embedded, indexed, checked, and published or pushed to an engine.

Imports `files`, `lexical`, `vectors`, `index`, `engines`, `versions`, `changes`, `records`, `model` and
`encoding`. A build through a pool imports `client` and `bulk`; no other part of the index knows the queue.
"""
