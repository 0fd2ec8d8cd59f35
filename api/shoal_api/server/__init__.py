"""The server around the application: processes, sockets, shutdown, metrics.

Imports the contract, the queue, the client, access control, and the API's request. `server` alone imports the
application it serves.
"""
