"""The `shoal` command.

Imports client, queue, supervisor, `long_jobs`, `bulk`, `bench`, `evaluation` and `records`, each when it is needed.
"""
