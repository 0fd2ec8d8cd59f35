"""The indexes that a worker serves: found, opened when they are searched, switched to new versions, and checked.

Imports the index, its `files`, `search`, `vectors` and `store`, `changes` and `model`.
"""
