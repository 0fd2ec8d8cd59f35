"""The `shoal` command. Imports everything in `shoal`, each part only when a command needs it."""
