"""The `shoal` command.

Imports client, queue, supervisor, `long_jobs`, `bulk`, `evaluation`, `viewers` and `records`, each when a command
needs it.
"""
