"""The `shoal` command. Imports client, queue, supervisor, `long_jobs`, `bulk` and `bench`, each when it is needed."""
