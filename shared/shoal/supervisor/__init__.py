"""The processes of `shoal serve`: started, watched and stopped. Imports the contract, the broker, the queue and the client."""
