"""Building a version: from a source and the changes since, by documents and their vectors, to its publication.

Imports `files`, `lexical`, `vectors` and versions of the `index`, `changes`, `records`, `model` and `encoding`. A
build through a pool imports `client` and `bulk`; nothing else in the index knows the queue.
"""
