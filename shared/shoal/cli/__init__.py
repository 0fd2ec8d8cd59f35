"""The `shoal` command. Imports the client, queue, supervisor, `long_jobs` and `bench`, each when a command needs it."""
