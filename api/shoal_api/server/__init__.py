"""The server around the application: processes, sockets, shutdown, metrics, and Flask's shorter dispatch."""
