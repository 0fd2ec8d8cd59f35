"""An index of documents: built, opened and searched, and its versions.

It may import `records`, `changes`, `model` and `encoding`. A build through a pool imports `client` and `bulk`; nothing
else knows the queue.
"""
