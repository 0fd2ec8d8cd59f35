"""A model: its original, its preparation for serving, and the check that an engine reproduces it.

Only `prepare` may import `encoding`; `torch` is needed by `graph`, `prepare` and `reference` alone.
"""
