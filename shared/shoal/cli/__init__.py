"""The `shoal` command.

Imports client, queue, supervisor, `long_jobs`, `bulk`, `evaluation` and `records`, each when a command
needs it.
"""
