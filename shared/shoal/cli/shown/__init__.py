"""The output of commands: tables and screens of a pool, files of vectors."""
