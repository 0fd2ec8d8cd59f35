"""The `shoal` command. Imports the client, the queue, the supervisor and `bench`, each when a command needs it."""
