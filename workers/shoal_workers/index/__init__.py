"""An index of documents: built, opened and searched.

It may import `model` and `encoding`, and nothing that knows the queue.
"""
