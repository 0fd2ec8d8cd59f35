"""A model: its original, its preparation for serving, and the check that an engine reproduces it.

Imports nothing of the other rooms. `torch` is needed by `export` and `reference` alone.
"""
