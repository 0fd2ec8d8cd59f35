"""An index of documents: built, opened and searched.

It may import `records`, `model` and `encoding`, and nothing that knows the queue.
"""
