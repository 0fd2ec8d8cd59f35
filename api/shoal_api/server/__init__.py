"""The server around the application: its event loop, its sockets and its shutdown.

Imports the contract, the event loop of the client, access control, and the API's request and responses. `server` alone
imports the application that it serves.
"""
