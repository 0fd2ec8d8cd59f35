"""The server around the application: processes, sockets, shutdown, metrics."""
